/**
 * The client's side of the wire protocol: no sockets, no promises, no clock.
 *
 * States: down (no link) → greeting (`hub:connect` is sent) → restoring (registrations, then
 * subscriptions and consumers, in the order they were first made) → ready, and back to down when the
 * link is lost. Leaving: our goodbye is sent; stopped is final.
 *
 * Events are methods that take the time and return effects. The state consists of unfinished
 * requests, what to restore, pauses, the pending heartbeat, and tells that may still be refused
 * because of their rate. Not handled here: when to reconnect, and which handler gets a message.
 *
 * Rules: a request ends exactly once; one that was written and not answered fails as
 * `OutcomeUnknown`, one that was never written as `Unavailable`; an ask is repeated with the same id.
 * A consumer that cannot join again ends alone; any other refusal while restoring ends the client.
 */

import { beat, disconnecting } from '../requests.js';
import { type ClientError, GaveUp, Refused, Unavailable } from '../wire/errors.js';
import { HUB_TYPE_PREFIX, invalid } from '../wire/names.js';
import { textIn } from '../wire/shapes.js';
import { type Effect, type Instant, warned } from './effects.js';
import { Flow } from './flow.js';
import type { FrameWriter, Json, Request } from './frame.js';
import {
  ANSWER_MS,
  HEARTBEAT_MS,
  Heartbeat,
  type Incoming,
  REFUSAL_TYPES,
  type Welcome,
  decode,
  factsOf,
  messageOf,
  refusalEventOf,
  refusalOf,
  retryAfterMs,
  welcomeOf,
} from './incoming.js';
import { Deadlines, Pending, RETRY_PAUSE_MS, Recent, type Submission, endFor } from './pending.js';
import type { Membership } from './restore.js';

const HELLO_MS = 5_000;
const GOODBYE_TTL_MS = 500;
const WAITING_MAX = 1_000;
const WAIT_MS = 60_000;
const RATE_LIMITED_MS = 1_000;
const REFUSAL_PAUSE_MAX_MS = 5_000;
const NEARLY_MS = 1e-3;

/** After one of these, the hub would end the next connection as well. */
const FINAL_REASONS = ['duplicate_connection', 'unauthorized', 'version_mismatch'];
const WAITED_OUT = ['rate_limited', 'actor_reconnecting', 'queue_full', 'storage_full'];

export type LinkPhase = 'down' | 'greeting' | 'restoring' | 'ready' | 'leaving' | 'stopped';

/** One client's conversation with its hub, over any number of links. */
export class Protocol {
  phase: LinkPhase = 'down';
  sessionId = '';
  welcome: Welcome = welcomeOf({} as Incoming);
  private _wasReady = false;
  private _end: ClientError | null = null;
  private _orders = 0;
  private _toRestore = 0;
  private _helloId = '';
  private _phaseEndMs = 0;
  private _heartbeat: Heartbeat;
  private _flow: Flow;
  private _pending = new Map<string, Pending>();
  private _replays = new Map<string, Pending>();
  private _deadlines = new Deadlines();
  private _recent = new Recent();

  constructor(
    readonly frames: FrameWriter,
    readonly membership: Membership,
    now: Instant,
    private _json: Json = JSON,
  ) {
    this._heartbeat = new Heartbeat(HEARTBEAT_MS, now.monoMs);
    this._flow = new Flow(now.monoMs);
  }

  isPending(id: string): boolean {
    return this._pending.has(id);
  }

  /** Accept a request; throws errors that can be known immediately. */
  submit(request: Request, now: Instant, submission: Submission = {}): Effect[] {
    const { id, subject, size } = request;
    if (this._end !== null) {
      throw endFor(this._end);
    }
    const most = this.welcome.messageBytesMax;
    if (size > most) {
      throw new Refused(
        'message_too_large',
        `${subject} has ${size} bytes, the hub takes at most ${most}`,
        { resolution: 'send less, or a reference to it, or raise message_bytes_max' },
      );
    }
    if (this.phase !== 'ready' && this._flow.waiting >= WAITING_MAX) {
      throw new Unavailable(`${WAITING_MAX} requests are already waiting for a connection`);
    }
    if (this._pending.has(id)) {
      invalid(`${subject}: a request with the id ${id} is already pending`);
    }
    const pending = this._add(request, now, submission);
    const effects = this._pump(now);
    if (this._pending.has(id)) {
      this._deadlines.set(pending, now.monoMs + (request.answer ? request.timeoutMs : WAIT_MS));
    }
    return effects;
  }

  /** Forget a request whose caller no longer waits: do not repeat it, ignore its answer. */
  forget(id: string): void {
    const pending = this._pending.get(id);
    if (pending) {
      this._finish(pending);
    }
  }

  /** Greet the hub over a new link. */
  opened(token: string | null, now: Instant): Effect[] {
    this.phase = 'greeting';
    this._phaseEndMs = now.monoMs + HELLO_MS;
    const hello = this.membership.hello(this.frames, token, now.wallMs);
    this._helloId = hello.id;
    return [{ do: 'send', frame: hello.frame }];
  }

  /** The link is lost: repeatable requests wait for the next one. */
  lost(reason: string, now: Instant): Effect[] {
    if (this._end !== null) {
      return this.stop(this._end);
    }
    this.phase = 'down';
    this.sessionId = '';
    this._toRestore = 0;
    this._recent.clear();
    this._flow.closed(now.monoMs);
    const effects: Effect[] = [];
    const again: Pending[] = [];
    for (const pending of [...this._pending.values()]) {
      if (pending.isRestoring) {
        this._finish(pending);
      } else if (pending.isWaiting || pending.isResting) {
        continue;
      } else if (pending.request.isRepeatable) {
        pending.collected = [];
        again.push(pending);
      } else {
        const cause = `the connection was lost before the hub answered (${reason})`;
        effects.push(...this._fail(pending, pending.outcome(cause)));
      }
    }
    this._flow.putBack(again);
    return effects;
  }

  /** Handle a frame from the hub. */
  received(frame: string, now: Instant): Effect[] {
    const incoming = decode(frame, this._json);
    if (incoming === null) {
      return [warned('Ignored a frame that is not a message', { size: frame.length })];
    }
    const { type, correlationId } = incoming;
    this._heartbeat.heard(now.monoMs);
    if (!type.startsWith(HUB_TYPE_PREFIX)) {
      return this._arrived(incoming);
    }
    if (REFUSAL_TYPES.has(type)) {
      return this._refused(incoming, now);
    }
    switch (type) {
      case 'hub:connected':
        return this._connected(incoming, now);
      case 'hub:disconnect':
        return this._disconnected(incoming);
      case 'hub:pause':
        this._flow.pause(textIn(incoming.payload, 'target'), now.monoMs);
        return [];
      case 'hub:resume':
        this._flow.resume(textIn(incoming.payload, 'target'));
        return this._pump(now);
      case 'hub:heartbeat_ack':
        this._heartbeat.answered(correlationId);
        this._flow.unread.answered(correlationId);
        return [...this._answered(incoming, now), ...this._pump(now)];
      case 'hub:unsubscribed':
        if (correlationId === null) {
          return this._unseated(incoming);
        }
    }
    return this._answered(incoming, now);
  }

  /** The link's buffer is full, or has room again. */
  congested(isCongested: boolean, now: Instant): Effect[] {
    this._flow.isCongested = isCongested;
    return this._pump(now);
  }

  /** Handle everything that is due. */
  tick(now: Instant): Effect[] {
    const nowMs = now.monoMs;
    if ((this.phase === 'greeting' || this.phase === 'restoring') && nowMs >= this._phaseEndMs) {
      return [
        { do: 'drop', reason: `the hub did not answer within ${HELLO_MS / 1000} s of connecting` },
      ];
    }
    const effects: Effect[] = [];
    if (this.phase === 'ready') {
      if (this._heartbeat.isDead(nowMs)) {
        return [
          { do: 'drop', reason: `the hub did not answer a heartbeat within ${ANSWER_MS / 1000} s` },
        ];
      }
      if (this._heartbeat.isDue(nowMs)) {
        effects.push(...this.beat(now));
      }
    }
    for (const pending of this._deadlines.due(nowMs)) {
      effects.push(...this._due(pending, now));
    }
    return [...effects, ...this._pump(now)];
  }

  /**
   * Send a heartbeat now, because the program may have slept; if one is on its way, the wait for its
   * answer starts over.
   */
  beat(now: Instant): Effect[] {
    if (this.phase !== 'ready') {
      return [];
    }
    if (this._heartbeat.isWaiting) {
      this._heartbeat.restart(now.monoMs);
      return [];
    }
    const request = this.frames.request(beat(now.wallMs), now.wallMs);
    this._heartbeat.beat(request.id, now.monoMs);
    return [this._sent(request.frame, now)];
  }

  /** When `tick` must be called even if there is no event. */
  wakeAtMs(nowMs: number): number {
    return Math.min(
      this._deadlines.nextMs,
      this._flow.wakeAtMs(nowMs),
      this.phase === 'greeting' || this.phase === 'restoring' ? this._phaseEndMs : Infinity,
      this.phase === 'ready' ? this._heartbeat.wakeAtMs : Infinity,
    );
  }

  /** Say goodbye; a `stop` follows once the hub has answered or the link is lost. */
  leave(now: Instant): Effect[] {
    const closed = new Unavailable('the client was closed');
    if (this.phase !== 'ready') {
      return this.stop(closed);
    }
    this.phase = 'leaving';
    this._end = closed;
    const goodbye = this.frames.request(disconnecting(), now.wallMs, { ttlMs: GOODBYE_TTL_MS });
    return [...this._failAll(closed), { do: 'send', frame: goodbye.frame }];
  }

  /** Give up for good and fail everything that is pending. */
  stop(error: ClientError): Effect[] {
    if (this.phase === 'stopped') {
      return [];
    }
    this.phase = 'stopped';
    this._end = error;
    return [...this._failAll(error), { do: 'stop', error }];
  }

  private _connected(incoming: Incoming, now: Instant): Effect[] {
    if (this.phase !== 'greeting' || incoming.correlationId !== this._helloId) {
      return [];
    }
    const welcome = welcomeOf(incoming);
    this.welcome = welcome;
    this.phase = 'restoring';
    this.sessionId = welcome.sessionId;
    this._heartbeat = new Heartbeat(welcome.heartbeatMs, now.monoMs);
    this._flow.greeted(welcome.messageRate, welcome.messageBurst, now.monoMs);
    const requests = this.membership.requests(this.frames, now.wallMs);
    this._toRestore = requests.length;
    for (const [request, seat] of requests) {
      this._add(request, now, { seat, isRestoring: true });
    }
    return this._restored(now);
  }

  /** Continue restoring; become ready after the last step. */
  private _restored(now: Instant): Effect[] {
    this._phaseEndMs = now.monoMs + HELLO_MS;
    if (this._toRestore) {
      return this._pump(now);
    }
    this.phase = 'ready';
    this._wasReady = true;
    this._flow.opened();
    this._renewInTime();
    return [{ do: 'ready', sessionId: this.sessionId }, ...this._pump(now)];
  }

  /** A lease shorter than the hub's heartbeat interval needs more frequent heartbeats. */
  private _renewInTime(): void {
    this._heartbeat.intervalMs = Math.min(this.welcome.heartbeatMs, this.membership.leaseMs / 3);
  }

  private _disconnected(incoming: Incoming): Effect[] {
    if (this._end !== null) {
      return this.stop(this._end);
    }
    const reason = textIn(incoming.payload, 'reason') ?? 'no_reason_given';
    const detail = textIn(incoming.payload, 'message') ?? 'no details given';
    const text = `the hub ended the connection: ${reason}: ${detail}`;
    if (!FINAL_REASONS.includes(reason)) {
      return [{ do: 'drop', reason: text }];
    }
    return this.stop(this._wasReady ? new GaveUp(text) : new Refused(reason, detail));
  }

  private _arrived(incoming: Incoming): Effect[] {
    const message = messageOf(incoming);
    if (message.metadata.replay !== true) {
      return [{ do: 'arrived', message }];
    }
    // The rest of a replay whose caller no longer waits is ignored.
    this._replays.get(message.topic ?? '')?.collected.push(message);
    return [];
  }

  /** The hub has ended one of our durable subscriptions. */
  private _unseated(incoming: Incoming): Effect[] {
    const facts = factsOf(incoming);
    const seat = this.membership.seatNamed(facts);
    if (!seat) {
      return [];
    }
    this.membership.left(seat);
    return [seat.withdrawn(textIn(facts, 'reason') ?? 'no_reason_given')];
  }

  private _answered(incoming: Incoming, now: Instant): Effect[] {
    const pending = this._pending.get(incoming.correlationId ?? '');
    const { answer, alias, id } = pending?.request ?? {};
    // Unknown types, and answers to requests that were forgotten, are ignored.
    if (!pending || (incoming.type !== answer && incoming.type !== alias)) {
      return [];
    }
    this._finish(pending);
    if (answer === 'hub:registered') {
      this.membership.granted(factsOf(incoming));
    }
    const effects = pending.seat?.taken(factsOf(incoming)) ?? [];
    if (pending.isRestoring) {
      this._toRestore--;
      return [...effects, ...this._restored(now)];
    }
    if (pending.then) {
      pending.then();
      this._renewInTime();
    }
    return [
      ...effects,
      {
        do: 'answered',
        id: id!,
        payload: incoming.payload,
        attempts: pending.sends,
        messages: pending.collected,
      },
    ];
  }

  private _refused(incoming: Incoming, now: Instant): Effect[] {
    const error = refusalOf(incoming);
    const id = incoming.correlationId ?? '';
    if (id === this._helloId && this.phase === 'greeting') {
      return this._turnedAway(error);
    }
    const pending = this._pending.get(id);
    if (!pending) {
      this._flow.unread.answered(id);
      return [...this._refusedTell(this._recent.pop(id), error, incoming, now), ...this._pump(now)];
    }
    pending.unanswered = Math.max(0, pending.unanswered - 1);
    pending.refusal = error;
    if (WAITED_OUT.includes(error.code) && !(pending.isRequest && error.code === 'queue_full')) {
      return this._waitOut(pending, error, incoming, now);
    }
    if (pending.request.answer === null && pending.sends) {
      // A repeated tell; its caller has already returned.
      this._finish(pending);
      return [{ do: 'report', event: refusalEventOf(incoming, pending.request.subject) }];
    }
    if (!pending.isRestoring) {
      return this._fail(pending, error);
    }
    const { seat } = pending;
    if (!seat) {
      return this._turnedAway(error);
    }
    const { topic, subscription } = seat;
    this._finish(pending);
    this._toRestore--;
    this.membership.left(seat);
    return [{ do: 'ended', topic, subscription, error }, ...this._restored(now)];
  }

  /** The hub will accept the request later: repeat it then, if there is time. */
  private _waitOut(
    pending: Pending,
    error: ClientError,
    incoming: Incoming,
    now: Instant,
  ): Effect[] {
    if (pending.isWaiting || pending.isResting) {
      return [];
    }
    pending.refusals++;
    if (error.code === 'rate_limited') {
      this._slowDown(pending, incoming, now);
      return [];
    }
    const waitMs =
      retryAfterMs(incoming) ?? Math.min(RETRY_PAUSE_MS * pending.refusals, REFUSAL_PAUSE_MAX_MS);
    if (now.monoMs + waitMs >= pending.endMs) {
      return this._fail(pending, error);
    }
    pending.isResting = true;
    this._deadlines.set(pending, now.monoMs + waitMs);
    return [];
  }

  private _refusedTell(
    tell: Pending | undefined,
    error: ClientError,
    incoming: Incoming,
    now: Instant,
  ): Effect[] {
    if (!tell || error.code !== 'rate_limited') {
      return [{ do: 'report', event: refusalEventOf(incoming, tell?.request.subject) }];
    }
    tell.sinceMs = now.monoMs;
    this._pending.set(tell.request.id, tell);
    this._slowDown(tell, incoming, now);
    this._deadlines.set(tell, now.monoMs + WAIT_MS);
    return [];
  }

  /** Our rate was too high: send nothing as long as the hub says, then repeat this. */
  private _slowDown(pending: Pending, incoming: Incoming, now: Instant): void {
    this._flow.hold(now.monoMs + (retryAfterMs(incoming) ?? RATE_LIMITED_MS));
    this._flow.putBack([pending]);
  }

  /** The hub refused the connection, or a part of what is restored. */
  private _turnedAway(error: ClientError): Effect[] {
    if (!this._wasReady) {
      return this.stop(error);
    }
    if (!(error instanceof Refused) || error.retryable) {
      return [{ do: 'drop', reason: error.message }];
    }
    return this.stop(new GaveUp(`the hub refused to restore this client: ${error.message}`));
  }

  private _due(pending: Pending, now: Instant): Effect[] {
    const { request } = pending;
    const nowMs = now.monoMs;
    if (request.answer === null) {
      return this._waited(pending, now);
    }
    if (pending.isResting) {
      pending.isResting = false;
      this._deadlines.set(pending, Math.min(nowMs + request.timeoutMs, pending.endMs));
      this._flow.putBack([pending]);
      return [];
    }
    if (pending.attempt >= request.attempts || nowMs >= pending.endMs - NEARLY_MS) {
      const seconds = +((nowMs - pending.sinceMs) / 1000).toPrecision(3);
      return this._fail(pending, pending.outcome(`no answer in ${seconds} s`));
    }
    const restMs = RETRY_PAUSE_MS * pending.attempt++;
    if (pending.isWaiting) {
      this._deadlines.set(pending, nowMs + restMs + request.timeoutMs);
    } else {
      pending.isResting = true;
      this._deadlines.set(pending, nowMs + restMs);
    }
    return [];
  }

  /** Fail a tell that was held back for too long; waiting for its turn does not count. */
  private _waited(tell: Pending, now: Instant): Effect[] {
    const stalledMs = this._flow.stalledSinceMs(tell) ?? now.monoMs;
    const endMs = Math.max(tell.sinceMs, stalledMs) + WAIT_MS;
    if (now.monoMs < endMs - NEARLY_MS) {
      this._deadlines.set(tell, endMs);
      return [];
    }
    const cause = this.phase === 'ready' ? 'the hub has paused it' : 'there is no connection';
    return this._fail(
      tell,
      new Unavailable(`${tell.request.subject} was not sent: ${cause} for ${WAIT_MS / 1000} s`),
    );
  }

  private _add(request: Request, now: Instant, submission: Submission): Pending {
    const pending = new Pending(request, ++this._orders, now.monoMs, submission);
    this._pending.set(request.id, pending);
    if (request.collects !== undefined) {
      this._replays.set(request.collects, pending);
    }
    this._flow.add(pending);
    return pending;
  }

  /** Write all requests that can be written. */
  private _pump(now: Instant): Effect[] {
    const effects: Effect[] = [];
    for (;;) {
      if (this._flow.unread.isMarkDue) {
        const mark = this.frames.request(beat(now.wallMs), now.wallMs);
        this._flow.unread.mark(mark.id);
        effects.push(this._sent(mark.frame, now));
      }
      const pending = this._flow.take(now.monoMs);
      if (!pending) {
        return effects;
      }
      const { id, frame, answer } = pending.request;
      pending.sends++;
      pending.unanswered++;
      effects.push(this._sent(frame, now));
      if (answer === null) {
        this._finish(pending);
        this._recent.add(pending);
        if (pending.sends === 1) {
          effects.push({ do: 'answered', id, payload: null, attempts: 1, messages: [] });
        }
      }
    }
  }

  private _sent(frame: string, now: Instant): Effect {
    this._heartbeat.sent(now.monoMs);
    return { do: 'send', frame };
  }

  private _finish(pending: Pending): void {
    const { id, collects } = pending.request;
    this._pending.delete(id);
    if (collects !== undefined) {
      this._replays.delete(collects);
    }
    this._deadlines.clear(pending);
    this._flow.withdraw(pending);
  }

  private _fail(pending: Pending, error: ClientError): Effect[] {
    const { id, answer, subject } = pending.request;
    this._finish(pending);
    if (answer === null && pending.sends) {
      // Its caller has already returned, because it was written once; only a warning is possible.
      return [
        {
          do: 'report',
          event: { type: 'refused', code: error.code, subject, detail: '', resolution: '' },
        },
      ];
    }
    return [{ do: 'failed', id, error }];
  }

  private _failAll(error: ClientError): Effect[] {
    const effects: Effect[] = [];
    for (const pending of [...this._pending.values()]) {
      if (pending.isRestoring) {
        this._finish(pending);
      } else {
        effects.push(...this._fail(pending, pending.ended(error)));
      }
    }
    return effects;
  }
}
