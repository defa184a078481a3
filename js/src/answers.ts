/**
 * The hub's answers.
 *
 * They are read leniently: missing members take their defaults and unknown members are ignored, so a
 * client and a hub of different versions can talk to each other.
 */

import { OutcomeUnknown } from './wire/errors.js';
import { members, type Shape } from './wire/shapes.js';

/** Read the payload of an answer. The request succeeded even if that fails. */
export function answerOf<T>(payload: unknown, shape: Shape): T {
  const answer = members<T>(payload, shape);
  if (answer === null) {
    throw new OutcomeUnknown("the hub's answer cannot be read");
  }
  return answer;
}

/** The result of an ask: `delivered` to the recipient's socket, or `queued` for it. */
export interface Receipt {
  messageId: string;
  status: string;
  deliveredAt: number | null;
  /** Of the recipient's mailbox, if it has one. */
  epoch: string | null;
  seq: number | null;
  /** `fsync`, `interval` or `os`. */
  durability: string | null;
  /** The hub already had it. */
  duplicate: boolean;
  /** How often this client sent it. */
  attempts: number;
}
export const RECEIPT: Shape = {
  messageId: 's!',
  status: 's:delivered',
  deliveredAt: 'n?',
  epoch: 's?',
  seq: 'i?',
  durability: 's?',
  duplicate: 'b',
  attempts: 'i:1',
};

/** The result of a publish; only durable topics have positions. */
export interface Published {
  topic: string;
  subscribers: number;
  epoch: string | null;
  seq: number | null;
  durability: string | null;
  duplicate: boolean;
  attempts: number;
}
export const PUBLISHED: Shape = {
  topic: 's',
  'subscribers<subscriberCount': 'i',
  epoch: 's?',
  seq: 'i?',
  durability: 's?',
  duplicate: 'b',
  attempts: 'i:1',
};

/** How many actors a broadcast reached; `queued` ones receive it in later batches. */
export interface BroadcastResult {
  messageId: string;
  delivered: number;
  failed: number;
  queued: number;
}
export const BROADCAST: Shape = {
  messageId: 's',
  'delivered<deliveredCount': 'i',
  'failed<failedCount': 'i',
  'queued<queuedCount': 'i',
};

/** An address registered by this client. */
export interface Registration {
  address: string;
  expiresAt: number;
  version: number;
  durable: boolean;
  /** Messages that waited for it and are delivered next. */
  waiting: number;
}
export const REGISTRATION: Shape = {
  'address<actorAddress': 's!',
  expiresAt: 'n',
  version: 'i:1',
  durable: 'b',
  waiting: 'i',
};

/** One actor; `away` if it has a mailbox but no session. */
export interface Actor {
  address: string;
  capabilities: string[];
  away: boolean;
}
/** The actors `discover` found; `hasMore` says whether there are more. */
export interface Found {
  actors: Actor[];
  hasMore: boolean;
}
export const FOUND: Shape = {
  actors: [{ address: 's!', capabilities: ['s'], away: 'b' }],
  hasMore: 'b',
};

/** One registered actor, as `actors` returns it. */
export interface ListedActor {
  address: string;
  capabilities: string[];
  metadata: Record<string, unknown>;
  connectionId: string;
  registeredAt: number;
  expiresAt: number;
  version: number;
}
/** A page of a list whose rows are counted. */
export interface OffsetPage {
  offset: number;
  limit: number;
  hasMore: boolean;
}
const OFFSET_PAGE: Shape = { offset: 'i', limit: 'i', hasMore: 'b' };

/** A page of the registry. */
export interface ActorPage extends OffsetPage {
  actors: ListedActor[];
  total: number;
}
export const ACTOR_PAGE: Shape = {
  ...OFFSET_PAGE,
  actors: [
    {
      'address<actorAddress': 's!',
      capabilities: ['s'],
      metadata: 'o',
      connectionId: 's',
      registeredAt: 'n',
      expiresAt: 'n',
      version: 'i:1',
    },
  ],
  total: 'i',
};

/** One session of the hub. */
export interface SessionInfo {
  id: string;
  /** `null` before its hello. */
  identity: string | null;
  subject: string | null;
  /** The `jti` of its token. */
  tokenId: string | null;
  tokenExpiresAt: number | null;
  /** The network address of its client. */
  source: string;
  connectedAt: number;
  lastSeenAt: number;
  registrations: number;
  subscriptions: number;
  consumers: number;
  queuedMessages: number;
  queuedBytes: number;
}
/** A page of the hub's sessions; `next` is where the following one begins. */
export interface SessionPage {
  sessions: SessionInfo[];
  total: number;
  next: number | null;
}
export const SESSION_PAGE: Shape = {
  sessions: [
    {
      'id<sessionId': 's!',
      identity: 's?',
      subject: 's?',
      tokenId: 's?',
      tokenExpiresAt: 'n?',
      source: 's',
      connectedAt: 'n',
      lastSeenAt: 'n',
      registrations: 'i',
      subscriptions: 'i',
      consumers: 'i',
      queuedMessages: 'i',
      queuedBytes: 'i',
    },
  ],
  total: 'i',
  next: 'i?',
};

/** What is queued in the hub for this connection. */
export interface QueueStats {
  queueDepth: number;
  processingRate: number;
  pauseThreshold: number;
  resumeThreshold: number;
}
export const QUEUE_STATS: Shape = {
  queueDepth: 'i',
  processingRate: 'n',
  pauseThreshold: 'i',
  resumeThreshold: 'i',
};

/** How much one identity, or one source address, uses. */
export interface UsedBy {
  identity: string;
  source: string;
  used: number;
}
/** A resource of the hub: how much of it is used, its limits, and who uses most of it. */
export interface ResourceUsage {
  resource: string;
  used: number;
  limit: number | null;
  perIdentity: number | null;
  perSource: number | null;
  identities: UsedBy[];
  sources: UsedBy[];
}
/** What `limits` returns: every resource that is limited. */
export interface LimitUsage {
  resources: ResourceUsage[];
}
const USED_BY: Shape = { identity: 's', source: 's', used: 'i' };
export const LIMIT_USAGE: Shape = {
  resources: [
    {
      resource: 's',
      used: 'i',
      limit: 'i?',
      perIdentity: 'i?',
      perSource: 'i?',
      identities: [USED_BY],
      sources: [USED_BY],
    },
  ],
};

/** A token that replaces the one in use. */
export interface RefreshedToken {
  token: string;
  expiresAt: number | null;
}
export const REFRESHED: Shape = { token: 's!', expiresAt: 'n?' };

/** Positions that can no longer be read, both ends included. */
export interface Lost {
  first: number;
  last: number;
}

/** How long and how much a topic keeps; `null` means no limit. */
export interface Retention {
  ageMs: number | null;
  bytes: number | null;
}
/** A durable topic. */
export interface Topic {
  name: string;
  durable: boolean;
  epoch: string | null;
  /** The last position; 0 if nothing was published yet. */
  head: number;
  /** The oldest position that can still be read. */
  first: number | null;
  /** Messages published since the topic was created. */
  bytes: number | null;
  retention: Retention | null;
  poison: string | null;
  deadLetter: string | null;
  heartbeatMs: number | null;
  /** Positions redriven or purged. */
  removed: number | null;
  subscriptions: string[];
}
export const TOPIC: Shape = {
  'name<topic': 's!',
  durable: 'b:true',
  epoch: 's?',
  head: 'i',
  first: 'i?',
  bytes: 'i?',
  retention: { 'ageMs<ageSeconds': 'n?', bytes: 'i?' },
  poison: 's?',
  deadLetter: 's?',
  heartbeatMs: 'n?',
  removed: 'i?',
  subscriptions: ['s'],
};
/** A page of the durable topics. */
export interface TopicPage extends OffsetPage {
  topics: Topic[];
}
export const TOPIC_PAGE: Shape = { ...OFFSET_PAGE, topics: [TOPIC] };

/** A consumer of a durable subscription. */
export interface ConsumerInfo {
  name: string;
  subscriptionId: string;
  session: string;
  inFlight: number;
  window: number;
}
/** Where a subscription waits because its log cannot be read or written, and why. */
export interface HeldUp {
  seq: number;
  code: string;
  reason: string;
  segment: string | null;
  position: number | null;
}
/** A durable subscription; `lag` counts messages that are neither settled nor parked. */
export interface SubscriptionInfo {
  topic: string;
  name: string;
  mode: string;
  epoch: string | null;
  consumers: ConsumerInfo[];
  /** Everything up to here is settled. */
  floor: number;
  next: number;
  head: number;
  lag: number;
  lagMs: number | null;
  inFlight: number;
  waitingRetry: number;
  /** Failed too often, and the poison policy has not settled them. */
  exhausted: number;
  settledAboveFloor: number;
  /** Parked until their delivery time. */
  parked: number;
  deadLettered: number;
  redelivered: number;
  lost: number;
  paused: boolean;
  blocked: boolean;
  /** Why the log keeps it from delivering more. */
  heldUp: HeldUp | null;
  generation: number | null;
  first: number | null;
  window: number | null;
  strict: boolean | null;
  ackTimeoutMs: number | null;
  maxDeliveries: number | null;
  backoffMs: number | null;
  backoffCapMs: number | null;
  heartbeatMs: number | null;
  autoAck: boolean | null;
  poison: string | null;
  deadLetter: string | null;
  ratePerSecond: number | null;
  idleExpiryMs: number | null;
  backlogMax: number | null;
  backlogPolicy: string | null;
  /** Of a pattern, which adds up its topics and has its own name as `topic`, and of its parts. */
  pattern: string | null;
  topics: number | null;
  topicsBehind: number | null;
  topicsBlocked: number | null;
}
const numbers = (kind: string, names: string): Shape =>
  Object.fromEntries(names.split(' ').map((name) => [name, kind]));
export const SUBSCRIPTION: Shape = {
  'name<subscription': 's',
  'lagMs<lagSeconds': 'n?',
  consumers: [
    { 'name<consumer': 's', subscriptionId: 's', session: 's', inFlight: 'i', window: 'i' },
  ],
  heldUp: { seq: 'i', code: 's', reason: 's', segment: 's?', position: 'i?' },
  ...numbers('s', 'topic mode'),
  ...numbers(
    'i',
    'floor next head lag inFlight waitingRetry exhausted settledAboveFloor parked deadLettered redelivered lost',
  ),
  ...numbers('b', 'paused blocked'),
  ...numbers('b?', 'strict autoAck'),
  ...numbers('s?', 'epoch poison deadLetter backlogPolicy pattern'),
  ...numbers(
    'n?',
    'generation first window ackTimeoutMs maxDeliveries backoffMs backoffCapMs heartbeatMs ratePerSecond idleExpiryMs backlogMax topics topicsBehind topicsBlocked',
  ),
};
/** Durable subscriptions, of one topic or of all. */
export interface SubscriptionPage extends OffsetPage {
  subscriptions: SubscriptionInfo[];
}
export const SUBSCRIPTION_PAGE: Shape = { ...OFFSET_PAGE, subscriptions: [SUBSCRIPTION] };

/** The position after a seek, and how many messages it repeats or skips. */
export interface Sought {
  epoch: string | null;
  next: number;
  willReplay: number;
  willSkip: number;
  /** Of a pattern: how many are moved. */
  topics: number | null;
}
export const SOUGHT: Shape = {
  epoch: 's?',
  next: 'i',
  willReplay: 'i',
  willSkip: 'i',
  topics: 'i?',
};

/** The end of a replay: whether the range is complete, and where to continue. */
export interface Replayed {
  count: number;
  complete: boolean;
  next: number | null;
  lostFrom: number | null;
  lostTo: number | null;
}
export const REPLAYED: Shape = {
  count: 'i',
  complete: 'b:true',
  next: 'i?',
  lostFrom: 'i?',
  lostTo: 'i?',
};

/**
 * How many dead letters were redriven or purged. `skipped` of the chosen ones stay: their origin is
 * gone or closed to this session, or the edit is not possible.
 */
export interface LetterCount {
  count: number;
  skipped: number;
}
export const LETTER_COUNT: Shape = { count: 'i', skipped: 'i' };

/** What a redrive or purge would do, up to the position `through`. */
export interface LettersPreview {
  count: number;
  /** Their origin is gone, or closed to this session. */
  skipped: number;
  epoch: string;
  through: number;
  /** `null` without the permission `read`. */
  byReason: { reason: string; count: number }[] | null;
  first: {
    seq: number;
    stream: string | null;
    subscription: string | null;
    attempts: number;
    lastFailure: number;
    reason: string | null;
    type: string | null;
    key: string | null;
  }[];
}
export const LETTERS_PREVIEW: Shape = {
  count: 'i',
  skipped: 'i',
  epoch: 's',
  through: 'i',
  byReason: '*?',
  first: [
    {
      seq: 'i',
      attempts: 'i',
      lastFailure: 'n',
      ...numbers('s?', 'stream subscription reason type key'),
    },
  ],
};

/** A job of an operator. */
export interface Job {
  job: string;
  operation: string;
  /** `running`, `done`, `failed` or `interrupted`. */
  state: string;
  subject: string | null;
  identity: string | null;
  beganAt: number | null;
  endedAt: number | null;
  detail: string | null;
}
/** The newest jobs of the hub, the last one first. */
export interface JobPage {
  jobs: Job[];
  total: number;
}
export const JOB_PAGE: Shape = {
  jobs: [
    {
      job: 's!',
      operation: 's',
      state: 's',
      ...numbers('s?', 'subject identity detail'),
      ...numbers('n?', 'beganAt endedAt'),
    },
  ],
  total: 'i',
};

/** A message accepted earlier, and its position in the log. */
export interface Original {
  epoch: number;
  offset: number;
  id: string;
  type: string;
  shard?: number;
  from?: string | null;
  key?: string | null;
  headers?: Record<string, string> | null;
  data?: unknown;
}
/** The progress of a replay job; `position` is `null` before its first message. */
export interface Republished {
  job: string;
  position: { shard: number; epoch: number; offset: number } | null;
  appended: number;
  /** Appended by this job before. */
  skipped: number;
}
export const REPUBLISHED: Shape = {
  job: 's',
  position: { shard: 'i!', epoch: 'i!', offset: 'i!' },
  appended: 'i',
  skipped: 'i',
};

/** In a copy: the replay job that sent it, and the original's position and id. */
export interface Copied {
  job: string;
  shard: number;
  epoch: number;
  offset: number;
  id: string;
}
export const COPIED: Shape = { job: 's!', shard: 'i', epoch: 'i', offset: 'i', id: 's' };

/** What an erasure removed from the hub's log. */
export interface Erased {
  entries: number;
  /** Deliveries that were not settled yet. */
  settled: number;
  mailbox: boolean;
  /** Log files that were rewritten. */
  segments: number;
  torn: number;
  epoch: number;
  /** The log was searched up to this offset. */
  through: number;
  /** Completion time in milliseconds. */
  at: number;
}
export const ERASED: Shape = {
  ...numbers('i', 'entries settled segments torn epoch through'),
  mailbox: 'b',
  at: 'n',
};

/** Where a durable actor lives; messages for it carry the token as a fence. */
export interface Place {
  actor: string;
  host: string;
  token: number;
  /** It starts there empty, because its former place was forgotten. */
  fresh: boolean;
}
export const PLACE: Shape = { actor: 's!', host: 's!', token: 'i!', fresh: 'b' };

/** A durable actor without a place, and why; with code `no_host`, try again later. */
export interface Unplaced {
  actor: string;
  code: string;
  message: string;
  resolution: string;
}
/** The result of `place`, in the order of the request. */
export interface Placements {
  places: Place[];
  unplaced: Unplaced[];
}
export const PLACEMENTS: Shape = {
  places: [PLACE],
  unplaced: [{ actor: 's!', code: 's!', message: 's', resolution: 's' }],
};
