/** Runs a room's protocol over real sockets: performs its effects, calls `tick`, reconnects. */

import type { Report } from '../protocol/effects.js';
import { type Link, openLink } from '../transport/link.js';
import { type Deferred, type Platform, deferred, until } from '../transport/platform.js';
import { Lifeline } from '../transport/reconnect.js';
import { Timer } from '../transport/runner.js';
import type { Bytes } from '../wire/bytes.js';
import { type ClientError, GaveUp, Unavailable, sentence } from '../wire/errors.js';
import { invalid } from '../wire/names.js';
import type { Reconnecting } from '../wire/pacing.js';
import { type RoomMessage, RoomRefusal, type Sent } from './answers.js';
import { type InboxAccess, waiting } from './inbox.js';
import type { RoomEffect, RoomProtocol } from './protocol.js';

const FETCH_MS = 30_000;

/** The timers and sockets of one member of a room. */
export class RoomRunner {
  readonly lifeline: Lifeline;
  private _calls = new Map<string, Deferred<Sent>>();
  private _news: Deferred<void> | null = null;
  private _link: Link | null = null;
  private _timer: Timer;
  private _fetching = new AbortController();

  constructor(
    url: string,
    private _protocols: () => Promise<string[]>,
    readonly protocol: RoomProtocol,
    private _inbox: InboxAccess,
    private _platform: Platform,
    reconnect: Reconnecting,
    private _report: (event: Report) => void,
  ) {
    this._timer = new Timer(
      _platform,
      () => this._perform(protocol.tick(this._nowMs)),
      () => this.checkLink(),
    );
    this.lifeline = new Lifeline(
      {
        url,
        open: () => this._open(url),
        lost: (link) => {
          this._link = null;
          this._perform(protocol.lost(link.closeCode));
        },
        giveUp: (error) => this.giveUp(error),
        report: _report,
      },
      _platform,
      reconnect,
    );
  }

  /** Join for the first time; throws the error if that fails. */
  async start(signal?: AbortSignal): Promise<void> {
    try {
      await until(this.lifeline.start(), signal);
    } catch (error) {
      await this.close();
      throw error;
    }
  }

  /** Send a message and wait for its result. */
  async send(
    messageId: string,
    ciphertext: Bytes,
    members: Record<string, string>,
    timeoutMs: number,
    signal?: AbortSignal,
  ): Promise<Sent> {
    signal?.throwIfAborted();
    if (this._calls.has(messageId)) {
      invalid('a message with this id is already being sent');
    }
    const call = deferred<Sent>();
    this._calls.set(messageId, call);
    const nowMs = this._nowMs;
    try {
      this._perform(this.protocol.submit(messageId, ciphertext, members, nowMs + timeoutMs, nowMs));
      return await until(call.promise, signal);
    } finally {
      this._calls.delete(messageId);
      this.protocol.forget(messageId);
    }
  }

  /** The next message; `undefined` after the last one. Throws the error that ended the room. */
  async next(signal?: AbortSignal): Promise<RoomMessage | undefined> {
    for (;;) {
      signal?.throwIfAborted();
      const [message, effects] = this.protocol.take(this._nowMs);
      this._perform(effects);
      if (message) {
        return message;
      }
      const { end } = this.lifeline;
      if (end) {
        if (end instanceof GaveUp) {
          throw new GaveUp(end.message);
        }
        return undefined;
      }
      this._news ??= deferred();
      await until(this._news.promise, signal);
    }
  }

  /** Leave the room and end everything. Can be called more than once. */
  async close(): Promise<void> {
    this.giveUp(new Unavailable('the room was left'));
    this._timer.cancel();
    await this.lifeline.finished();
  }

  giveUp(error: ClientError): void {
    this._perform(this.protocol.stop(error));
  }

  /** Send a ping now. */
  checkLink(): void {
    this._perform(this.protocol.beat(this._nowMs));
  }

  dropLink(reason: string): void {
    this._link?.abort(reason);
  }

  private get _nowMs(): number {
    return this._platform.now().monoMs;
  }

  private _perform(effects: RoomEffect[]): void {
    for (const effect of effects) {
      switch (effect.do) {
        case 'send':
          this._link?.send(effect.frame);
          break;
        case 'readable':
          this._wake();
          break;
        case 'fetch':
          void this._fetch(effect.fromSeq);
          break;
        case 'accepted':
          this._calls.get(effect.id)?.resolve(effect.sent);
          break;
        case 'failed':
          this._calls.get(effect.id)?.reject(effect.error);
          break;
        case 'joined':
          this._report({ type: 'joined' });
          this.lifeline.becameReady();
          break;
        case 'drop':
          this._report({ type: 'drop', reason: effect.reason });
          this._link?.abort(effect.reason);
          break;
        case 'stop':
          this.lifeline.stop(effect.error);
          this._wake();
          this._link?.close('goodbye');
          this._fetching.abort();
          break;
        case 'report':
          this._report(effect.event);
      }
    }
    if (!this.lifeline.end) {
      this._timer.set(this.protocol.wakeAtMs());
    }
  }

  private _wake(): void {
    this._news?.resolve();
    this._news = null;
  }

  private async _fetch(fromSeq: number): Promise<void> {
    const result = await this._inbox
      ._fetchOnce(fromSeq, FETCH_MS, this._fetching.signal)
      .catch((error) => new RoomRefusal(new Unavailable(sentence(error)), 0, false));
    if (!(result instanceof RoomRefusal)) {
      this._perform(this.protocol.fetched(fromSeq, result, this._nowMs));
      return;
    }
    const { error, retryAfterMs } = result;
    if (retryAfterMs !== null) {
      this._report(waiting(error, retryAfterMs));
    }
    this._perform(this.protocol.notFetched(error, retryAfterMs, this._nowMs));
  }

  private async _open(url: string): Promise<Link> {
    let protocols: string[];
    try {
      protocols = await this._protocols();
    } catch (error) {
      // The token function belongs to the caller and may throw anything.
      throw new Unavailable(`no token: ${sentence(error)}`);
    }
    return openLink(
      this._platform,
      url,
      protocols,
      {
        received: (frame) => this._perform(this.protocol.received(frame, this._nowMs)),
        congested: (isCongested) =>
          this._perform(this.protocol.congested(isCongested, this._nowMs)),
      },
      (link) => {
        if (this.lifeline.end) {
          link.abort('no longer needed');
          return;
        }
        this._link = link;
        this._perform(this.protocol.opened(this._nowMs));
      },
    );
  }
}
