/**
 * Requests between actors, and their replies.
 *
 * The hub does not report that a recipient has left after a request was handed over. So one without a
 * mailbox is looked for at growing intervals, once for all requests it was given. Not finding it means
 * that it has left, unless there may be other reasons: our own link was new, so the recipient may be
 * reconnecting as well, or our token may not see it. Then it must be found once before.
 */

import type { BroadcastResult, Found, Published, Receipt } from '../answers.js';
import type { Handler } from '../arrivals.js';
import { iterate } from '../consumers.js';
import type { Message, Replying } from '../message.js';
import type { Payload } from '../protocol/frame.js';
import { Exchange, Exchanges } from '../protocol/exchanges.js';
import { REQUEST_PREFIX } from '../protocol/incoming.js';
import { Replies } from '../protocol/replies.js';
import { asking, broadcasting, discovering, publishing, telling } from '../requests.js';
import { type Deferred, deferred, until } from '../transport/platform.js';
import type { ClientRunner } from '../transport/runner.js';
import {
  ClientError,
  NoReply,
  Refused,
  Reject,
  RequestFailed,
  Unavailable,
  sentence,
} from '../wire/errors.js';
import { checkedType, invalid } from '../wire/names.js';
import { Queue } from '../wire/queues.js';

const REQUEST_MS = 30_000;
const REPLY_SUFFIX = '.reply';
const REASON_CHARS_MAX = 500;
const REPLIES_MAX = 10_000;
const ANSWERED_AT_ONCE = 16;
const FIRST_LOOK_MS = 250;
const LOOK_PAUSE_MAX_MS = 2_000;

export interface RequestingOptions {
  /** How long to wait, after which the request expires as well; 30 000 by default. */
  timeoutMs?: number;
  metadata?: Record<string, unknown>;
  /** Another registered address of this client, which gets the reply. */
  sender?: string;
  /** An id chosen by you. Sent again with it, the request is not executed twice. */
  messageId?: string;
  signal?: AbortSignal;
}

/** A request goes to the subscribers of a topic, to all with a capability, or to every actor. */
export interface ManyOptions extends Omit<RequestingOptions, 'messageId' | 'metadata'> {
  topic?: string;
  capability?: string;
  /** End after so many replies. */
  max?: number;
}

export interface Answering {
  /** How many requests may be in progress, 16 by default; 1 answers them in order. */
  atOnce?: number;
}

/** A recipient that is looked for, and the exchanges that wait for it. */
interface Watch {
  pauseMs: number;
  wasFound: boolean;
  waiting: Set<Exchange>;
}

/** Sends requests and answers those of others. */
export class Requester implements Replying {
  private _exchanges = new Exchanges();
  private _replies = new Replies();
  private _watches = new Map<string, Watch>();

  constructor(
    private _runner: ClientRunner,
    private _address: string,
  ) {
    _runner.replying = this;
  }

  get lateReplies(): number {
    return this._exchanges.lateReplies;
  }

  async request(
    to: string,
    type: string,
    payload?: unknown,
    options: RequestingOptions = {},
  ): Promise<Message> {
    checkedType(type + REPLY_SUFFIX);
    let reply: Message | undefined;
    await this._exchange(asking(to, type, payload), to, 1, {}, options, (message) => {
      reply = message;
    });
    const failure = reply!.failure;
    if (failure) {
      throw new RequestFailed(failure.code, failure.text);
    }
    return reply!;
  }

  requestMany(
    type: string,
    payload: unknown,
    { topic, capability, max = REPLIES_MAX, ...options }: ManyOptions = {},
  ) {
    checkedType(type + REPLY_SUFFIX);
    if (topic !== undefined && capability !== undefined) {
      invalid('a request goes to a topic or to a capability, not to both');
    }
    if (!(max >= 1)) {
      invalid('max must be at least 1');
    }
    const messageId = REQUEST_PREFIX + this._runner.protocol.frames.newId();
    const many: Payload<Published | BroadcastResult> =
      topic === undefined
        ? broadcasting(type, payload, true)
        : publishing(topic, type, payload, { headers: { expectsReply: messageId } });
    const metadata = capability === undefined ? {} : { targetCapability: capability };
    const replies = new Queue<Message>();
    let news: Deferred<void> = deferred();
    let isOver = false;
    const over = this._exchange(many, '', max, metadata, { ...options, messageId }, (message) => {
      replies.push(message);
      news.resolve();
    }).finally(() => {
      isOver = true;
      news.resolve();
    });
    over.catch(() => undefined);
    const next = async (): Promise<Message | undefined> => {
      while (!replies.length) {
        if (isOver) {
          await over;
          return undefined;
        }
        news = deferred();
        await news.promise;
      }
      return replies.shift();
    };
    return { next, [Symbol.asyncIterator]: () => iterate(next) };
  }

  /** Let a function answer requests of this type. */
  answer(type: string, handler: Handler, { atOnce = ANSWERED_AT_ONCE }: Answering = {}): void {
    if (!(atOnce >= 1)) {
      invalid('atOnce must be at least 1');
    }
    const serve = async (message: Message): Promise<void> => {
      if (!message.expectsReply) {
        await handler(message);
      } else if (this._replies.isWaiting(message, this._nowMs)) {
        await this._answerWith(handler, message);
      }
    };
    this._runner.arrivals.on(type, serve, atOnce);
  }

  /** Send the one reply to a request. */
  async reply(
    message: Message,
    payload: unknown,
    failure?: { code: string; text: string },
  ): Promise<void> {
    const { _runner: runner, _replies: replies } = this;
    const { sender, type, to, delivery, requestId } = message;
    if (replies.isAnswered(message)) {
      invalid(`${type} from ${sender} was answered before`);
    }
    const metadata: Record<string, unknown> = { inReplyTo: requestId };
    if (failure) {
      metadata.failure = { code: failure.code, text: failure.text.slice(0, REASON_CHARS_MAX) };
    }
    const isStored = delivery?.stream != null && message.metadata.mailbox === true;
    const content = (isStored ? asking : telling)(sender, type + REPLY_SUFFIX, payload);
    const request = runner.request(content, { sender: to, metadata });
    replies.answered(message, request);
    try {
      await runner.call(request);
    } catch (error) {
      replies.reopen(message);
      throw error;
    }
  }

  /** A message has arrived: whether the program gets it, `dismissed` if it is done with. */
  arrived(message: Message): 'handed out' | 'dismissed' | 'ignored' {
    if (this._exchanges.arrived(message)) {
      return 'dismissed';
    }
    if (message.requestId === null) {
      return 'handed out';
    }
    message._replies = this;
    const arrival = this._replies.arrived(message, this._nowMs);
    if (arrival === 'new' || (arrival === 'open' && this._isSettledByProgram(message))) {
      return 'handed out';
    }
    const reply = this._replies.replyTo(message);
    if (reply && !this._runner.protocol.isPending(reply.id) && !this._runner.isOver) {
      try {
        this._runner.post(reply);
      } catch (error) {
        if (!(error instanceof ClientError)) {
          throw error;
        }
      }
    }
    return arrival === 'open' ? 'ignored' : 'dismissed';
  }

  /** The client ends: so do all exchanges that were handed over; the others fail by themselves. */
  stopped(reason: ClientError): void {
    for (const exchange of this._exchanges.all()) {
      if (exchange.isHandedOver) {
        const text = `${exchange.subject}: ${reason.message} before the reply`;
        this._exchanges.end(exchange, new NoReply(text));
      }
    }
  }

  /** The link is lost: perhaps the hub was restarted, and recipients reconnect as well. */
  lost(): void {
    for (const watch of this._watches.values()) {
      watch.wasFound = false;
    }
  }

  private get _nowMs(): number {
    return this._runner.now().monoMs;
  }

  private _isSettledByProgram({ topic, delivery }: Message): boolean {
    const { membership } = this._runner.protocol;
    if (!delivery || delivery.subscription === null) {
      return !!delivery && membership.acknowledges;
    }
    const seat = membership.seatOf(topic ?? '', delivery.subscription);
    return !!seat && !seat.isAutoAcked;
  }

  private async _answerWith(handler: Handler, message: Message): Promise<void> {
    let result: unknown;
    let failure: { code: string; text: string } | undefined;
    try {
      result = await handler(message);
    } catch (error) {
      const { type } = message;
      const isMeant = error instanceof RequestFailed || error instanceof Reject;
      const code = isMeant ? (error as Reject).code : 'failed';
      const name = error instanceof Error && !isMeant ? `${error.name}: ` : '';
      failure = { code, text: name + sentence(error) };
      this._runner.report({
        type: 'warning',
        sentence: 'A handler failed',
        messageType: type,
        error,
      });
    }
    if (this._replies.isAnswered(message)) {
      // The handler has done so itself.
      return;
    }
    try {
      await this.reply(message, result, failure);
    } catch (error) {
      const isTooLarge = error instanceof Refused && error.code === 'message_too_large';
      if (error instanceof TypeError || isTooLarge) {
        await this.reply(message, null, { code: 'invalid_reply', text: error.message });
      } else if (!(error instanceof Refused)) {
        throw error;
      }
      // Otherwise whoever has asked has left: the request is done nevertheless.
    }
  }

  /** Send a request, and wait until its exchange has ended. */
  private async _exchange(
    payload: Payload<any>,
    to: string,
    repliesMax: number,
    given: Record<string, unknown>,
    { timeoutMs = REQUEST_MS, metadata, sender, messageId, signal }: RequestingOptions,
    replied: (message: Message) => void,
  ): Promise<void> {
    const { _runner: runner, _exchanges: exchanges } = this;
    const { membership } = runner.protocol;
    const address = sender ?? this._address;
    if (!membership.isRegistered(address)) {
      invalid(
        `${address} is not registered by this client, so it gets no replies: connect without register: false, or register the address`,
      );
    }
    const asked: Record<string, unknown> = { ...metadata, ...given, expectsReply: true };
    if (membership.hasMailbox(address)) {
      asked.mailbox = true;
    }
    const request = runner.request(payload, {
      sender,
      messageId,
      metadata: asked,
      ttlMs: timeoutMs,
      timeoutMs,
    });
    signal?.throwIfAborted();
    const over = deferred<void>();
    const exchange = new Exchange(request, to, repliesMax, {
      replied,
      ended: (error) => (error ? over.reject(error) : over.resolve()),
    });
    const sending = new AbortController();
    exchanges.open(exchange);
    const cancel = runner.platform.after(timeoutMs, () => {
      if (exchange.isHandedOver) {
        const text = `${request.subject}: no reply within ${timeoutMs / 1000} s`;
        exchanges.end(exchange, to ? new NoReply(text) : undefined);
      }
    });
    const ask = runner.call(request, { signal: sending.signal, isRequest: true });
    ask
      .then(({ payload: facts }) => this._handedOver(exchange, facts))
      .catch((error) => {
        // Unless a reply says that it has not failed.
        exchanges.end(exchange, exchange.hasReplies ? undefined : error);
      });
    try {
      await until(over.promise, signal);
    } finally {
      cancel();
      exchanges.end(exchange);
      sending.abort();
      this._watches.get(to)?.waiting.delete(exchange);
    }
  }

  /** The hub has accepted the request. */
  private _handedOver(exchange: Exchange, payload: unknown): void {
    const facts = (payload ?? {}) as Partial<Receipt> & Record<string, unknown>;
    exchange.isHandedOver = true;
    if (exchange.isEnded || facts.seq != null) {
      // One with a mailbox gets the request again, whoever is connected now.
      return;
    }
    if (exchange.to) {
      if (!exchange.to.includes('*')) {
        this._watch(exchange);
      }
      return;
    }
    exchange.expected = ['subscriberCount', 'deliveredCount', 'queuedCount']
      .map((name) => facts[name])
      .filter((count) => typeof count === 'number')
      .reduce((sum, count) => sum + count, 0);
    if (exchange.isComplete) {
      this._exchanges.end(exchange);
    }
  }

  private _watch(exchange: Exchange): void {
    const { to } = exchange;
    let watch = this._watches.get(to);
    if (!watch) {
      // Without authentication every actor can be seen.
      const wasFound = this._runner.protocol.welcome.sessionToken !== null;
      watch = { pauseMs: FIRST_LOOK_MS, wasFound, waiting: new Set() };
      this._watches.set(to, watch);
      void this._lookFor(to, watch);
    }
    watch.waiting.add(exchange);
  }

  private async _lookFor(to: string, watch: Watch): Promise<void> {
    const { _runner: runner } = this;
    try {
      for (;;) {
        await new Promise<void>((resolve) => runner.platform.after(watch.pauseMs, resolve));
        if (!watch.waiting.size || runner.isOver) {
          return;
        }
        watch.pauseMs = Math.min(2 * watch.pauseMs, LOOK_PAUSE_MAX_MS);
        if (!runner.isReady) {
          continue;
        }
        const waited = [...watch.waiting];
        const { wasFound } = watch;
        const look = discovering(to, 1);
        const answered = await runner.call(runner.request(look));
        const found: Found = look.read(answered.payload, 1);
        if (found.actors.some(({ address }) => address === to)) {
          watch.wasFound = true;
        } else if (wasFound && watch.wasFound) {
          for (const exchange of waited) {
            const text = `${exchange.subject}: ${to} has left without a reply`;
            this._exchanges.end(exchange, new NoReply(text, 'recipient_left'));
          }
        }
      }
    } catch (error) {
      // Whoever may not look waits until the time is over.
      if (!(error instanceof Refused || error instanceof Unavailable)) {
        watch.wasFound = false;
      }
    } finally {
      if (this._watches.get(to) === watch) {
        this._watches.delete(to);
      }
    }
  }
}
