/** Reading a durable subscription. */

import type { Lost } from './answers.js';
import type { Handler, MessageQueue } from './arrivals.js';
import type { Settled } from './delivery.js';
import type { Message, SettleOptions } from './message.js';
import type { Request } from './protocol/frame.js';
import type { Seat } from './protocol/restore.js';
import { type DeliverySettler, PatternSettler } from './settle.js';
import { crediting, leaving } from './stream_requests.js';
import type { ClientRunner } from './transport/runner.js';
import { OutcomeUnknown, Refused, Unavailable } from './wire/errors.js';
import { invalid } from './wire/names.js';

const GONE = ['not_a_consumer', 'unknown_subscription', 'unknown_topic'];

/** Iterate over messages until they end; breaking out of a loop ends nothing. */
export const iterate = <T>(next: () => Promise<T | undefined>): AsyncIterator<T, undefined> => ({
  async next() {
    const value = await next();
    return value === undefined
      ? { done: true, value: undefined }
      : { done: false, value: value as T };
  },
});

/** An event of a consumer or a client; the members of `facts` are members of the event. */
export class HubEvent extends Event {
  [name: string]: any;

  constructor(type: string, facts: object = {}) {
    super(type);
    for (const [name, value] of Object.entries(facts)) {
      if (name !== 'type') {
        Object.defineProperty(this, name, { value, enumerable: true });
      }
    }
  }
}

/**
 * One consumer of a durable subscription: `for await (const message of consumer)`.
 *
 * It survives reconnecting: it joins the subscription again under the same consumer name and drops
 * messages that were received but not yet returned, because the hub redelivers them. The iteration
 * ends when the consumer or its client is closed, or throws what else ended it: `Unsubscribed` if the
 * hub ended it, `Refused` if it could not join again, `GaveUp` if the client has given up.
 *
 * Events: `lost` (`topic`, `from`, `to`), when messages were deleted unread.
 */
export class Consumer<P = any> extends EventTarget implements AsyncIterable<Message<P>> {
  private _isServing = false;

  /** @internal */
  constructor(
    private _runner: ClientRunner,
    private _seat: Seat,
    private _settler: DeliverySettler | PatternSettler,
    private _queue: MessageQueue,
  ) {
    super();
    // Later, so that whoever has just joined can listen.
    _seat.onLost = ({ first: from, last: to }, topic) =>
      _runner.soon(() => this.dispatchEvent(new HubEvent('lost', { topic, from, to })));
  }

  [Symbol.asyncIterator](): AsyncIterator<Message<P>, undefined> {
    return iterate(() => this.next());
  }

  /** Wait for the next message; `undefined` after the last one. */
  next(signal?: AbortSignal): Promise<Message<P> | undefined> {
    if (this._isServing) {
      invalid('the messages of this consumer go to its handler');
    }
    return this._queue.next(signal);
  }

  /** The topic, or the pattern of all topics; `message.topic` has that of a message. */
  get topic(): string {
    return this._seat.topic;
  }

  get subscription(): string {
    return this._seat.subscription;
  }

  /** The consumer's name; another consumer that joins under it takes over. */
  get name(): string {
    return String(this._seat.terms.consumer);
  }

  /** The hub's id of this consumer on the current connection. */
  get subscriptionId(): string {
    return this._seat.subscriptionId;
  }

  /** The topic's epoch; positions of different epochs cannot be compared. */
  get epoch(): string {
    return this._seat.epoch;
  }

  /** The next position to be delivered, as of the last join; so are the following ones. */
  get nextSeq(): number {
    return this._seat.next;
  }

  /** The last position of the topic. */
  get head(): number {
    return this._seat.head;
  }

  /** How many messages were unsettled. */
  get lag(): number {
    return this._seat.lag;
  }

  /** Whether every message after the last position was available. */
  get recovered(): boolean {
    return this._seat.recovered;
  }

  /** The positions that were no longer available. */
  get lost(): Lost | null {
    return this._seat.lost;
  }

  /** The same by topic, also for a pattern. */
  get losses(): Readonly<Record<string, Lost>> {
    return this._seat.losses;
  }

  /** Options whose values this consumer asked to change, in vain: it may not manage the subscription. */
  get kept(): ReadonlySet<string> {
    return this._seat.kept;
  }

  get isClosed(): boolean {
    return this._queue.isEnded;
  }

  /** Give the messages to a handler, one at a time. */
  serve(handler: Handler<P>): void {
    this._isServing = true;
    this._queue.serve(handler);
  }

  /**
   * Set how many messages or bytes this consumer may have unsettled; 0 pauses it. It applies to the
   * current connection; a new one starts with the consumer's window.
   */
  async credit({ messages, bytes }: { messages?: number; bytes?: number }): Promise<void> {
    const credit = crediting(this.subscriptionId, messages, bytes);
    await this._runner.call(this._runner.request(credit));
  }

  /**
   * Acknowledge everything up to a position; only in modes `exclusive` and `failover`. With a pattern,
   * `topic` says which topic is meant.
   */
  async ackUpTo(
    seq: number,
    { topic, ...options }: SettleOptions & { topic?: string } = {},
  ): Promise<Settled | null> {
    const { _settler: settler, _seat: seat } = this;
    if (!(settler instanceof PatternSettler)) {
      return settler.ackUpTo(this.epoch, seq, options);
    }
    const named = topic ?? invalid('this consumer reads many topics; name one with `topic`');
    return settler.of(named).ackUpTo(seat.progressOf(named).epoch ?? '', seq, options);
  }

  /** Wait until the consumer ends; throws the error that ended it, unless it was closed. */
  closed(signal?: AbortSignal): Promise<void> {
    return this._queue.closed(signal);
  }

  /** Leave the subscription, which keeps its position. Can be called more than once. */
  async close(): Promise<void> {
    if (left(this._runner, this._seat)) {
      try {
        await this._leave();
      } catch (error) {
        const isGone = error instanceof Refused && GONE.includes(error.code);
        if (!isGone && !(error instanceof OutcomeUnknown) && !(error instanceof Unavailable)) {
          throw error;
        }
      }
    }
    this._queue.end();
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }

  /** Tell the hub; without a connection there is nothing to leave. */
  private async _leave(): Promise<void> {
    const { _runner: runner, _seat: seat } = this;
    if (runner.isReady) {
      await runner.call(leavingOf(runner, seat));
    } else if (runner.protocol.phase === 'restoring') {
      // It may just be joining again, so it leaves as soon as that is done.
      runner.post(leavingOf(runner, seat));
    }
  }
}

/** Join the subscription. */
export async function join<P>(
  runner: ClientRunner,
  seat: Seat,
  handler: Handler<P> | undefined,
  signal: AbortSignal | undefined,
): Promise<Consumer<P>> {
  const queue = runner.arrivals.openQueue(seat.key);
  const consumer = new Consumer<P>(runner, seat, runner.settlers.add(seat), queue);
  runner.protocol.membership.seated(seat);
  if (handler) {
    consumer.serve(handler);
  }
  try {
    const request = seat.request(runner.protocol.frames, runner.now().wallMs);
    await runner.call(request, { seat, signal });
  } catch (error) {
    left(runner, seat);
    // The hub may have granted it, or may still do so.
    if (runner.isReady && !(error instanceof Refused)) {
      runner.post(leavingOf(runner, seat));
    }
    queue.end();
    throw error;
  }
  return consumer;
}

/** Leave the subscription; `false` if it was already left. */
function left(runner: ClientRunner, seat: Seat): boolean {
  if (!runner.protocol.membership.left(seat)) {
    return false;
  }
  runner.settlers.remove(seat.key);
  runner.arrivals.endQueue(seat.key);
  return true;
}

const leavingOf = (runner: ClientRunner, { topic, subscription, address }: Seat): Request =>
  runner.request(leaving(topic, subscription), { sender: address });
