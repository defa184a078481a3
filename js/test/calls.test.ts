/** Calls to durable actors from Node: the shop of the examples, on a real host. */

import assert from 'node:assert/strict';
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import { CallError, connect } from '../src/node.js';
import { TestHub, command, root } from './support/hub.js';

let hub: TestHub;
let host: ChildProcess;

before(async () => {
  hub = await TestHub.start();
  const served = ['examples.shop:Order', 'examples.shop:Stock', 'examples.shop:Payment'];
  const data = ['--data', join(hub.folder, 'shop'), '--url', hub.url];
  host = spawn(command, ['actors', 'run', ...served, ...data], {
    cwd: root,
    env: { ...process.env, PYTHONPATH: root },
    stdio: 'ignore',
  });
});

after(async () => {
  host.kill('SIGKILL');
  await once(host, 'exit');
  await hub.stop();
});

test('a method of a durable actor returns its value, or throws what it raised', async () => {
  await using me = await connect(hub.url, '@(demo/alice)');
  await me.call('stock/blue-mug', 'deliver', [10]);
  assert.deepEqual(await me.call('stock/blue-mug', 'count'), { free: 10, held: 0, sold: 0 });

  await assert.rejects(me.call('stock/blue-mug', 'no_such_method'), (error: CallError) => {
    assert.ok(error instanceof CallError);
    assert.equal(error.code, 'call_failed');
    assert.ok(error.errorName);
    assert.ok(error.callId);
    return true;
  });
  await assert.rejects(me.call('nobody/x', 'run', [], { timeoutMs: 700 }), {
    code: 'call_undeliverable',
  });
  await assert.rejects(me.call('Stock', 'count'), TypeError);
});
