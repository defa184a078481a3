/** What a hub, an actor or a handler may do that nobody should: it ends nothing but itself. */

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { Arrivals } from '../src/arrivals.js';
import { Client } from '../src/client.js';
import { FrameWriter } from '../src/protocol/frame.js';
import { decode, welcomeOf } from '../src/protocol/incoming.js';
import { Protocol } from '../src/protocol/protocol.js';
import { Membership } from '../src/protocol/restore.js';
import { Message } from '../src/message.js';
import { Hub } from '../src/rooms/room.js';
import { CallError, sentence } from '../src/wire/errors.js';
import { StagedPlatform } from './support/platform.js';

const ALICE = '@(demo/alice)';
const UNPRINTABLE = '{"toString": 1, "valueOf": 1}';

test('a session id that is no text counts as missing', () => {
  const frame = `{"type": "hub:connected", "payload": {"sessionId": ${UNPRINTABLE}}}`;
  assert.equal(welcomeOf(decode(frame, JSON)!).sessionId, '');
});

test('whatever is thrown has a sentence', () => {
  assert.equal(sentence(new Error('no')), 'no');
  assert.equal(sentence('no'), 'no');
  assert.equal(sentence(Object.create(null)), 'something that has no text was thrown');
});

test('a handler goes on after it has thrown what cannot be told', async () => {
  const handled: unknown[] = [];
  const arrivals = new Arrivals(10, { steer: () => undefined, report: () => undefined });
  arrivals.on('note', ({ payload }) => {
    handled.push(payload);
    throw Object.create(null);
  });
  for (const payload of [1, 2]) {
    arrivals.put(
      new Message({
        ...{ id: 'm', sender: '@(demo/bob)', to: ALICE, type: 'note', payload, metadata: {} },
        ...{ timestamp: 0, ttl: null, topic: null, delivery: null, requestId: null },
      }),
    );
  }
  await new Promise(setImmediate);
  assert.deepEqual(handled, [1, 2]);
});

test('a result that cannot be read ends its call, and not those behind it', async () => {
  const platform = new StagedPlatform();
  const frames: any[] = [];
  const protocol = new Protocol(
    new FrameWriter(ALICE, platform.newId),
    new Membership(),
    platform.now(),
  );
  const url = 'ws://127.0.0.1:1/ws';
  const client = new Client(ALICE, { url, platform, protocol, inboxMax: 100, options: {} });
  const hear = async (type: string, payload: unknown, correlationId: string | null = null) => {
    client._runner.received(JSON.stringify({ type, payload, correlationId, from: '@(a/host)' }));
    await platform.settle();
  };
  const send = (frame: string) => void frames.push(JSON.parse(frame));
  const link = { isBusy: false, send, close: () => undefined, abort: () => undefined };
  client._runner.opened(link, null);
  await hear('hub:connected', { sessionId: 's' }, frames.at(-1).id);
  const called = async (actor: string) => {
    const outcome = client.call(actor, 'checkout');
    outcome.catch(() => undefined);
    await platform.settle();
    const places = [{ actor, host: '@(a/host)', token: 1 }];
    await hear('hub:placed', { places, unplaced: [] }, frames.at(-1).id);
    return [outcome, frames.at(-1).payload.data.messages[0].call] as const;
  };
  const [broken, first] = await called('order/1');
  const [whole, second] = await called('order/2');

  const strange = { call: first, body: { ok: { $: 'dict', v: [1] } } };
  const messages = [strange, { call: second, body: { ok: 7 } }];
  await hear('actors:result', { v: 1, messages });

  await assert.rejects(broken, CallError);
  assert.equal(await whole, 7);
});

test('a room is joined although a listener of it throws', async () => {
  const platform = new StagedPlatform();
  class Socket {
    readyState = 1;
    bufferedAmount = 0;
    onopen: any;
    onmessage: any;
    onclose: any;
    constructor() {
      setImmediate(() => {
        this.onopen();
        this.onmessage({ data: '{"action": "welcome", "lastSeq": 0}' });
      });
    }
    send() {}
    close() {
      this.onclose?.({ code: 1000, reason: '' });
    }
  }
  platform.WebSocket = Socket as never;
  const hub = new Hub('ws://127.0.0.1:1', platform, { token: null });
  const listener = () => {
    throw new Error('a fault of the program');
  };

  const room = await hub.room('general', { listener, since: null });
  await room.close();

  await assert.rejects(platform.settle(), /a fault of the program/);
});
