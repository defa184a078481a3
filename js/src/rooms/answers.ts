/**
 * Decoding a hub's HTTP answers about rooms and inboxes.
 *
 * Decoding is lenient, so that client and hub can be of different versions. A refusal is either final
 * or says after what time to try again.
 */

import { decoded } from '../wire/bytes.js';
import { type ClientError, OutcomeUnknown, Refused, Unavailable } from '../wire/errors.js';
import { type Shape, members, numberIn, textIn } from '../wire/shapes.js';

const IDS_MAX = 10_000;
const RETRY_AFTER_MS_MAX = 3_600_000;

/**
 * One message of a room or an inbox.
 *
 * An inbox does not store the sender and type of a message: they are known only for messages that
 * arrived live. The time is known only for messages read from the inbox.
 */
export interface RoomMessage {
  seq: number;
  messageId: string;
  ciphertext: Uint8Array<ArrayBuffer>;
  type: string | null;
  pseudonym: string | null;
  createdAt: Date | null;
}

/** The message is on the hub's disk and was announced to everyone in the room. */
export interface Sent {
  messageId: string;
  seq: number;
  /** It was already stored under the same id. */
  isRepeat: boolean;
}

/** The message is in the inbox. */
export interface Stored extends Sent {
  storedAt: Date | null;
}

/** Positions deleted before they could be read, or lost by the hub, both ends included. */
export interface Missed {
  first: number;
  last: number;
}

/** Positions without a message, both ends included. */
export interface Gap extends Missed {
  /** The hub has lost entries of its log; otherwise they were deleted. */
  isSkipped: boolean;
}

/** The gaps up to `last` in order: what is in `skipped` is not deleted. */
export function gapsOf(skipped: Missed[], deleted: Missed, last: number): Gap[] {
  const gaps: Gap[] = [];
  let position = deleted.first;
  for (const one of [...skipped].sort((a, b) => a.first - b.first || a.last - b.last)) {
    const first = Math.max(one.first, position);
    const end = Math.min(one.last, last);
    if (first > end) {
      continue;
    }
    const before = Math.min(first - 1, deleted.last);
    if (position <= before) {
      gaps.push({ first: position, last: before, isSkipped: false });
    }
    gaps.push({ first, last: end, isSkipped: true });
    position = end + 1;
  }
  if (position <= deleted.last) {
    gaps.push({ first: position, last: deleted.last, isSkipped: false });
  }
  return gaps;
}

/** Messages of an inbox in ascending order; continue at `nextSeq`. */
export interface InboxPage {
  messages: RoomMessage[];
  nextSeq: number;
  /** The oldest readable position; `null` if there is none. */
  oldestSeq: number | null;
  /** The hub cannot read what begins at `nextSeq` now: ask again from there, skip nothing. */
  isPartial: boolean;
  /** Why: `storage_failed` for a damaged log, otherwise `UNAVAILABLE`. */
  reason: string | null;
  /** Positions that the hub skipped after its log had lost entries; messages may have had them. */
  skipped: Missed[];
}

/** The messages before the first one that the hub could not read. */
export const contiguous = (page: InboxPage): RoomMessage[] =>
  page.isPartial ? page.messages.filter((one) => one.seq < page.nextSeq) : page.messages;

/** The last message ids seen, to recognise repeats. */
export class RecentIds {
  private _ids = new Set<string>();

  /** Whether an id is new; remember it. */
  isNew(id: string): boolean {
    if (this._ids.has(id)) {
      return false;
    }
    this._ids.add(id);
    if (this._ids.size > IDS_MAX) {
      this._ids.delete(this._ids.keys().next().value!);
    }
    return true;
  }
}

/** A failed request. `retryAfterMs` is `null` if a retry would fail as well. */
export class RoomRefusal {
  constructor(
    readonly error: ClientError,
    readonly retryAfterMs: number | null = null,
    /** Whether the answer came from a hub. */
    readonly isReached = true,
  ) {}
}

interface Headers {
  get(name: string): string | null;
}

function parsed(body: string): unknown {
  try {
    return JSON.parse(body);
  } catch {
    return null;
  }
}

/** Why a request was refused, and when to retry it. */
export function refusalOf(
  url: string,
  status: number,
  headers: Headers,
  body: string,
): RoomRefusal {
  const said = parsed(body);
  const text = textIn(said, 'error') ?? `${url} answered HTTP ${status}`;
  const code = textIn(said, 'errorCode');
  const waitMs = retryAfterMs(numberIn(said, 'retryAfterMs'), headers.get('retry-after'));
  if (status === 429) {
    return new RoomRefusal(limited(text, waitMs), waitMs);
  }
  if (status === 408 || status === 503) {
    const refused = new Unavailable(text);
    refused.isAnswered = !!textIn(said, 'error');
    return new RoomRefusal(refused, waitMs);
  }
  if (status >= 500) {
    // It failed somewhere on the way, so it may have happened.
    return new RoomRefusal(new OutcomeUnknown(text), waitMs);
  }
  return new RoomRefusal(code ? new Refused(code, text) : new Unavailable(text));
}

/** The rate limit of a room or inbox was exceeded; the request can be retried. */
export const limited = (text: string, waitMs: number): Refused =>
  new Refused('RATE_LIMIT_EXCEEDED', text || 'Rate limit exceeded', {
    retryable: true,
    details: { retryAfterMs: Math.round(waitMs) },
  });

/** How long the hub wants us to wait; the body is more exact than the header. */
export const retryAfterMs = (given: number | null, header: string | null = ''): number =>
  Math.min(given ?? (/^\d+$/.test(header ?? '') ? 1000 * +header! : 0), RETRY_AFTER_MS_MAX);

const dateOf = (text: unknown): Date | null => (typeof text === 'string' ? new Date(text) : null);

const PAGE: Shape = {
  nextSeq: 'i!',
  messages: [{ seq: 'i!', messageId: 's!', ciphertext: 's!', createdAt: 's?' }],
  'isPartial<partial': 'b',
  reason: 's?',
  skipped: [{ 'first<fromSeq': 'i!', 'last<toSeq': 'i!' }],
};

/** Decode a page of an inbox; `null` if it is none. */
export function pageOf(headers: Headers, body: string): InboxPage | null {
  const page = members<any>(parsed(body), PAGE);
  const oldest = headers.get('x-inbox-oldest-seq') ?? '';
  return (
    page && {
      ...page,
      oldestSeq: /^\d+$/.test(oldest) ? +oldest : null,
      messages: page.messages.map((one: any) => ({
        ...one,
        ciphertext: decoded(one.ciphertext),
        type: null,
        pseudonym: null,
        createdAt: dateOf(one.createdAt),
      })),
    }
  );
}

/** Decode the answer to an append; `null` if it is none. */
export function storedOf(headers: Headers, body: string, messageId: string): Stored | null {
  const stored = members<any>(parsed(body), { seq: 'i!', storedAt: 's?' });
  return (
    stored && {
      messageId,
      seq: stored.seq,
      isRepeat: headers.get('idempotent-replay')?.toLowerCase() === 'true',
      storedAt: dateOf(stored.storedAt),
    }
  );
}
