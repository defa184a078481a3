/**
 * Messages to a room: written, repeated with the same id, then answered or given up.
 *
 * Messages are written in the order of submission. A temporary refusal holds all of them back,
 * because a room that has no capacity for one message has none for the next either. It also halves
 * the window of unanswered messages, which every acceptance widens again. A message that would expire
 * during the wait is written at once: the hub may already have it, and if not, its refusal is the
 * error to throw.
 */

import { endFor } from '../protocol/pending.js';
import type { Bytes } from '../wire/bytes.js';
import { type ClientError, OutcomeUnknown, Unavailable } from '../wire/errors.js';
import { Attempts, type Random, retryWaitMs } from '../wire/pacing.js';
import { Heap } from '../wire/queues.js';

const WINDOW_MAX = 256;
const STALE_MIN = 64;

/** One message to send, as a frame and as its readers will see it. */
export interface Outgoing {
  messageId: string;
  frame: string;
  ciphertext: Bytes;
  type: string;
  deadlineMs: number;
}

interface Pending {
  outgoing: Outgoing;
  order: number;
  attempts: Attempts;
  /** Written to the current link and not answered. */
  isWritten: boolean;
}

/** Messages to send; each leaves exactly once: accepted, failed or forgotten. */
export class RoomOutbox {
  private _orders = 0;
  private _pending = new Map<string, Pending>();
  /** Heaps; forgotten messages are skipped. The urgent ones are not held back by a refusal. */
  private _waiting = new Heap<Pending>();
  private _urgent = new Heap<Pending>();
  private _deadlines = new Heap<Pending>();
  private _isOpen = false;
  private _isCongested = false;
  private _heldUntilMs = 0;
  private _heldBy: ClientError | null = null;
  private _window = WINDOW_MAX;
  private _inFlight = 0;

  constructor(private _random: Random) {}

  get size(): number {
    return this._pending.size;
  }

  has(messageId: string): boolean {
    return this._pending.has(messageId);
  }

  /** Add a message; its id must not be pending. */
  submit(outgoing: Outgoing): void {
    const order = this._orders++;
    const pending = { outgoing, order, attempts: new Attempts(), isWritten: false };
    this._pending.set(outgoing.messageId, pending);
    const isUrgent = outgoing.deadlineMs <= this._heldUntilMs;
    (isUrgent ? this._urgent : this._waiting).push(order, order, pending);
    this._deadlines.push(outgoing.deadlineMs, order, pending);
    // Without a connection, forgotten messages would never be reached and skipped.
    if (this._waiting.length > STALE_MIN + 2 * this._pending.size) {
      this._waiting.keep((one) => this._isHere(one));
    }
  }

  /** The room can be written to. */
  opened(): void {
    this._isOpen = true;
    this._isCongested = false;
  }

  /** The link is lost, and with it the answers to what was written to it. */
  lost(): void {
    this._isOpen = false;
    for (const pending of this._pending.values()) {
      if (pending.isWritten) {
        pending.isWritten = false;
        pending.attempts.failed(new OutcomeUnknown('the connection was lost before an answer'));
        this._waiting.push(pending.order, pending.order, pending);
      }
    }
    this._inFlight = 0;
  }

  /** The link's buffer is full, or has room again. */
  congested(isCongested: boolean): void {
    this._isCongested = isCongested;
  }

  /** The frames to write now. */
  due(nowMs: number): string[] {
    const frames = this._written(this._urgent);
    return nowMs >= this._heldUntilMs ? [...frames, ...this._written(this._waiting)] : frames;
  }

  /** The hub has accepted a message; return it, unless it was forgotten. */
  accepted(messageId: string): Outgoing | undefined {
    const pending = this._remove(messageId);
    if (pending) {
      this._window = Math.min(WINDOW_MAX, this._window + 1);
    }
    return pending?.outgoing;
  }

  /** The hub refused it; return the error to throw, or `null` if it is tried again. */
  refused(
    messageId: string,
    error: ClientError,
    retryAfterMs: number | null,
    nowMs: number,
  ): ClientError | null {
    const pending = this._pending.get(messageId);
    if (!pending) {
      return null;
    }
    pending.attempts.failed(error);
    if (retryAfterMs !== null) {
      const waitMs = retryWaitMs(retryAfterMs, pending.attempts.count, this._random);
      this._heldUntilMs = Math.max(this._heldUntilMs, nowMs + waitMs);
      this._heldBy = error;
      this._window = Math.max(1, this._window >> 1);
      if (this._heldUntilMs < pending.outgoing.deadlineMs) {
        if (pending.isWritten) {
          pending.isWritten = false;
          this._inFlight--;
          this._waiting.push(pending.order, pending.order, pending);
        }
        return null;
      }
    }
    this._remove(messageId);
    return pending.attempts.failure('no answer arrived');
  }

  /** Take out the largest message: the hub closed the link because of a frame beyond its limit. */
  tooBig(): Outgoing | undefined {
    let largest: Outgoing | undefined;
    for (const { isWritten, outgoing } of this._pending.values()) {
      if (isWritten && outgoing.frame.length > (largest?.frame.length ?? -1)) {
        largest = outgoing;
      }
    }
    if (largest) {
      this._remove(largest.messageId);
    }
    return largest;
  }

  /** Messages past their deadline, and the error for each. */
  expired(nowMs: number): [string, ClientError][] {
    const expired: [string, ClientError][] = [];
    while (this._nextDeadlineMs <= nowMs) {
      const [, , pending] = this._deadlines.pop()!;
      this._remove(pending.outgoing.messageId);
      expired.push([pending.outgoing.messageId, this._timedOut(pending, nowMs)]);
    }
    return expired;
  }

  /** Fail everything: there will be no more links. */
  end(error: ClientError): [string, ClientError][] {
    this._isOpen = false;
    return [...this._pending.values()].map(({ isWritten, attempts, outgoing: { messageId } }) => {
      this._remove(messageId);
      const isDoubtful = isWritten || attempts.isDoubtful;
      return [messageId, isDoubtful ? new OutcomeUnknown(error.message) : endFor(error)];
    });
  }

  /** Forget a message whose caller no longer waits. */
  forget(messageId: string): void {
    this._remove(messageId);
  }

  /** When a message is due or expires. */
  get wakeAtMs(): number {
    const isHeld = this._waiting.length > 0 && this._mayWrite;
    return Math.min(this._nextDeadlineMs, isHeld ? this._heldUntilMs : Infinity);
  }

  private get _mayWrite(): boolean {
    return this._isOpen && !this._isCongested && this._inFlight < this._window;
  }

  private get _nextDeadlineMs(): number {
    for (let first; (first = this._deadlines.first); this._deadlines.pop()) {
      if (this._isHere(first[2])) {
        return first[0];
      }
    }
    return Infinity;
  }

  private _written(queue: Heap<Pending>): string[] {
    const frames: string[] = [];
    while (queue.length && this._mayWrite) {
      const [, , pending] = queue.pop()!;
      if (this._isHere(pending)) {
        pending.isWritten = true;
        this._inFlight++;
        frames.push(pending.outgoing.frame);
      }
    }
    return frames;
  }

  /** Whether a message has not left; its id may have been used again. */
  private _isHere(pending: Pending): boolean {
    return this._pending.get(pending.outgoing.messageId) === pending;
  }

  private _remove(messageId: string): Pending | undefined {
    const pending = this._pending.get(messageId);
    this._pending.delete(messageId);
    if (pending?.isWritten) {
      this._inFlight--;
    }
    return pending;
  }

  private _timedOut({ attempts, isWritten }: Pending, nowMs: number): ClientError {
    if (isWritten) {
      attempts.failed(new OutcomeUnknown('the hub did not answer in time'));
    }
    if (attempts.count) {
      return attempts.failure('it timed out');
    }
    if (this._isOpen && this._heldBy && nowMs < this._heldUntilMs) {
      return this._heldBy;
    }
    return new Unavailable('it was not sent: there was no connection in time');
  }
}
