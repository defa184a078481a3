/** Plays a case of kind `client`: the client, on a link and in a time that the case moves. */

import assert from 'node:assert/strict';
import { Client } from '../../src/client.js';
import { Consumer } from '../../src/consumers.js';
import { Message } from '../../src/message.js';
import type { Report } from '../../src/protocol/effects.js';
import { FrameWriter } from '../../src/protocol/frame.js';
import { Protocol } from '../../src/protocol/protocol.js';
import { Membership } from '../../src/protocol/restore.js';
import { Replay } from '../../src/replay.js';
import { GaveUp, Reject, RequestFailed } from '../../src/wire/errors.js';
import { Backoff, reconnectOf } from '../../src/wire/pacing.js';
import { type Case, type Json, Kept, errorFacts } from './matching.js';
import { StagedPlatform } from './platform.js';

const HUB = '@(cloudflare/signal-hub)';

/** How many positional arguments come before the options. */
const ARITY: Record<string, number> = {
  ...{ tell: 3, ask: 3, publish: 3, broadcast: 2, subscribe: 1, unsubscribe: 1, register: 1 },
  ...{ unregister: 1, discover: 1, actors: 0, sessions: 1, closeSession: 1, refreshToken: 1 },
  ...{ jobs: 0, limits: 1, createTopic: 1, updateTopic: 1, topic: 1, deleteTopic: 1, topics: 1 },
  ...{ subscriptions: 1, consume: 2, subscription: 2, pause: 2, resume: 2, deleteSubscription: 2 },
  ...{ updateSubscription: 2, seek: 3, replay: 3, redrive: 2, previewRedrive: 2, purge: 2 },
  ...{ republish: 2, erase: 0, place: 1, move: 3, forgetPlace: 1, credit: 0, ackUpTo: 1 },
  ...{ request: 3, requestMany: 2, reply: 1, fail: 1 },
  ...{ ack: 0, nack: 0, extend: 1, term: 0, cancel: 0, close: 0, ping: 0 },
};

const CONSUMER =
  'topic subscription name subscriptionId epoch head lag recovered lost losses isClosed';
const REPLAY = 'topic count complete lost';
const CLIENT = 'isConnected sessionId durability dropped lateReplies';
const MESSAGE =
  'id sender to type payload metadata timestamp ttl topic delivery originalId key headers deadLetter isReplay original isSettleable isOpen requestId expectsReply inReplyTo failure';

const picked = (value: Json, names: string) =>
  Object.fromEntries(names.split(' ').map((name) => [name, value[name] ?? null]));

/** A result as a case names it. */
function plain(value: Json): Json {
  if (value instanceof Consumer) {
    return { ...picked(value, CONSUMER), next: value.nextSeq, kept: [...value.kept].sort() };
  }
  if (value instanceof Replay) {
    return { ...picked(value, REPLAY), next: value.nextSeq };
  }
  if (value instanceof Client) {
    return picked(value, CLIENT);
  }
  return value instanceof Message ? picked(value, MESSAGE) : (value ?? null);
}

type Outcome = { value?: Json; error?: Json; isDone: boolean; stop: AbortController };

class Stage {
  private _kept = new Kept();
  private _platform: StagedPlatform;
  private _client: Client;
  private _address: string;
  private _backoff: Backoff;
  private _frames: Json[] = [];
  private _events: Json[] = [];
  private _link: object | null = null;
  private _readyMs: number | null = null;
  private _named = new Map<string, Json>();
  private _outcomes = new Map<string, Outcome>();
  private _taking = new Map<string, Outcome>();
  private _isDrained = false;

  constructor(given: Record<string, Json>) {
    const platform = new StagedPlatform([...(given.random ?? [])]);
    const address: string = given.address ?? '@(demo/alice)';
    const membership = new Membership(given.acknowledge);
    if (given.register ?? true) {
      const { capabilities = [], metadata = {}, leaseMs, durable } = given;
      membership.registered(address, { capabilities, metadata, leaseMs, durable }, false);
    }
    const frames = new FrameWriter(address, platform.newId);
    const protocol = new Protocol(frames, membership, platform.now());
    this._platform = platform;
    this._address = address;
    this._backoff = new Backoff(reconnectOf(given.reconnect), platform.random);
    this._client = new Client(address, {
      url: 'ws://127.0.0.1:1/ws',
      platform,
      protocol,
      inboxMax: given.inboxMax ?? 10_000,
      options: { token: given.token, listener: (event) => this._report(event) },
    });
    this._named.set('me', this._client);
  }

  async play(steps: Record<string, Json>[]): Promise<void> {
    for (const [index, step] of steps.entries()) {
      try {
        await this._step(step);
      } catch (error) {
        throw new Error(`at step ${index + 1}, ${JSON.stringify(step)}: ${(error as Error).stack}`);
      }
    }
  }

  /** Nothing is left that no step has looked at; then everything ends. */
  async end(isChecked: boolean): Promise<void> {
    const frames = [...this._frames];
    this._runner.giveUp(new GaveUp('the case is over'));
    for (const outcome of [...this._outcomes.values(), ...this._taking.values()]) {
      outcome.stop.abort();
    }
    await this._platform.settle();
    const closing = this._client.close();
    await this._platform.settle();
    await closing;
    if (isChecked && !this._isDrained) {
      assert.deepEqual(frames, [], 'written and not looked at');
    }
  }

  private get _runner() {
    return this._client._runner;
  }

  private _report(event: Report): void {
    const { error, ...facts } = event;
    const types: Record<string, string> = { heldup: 'held_up' };
    if (event.type === 'connected') {
      this._readyMs = this._platform.elapsedMs;
      this._backoff.succeeded();
    }
    if (event.type === 'state') {
      if (event.state === 'stopped') {
        this._events.push({ type: 'stopped', ...errorFacts(error) });
      }
      return;
    }
    this._events.push({
      ...facts,
      ...(event.type === 'ended' ? errorFacts(error) : {}),
      type: types[event.type] ?? event.type,
    });
  }

  private _lose(reason: string): void {
    assert.ok(this._link, 'there is no link to lose');
    this._link = null;
    this._runner.lost(reason);
    if (this._readyMs !== null) {
      this._backoff.lost(this._platform.elapsedMs - this._readyMs);
      this._readyMs = null;
    }
  }

  private async _open(): Promise<void> {
    const token = await this._client._token();
    const link = {
      isBusy: false,
      send: (frame: string) => void this._frames.push(JSON.parse(frame)),
      close: () => undefined,
      abort: (reason: string) =>
        this._platform.soon(() => {
          if (link === this._link) {
            this._lose(reason);
          }
        }),
    };
    this._link = link;
    this._runner.opened(link, token);
  }

  private _hear(frame: Json): void {
    assert.ok(this._link, 'there is no link to hear from');
    this._runner.received(
      JSON.stringify({
        id: 'h-1',
        from: HUB,
        to: this._address,
        payload: null,
        pattern: 'tell',
        correlationId: null,
        timestamp: this._platform.now().wallMs,
        metadata: {},
        ttl: null,
        signature: null,
        ...this._kept.filled(frame),
      }),
    );
  }

  private _answer(request: Json, type: string, payload: Json, metadata: Json = {}): void {
    this._hear({ type, payload, correlationId: request.id, metadata });
  }

  private _greet(given: Json): void {
    const hello = this._next();
    assert.equal(hello.type, 'hub:connect');
    const { metadata, ...facts } = this._kept.filled(given);
    this._answer(
      hello,
      'hub:connected',
      { sessionId: 's-1', capabilities: {}, ...facts },
      metadata,
    );
  }

  private _restore({ seats = {}, ...facts }: Json): void {
    this._greet(facts);
    while (!this._runner.isReady) {
      const request = this._next();
      const { payload } = request;
      if (request.type === 'hub:register') {
        this._answer(request, 'hub:registered', { actorAddress: payload.actorAddress });
      } else {
        assert.equal(request.type, 'hub:subscribe');
        const key = `${payload.topic}/${payload.subscription}`;
        const granted = 'subscription' in payload ? (seats[key] ?? { epoch: 'e1' }) : {};
        this._answer(request, 'hub:subscribed', granted);
      }
    }
  }

  private _next(): Json {
    assert.ok(this._frames.length, 'nothing was written');
    return this._frames.shift();
  }

  private _started(run: (signal: AbortSignal) => unknown, name?: string): Outcome {
    const outcome: Outcome = { isDone: false, stop: new AbortController() };
    void (async () => {
      try {
        outcome.value = await run(outcome.stop.signal);
        if (name) {
          this._named.set(name, outcome.value);
        }
      } catch (error) {
        outcome.error = error;
      }
      outcome.isDone = true;
    })();
    return outcome;
  }

  private _call([method, ...given]: Json[], on: string, options: Json, name: string): void {
    const target = this._named.get(on);
    const args = [...given];
    const arity = ARITY[method] ?? 0;
    args.length = Math.max(arity, args.length);
    if (method === 'republish') {
      args[1] ??= [];
    }
    const outcome = this._started((signal) => {
      const isPlain = ['replay', 'close', 'cancel', 'requestMany'].includes(method);
      const all = isPlain ? options : { ...options, signal };
      return target[method](...args, all);
    }, name);
    this._outcomes.set(name, outcome);
  }

  private _take(of: string): Outcome {
    const source = of === 'me' ? this._client.messages() : this._named.get(of);
    return this._started((signal) => source.next(signal));
  }

  private async _step(step: Record<string, Json>, isSettled = true): Promise<void> {
    const name = Object.keys(step).find((one) => !['on', 'as', 'options'].includes(one))!;
    const value = step[name];
    const { as, options } = step;
    switch (name) {
      case 'open':
        await this._open();
        break;
      case 'greet':
        this._greet(value);
        break;
      case 'restore':
        this._restore(value);
        break;
      case 'hear':
        this._hear(value);
        break;
      case 'hear_text':
        this._runner.received(value);
        break;
      case 'lose':
        this._lose(value);
        break;
      case 'congested':
        this._runner.congested(value);
        break;
      case 'wait_ms':
        await this._platform.wait(value);
        break;
      case 'call': {
        const filled = this._kept.filled(options ?? {});
        const called = as ?? `call ${this._outcomes.size}`;
        this._call(this._kept.filled(value), step.on ?? 'me', filled, called);
        break;
      }
      case 'cancel':
        this._outcomes.get(value)!.stop.abort();
        break;
      case 'take':
        await this._taken(value, step);
        break;
      case 'handle':
        this._client.on(value, ({ payload }) => {
          if (step.reject && payload in step.reject) {
            throw new Reject(step.reject[payload]);
          }
          if (step.fail?.includes(payload)) {
            throw new RangeError('it fails');
          }
        });
        break;
      case 'answer':
        this._client.answer(
          value,
          ({ payload }) => {
            if (step.fail) {
              const { code, text } = step.fail;
              throw code ? new RequestFailed(code, text) : new RangeError(text);
            }
            return step.result === '$payload' ? payload : step.result;
          },
          { atOnce: step.at_once },
        );
        break;
      case 'give_up':
        this._runner.giveUp(new GaveUp(value));
        break;
      case 'repeat':
        for (let number = 1; number <= value; number++) {
          this._kept.keep('$n', number);
          for (const one of step.steps) {
            await this._step(one);
          }
        }
        break;
      case 'together':
        for (const one of value) {
          await this._step(one, false);
        }
        break;
      default:
        this._expect(name, value, step);
    }
    if (isSettled) {
      await this._platform.settle();
    }
  }

  private async _taken(of: string, { message, failed, as }: Json): Promise<void> {
    const outcome = this._taking.get(of) ?? this._take(of);
    this._taking.delete(of);
    await this._platform.settle();
    if (message === 'nothing') {
      assert.ok(!outcome.isDone, `there is ${JSON.stringify(outcome.value)}`);
      this._taking.set(of, outcome);
      return;
    }
    assert.ok(outcome.isDone, 'there is no message yet');
    if (failed) {
      assert.ok(outcome.error, 'it has not failed');
      this._kept.check(failed, errorFacts(outcome.error), 'error');
      return;
    }
    assert.equal(outcome.error, undefined);
    if (message === 'end') {
      assert.equal(outcome.value, undefined);
      return;
    }
    assert.ok(outcome.value, 'there is no other message');
    this._kept.check(message, plain(outcome.value), 'message');
    if (as) {
      this._named.set(as, outcome.value);
    }
  }

  private _expect(name: string, value: Json, step: Record<string, Json>): void {
    switch (name) {
      case 'sent':
        if (value === 'nothing') {
          assert.deepEqual(this._frames, []);
        } else if (Array.isArray(value)) {
          value.forEach((one) => this._kept.check(one, this._next(), 'frame'));
          assert.deepEqual(this._frames, []);
        } else {
          this._kept.check(value, this._next(), 'frame');
        }
        break;
      case 'sent_exactly':
        this._kept.check(value, this._next(), 'frame', true);
        break;
      case 'sent_any': {
        const frames = value.map(() => this._next());
        for (const one of value) {
          const at = frames.findIndex((frame: Json) => {
            try {
              this._kept.check(one, frame);
              return true;
            } catch {
              return false;
            }
          });
          assert.ok(at >= 0, `${JSON.stringify(one)} is not among ${JSON.stringify(frames)}`);
          frames.splice(at, 1);
        }
        break;
      }
      case 'sent_count': {
        const counts: Record<string, number> = {};
        for (const frame of this._frames.splice(0)) {
          counts[frame.type] = (counts[frame.type] ?? 0) + 1;
        }
        for (const type of new Set([...Object.keys(counts), ...Object.keys(value)])) {
          const bounds = value[type] ?? 0;
          const [least, most] = Array.isArray(bounds) ? bounds : [bounds, bounds];
          const count = counts[type] ?? 0;
          assert.ok(count >= least && count <= most, `${count} of ${type}`);
        }
        break;
      }
      case 'drain':
        this._frames.length = 0;
        this._isDrained = true;
        break;
      case 'done': {
        const outcome = this._outcomes.get(value)!;
        assert.ok(outcome.isDone, 'there is no outcome yet');
        assert.equal(outcome.error, undefined, `it failed: ${outcome.error?.stack}`);
        if ('value' in step) {
          this._kept.check(step.value, plain(outcome.value), 'value');
        }
        break;
      }
      case 'failed': {
        const outcome = this._outcomes.get(value)!;
        assert.ok(outcome.isDone, 'there is no outcome yet');
        assert.ok(outcome.error, `it is done: ${JSON.stringify(outcome.value)}`);
        const { failed: _, ...expected } = step;
        this._kept.check(expected, errorFacts(outcome.error), 'error');
        break;
      }
      case 'pending':
        assert.ok(!this._outcomes.get(value)!.isDone, 'there is an outcome');
        break;
      case 'event': {
        const expected = typeof value === 'string' ? { type: value } : value;
        const at = this._events.findIndex(({ type }) => type === expected.type);
        assert.ok(at >= 0, `there is no such event in ${JSON.stringify(this._events)}`);
        this._kept.check(expected, this._events.splice(at, 1)[0], 'event');
        break;
      }
      case 'no_event':
        assert.deepEqual(
          this._events.filter(({ type }) => type === value),
          [],
        );
        break;
      case 'facts':
        this._kept.check(step.value, plain(this._named.get(value)), 'facts');
        break;
      case 'next_attempt_ms': {
        const waitMs = this._backoff.next(step.retry_after_ms ?? 0);
        const isSame = waitMs === value || Math.abs(waitMs! - value) < 0.5;
        assert.ok(isSame && (value === null) === (waitMs === null), `${waitMs} ms`);
        break;
      }
      default:
        assert.fail(`unknown step ${name}`);
    }
  }
}

/** Play one case. */
export async function playClient(one: Case): Promise<void> {
  const stage = new Stage(one.given ?? {});
  try {
    await stage.play(one.steps);
  } catch (error) {
    await stage.end(false);
    throw error;
  }
  await stage.end(true);
}
