/** Requests about durable topics, subscriptions, their messages and actors. */

import {
  ERASED,
  type Erased,
  LETTERS_PREVIEW,
  LETTER_COUNT,
  type LetterCount,
  type LettersPreview,
  type Original,
  PLACE,
  PLACEMENTS,
  type Place,
  type Placements,
  REPLAYED,
  REPUBLISHED,
  type Replayed,
  type Republished,
  SOUGHT,
  SUBSCRIPTION,
  SUBSCRIPTION_PAGE,
  type Sought,
  type SubscriptionInfo,
  type SubscriptionPage,
  TOPIC,
  TOPIC_PAGE,
  type Topic,
  type TopicPage,
} from './answers.js';
import { type Delivery, SETTLED, type Settled } from './delivery.js';
import { HeldBy, type Payload, declared } from './protocol/frame.js';
import { as, nothing } from './requests.js';
import {
  type Position,
  checkedActor,
  checkedAddress,
  checkedName,
  checkedPattern,
  checkedTopic,
  epochMs,
  hasWildcard,
  invalid,
  wirePosition,
} from './wire/names.js';

const MODES = ['exclusive', 'shared', 'failover', 'key-shared'] as const;
const POISONS = ['block', 'drop', 'dead_letter'] as const;
const BACKLOG_POLICIES = ['drop_oldest', 'refuse'] as const;

export type Mode = (typeof MODES)[number];
export type Poison = (typeof POISONS)[number];
export type BacklogPolicy = (typeof BACKLOG_POLICIES)[number];

/** How a durable topic is defined; omitted options keep their value or the hub's default. */
export interface Definition {
  /** How long messages are kept. */
  retentionMs?: number;
  /** How much is kept. */
  retentionBytes?: number;
  /**
   * What happens to messages that failed too often: `block` stops the subscription, `drop` drops the
   * message, `dead_letter` moves it to the dead letters.
   */
  poison?: Poison;
  /** The topic for dead letters; by default `<name>.dlq`. */
  deadLetter?: string;
  /** How often the hub's watchdog checks the subscriptions; 0 means never. */
  heartbeatMs?: number;
}

/** How a durable subscription is served; omitted options keep their value or the hub's default. */
export interface Serving {
  /** How many messages a consumer may have unsettled. */
  window?: number;
  /** Send nothing new while an earlier message is unsettled. */
  strict?: boolean;
  /** Let the hub settle messages as they are written; a crash of the consumer loses some. */
  autoAck?: boolean;
  /** Redeliver a message if it is not settled within this time. */
  ackTimeoutMs?: number;
  /** Apply the poison policy after this many failures. */
  maxDeliveries?: number;
  /** The pause before the second attempt; it doubles each time. */
  backoffMs?: number;
  /** The longest pause between attempts. */
  backoffCapMs?: number;
  /** How often the hub's watchdog checks the subscription; 0 means never. */
  heartbeatMs?: number;
  /** Deliver at most this many messages per second; 0 means no limit. */
  ratePerSecond?: number;
  /** Delete the subscription after this time without a consumer; 0 means never. */
  idleExpiryMs?: number;
  /** Keep at most about this many unsettled messages; 0 means no limit. */
  backlogMax?: number;
  /** Beyond `backlogMax`: `drop_oldest` drops the oldest messages, `refuse` refuses to publish. */
  backlogPolicy?: BacklogPolicy;
  /** What happens to messages that failed too often; by default the topic's policy. */
  poison?: Poison;
  /** The topic for dead letters; by default the topic's own. */
  deadLetter?: string;
}

type Check = number | null | ((value: any) => unknown);

const oneOf = (known: readonly string[], what: string) => (value: string) =>
  known.includes(value)
    ? value
    : invalid(`invalid ${what} ${JSON.stringify(value)}; use one of ${known.join(', ')}`);

/** The least value of an option, or its check. */
const OPTIONS: Record<string, Check> = {
  window: 1,
  strict: null,
  autoAck: null,
  ackTimeoutMs: 1,
  maxDeliveries: 1,
  backoffMs: 0,
  backoffCapMs: 0,
  heartbeatMs: 0,
  ratePerSecond: 0,
  idleExpiryMs: 0,
  backlogMax: 0,
  backlogPolicy: oneOf(BACKLOG_POLICIES, 'backlog policy'),
  poison: oneOf(POISONS, 'poison policy'),
  deadLetter: checkedTopic,
};

/** The options of a subscription as members of the wire protocol. */
export function served(serving: object): Record<string, unknown> {
  const members: Record<string, unknown> = {};
  for (const [name, value] of Object.entries(serving)) {
    const check = Object.hasOwn(OPTIONS, name)
      ? OPTIONS[name]!
      : invalid(`unknown option ${JSON.stringify(name)} of a durable subscription`);
    if (value === undefined || value === null) {
      continue;
    }
    if (typeof check === 'number' && !(value >= check)) {
      invalid(`${name} must be at least ${check}`);
    }
    members[name] =
      typeof check === 'function' ? check(value) : name.endsWith('Ms') ? Math.round(value) : value;
  }
  return members;
}

/** The definition of a topic as members of the wire protocol. */
export function defined(definition: Definition): Record<string, unknown> {
  const { retentionMs, retentionBytes, ...others } = definition;
  const unknown = Object.keys(others).find(
    (name) => !['poison', 'deadLetter', 'heartbeatMs'].includes(name),
  );
  if (unknown) {
    invalid(`unknown option ${JSON.stringify(unknown)} of a durable topic`);
  }
  const retention: Record<string, number> = {};
  for (const [name, kept, unit] of [
    ['ageSeconds', retentionMs, 1000],
    ['bytes', retentionBytes, 1],
  ] as const) {
    if (kept !== undefined && kept !== null) {
      retention[name] =
        kept > 0 ? kept / unit : invalid(`a retention of ${kept} would keep nothing`);
    }
  }
  return { ...(Object.keys(retention).length ? { retention } : {}), ...served(others) };
}

/** The options of a consumer as members of `hub:subscribe`. */
export const terms = (
  mode: Mode,
  start: Position,
  consumer: string,
  serving: object,
): Record<string, unknown> => ({
  mode: oneOf(MODES, 'mode')(mode),
  from: wirePosition(start),
  consumer: checkedName(consumer, 'the name of a consumer'),
  ...served(serving),
});

const ofTopic = <A>(
  type: string,
  answer: string,
  topic: string,
  read: (answer: unknown) => A,
  more = {},
  others: Partial<Payload<A>> = {},
): Payload<A> => declared(type, answer, { topic: checkedTopic(topic), ...more }, read, others);

const ONCE = { isRepeatable: false };

export const creatingTopic = (topic: string, definition: Definition): Payload<Topic> =>
  ofTopic('hub:topic_create', 'hub:topic_created', topic, as(TOPIC), {
    durable: true,
    ...defined(definition),
  });

export const updatingTopic = (topic: string, definition: Definition): Payload<Topic> =>
  ofTopic('hub:topic_update', 'hub:topic_info_response', topic, as(TOPIC), defined(definition));

export const showingTopic = (topic: string): Payload<Topic> =>
  ofTopic('hub:topic_info', 'hub:topic_info_response', topic, as(TOPIC));

export const listingTopics = (
  pattern: string | undefined,
  offset: number,
  limit: number,
): Payload<TopicPage> =>
  declared('hub:list_topics', 'hub:topic_list', { pattern, offset, limit }, as(TOPIC_PAGE));

/** A repeat would be refused as if the first request had failed. */
export const deletingTopic = (topic: string) =>
  ofTopic('hub:topic_delete', 'hub:topic_deleted', topic, nothing, {}, ONCE);

function ofSubscription<A>(
  type: string,
  answer: string,
  topic: string,
  subscription: string,
  read: (answer: unknown) => A,
  more = {},
  others: Partial<Payload<A>> = {},
): Payload<A> {
  const content = {
    // A topic with a wildcard is a pattern.
    [hasWildcard(checkedPattern(topic)) ? 'pattern' : 'topic']: topic,
    subscription: checkedName(subscription, 'the name of a subscription'),
    ...more,
  };
  const subject = `${type} for ${subscription} of topic ${topic}`;
  return declared(type, answer, content, read, { subject, ...others });
}

export const joining = (topic: string, subscription: string, given: Record<string, unknown>) =>
  ofSubscription('hub:subscribe', 'hub:subscribed', topic, subscription, nothing, given);

/** It also ends with the connection. */
export const leaving = (topic: string, subscription: string) =>
  ofSubscription('hub:unsubscribe', 'hub:unsubscribed', topic, subscription, nothing, {}, ONCE);

/** A request about a subscription that is answered by its state. */
export const aboutSubscription = (
  verb: 'info' | 'update' | 'pause' | 'resume' | 'delete',
  topic: string,
  subscription: string,
  more = {},
): Payload<SubscriptionInfo> =>
  ofSubscription(
    `hub:sub_${verb}`,
    'hub:sub_info_response',
    topic,
    subscription,
    as(SUBSCRIPTION),
    more,
    verb === 'delete' ? { ...ONCE, alias: 'hub:sub_deleted' } : {},
  );

export const listingSubscriptions = (
  topic: string | undefined,
  offset: number,
  limit: number,
  patterns?: boolean,
): Payload<SubscriptionPage> =>
  declared(
    'hub:list_subs',
    'hub:sub_list',
    {
      ...(topic === undefined
        ? {}
        : { [hasWildcard(checkedPattern(topic)) ? 'pattern' : 'topic']: topic }),
      offset,
      limit,
      patterns: patterns || undefined,
    },
    as(SUBSCRIPTION_PAGE),
    { alias: 'hub:sub_info_response' },
  );

/** Move a durable subscription, or with `dryRun` only report the effect. */
export const seeking = (
  topic: string,
  subscription: string,
  to: Position,
  dryRun: boolean,
): Payload<Sought> =>
  ofSubscription(
    'hub:seek',
    'hub:sought',
    topic,
    subscription,
    as(SOUGHT),
    { to: wirePosition(to), dryRun: dryRun || undefined },
    { isRepeatable: dryRun, subject: 'hub:seek' },
  );

/** A range of a topic; the messages arrive before the answer. */
export const reading = (
  topic: string,
  fromSeq: number,
  toSeq: number | undefined,
  limit: number,
): Payload<Replayed> =>
  ofTopic(
    'hub:replay',
    'hub:replayed',
    topic,
    as(REPLAYED),
    { fromSeq, toSeq, limit },
    {
      collects: topic,
    },
  );

/** What a redriven message has instead of its dead letter; `null` removes key or headers. */
export interface LetterEdit {
  data?: unknown;
  type?: string;
  key?: string | null;
  headers?: Record<string, string> | null;
}

/** Which dead letters are meant; what is given must all be so. */
export interface LetterChoice {
  reason?: string;
  /** The topic they came from, or the address of the mailbox. */
  stream?: string;
  subscription?: string;
  type?: string;
  diedFrom?: Date | number;
  diedTo?: Date | number;
  /** Nothing beyond this position; from a preview, together with `epoch`. */
  through?: number;
  epoch?: string;
}

/** Which dead letters are put back, and what is replaced in some of them, by position. */
export interface Redriving extends LetterChoice {
  edits?: Record<number, LetterEdit>;
}

function letters<A>(
  type: string,
  answer: string,
  topic: string,
  seqs: Iterable<number> | undefined,
  choice: Redriving,
  read: (answer: unknown) => A,
  dryRun = false,
): Payload<A> {
  const listed = seqs && [...seqs];
  let content: object = listed ? { seqs: listed } : { all: true };
  const given = Object.values(choice).some((value) => value !== undefined);
  if (given || dryRun) {
    const {
      reason,
      stream,
      subscription,
      type: kind,
      diedFrom,
      diedTo,
      through,
      epoch,
      edits,
    } = choice;
    // A hub that knows none of this refuses a filter; it would do more if it ignored a part.
    const filter = {
      reason,
      stream,
      subscription,
      type: kind,
      from: diedFrom === undefined ? undefined : epochMs(diedFrom),
      to: diedTo === undefined ? undefined : epochMs(diedTo),
      seqs: listed,
    };
    content = { filter, through, epoch, edits, dryRun: dryRun || undefined };
  }
  return ofTopic(type, answer, topic, read, content, { isRepeatable: dryRun });
}

export const redriving = (
  topic: string,
  seqs: Iterable<number> | undefined,
  choice: Redriving,
): Payload<LetterCount> =>
  letters('hub:redrive', 'hub:redriven', topic, seqs, choice, as(LETTER_COUNT));

export const purging = (
  topic: string,
  seqs: Iterable<number> | undefined,
  choice: LetterChoice,
): Payload<LetterCount> =>
  letters('hub:purge', 'hub:purged', topic, seqs, choice, as(LETTER_COUNT));

export const previewing = (
  topic: string,
  seqs: Iterable<number> | undefined,
  choice: Redriving,
): Payload<LettersPreview> =>
  letters('hub:redrive', 'hub:redriven', topic, seqs, choice, as(LETTERS_PREVIEW), true);

/** The source of a message: a mailbox, or a subscription of a topic. */
export interface Source {
  stream?: string;
  topic?: string;
  subscription?: string;
}

const VERDICTS = {
  ack: 'hub:acked',
  nack: 'hub:nacked',
  extend: 'hub:extended',
  term: 'hub:termed',
};
export type Verdict = keyof typeof VERDICTS;

/** A verdict on messages of one epoch. */
export function settling(
  verdict: Verdict,
  source: Source,
  facts: Record<string, unknown>,
): Payload<Settled> {
  const type = `hub:${verdict}`;
  const { stream, topic, subscription } = source;
  const subject =
    stream === undefined
      ? `${type} for ${subscription} of topic ${topic}`
      : `${type} for the mailbox of ${stream}`;
  return declared(type, VERDICTS[verdict], { ...source, ...facts }, as(SETTLED), {
    heldBy: HeldBy.Exempt,
    subject,
  });
}

/** Settle one or several deliveries of one epoch. */
export function settlingEach(
  verdict: Verdict,
  source: Source,
  deliveries: Delivery[],
  given: Record<string, unknown> = {},
): Payload<Settled> {
  const [first] = deliveries as [Delivery];
  const facts: Record<string, unknown> = { ...given, epoch: first.epoch };
  if (facts.delayMs !== undefined) {
    facts.delayMs = Math.round(facts.delayMs as number);
  }
  if (deliveries.length === 1) {
    facts.seq = first.seq;
    facts.id = first.id ?? undefined;
  } else {
    const named = deliveries.map((one) => one.id);
    facts.seqs = deliveries.map((one) => one.seq);
    facts.ids = named.includes(null) ? undefined : named;
  }
  // Without an id, as in mailboxes, the number names the attempt.
  if (verdict === 'extend') {
    facts.attempt = first.attempt;
  }
  return settling(verdict, source, facts);
}

/** How many messages or bytes a consumer may have unsettled. */
export function crediting(subscriptionId: string, messages?: number, bytes?: number) {
  if (messages === undefined && bytes === undefined) {
    invalid('a credit needs a number of messages, of bytes, or both');
  }
  if ((messages ?? 0) < 0 || (bytes ?? 0) < 0) {
    invalid('a credit must be at least 0');
  }
  return declared('hub:credit', null, { subscriptionId, messages, bytes }, nothing, {
    heldBy: HeldBy.Exempt,
    isTell: true,
  });
}

/** Where a replay job sends: a topic, one of its subscriptions, or an actor's mailbox. */
export interface Destination {
  topic?: string;
  subscription?: string;
  actor?: string;
}

/** Send messages of a replay job; repeatable, because the hub takes each message once. */
export function republishing(
  job: string,
  messages: Original[],
  options: Destination & { until: { epoch: number; offset: number }; ended?: boolean },
): Payload<Republished> {
  const { topic, subscription, actor, until, ended } = options;
  if (
    (topic === undefined) === (actor === undefined) ||
    (actor !== undefined && subscription !== undefined)
  ) {
    invalid('a replay goes to a topic, a topic and subscription, or an actor');
  }
  const to =
    actor === undefined
      ? {
          topic: checkedTopic(topic!),
          subscription:
            subscription === undefined
              ? undefined
              : checkedName(subscription, 'the name of a subscription'),
        }
      : { actor: checkedAddress(actor) };
  const content = { job, until, to, messages, ended: ended || undefined };
  return declared('hub:republish', 'hub:republished', content, as(REPUBLISHED));
}

/** What is erased: what an actor received and sent, or the content of an inbox. */
export interface Erasing {
  actor?: string;
  inbox?: string;
  /** The new name of the mailbox in the log; by default the hub creates one. */
  pseudonym?: string;
}

/** Repeatable, because a repeat finds nothing left. */
export const erasing = ({ actor, inbox, pseudonym }: Erasing): Payload<Erased> =>
  declared(
    'hub:erase',
    'hub:erased',
    { actor: actor === undefined ? actor : checkedAddress(actor), inbox, pseudonym },
    as(ERASED),
  );

/** Ask where durable actors live; repeatable, because a repeat gets the same answer. */
export const placing = (
  actors: Iterable<string>,
  host?: string,
  tokens?: Record<string, number>,
): Payload<Placements> =>
  declared(
    'hub:place',
    'hub:placed',
    { actors: [...actors].map(checkedActor), host, tokens },
    as(PLACEMENTS),
  );

/** Move an actor to another host; repeatable, because the hub recognises it by the token. */
export const moving = (actor: string, token: number, to: string): Payload<Place> =>
  declared(
    'hub:move',
    'hub:moved',
    { actor: checkedActor(actor), token, to: checkedAddress(to) },
    as(PLACE),
  );

/** Forget where an actor lives; a repeat could hit its next place. */
export const forgettingPlace = (actor: string): Payload<Place> =>
  declared(
    'hub:forget_place',
    'hub:place_forgotten',
    { actor: checkedActor(actor) },
    as(PLACE),
    ONCE,
  );
