/** A received message and the methods to settle and answer it. */

import { COPIED, type Copied } from './answers.js';
import { DEAD_LETTER, type DeadLetter, type Delivery, type Settled } from './delivery.js';
import type { Verdict } from './stream_requests.js';
import { isObject, members, textIn } from './wire/shapes.js';

export interface SettleOptions {
  /** Return once the hub has written it to disk. */
  wait?: boolean;
  signal?: AbortSignal;
}

/** Settles the messages of one stream. */
export interface Settles {
  isOpen(delivery: Delivery): boolean;
  settle(
    verdict: Verdict,
    messageId: string,
    delivery: Delivery,
    facts: Record<string, unknown>,
    options: SettleOptions,
  ): Promise<Settled | null>;
}

/** Answers requests. */
export interface Replying {
  reply(
    message: Message,
    payload: unknown,
    failure?: { code: string; text: string },
  ): Promise<void>;
}

/** The members of a message. */
export interface MessageFacts<P = any> {
  id: string;
  sender: string;
  /** The address of ours that it was sent to. */
  to: string;
  type: string;
  payload: P;
  metadata: Record<string, unknown>;
  /** When the hub forwarded it, in milliseconds since the Unix epoch. */
  timestamp: number;
  ttl: number | null;
  /** Set if it came through a topic. */
  topic: string | null;
  /** Set if it came from a durable stream. */
  delivery: Delivery | null;
  /** Set if its sender waits for a reply. */
  requestId: string | null;
}

/**
 * One message from another actor.
 *
 * Messages from a durable subscription, or from a mailbox if the client acknowledges, must be
 * settled with `ack`, `nack` or `term`. By default these return once the settlement is queued for
 * sending; with `wait`, they return the hub's answer once it is on disk, or throw `StaleDelivery` if
 * the hub no longer waits for this copy.
 */
export interface Message<P = any> extends MessageFacts<P> {}
export class Message<P = any> {
  /** @internal */
  _settler: Settles | null = null;
  /** @internal */
  _replies: Replying | null = null;

  constructor(facts: MessageFacts<P>) {
    Object.assign(this, facts);
  }

  /** The id given by its sender; the hub's copy has a different one. */
  get originalId(): string {
    const original = this.metadata.originalMessageId;
    return typeof original === 'string' ? original : this.id;
  }

  /** The key it was published with; messages with the same key keep their order. */
  get key(): string | null {
    const key = this.metadata.key;
    return typeof key === 'string' ? key : null;
  }

  /** The headers given by its publisher. */
  get headers(): Record<string, string> {
    const { headers } = this.metadata;
    const pairs = isObject(headers) ? Object.entries(headers) : [];
    return Object.fromEntries(
      pairs.filter((pair): pair is [string, string] => typeof pair[1] === 'string'),
    );
  }

  /** Where it comes from, if it is a dead letter. */
  get deadLetter(): DeadLetter | null {
    return members(this.metadata.deadLetter, DEAD_LETTER, true);
  }

  /** Whether it comes from `replay` or was sent by a replay job from the lake. */
  get isReplay(): boolean {
    return this.metadata.replay === true || this.original !== null;
  }

  /** What it is a copy of, if a replay job sent it. */
  get original(): Copied | null {
    return members(this.metadata.original, COPIED, true);
  }

  /** Whether the hub waits for it to be settled. */
  get isSettleable(): boolean {
    return this._settler !== null;
  }

  /** Whether it is still unsettled; a copy of it may have been settled instead. */
  get isOpen(): boolean {
    return this._settler === null || this.delivery === null || this._settler.isOpen(this.delivery);
  }

  /** Whether its sender waits for a reply. */
  get expectsReply(): boolean {
    return this.requestId !== null;
  }

  /** The id of the request that it answers. */
  get inReplyTo(): string | null {
    return textIn(this.metadata, 'inReplyTo');
  }

  /** The failure, if it is a reply that says so. */
  get failure(): { code: string; text: string } | null {
    const { failure } = this.metadata;
    if (this.inReplyTo === null || failure === undefined || failure === null) {
      return null;
    }
    return (
      members(failure, { code: 's:failed', text: 's' }, true) ?? {
        code: 'failed',
        text: 'the other side has failed, and its reason cannot be read',
      }
    );
  }

  /** Acknowledge it: it is processed and is not redelivered. */
  ack(options?: SettleOptions): Promise<Settled | null> {
    return this._settle('ack', {}, options);
  }

  /** Refuse it: the hub redelivers it, at the earliest after `delayMs`. */
  nack(
    options: SettleOptions & { delayMs?: number; reason?: string } = {},
  ): Promise<Settled | null> {
    const { delayMs, reason } = options;
    return this._settle('nack', { delayMs, reason }, options);
  }

  /**
   * Extend its deadline: do not redeliver it before this much time has passed from now. Throws
   * `StaleDelivery` if the message is no longer with this consumer; with `wait: false` nobody is
   * told.
   */
  extend(ms: number, options: SettleOptions = {}): Promise<Settled | null> {
    return this._settle('extend', { ms: Math.round(ms) }, { wait: true, ...options });
  }

  /** Terminate it: it can never be processed. It becomes a dead letter or is dropped. */
  term(options: string | (SettleOptions & { reason?: string }) = {}): Promise<Settled | null> {
    const given = typeof options === 'string' ? { reason: options } : options;
    return this._settle('term', { reason: given.reason }, given);
  }

  /** Answer a request; resolves when the reply is on its way. */
  async reply(payload?: unknown): Promise<void> {
    await this._reply(payload);
  }

  /** Answer a request with a failure: `RequestFailed` at the caller. */
  async fail(text: string, options: { code?: string } = {}): Promise<void> {
    await this._reply(null, { code: options.code ?? 'failed', text });
  }

  private async _reply(payload: unknown, failure?: { code: string; text: string }): Promise<void> {
    if (!this.expectsReply || !this._replies) {
      throw new TypeError(`${this.type} from ${this.sender} expects no reply: it is not a request`);
    }
    await this._replies.reply(this, payload, failure);
  }

  private async _settle(
    verdict: Verdict,
    facts: Record<string, unknown>,
    options: SettleOptions = {},
  ): Promise<Settled | null> {
    if (this._settler === null || this.delivery === null) {
      throw new TypeError(
        `${this.type} from ${this.sender} has nothing to settle: only messages of durable subscriptions do, and those of mailboxes after \`connect(…, {acknowledge: true})\``,
      );
    }
    return this._settler.settle(verdict, this.id, this.delivery, facts, options);
  }
}
