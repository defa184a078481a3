/**
 * One member of a room, without I/O.
 *
 * States: down (no socket), joining (a socket, no welcome yet), joined, stopped. Events are methods
 * that take the time and return effects. Kept across lost sockets: the position of the reader, and
 * every message to send until it is answered or expired. After each welcome, the outbox writes what
 * is pending, and the reader's gap up to the welcome's position is fetched while live messages are
 * held. Not handled here: when to reconnect, and HTTP.
 */

import { type CommonEffect, warned } from '../protocol/effects.js';
import { Heartbeat } from '../protocol/incoming.js';
import { endFor } from '../protocol/pending.js';
import { type Bytes, decoded } from '../wire/bytes.js';
import { type ClientError, GaveUp, OutcomeUnknown, Refused, Unavailable } from '../wire/errors.js';
import { invalid } from '../wire/names.js';
import type { Random } from '../wire/pacing.js';
import { members } from '../wire/shapes.js';
import { type InboxPage, type RoomMessage, type Sent, limited, retryAfterMs } from './answers.js';
import { RoomOutbox } from './outbox.js';
import { CatchUp } from './reading.js';

const HEARTBEAT_MS = 30_000;
const WELCOME_MS = 10_000;
const SENDS_MAX = 1_000;
const TOO_BIG = 1009;

export type MemberPhase = 'down' | 'joining' | 'joined' | 'stopped';

export type RoomEffect =
  | CommonEffect
  /** The member has joined. */
  | { do: 'joined' }
  /** Fetch a page of the inbox from this position on; at most one at a time. */
  | { do: 'fetch'; fromSeq: number }
  /** A message of ours was accepted. */
  | { do: 'accepted'; id: string; sent: Sent }
  /** There are messages to take. */
  | { do: 'readable' };

/** Any frame from the hub on a room's socket; unknown members are ignored. */
interface Frame {
  action: string;
  seq: number;
  lastSeq: number;
  nextSeq: number;
  messageId: string;
  ciphertext: string;
  type: string | null;
  pseudonym: string | null;
  duplicate: boolean;
  error: string;
  errorCode: string;
  retryAfterMs: number | null;
  t: unknown;
}
const FRAME = {
  action: 's!',
  seq: 'i',
  lastSeq: 'i',
  nextSeq: 'i',
  messageId: 's',
  ciphertext: 's',
  type: 's?',
  'pseudonym<pseudonymId': 's?',
  duplicate: 'b',
  error: 's',
  errorCode: 's',
  retryAfterMs: 'n?',
};

const tooLarge = () => new Refused('TOO_LARGE', 'the message is larger than the hub reads');

/** The error that an error frame reports for a message, and when to retry. */
function errorOf(frame: Frame): [ClientError, number | null] {
  const { error, errorCode: code } = frame;
  const waitMs = retryAfterMs(
    frame.retryAfterMs !== null && frame.retryAfterMs >= 0 ? frame.retryAfterMs : null,
  );
  switch (code) {
    case 'RATE_LIMIT_EXCEEDED':
      return [limited(error, waitMs), waitMs];
    case 'UNAVAILABLE':
    case 'storage_failed': {
      const refused = new Unavailable(error || 'the hub cannot take messages now');
      refused.isAnswered = true;
      return [refused, waitMs];
    }
    case 'INTERNAL_ERROR':
    case 'outcome_unknown':
      return [new OutcomeUnknown(error || 'the hub failed'), waitMs];
    default:
      return [new Refused(code || 'BAD_FRAME', error || 'the hub gave no reason'), null];
  }
}

/** Joins a room, reads in order, and sends until answered. */
export class RoomProtocol {
  phase: MemberPhase = 'down';
  readonly reading: CatchUp;
  private _outbox: RoomOutbox;
  private _heartbeat: Heartbeat | null = null;
  private _pings = 0;
  private _welcomeByMs = 0;
  /** The size of a frame the hub closed the socket for. */
  private _unreadSize = Infinity;
  private _hasJoined = false;
  private _hasWarned = false;
  private _end: ClientError | null = null;

  constructor(
    private _pseudonym: string,
    since: number | null,
    random: Random,
  ) {
    this.reading = new CatchUp(since, random);
    this._outbox = new RoomOutbox(random);
  }

  /** A socket is open; the hub speaks first. */
  opened(nowMs: number): RoomEffect[] {
    this.phase = 'joining';
    this._heartbeat = new Heartbeat(HEARTBEAT_MS, nowMs);
    this._welcomeByMs = nowMs + WELCOME_MS;
    return [];
  }

  /** Handle a frame from the hub. */
  received(text: string, nowMs: number): RoomEffect[] {
    if (!this._heartbeat || this.phase === 'stopped') {
      return [];
    }
    this._heartbeat.heard(nowMs);
    let effects: RoomEffect[];
    try {
      const raw = JSON.parse(text);
      const frame = members<Frame>(raw, FRAME) ?? invalid('not a frame');
      // A ping without a `t` is answered without one.
      frame.t = raw.t;
      effects = this._understood(frame, nowMs);
    } catch {
      return this._warned('The hub sent a frame that cannot be read');
    }
    return [...effects, ...this._pump(nowMs)];
  }

  /** The socket is lost. */
  lost(closeCode: number | null): RoomEffect[] {
    const largest = closeCode === TOO_BIG ? this._outbox.tooBig() : undefined;
    if (largest) {
      this._unreadSize = largest.frame.length;
    }
    this._outbox.lost();
    this.reading.lost();
    this._heartbeat = null;
    if (this.phase !== 'stopped') {
      this.phase = 'down';
    }
    return largest ? [{ do: 'failed', id: largest.messageId, error: tooLarge() }] : [];
  }

  /** Send a message; `given` is added to its frame. */
  submit(
    messageId: string,
    ciphertext: Bytes,
    given: Record<string, string>,
    deadlineMs: number,
    nowMs: number,
  ): RoomEffect[] {
    const failed = (error: ClientError): RoomEffect[] => [{ do: 'failed', id: messageId, error }];
    if (this._end) {
      return failed(endFor(this._end));
    }
    if (this._outbox.has(messageId)) {
      invalid('a message with this id is already being sent');
    }
    if (this._outbox.size >= SENDS_MAX) {
      return failed(new Unavailable(`${SENDS_MAX} messages to this room are already waiting`));
    }
    const frame = JSON.stringify({ action: 'send', messageId, ...given });
    if (frame.length >= this._unreadSize) {
      // The hub would close the connection again.
      return failed(tooLarge());
    }
    this._outbox.submit({ messageId, frame, ciphertext, type: given.type!, deadlineMs });
    return this._pump(nowMs);
  }

  /** Forget a message whose caller no longer waits. */
  forget(messageId: string): void {
    this._outbox.forget(messageId);
  }

  /** The next message, if there is one. */
  take(nowMs: number): [RoomMessage | undefined, RoomEffect[]] {
    const message = this.reading.take();
    return [message, this._fetches(nowMs)];
  }

  /** Handle the page that a `fetch` requested. */
  fetched(fromSeq: number, page: InboxPage, nowMs: number): RoomEffect[] {
    const gaps = this.reading.fetched(fromSeq, page, nowMs);
    const reports = gaps.map(
      ({ first, last, isSkipped }): RoomEffect => ({
        do: 'report',
        event: { type: isSkipped ? 'skipped' : 'deleted', first, last },
      }),
    );
    return [...this._readable(), ...reports, ...this._fetches(nowMs)];
  }

  /** A `fetch` failed, temporarily or for good. */
  notFetched(error: ClientError, retryMs: number | null, nowMs: number): RoomEffect[] {
    if (retryMs === null) {
      return this.stop(new GaveUp(`the inbox of the room cannot be read: ${error.message}`));
    }
    this.reading.notFetched(retryMs, nowMs);
    return [];
  }

  /** The socket's buffer is full, or has room again. */
  congested(isCongested: boolean, nowMs: number): RoomEffect[] {
    this._outbox.congested(isCongested);
    return this._pump(nowMs);
  }

  /** Handle everything that is due. */
  tick(nowMs: number): RoomEffect[] {
    const effects: RoomEffect[] = this._outbox
      .expired(nowMs)
      .map(([id, error]) => ({ do: 'failed', id, error }));
    if (this.phase === 'joining' && nowMs >= this._welcomeByMs) {
      return [...effects, { do: 'drop', reason: `no welcome within ${WELCOME_MS / 1000} s` }];
    }
    if (this._heartbeat?.isDead(nowMs)) {
      return [...effects, { do: 'drop', reason: 'the hub does not answer pings' }];
    }
    if (this._heartbeat?.isDue(nowMs)) {
      effects.push(...this.beat(nowMs));
    }
    return [...effects, ...this._pump(nowMs)];
  }

  /** Send a ping now; if one is on its way, the wait for its answer starts over. */
  beat(nowMs: number): RoomEffect[] {
    const heartbeat = this._heartbeat;
    if (!heartbeat) {
      return [];
    }
    if (heartbeat.isWaiting) {
      heartbeat.restart(nowMs);
      return [];
    }
    const t = ++this._pings;
    heartbeat.beat(String(t), nowMs);
    heartbeat.sent(nowMs);
    return [{ do: 'send', frame: JSON.stringify({ action: 'ping', t }) }];
  }

  /** When `tick` has something to do. */
  wakeAtMs(): number {
    return Math.min(
      this._outbox.wakeAtMs,
      this.reading.wakeAtMs,
      this._heartbeat?.wakeAtMs ?? Infinity,
      this.phase === 'joining' ? this._welcomeByMs : Infinity,
    );
  }

  /** Stop for this reason. */
  stop(error: ClientError): RoomEffect[] {
    if (this.phase === 'stopped') {
      return [];
    }
    this.phase = 'stopped';
    this._end = error;
    this._heartbeat = null;
    this.reading.lost();
    const ended = this._outbox
      .end(error)
      .map(([id, why]): RoomEffect => ({ do: 'failed', id, error: why }));
    return [...ended, { do: 'stop', error }];
  }

  private _understood(frame: Frame, nowMs: number): RoomEffect[] {
    switch (frame.action) {
      case 'message': {
        const { seq, messageId, ciphertext, type, pseudonym } = frame;
        if (seq < 1 || !messageId) {
          invalid('a message has a position and an id');
        }
        this.reading.heard({
          seq,
          messageId,
          ciphertext: decoded(ciphertext),
          type,
          pseudonym,
          createdAt: null,
        });
        return this._readable();
      }
      case 'ack':
        return this._acked(frame);
      case 'error':
        return this._refused(frame, nowMs);
      case 'welcome':
        return this._welcomed(frame);
      case 'ping':
        return [{ do: 'send', frame: JSON.stringify({ action: 'pong', t: frame.t }) }];
      case 'pong':
        this._heartbeat?.answered(String(frame.t));
    }
    return [];
  }

  private _welcomed({ lastSeq, nextSeq }: Frame): RoomEffect[] {
    if (this.phase !== 'joining') {
      return [];
    }
    this.phase = 'joined';
    this._hasJoined = true;
    this._outbox.opened();
    const effects: RoomEffect[] = [{ do: 'joined' }];
    if (!this.reading.welcomed(lastSeq, nextSeq)) {
      effects.push({ do: 'report', event: { type: 'rewound', last: lastSeq } });
    }
    return effects;
  }

  private _acked({ messageId, seq, duplicate }: Frame): RoomEffect[] {
    const outgoing = this._outbox.accepted(messageId);
    if (!outgoing) {
      return [];
    }
    const sent = { messageId, seq, isRepeat: duplicate };
    const accepted: RoomEffect = { do: 'accepted', id: messageId, sent };
    if (duplicate) {
      return [accepted];
    }
    // The hub may not echo our own messages, so this is the only notice of it.
    const { ciphertext, type } = outgoing;
    this.reading.heard({
      seq,
      messageId,
      ciphertext,
      type,
      pseudonym: this._pseudonym,
      createdAt: null,
    });
    return [accepted, ...this._readable()];
  }

  private _refused(frame: Frame, nowMs: number): RoomEffect[] {
    const [error, waitMs] = errorOf(frame);
    const { messageId: id } = frame;
    if (this.phase === 'joining') {
      // The hub refused us only after the handshake.
      return waitMs === null
        ? this.stop(
            this._hasJoined ? new GaveUp(`refused when reconnecting: ${error.message}`) : error,
          )
        : [{ do: 'drop', reason: error.message }];
    }
    if (!this._outbox.has(id)) {
      return this._warned('The hub refused a frame', { code: frame.errorCode });
    }
    const final = this._outbox.refused(id, error, waitMs, nowMs);
    return final ? [{ do: 'failed', id, error: final }] : [];
  }

  private _pump(nowMs: number): RoomEffect[] {
    const frames = this._outbox.due(nowMs);
    if (frames.length) {
      this._heartbeat?.sent(nowMs);
    }
    return [...frames.map((frame): RoomEffect => ({ do: 'send', frame })), ...this._fetches(nowMs)];
  }

  private _fetches(nowMs: number): RoomEffect[] {
    const fromSeq = this.reading.nextFetch(nowMs);
    return fromSeq === null ? [] : [{ do: 'fetch', fromSeq }];
  }

  private _readable(): RoomEffect[] {
    return this.reading.hasReady ? [{ do: 'readable' }] : [];
  }

  /** Warn once: a hub that does something wrong tends to repeat it. */
  private _warned(sentence: string, facts: object = {}): RoomEffect[] {
    if (this._hasWarned) {
      return [];
    }
    this._hasWarned = true;
    return [warned(sentence, facts)];
  }
}
