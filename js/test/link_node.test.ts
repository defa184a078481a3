/** The WebSocket for Node without one, against a server that speaks the protocol byte by byte. */

import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { once } from 'node:events';
import { type Server, createServer } from 'node:http';
import type { Socket } from 'node:net';
import { afterEach, test } from 'node:test';
import { NodeWebSocket } from '../src/transport/link_node.js';

const GUID = '258EAFA5-E914-47DA-95CA-C5AB0DC85B11';
let server: Server;
let peers: Socket[];

afterEach(() => {
  server.close();
  peers.forEach((peer) => peer.destroy());
});

/** A server that answers the handshake with `said`, or accepts it and then writes these bytes. */
async function serving(said: string | Buffer): Promise<string> {
  peers = [];
  server = createServer();
  server.on('upgrade', (request, socket: Socket) => {
    peers.push(socket);
    socket.on('error', () => undefined);
    socket.on('end', () => socket.end());
    socket.resume();
    if (typeof said === 'string') {
      socket.end(said);
      return;
    }
    const key = request.headers['sec-websocket-key'] + GUID;
    const accept = createHash('sha1').update(key).digest('base64');
    const head = `HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: ${accept}\r\n\r\n`;
    socket.write(Buffer.concat([Buffer.from(head), said]));
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  return `ws://127.0.0.1:${(server.address() as { port: number }).port}/ws`;
}

/** What a client of this server hears, and how it ends. */
async function heard(url: string, texts: string[] = []) {
  const socket = new NodeWebSocket(url);
  const messages: string[] = [];
  socket.onmessage = ({ data }) => messages.push(data);
  socket.onopen = () => texts.forEach((text) => socket.send(text));
  const end = await new Promise<{ code: number; reason: string }>((resolve) => {
    socket.onclose = resolve;
  });
  return { messages, ...end, refusal: socket.refusal };
}

const CLOSED = Buffer.from([0x88, 0x02, 0x03, 0xe8]);

test('whole, fragmented and long texts are read, with control frames between', async () => {
  const long = Buffer.alloc(70_000, 'y');
  const head = Buffer.from([0x81, 127, 0, 0, 0, 0, 0, 1, 0x11, 0x70]);
  const url = await serving(
    Buffer.concat([
      Buffer.from([0x81, 0x02]),
      Buffer.from('hi'),
      Buffer.from([0x01, 0x02]),
      Buffer.from('ü').subarray(0, 1),
      Buffer.from('x').subarray(0, 0),
      Buffer.from('ü').subarray(1),
      Buffer.from([0x89, 0x01]),
      Buffer.from('p'),
      Buffer.from([0x80, 0x01]),
      Buffer.from('!'),
      head,
      long,
      CLOSED,
    ]),
  );
  const { messages, code } = await heard(url);
  assert.deepEqual(messages, ['hi', 'ü!', long.toString()]);
  assert.equal(code, 1000);
});

test('frames that arrive byte by byte are read', async () => {
  const url = await serving(Buffer.alloc(0));
  const socket = new NodeWebSocket(url);
  const messages: string[] = [];
  socket.onmessage = ({ data }) => messages.push(data);
  await new Promise((resolve) => (socket.onopen = resolve));
  const bytes = Buffer.concat([Buffer.from([0x81, 126, 0, 130]), Buffer.alloc(130, 'z'), CLOSED]);
  const closed = new Promise((resolve) => (socket.onclose = resolve));
  for (const byte of bytes) {
    peers[0]!.write(Buffer.of(byte));
    await new Promise(setImmediate);
  }
  await closed;
  assert.deepEqual(messages, ['z'.repeat(130)]);
});

for (const [what, bytes, code] of [
  ['a masked frame', [0x81, 0x82, 1, 2, 3, 4, 5, 6], 1002],
  ['a reserved bit', [0xc1, 0x01, 65], 1002],
  ['a continuation of nothing', [0x80, 0x01, 65], 1002],
  ['a new text inside another', [0x01, 0x01, 65, 0x81, 0x01, 65], 1002],
  ['binary data', [0x82, 0x01, 65], 1003],
  ['text that is none', [0x81, 0x01, 0xff], 1007],
  ['a ping in parts', [0x09, 0x00], 1002],
  ['a message that is too big', [0x81, 127, 0, 0, 0, 0, 0x40, 0, 0, 0], 1009],
] as const) {
  test(`${what} ends the connection with ${code}`, async () => {
    const url = await serving(Buffer.from(bytes));
    const seen: Buffer[] = [];
    server.prependListener('upgrade', (_, socket) =>
      socket.on('data', (data: Buffer) => seen.push(data)),
    );
    const { messages, reason } = await heard(url);
    await once(peers[0]!, 'close');
    const frame = Buffer.concat(seen);
    const key = frame.subarray(2, 6);
    const unmasked = Buffer.from(frame.subarray(6).map((byte, at) => byte ^ key[at & 3]!));
    assert.deepEqual(messages, []);
    assert.match(reason, /broke the WebSocket protocol/);
    assert.equal(unmasked.readUInt16BE(), code);
  });
}

test('what a client sends is masked, of every length', async () => {
  const url = await serving(Buffer.alloc(0));
  const texts = ['a', 'b'.repeat(125), 'c'.repeat(126), 'd'.repeat(65_535), 'e'.repeat(65_536)];
  const seen: Buffer[] = [];
  server.prependListener('upgrade', (_, socket) =>
    socket.on('data', (data: Buffer) => seen.push(data)),
  );
  const client = heard(url, texts);
  const expected = texts.reduce(
    (sum, { length }) => sum + length + 6 + (length < 126 ? 0 : length < 65_536 ? 2 : 8),
    0,
  );
  while (Buffer.concat(seen).length < expected) {
    await new Promise(setImmediate);
  }
  let bytes = Buffer.concat(seen);
  const read = texts.map(() => {
    assert.equal(bytes[0], 0x81);
    assert.ok(bytes[1]! & 128);
    const short = bytes[1]! & 127;
    const at = short < 126 ? 2 : short === 126 ? 4 : 10;
    const size =
      short < 126
        ? short
        : short === 126
          ? bytes.readUInt16BE(2)
          : Number(bytes.readBigUInt64BE(2));
    const key = bytes.subarray(at, at + 4);
    const text = Buffer.from(
      bytes.subarray(at + 4, at + 4 + size).map((byte, index) => byte ^ key[index & 3]!),
    );
    bytes = bytes.subarray(at + 4 + size);
    return text.toString();
  });
  assert.deepEqual(read, texts);
  peers[0]!.write(CLOSED);
  await client;
});

test('a refused handshake says why', async () => {
  const body = '{"error":"Too many","errorCode":"RATE_LIMIT_EXCEEDED"}';
  const url = await serving(
    `HTTP/1.1 429 Too Many Requests\r\nRetry-After: 7\r\nContent-Length: ${body.length}\r\nConnection: close\r\n\r\n${body}`,
  );
  const { code, refusal } = await heard(url);
  assert.equal(code, 1006);
  assert.deepEqual(refusal, { status: 429, retryAfter: '7', body });
});

test('a server that proves nothing is not believed', async () => {
  const url = await serving(
    'HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: x\r\n\r\n',
  );
  const { code, reason } = await heard(url);
  assert.equal(code, 1006);
  assert.match(reason, /does not speak WebSocket/);
});
