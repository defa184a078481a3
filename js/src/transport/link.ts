/** One WebSocket to a hub: frames out, frames in. */

import { refusalOf } from '../rooms/answers.js';
import { sizeOf } from '../wire/bytes.js';
import { Refused, Unavailable } from '../wire/errors.js';
import { type Platform, type Socket, deferred } from './platform.js';

const OPEN_MS = 10_000;
const CLOSE_MS = 1_000;
const POLL_MS = 20;
const BUSY_FRAMES = 64;
const CONGESTED_BYTES = 2 ** 20;
const RELIEVED_BYTES = 2 ** 18;
const OPEN = 1;

/** The link could not be opened; `retryAfterMs` is set if the hub says when to try again. */
export class NotOpened extends Unavailable {
  constructor(
    text: string,
    readonly retryAfterMs = 0,
  ) {
    super(text);
  }
}

export interface LinkEvents {
  received(frame: string): void;
  congested(isCongested: boolean): void;
}

/** An open WebSocket, until `closed` is fulfilled with the reason. */
export class Link {
  /** The close code of the hub. */
  closeCode: number | null = null;
  private _closed = deferred<string>();
  private _isOver = false;
  private _isClosing = false;
  private _isCongested = false;
  private _frames = 0;
  private _reason = '';
  private _cancel: (() => void) | null = null;

  constructor(
    private _socket: Socket,
    private _events: LinkEvents,
    private _platform: Platform,
  ) {
    _socket.onmessage = ({ data }: { data: unknown }) => {
      this._look();
      if (!this._isClosing && typeof data === 'string') {
        this._events.received(data);
      }
    };
    _socket.onclose = ({ code, reason }: { code: number; reason: string }) => {
      this.closeCode = code === 1006 || code === 1005 ? null : code;
      const said = reason ? ` (${reason})` : '';
      this._over(
        this.closeCode === null
          ? 'the connection was cut'
          : `the hub closed the connection with ${code}${said}`,
      );
    };
    _socket.onerror = null;
  }

  get closed(): Promise<string> {
    return this._closed.promise;
  }

  /** Whether so much was sent at once that other things should happen. */
  get isBusy(): boolean {
    return this._frames >= BUSY_FRAMES;
  }

  send(frame: string): void {
    if (this._isClosing || this._socket.readyState !== OPEN) {
      return;
    }
    if (!this._frames++) {
      this._platform.soon(() => (this._frames = 0));
    }
    this._socket.send(frame);
    if (!this._isCongested && this._socket.bufferedAmount > CONGESTED_BYTES) {
      this._isCongested = true;
      this._events.congested(true);
      this._poll();
    }
  }

  /** Close the WebSocket; a hub that does not answer in time is cut off. */
  close(reason: string): void {
    if (!this._isClosing) {
      this._isClosing = true;
      this._reason ||= reason;
      // Longer reasons are not allowed.
      this._socket.close(1000, sizeOf(reason) < 120 ? reason : '');
      this._cancel = this._platform.after(CLOSE_MS, () => this.abort(reason));
    }
  }

  /** Cut the link at once. */
  abort(reason: string): void {
    this._isClosing = true;
    this._reason ||= reason;
    if (!this._isOver) {
      this._socket.terminate ? this._socket.terminate() : this._socket.close();
      // The browser may wait for an answer that never comes.
      this._over(reason);
    }
  }

  private _over(reason: string): void {
    if (!this._isOver) {
      this._isOver = this._isClosing = true;
      this._socket.onmessage = this._socket.onclose = null;
      this._cancel?.();
      this._closed.resolve(this._reason || reason);
    }
  }

  private _poll(): void {
    this._platform.after(POLL_MS, () => {
      this._look();
      if (this._isCongested && !this._isOver) {
        this._poll();
      }
    });
  }

  private _look(): void {
    if (this._isCongested && this._socket.bufferedAmount < RELIEVED_BYTES) {
      this._isCongested = false;
      this._events.congested(false);
    }
  }
}

/**
 * Open a WebSocket. `opened` is called with the link before any frame is received.
 *
 * Throws `NotOpened`, or `Refused` if the hub has said why and means it for good.
 */
export function openLink(
  platform: Platform,
  url: string,
  protocols: string[],
  events: LinkEvents,
  opened: (link: Link) => void,
): Promise<Link> {
  // The path of a room is not named, and the query may be private.
  const hub = url.replace(/\?.*/, '');
  return new Promise((resolve, reject) => {
    let socket: Socket;
    const fail = (error: Unavailable | Refused) => {
      cancel();
      socket.onopen = socket.onclose = socket.onerror = null;
      reject(error);
    };
    const cancel = platform.after(OPEN_MS, () => {
      fail(new NotOpened(`no answer from ${hub} within ${OPEN_MS / 1000} s`));
      socket.close();
    });
    try {
      socket = new platform.WebSocket(url, protocols);
    } catch (error) {
      cancel();
      reject(new NotOpened(`no connection to ${hub}: ${error}`));
      return;
    }
    socket.onopen = () => {
      cancel();
      socket.onopen = null;
      const link = new Link(socket, events, platform);
      opened(link);
      resolve(link);
    };
    socket.onclose = ({ reason }: { reason: string }) => {
      const { refusal } = socket;
      if (!refusal) {
        fail(new NotOpened(`no hub at ${hub}: ${reason || 'the connection failed'}`));
        return;
      }
      const retryAfter = { get: () => refusal.retryAfter };
      const { error, retryAfterMs } = refusalOf(hub, refusal.status, retryAfter, refusal.body);
      if (error instanceof Refused && !error.retryable) {
        fail(error);
        return;
      }
      const said = error instanceof Refused ? error.reason : error.message;
      const wait = retryAfterMs ? `; try again in ${retryAfterMs / 1000} s` : '';
      fail(new NotOpened(said.replace(/\.$/, '') + wait, retryAfterMs ?? 0));
    };
    socket.onerror = () => undefined;
  });
}
