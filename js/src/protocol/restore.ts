/** What a client has registered and subscribed to, restored on every new connection. */

import type { Lost } from '../answers.js';
import { Progress, readerOf } from '../delivery.js';
import { type Registering, connecting, registering, subscribing } from '../requests.js';
import { joining } from '../stream_requests.js';
import { Unsubscribed } from '../wire/errors.js';
import { hasWildcard } from '../wire/names.js';
import { type Shape, members, textIn } from '../wire/shapes.js';
import { type Effect, warned } from './effects.js';
import type { FrameWriter, Request } from './frame.js';

/** The positions of this many topics fit into one request; the last ones that had messages. */
const POSITIONS_MAX = 1_000;
const HELLO_TTL_MS = 5_000;
const PROTOCOL_VERSION = '0.1.0';

/** Names of subscriptions are unique only within their topic. */
export const keyOf = (topic: string, subscription: string): string => `${topic}\0${subscription}`;

/** One consumer: its options, and the hub's last answer about it. */
export class Seat {
  readonly progress = new Progress();
  /** Of a pattern, by topic; the one with the newest message last. */
  private _progresses = new Map<string, Progress>();
  isTaken = false;
  subscriptionId = '';
  epoch = '';
  next = 0;
  head = 0;
  lag = 0;
  recovered = true;
  lost: Lost | null = null;
  /** By topic, as a pattern may have lost messages on several. */
  losses: Record<string, Lost> = {};
  /** Options we asked for and may not change. */
  kept = new Set<string>();
  /** Called when messages were deleted unread. */
  onLost: ((lost: Lost, topic: string) => void) | null = null;

  constructor(
    readonly topic: string,
    readonly subscription: string,
    readonly terms: Record<string, unknown>,
    readonly address: string,
  ) {}

  get key(): string {
    return keyOf(this.topic, this.subscription);
  }

  /** Whether the topic stands for all topics that match. */
  get isPattern(): boolean {
    return hasWildcard(this.topic);
  }

  /** What is unsettled on one topic of a pattern. */
  progressOf(topic: string): Progress {
    const progress = this._progresses.get(topic) ?? new Progress();
    this._progresses.delete(topic);
    this._progresses.set(topic, progress);
    return progress;
  }

  /** Whether the hub settles messages as soon as they are written. */
  get isAutoAcked(): boolean {
    return (this.terms.autoAck === true) !== this.kept.has('autoAck');
  }

  /** The request that joins the subscription, or joins it again. */
  request(frames: FrameWriter, nowMs: number): Request {
    const terms = { ...this.terms };
    const { position, epoch } = this.progress;
    if (this.isPattern) {
      const positions = [...this._progresses]
        .filter(([, one]) => one.position !== null && one.epoch !== null)
        .map(([topic, one]) => [topic, { epoch: one.epoch, seq: one.position }])
        .slice(-POSITIONS_MAX);
      if (positions.length) {
        terms.positions = Object.fromEntries(positions);
      }
    } else if (position !== null && epoch !== null) {
      terms.from = { seq: position + 1 };
      if (position > 0) {
        terms.resume = { epoch, seq: position };
      }
    }
    return frames.request(joining(this.topic, this.subscription, terms), nowMs, {
      sender: this.address,
    });
  }

  /** The hub granted it, and says whether everything after our position is available. */
  taken(facts: Record<string, unknown>): Effect[] {
    const { topic, subscription } = this;
    const text = (name: string) => textIn(facts, name) ?? '';
    const count = (name: string) => (Number.isInteger(facts[name]) ? (facts[name] as number) : 0);
    this.isTaken = true;
    this.subscriptionId = text('subscriptionId');
    this.epoch = text('epoch');
    this.next = count('next');
    this.head = count('head');
    this.lag = count('lag');
    this.recovered = facts.recovered !== false;
    const last = count('lostTo');
    this.lost = last ? { first: count('lostFrom'), last } : null;
    this.losses = lossesOf(facts);
    if (this.lost) {
      this.losses[topic] = this.lost;
    }
    if (this.epoch && this.epoch !== this.progress.epoch) {
      this.progress.restart(this.epoch);
    }
    this.kept = new Set(Array.isArray(facts.kept) ? facts.kept.map(String) : []);
    const warnings: Effect[] = [];
    if (this.kept.size) {
      const options = [...this.kept].sort();
      warnings.push(
        warned('A durable subscription keeps its own options', { topic, subscription, options }),
      );
    }
    for (const [name, lost] of Object.entries(this.losses)) {
      this.onLost?.(lost, name);
    }
    if (!this.recovered) {
      warnings.push(
        warned('Messages of a durable subscription were deleted unread', {
          topic,
          subscription,
          lost: this.lost ?? this.losses,
        }),
      );
    }
    return warnings;
  }

  /** The hub has ended it. */
  withdrawn(reason: string): Effect {
    const { topic, subscription } = this;
    const more = reason === 'taken_over' ? '; another session has joined under the same name' : '';
    const text = `${subscription} of topic ${topic} ended: ${reason}${more}`;
    return { do: 'ended', topic, subscription, error: new Unsubscribed(reason, text) };
  }
}

/** What is lost on each topic of a pattern. */
function lossesOf({ lost: listed }: Record<string, unknown>): Record<string, Lost> {
  const shape: Shape = { topic: 's!', 'first<lostFrom': 'i', 'last<lostTo': 'i' };
  const losses: Record<string, Lost> = {};
  for (const one of Array.isArray(listed) ? listed : []) {
    const { topic, ...lost } = members<Lost & { topic: string }>(one, shape, true) ?? {};
    if (topic) {
      losses[topic] = lost as Lost;
    }
  }
  return losses;
}

/**
 * Registrations, then subscriptions, then consumers, each in the order they were first made.
 *
 * A client that acknowledges says so in its hello: then it settles messages from mailboxes itself.
 */
export class Membership {
  private _registrations = new Map<string, Registering>();
  /** Addresses that had a mailbox when they were registered last. */
  private _mailboxes = new Set<string>();
  private _subscriptions = new Map<string, [string, string]>();
  private _seats = new Map<string, Seat>();

  constructor(readonly acknowledges = false) {}

  /** The first frame on a new connection, sent from a unique address. */
  hello(frames: FrameWriter, token: string | null, nowMs: number): Request {
    const messageId = frames.newId();
    const metadata: Record<string, unknown> = {
      protocolVersion: PROTOCOL_VERSION,
      capabilities: ['send', 'receive', ...(this.acknowledges ? ['ack'] : [])],
      clientMetadata: { platform: 'javascript' },
    };
    if (token !== null) {
      metadata.authToken = token;
    }
    return frames.request(connecting(), nowMs, {
      messageId,
      sender: `@(local/client-${messageId})`,
      metadata,
      ttlMs: HELLO_TTL_MS,
    });
  }

  /** Record a registration; if it is not done yet, the next connection does it. */
  registered(address: string, options: Registering, isDone = true): void {
    let durable = options.durable ?? this._registrations.get(address)?.durable ?? null;
    // A mailbox is deleted once, not on every connection.
    if (isDone) {
      durable ||= null;
    }
    this._registrations.set(address, { ...options, durable });
  }

  /** Record what the hub says about a registration. */
  granted(facts: Record<string, unknown>): void {
    const address = textIn(facts, 'actorAddress') ?? '';
    facts.durable === true ? this._mailboxes.add(address) : this._mailboxes.delete(address);
  }

  isRegistered(address: string): boolean {
    return this._registrations.has(address);
  }

  hasMailbox(address: string): boolean {
    return this._mailboxes.has(address);
  }

  /** Record that an address is unregistered, which also ends its subscriptions. */
  unregistered(address: string): void {
    this._registrations.delete(address);
    this._mailboxes.delete(address);
    for (const [key, [owner]] of this._subscriptions) {
      if (owner === address) {
        this._subscriptions.delete(key);
      }
    }
  }

  subscribed(address: string, topic: string): void {
    this._subscriptions.set(keyOf(address, topic), [address, topic]);
  }

  unsubscribed(address: string, topic: string): void {
    this._subscriptions.delete(keyOf(address, topic));
  }

  seated(seat: Seat): void {
    this._seats.set(seat.key, seat);
  }

  /** Do not join again; `false` if it was already left. */
  left(seat: Seat): boolean {
    return this._seats.get(seat.key) === seat && this._seats.delete(seat.key);
  }

  seatWith(key: string): Seat | undefined {
    return this._seats.get(key);
  }

  /** The consumer that has messages of a topic, perhaps by a pattern. */
  seatOf(topic: string, subscription: string): Seat | undefined {
    return readerOf(this._seats, topic, subscription)?.[1];
  }

  /** The consumer the hub refers to, by its names or by its id. */
  seatNamed(facts: Record<string, unknown>): Seat | undefined {
    const { topic, subscription, subscriptionId } = facts;
    return [...this._seats.values()].find(
      (seat) =>
        (seat.topic === topic && seat.subscription === subscription) ||
        (subscriptionId && seat.subscriptionId === subscriptionId),
    );
  }

  /** The shortest requested lease. */
  get leaseMs(): number {
    return Math.min(...[...this._registrations.values()].map((one) => one.leaseMs ?? Infinity));
  }

  /** All requests that restore a connection. */
  requests(frames: FrameWriter, nowMs: number): [Request, Seat | null][] {
    const requests: [Request, Seat | null][] = [];
    for (const [address, options] of this._registrations) {
      const payload = registering(address, options);
      requests.push([frames.request(payload, nowMs, { sender: address }), null]);
      if (options.durable === false) {
        this._registrations.set(address, { ...options, durable: null });
      }
    }
    for (const [sender, topic] of this._subscriptions.values()) {
      requests.push([frames.request(subscribing(topic), nowMs, { sender }), null]);
    }
    for (const seat of this._seats.values()) {
      if (seat.isTaken) {
        requests.push([seat.request(frames, nowMs), seat]);
      }
    }
    return requests;
  }
}
