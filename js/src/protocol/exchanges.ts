/**
 * Requests to other actors that wait for a reply, or for the replies of many.
 *
 * An exchange ends exactly once: with its last reply, with an error, or when its time is over. What it
 * was is remembered for a while, so that replies that come later are recognised, counted and dropped.
 */

import type { Message } from '../message.js';
import type { ClientError } from '../wire/errors.js';
import type { Request } from './frame.js';

/** Exchanges that have ended and whose late replies are recognised. */
const REMEMBERED_MAX = 10_000;

/** One request, to the actor `to` or, without it, to many. */
export class Exchange {
  isHandedOver = false;
  isEnded = false;
  /** How many were asked, if that is known. */
  expected = Infinity;
  private _replied = new Set<string>();

  readonly id: string;
  readonly subject: string;

  constructor(
    request: Request,
    readonly to: string,
    private _repliesMax: number,
    private _events: { replied(message: Message): void; ended(error?: ClientError): void },
  ) {
    this.id = request.id;
    this.subject = request.subject;
  }

  /** Whether no further reply is expected. */
  get isComplete(): boolean {
    return this._replied.size >= Math.min(this._repliesMax, this.expected);
  }

  get hasReplies(): boolean {
    return this._replied.size > 0;
  }

  /** Take a reply; `false` if this sender has replied before. */
  replied(message: Message): boolean {
    if (this._replied.has(message.sender)) {
      return false;
    }
    this._replied.add(message.sender);
    this.isHandedOver = true;
    this._events.replied(message);
    return true;
  }

  ended(error?: ClientError): void {
    this._events.ended(error);
  }
}

/** All exchanges of one client. */
export class Exchanges {
  lateReplies = 0;
  private _open = new Map<string, Exchange>();
  private _ended = new Set<string>();

  all(): Exchange[] {
    return [...this._open.values()];
  }

  open(exchange: Exchange): void {
    this._open.set(exchange.id, exchange);
    this._ended.delete(exchange.id);
  }

  /** A message has arrived; `false` if it is not a reply to a request of this client. */
  arrived(message: Message): boolean {
    const id = message.inReplyTo;
    if (id === null) {
      return false;
    }
    const exchange = this._open.get(id);
    if (!exchange) {
      this.lateReplies += +this._ended.has(id);
      return this._ended.has(id);
    }
    if (exchange.to && message.sender !== exchange.to) {
      return false;
    }
    if (!exchange.replied(message)) {
      this.lateReplies++;
    } else if (exchange.isComplete) {
      this.end(exchange);
    }
    return true;
  }

  /** End one, unless it has ended. */
  end(exchange: Exchange, error?: ClientError): void {
    if (exchange.isEnded) {
      return;
    }
    exchange.isEnded = true;
    this._open.delete(exchange.id);
    this._ended.add(exchange.id);
    if (this._ended.size > REMEMBERED_MAX) {
      this._ended.delete(this._ended.values().next().value!);
    }
    exchange.ended(error);
  }
}
