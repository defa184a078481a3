/**
 * A WebSocket for Node without one: the upgrade of `node:http`, text, ping and close.
 *
 * It says why a handshake was refused, and can cut a connection, which those of browsers cannot.
 */

import { createHash, randomBytes } from 'node:crypto';
import { type IncomingMessage, request as httpRequest } from 'node:http';
import { request as httpsRequest } from 'node:https';
import type { Socket as NetSocket } from 'node:net';
import type { Refusal, Socket } from './platform.js';

const GUID = '258EAFA5-E914-47DA-95CA-C5AB0DC85B11';
const MESSAGE_BYTES_MAX = 16 * 2 ** 20;
const BODY_BYTES_MAX = 64 * 2 ** 10;
const OPEN_MS = 10_000;
const CLOSE_MS = 1_000;

const TEXT = 1;
const CLOSE = 8;
const PING = 9;

const decoder = new TextDecoder('utf-8', { fatal: true });

class Violation extends Error {
  constructor(
    readonly code: number,
    reason: string,
  ) {
    super(reason);
  }
}

/** The part of the standard `WebSocket` that the client uses. */
export class NodeWebSocket implements Socket {
  binaryType = 'arraybuffer';
  readyState = 0;
  refusal: Refusal | undefined;
  onopen: ((event: any) => void) | null = null;
  onmessage: ((event: any) => void) | null = null;
  onclose: ((event: any) => void) | null = null;
  onerror: ((event: any) => void) | null = null;
  private _socket: NetSocket | null = null;
  private _unread: Buffer[] = [];
  private _unreadBytes = 0;
  private _parts: Buffer[] | null = null;
  private _partBytes = 0;
  private _code = 1006;
  private _reason = '';
  private _request: ReturnType<typeof httpRequest>;

  constructor(url: string, protocols: string[] = []) {
    const key = randomBytes(16).toString('base64');
    const isSecure = url.startsWith('wss:');
    const headers: Record<string, string> = {
      Connection: 'Upgrade',
      Upgrade: 'websocket',
      'Sec-WebSocket-Version': '13',
      'Sec-WebSocket-Key': key,
    };
    if (protocols.length) {
      headers['Sec-WebSocket-Protocol'] = protocols.join(', ');
    }
    const request = (isSecure ? httpsRequest : httpRequest)(url.replace(/^ws/, 'http'), {
      headers,
      timeout: OPEN_MS,
    });
    this._request = request;
    request.on('upgrade', (response, socket: NetSocket, head) => {
      const accept = createHash('sha1')
        .update(key + GUID)
        .digest('base64');
      if (response.headers['sec-websocket-accept'] !== accept) {
        this._reason = 'it does not speak WebSocket';
        socket.destroy();
        this._closed();
        return;
      }
      this._opened(socket, head);
    });
    request.on('response', (response) => this._refused(response));
    request.on('error', (error: NodeJS.ErrnoException) => {
      this._reason ||= error.code === 'ECONNREFUSED' ? 'connection refused' : error.message;
      this._closed();
    });
    request.on('timeout', () => request.destroy());
    request.end();
  }

  get bufferedAmount(): number {
    return this._socket?.writableLength ?? 0;
  }

  send(text: string): void {
    if (this.readyState === 1) {
      this._write(TEXT, Buffer.from(text));
    }
  }

  close(code = 1000, reason = ''): void {
    if (this.readyState === 0) {
      this._request.destroy();
    } else if (this.readyState === 1) {
      this._sayGoodbye(code, reason);
      this._terminateSoon();
    }
  }

  terminate(): void {
    this._request.destroy();
    this._socket?.destroy();
    this._closed();
  }

  /** A hub that does not end the connection in time is cut off. */
  private _terminateSoon(): void {
    setTimeout(() => this.terminate(), CLOSE_MS).unref();
  }

  private _sayGoodbye(code: number, reason: string): void {
    this.readyState = 2;
    const head = Buffer.alloc(2);
    head.writeUInt16BE(code);
    this._write(CLOSE, Buffer.concat([head, Buffer.from(reason).subarray(0, 120)]));
  }

  private _refused(response: IncomingMessage): void {
    const body: Buffer[] = [];
    let size = 0;
    response.on('data', (data: Buffer) => {
      size += data.length;
      if (size <= BODY_BYTES_MAX) {
        body.push(data);
      }
    });
    response.on('close', () => {
      this.refusal = {
        status: response.statusCode ?? 0,
        retryAfter: response.headers['retry-after'] ?? '',
        body: Buffer.concat(body).toString(),
      };
      this._closed();
    });
  }

  private _opened(socket: NetSocket, head: Buffer): void {
    this._socket = socket;
    this.readyState = 1;
    socket.setNoDelay(true);
    socket.setTimeout(0);
    socket.on('data', (data: Buffer) => this._received(data));
    socket.on('error', (error) => {
      this._reason ||= error.message;
    });
    socket.on('end', () => socket.end());
    socket.on('close', () => this._closed());
    this.onopen?.({ type: 'open' });
    // The hub speaks first in a room, often in the same segment as the end of the handshake.
    if (head.length) {
      this._received(head);
    }
  }

  private _closed(): void {
    if (this.readyState !== 3) {
      this.readyState = 3;
      this.onclose?.({ type: 'close', code: this._code, reason: this._reason });
    }
  }

  private _received(data: Buffer): void {
    this._unread.push(data);
    this._unreadBytes += data.length;
    try {
      while (this._readFrame());
    } catch (error) {
      if (!(error instanceof Violation)) {
        throw error;
      }
      this._reason = `the hub broke the WebSocket protocol: ${error.message}`;
      this._sayGoodbye(error.code, error.message);
      this.terminate();
    }
  }

  /** Read one frame, if all of it is here. */
  private _readFrame(): boolean {
    if (this._unreadBytes < 2 || this.readyState === 3) {
      return false;
    }
    const start = this._peek(10);
    const [first, second] = [start[0]!, start[1]!];
    const short = second & 127;
    const headSize = short < 126 ? 2 : short === 126 ? 4 : 10;
    if (first & 0x70 || second & 128) {
      throw new Violation(1002, 'invalid frame');
    }
    if (start.length < headSize) {
      return false;
    }
    const size =
      short < 126
        ? short
        : short === 126
          ? start.readUInt16BE(2)
          : Number(start.readBigUInt64BE(2));
    if (size > MESSAGE_BYTES_MAX) {
      throw new Violation(1009, 'a message is too big');
    }
    if (this._unreadBytes < headSize + size) {
      return false;
    }
    const whole = this._peek(headSize + size);
    this._unread = [this._unread[0]!.subarray(headSize + size)];
    this._unreadBytes -= headSize + size;
    this._understood(first & 15, !!(first & 128), whole.subarray(headSize));
    return true;
  }

  private _understood(opcode: number, isFinal: boolean, payload: Buffer): void {
    if (opcode >= CLOSE) {
      if (!isFinal || payload.length > 125) {
        throw new Violation(1002, 'invalid control frame');
      }
      if (opcode === PING && this.readyState === 1) {
        this._write(10, payload);
      } else if (opcode === CLOSE) {
        this._code = payload.length >= 2 ? payload.readUInt16BE() : 1005;
        this._reason = payload.subarray(2).toString();
        if (this.readyState === 1) {
          this._sayGoodbye(1000, '');
        }
        this._socket?.end();
        this._terminateSoon();
      }
      return;
    }
    if (opcode === TEXT ? this._parts : opcode || !this._parts) {
      throw new Violation(opcode > TEXT ? 1003 : 1002, 'unexpected frame');
    }
    const parts = (this._parts ??= []);
    parts.push(payload);
    this._partBytes += payload.length;
    if (this._partBytes > MESSAGE_BYTES_MAX) {
      throw new Violation(1009, 'a message is too big');
    }
    if (!isFinal) {
      return;
    }
    this._parts = null;
    this._partBytes = 0;
    let data: string;
    try {
      data = decoder.decode(parts.length > 1 ? Buffer.concat(parts) : payload);
    } catch {
      throw new Violation(1007, 'invalid text');
    }
    this.onmessage?.({ type: 'message', data });
  }

  /** The first bytes, in one piece; fewer if there are no more. */
  private _peek(size: number): Buffer {
    if (this._unread[0]!.length < size && this._unread.length > 1) {
      this._unread = [Buffer.concat(this._unread)];
    }
    return this._unread[0]!.subarray(0, size);
  }

  private _write(opcode: number, payload: Buffer): void {
    const size = payload.length;
    const headSize = size < 126 ? 2 : size < 2 ** 16 ? 4 : 10;
    const frame = Buffer.allocUnsafe(headSize + 4 + size);
    frame[0] = 128 | opcode;
    frame[1] = 128 | (size < 126 ? size : size < 2 ** 16 ? 126 : 127);
    if (headSize === 4) {
      frame.writeUInt16BE(size, 2);
    } else if (headSize === 10) {
      frame.writeBigUInt64BE(BigInt(size), 2);
    }
    const key = randomBytes(4);
    key.copy(frame, headSize);
    for (let at = 0, to = headSize + 4; at < size; at++, to++) {
      frame[to] = payload[at]! ^ key[at & 3]!;
    }
    this._socket?.write(frame);
  }
}
