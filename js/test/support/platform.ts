/** A platform whose time is moved by the test. */

import type { Platform } from '../../src/transport/platform.js';

const START_MS = 1_760_000_000_000;
const ROUNDS_MAX = 10_000;

export class StagedPlatform implements Platform {
  json = JSON;
  WebSocket = undefined as never;
  fetch = undefined as never;
  elapsedMs = 0;
  private _timers = new Set<{ atMs: number; call: () => void }>();
  private _soon: (() => void)[] = [];
  private _ids = 0;

  constructor(private _numbers: number[] = []) {}

  random = (): number => (this._numbers.length > 1 ? this._numbers.shift() : this._numbers[0]) ?? 0;

  newId = (): string => `id-${++this._ids}`;

  now() {
    return { wallMs: START_MS + Math.trunc(this.elapsedMs), monoMs: this.elapsedMs };
  }

  after(ms: number, call: () => void): () => void {
    const timer = { atMs: this.elapsedMs + Math.max(0, ms), call };
    this._timers.add(timer);
    return () => this._timers.delete(timer);
  }

  soon(call: () => void): void {
    this._soon.push(call);
  }

  /** Run until no callback is left that could run now. */
  async settle(): Promise<void> {
    for (let round = 0; round < ROUNDS_MAX; round++) {
      await new Promise(setImmediate);
      const calls = this._soon;
      if (!calls.length) {
        return;
      }
      this._soon = [];
      calls.forEach((call) => call());
    }
    throw new Error('the client never comes to rest');
  }

  /** Let time pass; every timer fires at its moment. */
  async wait(ms: number): Promise<void> {
    const endMs = this.elapsedMs + ms;
    for (;;) {
      const due = [...this._timers].filter((timer) => timer.atMs <= endMs + 1e-9);
      const [next] = due.sort((one, other) => one.atMs - other.atMs);
      if (!next) {
        break;
      }
      this._timers.delete(next);
      this.elapsedMs = Math.max(this.elapsedMs, next.atMs);
      next.call();
      await this.settle();
    }
    this.elapsedMs = endMs;
    await this.settle();
  }
}
