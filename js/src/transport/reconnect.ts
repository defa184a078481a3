/**
 * The sequence of connections: the first one, those after a loss, and the end.
 *
 * What is sent over a connection is up to a runner; this module decides when there is one.
 */

import type { Report } from '../protocol/effects.js';
import { type ClientError, GaveUp, Refused, Unavailable, sentence } from '../wire/errors.js';
import { Backoff, type Reconnecting, reconnectOf } from '../wire/pacing.js';
import { type Link, NotOpened } from './link.js';
import { type Platform, deferred } from './platform.js';

const GOODBYE_MS = 2_000;
/** Long enough for the answer to a heartbeat that shows that the link is dead. */
const HURRY_MS = 15_000;

/** What the runner of a protocol does. */
export interface Connected {
  readonly url: string;
  open(): Promise<Link>;
  lost(link: Link, reason: string): void;
  giveUp(error: ClientError): void;
  report(event: Report): void;
}

/** `connecting` · `connected` · `waiting` · `stopped`. */
export type State = 'connecting' | 'connected' | 'waiting' | 'stopped';

/** Keeps one client connected, from `start` to `stop`. */
export class Lifeline {
  state: State = 'connecting';
  private _first = deferred<void>();
  private _stopped = deferred<ClientError>();
  private _end: ClientError | null = null;
  private _readyMs: number | null = null;
  private _backoff: Backoff;
  private _wake: (() => void) | null = null;
  private _isSuspended = false;
  private _hurriedMs = -Infinity;
  private _keeping: Promise<void> = Promise.resolve();

  constructor(
    private _runner: Connected,
    private _platform: Platform,
    reconnect: Reconnecting,
  ) {
    this._backoff = new Backoff(reconnectOf(reconnect), _platform.random);
  }

  /** The error that ended it. */
  get end(): ClientError | null {
    return this._end;
  }

  get stopped(): Promise<ClientError> {
    return this._stopped.promise;
  }

  /** Make the first connection; throws the error if that fails. */
  async start(): Promise<void> {
    const link = await this._runner.open();
    this._keeping = this._keep(link);
    await this._first.promise;
  }

  /** The hub accepted us over this connection. */
  becameReady(): void {
    this._readyMs = this._platform.now().monoMs;
    this._backoff.succeeded();
    this._hurriedMs = -Infinity;
    this._enter('connected');
    this._first.resolve();
  }

  /** End it: wake everyone who waits, and make no more connections. */
  stop(error: ClientError): void {
    this._end = error;
    this._first.reject(error);
    this._stopped.resolve(error);
    this._enter('stopped', { error });
    this._wake?.();
  }

  /** Wait briefly for a connection that is closing. */
  async finished(): Promise<void> {
    const late = deferred<void>();
    const cancel = this._platform.after(GOODBYE_MS, () => late.resolve());
    await Promise.race([this._keeping, late.promise]);
    cancel();
  }

  /** Try again now, without waiting. */
  hurry(): void {
    this._hurriedMs = this._platform.now().monoMs;
    this._isSuspended = false;
    this._wake?.();
  }

  /** Make no new connection until `hurry`. */
  suspend(): void {
    this._isSuspended = true;
  }

  private _enter(state: State, facts: object = {}): void {
    this.state = state;
    this._runner.report({ type: 'state', state, nextAttemptAt: null, ...facts });
  }

  private async _keep(link: Link | null): Promise<void> {
    try {
      while (link) {
        link = await this._afterLoss(link, await link.closed);
      }
    } catch (error) {
      this._runner.giveUp(new GaveUp(`internal error: ${sentence(error)}`));
    }
  }

  private async _afterLoss(link: Link, reason: string): Promise<Link | null> {
    const { _runner: runner, _readyMs: readyMs } = this;
    this._readyMs = null;
    const wasEnded = this._end !== null;
    runner.lost(link, reason);
    if (wasEnded || this._end) {
      return null;
    }
    if (this.state === 'connecting' && readyMs === null && !this._hasBeenReady) {
      runner.giveUp(new Unavailable(`${runner.url}: ${reason}`));
      return null;
    }
    if (readyMs !== null) {
      this._hasBeenReady = true;
      this._backoff.lost(this._platform.now().monoMs - readyMs);
    }
    return this._tryAgain(reason);
  }
  private _hasBeenReady = false;

  private async _tryAgain(reason: string): Promise<Link | null> {
    const { _runner: runner, _backoff: backoff } = this;
    let retryAfterMs = 0;
    runner.report({ type: 'lost', url: runner.url, reason });
    for (;;) {
      const waitMs = backoff.next(retryAfterMs);
      if (waitMs === null) {
        break;
      }
      await this._wait(waitMs, reason);
      if (this._end) {
        return null;
      }
      this._enter('connecting');
      try {
        const link = await runner.open();
        return link;
      } catch (error) {
        if (this._end) {
          return null;
        }
        if (error instanceof Refused) {
          runner.giveUp(new GaveUp(`refused when reconnecting: ${error.message}`));
          return null;
        }
        reason = sentence(error);
        retryAfterMs = error instanceof NotOpened ? error.retryAfterMs : 0;
        runner.report({ type: 'reconnectfailed', url: runner.url, reason });
      }
    }
    const { attempts } = backoff;
    const tried = attempts ? `after ${attempts} attempts to reconnect` : 'without reconnecting';
    runner.giveUp(new GaveUp(`gave up ${tried}: ${reason}`));
    return null;
  }

  private async _wait(waitMs: number, reason: string): Promise<void> {
    const now = this._platform.now();
    if (now.monoMs - this._hurriedMs < HURRY_MS && !this._isSuspended) {
      this._hurriedMs = -Infinity;
      return;
    }
    this._enter('waiting', { nextAttemptAt: now.wallMs + waitMs, reason });
    const woken = deferred<void>();
    const elapsed = () => (this._isSuspended ? undefined : woken.resolve());
    const cancel = this._platform.after(waitMs, elapsed);
    this._wake = woken.resolve;
    await woken.promise;
    cancel();
    this._wake = null;
    this._hurriedMs = -Infinity;
  }
}
