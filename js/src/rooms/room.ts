/** A room: send to everyone in it, and read every message in order. */

import { HubEvent, iterate } from '../consumers.js';
import type { Report } from '../protocol/effects.js';
import { HttpClient, Origin, bare } from '../transport/http.js';
import { followPage } from '../transport/page.js';
import {
  type Injected,
  type Platform,
  type Token,
  currentToken,
  inform,
  platformOf,
} from '../transport/platform.js';
import { encoded, hex, randomBytes, textOf, utf8 } from '../wire/bytes.js';
import { Unavailable, Unsealable } from '../wire/errors.js';
import {
  type RoomType,
  checkedInbox,
  checkedKind,
  checkedPseudonym,
  checkedSeq,
  roomName,
} from '../wire/names.js';
import type { Reconnecting } from '../wire/pacing.js';
import type { Missed, RoomMessage, Sent } from './answers.js';
import { InboxAccess, checkedCiphertext, checkedRoomMessageId } from './inbox.js';
import { RoomProtocol } from './protocol.js';
import { RoomRunner } from './runner.js';
import { Sealing } from './sealing.js';

const TIMEOUT_MS = 30_000;
const SOCKET_PATH = '/room';
const SUBPROTOCOL = 'tunnl3d.v1';

/** Options for joining a room. */
export interface Joining {
  /** The name shown to other members; by default a random one. */
  pseudonym?: string;
  /** The room's inbox; by default the hub's, which anyone can guess. */
  inbox?: string;
  /** The tenant of the room, if rooms belong to tenants. */
  tenant?: string;
  /** The last position already read: 0 reads from the oldest message on, `null` only new ones. */
  since?: number | null;
  /** The key of the room, with which messages are sealed and opened. */
  key?: Uint8Array;
  reconnect?: Reconnecting;
  listener?: (event: Report) => void;
  signal?: AbortSignal;
}

export interface SendOptions {
  /**
   * An id chosen by you. Sent again with it, even by another run of the program, the same bytes of the
   * same pseudonym get the same position and are not stored twice.
   */
  messageId?: string;
  /** The type of the message; the hub keeps track of proposals. */
  type?: RoomType;
  /** The proposal that it makes, approves, rejects or commits. */
  proposalId?: string;
  /** How long to try; 30 000 by default. */
  timeoutMs?: number;
  signal?: AbortSignal;
}

/** A message of a room, with what a room that has a key could open. */
export interface OpenedMessage extends RoomMessage {
  /** The content; `null` without a key, or if it could not be opened. */
  bytes: Uint8Array | null;
  /** The content as text, if it is one. */
  text: string | null;
  /** Why it could not be opened. */
  error: Unsealable | null;
}

/**
 * A member of a room, which reconnects automatically.
 *
 * Iterating yields every message of the room's inbox after the position it was opened with, our own
 * included, in order and once each: first those that were missed, then new ones. The iteration ends
 * when the room is closed and throws `GaveUp` when the client has given up.
 *
 * Events: `state`, `joined`, `lost`, `deleted` and `skipped` (`first`, `last`), `rewound`, `waiting`,
 * `warning`.
 */
export class Room extends EventTarget implements AsyncIterable<OpenedMessage> {
  /** @internal */
  constructor(
    readonly pseudonym: string,
    private _runner: RoomRunner,
    private _sealing: Sealing | null,
    private _left: (room: Room) => void,
  ) {
    super();
  }

  /** Whether it is connected right now. */
  get isJoined(): boolean {
    return this._runner.protocol.phase === 'joined';
  }

  /**
   * The position of the last message returned: store it, and pass it as `since` next time. Messages
   * deleted before they could be read count as returned.
   */
  get lastSeq(): number {
    return this._runner.protocol.reading.lastSeq;
  }

  /** Positions that were deleted before they could be read, oldest first. */
  get missed(): readonly Missed[] {
    return this._runner.protocol.reading.missed;
  }

  /**
   * How often the hub came back with fewer messages than before, as after a lost disk. Then everything
   * it still has is read again, except messages that are remembered.
   */
  get rewound(): number {
    return this._runner.protocol.reading.rewound;
  }

  /**
   * Send a message and wait until it is on the hub's disk. It is repeated with the same id until then:
   * over new connections, and after the wait that a busy or rate-limiting hub asks for.
   *
   * With a key, text or bytes are sealed; without one, bytes are sent as they are: they are what only
   * the members can read, and the hub sees them.
   */
  async send(content: string | Uint8Array, options: SendOptions = {}): Promise<Sent> {
    const { messageId, type = 'mls_app', proposalId, timeoutMs = TIMEOUT_MS, signal } = options;
    const kind = checkedKind(type, proposalId);
    const own = checkedRoomMessageId(messageId);
    const data = this._sealing
      ? await this._sealing.seal(own, typeof content === 'string' ? utf8(content) : content)
      : checkedCiphertext(content as Uint8Array);
    const members: Record<string, string> = { ciphertext: encoded(data), type: kind };
    if (proposalId !== undefined) {
      members.proposalId = proposalId;
    }
    return this._runner.send(own, data, members, timeoutMs, signal);
  }

  [Symbol.asyncIterator](): AsyncIterator<OpenedMessage, undefined> {
    return iterate(() => this.next());
  }

  /** Wait for the next message; `undefined` after the last one. */
  async next(signal?: AbortSignal): Promise<OpenedMessage | undefined> {
    const message = await this._runner.next(signal);
    return message && this._opened(message);
  }

  /** Try to reconnect now, without waiting. */
  reconnectNow(): void {
    this._runner.lifeline.hurry();
  }

  /** Leave the room. Can be called more than once. */
  async close(): Promise<void> {
    await this._runner.close();
    this._left(this);
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }

  private async _opened(message: RoomMessage): Promise<OpenedMessage> {
    let [bytes, text, error]: [Uint8Array | null, string | null, Unsealable | null] = [
      null,
      null,
      null,
    ];
    try {
      bytes = (await this._sealing?.open(message.messageId, message.ciphertext)) ?? null;
      text = bytes && textOf(bytes);
    } catch (failure) {
      // Bytes that are no text are fine.
      error = failure instanceof Unsealable ? failure : null;
    }
    return { ...message, bytes, text, error };
  }
}

export interface HubOptions extends Injected {
  /** For hubs that require one. A room's inbox id does as well. */
  token?: Token;
  reconnect?: Reconnecting;
  /** Called with each event of its rooms and inboxes. */
  listener?: (event: Report) => void;
}

/** Access to the rooms and inboxes of a hub. Nothing is connected until it is used. */
export const hub = (url: string, options: HubOptions = {}): Hub =>
  new Hub(url, platformOf(options), options);

/** Joins rooms and opens inboxes, with a token if the hub requires one. */
export class Hub {
  private _origin: Origin;
  private _http: HttpClient;
  private _rooms = new Map<Room, () => void>();
  private _isClosed = false;

  /** @internal */
  constructor(
    url: string,
    private _platform: Platform,
    private _options: HubOptions,
  ) {
    this._origin = new Origin(url);
    this._http = new HttpClient(this._origin, _platform, _options.token);
  }

  /** Join a room. */
  async room(room: string, options: Joining = {}): Promise<Room> {
    const { tenant, inbox, since = 0, key, listener, signal } = options;
    const { token } = this._options;
    const name = roomName(tenant, room);
    const pseudonym = checkedPseudonym(options.pseudonym, () => hex(randomBytes(8)));
    const named = [
      `room.${encoded(utf8(name))}`,
      `pseudonym.${encoded(utf8(pseudonym))}`,
      ...(inbox === undefined ? [] : [`inbox.${encoded(utf8(checkedInbox(inbox)))}`]),
    ];
    if (since !== null) {
      checkedSeq(since, 'since');
    }
    const sealing = key ? new Sealing(key, name) : null;
    this._checkOpen();
    const report = (event: Report): void => {
      inform(this._platform, listener, event);
      inform(this._platform, this._options.listener, { ...event, room });
      joined?.dispatchEvent(new HubEvent(event.type, event));
    };
    let joined: Room | undefined;
    const runner = new RoomRunner(
      this._origin.socketUrl + SOCKET_PATH,
      async () => {
        const given = await currentToken(token);
        return [SUBPROTOCOL, ...named, ...(given ? [`token.${bare(given)}`] : [])];
      },
      new RoomProtocol(pseudonym, since, this._platform.random),
      this._inbox(inbox ?? encoded(utf8(name)), report),
      this._platform,
      'reconnect' in options ? options.reconnect : this._options.reconnect,
      report,
    );
    await runner.start(signal);
    joined = new Room(pseudonym, runner, sealing, (left) => {
      this._rooms.get(left)?.();
      this._rooms.delete(left);
    });
    if (this._isClosed) {
      await joined.close();
    }
    this._checkOpen();
    const unfollow = followPage({
      woke: () => {
        runner.checkLink();
        runner.lifeline.hurry();
      },
      left: () => {
        runner.lifeline.suspend();
        runner.dropLink('the page is hidden');
      },
    });
    this._rooms.set(joined, unfollow);
    return joined;
  }

  /** An inbox, to be read and written without joining a room. */
  inbox(inboxId: string): InboxAccess {
    return this._inbox(inboxId, (event) => inform(this._platform, this._options.listener, event));
  }

  /** Leave all rooms and close all connections. Can be called more than once. */
  async close(): Promise<void> {
    this._isClosed = true;
    for (const room of [...this._rooms.keys()]) {
      await room.close();
    }
    this._http.close();
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }

  private _inbox(inboxId: string, report: (event: Report) => void): InboxAccess {
    return new InboxAccess(this._http, inboxId, this._platform, report);
  }

  private _checkOpen(): void {
    if (this._isClosed) {
      throw new Unavailable('the hub was closed by this program');
    }
  }
}
