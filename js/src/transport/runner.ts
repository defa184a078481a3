/** Runs the protocol over real links: performs its effects, and calls `tick`. */

import { Arrivals } from '../arrivals.js';
import type { Requester } from '../replies/requester.js';
import type { Answered, Effect, Instant, Report } from '../protocol/effects.js';
import type { Payload, Request, RequestOptions } from '../protocol/frame.js';
import type { Submission } from '../protocol/pending.js';
import type { Protocol } from '../protocol/protocol.js';
import { keyOf } from '../protocol/restore.js';
import { Settlers } from '../settle.js';
import { crediting } from '../stream_requests.js';
import { type ClientError, GaveUp, Unavailable } from '../wire/errors.js';
import type { Link } from './link.js';
import { type Deferred, type Platform, deferred, until } from './platform.js';

/** The hub's default: what a consumer gets that has not asked for a window. */
const WINDOW = 256;
/** A timer that is later than this has slept. */
const SLEPT_MS = 2_000;
const AFTER_SLEEP_MS = 1_000;

/** What a runner tells its client. */
export interface RunnerEvents {
  report(event: Report): void;
  ready(): void;
  stopped(error: ClientError): void;
}

/** Ticks in time. Ticking too early is harmless, so it is only replaced by an earlier one. */
export class Timer {
  private _cancel: (() => void) | null = null;
  private _atMs = 0;

  constructor(
    private _platform: Platform,
    private _tick: () => void,
    private _slept: () => void = _tick,
  ) {}

  /** Tick at this time at the latest; `Infinity` does nothing. */
  set(atMs: number): void {
    if (atMs === Infinity || (this._cancel && this._atMs <= atMs)) {
      return;
    }
    this.cancel();
    this._atMs = atMs;
    this._cancel = this._platform.after(atMs - this._nowMs, () => {
      this._cancel = null;
      // No decision rests on a timer that was late: what came meanwhile is read first.
      if (this._nowMs - this._atMs > SLEPT_MS) {
        this._slept();
        this.set(this._nowMs + AFTER_SLEEP_MS);
      } else {
        this._tick();
      }
    });
  }

  cancel(): void {
    this._cancel?.();
    this._cancel = null;
  }

  private get _nowMs(): number {
    return this._platform.now().monoMs;
  }
}

/** The calls, timers and links of one client. */
export class ClientRunner {
  readonly arrivals: Arrivals;
  readonly settlers: Settlers;
  /** The last one of the replays, which are fetched one at a time. */
  replaying: Promise<unknown> = Promise.resolve();
  replying: Requester | null = null;
  private _calls = new Map<string, Deferred<Answered>>();
  private _link: Pick<Link, 'send' | 'close' | 'abort' | 'isBusy'> | null = null;
  private _timer: Timer;
  private _isStopped = false;

  constructor(
    readonly protocol: Protocol,
    readonly platform: Platform,
    inboxMax: number,
    private _events: RunnerEvents,
  ) {
    this._timer = new Timer(
      platform,
      () => this._perform(protocol.tick(this.now())),
      () => this.checkLink(),
    );
    this.arrivals = new Arrivals(inboxMax, {
      steer: (key, isPaused) => this._steer(key, isPaused),
      report: (event) => _events.report(event),
    });
    this.settlers = new Settlers(this, protocol.membership.acknowledges);
  }

  /** Whether it is connected, registered and subscribed right now. */
  get isReady(): boolean {
    return this.protocol.phase === 'ready';
  }

  /** Whether it has left the hub or given up. */
  get isOver(): boolean {
    return this.protocol.phase === 'leaving' || this.protocol.phase === 'stopped';
  }

  now(): Instant {
    return this.platform.now();
  }

  soon(call: () => void): void {
    this.platform.soon(call);
  }

  report(event: Report): void {
    this._events.report(event);
  }

  /** Create a request without sending it. */
  request(payload: Payload<any>, options?: RequestOptions): Request {
    return this.protocol.frames.request(payload, this.now().wallMs, options);
  }

  /** Send a request that needs no answer, as soon as possible. */
  post(request: Request): void {
    this._perform(this.protocol.submit(request, this.now()));
  }

  /** Send a request and wait for its answer; one that needs none is done once written. */
  async call(
    request: Request,
    options: Submission & { signal?: AbortSignal | undefined } = {},
  ): Promise<Answered> {
    const { signal, ...submission } = options;
    signal?.throwIfAborted();
    const effects = this.protocol.submit(request, this.now(), submission);
    const call = deferred<Answered>();
    this._calls.set(request.id, call);
    this._perform(effects);
    const answered = await until(call.promise, signal, () => {
      this._calls.delete(request.id);
      this.protocol.forget(request.id);
    });
    // A caller in a tight loop would otherwise block the rest of the program.
    if (request.answer === null && this._link?.isBusy) {
      await new Promise<void>((resolve) => this.soon(resolve));
    }
    return answered;
  }

  opened(link: Pick<Link, 'send' | 'close' | 'abort' | 'isBusy'>, token: string | null): void {
    this._link = link;
    this._perform(this.protocol.opened(token, this.now()));
  }

  lost(reason: string): void {
    this._link = null;
    this.settlers.lost();
    this.arrivals.lost();
    this.replying?.lost();
    this._perform(this.protocol.lost(reason, this.now()));
  }

  received(frame: string): void {
    this._perform(this.protocol.received(frame, this.now()));
  }

  congested(isCongested: boolean): void {
    this._perform(this.protocol.congested(isCongested, this.now()));
  }

  giveUp(error: ClientError): void {
    this._perform(this.protocol.stop(error));
  }

  /** Send a heartbeat now. */
  checkLink(): void {
    this._perform(this.protocol.beat(this.now()));
  }

  /** Cut the link without a word. */
  dropLink(reason: string): void {
    this._link?.abort(reason);
  }

  /** Say goodbye; `stopped` follows. */
  leave(): void {
    this.settlers.flush();
    this._perform(this.protocol.leave(this.now()));
    this.replying?.stopped(new Unavailable('the client was closed'));
  }

  /** End everything. */
  end(): void {
    this._timer.cancel();
    this.arrivals.end();
  }

  private _perform(effects: Effect[]): void {
    for (const effect of effects) {
      switch (effect.do) {
        case 'send':
          this._link?.send(effect.frame);
          break;
        case 'arrived': {
          const { message } = effect;
          const verdict = this.replying?.arrived(message) ?? 'handed out';
          if (verdict === 'dismissed') {
            this.settlers.accept(message);
          }
          const bound = verdict === 'handed out' && this.settlers.bound(message);
          if (bound) {
            this.arrivals.put(bound);
          }
          break;
        }
        case 'ended': {
          const { topic, subscription, error } = effect;
          const key = keyOf(topic, subscription);
          this.settlers.remove(key);
          this.arrivals.endQueue(key, error);
          this._events.report({ type: 'ended', topic, subscription, error });
          break;
        }
        case 'answered':
          this._called(effect.id)?.resolve(effect);
          break;
        case 'failed':
          this._called(effect.id)?.reject(effect.error);
          break;
        case 'ready':
          this.soon(() => this.settlers.flush());
          this._events.report({ type: 'connected', sessionId: effect.sessionId });
          this._events.ready();
          break;
        case 'drop':
          this._events.report({ type: 'drop', reason: effect.reason });
          this._link?.abort(effect.reason);
          break;
        case 'stop':
          this._isStopped = true;
          this.replying?.stopped(effect.error);
          this.arrivals.end(effect.error instanceof GaveUp ? effect.error : undefined);
          this._events.stopped(effect.error);
          this._link?.close('goodbye');
          break;
        case 'report':
          this._events.report(effect.event);
      }
    }
    if (this._isStopped) {
      this._timer.cancel();
    } else {
      this._timer.set(this.protocol.wakeAtMs(this.now().monoMs));
    }
  }

  private _called(id: string): Deferred<Answered> | undefined {
    const call = this._calls.get(id);
    this._calls.delete(id);
    return call;
  }

  /** A socket cannot stop reading, so a consumer that is too slow gets no more credit. */
  private _steer(key: string, isPaused: boolean): void {
    const seat = this.protocol.membership.seatWith(key);
    if (seat?.isTaken && this.isReady) {
      const window = isPaused ? 0 : ((seat.terms.window as number | undefined) ?? WINDOW);
      this.post(this.request(crediting(seat.subscriptionId, window), { sender: seat.address }));
    }
  }
}
