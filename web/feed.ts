// The one live socket of this tab: /api/admin/v1/live.
//
//   const stop = watch('topic', { topic: 'orders' }, (frame) => …)
//
// Equal watches share one subscription of the socket. A frame is the whole (`full`) or what changed
// (`change`, merged here), so a listener always gets the whole. Hidden tabs stop after 30 s and go on
// when they are seen again. The socket reconnects by itself: 0–1 s at first, then doubling to 15 s.

import type { AdminError, LiveFrame } from './answers';
import { heardAt, ROOT } from './api';
import { ended, token } from './session';
import { Store } from './store';

export type Connection = 'off' | 'connecting' | 'live' | 'waiting' | 'hidden';

export interface Seen {
  readonly at: number;
  readonly data: Record<string, unknown> | null;
  readonly rows?: readonly Record<string, unknown>[];
  readonly skipped?: number;
  readonly error?: AdminError;
}

interface Watch {
  readonly key: string;
  readonly what: string;
  readonly params: Record<string, unknown>;
  readonly listeners: Set<(seen: Seen) => void>;
  id: number;
  last: Seen | null;
}

export const connection = new Store<Connection>('off');
/** Since when we are without the hub; null while connected. */
export const offlineSince = new Store<number | null>(null);

const HIDDEN_MS = 30_000;
const PAUSE_MAX_MS = 15_000;
const TOKEN_ENDED = 4401;
const REFUSED = new Set([1008, TOKEN_ENDED]);

const watches = new Map<string, Watch>();
let socket: WebSocket | null = null;
let welcomed = false;
let nextId = 1;
let failures = 0;
let retry: ReturnType<typeof setTimeout> | undefined;
let hiding: ReturnType<typeof setTimeout> | undefined;
let wanted = false;

export function start(): void {
  wanted = true;
  connect();
}

export function stop(): void {
  wanted = false;
  clearTimeout(retry);
  drop();
  connection.set('off');
}

export function reconnectNow(): void {
  failures = 0;
  clearTimeout(retry);
  if (!socket) connect();
}

export function watch(what: string, params: Record<string, unknown>, listener: (seen: Seen) => void): () => void {
  const key = JSON.stringify([what, params]);
  let one = watches.get(key);
  if (!one) {
    one = { key, what, params, listeners: new Set(), id: nextId++, last: null };
    watches.set(key, one);
    ask(one);
  }
  const known = one;
  known.listeners.add(listener);
  if (known.last) listener(known.last);
  return () => {
    known.listeners.delete(listener);
    if (known.listeners.size > 0) return;
    watches.delete(key);
    say({ op: 'stop', id: known.id });
  };
}

function ask(one: Watch): void {
  say({ op: 'watch', id: one.id, what: one.what, ...one.params });
}

function say(frame: Record<string, unknown>): void {
  if (welcomed && socket?.readyState === WebSocket.OPEN) socket.send(JSON.stringify(frame));
}

function connect(): void {
  if (!wanted || socket || document.hidden && connection.value === 'hidden') return;
  connection.set('connecting');
  const url = new URL(`${ROOT}/live`, location.href);
  url.protocol = location.protocol === 'https:' ? 'wss:' : 'ws:';
  const opened = new WebSocket(url);
  socket = opened;
  opened.addEventListener('open', () => {
    opened.send(JSON.stringify(token.value ? { op: 'hello', token: token.value } : { op: 'hello' }));
  });
  opened.addEventListener('message', (event) => {
    if (socket === opened && typeof event.data === 'string') heard(event.data);
  });
  opened.addEventListener('close', (event) => {
    if (socket === opened) lost(event.code);
  });
}

function heard(text: string): void {
  heardAt.set(Date.now());
  if (text === 'ping') {
    socket?.send('pong');
    return;
  }
  let frame: LiveFrame & { op?: string };
  try {
    frame = JSON.parse(text) as LiveFrame & { op?: string };
  } catch {
    return;
  }
  if (frame.op === 'welcome') {
    welcomed = true;
    failures = 0;
    offlineSince.set(null);
    connection.set('live');
    for (const one of watches.values()) ask(one);
    return;
  }
  for (const one of watches.values()) {
    if (one.id === frame.id) show(one, frame);
  }
}

function show(one: Watch, frame: LiveFrame): void {
  const before = one.last?.data ?? null;
  const data = frame.full ?? (frame.change ? { ...before, ...frame.change } : before);
  const seen: Seen = {
    at: frame.at,
    data,
    ...(frame.rows ? { rows: frame.rows } : {}),
    ...(frame.skipped ? { skipped: frame.skipped } : {}),
    ...(frame.error ? { error: frame.error } : {}),
  };
  // Rows of a tail are told once; who comes later has missed them.
  one.last = frame.rows ? null : seen;
  for (const listener of [...one.listeners]) listener(seen);
}

function drop(): void {
  const old = socket;
  socket = null;
  welcomed = false;
  old?.close(1000);
}

function lost(code: number): void {
  socket = null;
  welcomed = false;
  offlineSince.set(offlineSince.value ?? Date.now());
  if (REFUSED.has(code)) ended();
  if (!wanted || code === TOKEN_ENDED) {
    connection.set('off');
    return;
  }
  connection.set('waiting');
  const pause = Math.min(PAUSE_MAX_MS, 500 * 2 ** failures++);
  retry = setTimeout(connect, pause * (0.5 + Math.random() / 2));
}

token.watch(() => {
  if (token.value) say({ op: 'token', token: token.value });
});

document.addEventListener('visibilitychange', () => {
  clearTimeout(hiding);
  if (document.hidden) {
    hiding = setTimeout(() => {
      connection.set('hidden');
      clearTimeout(retry);
      drop();
    }, HIDDEN_MS);
  } else if (!socket) reconnectNow();
});
addEventListener('online', reconnectNow);
addEventListener('pageshow', () => {
  if (!socket) reconnectNow();
});
