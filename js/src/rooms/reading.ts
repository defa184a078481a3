/** Puts live messages and pages of the inbox in order, each message once. */

import { type Random, retryWaitMs } from '../wire/pacing.js';
import { Queue } from '../wire/queues.js';
import {
  type Gap,
  type InboxPage,
  type Missed,
  RecentIds,
  type RoomMessage,
  contiguous,
  gapsOf,
} from './answers.js';

const READY_MAX = 1_000;
const HELD_MAX = 1_000;
const BYTES_MAX = 16 * 2 ** 20;
const MISSED_MAX = 1_000;
/** All members share the limit of fetches of an inbox, so a live reader spreads its fetches. */
const PAUSE_MS = 1_000;
export const PARTIAL_MS = 1_000;

/** Invariant: everything up to `_queued` was returned, is ready, or is deleted. */
export class CatchUp {
  readonly missed: Missed[] = [];
  rewound = 0;
  private _isPositioned: boolean;
  private _queued: number;
  private _target = 0;
  private _ready = new Queue<RoomMessage>();
  private _readyBytes = 0;
  private _held: RoomMessage[] = [];
  private _heldBytes = 0;
  private _ids = new RecentIds();
  private _isOpen = false;
  private _isWanted = false;
  /** `_target` when the page was requested. */
  private _fetching: number | null = null;
  private _attempts = 0;
  private _notBeforeMs = 0;

  constructor(
    since: number | null,
    private _random: Random,
  ) {
    this._isPositioned = since !== null;
    this._queued = since ?? 0;
  }

  /** Everything up to here was returned, or is deleted. */
  get lastSeq(): number {
    return this._ready.first ? this._ready.first.seq - 1 : this._queued;
  }

  get hasReady(): boolean {
    return this._ready.length > 0;
  }

  /** The next message. From the first call on, the program counts as reading. */
  take(): RoomMessage | undefined {
    this._isWanted = true;
    const message = this._ready.shift();
    if (message) {
      this._readyBytes -= message.ciphertext.length;
      this._moveHeld();
    }
    return message;
  }

  /**
   * A socket joined at this last position; `false` if we had read beyond it. A hub that has lost
   * messages we have read says where it continues: above what we know.
   */
  welcomed(lastSeq: number, nextSeq = 0): boolean {
    this._isOpen = true;
    if (!this._isPositioned) {
      this._isPositioned = true;
      this._queued = lastSeq;
    }
    this._target = Math.max(this._target, lastSeq);
    if (lastSeq >= this._queued || nextSeq > this._queued) {
      return true;
    }
    // The hub has lost messages we have read, and new ones have taken their positions.
    this.rewound++;
    this._queued = 0;
    this._target = lastSeq;
    this._dropHeld();
    return false;
  }

  /** The socket is lost. */
  lost(): void {
    this._isOpen = false;
  }

  /** Add a live message, or one of ours that was accepted. */
  heard(message: RoomMessage): void {
    const { seq } = message;
    const held = this._held;
    if (seq <= this._queued || !this._isPositioned) {
      return;
    }
    if (!held.length && seq === this._queued + 1 && !this._isFull) {
      this._push(message);
      return;
    }
    let at = held.length;
    while (at && held[at - 1]!.seq > seq) {
      at--;
    }
    if (held[at - 1]?.seq === seq) {
      return;
    }
    held.splice(at, 0, message);
    this._heldBytes += message.ciphertext.length;
    this._moveHeld();
    if (held.length > HELD_MAX || this._heldBytes > BYTES_MAX) {
      this._target = Math.max(this._target, held.at(-1)!.seq);
      this._dropHeld();
    }
  }

  /** The position to fetch a page from now, if one is needed. */
  nextFetch(nowMs: number): number | null {
    if (!this._needsPage || nowMs < this._notBeforeMs) {
      return null;
    }
    this._fetching = this._target;
    return this._queued + 1;
  }

  /** Add a fetched page; return the positions that turned out to be deleted or lost. */
  fetched(asked: number, page: InboxPage, nowMs: number): Gap[] {
    const target = this._fetching!;
    this._fetching = null;
    if (asked > this._queued + 1) {
      return []; // It was requested before a rewind.
    }
    const messages = contiguous(page);
    if (page.isPartial && !messages.length) {
      this._retry(PARTIAL_MS, nowMs);
      return [];
    }
    this._attempts = 0;
    // An empty page means that everything known at the time of the request is deleted.
    const first = messages[0]?.seq ?? target + 1;
    const last = messages.at(-1)?.seq ?? target;
    const gaps = gapsOf(page.skipped, { first: this._queued + 1, last: first - 1 }, last);
    gaps.forEach((gap) => this._miss(gap));
    this._queued = Math.max(this._queued, first - 1);
    for (const message of messages) {
      if (message.seq > this._queued) {
        this._push(message);
      }
    }
    this._moveHeld();
    if (this._queued >= this._target) {
      this._notBeforeMs = nowMs + PAUSE_MS;
    }
    return gaps;
  }

  /** The page could not be fetched; try again later. */
  notFetched(retryAfterMs: number, nowMs: number): void {
    this._fetching = null;
    this._retry(retryAfterMs, nowMs);
  }

  /** When to call `nextFetch` again. */
  get wakeAtMs(): number {
    return this._needsPage ? this._notBeforeMs : Infinity;
  }

  private get _needsPage(): boolean {
    const hasPlace = this._ready.length < READY_MAX / 2 && this._readyBytes < BYTES_MAX;
    const isDue = this._isOpen && this._isWanted && this._fetching === null;
    return this._queued < this._target && hasPlace && isDue;
  }

  private get _isFull(): boolean {
    return this._ready.length >= READY_MAX || this._readyBytes >= BYTES_MAX;
  }

  private _retry(retryAfterMs: number, nowMs: number): void {
    this._attempts++;
    this._notBeforeMs = nowMs + retryWaitMs(retryAfterMs, this._attempts, this._random);
  }

  private _miss(gap: Gap): void {
    const last = this.missed.at(-1);
    const first = last?.last === gap.first - 1 ? this.missed.pop()!.first : gap.first;
    this.missed.push({ first, last: gap.last });
    if (this.missed.length > MISSED_MAX) {
      this.missed.shift();
    }
  }

  private _push(message: RoomMessage): void {
    this._queued = message.seq;
    if (this._ids.isNew(message.messageId)) {
      this._ready.push(message);
      this._readyBytes += message.ciphertext.length;
    }
  }

  /** Move held messages on that have no gap before them. */
  private _moveHeld(): void {
    let used = 0;
    for (const message of this._held) {
      if (message.seq > this._queued) {
        if (message.seq !== this._queued + 1 || this._isFull) {
          break;
        }
        this._push(message);
      }
      used++;
      this._heldBytes -= message.ciphertext.length;
    }
    this._held.splice(0, used);
    if (this._held.length) {
      this._target = Math.max(this._target, this._held[0]!.seq - 1);
    }
  }

  private _dropHeld(): void {
    this._held.length = 0;
    this._heldBytes = 0;
  }
}
