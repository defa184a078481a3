/**
 * Requests of others, and the replies they were given.
 *
 * A request that arrives again, because its sender or the hub has repeated it, is not handed to the
 * program again: if it was answered, its reply is sent again. A copy from a durable stream is handed
 * out again while it is not answered, because the program has left it unsettled.
 */

import type { Message } from '../message.js';
import type { Request } from './frame.js';

/** As long as the hub recognises repeats by default. */
const KEPT_MS = 300_000;
const KEPT_MAX = 10_000;
const REPLY_BYTES_MAX = 4 * 2 ** 20;

interface Kept {
  forgottenMs: number;
  /** Until when its sender waits. */
  endMs: number;
  isAnswered: boolean;
  reply: Request | null;
}

/** One to many may reach several of our addresses, or several durable subscriptions. */
const keyOf = ({ sender, requestId, to, delivery }: Message): string =>
  [sender, requestId, to, delivery?.subscription ?? ''].join('\0');

/** The requests that have arrived, the oldest first. */
export class Replies {
  private _kept = new Map<string, Kept>();
  private _bytes = 0;

  /** Record a request, and say whether it is `new`, `open` (the program has it) or `answered`. */
  arrived(message: Message, nowMs: number): 'new' | 'open' | 'answered' {
    const key = keyOf(message);
    const known = this._kept.get(key);
    if (known && nowMs < known.forgottenMs) {
      return known.isAnswered ? 'answered' : 'open';
    }
    this._drop(key);
    this._kept.set(key, {
      forgottenMs: nowMs + KEPT_MS,
      endMs: message.ttl === null ? Infinity : nowMs + message.ttl,
      isAnswered: false,
      reply: null,
    });
    for (const [oldest, { forgottenMs }] of this._kept) {
      if (this._kept.size <= KEPT_MAX && forgottenMs > nowMs) {
        break;
      }
      this._drop(oldest);
    }
    return 'new';
  }

  /** Whether the sender may still be waiting for the reply. */
  isWaiting(message: Message, nowMs: number): boolean {
    return nowMs < (this._kept.get(keyOf(message))?.endMs ?? Infinity);
  }

  isAnswered(message: Message): boolean {
    return this._kept.get(keyOf(message))?.isAnswered ?? false;
  }

  /** Remember the reply; the oldest ones are forgotten when all together are too long. */
  answered(message: Message, reply: Request): void {
    const known = this._kept.get(keyOf(message));
    if (!known) {
      return;
    }
    known.isAnswered = true;
    known.reply = reply;
    this._bytes += reply.size;
    for (const kept of this._kept.values()) {
      if (this._bytes <= REPLY_BYTES_MAX) {
        break;
      }
      this._release(kept);
    }
  }

  /** The reply was not sent: the request may be answered once more. */
  reopen(message: Message): void {
    const known = this._kept.get(keyOf(message));
    if (known) {
      this._release(known);
      known.isAnswered = false;
    }
  }

  /** The reply a request was given, if it is still remembered. */
  replyTo(message: Message): Request | null {
    return this._kept.get(keyOf(message))?.reply ?? null;
  }

  private _drop(key: string): void {
    const known = this._kept.get(key);
    if (known) {
      this._release(known);
      this._kept.delete(key);
    }
  }

  private _release(known: Kept): void {
    this._bytes -= known.reply?.size ?? 0;
    known.reply = null;
  }
}
