/** Pending requests: their deadlines, and tells that may still be refused. */

import type { Message } from '../message.js';
import { type ClientError, GaveUp, OutcomeUnknown, Unavailable } from '../wire/errors.js';
import { Heap, Queue } from '../wire/queues.js';
import { HeldBy, type Request } from './frame.js';
import type { Seat } from './restore.js';

export const RETRY_PAUSE_MS = 1_000;
const RECENT_MAX = 2_048;
const RECENT_BYTES_MAX = 4 * 2 ** 20;
const STALE_MIN = 64;

export interface Submission {
  /** Called when the hub grants it. */
  then?: (() => void) | undefined;
  /** The consumer that joins with it. */
  seat?: Seat | null | undefined;
  isRestoring?: boolean;
  /** It waits for a reply, so it ends at once if its recipient cannot take it now. */
  isRequest?: boolean;
}

/** A request that waits to be written, waits between attempts, or waits for its answer. */
export class Pending {
  collected: Message[] = [];
  isWaiting = false;
  isResting = false;
  dueMs: number;
  readonly endMs: number;
  attempt = 1;
  sends = 0;
  unanswered = 0;
  refusals = 0;
  refusal: ClientError | null = null;
  readonly then: (() => void) | undefined;
  readonly seat: Seat | null;
  readonly isRestoring: boolean;
  readonly isRequest: boolean;

  constructor(
    readonly request: Request,
    readonly order: number,
    public sinceMs: number,
    { then, seat = null, isRestoring = false, isRequest = false }: Submission,
  ) {
    const { attempts, timeoutMs } = request;
    this.then = then;
    this.seat = seat;
    this.isRestoring = isRestoring;
    this.isRequest = isRequest;
    this.dueMs = sinceMs + timeoutMs;
    this.endMs = sinceMs + timeoutMs * attempts + (RETRY_PAUSE_MS * attempts * (attempts - 1)) / 2;
  }

  get isTraffic(): boolean {
    return this.request.heldBy <= HeldBy.Traffic;
  }

  /** The error of a request that ends without an answer. */
  outcome(reason: string): ClientError {
    const text = `${this.request.subject}: ${reason}`;
    if (this.unanswered && this.request.answer !== null) {
      return new OutcomeUnknown(`${text}; it was sent ${this.sends}×`);
    }
    return this.refusal ?? new Unavailable(text);
  }

  /** The error of a request that is pending when the client ends. */
  ended(error: ClientError): ClientError {
    return this.isTraffic && this.unanswered
      ? this.outcome(error.message)
      : endFor(error, this.request.subject);
  }
}

/** The error of one caller when the client ends; `GaveUp` if the client gave up. */
export function endFor(end: ClientError, subject = ''): Unavailable {
  const text = subject ? `${subject}: ${end.message}` : end.message;
  return end instanceof GaveUp ? new GaveUp(text) : new Unavailable(text);
}

/**
 * The next deadline of every pending request, earliest first.
 *
 * Entries of finished requests are not removed but skipped when they are reached; the heap is rebuilt
 * when most of it is stale, so its size stays proportional to what is pending.
 */
export class Deadlines {
  private _heap = new Heap<Pending>();
  private _live = new Set<Pending>();

  set(pending: Pending, dueMs: number): void {
    pending.dueMs = dueMs;
    this._live.add(pending);
    this._heap.push(dueMs, pending.order, pending);
    if (this._heap.length > STALE_MIN + 4 * this._live.size) {
      this._heap.keep((one, _, key) => this._live.has(one) && one.dueMs === key);
    }
  }

  clear(pending: Pending): void {
    this._live.delete(pending);
  }

  /** Remove and return those whose deadline has passed. */
  *due(nowMs: number): Generator<Pending> {
    while (this._heap.length && this._heap.first![0] <= nowMs) {
      const [dueMs, , pending] = this._heap.pop()!;
      if (pending.dueMs === dueMs && this._live.delete(pending)) {
        yield pending;
      }
    }
  }

  /** The earliest deadline, which may be stale. */
  get nextMs(): number {
    return this._heap.first?.[0] ?? Infinity;
  }
}

/**
 * The last tells written, by id, limited in number and bytes: the hub may still refuse them because
 * of their rate, and then they are sent again.
 */
export class Recent {
  private _tells = new Map<string, Pending>();
  private _bytes = 0;

  add(pending: Pending): void {
    this._tells.set(pending.request.id, pending);
    this._bytes += pending.request.size;
    while (this._tells.size > RECENT_MAX || this._bytes > RECENT_BYTES_MAX) {
      this.pop(this._tells.keys().next().value!);
    }
  }

  pop(id: string): Pending | undefined {
    const pending = this._tells.get(id);
    if (pending) {
      this._tells.delete(id);
      this._bytes -= pending.request.size;
    }
    return pending;
  }

  clear(): void {
    this._tells.clear();
    this._bytes = 0;
  }
}

/**
 * Tells on their way: written, and perhaps not yet read by the hub.
 *
 * The hub answers a heartbeat after it has read all that was written before, and a pause that this
 * has caused arrives before the answer. So a reader that is too slow gets no more than these after it
 * has told the hub, which has room for them.
 */
export class Unread {
  static readonly MESSAGES_MAX = 512;
  static readonly BYTES_MAX = 2 ** 19;
  /** So many heartbeats may be on their way, each after a part of what may be. */
  static readonly MARKS = 4;

  private _messages = 0;
  private _bytes = 0;
  /** Of these, what was written since the last heartbeat. */
  private _newMessages = 0;
  private _newBytes = 0;
  /** Heartbeats without an answer, with the messages and bytes since the one before. */
  private _marks = new Queue<[string, number, number]>();

  add(size: number): void {
    this._messages++;
    this._bytes += size;
    this._newMessages++;
    this._newBytes += size;
  }

  /** May another tell of this size follow? Above half of the limit it has to fit. */
  hasRoom(size: number): boolean {
    return (
      this._messages < Unread.MESSAGES_MAX &&
      (2 * this._bytes < Unread.BYTES_MAX || this._bytes + size <= Unread.BYTES_MAX)
    );
  }

  /** Is it time for a heartbeat? */
  get isMarkDue(): boolean {
    return (
      this._marks.length < Unread.MARKS &&
      (Unread.MARKS * this._newMessages >= Unread.MESSAGES_MAX ||
        Unread.MARKS * this._newBytes >= Unread.BYTES_MAX)
    );
  }

  /** A heartbeat was written. */
  mark(messageId: string): void {
    this._marks.push([messageId, this._newMessages, this._newBytes]);
    this._newMessages = this._newBytes = 0;
  }

  /** A heartbeat was answered, and so all that was written before it was read. */
  answered(messageId: string | null): void {
    if (![...this._marks].some(([mark]) => mark === messageId)) {
      return;
    }
    let mark: string | null = null;
    while (mark !== messageId) {
      const [found, messages, bytes] = this._marks.shift()!;
      mark = found;
      this._messages -= messages;
      this._bytes -= bytes;
    }
  }
}
