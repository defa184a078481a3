// Requests to /api/admin/v1 of the same origin. Answers have the types of answers.ts.
//
//   get<T>(path, query?, signal?)   post<T>(path, body)   send<T>(method, path, body)
//
// Whatever goes wrong is an ApiError: what happened, what to do, and the hub's code. `status` is 0 if
// there was no answer.

import { ended, token } from './session';
import { Store } from './store';

export type Query = Record<string, string | number | boolean | null | undefined>;

export class ApiError extends Error {
  constructor(
    readonly status: number,
    message: string,
    readonly code: string,
    readonly resolution: string,
    readonly details: Record<string, unknown>,
  ) {
    super(message);
  }

  get isOffline(): boolean {
    return this.status === 0;
  }
}

/** When the hub was last heard, by request or by the live socket; by our own clock. */
export const heardAt = new Store(0);

// The page is served at …/ui/; a proxy may serve the hub below a path.
export const ROOT = new URL('../api/admin/v1', document.baseURI).pathname;

const SEARCHES_AGAIN = 3;

export function pathOf(...parts: readonly string[]): string {
  return `/${parts.map(encodeURIComponent).join('/')}`;
}

function address(path: string, query: Query = {}): string {
  const given = Object.entries(query).filter(([, value]) => value !== '' && value !== null && value !== undefined);
  const search = new URLSearchParams(given.map(([key, value]) => [key, String(value)])).toString();
  return `${ROOT}${path}${search ? `?${search}` : ''}`;
}

export async function get<T>(path: string, query?: Query, signal?: AbortSignal): Promise<T> {
  for (let attempt = 1; ; attempt++) {
    try {
      return await request<T>(address(path, query), { method: 'GET', ...(signal ? { signal } : {}) });
    } catch (error) {
      // A newer search ends an older one of the same person: on a hub without tokens, of any open page.
      if (!(error instanceof ApiError) || error.code !== 'search_replaced' || attempt > SEARCHES_AGAIN) throw error;
      await new Promise((done) => setTimeout(done, attempt * (150 + 250 * Math.random())));
      signal?.throwIfAborted();
    }
  }
}

export function post<T>(path: string, body: unknown, key?: string): Promise<T> {
  return send<T>('POST', path, body, key);
}

/** `key` makes a repeat of the same action safe. */
export function send<T>(method: string, path: string, body: unknown, key = idempotencyKey()): Promise<T> {
  return sendText<T>(method, path, JSON.stringify(body), key);
}

/** As send(), for a body whose numbers must not go through JSON.parse. */
export function sendText<T>(method: string, path: string, body: string, key = idempotencyKey()): Promise<T> {
  return request<T>(address(path), {
    method,
    body,
    headers: { 'Content-Type': 'application/json', 'Idempotency-Key': key },
  });
}

export function idempotencyKey(): string {
  // crypto.randomUUID is missing on insecure origins.
  return Array.from(crypto.getRandomValues(new Uint8Array(12)), (byte) => byte.toString(16).padStart(2, '0')).join('');
}

async function request<T>(url: string, init: RequestInit): Promise<T> {
  const headers = new Headers(init.headers);
  if (token.value) headers.set('Authorization', `Bearer ${token.value}`);
  let response: Response;
  let body: string;
  try {
    response = await fetch(url, { ...init, headers, cache: 'no-store', credentials: 'omit', redirect: 'error' });
    body = await response.text();
  } catch (error) {
    if (error instanceof DOMException && error.name === 'AbortError') throw error;
    throw new ApiError(0, 'The hub does not answer.', 'unreachable', 'The page tries again by itself. Is the hub running?', {});
  }
  heardAt.set(Date.now());
  if (response.ok) return parsed<T>(body);
  if (response.status === 401) ended();
  throw refused(response, body);
}

function parsed<T>(body: string): T {
  try {
    return (body === '' ? null : JSON.parse(body)) as T;
  } catch {
    throw new ApiError(502, 'The answer is no JSON.', 'malformed_answer', 'Something between this page and the hub changes answers.', {});
  }
}

function refused(response: Response, body: string): ApiError {
  let answer: Record<string, unknown> = {};
  try {
    const read: unknown = JSON.parse(body);
    if (read !== null && typeof read === 'object') answer = read as Record<string, unknown>;
  } catch {
    // A proxy's page, or plain text.
  }
  const text = (name: string): string => (typeof answer[name] === 'string' ? answer[name] : '');
  const details = answer['details'] !== null && typeof answer['details'] === 'object' ? (answer['details'] as Record<string, unknown>) : {};
  const retry = response.headers.get('Retry-After');
  const wait = response.status === 429 && retry ? `Too many requests; again in ${retry} s.` : '';
  return new ApiError(
    response.status,
    text('error') || body.slice(0, 300) || `The hub answered ${response.status}.`,
    text('errorCode') || String(response.status),
    text('resolution') || wait,
    details,
  );
}
