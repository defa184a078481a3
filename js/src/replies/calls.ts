/**
 * Calling durable actors from outside.
 *
 * The caller waits in memory: the call itself is durable, but if the calling program ends, its outcome
 * is lost. Arguments and results are JSON. Tuples and sets arrive as arrays; other values that only
 * Python has are objects `{$, v}` that name their type.
 */

import type { Place } from '../answers.js';
import type { Client } from '../client.js';
import type { Message } from '../message.js';
import { type Deferred, type Platform, deferred, sleep, until } from '../transport/platform.js';
import { newMessageId } from '../wire/bytes.js';
import { CallError, Refused } from '../wire/errors.js';
import { checkedActor, invalid } from '../wire/names.js';
import { isObject, textIn } from '../wire/shapes.js';

const CALL = 'actors:call';
const RESULT = 'actors:result';
const VERSION = 1;
const AGAIN_MS = 250;
const TIMEOUT_MS = 30_000;
const RETRIED = ['stale_placement', 'queue_full', 'storage_full', 'no_host'];

/** An object with a member `$` would be taken for such a value. */
const packed = (value: unknown): unknown =>
  Array.isArray(value)
    ? value.map(packed)
    : isObject(value)
      ? '$' in value
        ? { $: 'dict', v: Object.entries(value).map(packed) }
        : Object.fromEntries(Object.entries(value).map(([name, one]) => [name, packed(one)]))
      : value;

function unpacked(value: unknown): unknown {
  if (Array.isArray(value)) {
    return value.map(unpacked);
  }
  if (!isObject(value)) {
    return value;
  }
  const { $: tag, v: content } = value;
  if (Array.isArray(content) && typeof tag === 'string' && /^(tuple|set|frozenset)$/.test(tag)) {
    return content.map(unpacked);
  }
  const pairs = tag === 'dict' && Array.isArray(content) ? content : Object.entries(value);
  return Object.fromEntries(pairs.map(([name, one]) => [name, unpacked(one)]));
}

export interface Calling {
  /** How long to wait for the outcome; 30 000 by default. */
  timeoutMs?: number;
  /** Named arguments. */
  named?: Record<string, unknown>;
  signal?: AbortSignal;
}

/** The calls of one client. */
export class Calls {
  private _waiting = new Map<string, Deferred<unknown>>();

  constructor(
    private _client: Client<any>,
    private _platform: Platform,
  ) {
    _client.on(RESULT, (message) => this._answered(message));
  }

  async call(
    actor: string,
    method: string,
    args: unknown[],
    { timeoutMs = TIMEOUT_MS, named = {}, signal }: Calling,
  ): Promise<unknown> {
    checkedActor(actor);
    if (!/^[\p{L}_][\p{L}\p{N}_]*$/u.test(method)) {
      invalid(`invalid method ${JSON.stringify(method)}`);
    }
    const callId = newMessageId();
    const body = { m: method, a: packed(args), k: packed(named) };
    const request = { kind: 'request', call: callId, to: actor, body };
    const outcome = deferred<unknown>();
    this._waiting.set(callId, outcome);
    const progress = { isSent: false, reason: '' };
    const over = new AbortController();
    const cancel = this._platform.after(timeoutMs, () => {
      const seconds = timeoutMs / 1000;
      const error = progress.isSent
        ? new CallError('call_timeout', `${actor}.${method} did not answer within ${seconds} s`, {
            executed: 'unknown',
          })
        : new CallError(
            'call_undeliverable',
            `${actor} could not be reached within ${seconds} s: ${progress.reason || 'no answer'}`,
          );
      error.callId = callId;
      outcome.reject(error);
    });
    try {
      const data = { v: VERSION, messages: [request] };
      const sending = this._send(actor, data, callId, timeoutMs, progress, over.signal);
      sending.catch(outcome.reject);
      return await until(outcome.promise, signal);
    } finally {
      cancel();
      over.abort();
      this._waiting.delete(callId);
    }
  }

  /** Find the actor's host and send the call to its mailbox; retry temporary failures. */
  private async _send(
    actor: string,
    data: unknown,
    messageId: string,
    ttlMs: number,
    progress: { isSent: boolean; reason: string },
    signal: AbortSignal,
  ): Promise<void> {
    for (;;) {
      try {
        const { places, unplaced } = await this._client.place([actor], { signal });
        const [place] = places as [Place?];
        if (!place) {
          const { code, message, resolution } = unplaced[0]!;
          throw new Refused(code, message, { resolution });
        }
        progress.isSent = true;
        const fences = { [actor]: place.token };
        await this._client.ask(place.host, CALL, data, { ttlMs, messageId, fences, signal });
        return;
      } catch (error) {
        if (!(error instanceof Refused) || !RETRIED.includes(error.code)) {
          throw error;
        }
        progress.isSent = false;
        progress.reason = error.reason;
      }
      await sleep(this._platform, AGAIN_MS, signal);
    }
  }

  private _answered({ payload }: Message): void {
    const messages = isObject(payload) && payload.v === VERSION ? payload.messages : [];
    for (const result of Array.isArray(messages) ? messages : []) {
      const waiting = this._waiting.get(textIn(result, 'call') ?? '');
      const body: unknown = result?.body;
      if (!isObject(body)) {
        continue;
      }
      try {
        body.error === undefined
          ? waiting?.resolve(unpacked(body.ok ?? null))
          : waiting?.reject(errorOf(body.error, result.call));
      } catch {
        // Its caller must not wait for nothing, nor those of the results behind it.
        waiting?.reject(errorOf(null, result.call));
      }
    }
  }
}

/** The error that an actor described. */
function errorOf(described: unknown, callId: string): CallError {
  const attrs = isObject(described) && isObject(described.attrs) ? described.attrs : {};
  const own = textIn(described, 'own');
  const codes: Record<string, string> = {
    CallTimeout: 'call_timeout',
    CallUndeliverable: 'call_undeliverable',
  };
  const facts: Partial<CallError> = {
    errorName: textIn(described, 'name') ?? 'Unreadable',
    tracebackText: textIn(described, 'traceback') ?? '',
    attrs,
    callId,
  };
  if (own === 'CallTimeout') {
    facts.executed = attrs.executed === 'no' ? 'no' : 'unknown';
  }
  return new CallError(
    (Object.hasOwn(codes, own ?? '') && codes[own!]) || 'call_failed',
    textIn(described, 'message') ?? '',
    facts,
  );
}
