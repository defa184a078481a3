/** The public API of the client. */

import type {
  BroadcastResult,
  Found,
  Published,
  Receipt,
  RefreshedToken,
  Registration,
} from './answers.js';
import { type Handler, INBOX_MAX } from './arrivals.js';
import { type Calling, Calls } from './replies/calls.js';
import { type Consumer, HubEvent, iterate, join } from './consumers.js';
import { Management, type Waiting } from './management.js';
import type { Message } from './message.js';
import type { Instant, Report } from './protocol/effects.js';
import { FrameWriter, type Payload, type RequestOptions } from './protocol/frame.js';
import { Protocol } from './protocol/protocol.js';
import { Membership, Seat } from './protocol/restore.js';
import { Replay } from './replay.js';
import * as requests from './requests.js';
import type { Publishing, Registering } from './requests.js';
import {
  type Answering,
  type ManyOptions,
  Requester,
  type RequestingOptions,
} from './replies/requester.js';
import type { InboxAccess } from './rooms/inbox.js';
import { Hub, type Joining, type Room } from './rooms/room.js';
import * as streams from './stream_requests.js';
import type { Mode, Serving } from './stream_requests.js';
import { type Link, openLink } from './transport/link.js';
import { followPage } from './transport/page.js';
import {
  type Injected,
  type Platform,
  type Token,
  currentToken,
  inform,
  platformOf,
  until,
} from './transport/platform.js';
import { Lifeline } from './transport/reconnect.js';
import { ClientRunner } from './transport/runner.js';
import { hex, randomBytes } from './wire/bytes.js';
import { type ClientError, GaveUp, Unavailable, sentence } from './wire/errors.js';
import {
  type Position,
  checkedName,
  checkedPattern,
  checkedUrl,
  invalid,
  pathOf,
} from './wire/names.js';
import type { Reconnecting } from './wire/pacing.js';

/** What payloads have, by the type of their messages. */
export type Payloads = Record<string, any>;

export interface ConnectOptions extends Registering, Injected {
  /**
   * `false` only sends as the address: its owner keeps it, and this client cannot be found or
   * addressed by it.
   */
  register?: boolean;
  /**
   * Whether the program settles messages from mailboxes: with `ack`, `nack` and `term`, or by how the
   * handler of `on` ends. Otherwise the hub settles them as soon as they are written to the socket.
   */
  acknowledge?: boolean;
  /** For hubs that require one; a function is called for every connection. */
  token?: Token;
  /** How to reconnect after a lost connection; `null` does not. */
  reconnect?: Reconnecting;
  /** How many received messages may be queued before the oldest are dropped. */
  inboxMax?: number;
  /** Called with each event of the connection; the client dispatches them as well. */
  listener?: (event: Report) => void;
  /** Stop trying to connect. */
  signal?: AbortSignal;
}

export interface TellOptions extends Waiting {
  /** The recipient does not get it after this time has passed. */
  ttlMs?: number;
  metadata?: Record<string, unknown>;
  sender?: string;
}

export interface AskOptions extends TellOptions {
  /**
   * An id chosen by you. Sent again with it, even by another run of the program, the message gets the
   * same receipt and is not stored twice.
   */
  messageId?: string;
  /** Durable actors and their expected tokens; the hub refuses the message if one differs. */
  fences?: Record<string, number>;
  /** How long each attempt waits for the receipt; 30 000 by default. */
  timeoutMs?: number;
  /** How often to try; the pause between attempts grows by a second each time. */
  attempts?: number;
}

export interface PublishOptions extends Omit<AskOptions, 'fences' | 'metadata'>, Publishing {}

export interface ConsumeOptions<P = any> extends Serving, Waiting {
  /**
   * Who gets a message: the only consumer (`exclusive`), the first one while others stand by
   * (`failover`), all in turn (`shared`), or the one for its key (`key-shared`).
   */
  mode?: Mode;
  /** Where a new subscription starts. */
  start?: Position;
  /** Returning acknowledges a message, `Reject` terminates it, any other error has it redelivered. */
  handler?: Handler<P>;
  /** Our name in the subscription; a consumer that joins under the same name takes over. */
  consumer?: string;
  sender?: string;
}

/**
 * Connect to a hub and register `address` there, unless `register` is `false`.
 *
 * Wrong arguments throw a `TypeError` at once; `Unavailable` means that the hub cannot be reached,
 * `Refused` that it refused this client.
 */
export async function connect<M extends Payloads = Payloads>(
  url: string,
  address: string,
  options: ConnectOptions = {},
): Promise<Client<M>> {
  const { register = true, acknowledge, inboxMax = INBOX_MAX, signal } = options;
  const { capabilities, metadata, leaseMs, durable } = options;
  checkedUrl(url);
  const platform = platformOf(options);
  const frames = new FrameWriter(address, platform.newId, platform.json);
  const membership = new Membership(acknowledge);
  const registration: Registering = {
    capabilities: [...(capabilities ?? [])],
    ...(metadata && { metadata }),
    ...(leaseMs !== undefined && { leaseMs }),
    ...(durable !== undefined && { durable }),
  };
  if (register) {
    frames.request(
      requests.registering(address, { ...registration, capabilities: capabilities ?? [] }),
      0,
    );
    membership.registered(address, registration, false);
  } else if (Object.keys(registration).length > 1 || [...(capabilities ?? [])].length) {
    invalid('capabilities, metadata, a lease and a mailbox are for addresses that are registered');
  }
  const client = new Client<M>(address, {
    url,
    platform,
    inboxMax,
    options,
    protocol: new Protocol(frames, membership, platform.now(), platform.json),
  });
  await client._start(signal);
  return client;
}

/** @internal */
export interface Parts {
  url: string;
  platform: Platform;
  protocol: Protocol;
  inboxMax: number;
  options: ConnectOptions;
}

/**
 * One actor's connection to a hub, which reconnects automatically.
 *
 * Every method can be called while the connection is down: it waits for the next one. Errors:
 * `Refused` and `UnknownActor` mean that the hub refused; `Unavailable` and `GaveUp` that the request
 * did not happen; `OutcomeUnknown` that it may have happened.
 *
 * Events: `state` (`state`, `nextAttemptAt`, `reason`, `error`), `connected`, `lost`,
 * `reconnectfailed`, `refused`, `heldup`, `ended` (a consumer) and `warning`.
 */
export class Client<M extends Payloads = Payloads> extends Management {
  /** @internal */
  readonly _runner: ClientRunner;
  private _url: string;
  private _platform: Platform;
  private _options: ConnectOptions;
  private _lifeline: Lifeline;
  private _hub: Hub | null = null;
  private _requester: Requester;
  private _calls: Calls | null = null;
  private _unfollow: () => void = () => undefined;

  /** @internal */
  constructor(
    readonly address: string,
    { url, platform, protocol, inboxMax, options }: Parts,
  ) {
    super();
    this._url = url;
    this._platform = platform;
    this._options = options;
    const report = (event: Report) => this._report(event);
    this._runner = new ClientRunner(protocol, platform, inboxMax, {
      report,
      ready: () => this._lifeline.becameReady(),
      stopped: (error) => this._lifeline.stop(error),
    });
    this._requester = new Requester(this._runner, address);
    this._lifeline = new Lifeline(
      {
        url,
        open: () => this._open(),
        lost: (_, reason) => this._runner.lost(reason),
        giveUp: (error) => this._runner.giveUp(error),
        report,
      },
      platform,
      options.reconnect,
    );
  }

  /** Whether it is connected, registered and subscribed right now. */
  get isConnected(): boolean {
    return this._runner.isReady;
  }

  /** `connecting`, `connected`, `waiting` or `stopped`. */
  get state(): string {
    return this._lifeline.state;
  }

  /** The hub's name for the current connection; empty without one. */
  get sessionId(): string {
    return this._protocol.sessionId;
  }

  /** Durability of the hub's receipts: `fsync`, `interval` or `os`; `null` without a log. */
  get durability(): string | null {
    return this._protocol.welcome.durability;
  }

  /** How many messages were dropped because the program read them too slowly or not at all. */
  get dropped(): number {
    return this._runner.arrivals.dropped;
  }

  /** How many replies came too late and were dropped. */
  get lateReplies(): number {
    return this._requester.lateReplies;
  }

  /** Try to reconnect now, without waiting. */
  reconnectNow(): void {
    this._lifeline.hurry();
  }

  /** Leave the hub and all rooms joined through this client. Can be called more than once. */
  async close(): Promise<void> {
    this._unfollow();
    try {
      await this._hub?.close();
    } finally {
      const { _runner: runner, _lifeline: lifeline } = this;
      runner.leave();
      const cancel = this._platform.after(2_000, () =>
        runner.giveUp(new Unavailable('the client was closed')),
      );
      await lifeline.stopped;
      cancel();
      await lifeline.finished();
      runner.end();
    }
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }

  /** Wait until the client ends; throws `GaveUp` unless it was closed. */
  async closed(signal?: AbortSignal): Promise<void> {
    const error = await until(this._lifeline.stopped, signal);
    if (error instanceof GaveUp) {
      throw new GaveUp(error.message);
    }
  }

  /**
   * Send a message, at most once; return once it is written to the connection.
   *
   * It waits while there is no connection, the hub asks for a pause, or the hub has not read enough of
   * what was sent before: for 60 s at most.
   */
  async tell<K extends keyof M & string>(
    to: string,
    type: K,
    payload?: M[K],
    options: TellOptions = {},
  ): Promise<void> {
    await this._answer(requests.telling(to, type, payload), options);
  }

  /** Send a message and wait for the hub's receipt: at least once, repeated with the same id. */
  ask<K extends keyof M & string>(
    to: string,
    type: K,
    payload?: M[K],
    options: AskOptions = {},
  ): Promise<Receipt> {
    const { fences, ...others } = options;
    return this._answer(requests.asking(to, type, payload, fences), { attempts: 3, ...others });
  }

  /**
   * Send a message to all subscribers of a topic.
   *
   * A durable topic stores it, and the answer comes once it is stored. With `durable`, the client
   * repeats the message with the same id until it is answered, and the hub creates the topic if it
   * does not exist and may be created.
   */
  publish<K extends keyof M & string>(
    topic: string,
    type: K,
    payload?: M[K],
    options: PublishOptions = {},
  ): Promise<Published> {
    const { durable, key, headers, deliverAt, ...others } = options;
    const publishing = {
      ...(durable && { durable }),
      ...(key != null && { key }),
      ...(headers && { headers }),
      ...(deliverAt != null && { deliverAt }),
    };
    return this._answer(requests.publishing(topic, type, payload, publishing), {
      attempts: 3,
      ...others,
    });
  }

  /** Send a message to every registered actor, or to those with a capability. */
  broadcast<K extends keyof M & string>(
    type: K,
    payload?: M[K],
    options: Waiting & { capability?: string; excludeSelf?: boolean; sender?: string } = {},
  ): Promise<BroadcastResult> {
    const { capability, excludeSelf = false, ...others } = options;
    const metadata = capability === undefined ? undefined : { targetCapability: capability };
    return this._answer(requests.broadcasting(type, payload, excludeSelf), { metadata, ...others });
  }

  /** Send a request and wait for the reply of its recipient; throws `RequestFailed` if that fails. */
  request<R = any>(
    to: string,
    type: string,
    payload?: unknown,
    options?: RequestingOptions,
  ): Promise<Message<R>> {
    return this._requester.request(to, type, payload, options);
  }

  /** Send a request to many: the subscribers of a topic, or everybody with a capability. */
  requestMany<R = any>(
    type: string,
    payload: unknown,
    options: ManyOptions,
  ): AsyncIterable<Message<R>> & { next(): Promise<Message<R> | undefined> } {
    return this._requester.requestMany(type, payload, options);
  }

  /** Answer requests of this type: what the function returns is the reply, what it throws a failure. */
  answer(type: string, handler: Handler, options?: Answering): void {
    this._requester.answer(type, handler, options);
  }

  /** Call a method of a durable actor and wait for what it returns; throws `CallError`. */
  call<R = any>(
    actor: string,
    method: string,
    args: unknown[] = [],
    options: Calling = {},
  ): Promise<R> {
    this._calls ??= new Calls(this, this._platform);
    return this._calls.call(actor, method, args, options) as Promise<R>;
  }

  /** Iterate over the messages that no handler takes. Concurrent loops share them. */
  messages(): AsyncIterable<Message> & {
    next(signal?: AbortSignal): Promise<Message | undefined>;
  } {
    const next = (signal?: AbortSignal) => this._runner.arrivals.next(signal);
    return { next, [Symbol.asyncIterator]: () => iterate(() => next()) };
  }

  /**
   * Give messages of this exact type to a function, plain or async. It is called with one message at
   * a time, in order. If the message must be settled, returning acknowledges it, `Reject` terminates
   * it, any other error has it redelivered.
   */
  on<K extends keyof M & string>(type: K, handler: (message: Message<M[K]>) => unknown): this {
    this._runner.arrivals.on(type, handler);
    return this;
  }

  /**
   * Receive what is published to a topic; `+` matches one level, a final `#` the rest.
   *
   * The subscription is restored after reconnecting; what is published meanwhile is missed. With a
   * handler, the messages go to it; otherwise to `on` and `messages` by their type.
   */
  async subscribe(
    topic: string,
    handler?: Handler | (Waiting & { sender?: string }),
    options: Waiting & { sender?: string } = {},
  ): Promise<Subscription> {
    const [given, others] =
      typeof handler === 'function' ? [handler, options] : [undefined, handler ?? options];
    const sender = others.sender ?? this.address;
    const subscription = new Subscription(this, topic, sender);
    if (given) {
      subscription._serve(given);
    }
    try {
      await this._answer(requests.subscribing(topic), { ...others, sender }, () =>
        this._protocol.membership.subscribed(sender, topic),
      );
    } catch (error) {
      subscription._unserve();
      throw error;
    }
    return subscription;
  }

  /** Stop receiving a topic; does nothing if it was not subscribed to. */
  async unsubscribe(topic: string, options: Waiting & { sender?: string } = {}): Promise<void> {
    const sender = options.sender ?? this.address;
    const payload = requests.unsubscribing(topic);
    this._protocol.membership.unsubscribed(sender, topic);
    if (this._protocol.phase !== 'down') {
      await this._answer(payload, { ...options, sender });
    }
  }

  /** Register another address, or update one of ours. */
  register(address: string, options: Registering & Waiting = {}): Promise<Registration> {
    const { signal, ...given } = options;
    const payload = requests.registering(address, given);
    return this._answer(payload, { sender: address, signal }, () =>
      this._protocol.membership.registered(address, {
        ...given,
        capabilities: [...(given.capabilities ?? [])],
      }),
    );
  }

  /** Unregister an address, which also ends its subscriptions. */
  async unregister(address: string, { signal }: Waiting = {}): Promise<void> {
    const payload = requests.unregistering(address);
    this._protocol.membership.unregistered(address);
    if (this._protocol.phase !== 'down') {
      await this._answer(payload, { sender: address, signal });
    }
  }

  /**
   * Find actors by address, such as `demo/*`: at most 100; `hasMore` says if there are more. With
   * `includeAway`, actors that have a mailbox but are not connected follow.
   */
  discover(
    pattern = '*',
    options: Waiting & { capability?: string; limit?: number; includeAway?: boolean } = {},
  ): Promise<Found> {
    const { capability, limit = 50, includeAway, ...others } = options;
    return this._answer(requests.discovering(pattern, limit, capability, includeAway), others);
  }

  /** Measure the round trip to the hub in milliseconds. */
  async ping({ signal }: Waiting = {}): Promise<number> {
    const started = this._now();
    await this._answer(requests.beat(started.wallMs), { signal });
    return this._now().monoMs - started.monoMs;
  }

  /**
   * Exchange a valid token for one that expires later, without reconnecting. Without an argument, the
   * current token is exchanged. The new one is used from now on, unless tokens come from a function.
   */
  async refreshToken(token?: string, { signal }: Waiting = {}): Promise<RefreshedToken> {
    const { token: given } = this._options;
    const current = typeof given === 'string' ? given : undefined;
    const exchanged = token ?? current ?? this._protocol.welcome.sessionToken;
    const refreshed = await this._answer(
      requests.refreshingToken(exchanged || invalid('there is no token to exchange; pass one')),
      { signal },
    );
    if (current !== undefined) {
      this._options = { ...this._options, token: refreshed.token };
    }
    return refreshed;
  }

  /**
   * Read a durable subscription, which is created if it does not exist. A topic with a wildcard is a
   * pattern: `orders/#` reads all durable topics that match, also those made later; `message.topic`
   * says which. Order holds within each of them.
   */
  async consume<P = any>(
    topic: string,
    subscription: string,
    options: ConsumeOptions<P> = {},
  ): Promise<Consumer<P>> {
    const {
      mode = 'exclusive',
      start = 'earliest',
      handler,
      consumer,
      sender,
      signal,
      ...serving
    } = options;
    checkedPattern(topic);
    checkedName(subscription, 'the name of a subscription');
    const address = sender ?? this.address;
    // A generated name lets this consumer take over from its own broken connection.
    const name = consumer ?? `${pathOf(address)}-${hex(randomBytes(4))}`;
    const terms = streams.terms(mode, start, name, serving);
    return join<P>(this._runner, new Seat(topic, subscription, terms, address), handler, signal);
  }

  /** Read a range of a durable topic once, without a subscription; both ends included. */
  replay<P = any>(
    topic: string,
    fromSeq = 1,
    toSeq?: number,
    { limit }: { limit?: number } = {},
  ): Replay<P> {
    return new Replay<P>(this._runner, topic, fromSeq, toSeq, limit);
  }

  /** Join a room of the same hub, over a separate socket. */
  room(room: string, options?: Joining): Promise<Room> {
    return this._rooms().room(room, options);
  }

  /** An inbox of the same hub. */
  inbox(inboxId: string): InboxAccess {
    return this._rooms().inbox(inboxId);
  }

  /** @internal The token for the next connection. */
  async _token(): Promise<string | null> {
    try {
      return await currentToken(this._options.token);
    } catch (error) {
      // The token function belongs to the caller and may throw anything.
      throw new Unavailable(`no token: ${sentence(error)}`);
    }
  }

  /** @internal */
  async _start(signal?: AbortSignal): Promise<void> {
    try {
      await until(this._lifeline.start(), signal);
    } catch (error) {
      this._runner.giveUp(new Unavailable('the client was closed'));
      this._runner.end();
      throw error;
    }
    this._unfollow = followPage({
      woke: () => {
        this._runner.checkLink();
        this._lifeline.hurry();
      },
      left: () => {
        this._lifeline.suspend();
        this._runner.dropLink('the page is hidden');
      },
    });
  }

  /** @internal */
  async _answer<A>(
    payload: Payload<A>,
    options: RequestOptions & { signal?: AbortSignal | undefined } = {},
    then?: () => void,
  ): Promise<A> {
    const { signal, ...others } = options;
    const request = this._runner.request(payload, others);
    const answered = await this._runner.call(request, { signal, then });
    return payload.read(answered.payload, answered.attempts);
  }

  private get _protocol(): Protocol {
    return this._runner.protocol;
  }

  private _now(): Instant {
    return this._platform.now();
  }

  private _rooms(): Hub {
    const { token, reconnect } = this._options;
    this._hub ??= new Hub(this._url, this._platform, {
      token: token ? () => currentToken(this._options.token) : null,
      reconnect,
      listener: (event) => this._options.listener?.(event),
    });
    return this._hub;
  }

  private async _open(): Promise<Link> {
    const token = await this._token();
    const { _runner: runner } = this;
    return openLink(
      this._platform,
      this._url,
      [],
      {
        received: (frame) => runner.received(frame),
        congested: (isCongested) => runner.congested(isCongested),
      },
      (link) => (this._lifeline.end ? link.abort('no longer needed') : runner.opened(link, token)),
    );
  }

  private _report(event: Report): void {
    inform(this._platform, this._options.listener, event);
    this.dispatchEvent(new HubEvent(event.type, event));
  }
}

/** A plain subscription, as returned by `subscribe`. */
export class Subscription {
  /** @internal */
  _serve(handler: Handler): void {
    this._client._runner.arrivals.follow(this, this.topic, handler);
  }

  /** @internal */
  _unserve(): void {
    this._client._runner.arrivals.unfollow(this);
  }

  /** @internal */
  constructor(
    private _client: Client<any>,
    readonly topic: string,
    private _address: string,
  ) {}

  /** Stop receiving the topic. Can be called more than once. */
  async cancel(): Promise<void> {
    this._unserve();
    await this._client.unsubscribe(this.topic, { sender: this._address });
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.cancel();
  }
}

export type { ClientError };
