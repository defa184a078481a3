/**
 * What comes from the hub: heartbeats, messages, answers, refusals.
 *
 * Payloads are not trusted: a member of the wrong type counts as missing.
 */

import { DELIVERY, type Delivery } from '../delivery.js';
import { Message } from '../message.js';
import { type ClientError, OutcomeUnknown, Refused, UnknownActor } from '../wire/errors.js';
import { HUB_TYPE_PREFIX } from '../wire/names.js';
import { isObject, members, numberIn, textIn } from '../wire/shapes.js';
import type { Report } from './effects.js';
import type { Json } from './frame.js';

export const HEARTBEAT_MS = 100_000;
export const ANSWER_MS = 10_000;
const MESSAGE_BYTES_MAX = 2 ** 20;

/** How the ids of requests to many begin. */
export const REQUEST_PREFIX = 'request-';

/** Heartbeats of one link. */
export class Heartbeat {
  private _sentMs: number;
  private _heardMs: number;
  private _messageId: string | null = null;
  private _sinceMs: number;

  constructor(
    public intervalMs: number,
    nowMs: number,
  ) {
    this._sentMs = this._heardMs = this._sinceMs = nowMs;
  }

  sent(nowMs: number): void {
    this._sentMs = nowMs;
  }

  heard(nowMs: number): void {
    this._heardMs = nowMs;
  }

  /** Record that a heartbeat was sent. */
  beat(messageId: string, nowMs: number): void {
    this._messageId = messageId;
    this._sinceMs = nowMs;
  }

  /** Record an answer; only the one to the last heartbeat counts, others may be late. */
  answered(messageId: string | null): void {
    if (messageId === this._messageId) {
      this._messageId = null;
    }
  }

  /** The wait for an answer starts over, because nobody could have heard it. */
  restart(nowMs: number): void {
    this._sinceMs = nowMs;
  }

  /** When the next heartbeat is due, or the link counts as dead. */
  get wakeAtMs(): number {
    return this._messageId === null
      ? Math.min(this._sentMs, this._heardMs) + this.intervalMs
      : this._sinceMs + ANSWER_MS;
  }

  isDue(nowMs: number): boolean {
    return this._messageId === null && nowMs >= this.wakeAtMs;
  }

  isDead(nowMs: number): boolean {
    return this._messageId !== null && nowMs >= this.wakeAtMs;
  }

  get isWaiting(): boolean {
    return this._messageId !== null;
  }
}

export const REFUSAL_TYPES = new Set(
  [
    'error',
    'unknown_actor',
    'unauthorized',
    'rate_limited',
    'version_mismatch',
    'message_too_large',
  ].map((name) => HUB_TYPE_PREFIX + name),
);

/** The content of the hub's hello. */
export interface Welcome {
  sessionId: string;
  sessionToken: string | null;
  messageBytesMax: number;
  heartbeatMs: number;
  /** 0 means no limit. */
  messageRate: number;
  messageBurst: number;
  /** `fsync`, `interval` or `os`. */
  durability: string | null;
}

/** One frame from the hub. Only `type` is required, so that old and new hubs can be read. */
export interface Incoming {
  type: string;
  id: string;
  sender: string;
  to: string;
  payload: unknown;
  correlationId: string | null;
  timestamp: number;
  metadata: unknown;
  ttl: number | null;
}
const INCOMING = {
  type: 's!',
  id: 's',
  'sender<from': 's',
  to: 's',
  payload: '*',
  correlationId: 's?',
  timestamp: 'n',
  metadata: '*',
  ttl: 'n?',
};

/** Decode a frame; `null` if it is not a message. */
export function decode(frame: string, json: Json): Incoming | null {
  try {
    return members<Incoming>(json.parse(frame), INCOMING);
  } catch {
    return null;
  }
}

export const factsOf = (incoming: Incoming): Record<string, unknown> =>
  isObject(incoming.payload) ? incoming.payload : {};

/** An application message as its recipient sees it. */
export function messageOf(incoming: Incoming): Message {
  const { id, sender, to, type, payload, timestamp, ttl } = incoming;
  const metadata = isObject(incoming.metadata) ? incoming.metadata : {};
  const delivery =
    'delivery' in metadata ? members<Delivery>(metadata.delivery, DELIVERY, true) : null;
  const isPublished =
    metadata.publication === true ||
    metadata.replay === true ||
    // A durable message that came through no topic comes from a mailbox.
    (delivery !== null && delivery.stream === null);
  return new Message({
    id,
    sender,
    to,
    type,
    payload,
    metadata,
    timestamp: Math.trunc(timestamp),
    ttl,
    topic: isPublished ? textIn(metadata, 'topic') : null,
    delivery,
    requestId: requestIdOf(incoming, metadata),
  });
}

/** The id that a reply names, if the sender waits for one. */
function requestIdOf(incoming: Incoming, metadata: Record<string, unknown>): string | null {
  // Copies of messages that were delivered before; their senders wait no longer.
  if ('replay' in metadata || 'deadLetter' in metadata || 'original' in metadata) {
    return null;
  }
  if (metadata.expectsReply === true) {
    return textIn(metadata, 'originalMessageId');
  }
  // The hub forwards no metadata of what is sent to many.
  if (metadata.publication === true || metadata.broadcast === true) {
    const asked = incoming.correlationId ?? '';
    return asked.startsWith(REQUEST_PREFIX) ? asked : textIn(metadata.headers, 'expectsReply');
  }
  return null;
}

/** Decode `hub:connected`. */
export function welcomeOf(incoming: Incoming): Welcome {
  const facts = factsOf(incoming);
  const offers = facts.capabilities;
  const messageRate = numberIn(offers, 'messageRate') ?? 0;
  return {
    sessionId: textIn(facts, 'sessionId') ?? '',
    sessionToken: textIn(incoming.metadata, 'sessionToken'),
    messageBytesMax: Math.trunc(numberIn(facts, 'maxMessageSize') ?? MESSAGE_BYTES_MAX),
    heartbeatMs: numberIn(facts, 'heartbeatInterval') ?? HEARTBEAT_MS,
    messageRate,
    messageBurst: numberIn(offers, 'messageBurst') ?? messageRate,
    durability: textIn(offers, 'durability'),
  };
}

const reasonsOf = (incoming: Incoming) => {
  const facts = factsOf(incoming);
  return {
    code: textIn(facts, 'code') ?? incoming.type.slice(HUB_TYPE_PREFIX.length),
    text: textIn(facts, 'message') ?? textIn(facts, 'reason') ?? 'the hub gave no reason',
    resolution: textIn(facts, 'resolution') ?? '',
    details: isObject(facts.details) ? facts.details : {},
    retryable: facts.retryable === true,
  };
};

/** The error for a refusal of a request. */
export function refusalOf(incoming: Incoming): ClientError {
  const { code, text, ...facts } = reasonsOf(incoming);
  // The hub does not know either whether these happened.
  if (code === 'timeout' || code === 'storage_failed') {
    return new OutcomeUnknown(`${code}: ${text}`, facts.resolution);
  }
  return new (code === 'unknown_actor' ? UnknownActor : Refused)(code, text, facts);
}

/** The event for a refusal that no caller waits for. */
export function refusalEventOf(incoming: Incoming, subject = ''): Report {
  const { code, text: detail, resolution, details } = reasonsOf(incoming);
  const seq = numberIn(details, 'seq');
  if (incoming.correlationId === null && seq !== null) {
    const [topic, subscription] = ['topic', 'subscription'].map(
      (name) => textIn(details, name) ?? '',
    );
    return { type: 'heldup', code, seq, topic, subscription, detail, resolution };
  }
  return { type: 'refused', code, subject, detail, resolution };
}

/** After how much time the hub wants to be asked again, if it says so. */
export function retryAfterMs(incoming: Incoming): number | null {
  const facts = factsOf(incoming);
  const details = isObject(facts.details) ? facts.details : facts;
  const wait = numberIn(details, 'retryAfter');
  // The dedicated type uses milliseconds, the error's details use seconds.
  return (
    numberIn(details, 'retryAfterMs') ??
    (wait === null ? null : incoming.type === 'hub:rate_limited' ? wait : wait * 1000)
  );
}
