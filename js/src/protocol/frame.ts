/** One request to the hub: its declaration, its frame and its properties. */

import { sizeOf } from '../wire/bytes.js';
import { sentence } from '../wire/errors.js';
import {
  HUB_ADDRESS,
  checkedAddress,
  checkedLifetime,
  checkedMessageId,
  invalid,
} from '../wire/names.js';

export const REQUEST_MS = 30_000;

/** What can hold a request back. */
export const enum HeldBy {
  /** Pauses, including those of its target alone, and the hub's message rate. */
  Tell,
  /** Pauses of all traffic, and the hub's message rate. */
  Traffic,
  /** The hub's message rate. */
  Control,
  /** Nothing but the connection, and control requests made before it. */
  Exempt,
}

/** The content of a request; `A` is what its answer is read as. */
export interface Payload<A = unknown> {
  type: string;
  /** The type of the answer; none for a tell. */
  answer: string | null;
  /** Another name some hubs use for the answer. */
  alias?: string;
  content: unknown;
  heldBy: HeldBy;
  isTell?: boolean;
  noun?: string;
  /** For error texts: `task:assign to @(demo/bob)`. */
  subject: string;
  /** The target whose pause holds it back. */
  target: string;
  /** The topic whose replayed messages belong to the answer. */
  collects?: string;
  /** Whether it can be sent again: the hub recognises it, or a repeat has no effect. */
  isRepeatable: boolean;
  read(answer: unknown, attempts: number): A;
}

/** Declare a request; what is not given is as in most of them. */
export const declared = <A>(
  type: string,
  answer: string | null,
  content: unknown,
  read: (answer: unknown, attempts: number) => A,
  others: Partial<Payload<A>> = {},
): Payload<A> => ({
  type,
  answer,
  content,
  read,
  heldBy: HeldBy.Control,
  subject: type,
  target: '',
  isRepeatable: true,
  ...others,
});

/** Options of a request beside its payload. */
export interface RequestOptions {
  sender?: string | undefined;
  messageId?: string | undefined;
  metadata?: Record<string, unknown> | undefined;
  ttlMs?: number | undefined;
  timeoutMs?: number | undefined;
  attempts?: number | undefined;
  wait?: boolean | undefined;
}

/** One frame and its properties; `Payload` explains the fields. */
export interface Request {
  id: string;
  frame: string;
  size: number;
  heldBy: HeldBy;
  subject: string;
  target: string;
  /** Without one, the request is done once written. */
  answer: string | null;
  alias: string | undefined;
  isRepeatable: boolean;
  collects: string | undefined;
  timeoutMs: number;
  attempts: number;
}

/** How JSON is read and written, for programs with other numbers or types than JSON's. */
export interface Json {
  parse(text: string): unknown;
  stringify(value: unknown): string;
}

/** Encodes frames; `sender` is their default sender. */
export class FrameWriter {
  constructor(
    readonly sender: string,
    readonly newId: () => string,
    private _json: Json = JSON,
  ) {
    checkedAddress(sender);
  }

  /** Encode a request to the hub; without `wait`, it gets no answer. */
  request(payload: Payload<any>, nowMs: number, options: RequestOptions = {}): Request {
    const { sender, metadata, ttlMs, timeoutMs = REQUEST_MS, attempts = 1, wait = true } = options;
    if (!(timeoutMs > 0) || !(attempts >= 1)) {
      invalid(`${payload.noun ?? 'a request'} needs a timeout above 0 ms and at least one attempt`);
    }
    const ttl = checkedLifetime(ttlMs);
    const id = checkedMessageId(options.messageId) ?? this.newId();
    const message = {
      id,
      from: sender === undefined ? this.sender : checkedAddress(sender),
      to: HUB_ADDRESS,
      type: payload.type,
      payload: payload.content,
      pattern: wait && !payload.isTell ? 'ask' : 'tell',
      correlationId: null,
      timestamp: nowMs,
      metadata: metadata ?? {},
      ttl,
      signature: null,
    };
    let frame: string;
    try {
      frame = this._json.stringify(message);
    } catch (error) {
      invalid(`${payload.subject} cannot be written as JSON: ${sentence(error)}`);
    }
    return {
      id,
      frame,
      size: sizeOf(frame),
      heldBy: payload.heldBy,
      subject: payload.subject,
      target: payload.target,
      answer: wait ? payload.answer : null,
      alias: payload.alias,
      isRepeatable: payload.isRepeatable,
      collects: payload.collects,
      timeoutMs,
      attempts: payload.isRepeatable ? attempts : 1,
    };
  }
}
