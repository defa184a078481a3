/** The part of the client that looks at a hub and manages what it keeps. */

import type {
  ActorPage,
  Erased,
  JobPage,
  LetterCount,
  LettersPreview,
  LimitUsage,
  Original,
  Place,
  Placements,
  QueueStats,
  Republished,
  SessionPage,
  Sought,
  SubscriptionInfo,
  SubscriptionPage,
  Topic,
  TopicPage,
} from './answers.js';
import type { Payload, RequestOptions } from './protocol/frame.js';
import * as requests from './requests.js';
import * as streams from './stream_requests.js';
import type {
  Definition,
  Destination,
  Erasing,
  LetterChoice,
  Redriving,
  Serving,
} from './stream_requests.js';
import type { Position } from './wire/names.js';

/** Everything that takes time can be given up. */
export interface Waiting {
  signal?: AbortSignal;
}

export interface PageOptions extends Waiting {
  offset?: number;
  limit?: number;
}

/** Requests about actors, sessions, topics, subscriptions, dead letters and places. */
export abstract class Management extends EventTarget {
  /** @internal */
  abstract _answer<A>(
    payload: Payload<A>,
    options?: RequestOptions & { signal?: AbortSignal | undefined },
    then?: () => void,
  ): Promise<A>;

  /** A page of all registered actors. */
  actors({ offset = 0, limit = 100, signal }: PageOptions = {}): Promise<ActorPage> {
    return this._answer(requests.listingActors(offset, limit), { signal });
  }

  /**
   * A page of the hub's sessions, oldest first, for operators (`admin: sessions`). The pattern is about
   * their identities; the `next` of a page is the `after` of the following.
   */
  sessions(
    pattern = '*',
    { after = 0, limit = 200, signal }: Waiting & { after?: number; limit?: number } = {},
  ): Promise<SessionPage> {
    return this._answer(requests.listingSessions(pattern, after, limit), { signal });
  }

  /** Close somebody's session, as an operator (`admin: sessions`). */
  closeSession(sessionId: string, { signal }: Waiting = {}): Promise<void> {
    return this._answer(requests.closingSession(sessionId), { signal });
  }

  /** What is queued in the hub for this connection. */
  queueStats({ signal }: Waiting = {}): Promise<QueueStats> {
    return this._answer(requests.showingQueue(), { signal });
  }

  /** The hub's counters of the current minute. */
  metrics({ signal }: Waiting = {}): Promise<Record<string, unknown>> {
    return this._answer(requests.showingMetrics(), { signal });
  }

  /** The newest jobs, the last one first, for operators (`admin: view`). */
  jobs({ limit = 100, signal }: Waiting & { limit?: number } = {}): Promise<JobPage> {
    return this._answer(requests.listingJobs(limit), { signal });
  }

  /** The limits of the hub and who uses most, or what one identity uses (`admin: limits`). */
  limits(
    identity?: string,
    { top = 10, signal }: Waiting & { top?: number } = {},
  ): Promise<LimitUsage> {
    return this._answer(requests.showingLimits(top, identity), { signal });
  }

  /** Create a durable topic; does nothing if it exists with the same definition. */
  createTopic(name: string, { signal, ...definition }: Definition & Waiting = {}): Promise<Topic> {
    return this._answer(streams.creatingTopic(name, definition), { signal });
  }

  /** Change the definition of a topic immediately. */
  updateTopic(name: string, { signal, ...definition }: Definition & Waiting = {}): Promise<Topic> {
    return this._answer(streams.updatingTopic(name, definition), { signal });
  }

  /** The state of a durable topic. */
  topic(name: string, { signal }: Waiting = {}): Promise<Topic> {
    return this._answer(streams.showingTopic(name), { signal });
  }

  /** A page of the durable topics, or of those that match, such as `orders*`. */
  topics(
    pattern?: string,
    { offset = 0, limit = 100, signal }: PageOptions = {},
  ): Promise<TopicPage> {
    return this._answer(streams.listingTopics(pattern, offset, limit), { signal });
  }

  /** Delete a durable topic with its messages and subscriptions. */
  deleteTopic(name: string, { signal }: Waiting = {}): Promise<void> {
    return this._answer(streams.deletingTopic(name), { signal });
  }

  /** The state of a durable subscription. */
  subscription(topic: string, name: string, { signal }: Waiting = {}): Promise<SubscriptionInfo> {
    return this._answer(streams.aboutSubscription('info', topic, name), { signal });
  }

  /**
   * A page of the durable subscriptions of a topic, of a pattern, or of all topics. With `patterns`, of
   * the patterns instead, each with its topics added up.
   */
  subscriptions(
    topic?: string,
    { offset = 0, limit = 100, patterns, signal }: PageOptions & { patterns?: boolean } = {},
  ): Promise<SubscriptionPage> {
    const listing = streams.listingSubscriptions(topic, offset, limit, patterns);
    return this._answer(listing, { signal });
  }

  /** Change the options of a durable subscription immediately; see `consume`. */
  updateSubscription(
    topic: string,
    name: string,
    { signal, ...serving }: Serving & Waiting = {},
  ): Promise<SubscriptionInfo> {
    const members = streams.served(serving);
    return this._answer(streams.aboutSubscription('update', topic, name, members), { signal });
  }

  /** Pause a durable subscription: nothing is delivered until `resume`. */
  pause(topic: string, name: string, { signal }: Waiting = {}): Promise<SubscriptionInfo> {
    return this._answer(streams.aboutSubscription('pause', topic, name), { signal });
  }

  /** Resume a paused subscription. */
  resume(topic: string, name: string, { signal }: Waiting = {}): Promise<SubscriptionInfo> {
    return this._answer(streams.aboutSubscription('resume', topic, name), { signal });
  }

  /** Move a durable subscription; with `dryRun`, only report the effect. */
  seek(
    topic: string,
    name: string,
    to: Position,
    { dryRun = false, signal }: Waiting & { dryRun?: boolean } = {},
  ): Promise<Sought> {
    return this._answer(streams.seeking(topic, name, to, dryRun), { signal });
  }

  /** Delete a durable subscription and its position; the topic keeps its messages. */
  async deleteSubscription(topic: string, name: string, { signal }: Waiting = {}): Promise<void> {
    await this._answer(streams.aboutSubscription('delete', topic, name), { signal });
  }

  /** Send all dead letters, or the chosen ones, back to their source. */
  redrive(
    topic: string,
    seqs?: Iterable<number>,
    { signal, ...choice }: Redriving & Waiting = {},
  ): Promise<LetterCount> {
    return this._answer(streams.redriving(topic, seqs, choice), { signal });
  }

  /** Delete all dead letters, or the chosen ones. */
  purge(
    topic: string,
    seqs?: Iterable<number>,
    { signal, ...choice }: LetterChoice & Waiting = {},
  ): Promise<LetterCount> {
    return this._answer(streams.purging(topic, seqs, choice), { signal });
  }

  /** What `redrive` would do; changes nothing. */
  previewRedrive(
    topic: string,
    seqs?: Iterable<number>,
    { signal, ...choice }: Redriving & Waiting = {},
  ): Promise<LettersPreview> {
    return this._answer(streams.previewing(topic, seqs, choice), { signal });
  }

  /** Send messages as a replay job, each at most once; without messages, return its progress. */
  republish(
    job: string,
    originals: Original[],
    options: Destination & Waiting & { until: { epoch: number; offset: number }; ended?: boolean },
  ): Promise<Republished> {
    const { signal, ...others } = options;
    return this._answer(streams.republishing(job, originals, others), { signal });
  }

  /** Erase what an actor received and sent, or the content of an inbox, from the hub's log. */
  erase({ signal, ...what }: Erasing & Waiting): Promise<Erased> {
    return this._answer(streams.erasing(what), { signal });
  }

  /** Where durable actors such as `order/17` live; those without a place get one. */
  place(
    actors: Iterable<string>,
    { host, tokens, signal }: Waiting & { host?: string; tokens?: Record<string, number> } = {},
  ): Promise<Placements> {
    return this._answer(streams.placing(actors, host, tokens), { signal });
  }

  /** Move an actor from a host of ours to another host, under the next token. */
  move(actor: string, token: number, to: string, { signal }: Waiting = {}): Promise<Place> {
    return this._answer(streams.moving(actor, token, to), { signal });
  }

  /** Let the hub forget where an actor lives, and return its former place. */
  forgetPlace(actor: string, { signal }: Waiting = {}): Promise<Place> {
    return this._answer(streams.forgettingPlace(actor), { signal });
  }
}
