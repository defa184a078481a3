/**
 * Queues of received messages, read by the program or by a handler.
 *
 * A handler processes one message at a time, in order. A message that needs to be settled is settled
 * by how its handler ends: returning acknowledges it, `Reject` terminates it, any other error has it
 * redelivered, unless the handler has already settled it.
 */

import type { Message } from './message.js';
import type { Report } from './protocol/effects.js';
import { type Deferred, deferred, until } from './transport/platform.js';
import { ClientError, Reject, sentence } from './wire/errors.js';
import { readerOf } from './delivery.js';
import { invalid, topicMatches } from './wire/names.js';
import { Queue } from './wire/queues.js';

const REASON_CHARS_MAX = 500;
export const INBOX_MAX = 10_000;
/** A consumer with more unread messages gets no more credit until half of them are taken. */
const UNREAD_MAX = 1_000;

export type Handler<P = any> = (message: Message<P>) => unknown;

export interface ArrivalEvents {
  /** A consumer cannot take more for now, or can again. */
  steer(key: string, isPaused: boolean): void;
  report(event: Report): void;
}

/** Messages in order. */
export class MessageQueue {
  readonly waiting = new Queue<Message>();
  isEnded = false;
  failure: ClientError | undefined;
  isServing = false;
  isPaused = false;
  /** How many calls of `next` wait for a message. */
  askers = 0;
  private _news: Deferred<void> | null = null;
  private _ended = deferred<void>();

  constructor(
    private _report: (event: Report) => void,
    private _took: (queue: MessageQueue) => void = () => undefined,
  ) {}

  /** Wait until it has ended; throws what ended it. */
  closed(signal?: AbortSignal): Promise<void> {
    return until(this._ended.promise, signal);
  }

  put(message: Message): void {
    this.waiting.push(message);
    this._wake();
  }

  /** Wait for the next message; `undefined` after the last one. Throws the error that ended it. */
  async next(signal?: AbortSignal): Promise<Message | undefined> {
    for (;;) {
      const message = await this._first(signal);
      if (!message) {
        if (this.failure) {
          throw this.failure;
        }
        return undefined;
      }
      if (message.isOpen) {
        return message;
      }
    }
  }

  /** Give all messages to a handler from now on, so many at once. */
  serve(handler: Handler, atOnce = 1): void {
    this.isServing = true;
    for (let one = 0; one < atOnce; one++) {
      void this._serve(handler);
    }
  }

  /** Drop unsettled messages, which the hub will redeliver. */
  discard(): void {
    this.waiting.set([...this.waiting].filter((message) => !message.isSettleable));
    this.isPaused = false;
  }

  /** End the queue; then `next` throws `failure`, if given. */
  end(failure?: ClientError): void {
    if (!this.isEnded) {
      this.isEnded = true;
      this.failure = failure;
      failure ? this._ended.reject(failure) : this._ended.resolve();
      this._wake();
    }
  }

  private _wake(): void {
    this._news?.resolve();
    this._news = null;
  }

  private async _first(signal?: AbortSignal): Promise<Message | undefined> {
    signal?.throwIfAborted();
    while (!this.waiting.length) {
      if (this.isEnded) {
        return undefined;
      }
      this._news ??= deferred();
      this.askers++;
      try {
        await until(this._news.promise, signal);
      } finally {
        this.askers--;
      }
    }
    const message = this.waiting.shift();
    this._took(this);
    return message;
  }

  private async _serve(handler: Handler): Promise<void> {
    for (let message; (message = await this._first()); ) {
      if (message.isOpen) {
        await this._handle(handler, message);
      }
    }
  }

  private async _handle(handler: Handler, message: Message): Promise<void> {
    let settle = () => message.ack();
    try {
      await handler(message);
    } catch (error) {
      const { type } = message;
      const isRejection = error instanceof Reject;
      const name = error instanceof Error && !isRejection ? `${error.name}: ` : '';
      const reason = (name + sentence(error)).slice(0, REASON_CHARS_MAX);
      const said = isRejection ? 'A handler rejected a message' : 'A handler failed';
      this._report({ type: 'warning', sentence: said, messageType: type, error });
      settle = () => (isRejection ? message.term({ reason }) : message.nack({ reason }));
    }
    if (message.isSettleable && message.isOpen) {
      try {
        await settle();
      } catch (error) {
        // The hub redelivers it.
        if (!(error instanceof ClientError)) {
          throw error;
        }
      }
    }
  }
}

/**
 * The queues of one client.
 *
 * A WebSocket cannot stop reading. So consumers that are too slow get no more credit, mail that must
 * be settled is bounded by its window, and of all other messages beyond `limit` the oldest are
 * dropped.
 */
export class Arrivals {
  dropped = 0;
  private _byType = new Map<string, MessageQueue>();
  private _byKey = new Map<string, MessageQueue>();
  private _followed = new Map<object, { topic: string; queue: MessageQueue }>();
  private _unhandled: MessageQueue;

  constructor(
    readonly limit: number,
    private _events: ArrivalEvents,
  ) {
    this._unhandled = this._queue();
  }

  /** Queue a message that has arrived. */
  put(message: Message): void {
    const { delivery, topic, type } = message;
    if (delivery?.subscription != null) {
      // Without a reader, its subscription was just left.
      const [key, queue] = readerOf(this._byKey, topic ?? '', delivery.subscription) ?? [];
      queue?.put(message);
      if (queue && !queue.isPaused && queue.waiting.length > UNREAD_MAX) {
        queue.isPaused = true;
        this._events.steer(key!, true);
      }
      return;
    }
    const followed = topic === null ? undefined : this._following(topic);
    const queue = followed ?? this._byType.get(type) ?? this._unhandled;
    queue.put(message);
    this._overflow(queue);
  }

  /** Give messages of this type to a handler, those already queued first. */
  on(type: string, handler: Handler, atOnce = 1): void {
    if (this._byType.has(type)) {
      invalid(`${JSON.stringify(type)} already has a handler`);
    }
    const queue = this._queue();
    this._byType.set(type, queue);
    const { waiting } = this._unhandled;
    const others = [];
    for (const message of waiting) {
      message.type === type ? queue.put(message) : others.push(message);
    }
    waiting.set(others);
    queue.serve(handler, atOnce);
  }

  /** Give what comes through a topic, or a wildcard, to a handler. */
  follow(owner: object, topic: string, handler: Handler): void {
    const queue = this._queue();
    this._followed.set(owner, { topic, queue });
    queue.serve(handler);
  }

  unfollow(owner: object): void {
    this._followed.get(owner)?.queue.end();
    this._followed.delete(owner);
  }

  /** Create a separate queue for a durable subscription. */
  openQueue(key: string): MessageQueue {
    if (this._byKey.has(key)) {
      const [topic, subscription] = key.split('\0');
      invalid(`this client already consumes ${subscription} of topic ${topic}`);
    }
    const queue = new MessageQueue(this._events.report, () => {
      if (queue.isPaused && queue.waiting.length <= UNREAD_MAX / 2) {
        queue.isPaused = false;
        this._events.steer(key, false);
      }
    });
    this._byKey.set(key, queue);
    return queue;
  }

  /** End the queue of a durable subscription; the hub redelivers what is not settled. */
  endQueue(key: string, failure?: ClientError): void {
    const queue = this._byKey.get(key);
    this._byKey.delete(key);
    queue?.discard();
    queue?.end(failure);
  }

  /** Wait for the next message without a handler. */
  next(signal?: AbortSignal): Promise<Message | undefined> {
    return this._unhandled.next(signal);
  }

  /** Drop unsettled messages after the link is lost. */
  lost(): void {
    for (const queue of this._queues()) {
      queue.discard();
    }
  }

  /** End all queues; then `next` throws `failure`, if given. */
  end(failure?: ClientError): void {
    for (const queue of this._queues()) {
      queue.end(failure);
    }
  }

  private _queue(): MessageQueue {
    return new MessageQueue(this._events.report);
  }

  private _unkeyed(): MessageQueue[] {
    const followed = [...this._followed.values()].map((one) => one.queue);
    return [this._unhandled, ...this._byType.values(), ...followed];
  }

  private _queues(): MessageQueue[] {
    return [...this._unkeyed(), ...this._byKey.values()];
  }

  /** The handler of a topic, the first one that matches. */
  private _following(topic: string): MessageQueue | undefined {
    for (const { topic: wanted, queue } of this._followed.values()) {
      if (topicMatches(wanted, topic)) {
        return queue;
      }
    }
    return undefined;
  }

  private _overflow(queue: MessageQueue): void {
    if (this._unkeyed().reduce((sum, one) => sum + one.waiting.length, 0) < this.limit) {
      return;
    }
    const { waiting } = this._unhandled.waiting.length ? this._unhandled : queue;
    const messages = waiting.first?.isSettleable ? [...waiting] : [];
    const oldest = messages.findIndex((message) => !message.isSettleable);
    if (oldest >= 0) {
      messages.splice(oldest, 1);
      waiting.set(messages);
    }
    // Almost always it is the first: then nothing has to be copied.
    if (oldest >= 0 || (!messages.length && waiting.shift())) {
      if (!this.dropped++) {
        const said =
          'Messages are dropped, because the program reads them too slowly or not at all';
        this._events.report({ type: 'warning', sentence: said, limit: this.limit });
      }
    }
  }
}
