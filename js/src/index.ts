/** The client for JavaScript: connect to a hub, send, ask, publish, listen, consume, join rooms. */

export type * from './answers.js';
export type { Handler } from './arrivals.js';
export type { Calling } from './replies/calls.js';
export {
  type AskOptions,
  Client,
  type ConnectOptions,
  type ConsumeOptions,
  type Payloads,
  type PublishOptions,
  Subscription,
  type TellOptions,
  connect,
} from './client.js';
export { Consumer, HubEvent } from './consumers.js';
export type { DeadLetter, Delivery, Settled } from './delivery.js';
export { Message, type MessageFacts, type SettleOptions } from './message.js';
export type { Report } from './protocol/effects.js';
export type { Json } from './protocol/frame.js';
export { Replay } from './replay.js';
export type { Publishing, Registering } from './requests.js';
export type { Answering, ManyOptions, RequestingOptions } from './replies/requester.js';
export type { InboxPage, Missed, RoomMessage, Sent, Stored } from './rooms/answers.js';
export { exporter, inboxId, inboxKey } from './rooms/capability.js';
export { InboxAccess, InboxMessages, type InboxOptions } from './rooms/inbox.js';
export {
  Hub,
  type HubOptions,
  type Joining,
  type OpenedMessage,
  Room,
  type SendOptions,
  hub,
} from './rooms/room.js';
export { Sealing, newKey } from './rooms/sealing.js';
export type {
  BacklogPolicy,
  Definition,
  Destination,
  Erasing,
  LetterChoice,
  LetterEdit,
  Mode,
  Poison,
  Redriving,
  Serving,
} from './stream_requests.js';
export { addressPerTab } from './transport/page.js';
export type { Injected, Refusal, Socket, SocketClass, Token } from './transport/platform.js';
export { newMessageId } from './wire/bytes.js';
export {
  CallError,
  ClientError,
  GaveUp,
  NoReply,
  OutcomeUnknown,
  Refused,
  Reject,
  RequestFailed,
  SignalHubError,
  StaleDelivery,
  Unavailable,
  UnknownActor,
  Unsealable,
  Unsubscribed,
} from './wire/errors.js';
export type { Position, RoomType } from './wire/names.js';
export type { Reconnect, Reconnecting } from './wire/pacing.js';
