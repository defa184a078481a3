/** When there is a connection: back-off, pages that sleep, timers that are late. */

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { addressPerTab, followPage } from '../src/transport/page.js';
import type { Link } from '../src/transport/link.js';
import { NotOpened } from '../src/transport/link.js';
import { type Deferred, deferred } from '../src/transport/platform.js';
import { Lifeline } from '../src/transport/reconnect.js';
import { Timer } from '../src/transport/runner.js';
import { type ClientError, Refused, Unavailable } from '../src/wire/errors.js';
import type { Reconnecting } from '../src/wire/pacing.js';
import { StagedPlatform } from './support/platform.js';

function stage(reconnect: Reconnecting = {}) {
  const platform = new StagedPlatform([0.5]);
  const links: Deferred<string>[] = [];
  const states: string[] = [];
  let refusal: Error | null = null;
  const lifeline: Lifeline = new Lifeline(
    {
      url: 'ws://127.0.0.1:1/ws',
      open: async () => {
        if (refusal) {
          throw refusal;
        }
        const closed = deferred<string>();
        links.push(closed);
        return { closed: closed.promise } as Link;
      },
      lost: () => undefined,
      giveUp: (error: ClientError) => lifeline.stop(error),
      report: (event) => {
        if (event.type === 'state') {
          states.push(
            `${event.state}${event.nextAttemptAt ? ` ${Number(event.nextAttemptAt) - 1_760_000_000_000}` : ''}`,
          );
        }
      },
    },
    platform,
    reconnect,
  );
  return {
    platform,
    lifeline,
    states,
    links,
    refuse: (error: Error | null) => (refusal = error),
    async connect() {
      const started = lifeline.start();
      await platform.settle();
      lifeline.becameReady();
      await started;
    },
    async lose() {
      links.at(-1)!.resolve('cut');
      await platform.settle();
    },
  };
}

test('a lost connection is made again after a random part of thirty seconds', async () => {
  const { platform, states, links, connect, lose } = stage();
  await connect();
  await lose();
  assert.deepEqual(states, ['connected', 'waiting 15000']);
  await platform.wait(14_999);
  assert.equal(links.length, 1);
  await platform.wait(1);
  assert.equal(links.length, 2);
});

test('a page that somebody looks at waits three seconds at most', async () => {
  const { states, connect, lose } = stage('interactive');
  await connect();
  await lose();
  assert.deepEqual(states.at(-1), 'waiting 1500');
});

test('who does not want to wait is connected at once', async () => {
  const { platform, lifeline, links, connect, lose } = stage();
  await connect();
  await lose();
  lifeline.hurry();
  await platform.settle();
  assert.equal(links.length, 2);
});

test('a link that turns out to be dead after sleeping is replaced without waiting', async () => {
  const { platform, lifeline, links, connect, lose } = stage();
  await connect();
  lifeline.hurry();
  await platform.wait(10_000);
  await lose();
  assert.equal(links.length, 2);
});

test('a hurry that is long past does not count', async () => {
  const { platform, lifeline, links, connect, lose } = stage();
  await connect();
  lifeline.hurry();
  await platform.wait(20_000);
  await lose();
  assert.equal(links.length, 1);
});

test('a page that was left makes no connection until it is shown again', async () => {
  const { platform, lifeline, links, connect, lose } = stage();
  await connect();
  lifeline.suspend();
  await lose();
  await platform.wait(3_600_000);
  assert.equal(links.length, 1);
  lifeline.hurry();
  await platform.settle();
  assert.equal(links.length, 2);
});

test('the hub names the time of the next attempt, and a refusal for good is the end', async () => {
  const { platform, lifeline, states, refuse, connect, lose } = stage({ firstJitterMs: 0 });
  await connect();
  refuse(new NotOpened('busy', 5_000));
  await lose();
  await platform.wait(0);
  assert.equal(states.at(-1), 'waiting 5075');
  refuse(new Refused('FORBIDDEN', 'not you'));
  await platform.wait(5_100);
  assert.equal(lifeline.end?.name, 'GaveUp');
  assert.match(lifeline.end!.message, /not you/);
});

test('the first connection is not made again', async () => {
  const { platform, lifeline, links, lose } = stage();
  const failed = assert.rejects(lifeline.start(), Unavailable);
  await platform.settle();
  await lose();
  await failed;
  assert.equal(links.length, 1);
});

test('a timer that was late has slept, and ticks only after what came meanwhile was read', async () => {
  const platform = new StagedPlatform();
  const calls: string[] = [];
  const timer = new Timer(
    platform,
    () => calls.push('tick'),
    () => calls.push('slept'),
  );
  timer.set(1_000);
  await platform.wait(1_000);
  assert.deepEqual(calls, ['tick']);
  timer.set(2_000);
  // The machine sleeps: time passes without any timer.
  platform.elapsedMs = 60_000;
  await platform.wait(0);
  assert.deepEqual(calls, ['tick', 'slept']);
  await platform.wait(1_000);
  assert.deepEqual(calls, ['tick', 'slept', 'tick']);
});

test('a page that is shown, back, or online again wakes its connection', () => {
  const calls: string[] = [];
  const document = Object.assign(new EventTarget(), { visibilityState: 'visible' });
  const events = new EventTarget();
  const scope = globalThis as any;
  const before = { addEventListener: scope.addEventListener, document: scope.document };
  scope.document = document;
  scope.addEventListener = events.addEventListener.bind(events);
  try {
    const unfollow = followPage({
      woke: () => calls.push('woke'),
      left: () => calls.push('left'),
    });
    document.dispatchEvent(new Event('visibilitychange'));
    document.visibilityState = 'hidden';
    document.dispatchEvent(new Event('visibilitychange'));
    document.visibilityState = 'visible';
    events.dispatchEvent(new Event('online'));
    events.dispatchEvent(new Event('pagehide'));
    events.dispatchEvent(Object.assign(new Event('pagehide'), { persisted: true }));
    events.dispatchEvent(new Event('pageshow'));
    unfollow();
    events.dispatchEvent(new Event('online'));
  } finally {
    Object.assign(scope, before);
  }
  assert.deepEqual(calls, ['woke', 'woke', 'left', 'woke']);
});

test('an address per tab has a suffix that stays while the tab is open', () => {
  const stored = new Map<string, string>();
  const scope = globalThis as any;
  scope.sessionStorage = {
    getItem: (name: string) => stored.get(name) ?? null,
    setItem: (name: string, value: string) => stored.set(name, value),
  };
  try {
    const address = addressPerTab('@(web/anna)');
    assert.match(address, /^@\(web\/anna-[0-9a-z]{8}\)$/);
    assert.equal(addressPerTab('@(web/anna)'), address);
    stored.clear();
    assert.notEqual(addressPerTab('@(web/anna)'), address);
  } finally {
    delete scope.sessionStorage;
  }
});

test('a frame that may store nothing has an address per tab as well', () => {
  Object.defineProperty(globalThis, 'sessionStorage', {
    configurable: true,
    get: () => {
      throw new DOMException('denied', 'SecurityError');
    },
  });
  try {
    assert.match(addressPerTab('@(web/anna)'), /^@\(web\/anna-[0-9a-z]{8}\)$/);
  } finally {
    delete (globalThis as any).sessionStorage;
  }
});
