/** The client against the cases that every client has to pass: `tests/vectors/client`. */

import assert from 'node:assert/strict';
import { test } from 'node:test';
import '../src/transport/node.js';
import { exporter, inboxId, inboxKey } from '../src/rooms/capability.js';
import { Sealing } from '../src/rooms/sealing.js';
import { hex } from '../src/wire/bytes.js';
import { playClient } from './support/client_stage.js';
import { type Case, cases } from './support/matching.js';
import { playRoom } from './support/room_stage.js';

const bytes = (text: string) => Uint8Array.from(Buffer.from(text, 'hex'));

const FUNCTIONS: Record<string, (args: any) => Promise<string>> = {
  exporter: async ({ secret, label, context, length }) =>
    hex(await exporter(bytes(secret), label, bytes(context), length)),
  inboxId: ({ key }) => inboxId(bytes(key)),
  inboxKey: async ({ secret, room }) => hex(await inboxKey(bytes(secret), room)),
  unseal: async ({ key, room, messageId, sealed }) =>
    hex(await new Sealing(bytes(key), room).open(messageId, bytes(sealed))),
  seal: async ({ key, room, messageId, plaintext, nonce }) =>
    hex(await new Sealing(bytes(key), room).seal(messageId, bytes(plaintext), bytes(nonce))),
};

async function playFunction(one: Case): Promise<void> {
  const call = async () => FUNCTIONS[one.function]!(one.args);
  if (one.error) {
    await assert.rejects(call);
  } else {
    assert.equal(await call(), one.result);
  }
}

const ABILITIES = ['requests', 'patterns'];

for (const [name, one] of cases('client')) {
  const lacking = one.needs?.filter((need) => !ABILITIES.includes(need)) ?? [];
  test(name, { skip: lacking.length ? `needs ${lacking.join(', ')}` : false }, () =>
    playClient(one),
  );
}
for (const [name, one] of cases('room')) {
  test(name, () => playRoom(one));
}
for (const [name, one] of cases('function')) {
  test(name, () => playFunction(one));
}
