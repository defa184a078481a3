/** Whatever happens between a client and its hub, a request ends exactly once. */

import assert from 'node:assert/strict';
import { test } from 'node:test';
import fc from 'fast-check';
import type { Effect } from '../src/protocol/effects.js';
import { FrameWriter, type Payload } from '../src/protocol/frame.js';
import { Protocol } from '../src/protocol/protocol.js';
import { Membership } from '../src/protocol/restore.js';
import { asking, broadcasting, publishing, telling } from '../src/requests.js';
import { showingTopic, deletingTopic } from '../src/stream_requests.js';
import { ClientError, GaveUp } from '../src/wire/errors.js';

const RUNS = 'SOAK' in process.env ? 20_000 : 300;
const BOB = '@(demo/bob)';

const payloads: (() => Payload<any>)[] = [
  () => telling(BOB, 'note', 1),
  () => asking(BOB, 'task', 1),
  () => publishing('orders', 'order', 1, { durable: true }),
  () => publishing('prices', 'price', 1),
  () => broadcasting('news', 1, false),
  () => showingTopic('orders'),
  () => deletingTopic('orders'),
];

const code = fc.constantFrom(
  'rate_limited',
  'queue_full',
  'unauthorized',
  'storage_failed',
  'unknown_actor',
);

/** What can happen: each is an event, with a number that chooses whom it is about. */
const happening = fc.oneof(
  {
    weight: 4,
    arbitrary: fc.record({
      do: fc.constant('submit'),
      which: fc.nat(6),
      attempts: fc.integer({ min: 1, max: 3 }),
    }),
  },
  { weight: 4, arbitrary: fc.record({ do: fc.constant('answer'), which: fc.nat(20) }) },
  { weight: 2, arbitrary: fc.record({ do: fc.constant('refuse'), which: fc.nat(20), code }) },
  { weight: 2, arbitrary: fc.record({ do: fc.constant('connect') }) },
  { weight: 1, arbitrary: fc.record({ do: fc.constant('lose') }) },
  {
    weight: 2,
    arbitrary: fc.record({ do: fc.constant('wait'), which: fc.integer({ min: 1, max: 70_000 }) }),
  },
  { weight: 1, arbitrary: fc.record({ do: fc.constantFrom('pause', 'resume'), which: fc.nat(1) }) },
  { weight: 1, arbitrary: fc.record({ do: fc.constant('congest'), which: fc.nat(1) }) },
  { weight: 1, arbitrary: fc.record({ do: fc.constant('garbage'), text: fc.string() }) },
);

const end = fc.constantFrom('leave', 'stop');

class World {
  nowMs = 0;
  readonly submitted = new Set<string>();
  readonly ended = new Map<string, number>();
  private _written: any[] = [];
  private _isLinked = false;
  private _ids = 0;
  private _frames = new FrameWriter('@(demo/alice)', () => `id-${++this._ids}`);
  private _protocol: Protocol;

  constructor() {
    const membership = new Membership();
    membership.registered('@(demo/alice)', {}, false);
    this._protocol = new Protocol(this._frames, membership, this._now);
  }

  happen(event: any): void {
    const protocol = this._protocol;
    switch (event.do) {
      case 'submit': {
        const request = this._frames.request(payloads[event.which]!(), 0, {
          attempts: event.attempts,
        });
        try {
          const effects = protocol.submit(request, this._now);
          this.submitted.add(request.id);
          this._perform(effects);
        } catch (error) {
          assert.ok(error instanceof ClientError);
        }
        break;
      }
      case 'connect':
        if (!this._isLinked && protocol.phase === 'down') {
          this._isLinked = true;
          this._written = [];
          this._perform(protocol.opened(null, this._now));
          const [hello] = this._written;
          this._hear('hub:connected', hello.id, { sessionId: 's', heartbeatInterval: 20_000 });
          const register = this._written.find(({ type }) => type === 'hub:register');
          this._hear('hub:registered', register?.id, {});
        }
        break;
      case 'lose':
        this._lose();
        break;
      case 'wait': {
        const untilMs = this.nowMs + event.which;
        for (let at; (at = protocol.wakeAtMs(this.nowMs)) <= untilMs; ) {
          this.nowMs = Math.max(this.nowMs + 0.5, at);
          this._perform(protocol.tick(this._now));
        }
        this.nowMs = Math.max(this.nowMs, untilMs);
        break;
      }
      case 'answer': {
        const frame = this._written[event.which % (this._written.length || 1)];
        const answers: Record<string, string> = {
          'hub:send': 'hub:delivery_ack',
          'hub:publish': 'hub:published',
          'hub:broadcast': 'hub:broadcast_ack',
          'hub:topic_info': 'hub:topic_info_response',
          'hub:topic_delete': 'hub:topic_deleted',
          'hub:heartbeat': 'hub:heartbeat_ack',
        };
        this._hear(answers[frame?.type] ?? 'hub:nothing', frame?.id, {});
        break;
      }
      case 'refuse': {
        const frame = this._written[event.which % (this._written.length || 1)];
        this._hear('hub:error', frame?.id, { code: event.code, details: { retryAfterMs: 50 } });
        break;
      }
      case 'pause':
      case 'resume':
        this._hear(`hub:${event.do}`, null, event.which ? { target: BOB } : {});
        break;
      case 'congest':
        this._perform(protocol.congested(!!event.which, this._now));
        break;
      case 'garbage':
        if (this._isLinked) {
          this._perform(protocol.received(event.text, this._now));
        }
        break;
      case 'leave':
        this._perform(protocol.leave(this._now));
        this._lose();
        break;
      case 'stop':
        this._perform(protocol.stop(new GaveUp('enough')));
    }
  }

  private get _now() {
    return { wallMs: Math.trunc(this.nowMs), monoMs: this.nowMs };
  }

  private _lose(): void {
    if (this._isLinked) {
      this._isLinked = false;
      this._perform(this._protocol.lost('cut', this._now));
    }
  }

  private _hear(type: string, correlationId: string | null, payload: unknown): void {
    if (this._isLinked) {
      const frame = JSON.stringify({ type, correlationId, payload });
      this._perform(this._protocol.received(frame, this._now));
    }
  }

  private _perform(effects: Effect[]): void {
    for (const effect of effects) {
      if (effect.do === 'send') {
        this._written.push(JSON.parse(effect.frame));
      } else if (effect.do === 'answered' || effect.do === 'failed') {
        this.ended.set(effect.id, (this.ended.get(effect.id) ?? 0) + 1);
      } else if (effect.do === 'drop') {
        this._lose();
      }
    }
  }
}

test('a request ends exactly once', () => {
  fc.assert(
    fc.property(fc.array(happening, { maxLength: 60 }), end, (events, last) => {
      const world = new World();
      events.forEach((event) => world.happen(event));
      world.happen({ do: last });
      assert.deepEqual([...world.ended.keys()].sort(), [...world.submitted].sort());
      assert.deepEqual(new Set([1, ...world.ended.values()]), new Set([1]));
    }),
    { numRuns: RUNS },
  );
});
