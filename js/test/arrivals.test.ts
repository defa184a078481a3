/** What a client does that cannot stop reading: credit, dropping, and what handlers do. */

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { Arrivals } from '../src/arrivals.js';
import { Message } from '../src/message.js';
import type { Report } from '../src/protocol/effects.js';

const KEY = 'orders\0billing';

function stage(limit = 10_000) {
  const steered: boolean[] = [];
  const reports: Report[] = [];
  const arrivals = new Arrivals(limit, {
    steer: (key, isPaused) => {
      assert.equal(key, KEY);
      steered.push(isPaused);
    },
    report: (event) => reports.push(event),
  });
  return { arrivals, steered, reports };
}

const message = (type: string, payload: unknown, others = {}) =>
  new Message({
    id: 'm',
    sender: '@(demo/bob)',
    to: '@(demo/alice)',
    type,
    payload,
    metadata: {},
    timestamp: 0,
    ttl: null,
    topic: null,
    delivery: null,
    requestId: null,
    ...others,
  });

const delivered = (seq: number) => {
  const one = message('order', seq, {
    topic: 'orders',
    delivery: { epoch: 'e1', seq, subscription: 'billing', stream: null },
  });
  one._settler = { isOpen: () => true, settle: async () => null };
  return one;
};

test('a consumer with more than a thousand unread messages gets no credit until half are read', async () => {
  const { arrivals, steered } = stage();
  const queue = arrivals.openQueue(KEY);
  for (let seq = 1; seq <= 1_000; seq++) {
    arrivals.put(delivered(seq));
  }
  assert.deepEqual(steered, []);
  arrivals.put(delivered(1_001));
  arrivals.put(delivered(1_002));
  assert.deepEqual(steered, [true]);
  for (let count = 0; count < 501; count++) {
    await queue.next();
  }
  assert.deepEqual(steered, [true]);
  await queue.next();
  assert.deepEqual(steered, [true, false]);
});

test('what is lost with the link is not counted as unread on the next one', () => {
  const { arrivals, steered } = stage();
  const queue = arrivals.openQueue(KEY);
  for (let seq = 1; seq <= 1_001; seq++) {
    arrivals.put(delivered(seq));
  }
  arrivals.lost();
  assert.equal(queue.waiting.length, 0);
  for (let seq = 1; seq <= 1_001; seq++) {
    arrivals.put(delivered(seq));
  }
  assert.deepEqual(steered, [true, true]);
});

test('beyond the limit the oldest messages are dropped, which is told once', async () => {
  const { arrivals, reports } = stage(5);
  for (let number = 1; number <= 8; number++) {
    arrivals.put(message('note', number));
  }
  assert.equal(arrivals.dropped, 4);
  assert.deepEqual(
    reports.map(({ type }) => type),
    ['warning'],
  );
  assert.equal((await arrivals.next())!.payload, 5);
});

test('mail that must be settled is never dropped', () => {
  const { arrivals } = stage(2);
  for (let number = 1; number <= 4; number++) {
    const mail = message('note', number, { delivery: { stream: '@(demo/alice)', seq: number } });
    mail.delivery!.subscription = null;
    mail._settler = { isOpen: () => true, settle: async () => null };
    arrivals.put(mail);
  }
  assert.equal(arrivals.dropped, 0);
});

test('a handler for a topic gets what matches, the others what is left', async () => {
  const { arrivals } = stage();
  const seen: string[] = [];
  const owner = {};
  arrivals.follow(owner, 'prices/+/now/#', ({ topic }) => void seen.push(topic!));
  const topics = ['prices/eu/now', 'prices/eu/now/x/y', 'prices/eu', 'prices/a/b/now', 'other'];
  for (const topic of topics) {
    arrivals.put(message('price', 1, { topic }));
  }
  const left = [];
  for (let count = 0; count < 3; count++) {
    left.push((await arrivals.next())!.topic);
  }
  assert.deepEqual(seen, topics.slice(0, 2));
  assert.deepEqual(left, topics.slice(2));
  arrivals.unfollow(owner);
  arrivals.put(message('price', 1, { topic: topics[0] }));
  assert.equal((await arrivals.next())!.topic, topics[0]);
});

test('an aborted wait takes no message from whoever waits next', async () => {
  const { arrivals } = stage();
  const controller = new AbortController();
  const aborted = arrivals.next(controller.signal);
  const waiting = arrivals.next();
  controller.abort(new Error('enough'));
  await assert.rejects(aborted, /enough/);
  arrivals.put(message('note', 1));
  assert.equal((await waiting)!.payload, 1);
});
