/** HTTP requests to one hub, limited in time. All requests made here are repeatable. */

import { OutcomeUnknown, Unavailable, sentence } from '../wire/errors.js';
import { invalid } from '../wire/names.js';
import { type Platform, type Token, currentToken } from './platform.js';

const SECURE: Record<string, string> = { 'http:': '', 'ws:': '', 'https:': 's', 'wss:': 's' };
/** Why a connection of Node was not even made. */
const UNREACHED = /ECONNREFUSED|ENOTFOUND|EAI_AGAIN|EHOSTUNREACH|ENETUNREACH|CERT/;

/** Where a hub is, with what a proxy adds before its paths, if anything. */
export class Origin {
  readonly httpUrl: string;
  readonly socketUrl: string;

  /** Parse any URL of a hub; the path of its WebSocket is removed. */
  constructor(url: string) {
    const wrong: () => never = () =>
      invalid("a hub's URL looks like wss://hub.example/ws, or begins with http, and ends there");
    let parts: URL;
    try {
      parts = new URL(url);
    } catch {
      wrong();
    }
    const { protocol, host, pathname, search, hash, username, password } = parts;
    const s = SECURE[protocol];
    if (s === undefined || !host || search || hash || username || password) {
      wrong();
    }
    const prefix = pathname.replace(/\/+$/, '').replace(/\/ws$/, '');
    this.httpUrl = `http${s}://${host}${prefix}`;
    this.socketUrl = `ws${s}://${host}${prefix}`;
  }
}

export interface HttpAnswer {
  status: number;
  headers: Headers;
  body: string;
}

/** The bare token, which may be given after `Bearer `. */
export function bare(token: string): string {
  const given = token.trim().replace(/^Bearer /, '');
  return /^[\x21-\x7e]+$/.test(given) ? given : invalid('a token is one line of ASCII characters');
}

/** Sends requests to one hub. */
export class HttpClient {
  private _closing = new AbortController();

  constructor(
    readonly origin: Origin,
    private _platform: Platform,
    private _token: Token,
  ) {}

  get isClosed(): boolean {
    return this._closing.signal.aborted;
  }

  /** Send a request and return its answer, whatever its status. */
  async request(
    method: string,
    path: string,
    given: Record<string, string>,
    body: string | undefined,
    timeoutMs: number,
    signal?: AbortSignal,
  ): Promise<HttpAnswer> {
    signal?.throwIfAborted();
    const { httpUrl } = this.origin;
    const ended = this._closing.signal;
    if (ended.aborted) {
      throw new Unavailable('the hub was closed by this program');
    }
    const headers: Record<string, string> = { Accept: 'application/json', ...given };
    try {
      const token = await currentToken(this._token);
      if (token !== null) {
        headers.Authorization = `Bearer ${bare(token)}`;
      }
    } catch (error) {
      // The token function belongs to the caller and may throw anything.
      throw new Unavailable(`no token: ${sentence(error)}`);
    }
    const controller = new AbortController();
    const abort = () => controller.abort();
    const cancel = this._platform.after(timeoutMs, abort);
    signal?.addEventListener('abort', abort);
    ended.addEventListener('abort', abort);
    try {
      const answer = await this._platform.fetch(httpUrl + path, {
        method,
        headers,
        ...(body !== undefined && { body }),
        signal: controller.signal,
        // Redirects would send an inbox id to a host the user did not name.
        redirect: 'error',
        credentials: 'omit',
        cache: 'no-store',
      });
      return { status: answer.status, headers: answer.headers, body: await answer.text() };
    } catch (error) {
      signal?.throwIfAborted();
      if (controller.signal.aborted) {
        throw new OutcomeUnknown(
          ended.aborted
            ? 'the hub was closed by this program'
            : `no answer from ${httpUrl} within ${timeoutMs / 1000} s`,
        );
      }
      const cause = (error as { cause?: { code?: string } }).cause;
      const text = `no hub at ${httpUrl}: ${cause?.code ?? sentence(error)}`;
      throw UNREACHED.test(cause?.code ?? '') ? new Unavailable(text) : new OutcomeUnknown(text);
    } finally {
      cancel();
      signal?.removeEventListener('abort', abort);
      ended.removeEventListener('abort', abort);
    }
  }

  /** End all requests. */
  close(): void {
    this._closing.abort();
  }
}
