/** Waiting requests and what holds them back. */

import { TokenBucket } from '../wire/pacing.js';
import { Queue } from '../wire/queues.js';
import { HeldBy } from './frame.js';
import { type Pending, Unread } from './pending.js';

const HEADROOM = 0.95;
/** A busy hub reads its clock once per tick, so its token bucket fills a little late. */
const HUB_LAG_S = 0.1;
const EMPTY_MIN = 64;

type Line = Queue<Pending>;

const inOrder = (line: Iterable<Pending>, more: Iterable<Pending>): Pending[] =>
  [...line, ...more].sort((one, other) => one.order - other.order);

export class Flow {
  waiting = 0;
  isCongested = false;
  unread = new Unread();
  private _empty = 0;
  private _isGreeted = false;
  private _isOpen = false;
  private _downMs: number | null;
  private _allPausedMs: number | null = null;
  private _pausedMs = new Map<string, number>();
  private _parked = new Map<string, Line>();
  private _restoring: Line = new Queue();
  private _control: Line = new Queue();
  private _traffic: Line = new Queue();
  private _bucket: TokenBucket | null = null;
  private _heldUntilMs = 0;

  constructor(nowMs: number) {
    this._downMs = nowMs;
  }

  /** The hub said hello: requests that restore the connection can be sent. */
  greeted(messageRate: number, messageBurst: number, nowMs: number): void {
    this._isGreeted = true;
    if (messageRate > 0) {
      const burst = Math.min(HEADROOM * messageBurst, messageBurst - HUB_LAG_S * messageRate);
      this._bucket = new TokenBucket(HEADROOM * messageRate, Math.max(1, burst), Math.floor(nowMs));
    }
  }

  /** The connection is restored: all requests can be sent. */
  opened(): void {
    this._isOpen = true;
    this._downMs = null;
  }

  /** The connection is lost: everything waits, and pauses and restoring end. */
  closed(nowMs: number): void {
    for (const target of [...this._parked.keys()]) {
      this.resume(target);
    }
    this._pausedMs.clear();
    for (const pending of this._restoring) {
      this.waiting -= +pending.isWaiting;
      pending.isWaiting = false;
    }
    this._restoring.set([]);
    this._isGreeted = this._isOpen = this.isCongested = false;
    this._bucket = null;
    this._heldUntilMs = 0;
    this.unread = new Unread();
    this._allPausedMs = null;
    this._downMs ??= nowMs;
  }

  /** The hub has paused all traffic, or tells to one target. */
  pause(target: string | null, nowMs: number): void {
    if (target === null) {
      this._allPausedMs ??= nowMs;
    } else if (!this._pausedMs.has(target)) {
      this._pausedMs.set(target, nowMs);
    }
  }

  /** The hub has resumed all traffic, or tells to one target. */
  resume(target: string | null): void {
    if (target === null) {
      this._allPausedMs = null;
      return;
    }
    this._pausedMs.delete(target);
    this._traffic.set(inOrder(this._traffic, this._parked.get(target) ?? []));
    this._parked.delete(target);
  }

  /** The hub's rate limit was exceeded: send nothing that counts until then. */
  hold(untilMs: number): void {
    this._heldUntilMs = Math.max(this._heldUntilMs, untilMs);
    if (this._bucket) {
      this._bucket.tokens = 0;
    }
  }

  /** Add a new request at the end of its queue. */
  add(pending: Pending): void {
    pending.isWaiting = true;
    this.waiting++;
    this._line(pending).push(pending);
  }

  /** Put requests that must be written again back at their old positions. */
  putBack(again: Pending[]): void {
    for (const pending of again) {
      pending.isWaiting = true;
    }
    this.waiting += again.length;
    for (const line of [this._restoring, this._control, this._traffic]) {
      const returning = again.filter((pending) => this._line(pending) === line);
      if (returning.length) {
        line.set(inOrder(line, returning));
      }
    }
  }

  /** Do not write this request; its entry is removed when it reaches the front. */
  withdraw(pending: Pending): void {
    if (!pending.isWaiting) {
      return;
    }
    pending.isWaiting = false;
    this.waiting--;
    this._empty++;
    // Entries behind a long stall never reach the front, and each holds a whole frame.
    if (this._empty > EMPTY_MIN + this.waiting) {
      this._empty = 0;
      for (const line of [this._control, this._traffic, ...this._parked.values()]) {
        line.set([...line].filter((one) => one.isWaiting));
      }
    }
  }

  /** The next request that can be written now. */
  take(nowMs: number): Pending | undefined {
    const line = this._headLine();
    if (!line || (line.first!.request.heldBy !== HeldBy.Exempt && !this._maySpend(nowMs))) {
      return undefined;
    }
    const pending = line.shift()!;
    pending.isWaiting = false;
    this.waiting--;
    if (pending.request.heldBy === HeldBy.Tell) {
      this.unread.add(pending.request.size);
    }
    return pending;
  }

  /** When to call `take` again without an event; `Infinity` if only an event helps. */
  wakeAtMs(nowMs: number): number {
    if (!this._headLine()) {
      return Infinity;
    }
    const waitMs = this._bucket?.retryAfterMs(Math.floor(nowMs)) ?? 0;
    return Math.max(this._heldUntilMs, nowMs + waitMs);
  }

  /** Since when requests like this one are held back; `undefined` if they are not. */
  stalledSinceMs(pending: Pending): number | undefined {
    return this._downMs ?? this._allPausedMs ?? this._pausedMs.get(pending.request.target);
  }

  private _line(pending: Pending): Line {
    return pending.isRestoring
      ? this._restoring
      : pending.isTraffic
        ? this._traffic
        : this._control;
  }

  private _headLine(): Line | undefined {
    if (!this._isGreeted || this.isCongested) {
      return undefined;
    }
    if (this._restoring.length) {
      return this._restoring;
    }
    if (!this._isOpen) {
      return undefined;
    }
    if (this._hasNext(this._control)) {
      return this._control;
    }
    if (this._allPausedMs !== null) {
      return undefined;
    }
    while (this._hasNext(this._traffic)) {
      const { heldBy, target, size } = this._traffic.first!.request;
      if (heldBy !== HeldBy.Tell) {
        return this._traffic;
      }
      if (!this._pausedMs.has(target)) {
        return this.unread.hasRoom(size) ? this._traffic : undefined;
      }
      let parked = this._parked.get(target);
      if (!parked) {
        this._parked.set(target, (parked = new Queue()));
      }
      parked.push(this._traffic.shift()!);
    }
    return undefined;
  }

  private _hasNext(line: Line): boolean {
    while (line.length && !line.first!.isWaiting) {
      line.shift();
      this._empty--;
    }
    return line.length > 0;
  }

  private _maySpend(nowMs: number): boolean {
    return nowMs >= this._heldUntilMs && (this._bucket?.take(Math.floor(nowMs)) ?? true);
  }
}
