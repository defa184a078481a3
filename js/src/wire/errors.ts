/**
 * The errors of the client.
 *
 * SignalHubError               base of all; carries `code`
 * ├── Reject                   a handler says that a message can never be processed
 * ├── Unsealable               a sealed message cannot be opened
 * └── ClientError              what the client throws
 *     ├── Refused              did not happen; the hub answered with an error
 *     │   ├── UnknownActor     nobody is registered under that address
 *     │   └── StaleDelivery    the hub no longer waits for this copy of a message
 *     ├── Unavailable          did not happen; trying again later may help
 *     │   └── GaveUp           the client stopped trying to reconnect
 *     ├── OutcomeUnknown       may have happened: no answer in time, or the hub's log failed
 *     │   └── NoReply          a request was handed over, and its recipient did not reply
 *     ├── Unsubscribed         the hub ended a durable subscription of this client
 *     ├── RequestFailed        the other side answered a request with a failure
 *     └── CallError            a call to a durable actor ended without a value
 *
 * Arguments that are wrong throw a `TypeError` at once.
 */

export class SignalHubError extends Error {
  code = 'internal_error';
}

/** Thrown by a handler: the message can never be processed and must not be redelivered. */
export class Reject extends SignalHubError {
  override code = 'rejected';
}

/** Sealed with another key, for another room or message, not sealed, or damaged. */
export class Unsealable extends SignalHubError {
  override code = 'unsealable';
}

/** Base of what the client throws. */
export class ClientError extends SignalHubError {
  /** What to do, if the hub gave any advice. */
  resolution = '';
  /** Whether trying again may help. */
  retryable = false;
  details: Record<string, unknown> = {};
}

export interface RefusalFacts {
  resolution?: string;
  retryable?: boolean;
  details?: Record<string, unknown>;
}

/** The hub answered with an error: the request did not happen. */
export class Refused extends ClientError {
  /** The hub's sentence, without the code. */
  readonly reason: string;

  constructor(code: string, reason: string, facts: RefusalFacts = {}) {
    super(`${code}: ${reason}`);
    this.code = code;
    this.reason = reason;
    Object.assign(this, facts);
  }
}

/** Nobody is registered under the address. */
export class UnknownActor extends Refused {}

/**
 * The hub no longer waits for this copy: the settlement or extension was not accepted.
 *
 * The message was settled before, is with another consumer, or will be delivered again. `details`
 * holds `seq`, `attempt` and the hub's `floor`: everything up to it is settled.
 */
export class StaleDelivery extends Refused {
  constructor(what: string, details: Record<string, unknown>) {
    super('stale_delivery', `${what} was not accepted: the hub no longer waits for this copy`, {
      resolution:
        'Stop processing it: the message was settled before, is with another consumer, or will be delivered again.',
      details,
    });
  }
}

/** The hub cannot be reached, or cannot serve the request now: it did not happen. */
export class Unavailable extends ClientError {
  override code = 'unavailable';
  override retryable = true;
  /** Whether the hub itself said so. */
  isAnswered = false;
}

/** The client has stopped trying to reconnect; the text says why. */
export class GaveUp extends Unavailable {
  override code = 'gave_up';
  override retryable = false;
}

/** The request may or may not have happened: no answer arrived, or the hub's log failed. */
export class OutcomeUnknown extends ClientError {
  override code = 'outcome_unknown';

  constructor(text = '', resolution = '') {
    super(text);
    this.resolution = resolution;
  }
}

/**
 * A request was handed over, and no reply arrived: in time (`no_reply`), or before its recipient left
 * (`recipient_left`).
 */
export class NoReply extends OutcomeUnknown {
  constructor(text: string, code = 'no_reply') {
    super(text, 'Check whether it was done before you repeat it.');
    this.code = code;
  }
}

/** The hub ended a durable subscription of this client; `code` is its reason. */
export class Unsubscribed extends ClientError {
  constructor(code: string, text: string) {
    super(text);
    this.code = code;
  }
}

/** The other side answered a request with a failure; `code` and the text are its own. */
export class RequestFailed extends ClientError {
  constructor(code: string, text: string) {
    super(text);
    this.code = code;
  }
}

/**
 * A call to a durable actor ended without a value: with what its method raised (`errorName`,
 * `attrs`), or as `call_timeout` or `call_undeliverable`.
 */
export class CallError extends ClientError {
  /** The name of the error's class at the actor. */
  errorName = '';
  attrs: Record<string, unknown> = {};
  tracebackText = '';
  callId = '';
  /** Of a timeout: whether the method may have run. */
  executed?: 'no' | 'unknown';

  constructor(code: string, text: string, facts: Partial<CallError> = {}) {
    super(text);
    Object.assign(this, facts);
    this.code = code;
  }
}

// Written out, because the names of classes do not survive minifying.
for (const [name, kind] of Object.entries({
  SignalHubError,
  Reject,
  Unsealable,
  ClientError,
  Refused,
  UnknownActor,
  StaleDelivery,
  Unavailable,
  GaveUp,
  OutcomeUnknown,
  NoReply,
  Unsubscribed,
  RequestFailed,
  CallError,
})) {
  kind.prototype.name = name;
}

/** The sentence of an error, or what was thrown instead of one. */
export function sentence(error: unknown): string {
  try {
    return String(error instanceof Error ? error.message : error);
  } catch {
    // An object without a prototype, or one whose own conversion fails.
    return 'something that has no text was thrown';
  }
}
