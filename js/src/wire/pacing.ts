/** Token buckets, back-off, and the attempts of one request. Times are in milliseconds. */

import { ClientError, OutcomeUnknown, Refused } from './errors.js';
import { invalid } from './names.js';

export type Random = () => number;

const ALMOST_ONE = 1 - 1e-9;

/** A token bucket that starts full and refills continuously; its clock has whole milliseconds. */
export class TokenBucket {
  tokens: number;
  private _atMs: number;
  private _rate: number;
  private _burst: number;

  constructor(ratePerSecond: number, burst: number, nowMs: number) {
    this._rate = ratePerSecond;
    this._burst = this.tokens = burst;
    this._atMs = nowMs;
  }

  /** Take one token; `false` if there is none. */
  take(nowMs: number): boolean {
    this._refill(nowMs);
    if (this.tokens < ALMOST_ONE) {
      return false;
    }
    this.tokens = Math.max(0, this.tokens - 1);
    return true;
  }

  /** The time until a token is available; 0 if one is. */
  retryAfterMs(nowMs: number): number {
    this._refill(nowMs);
    return this.tokens >= 1 ? 0 : Math.ceil(((1 - this.tokens) * 1000) / this._rate);
  }

  private _refill(nowMs: number): void {
    const elapsedMs = nowMs - this._atMs;
    this._atMs = nowMs;
    if (elapsedMs > 0) {
      this.tokens = Math.min(this._burst, this.tokens + (elapsedMs * this._rate) / 1000);
    }
  }
}

const grown = (base: number, cap: number, step: number, factor = 2): number =>
  base && Math.min(base * factor ** step, cap);

/** A connection that lasted this long resets the back-off. */
const SETTLED_MS = 5_000;

/** How a client reconnects. */
export interface Reconnect {
  /** The first attempt comes within this time, at random; 30 000 by default. */
  firstJitterMs?: number;
  baseMs?: number;
  capMs?: number;
  factor?: number;
  /** Consecutive failures; `null` means no limit. */
  attemptsMax?: number | null;
}

/** `'interactive'` is for pages somebody looks at; `null` does not reconnect. */
export type Reconnecting = Reconnect | 'interactive' | null | undefined;

export function reconnectOf(given: Reconnecting): Required<Reconnect> {
  const policy = {
    firstJitterMs: 30_000,
    baseMs: 100,
    capMs: 30_000,
    factor: 2,
    attemptsMax: null,
    ...(given === 'interactive'
      ? { firstJitterMs: 3_000 }
      : given === null
        ? { attemptsMax: 0 }
        : given),
  };
  const { firstJitterMs, baseMs, capMs, factor, attemptsMax } = policy;
  if (firstJitterMs < 0 || baseMs <= 0 || capMs < baseMs || factor < 1 || (attemptsMax ?? 0) < 0) {
    invalid(
      'waits must be positive, `capMs` at least `baseMs`, `factor` at least 1, `attemptsMax` not negative',
    );
  }
  return policy;
}

/** The back-off of one client. Invariant: no wait is shorter than the hub asked for. */
export class Backoff {
  attempts = 0;
  private _step = 0;

  constructor(
    readonly policy: Required<Reconnect>,
    private _random: Random,
  ) {}

  /** The wait before the next attempt; `null` if no attempt is left. */
  next(retryAfterMs = 0): number | null {
    const { attemptsMax, firstJitterMs, baseMs, capMs, factor } = this.policy;
    if (attemptsMax !== null && this.attempts >= attemptsMax) {
      return null;
    }
    this.attempts++;
    const step = this._step++;
    const waitMs = step
      ? grown(baseMs, capMs, step - 1, factor) * (0.5 + 0.5 * this._random())
      : firstJitterMs * this._random();
    return retryAfterMs + waitMs;
  }

  /** Record a successful attempt. */
  succeeded(): void {
    this.attempts = 0;
  }

  /**
   * Record the loss of a connection. Only a long one resets the back-off, so that a hub that accepts
   * and closes immediately is not flooded.
   */
  lost(livedMs: number): void {
    if (livedMs >= SETTLED_MS) {
      this._step = 0;
    }
  }
}

/**
 * A wait with jitter, not shorter than the hub asked for: it names the time at which one waiting
 * client may retry; without jitter all would.
 */
export function retryWaitMs(retryAfterMs: number, attempts: number, random: Random): number {
  const stepMs = grown(100, 10_000, attempts);
  return Math.max(retryAfterMs, stepMs / 2) + random() * Math.max(stepMs / 2, retryAfterMs / 4);
}

/**
 * The attempts of one request that is repeated with the same id.
 *
 * After an attempt without an answer the outcome is doubtful. A later refusal resolves that, because
 * the hub checks for repeats before it applies limits.
 */
export class Attempts {
  count = 0;
  isDoubtful = false;
  private _error: ClientError | undefined;

  failed(error: ClientError): void {
    this.count++;
    this._error = error;
    if (error instanceof OutcomeUnknown) {
      this.isDoubtful = true;
    } else if (error instanceof Refused) {
      this.isDoubtful = false;
    }
  }

  /** The error to throw after a timeout; with `text` if there was no error. */
  failure(text: string): ClientError {
    const error = this._error;
    if (this.isDoubtful && !(error instanceof OutcomeUnknown)) {
      return new OutcomeUnknown(`${text}: ${error?.message}`);
    }
    return error ?? new OutcomeUnknown(text);
  }
}
