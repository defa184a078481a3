/** What the client needs from where it runs: time, timers, chance, sockets, HTTP. */

import type { Instant } from '../protocol/effects.js';
import type { Json } from '../protocol/frame.js';
import type { Random } from '../wire/pacing.js';
import { ids } from '../wire/bytes.js';

/** The part of a standard `WebSocket` that is used. */
export interface Socket {
  binaryType: string;
  readonly bufferedAmount: number;
  readonly readyState: number;
  onopen: ((event: any) => void) | null;
  onmessage: ((event: any) => void) | null;
  onclose: ((event: any) => void) | null;
  onerror: ((event: any) => void) | null;
  send(text: string): void;
  close(code?: number, reason?: string): void;
  /** Of sockets that know it: how the handshake was refused. */
  readonly refusal?: Refusal | undefined;
  /** Of sockets that can: cut the connection. */
  terminate?(): void;
}

/** The HTTP answer to a handshake that failed. */
export interface Refusal {
  status: number;
  retryAfter: string;
  body: string;
}

export type SocketClass = new (url: string, protocols?: string[]) => Socket;

/** Parts of the platform that a program can replace. */
export interface Injected {
  WebSocket?: SocketClass | undefined;
  fetch?: typeof fetch | undefined;
  random?: Random | undefined;
  /** Wall time in milliseconds since the Unix epoch. */
  now?: (() => number) | undefined;
  json?: Json | undefined;
}

export interface Platform {
  readonly json: Json;
  readonly random: Random;
  readonly newId: () => string;
  readonly WebSocket: SocketClass;
  readonly fetch: typeof fetch;
  now(): Instant;
  /** Call it after this time; returns a function that prevents it. */
  after(ms: number, call: () => void): () => void;
  /** Call it once everything that can happen now has happened. */
  soon(call: () => void): void;
}

/** Longer timers fire at once. */
const TIMER_MAX_MS = 2 ** 31 - 1;

const channelled = (call: () => void): void => {
  // Timers of hidden pages are slow, messages are not.
  const { port1, port2 } = new MessageChannel();
  port1.onmessage = () => {
    port1.close();
    call();
  };
  port2.postMessage(0);
};

const immediate = (globalThis as { setImmediate?: (call: () => void) => void }).setImmediate;

/** What takes the place of `WebSocket` where there is none. */
export const fallback: { WebSocket?: SocketClass } = {};

export function platformOf(injected: Injected = {}): Platform {
  const now = injected.now ?? Date.now;
  const socket = injected.WebSocket ?? globalThis.WebSocket ?? fallback.WebSocket;
  return {
    json: injected.json ?? JSON,
    random: injected.random ?? Math.random,
    newId: ids(),
    WebSocket: socket as SocketClass,
    fetch: injected.fetch ?? ((...given) => fetch(...given)),
    now: () => ({ wallMs: Math.trunc(now()), monoMs: performance.now() }),
    after(ms, call) {
      const timer = setTimeout(call, Math.min(Math.max(0, ms), TIMER_MAX_MS));
      return () => clearTimeout(timer);
    },
    soon: immediate ?? channelled,
  };
}

/** Call a listener; what it throws is the program's, and must not end what calls it. */
export function inform<E>(
  platform: Pick<Platform, 'soon'>,
  listener: ((event: E) => void) | undefined,
  event: E,
): void {
  try {
    listener?.(event);
  } catch (error) {
    platform.soon(() => {
      throw error;
    });
  }
}

/** A promise, and the means to settle it. */
export interface Deferred<T> {
  promise: Promise<T>;
  resolve(value: T): void;
  reject(error: unknown): void;
}

export function deferred<T>(): Deferred<T> {
  let made: Pick<Deferred<T>, 'resolve' | 'reject'>;
  const promise = new Promise<T>((resolve, reject) => (made = { resolve, reject }));
  // Whether anybody waits for it is not known here.
  promise.catch(() => undefined);
  return { promise, ...made! };
}

/** Wait for a promise, or until the signal; `stop` is called if nobody waits any more. */
export function until<T>(promise: Promise<T>, signal?: AbortSignal, stop?: () => void): Promise<T> {
  if (!signal) {
    return promise;
  }
  return new Promise((resolve, reject) => {
    const abort = () => {
      stop?.();
      reject(signal.reason);
    };
    if (signal.aborted) {
      abort();
      promise.catch(() => undefined);
      return;
    }
    signal.addEventListener('abort', abort, { once: true });
    promise.then(resolve, reject).finally(() => signal.removeEventListener('abort', abort));
  });
}

export const sleep = (platform: Platform, ms: number, signal?: AbortSignal): Promise<void> => {
  const done = deferred<void>();
  return until(
    done.promise,
    signal,
    platform.after(ms, () => done.resolve()),
  );
};

/** A token, or a function that returns one and is asked for every connection. */
export type Token = string | (() => string | null | Promise<string | null>) | null | undefined;

export async function currentToken(token: Token): Promise<string | null> {
  return (typeof token === 'function' ? await token() : token) ?? null;
}
