/** Effects of the client's protocol, which the runner performs, and the time it is given. */

import type { Message } from '../message.js';
import type { ClientError } from '../wire/errors.js';

/** One moment on both clocks: `wallMs` stamps messages, `monoMs` measures intervals. */
export interface Instant {
  wallMs: number;
  monoMs: number;
}

/** A request is done; for tells there is no payload. `messages` are those of a replay. */
export interface Answered {
  do: 'answered';
  id: string;
  payload: unknown;
  attempts: number;
  messages: Message[];
}

/** Something that happened, for listeners: the members depend on `type`. */
export interface Report {
  type: string;
  [name: string]: unknown;
}

/** What every protocol may want. */
export type CommonEffect =
  /** Write this frame to the link. */
  | { do: 'send'; frame: string }
  /** A request has failed. */
  | { do: 'failed'; id: string; error: ClientError }
  /** Cut the link and try another one. */
  | { do: 'drop'; reason: string }
  /** Stop for good; never reconnect. */
  | { do: 'stop'; error: ClientError }
  /** Tell the listeners. */
  | { do: 'report'; event: Report };

export type Effect =
  | CommonEffect
  | Answered
  /** A message for the application. */
  | { do: 'arrived'; message: Message }
  /** A durable subscription has ended for this client. */
  | { do: 'ended'; topic: string; subscription: string; error: ClientError }
  /** Connected, registered and subscribed: any request can be sent. */
  | { do: 'ready'; sessionId: string };

export const warned = (sentence: string, facts: object = {}): CommonEffect => ({
  do: 'report',
  event: { type: 'warning', sentence, ...facts },
});
