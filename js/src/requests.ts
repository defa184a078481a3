/**
 * The requests a client sends to a hub, one function for each type. Arguments are checked when a
 * request is created.
 */

import {
  ACTOR_PAGE,
  type ActorPage,
  BROADCAST,
  type BroadcastResult,
  FOUND,
  type Found,
  JOB_PAGE,
  type JobPage,
  LIMIT_USAGE,
  type LimitUsage,
  PUBLISHED,
  type Published,
  QUEUE_STATS,
  type QueueStats,
  RECEIPT,
  REFRESHED,
  REGISTRATION,
  type Receipt,
  type RefreshedToken,
  type Registration,
  SESSION_PAGE,
  type SessionPage,
  answerOf,
} from './answers.js';
import { HeldBy, type Payload, declared } from './protocol/frame.js';
import {
  checkedAddress,
  checkedCapabilities,
  checkedHeaders,
  checkedSubscription,
  checkedTopic,
  checkedType,
  epochMs,
  invalid,
} from './wire/names.js';
import type { Shape } from './wire/shapes.js';

export const nothing = (): undefined => undefined;

/** Read answers of this shape. */
export const as =
  <A>(shape: Shape) =>
  (answer: unknown): A =>
    answerOf<A>(answer, shape);

const counted =
  <A>(shape: Shape) =>
  (answer: unknown, attempts: number): A => ({ ...answerOf<A>(answer, shape), attempts });

const EXEMPT = { heldBy: HeldBy.Exempt };

/** The first message on a new connection; all its members are in its metadata. */
export const connecting = () => declared('hub:connect', 'hub:connected', null, nothing, EXEMPT);

export const disconnecting = () =>
  declared('hub:disconnect', 'hub:disconnect', null, nothing, EXEMPT);

export const beat = (timestamp: number) =>
  declared('hub:heartbeat', 'hub:heartbeat_ack', { timestamp }, nothing, {
    ...EXEMPT,
    isTell: true,
  });

/** What is registered under an address. */
export interface Registering {
  /** Words by which others can find this actor. */
  capabilities?: Iterable<string>;
  /** Any other facts about it; shown by `actors()`. */
  metadata?: Record<string, unknown>;
  /** How long the hub keeps the address without activity. The client renews it automatically. */
  leaseMs?: number;
  /**
   * `true` stores asks to the address while we are away, until it is unregistered; `false` deletes
   * its mailbox; left out, nothing changes.
   */
  durable?: boolean | null;
}

export function registering(address: string, options: Registering = {}): Payload<Registration> {
  const { leaseMs, durable } = options;
  if (leaseMs !== undefined && !(leaseMs > 0)) {
    invalid('a lease must be longer than 0 ms');
  }
  const content = {
    actorAddress: checkedAddress(address),
    capabilities: checkedCapabilities(options.capabilities ?? []),
    metadata: { ...options.metadata },
    ttlSeconds: leaseMs === undefined ? undefined : leaseMs / 1000,
    durable: durable ?? undefined,
  };
  return declared('hub:register', 'hub:registered', content, as(REGISTRATION));
}

export const unregistering = (address: string) =>
  declared(
    'hub:unregister',
    'hub:unregistered',
    { actorAddress: checkedAddress(address) },
    nothing,
  );

function sent<A>(
  to: string,
  type: string,
  data: unknown,
  answer: string | null,
  read: (answer: unknown, attempts: number) => A,
  others: Partial<Payload<A>>,
  more = {},
): Payload<A> {
  const content = { to: checkedAddress(to), type: checkedType(type), data: data ?? null, ...more };
  return declared('hub:send', answer, content, read, {
    subject: `${type} to ${to}`,
    target: to,
    ...others,
  });
}

/** A message to an actor, delivered at most once. */
export const telling = (to: string, type: string, data: unknown) =>
  sent(to, type, data, null, nothing, { heldBy: HeldBy.Tell, isTell: true });

/** A message to an actor that the hub acknowledges. */
export const asking = (
  to: string,
  type: string,
  data: unknown,
  fences?: Record<string, number>,
): Payload<Receipt> =>
  sent(
    to,
    type,
    data,
    'hub:delivery_ack',
    counted<Receipt>(RECEIPT),
    { heldBy: HeldBy.Traffic, noun: 'an ask' },
    fences && Object.keys(fences).length ? { fences } : {},
  );

export interface Publishing {
  /** The hub stores it, and the client repeats it until it is answered. */
  durable?: boolean;
  /** Messages with the same key keep their order in `key-shared` subscriptions. */
  key?: string;
  /** Strings sent with the payload. */
  headers?: Record<string, string>;
  /** Do not deliver before this time. */
  deliverAt?: number | Date;
}

/** A message to all subscribers of a topic. */
export function publishing(
  topic: string,
  type: string,
  data: unknown,
  options: Publishing = {},
): Payload<Published> {
  const { durable, key, headers, deliverAt } = options;
  const content = {
    topic: checkedTopic(topic),
    type: checkedType(type),
    data: data ?? null,
    durable: durable || undefined,
    key: key ?? undefined,
    headers: headers && checkedHeaders(headers),
    deliverAt: deliverAt === undefined ? undefined : epochMs(deliverAt),
  };
  return declared('hub:publish', 'hub:published', content, counted<Published>(PUBLISHED), {
    heldBy: HeldBy.Traffic,
    noun: 'a publish',
    subject: `${type} on topic ${topic}`,
    // A plain topic stores nothing, so the hub could not recognise a second copy.
    isRepeatable: !!durable,
  });
}

export const broadcasting = (
  type: string,
  data: unknown,
  excludeSelf: boolean,
): Payload<BroadcastResult> =>
  declared(
    'hub:broadcast',
    'hub:broadcast_ack',
    { type: checkedType(type), data: data ?? null, excludeSelf },
    as(BROADCAST),
    { heldBy: HeldBy.Traffic, subject: `broadcast of ${type}` },
  );

export const subscribing = (topic: string) =>
  declared('hub:subscribe', 'hub:subscribed', { topic: checkedSubscription(topic) }, nothing);

export const unsubscribing = (topic: string) =>
  declared('hub:unsubscribe', 'hub:unsubscribed', { topic: checkedSubscription(topic) }, nothing);

export const discovering = (
  pattern: string,
  limit: number,
  capability?: string,
  includeAway?: boolean,
): Payload<Found> =>
  declared(
    'hub:discover',
    'hub:discovered',
    {
      pattern: pattern || invalid('a pattern must not be empty; `*` matches every actor'),
      limit,
      capability,
      includeAway: includeAway || undefined,
    },
    as(FOUND),
  );

export const listingActors = (offset: number, limit: number): Payload<ActorPage> =>
  declared('hub:list_actors', 'hub:actor_list', { offset, limit }, as(ACTOR_PAGE));

export const listingSessions = (
  pattern: string,
  after: number,
  limit: number,
): Payload<SessionPage> =>
  declared('hub:list_sessions', 'hub:session_list', { pattern, after, limit }, as(SESSION_PAGE));

export const closingSession = (sessionId: string) =>
  declared('hub:close_session', 'hub:session_closed', { sessionId }, nothing);

export const listingJobs = (limit: number): Payload<JobPage> =>
  declared('hub:list_jobs', 'hub:job_list', { limit }, as(JOB_PAGE));

export const showingQueue = (): Payload<QueueStats> =>
  declared('hub:queue_stats', 'hub:queue_stats_response', {}, as(QUEUE_STATS));

export const showingMetrics = (): Payload<Record<string, unknown>> =>
  declared(
    'hub:metrics',
    'hub:metrics_response',
    {},
    (answer) => answer as Record<string, unknown>,
  );

export const showingLimits = (limit: number, identity?: string): Payload<LimitUsage> =>
  declared('hub:limits', 'hub:limits_response', { limit, identity }, as(LIMIT_USAGE));

export const refreshingToken = (token: string): Payload<RefreshedToken> =>
  declared('hub:refresh_token', 'hub:token_refreshed', { token }, as(REFRESHED));
