/** An inbox over HTTP: read in pages, appended to without announcing it to the room. */

import { iterate } from '../consumers.js';
import type { Report } from '../protocol/effects.js';
import type { HttpAnswer, HttpClient } from '../transport/http.js';
import { type Platform, sleep } from '../transport/platform.js';
import { encoded, newMessageId } from '../wire/bytes.js';
import { ClientError, OutcomeUnknown, Refused, Unavailable } from '../wire/errors.js';
import { checkedInbox, checkedSeq, invalid, plainId } from '../wire/names.js';
import { Attempts, retryWaitMs } from '../wire/pacing.js';
import { Queue } from '../wire/queues.js';
import {
  type InboxPage,
  type Missed,
  RecentIds,
  type RoomMessage,
  RoomRefusal,
  type Stored,
  contiguous,
  gapsOf,
  pageOf,
  refusalOf,
  storedOf,
} from './answers.js';
import { PARTIAL_MS } from './reading.js';

const PAGE = 100;
const PAGE_MAX = 1_000;
const TIMEOUT_MS = 30_000;
/** A page may have to wait for the hub's limit of sixty per minute. */
const PAGE_TIMEOUT_MS = 120_000;

export interface InboxOptions {
  /** How long to try, including waiting for a hub that is busy or limits requests. */
  timeoutMs?: number;
  /** How often to try a hub that cannot be reached; as often as time permits by default. */
  attempts?: number;
  signal?: AbortSignal;
}

/** A repeatable request, and how to decode its answer. */
interface Call<T> {
  method: string;
  path: string;
  body?: string;
  read(answer: HttpAnswer): T | null;
}

/** Bytes to send: at least one. */
export function checkedCiphertext(ciphertext: Uint8Array): Uint8Array<ArrayBuffer> {
  if (!(ciphertext instanceof Uint8Array)) {
    invalid('a ciphertext must be a Uint8Array; encode and encrypt text before sending it');
  }
  return ciphertext.length
    ? (ciphertext as Uint8Array<ArrayBuffer>)
    : invalid('a ciphertext must have at least one byte');
}

export const checkedRoomMessageId = (id: string | undefined): string =>
  id === undefined ? newMessageId() : plainId(id, 'a message id');

/** The event for a request that is repeated after a refusal. */
export const waiting = (error: ClientError, waitMs: number): Report => ({
  type: 'waiting',
  reason: error instanceof Refused ? error.reason : error.message,
  waitMs,
});

const fetching = (fromSeq: number, limit: number): Call<InboxPage> => ({
  method: 'GET',
  path: `/v1/inbox/messages?fromSeq=${fromSeq}&limit=${Math.min(limit, PAGE_MAX)}`,
  read: ({ headers, body }) => pageOf(headers, body),
});

/** One inbox. Anyone who knows its id may use all of this; the id is sent in a header only. */
export class InboxAccess {
  private _inbox: string;

  /** @internal */
  constructor(
    private _http: HttpClient,
    inbox: string,
    /** @internal */
    readonly _platform: Platform,
    private _report: (event: Report) => void,
  ) {
    this._inbox = checkedInbox(inbox);
  }

  /** A page of at most `limit` messages, and never more than 1000, from a position on. */
  async fetch(fromSeq = 0, limit = PAGE, options: InboxOptions = {}): Promise<InboxPage> {
    const call = fetching(checkedSeq(fromSeq, 'fromSeq'), checkedSeq(limit, 'limit', 1));
    try {
      return await this._repeat(call, options);
    } catch (error) {
      // Reading changes nothing, so an unknown outcome is just a failure.
      throw error instanceof OutcomeUnknown ? new Unavailable(error.message) : error;
    }
  }

  /** @internal One attempt for a large page, for callers that schedule retries themselves. */
  _fetchOnce(
    fromSeq: number,
    timeoutMs: number,
    signal: AbortSignal,
  ): Promise<InboxPage | RoomRefusal> {
    return this._try(fetching(fromSeq, PAGE_MAX), timeoutMs, signal);
  }

  /**
   * Iterate over everything from a position on, page by page. What the hub cannot read now is fetched
   * again, so that nothing is skipped.
   */
  messages(fromSeq = 1, options: InboxOptions = {}): InboxMessages {
    return new InboxMessages(this, checkedSeq(fromSeq, 'fromSeq'), options);
  }

  /** Append a message to the inbox without announcing it to the room. */
  append(
    ciphertext: Uint8Array,
    { messageId, ...options }: InboxOptions & { messageId?: string } = {},
  ): Promise<Stored> {
    const own = checkedRoomMessageId(messageId);
    return this._repeat(
      {
        method: 'POST',
        path: '/v1/inbox/append',
        body: JSON.stringify({
          messageId: own,
          ciphertext: encoded(checkedCiphertext(ciphertext)),
        }),
        read: ({ headers, body }) => storedOf(headers, body, own),
      },
      options,
    );
  }

  /** Try until it succeeds, is refused for good, or the time is up. */
  private async _repeat<T>(
    call: Call<T>,
    { timeoutMs = TIMEOUT_MS, attempts: attemptsMax, signal }: InboxOptions,
  ): Promise<T> {
    const { _platform: platform } = this;
    const nowMs = () => platform.now().monoMs;
    const deadlineMs = nowMs() + timeoutMs;
    const attempts = new Attempts();
    for (;;) {
      const result = await this._try(call, Math.max(0, deadlineMs - nowMs()), signal);
      if (!(result instanceof RoomRefusal)) {
        return result;
      }
      const { error, retryAfterMs, isReached } = result;
      attempts.failed(error);
      const isLast = !isReached && attempts.count === attemptsMax;
      const waitMs = retryWaitMs(retryAfterMs ?? 0, attempts.count, platform.random);
      if (retryAfterMs === null || isLast || nowMs() + waitMs >= deadlineMs) {
        throw attempts.failure('no answer arrived');
      }
      this._report(waiting(error, waitMs));
      await sleep(platform, waitMs, signal);
    }
  }

  private async _try<T>(
    call: Call<T>,
    timeoutMs: number,
    signal?: AbortSignal,
  ): Promise<T | RoomRefusal> {
    const headers: Record<string, string> = { 'X-Inbox-ID': this._inbox };
    if (call.body !== undefined) {
      headers['Content-Type'] = 'application/json';
    }
    let answer: HttpAnswer;
    try {
      answer = await this._http.request(
        call.method,
        call.path,
        headers,
        call.body,
        timeoutMs,
        signal,
      );
    } catch (error) {
      if (error instanceof ClientError) {
        return new RoomRefusal(error, this._http.isClosed ? null : 0, false);
      }
      throw error;
    }
    const url = this._http.origin.httpUrl;
    if (answer.status !== 200 && answer.status !== 202) {
      return refusalOf(url, answer.status, answer.headers, answer.body);
    }
    let read: T | null = null;
    try {
      read = call.read(answer);
    } catch {
      // Answered below.
    }
    return (
      read ??
      new RoomRefusal(new Unavailable(`${url} answered with something that is not from a hub`))
    );
  }
}

/**
 * The messages of an inbox in order, without duplicates; ends with the last one.
 *
 * `nextSeq` is where to continue later, `missed` the positions that were deleted before, or lost,
 * `skipped` those of them that the hub has lost.
 */
export class InboxMessages implements AsyncIterable<RoomMessage> {
  readonly missed: Missed[] = [];
  readonly skipped: Missed[] = [];
  private _fromSeq: number;
  private _waiting = new Queue<RoomMessage>();
  private _ids = new RecentIds();

  /** @internal */
  constructor(
    private _inbox: InboxAccess,
    fromSeq: number,
    private _options: InboxOptions,
  ) {
    this._fromSeq = Math.max(1, fromSeq);
  }

  get nextSeq(): number {
    return this._waiting.first?.seq ?? this._fromSeq;
  }

  [Symbol.asyncIterator](): AsyncIterator<RoomMessage, undefined> {
    return iterate(() => this.next());
  }

  /** The next message; `undefined` after the last one. */
  async next(): Promise<RoomMessage | undefined> {
    while (!this._waiting.length) {
      const page = await this._page();
      if (!page.messages.length) {
        return undefined;
      }
      this._add(page);
    }
    return this._waiting.shift();
  }

  private _add(page: InboxPage): void {
    const messages = contiguous(page);
    const last = messages.at(-1)!.seq;
    const before = { first: this._fromSeq, last: messages[0]!.seq - 1 };
    for (const { isSkipped, ...gap } of gapsOf(page.skipped, before, last)) {
      this.missed.push(gap);
      if (isSkipped) {
        this.skipped.push(gap);
      }
    }
    for (const message of messages) {
      if (this._ids.isNew(message.messageId)) {
        this._waiting.push(message);
      }
    }
    this._fromSeq = last + 1;
  }

  /** Fetch the next page, with a message unless it is the last one. */
  private async _page(): Promise<InboxPage> {
    const { _platform: platform } = this._inbox;
    const { timeoutMs = PAGE_TIMEOUT_MS, signal } = this._options;
    const nowMs = () => platform.now().monoMs;
    const deadlineMs = nowMs() + timeoutMs;
    for (let attempts = 1; ; attempts++) {
      const page = await this._inbox.fetch(this._fromSeq, PAGE_MAX, {
        ...this._options,
        timeoutMs: Math.max(0, deadlineMs - nowMs()),
      });
      if (!page.isPartial || contiguous(page).length) {
        return page;
      }
      const waitMs = retryWaitMs(PARTIAL_MS, attempts, platform.random);
      if (nowMs() + waitMs >= deadlineMs) {
        throw new Unavailable('the hub cannot read the inbox now; nothing was skipped');
      }
      await sleep(platform, waitMs, signal);
    }
  }
}
