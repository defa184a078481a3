/** The client in Node against a real hub, which is killed, and over paths that are cut. */

import assert from 'node:assert/strict';
import { after, before, describe, test } from 'node:test';
import {
  type Client,
  GaveUp,
  type Message,
  NoReply,
  OutcomeUnknown,
  Refused,
  Reject,
  RequestFailed,
  Unavailable,
  UnknownActor,
  connect,
  hub as access,
  newKey,
} from '../src/node.js';
import { FaultyPath, TestHub, eventually, soak } from './support/hub.js';

const FAST = { firstJitterMs: 50, capMs: 500 };

describe('a client of a running hub', () => {
  let hub: TestHub;
  let alice: Client;
  let bob: Client;

  before(async () => {
    hub = await TestHub.start();
    alice = await connect(hub.url, '@(demo/alice)', { capabilities: ['chat'] });
    bob = await connect(hub.url, '@(demo/bob)');
  });

  after(async () => {
    await alice.close();
    await bob.close();
    await hub.stop();
  });

  test('tells and asks arrive in order, and a receipt says that', async () => {
    const seen: unknown[] = [];
    bob.on('chat:line', (message) => void seen.push(message.payload));
    await alice.tell('@(demo/bob)', 'chat:line', { text: 'hi' });
    const receipt = await alice.ask('@(demo/bob)', 'chat:line', { text: 'ünïcode 🙂' });

    assert.equal(receipt.status, 'delivered');
    await eventually(() => seen.length === 2);
    assert.deepEqual(seen, [{ text: 'hi' }, { text: 'ünïcode 🙂' }]);
  });

  test('refusals have their own class and code', async () => {
    await assert.rejects(alice.ask('@(demo/nobody)', 'note'), UnknownActor);
    await assert.rejects(alice.consume('no-such-topic', 'x'), (error: Refused) => {
      assert.ok(error instanceof Refused);
      assert.equal(error.code, 'unknown_topic');
      assert.ok(error.resolution);
      return true;
    });
    assert.throws(() => alice.replay('orders', 0), TypeError);
  });

  test('large messages, and ones that are too large, are told apart', async () => {
    const text = 'x'.repeat(500_000);
    let size = 0;
    bob.on('large', (message) => void (size = message.payload.length));
    await alice.ask('@(demo/bob)', 'large', text);
    await eventually(() => size === text.length);
    await assert.rejects(alice.ask('@(demo/bob)', 'large', 'x'.repeat(2 ** 20)), {
      code: 'message_too_large',
    });
  });

  test('a durable topic is read in order, and what is acknowledged does not come again', async () => {
    for (let number = 1; number <= 20; number++) {
      const published = await alice.publish('orders', 'order:new', { number }, { durable: true });
      assert.equal(published.seq, number);
    }
    const orders = await bob.consume<{ number: number }>('orders', 'billing');
    const numbers: number[] = [];
    for await (const message of orders) {
      numbers.push(message.payload.number);
      await message.ack({ wait: true });
      if (numbers.length === 20) {
        break;
      }
    }
    await orders.close();

    assert.deepEqual(
      numbers,
      Array.from({ length: 20 }, (_, index) => index + 1),
    );
    const again = await bob.consume('orders', 'billing');
    assert.equal(again.lag, 0);
    await again.close();
  });

  test('a handler acknowledges, rejects, or has a message redelivered', async () => {
    for (const what of ['good', 'bad', 'flaky']) {
      await alice.publish('work', 'job', what, { durable: true });
    }
    const seen: string[] = [];
    const work = await bob.consume('work', 'workers', {
      mode: 'shared',
      backoffMs: 0,
      poison: 'dead_letter',
      handler: ({ payload, delivery }: Message<string>) => {
        seen.push(`${payload} ${delivery!.attempt}`);
        if (payload === 'bad') {
          throw new Reject('never');
        }
        if (payload === 'flaky' && delivery!.attempt === 1) {
          throw new Error('once');
        }
      },
    });
    await eventually(() => seen.length === 4);
    let floor = 0;
    for (let tries = 0; floor < 3 && tries < 100; tries++) {
      ({ floor } = await alice.subscription('work', 'workers'));
    }
    await work.close();
    const letters: unknown[] = [];
    for await (const letter of alice.replay('work.dlq')) {
      letters.push(letter.deadLetter!.reason);
    }

    assert.deepEqual(seen.sort(), ['bad 1', 'flaky 1', 'flaky 2', 'good 1']);
    assert.equal(floor, 3);
    assert.deepEqual(letters, ['never']);
  });

  test('a pattern is one subscription to all topics that match, also to later ones', async () => {
    await alice.publish('returns/eu', 'return', 1, { durable: true });
    const returns = await bob.consume<number>('returns/#', 'desk');
    await alice.publish('returns/us', 'return', 2, { durable: true });
    const seen = [];
    for await (const message of returns) {
      seen.push(`${message.topic} ${message.payload}`);
      await message.ack({ wait: true });
      if (seen.length === 2) {
        break;
      }
    }
    await returns.close();
    const { pattern, topics, lag } = await alice.subscription('returns/#', 'desk');

    assert.deepEqual(seen.sort(), ['returns/eu 1', 'returns/us 2']);
    assert.deepEqual([pattern, topics, lag], ['returns/#', 2, 0]);
  });

  test('a replay reads a range in pages', async () => {
    const replay = alice.replay('orders', 5, 9);
    const seqs: number[] = [];
    for await (const message of replay) {
      seqs.push(message.delivery!.seq);
    }
    assert.deepEqual(seqs, [5, 6, 7, 8, 9]);
    assert.ok(replay.complete);
  });

  test('a subscription with a handler gets what is published, until it is cancelled', async () => {
    const seen: unknown[] = [];
    const prices = await bob.subscribe('prices/+', (message) => void seen.push(message.payload));
    await alice.publish('prices/eu', 'price', 1);
    await eventually(() => seen.length === 1);
    await prices.cancel();
    await alice.publish('prices/eu', 'price', 2);
    await alice.ping();
    assert.deepEqual(seen, [1]);
  });

  test('a request ends with the reply, a failure, or when its recipient has left', async () => {
    bob.answer('price:get', ({ payload }) => ({ eur: payload.sku * 2 }));
    bob.answer('price:fail', () => {
      throw new RequestFailed('not_found', 'no such sku');
    });
    bob.on('price:late', () => undefined);
    const reply = await alice.request('@(demo/bob)', 'price:get', { sku: 7 });

    assert.deepEqual(reply.payload, { eur: 14 });
    await assert.rejects(alice.request('@(demo/bob)', 'price:fail', {}), {
      name: 'RequestFailed',
      code: 'not_found',
      message: 'no such sku',
    });
    await assert.rejects(alice.request('@(demo/nobody)', 'price:get'), UnknownActor);
    await assert.rejects(
      alice.request('@(demo/bob)', 'price:late', {}, { timeoutMs: 100 }),
      NoReply,
    );
    const leaver = await connect(hub.url, '@(demo/leaver)');
    leaver.on('price:get', () => leaver.close());
    await assert.rejects(alice.request('@(demo/leaver)', 'price:get'), { code: 'recipient_left' });
  });

  test('a request to many collects the replies of all', async () => {
    const others = await Promise.all(
      [1, 2, 3].map((number) => connect(hub.url, `@(demo/n${number})`, { capabilities: ['n'] })),
    );
    others.forEach((other, index) => other.answer('count', () => index));
    const numbers: number[] = [];
    for await (const reply of alice.requestMany('count', null, { capability: 'n' })) {
      numbers.push(reply.payload);
    }
    assert.deepEqual(numbers.sort(), [0, 1, 2]);
    await Promise.all(others.map((other) => other.close()));
  });

  test('an aborted call rejects with the reason of its signal, and nothing is left of it', async () => {
    const reason = new Error('enough');
    const aborted = AbortSignal.abort(reason);
    await assert.rejects(alice.ask('@(demo/bob)', 'x', 1, { signal: aborted }), reason);
    const consumer = await bob.consume('orders', 'aborting');
    for (let count = 0; count < 20; count++) {
      await consumer.next();
    }
    const controller = new AbortController();
    const next = consumer.next(controller.signal);
    controller.abort(reason);
    await assert.rejects(next, reason);
    await consumer.close();
  });

  test('a room is read in order by everybody, and opened with its key only', async () => {
    const key = newKey();
    const one = await alice.room('general', { key, pseudonym: 'p1' });
    const other = await bob.room('general', { key, pseudonym: 'p2' });
    const outsider = await access(hub.httpUrl).room('general', { key: newKey() });
    const sent = await one.send('we meet on Friday');
    await other.send('fine');

    const read = [await other.next(), await other.next()];
    assert.deepEqual(
      read.map((message) => message!.text),
      ['we meet on Friday', 'fine'],
    );
    assert.equal(read[0]!.seq, sent.seq);
    const unreadable = await outsider.next();
    assert.equal(unreadable!.text, null);
    assert.equal(unreadable!.error!.code, 'unsealable');
    await Promise.all([one, other, outsider].map((room) => room.close()));
  });

  test('an inbox is read in pages and appended to', async () => {
    const hubAccess = access(hub.httpUrl);
    const inbox = hubAccess.inbox('a-plain-inbox');
    const stored = await inbox.append(Uint8Array.of(1, 2, 3), { messageId: 'm-1' });
    const again = await inbox.append(Uint8Array.of(1, 2, 3), { messageId: 'm-1' });
    assert.deepEqual([stored.isRepeat, again.isRepeat, again.seq], [false, true, stored.seq]);
    const read = [];
    for await (const message of inbox.messages()) {
      read.push([message.seq, ...message.ciphertext]);
    }
    assert.deepEqual(read, [[stored.seq, 1, 2, 3]]);
    await hubAccess.close();
    await assert.rejects(inbox.fetch(), Unavailable);
  });

  test('the state is an event, and closing is final', async () => {
    const states: string[] = [];
    const client = await connect(hub.url, '@(demo/short)', {
      listener: (event) => {
        if (event.type === 'state') {
          states.push(event.state as string);
        }
      },
    });
    await client.close();
    await client.close();
    await client.closed();
    assert.deepEqual(states, ['connected', 'stopped']);
    await assert.rejects(client.tell('@(demo/bob)', 'x'), Unavailable);
  });

  test('an address belongs to whoever has registered it last; the other client gives up', async () => {
    await using first = await connect(hub.url, '@(demo/twice)', { reconnect: FAST });
    await using second = await connect(hub.url, '@(demo/twice)');
    await assert.rejects(first.closed(), (error: GaveUp) => {
      assert.ok(error instanceof GaveUp);
      assert.match(error.message, /duplicate_connection/);
      return true;
    });
    await alice.ask('@(demo/twice)', 'note', 1);
    assert.equal((await second.messages().next())!.payload, 1);
  });
});

test('a hub that is not there, or refuses, fails the first connection at once', async () => {
  await assert.rejects(connect('ws://127.0.0.1:1/ws', '@(demo/alice)'), (error: Unavailable) => {
    assert.ok(error instanceof Unavailable);
    assert.match(error.message, /connection refused/);
    return true;
  });
  await assert.rejects(connect('http://127.0.0.1', '@(demo/alice)'), TypeError);
  await assert.rejects(connect('ws://127.0.0.1:1/ws', 'alice'), TypeError);
});

test('publishes survive kills of the hub: none lost, order kept, every ask ends', async () => {
  const kills = soak ? 20 : 2;
  const count = soak ? 10_000 : 300;
  await using hub = await TestHub.start();
  await using alice = await connect(hub.url, '@(demo/alice)', { reconnect: FAST });
  await using bob = await connect(hub.url, '@(demo/bob)', { reconnect: FAST });
  await alice.createTopic('orders');
  const numbers: number[] = [];
  const orders = await bob.consume<number>('orders', 'billing');
  const reading = (async () => {
    for await (const message of orders) {
      numbers.push(message.payload);
      await message.ack();
      if (message.payload === count) {
        break;
      }
    }
  })();
  let published = 0;
  const failures: unknown[] = [];
  let receipts = 0;
  const publishing = (async () => {
    for (let number = 1; number <= count; number++) {
      await alice.publish('orders', 'order', number, { durable: true, attempts: 10 });
      published = number;
      if (number % 10 === 0) {
        await alice
          .ask('@(demo/bob)', 'note', number)
          .then(() => receipts++)
          .catch((error) => failures.push(error));
      }
    }
  })();
  for (let kill = 1; kill <= kills; kill++) {
    const target = (kill * count) / (kills + 1);
    await Promise.race([publishing, eventually(() => published >= target, 60_000)]);
    await hub.kill();
    await hub.run();
  }
  await publishing;
  await reading;
  const firsts = numbers.filter((number, index) => numbers.indexOf(number) === index);

  assert.deepEqual(
    firsts,
    Array.from({ length: count }, (_, index) => index + 1),
  );
  assert.equal(receipts + failures.length, count / 10);
  for (const error of failures) {
    assert.ok(error instanceof OutcomeUnknown || error instanceof Refused, String(error));
  }
});

test('cuts and stalls of the network lose nothing', async () => {
  await using hub = await TestHub.start();
  using path = await FaultyPath.to(hub);
  await using alice = await connect(path.url, '@(demo/alice)', { reconnect: FAST });
  await using bob = await connect(path.url, '@(demo/bob)', { reconnect: FAST });
  await using room = await alice.room('general', { reconnect: FAST });
  const seen = new Set<number>();
  const positions: number[] = [];
  await bob.createTopic('cuts');
  const consumer = await bob.consume<number>('cuts', 'all', {
    handler: ({ payload }: Message<number>) => void seen.add(payload),
  });
  const reading = (async () => {
    for await (const { seq } of room) {
      positions.push(seq);
      if (seq === 30) {
        break;
      }
    }
  })();
  for (let number = 1; number <= 30; number++) {
    const sent = [
      alice.publish('cuts', 'n', number, { durable: true, attempts: 10 }),
      room.send(Uint8Array.of(number)),
    ];
    if (number % 10 === 0) {
      if (number === 20) {
        path.stall();
        await new Promise((resolve) => setTimeout(resolve, 100));
      }
      path.cut();
    }
    await Promise.all(sent);
  }
  await eventually(() => seen.size === 30);
  await reading;

  assert.deepEqual(
    positions,
    Array.from({ length: 30 }, (_, index) => index + 1),
  );
  await consumer.close();
});
