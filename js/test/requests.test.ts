/** Requests between actors: each ends once, and reaches the program of its recipient once. */

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { Client } from '../src/client.js';
import { FrameWriter } from '../src/protocol/frame.js';
import { Protocol } from '../src/protocol/protocol.js';
import { Membership } from '../src/protocol/restore.js';
import { GaveUp, RequestFailed } from '../src/wire/errors.js';
import { StagedPlatform } from './support/platform.js';

const ALICE = '@(demo/alice)';
const BOB = '@(demo/bob)';

/** A connected client, and what it writes. */
async function stage({ durable = false, sessionToken = 't' as string | null } = {}) {
  const platform = new StagedPlatform();
  const membership = new Membership();
  membership.registered(ALICE, {}, false);
  const protocol = new Protocol(new FrameWriter(ALICE, platform.newId), membership, platform.now());
  const client = new Client(ALICE, {
    url: 'ws://127.0.0.1:1/ws',
    platform,
    protocol,
    inboxMax: 100,
    options: {},
  });
  const frames: any[] = [];
  const runner = client._runner;
  const send = (frame: string) => void frames.push(JSON.parse(frame));
  const link = { isBusy: false, send, close: () => undefined, abort: () => undefined };
  const hear = async (type: string, payload: unknown, more: object = {}) => {
    const members = {
      id: 'h',
      from: '@(cloudflare/signal-hub)',
      to: ALICE,
      timestamp: 0,
      ttl: null,
    };
    runner.received(JSON.stringify({ ...members, type, payload, ...more }));
    await platform.settle();
  };
  const connect = async () => {
    runner.opened(link, null);
    const metadata = sessionToken === null ? {} : { sessionToken };
    await hear('hub:connected', { sessionId: 's' }, { correlationId: frames.at(-1).id, metadata });
    await hear(
      'hub:registered',
      { actorAddress: ALICE, durable },
      { correlationId: frames.at(-1).id },
    );
    frames.length = 0;
  };
  await connect();
  return {
    platform,
    client,
    runner,
    frames,
    hear,
    connect,
    /** The hub has handed over the last request. */
    hand: (facts: object = {}) =>
      hear(
        'hub:delivery_ack',
        { messageId: frames.at(-1).id, ...facts },
        { correlationId: frames.at(-1).id },
      ),
    reply: (id: string, payload: unknown, others: object = {}, from = BOB) =>
      hear('price.reply', payload, { from, metadata: { inReplyTo: id, ...others } }),
    /** A request of Bob's arrives. */
    asked: (id: string, others: object = {}) =>
      hear(
        'price',
        { sku: 7 },
        { from: BOB, metadata: { expectsReply: true, originalMessageId: id }, ...others },
      ),
  };
}

test('a request says how long its sender waits, and where replies are kept', async () => {
  const { client, frames, platform } = await stage({ durable: true });
  void client.request(BOB, 'price', 1, { timeoutMs: 5_000 }).catch(() => undefined);
  await platform.settle();
  const [{ ttl, pattern, metadata }] = frames;
  assert.deepEqual([ttl, pattern, metadata], [5_000, 'ask', { expectsReply: true, mailbox: true }]);
});

test('the first reply ends it, and later ones are counted and dropped', async () => {
  const { client, frames, hand, reply } = await stage();
  const request = client.request(BOB, 'price', 1);
  await hand();
  const { id } = frames[0];
  await reply(id, 'from somebody else', {}, '@(demo/eve)');
  await reply(id, 12);
  await reply(id, 13);
  assert.equal((await request).payload, 12);
  assert.equal(client.lateReplies, 1);
});

test('a reply may overtake the receipt, and the request is not repeated', async () => {
  const { client, frames, reply, platform, runner, connect } = await stage();
  const request = client.request(BOB, 'price', 1);
  await platform.settle();
  await reply(frames[0].id, 12);
  assert.equal((await request).payload, 12);
  runner.lost('cut');
  await connect();
  assert.deepEqual(frames, []);
});

test('a failure is one, also if nobody can read it', async () => {
  const { client, frames, hand, reply } = await stage();
  for (const [failure, code] of [
    [{ code: 'sold_out', text: 'none left' }, 'sold_out'],
    ['?', 'failed'],
  ] as const) {
    const request = client.request(BOB, 'price', 1);
    await hand();
    const rejected = assert.rejects(request, { name: 'RequestFailed', code });
    await reply(frames.at(-1).id, null, { failure });
    await rejected;
  }
});

test('a full queue and an expired message end it at once, without another attempt', async () => {
  const { client, frames, hear, platform } = await stage();
  for (const code of ['queue_full', 'message_expired', 'unknown_actor']) {
    const rejected = assert.rejects(client.request(BOB, 'price', 1), { code });
    await platform.settle();
    await hear('hub:error', { code }, { correlationId: frames.at(-1).id });
    await rejected;
  }
  assert.equal(frames.length, 3);
});

test('without a reply it ends in time: handed over or not makes a difference', async () => {
  const { client, platform, hand } = await stage({ sessionToken: null });
  const first = assert.rejects(client.request(BOB, 'price', 1, { timeoutMs: 1_000 }), {
    name: 'OutcomeUnknown',
  });
  await platform.wait(1_000);
  await first;
  const second = assert.rejects(client.request(BOB, 'price', 1, { timeoutMs: 1_000 }), {
    name: 'NoReply',
    code: 'no_reply',
  });
  await hand({ seq: 4 });
  await platform.wait(1_000);
  await second;
});

test('a recipient that has left is noticed, but not one that could not be found before', async () => {
  for (const [sessionToken, isNoticed] of [
    ['t', true],
    [null, false],
  ] as const) {
    const { client, frames, platform, hand, hear } = await stage({ sessionToken });
    const request = client.request(BOB, 'price', 1, { timeoutMs: 5_000 });
    const outcome = request.catch((error) => error.code);
    await hand();
    await platform.wait(250);
    const look = frames.at(-1);
    assert.deepEqual([look.type, look.payload.pattern], ['hub:discover', BOB]);
    await hear('hub:discovered', { actors: [] }, { correlationId: look.id });
    await platform.wait(5_000);
    assert.equal(await outcome, isNoticed ? 'recipient_left' : 'no_reply');
  }
});

test('a client that ends, or a caller that waits no longer, ends it', async () => {
  const { client, runner, platform, hand, frames } = await stage();
  const controller = new AbortController();
  const aborted = assert.rejects(
    client.request(BOB, 'price', 1, { signal: controller.signal }),
    /enough/,
  );
  await platform.settle();
  controller.abort(new Error('enough'));
  await aborted;
  const ended = assert.rejects(client.request(BOB, 'price', 2), { name: 'NoReply' });
  await platform.settle();
  assert.equal(frames.length, 2);
  await hand({ seq: 1 });
  runner.giveUp(new GaveUp('the hub is gone'));
  await ended;
});

test('a request to many ends when all have replied, and each counts once', async () => {
  const { client, frames, hear, reply, platform } = await stage();
  const replies = client.requestMany('price', 1, { topic: 'prices' });
  const first = replies.next();
  await platform.settle();
  const { id, payload } = frames[0];
  assert.match(id, /^request-/);
  assert.equal(payload.headers.expectsReply, id);
  await reply(id, 1, {}, '@(demo/n1)');
  await reply(id, 1, {}, '@(demo/n1)');
  await hear('hub:published', { topic: 'prices', subscriberCount: 2 }, { correlationId: id });
  await reply(id, 2, {}, '@(demo/n2)');
  assert.equal((await first)!.payload, 1);
  assert.equal((await replies.next())!.payload, 2);
  assert.equal(await replies.next(), undefined);
  assert.equal(client.lateReplies, 1);
});

test('a request to many ends with its time, and without a reply that is no error', async () => {
  const { client, frames, hear, platform } = await stage();
  const replies = client.requestMany('price', 1, { capability: 'n', timeoutMs: 1_000 });
  const first = replies.next();
  await platform.settle();
  await hear('hub:broadcast_ack', { deliveredCount: 3 }, { correlationId: frames[0].id });
  await platform.wait(1_000);
  assert.equal(await first, undefined);
});

test('who answers gets a request once, and a repeat gets the same reply', async () => {
  const { client, frames, asked } = await stage();
  let calls = 0;
  client.answer('price', ({ payload }) => ({ sku: payload.sku, calls: ++calls }));
  await asked('r-1');
  await asked('r-1');
  await asked('r-2');
  assert.equal(calls, 2);
  assert.deepEqual(
    frames.map(({ payload, metadata }) => [payload.type, payload.data.calls, metadata.inReplyTo]),
    [
      ['price.reply', 1, 'r-1'],
      ['price.reply', 1, 'r-1'],
      ['price.reply', 2, 'r-2'],
    ],
  );
  assert.equal(frames[0].id, frames[1].id);
});

test('what a handler throws is a failure, with its own code if it chooses one', async () => {
  const { client, frames, asked } = await stage();
  let error: Error = new RangeError('too far');
  client.answer('price', () => {
    throw error;
  });
  await asked('r-1');
  error = new RequestFailed('sold_out', 'none left');
  await asked('r-2');
  assert.deepEqual(
    frames.map(({ metadata }) => metadata.failure),
    [
      { code: 'failed', text: 'RangeError: too far' },
      { code: 'sold_out', text: 'none left' },
    ],
  );
});

test('a reply that is not JSON becomes a failure, and an expired request is not executed', async () => {
  const { client, frames, asked, platform } = await stage();
  let calls = 0;
  let free: () => void;
  const busy = new Promise<void>((resolve) => (free = resolve));
  client.answer(
    'price',
    async () => {
      calls++;
      await busy;
      return 1n;
    },
    { atOnce: 1 },
  );
  await asked('r-1');
  await asked('r-2', { ttl: 1_000 });
  await platform.wait(1_001);
  free!();
  await platform.settle();
  assert.equal(calls, 1);
  assert.equal(frames[0].metadata.failure.code, 'invalid_reply');
});

test('a request is answered once, and a message that is none cannot be answered', async () => {
  const { client, asked, hear } = await stage();
  const errors: unknown[] = [];
  client.on('price', async (message) => {
    await message.reply(1);
    await message.reply(2).catch((error) => errors.push(error));
  });
  await asked('r-1');
  await hear('note', 1, { from: BOB, metadata: { originalMessageId: 'n-1' } });
  const note = await client.messages().next();
  await assert.rejects(note!.reply(1), TypeError);
  assert.ok(errors[0] instanceof TypeError);
});

test('a request from a mailbox is answered into the mailbox of its sender', async () => {
  const { client, frames, asked } = await stage();
  client.answer('price', () => 1);
  const delivery = { stream: ALICE, epoch: 'e1', seq: 1 };
  const others = { expectsReply: true, originalMessageId: 'r-1', delivery };
  await asked('r-1', { metadata: { ...others, mailbox: true } });
  await asked('r-2', { metadata: { ...others, originalMessageId: 'r-2' } });
  assert.deepEqual(
    frames.map(({ pattern }) => pattern),
    ['ask', 'tell'],
  );
});
