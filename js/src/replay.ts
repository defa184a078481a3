/** Reading a range of a durable topic once, without a subscription. */

import type { Lost, Replayed } from './answers.js';
import { iterate } from './consumers.js';
import type { Message } from './message.js';
import { reading } from './stream_requests.js';
import { until } from './transport/platform.js';
import type { ClientRunner } from './transport/runner.js';
import { checkedTopic, invalid } from './wire/names.js';
import { Queue } from './wire/queues.js';

const PAGE = 500;

/**
 * The messages of a range, in order: `for await (const message of replay)`.
 *
 * They are fetched in pages. Afterwards, `complete` says whether that was the whole range, `nextSeq`
 * where to continue, and `lost` which positions the topic no longer keeps.
 */
export class Replay<P = any> implements AsyncIterable<Message<P>> {
  count = 0;
  complete = false;
  nextSeq: number;
  lost: Lost | null = null;
  private _page = new Queue<Message>();
  private _isOver = false;

  /** @internal */
  constructor(
    private _runner: ClientRunner,
    readonly topic: string,
    fromSeq: number,
    private _toSeq: number | undefined,
    private _limit: number | undefined,
  ) {
    checkedTopic(topic);
    if (!(fromSeq >= 1) || (_toSeq !== undefined && _toSeq < fromSeq)) {
      invalid('fromSeq must be at least 1, and toSeq must not be before it');
    }
    if (_limit !== undefined && !(_limit >= 1)) {
      invalid('limit must be at least 1');
    }
    this.nextSeq = fromSeq;
  }

  [Symbol.asyncIterator](): AsyncIterator<Message<P>, undefined> {
    return iterate(() => this.next());
  }

  /** Wait for the next message; `undefined` after the last one. */
  async next(signal?: AbortSignal): Promise<Message<P> | undefined> {
    while (!this._page.length) {
      if (this._isOver) {
        return undefined;
      }
      await this._fetch(signal);
    }
    this.count++;
    return this._page.shift();
  }

  private async _fetch(signal?: AbortSignal): Promise<void> {
    const limit = this._limit;
    const size = limit === undefined ? PAGE : Math.min(PAGE, limit - this.count);
    // If the caller stops waiting, this page still arrives and must not be taken for another one.
    const { _runner: runner } = this;
    const page = runner.replaying.then(() => this._ask(size));
    runner.replaying = page.catch(() => undefined);
    const [replayed, messages] = await until(page, signal);
    for (const message of messages) {
      this._page.push(message);
    }
    const { lostFrom, lostTo, complete, next } = replayed;
    if (lostFrom !== null && lostTo !== null) {
      // Retention may go on between two pages.
      this.lost = { first: this.lost?.first ?? lostFrom, last: lostTo };
    }
    this.complete = complete && this.lost === null;
    const here = this.nextSeq;
    this.nextSeq = next || here + messages.length;
    const isFull = limit !== undefined && this.count + this._page.length >= limit;
    this._isOver = complete || isFull || this.nextSeq <= here;
  }

  private async _ask(size: number): Promise<[Replayed, Message[]]> {
    const page = reading(this.topic, this.nextSeq, this._toSeq, size);
    const answered = await this._runner.call(this._runner.request(page));
    return [page.read(answered.payload, answered.attempts), answered.messages];
  }
}
