/** Plays a case of kind `room`: a member of a room, without sockets. */

import assert from 'node:assert/strict';
import type { RoomMessage } from '../../src/rooms/answers.js';
import { type RoomEffect, RoomProtocol } from '../../src/rooms/protocol.js';
import { encoded, textOf, utf8 } from '../../src/wire/bytes.js';
import { GaveUp, Refused, Unavailable } from '../../src/wire/errors.js';
import { type Case, type Json, Kept, errorFacts, seqs } from './matching.js';

const WAKES_MAX = 100_000;

class Stage {
  private _kept = new Kept();
  private _protocol: RoomProtocol;
  private _nowMs = 1_000;
  private _frames: Json[] = [];
  private _fetches: number[] = [];
  private _events: Json[] = [];
  private _outcomes = new Map<string, Json>();
  private _isDrained = false;

  constructor(given: Record<string, Json>) {
    const numbers: number[] = [...(given.random ?? [])];
    const random = () => (numbers.length > 1 ? numbers.shift() : numbers[0]) ?? 0;
    const since = 'since' in given ? given.since : 0;
    this._protocol = new RoomProtocol(given.pseudonym ?? 'p1', since, random);
  }

  play(steps: Record<string, Json>[]): void {
    for (const [index, step] of steps.entries()) {
      try {
        this._step(step);
      } catch (error) {
        throw new Error(`at step ${index + 1}, ${JSON.stringify(step)}: ${(error as Error).stack}`);
      }
    }
  }

  end(): void {
    if (!this._isDrained) {
      assert.deepEqual(this._frames, [], 'not looked at');
    }
  }

  private _perform(effects: RoomEffect[]): void {
    for (const effect of effects) {
      switch (effect.do) {
        case 'send':
          this._frames.push(JSON.parse(effect.frame));
          break;
        case 'fetch':
          this._fetches.push(effect.fromSeq);
          break;
        case 'accepted':
          this._finish(effect.id, effect.sent);
          break;
        case 'failed':
          this._finish(effect.id, { error: errorFacts(effect.error) });
          break;
        case 'joined':
          this._events.push({ type: 'joined' });
          break;
        case 'drop':
          this._events.push({ type: 'drop', reason: effect.reason });
          this._perform(this._protocol.lost(null));
          break;
        case 'stop':
          this._events.push({ type: 'stopped', ...errorFacts(effect.error) });
          break;
        case 'report':
          this._events.push(effect.event);
      }
    }
  }

  private _finish(id: string, outcome: Json): void {
    assert.equal(this._outcomes.get(id), null, `${id} ends twice`);
    this._outcomes.set(id, outcome);
  }

  private _hear(frame: Json): void {
    const text = JSON.stringify(this._kept.filled(frame));
    this._perform(this._protocol.received(text, this._nowMs));
  }

  private _wait(ms: number): void {
    const endMs = this._nowMs + ms;
    for (let wakes = 0; wakes < WAKES_MAX; wakes++) {
      let wakeAtMs = this._protocol.wakeAtMs();
      if (wakeAtMs > endMs) {
        break;
      }
      if (wakeAtMs <= this._nowMs) {
        // What it waits for is not a matter of time; it was told so just now.
        wakeAtMs = Math.min(endMs, this._nowMs + 1);
      }
      const isLast = wakeAtMs === this._nowMs;
      this._nowMs = wakeAtMs;
      this._perform(this._protocol.tick(this._nowMs));
      if (isLast) {
        break;
      }
    }
    this._nowMs = Math.max(this._nowMs, endMs);
    this._perform(this._protocol.tick(this._nowMs));
  }

  private _call([, id, text]: Json[], options: Json = {}): void {
    const data = utf8(typeof text === 'string' ? text : 'x'.repeat(text.size));
    const members = { ciphertext: encoded(data), type: options.type ?? 'mls_app' };
    const deadlineMs = this._nowMs + (options.timeoutMs ?? 1_000_000);
    const before = this._outcomes.get(id);
    this._outcomes.set(id, null);
    let effects: RoomEffect[];
    try {
      effects = this._protocol.submit(id, data, members, deadlineMs, this._nowMs);
    } catch (error) {
      this._outcomes.set(id, before);
      this._outcomes.set(`${id} again`, { error: errorFacts(error) });
      return;
    }
    this._perform(effects);
  }

  private _takeOne(): RoomMessage | undefined {
    const [message, effects] = this._protocol.take(this._nowMs);
    this._perform(effects);
    return message;
  }

  private _takeAll(): Json[] {
    const taken: Json[] = [];
    for (let message; (message = this._takeOne()); ) {
      taken.push({ ...message, ciphertext: textOf(message.ciphertext) });
    }
    return taken;
  }

  private _page(said: Json): void {
    let listed: Json = said.seqs ?? [];
    if (!Array.isArray(listed) || !listed.every((one: Json) => typeof one === 'object')) {
      listed = seqs(listed).map((seq) => ({ seq, messageId: `m${seq}` }));
    }
    const messages = listed.map((one: Json) => ({
      type: null,
      pseudonym: null,
      createdAt: null,
      ciphertext: utf8('x'),
      ...one,
    }));
    const last = messages.at(-1);
    const page = {
      messages,
      nextSeq: said.nextSeq ?? (last ? last.seq + 1 : said.from),
      oldestSeq: null,
      isPartial: said.partial ?? false,
      reason: null,
      skipped: (said.skipped ?? []).map(([first, end]: number[]) => ({ first, last: end })),
    };
    this._perform(this._protocol.fetched(said.from, page, this._nowMs));
  }

  private _step(step: Record<string, Json>): void {
    const [name] = Object.keys(step) as [string];
    const value = step[name];
    const { _protocol: protocol } = this;
    switch (name) {
      case 'open':
        return this._perform(protocol.opened(this._nowMs));
      case 'join':
        this._perform(protocol.opened(this._nowMs));
        return this._hear({ action: 'welcome', lastSeq: value, oldestBufferedSeq: 1 });
      case 'hear':
        return this._hear(value);
      case 'hear_text':
        return this._perform(protocol.received(value, this._nowMs));
      case 'live':
        return seqs(value).forEach((seq) =>
          this._hear({
            action: 'message',
            type: 'mls_app',
            seq,
            messageId: `m${seq}`,
            ciphertext: encoded(utf8('x')),
          }),
        );
      case 'lose':
        return this._perform(protocol.lost(value));
      case 'congested':
        return this._perform(protocol.congested(value, this._nowMs));
      case 'wait_ms':
        return this._wait(value);
      case 'page':
        return this._page(value);
      case 'no_page': {
        const { retry_after_ms: waitMs } = value;
        const error = waitMs === null ? new Refused('BAD_REQUEST', 'no') : new Unavailable('busy');
        return this._perform(protocol.notFetched(error, waitMs, this._nowMs));
      }
      case 'call':
        return this._call(value, step.options);
      case 'cancel':
        return protocol.forget(value);
      case 'give_up':
        return this._perform(protocol.stop(new GaveUp(value)));
      case 'repeat':
        for (let number = 1; number <= value; number++) {
          this._kept.keep('$n', number);
          this.play(step.steps.map((one: Json) => this._kept.filled(one)));
        }
        return;
      default:
        this._expect(name, value, step);
    }
  }

  private _expect(name: string, value: Json, step: Record<string, Json>): void {
    const { reading } = this._protocol;
    switch (name) {
      case 'take':
        return assert.deepEqual(
          this._takeAll().map((one) => one.seq),
          seqs(value),
        );
      case 'take_some':
        for (let count = 0; count < value; count++) {
          this._takeOne();
        }
        return;
      case 'took':
        return this._kept.check(value, this._takeAll(), 'messages');
      case 'sent':
        if (value === 'nothing') {
          return assert.deepEqual(this._frames, []);
        }
        return this._kept.check(
          value,
          Array.isArray(value) ? this._frames.splice(0) : this._frames.shift(),
          'frame',
        );
      case 'sent_exactly':
        return this._kept.check(value, this._frames.shift(), 'frame', true);
      case 'wrote':
        return assert.deepEqual(
          this._frames.splice(0).map((one) => one.messageId),
          value,
        );
      case 'drain':
        this._frames.length = 0;
        this._isDrained = true;
        return;
      case 'done': {
        const outcome = this._outcomes.get(value);
        assert.ok(outcome && !outcome.error, `${JSON.stringify(outcome)}`);
        return 'value' in step ? this._kept.check(step.value, outcome, 'value') : undefined;
      }
      case 'failed': {
        const { failed: _, ...expected } = step;
        return this._kept.check(expected, this._outcomes.get(value)?.error, 'error');
      }
      case 'pending':
        return assert.equal(this._outcomes.get(value), null);
      case 'event': {
        const expected = typeof value === 'string' ? { type: value } : value;
        const at = this._events.findIndex(({ type }) => type === expected.type);
        assert.ok(at >= 0, `there is no such event in ${JSON.stringify(this._events)}`);
        return this._kept.check(expected, this._events.splice(at, 1)[0], 'event');
      }
      case 'no_event':
        return assert.deepEqual(
          this._events.filter(({ type }) => type === value),
          [],
        );
      case 'fetch':
        return assert.deepEqual(this._fetches.splice(0), value === 'nothing' ? [] : [value]);
      case 'missed':
        return assert.deepEqual(
          reading.missed.map(({ first, last }) => [first, last]),
          value,
        );
      case 'position':
        return assert.equal(reading.lastSeq, value);
      case 'rewound':
        return assert.equal(reading.rewound, value);
      case 'wakes_in_ms':
        return assert.ok(Math.abs(reading.wakeAtMs - this._nowMs - value) < 1);
      default:
        assert.fail(`unknown step ${name}`);
    }
  }
}

/** Play one case. */
export function playRoom(one: Case): void {
  const stage = new Stage(one.given ?? {});
  stage.play(one.steps);
  stage.end();
}
