/**
 * Where a durable message comes from, the result of settling it, and what is unsettled.
 *
 * Members are read one by one: a hub of another version may send some of them in another form, and
 * that must not lose the message.
 */

import { hasWildcard, topicMatches } from './wire/names.js';
import type { Shape } from './wire/shapes.js';

/**
 * One attempt to deliver a message from a durable stream.
 *
 * `stream` is set for mailboxes, `subscription` for durable subscriptions; a copy from a plain
 * subscription has neither and is not settled.
 */
export interface Delivery {
  epoch: string;
  seq: number;
  stream: string | null;
  subscription: string | null;
  attempt: number;
  redelivered: boolean;
  publishedAt: number | null;
  acceptedAt: number | null;
  /** Identifies this attempt. */
  id: string | null;
}
export const DELIVERY: Shape = {
  epoch: 's!',
  seq: 'i!',
  stream: 's?',
  subscription: 's?',
  attempt: 'i:1',
  redelivered: 'b',
  publishedAt: 'n?',
  acceptedAt: 'n?',
  id: 's?',
};

/** Where a dead letter comes from, and why it was dead-lettered. */
export interface DeadLetter {
  topic: string | null;
  subscription: string | null;
  stream: string | null;
  epoch: string | null;
  seq: number | null;
  attempts: number;
  reason: string | null;
  firstFailure: number | null;
  lastFailure: number | null;
  consumers: string[];
}
export const DEAD_LETTER: Shape = {
  topic: 's?',
  subscription: 's?',
  stream: 's?',
  epoch: 's?',
  seq: 'i?',
  attempts: 'i',
  reason: 's?',
  firstFailure: 'n?',
  lastFailure: 'n?',
  consumers: ['s'],
};

/** The hub's answer to a settlement; `ignored` lists those that were not in flight. */
export interface Settled {
  floor: number;
  accepted: number;
  ignored: number[];
}
export const SETTLED: Shape = { floor: 'i', accepted: 'i', ignored: ['i'] };

/** What reads a subscription of a topic, alone or with all topics of a pattern, and its key. */
export function readerOf<T>(
  readers: Map<string, T>,
  topic: string,
  subscription: string,
): [string, T] | undefined {
  const own = `${topic}\0${subscription}`;
  if (readers.has(own)) {
    return [own, readers.get(own)!];
  }
  return [...readers].find(([key]) => {
    const [pattern, name] = key.split('\0') as [string, string];
    return name === subscription && hasWildcard(pattern) && topicMatches(pattern, topic);
  });
}

/** More than any window holds. */
export const RETURNED_MAX = 16_384;

/** A delivery, and the id of the message, which all copies share. */
export interface Copy {
  delivery: Delivery;
  messageId: string;
}

/** Unsettled messages. Invariant: a position is open (ours), returned (the hub's) or neither. */
export class Progress {
  epoch: string | null = null;
  private _highest: number | null = null;
  private _open = new Map<number, Copy>();
  private _returned = new Map<number, Copy>();

  /** Record a delivery or redelivery. */
  arrived(delivery: Delivery, messageId: string): void {
    const { epoch, seq } = delivery;
    if (epoch !== this.epoch) {
      this.restart(epoch);
    }
    this._open.set(seq, { delivery, messageId });
    this._returned.delete(seq);
    this._highest = Math.max(this._highest ?? seq, seq);
  }

  isOpen(delivery: Delivery): boolean {
    return delivery.epoch === this.epoch && this._open.has(delivery.seq);
  }

  /** Record that a message is settled. */
  settled(delivery: Delivery): void {
    if (delivery.epoch === this.epoch) {
      this._close(delivery);
      this._returned.delete(delivery.seq);
    }
  }

  /** Record that everything up to a position is settled; return the latest copies of it. */
  settledUpTo(epoch: string, seq: number): Copy[] {
    if (epoch !== this.epoch) {
      return [];
    }
    const every = new Map([...this._returned, ...this._open]);
    const settled: [number, Copy][] = [];
    for (const [one, copy] of every) {
      if (one <= seq) {
        settled.push([one, copy]);
        this._open.delete(one);
        this._returned.delete(one);
      }
    }
    return settled.sort(([one], [other]) => one - other).map(([, copy]) => copy);
  }

  /** Record that a message goes back to the hub unprocessed. */
  returned(delivery: Delivery): void {
    const copy = delivery.epoch === this.epoch && this._close(delivery);
    if (copy) {
      this._giveBack(copy);
    }
  }

  /** Return everything unsettled to the hub, because the connection was lost. */
  lost(): void {
    for (const [, copy] of [...this._open].sort(([one], [other]) => one - other)) {
      this._giveBack(copy);
    }
    this._open.clear();
  }

  /** Start again with a new epoch of the stream; old positions are no longer valid. */
  restart(epoch: string): void {
    this.epoch = epoch;
    this._highest = null;
    this._open.clear();
    this._returned.clear();
  }

  /** Up to which position everything is settled; `null` before any message. */
  get position(): number | null {
    let least = Infinity;
    for (const seqs of [this._open, this._returned]) {
      for (const seq of seqs.keys()) {
        least = Math.min(least, seq);
      }
    }
    return least < Infinity ? least - 1 : this._highest;
  }

  private _close(delivery: Delivery): Copy | undefined {
    const latest = this._open.get(delivery.seq);
    const known = latest?.delivery;
    if (!known || (known.id !== delivery.id && known.attempt <= delivery.attempt)) {
      return undefined;
    }
    this._open.delete(delivery.seq);
    return latest;
  }

  private _giveBack(copy: Copy): void {
    this._returned.set(copy.delivery.seq, copy);
    // The hub may give it to another consumer, and then we never see it again.
    if (this._returned.size > RETURNED_MAX) {
      this._returned.delete(this._returned.keys().next().value!);
    }
  }
}
