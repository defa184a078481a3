/** The client of Python and this one in the same rooms, and what one seals, the other opens. */

import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { after, before, test } from 'node:test';
import { RequestFailed, Sealing, connect } from '../src/node.js';
import { hex } from '../src/wire/bytes.js';
import { TestHub, python, root } from './support/hub.js';

let hub: TestHub;

before(async () => {
  hub = await TestHub.start();
});

after(() => hub.stop());

const KEY = new Uint8Array(32).fill(7);

/** Run a program in Python; what it prints, line by line. */
async function ran(program: string, ...args: string[]): Promise<string[]> {
  const started = spawn(python, ['-c', program, ...args], {
    cwd: root,
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  let said = '';
  started.stdout.on('data', (data) => (said += data));
  const [code] = await once(started, 'close');
  assert.equal(code, 0, said);
  return said.trim().split('\n');
}

test('what Python seals is opened here, and the other way round', async () => {
  const sealing = new Sealing(KEY, 'shop:general');
  const sealed = await sealing.seal('m-1', new TextEncoder().encode('from JavaScript ✓'));
  const [opened, theirs] = await ran(
    `
import sys
from signalhub.client.sealing import Sealing
sealing = Sealing(bytes([7]) * 32, "shop:general")
print(sealing.open("m-1", bytes.fromhex(sys.argv[1])).decode())
print(sealing.seal("m-2", "from Python ✓".encode()).hex())
`,
    hex(sealed),
  );
  const bytes = await sealing.open('m-2', Buffer.from(theirs!, 'hex'));

  assert.equal(opened, 'from JavaScript ✓');
  assert.equal(new TextDecoder().decode(bytes), 'from Python ✓');
  await assert.rejects(sealing.open('m-3', Buffer.from(theirs!, 'hex')), { code: 'unsealable' });
});

test('a room has members of both languages, who read the same in the same order', async () => {
  await using me = await connect(hub.url, '@(demo/alice)');
  await using room = await me.room('general', { key: KEY, tenant: 'shop', pseudonym: 'p1' });
  await room.send('one');
  const theirs = await ran(
    `
import asyncio, sys
import signalhub
from signalhub.client.sealing import Sealing

async def main():
    sealing = Sealing(bytes([7]) * 32, "shop:general")
    async with signalhub.hub(sys.argv[1]) as hub:
        async with hub.room("general", tenant="shop", pseudonym="p2") as room:
            await room.send(sealing.seal("py-1", b"two"), message_id="py-1")
            async for message in room:
                print(message.seq, sealing.open(message.message_id, message.ciphertext).decode())
                if message.seq == 2:
                    break

asyncio.run(main())
`,
    hub.url,
  );
  const ours = [];
  for await (const { seq, text } of room) {
    ours.push(`${seq} ${text}`);
    if (seq === 2) {
      break;
    }
  }

  assert.deepEqual(ours, ['1 one', '2 two']);
  assert.deepEqual(theirs, ours);
});

test('requests are answered across languages, one to one and one to many', async () => {
  await using me = await connect(hub.url, '@(demo/js)', { capabilities: ['both'] });
  me.answer('double', ({ payload }) => payload * 2);
  me.answer('bad', () => {
    throw new RequestFailed('not_found', 'no such sku');
  });
  me.answer('who', () => 'JavaScript');
  const asked = (async () => {
    const { payload } = await me
      .messages()
      .next()
      .then((ready) => ready!);
    const reply = await me.request('@(demo/py)', 'triple', payload);
    const failure = await me.request('@(demo/py)', 'bad').catch((error) => error);
    const many = me.requestMany<string>('who', null, { capability: 'both' });
    const names = [];
    for await (const one of many) {
      names.push(one.payload);
    }
    await me.tell('@(demo/py)', 'done');
    return [reply.payload, failure.name, failure.code, failure.message, names];
  })();
  const theirs = await ran(
    `
import asyncio, sys
import signalhub

async def main():
    async with signalhub.connect(sys.argv[1], "@(demo/py)", capabilities=("both",)) as me:
        @me.answers("triple")
        def triple(message):
            return message.payload * 3

        @me.answers("bad")
        def bad(message):
            raise signalhub.RequestFailed("no such sku", code="not_found")

        @me.answers("who")
        def who(message):
            return "Python"

        print((await me.request("@(demo/js)", "double", 21)).payload)
        try:
            await me.request("@(demo/js)", "bad")
        except signalhub.RequestFailed as error:
            print(error.code, error.text)
        print([reply.payload async for reply in me.request_many("who", capability="both")])
        await me.tell("@(demo/js)", "ready", 5)
        async for message in me.messages():
            break

asyncio.run(main())
`,
    hub.url,
  );

  assert.deepEqual(theirs, ['42', 'not_found no such sku', "['JavaScript']"]);
  assert.deepEqual(await asked, [15, 'RequestFailed', 'not_found', 'no such sku', ['Python']]);
});
