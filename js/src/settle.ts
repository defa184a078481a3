/**
 * Settling messages: acknowledgements and other verdicts on their way to the hub.
 *
 * Acknowledgements made at once are sent together, one message for each stream. Those made without a
 * connection wait for the next one, where the hub accepts them for the copies that it redelivers.
 *
 * What the program has settled is remembered: a copy that the hub redelivers, because it did not
 * learn of the settlement or has lost it, is not handed out again, but gets the same verdict.
 */

import { type Delivery, Progress, type Settled, readerOf } from './delivery.js';
import type { Message, SettleOptions, Settles } from './message.js';
import type { Answered } from './protocol/effects.js';
import type { Payload, Request, RequestOptions } from './protocol/frame.js';
import type { Seat } from './protocol/restore.js';
import { type Source, type Verdict, settling, settlingEach } from './stream_requests.js';
import { StaleDelivery, Unavailable } from './wire/errors.js';

/** Every hub accepts this many in one message. */
const TOGETHER_MAX = 1_000;
/** More than any window holds; without a window, nothing can be redelivered. */
const REMEMBERED_MAX = 16_384;

/** How requests reach the hub. */
export interface Outlet {
  readonly isReady: boolean;
  readonly isOver: boolean;
  request(payload: Payload<any>, options?: RequestOptions): Request;
  post(request: Request): void;
  call(request: Request, options?: { signal?: AbortSignal | undefined }): Promise<Answered>;
  soon(call: () => void): void;
}

/** A message that the program has acknowledged or terminated. */
interface Judged {
  verdict: Verdict;
  messageId: string;
  /** The latest copy. */
  delivery: Delivery;
  facts: Record<string, unknown>;
  /** Calls that wait for the hub's answer, and settle later copies. */
  waiting: number;
}

/** The part of an attempt's id that only a seek changes; empty for mailboxes. */
const generation = ({ id }: Delivery): string => (id ?? '').replace(/\.?[^.]*$/, '');

/** Whether a copy is of the same message, and was not sent because of a seek. */
const isRepeated = (judged: Judged, messageId: string, delivery: Delivery): boolean =>
  messageId === judged.messageId &&
  delivery.epoch === judged.delivery.epoch &&
  generation(delivery) === generation(judged.delivery);

const stale = (verdict: Verdict, { seq, attempt }: Delivery, { floor }: Settled) =>
  new StaleDelivery(`hub:${verdict}`, { seq, attempt, floor });

/** Settles the messages of one stream: a mailbox or a durable subscription. */
export class DeliverySettler implements Settles {
  isClosed = false;
  private _acks = new Map<string, Delivery>();
  /** By position, the newest last. */
  private _judged = new Map<number, Judged>();

  constructor(
    readonly source: Source,
    private _progress: Progress,
    private _outlet: Outlet,
    private _seat?: Seat,
  ) {}

  /** Give an arrived message the means to settle it; `null` if that was done before. */
  bound(message: Message, delivery: Delivery): Message | null {
    this._progress.arrived(delivery, message.id);
    if (this._isAutomatic) {
      this._progress.settled(delivery);
      return message;
    }
    const judged = this._judged.get(delivery.seq);
    if (judged) {
      if (isRepeated(judged, message.id, delivery)) {
        this._progress.settled(delivery);
        judged.delivery = delivery;
        if (!judged.waiting) {
          this._settleAgain(judged);
        }
        return null;
      }
      this._judged.delete(delivery.seq);
    }
    message._settler = this;
    return message;
  }

  /** Itself; the one of a pattern has several. */
  every(): DeliverySettler[] {
    return [this];
  }

  isOpen(delivery: Delivery): boolean {
    return this._progress.isOpen(delivery);
  }

  /** Acknowledge a message that the program does not get. */
  accept(messageId: string, delivery: Delivery): void {
    this._progress.settled(delivery);
    this._remember({ verdict: 'ack', messageId, delivery, facts: {}, waiting: 0 });
    this._gather(delivery);
  }

  async settle(
    verdict: Verdict,
    messageId: string,
    delivery: Delivery,
    facts: Record<string, unknown>,
    options: SettleOptions,
  ): Promise<Settled | null> {
    this._checkOpen(verdict);
    if (verdict === 'ack' || verdict === 'term') {
      this._progress.settled(delivery);
      const judged = { verdict, messageId, delivery, facts, waiting: 0 };
      this._remember(judged);
      if (options.wait) {
        return this._settleInTime(judged, options);
      }
      if (verdict === 'ack') {
        this._gather(delivery);
        return null;
      }
    } else if (verdict === 'nack') {
      this._progress.returned(delivery);
      this._judged.delete(delivery.seq);
    }
    const settled = await this._send(
      settlingEach(verdict, this.source, [delivery], facts),
      options,
    );
    if (settled && !settled.accepted) {
      throw stale(verdict, delivery, settled);
    }
    return settled;
  }

  /** Acknowledge everything up to a position. */
  async ackUpTo(epoch: string, seq: number, options: SettleOptions): Promise<Settled | null> {
    this._checkOpen('ack');
    for (const { delivery, messageId } of this._progress.settledUpTo(epoch, seq)) {
      this._remember({ verdict: 'ack', messageId, delivery, facts: {}, waiting: 0 });
    }
    const facts = { epoch: epoch || undefined, upTo: seq };
    const settled = await this._send(settling('ack', this.source, facts), options);
    if (settled && !settled.accepted && settled.floor < seq) {
      throw new StaleDelivery('hub:ack', { seq, floor: settled.floor });
    }
    return settled;
  }

  /** Send the collected acknowledgements. */
  flush(): void {
    if (!this._acks.size || !this._outlet.isReady) {
      return;
    }
    const acks = [...this._acks.values()];
    this._acks.clear();
    for (let at = 0; at < acks.length; ) {
      const { epoch } = acks[at]!;
      const from = at;
      while (at < acks.length && at - from < TOGETHER_MAX && acks[at]!.epoch === epoch) {
        at++;
      }
      this._post(settlingEach('ack', this.source, acks.slice(from, at)));
    }
  }

  /** The connection is lost: unsettled messages go back to the hub. */
  lost(): void {
    this._progress.lost();
  }

  /** Whether the hub settles them itself. */
  private get _isAutomatic(): boolean {
    return this._seat?.isAutoAcked ?? false;
  }

  /** Settle, and wait for the hub; if a later copy arrives meanwhile, settle that one. */
  private async _settleInTime(judged: Judged, options: SettleOptions): Promise<Settled> {
    const { verdict, facts } = judged;
    let named = judged.delivery;
    judged.waiting++;
    try {
      for (;;) {
        named = judged.delivery;
        const settled = await this._send(
          settlingEach(verdict, this.source, [named], facts),
          options,
        );
        if (settled!.accepted) {
          return settled!;
        }
        if (named === judged.delivery) {
          throw stale(verdict, named, settled!);
        }
      }
    } finally {
      judged.waiting--;
      if (named !== judged.delivery && !judged.waiting) {
        this._settleAgain(judged);
      }
    }
  }

  /** Give a later copy the verdict of the earlier one; nobody waits for it. */
  private _settleAgain({ verdict, delivery, facts }: Judged): void {
    if (verdict === 'ack') {
      this._gather(delivery);
    } else {
      this._post(settlingEach(verdict, this.source, [delivery], facts));
    }
  }

  private _remember(judged: Judged): void {
    const { seq } = judged.delivery;
    this._judged.delete(seq);
    this._judged.set(seq, judged);
    if (this._judged.size > REMEMBERED_MAX) {
      this._judged.delete(this._judged.keys().next().value!);
    }
  }

  private _checkOpen(verdict: Verdict): void {
    if (this.isClosed || this._outlet.isOver) {
      throw new Unavailable(`hub:${verdict} was not sent: the consumer is closed`);
    }
  }

  private _post(payload: Payload<Settled>): void {
    this._outlet.post(this._outlet.request(payload, { wait: false }));
  }

  /** Send a settlement; return the hub's answer if `wait` is set. */
  private async _send(payload: Payload<Settled>, options: SettleOptions): Promise<Settled | null> {
    if (!options.wait) {
      this._post(payload);
      return null;
    }
    const { signal } = options;
    const answered = await this._outlet.call(this._outlet.request(payload), { signal });
    return payload.read(answered.payload, answered.attempts);
  }

  private _gather(delivery: Delivery): void {
    if (!this._acks.size) {
      this._outlet.soon(() => this.flush());
    }
    this._acks.set(`${delivery.epoch} ${delivery.seq}`, delivery);
  }
}

/** Settles the messages of a pattern, those of each topic apart. */
export class PatternSettler {
  private _topics = new Map<string, DeliverySettler>();

  constructor(
    private _seat: Seat,
    private _outlet: Outlet,
  ) {}

  /** The settler of one topic. */
  of(topic: string): DeliverySettler {
    const { subscription } = this._seat;
    const progress = this._seat.progressOf(topic);
    let settler = this._topics.get(topic);
    if (!settler) {
      const source = { topic, subscription };
      settler = new DeliverySettler(source, progress, this._outlet, this._seat);
      this._topics.set(topic, settler);
    }
    return settler;
  }

  every(): DeliverySettler[] {
    return [...this._topics.values()];
  }
}

/** The settlers of one client, by stream. */
export class Settlers {
  private _mailboxes = new Map<string, DeliverySettler>();
  private _seats = new Map<string, DeliverySettler | PatternSettler>();

  constructor(
    private _outlet: Outlet,
    private _acknowledges: boolean,
  ) {}

  /** Give a message its settler, if it must be settled; `null` if it was before. */
  bound(message: Message): Message | null {
    const { delivery } = message;
    const settler = delivery && this._settler(message.topic ?? '', delivery);
    return settler ? settler.bound(message, delivery) : message;
  }

  /** Acknowledge a message that the program does not get, if it must be settled. */
  accept(message: Message): void {
    const { delivery } = message;
    const settler = delivery && this._settler(message.topic ?? '', delivery);
    if (settler && settler.bound(message, delivery)?.isSettleable) {
      settler.accept(message.id, delivery);
    }
  }

  /** Add the settler of a consumer that joins. */
  add(seat: Seat): DeliverySettler | PatternSettler {
    const { topic, subscription, progress } = seat;
    const settler = seat.isPattern
      ? new PatternSettler(seat, this._outlet)
      : new DeliverySettler({ topic, subscription }, progress, this._outlet, seat);
    this._seats.set(seat.key, settler);
    return settler;
  }

  /** Remove the settler of a consumer that leaves, after sending its acknowledgements. */
  remove(key: string): void {
    const settlers = this._seats.get(key)?.every() ?? [];
    this._seats.delete(key);
    for (const settler of settlers) {
      settler.flush();
      settler.isClosed = true;
    }
  }

  /** Send all collected acknowledgements. */
  flush(): void {
    for (const settler of this._all()) {
      settler.flush();
    }
  }

  /** The connection is lost: unsettled messages go back to the hub. */
  lost(): void {
    for (const settler of this._all()) {
      settler.lost();
    }
  }

  private _all(): DeliverySettler[] {
    const ofSeats = [...this._seats.values()].flatMap((one) => one.every());
    return [...this._mailboxes.values(), ...ofSeats];
  }

  private _settler(topic: string, delivery: Delivery): DeliverySettler | undefined {
    const { subscription, stream } = delivery;
    if (subscription !== null) {
      const [, found] = readerOf(this._seats, topic, subscription) ?? [];
      return found instanceof PatternSettler ? found.of(topic) : found;
    }
    if (stream === null || !this._acknowledges) {
      return undefined;
    }
    let settler = this._mailboxes.get(stream);
    if (!settler) {
      settler = new DeliverySettler({ stream }, new Progress(), this._outlet);
      this._mailboxes.set(stream, settler);
    }
    return settler;
  }
}
