"""All refusals of the hub, with advice for the sender."""

from __future__ import annotations

from signalhub.settings.model import OutboundSettings
from signalhub.wire.envelope import PROTOCOL_VERSION
from signalhub.wire.errors import Code, Refusal


def structural(reason: str) -> Refusal:
    """The message does not have the form its type requires."""
    return Refusal(
        Code.INTERNAL_ERROR,
        f"The message cannot be used: {reason}.",
        "Correct the message; sending it again unchanged will fail again.",
    )


def malformed(reason: str) -> Refusal:
    """The frame is not JSON; the socket is closed after this."""
    return Refusal(
        Code.MALFORMED_MESSAGE,
        f"The frame is not JSON: {reason}.",
        "Send one JSON object per frame; connect again to continue.",
    )


def unknown_type(type: str) -> Refusal:
    """There is no request of this type."""
    return Refusal(
        Code.INTERNAL_ERROR,
        f"The hub does not know the message type {type!r}.",
        "To reach another actor, wrap the message in hub:send.",
        details={"type": type},
    )


def too_large(size: int, limit: int) -> Refusal:
    """The message exceeds its limit, but not the frame limit that closes the socket."""
    return Refusal(
        Code.MESSAGE_TOO_LARGE,
        f"The message has {size} bytes; the limit is {limit}.",
        "Split the message, or store the content elsewhere and send a reference.",
        details={"actualSize": size, "maxSize": limit},
    )


def hello_first() -> Refusal:
    """The first message on a socket must be `hub:connect`."""
    return Refusal(
        Code.UNAUTHORIZED,
        "This socket has not sent hub:connect yet.",
        "Send hub:connect and wait for hub:connected first.",
    )


def rate_limited(rate_s: float, retry_after_ms: int) -> Refusal:
    """The session exceeds its rate limit."""
    return Refusal(
        Code.RATE_LIMITED,
        f"This session may send {rate_s:g} messages per second.",
        "Wait for details.retryAfterMs and send the message again with the same id.",
        retryable=True,
        details={
            "retryAfter": -(-retry_after_ms // 1000),
            "retryAfterMs": retry_after_ms,
            "limit": f"{rate_s:g} messages per second",
            "code": "RATE_LIMIT_EXCEEDED",
        },
    )


def version_mismatch(given: object) -> Refusal:
    """The client speaks another major version, or none."""
    return Refusal(
        Code.VERSION_MISMATCH,
        f"The hub speaks protocol {PROTOCOL_VERSION}; the client said {given!r}.",
        f"Use a client for protocol {PROTOCOL_VERSION}.",
        details={
            "clientVersion": given,
            "serverVersion": PROTOCOL_VERSION,
            "supportedVersions": [PROTOCOL_VERSION],
        },
    )


# How an action reads before its target; the target of `admin` is itself an action.
_READS = {
    "send": "send to ",
    "publish": "publish to ",
    "subscribe": "subscribe to ",
    "admin": "use admin: ",
    "host": "host the kind ",
}


def unauthorized(action: str, target: str) -> Refusal:
    """The token does not permit it."""
    return Refusal(
        Code.UNAUTHORIZED,
        f"The session's token has no permission to {_READS.get(action, f'{action} ')}{target}.",
        f"Ask for a token whose permissions cover it ({action}).",
        details={"action": action, "target": target},
    )


def only_hosts(type: str) -> Refusal:
    """The message is one that hosts believe."""
    return Refusal(
        Code.UNAUTHORIZED,
        f"Only a host of durable actors sends {type}, to one host at a time.",
        "Call an actor instead, or use a token of a host (host).",
        details={"action": "host", "target": type},
    )


def not_your_address(sender: str) -> Refusal:
    """The `from` of the message is not an address of this session."""
    return Refusal(
        Code.UNAUTHORIZED,
        f"This session may not speak as {sender}.",
        "Register the address on this session first, or use the session's own identity.",
        details={"action": "speak as", "target": sender},
    )


def reserved_address(sender: str) -> Refusal:
    """The `from` of a hello is an address that no client may have."""
    return Refusal(
        Code.UNAUTHORIZED,
        f"{sender} is an address of the hub's own.",
        "Connect with another address in `from`.",
        details={"action": "speak as", "target": sender},
    )


def no_capabilities() -> Refusal:
    """`hub:connect` must announce the client's capabilities."""
    return Refusal(
        Code.UNAUTHORIZED,
        "hub:connect needs metadata.capabilities, a non-empty array.",
        'Announce what the client can do, for example ["send", "receive"].',
    )


def bad_renewal() -> Refusal:
    """Neither the token nor the sender belongs to a registration of this session."""
    return Refusal(
        Code.UNAUTHORIZED,
        "The renewal token matches no registration of this session.",
        "Register the address again.",
    )


def invalid_token(reason: str) -> Refusal:
    """A token refresh failed."""
    return Refusal(Code.INVALID_TOKEN, reason, "Connect again with a fresh token.")


def expired(ttl: float) -> Refusal:
    """The `ttl` of the message ended before it could be delivered."""
    return Refusal(
        Code.MESSAGE_EXPIRED,
        f"The message expired before it could be delivered (ttl {ttl:g} ms).",
        "Send a new message, with a longer ttl if this happens often.",
        details={"ttl": ttl},
    )


def reconnecting(address: str) -> Refusal:
    """The hub restarted, and the target has not reconnected yet."""
    return Refusal(
        Code.ACTOR_RECONNECTING,
        f"The actor {address} was registered before the hub restarted and is expected back.",
        "Try again in a few seconds with the same id.",
        retryable=True,
        details={"actorAddress": address},
    )


def queue_full(address: str, waiting: int, bounds: OutboundSettings) -> Refusal:
    """The target reads too slowly, and its queue is full."""
    return Refusal(
        Code.QUEUE_FULL,
        f"The queue of messages for {address} is full.",
        "Wait for hub:resume, or try again later with the same id.",
        retryable=True,
        details={
            "limit": bounds.messages_max,
            "limitBytes": bounds.bytes_max,
            "waiting": waiting,
        },
    )


def registry_full(size: int, limit: int) -> Refusal:
    """The registry is near its limit, so new addresses are refused."""
    return Refusal(
        Code.REGISTRY_FULL,
        f"The hub is at capacity ({size} of {limit} actors).",
        "Try again later, or register with another hub.",
        retryable=True,
        details={
            "currentSize": size,
            "limit": limit,
            "action": "retry_later_or_use_different_hub",
        },
    )


def too_many(what: str, limit: int) -> Refusal:
    """The session has reached a limit."""
    return Refusal(
        Code.LIMIT_EXCEEDED,
        f"This session already has {limit} {what}, which is the limit.",
        f"Remove some of the {what}, or use another session.",
        details={"limit": limit},
    )


def too_many_scans(limit: int) -> Refusal:
    """The session asks for long searches faster than they are answered."""
    return Refusal(
        Code.LIMIT_EXCEEDED,
        f"{limit} searches of this session wait for their answers, which is the limit.",
        "Wait for an answer, then send the request again.",
        retryable=True,
        details={"limit": limit},
    )


def too_many_levels(limit: int) -> Refusal:
    """A wildcard is too deep to be searched at every publish."""
    return Refusal(
        Code.LIMIT_EXCEEDED,
        f"A topic with wildcards may have {limit} levels at most.",
        "End the wildcard with `#` at an earlier level, or subscribe to the topic itself.",
        details={"limit": limit},
    )


def failed() -> Refusal:
    """A bug in the hub."""
    return Refusal(
        Code.INTERNAL_ERROR,
        "Internal error; see the hub's log.",
        "Try again; if it fails again, report the time and the message id.",
        retryable=True,
    )


def mailbox_full(address: str, waiting: int, limit: int, setting: str) -> Refusal:
    """The actor is away, and its mailbox is full."""
    return Refusal(
        Code.QUEUE_FULL,
        f"{address} is away and {waiting} messages already wait for it.",
        f"Try again later with the same id, or raise {setting}.",
        retryable=True,
        details={"limit": limit, "waiting": waiting},
    )


def storage_full() -> Refusal:
    """The disk is full."""
    return Refusal(
        Code.STORAGE_FULL,
        "The hub's disk is full; the message was not accepted.",
        "Try again later with the same id; the operator has to free disk space.",
        retryable=True,
    )


def disk_behind() -> Refusal:
    """As much waits for the disk as may."""
    return Refusal(
        Code.STORAGE_FULL,
        "Too much waits for the hub's disk (log.waiting_bytes_max); the message was not accepted.",
        "Try again later with the same id; the operator has to find out why the disk is slow.",
        retryable=True,
    )


def outcome_unknown() -> Refusal:
    """The log failed while the entry was being written."""
    return Refusal(
        Code.STORAGE_FAILED,
        "The hub's log has failed; it is unknown whether the message was stored.",
        "The operator has to check the disk and restart the hub; then send the message again with"
        " the same id.",
        is_unknown=True,
        details={"outcome": "unknown"},
    )


def storage_failed() -> Refusal:
    """The log has failed and accepts nothing more; an earlier attempt may have been stored."""
    return Refusal(
        Code.STORAGE_FAILED,
        "The hub's log has failed, so the hub stores nothing.",
        "The operator has to check the disk and restart the hub; then send the message again with"
        " the same id, since an earlier attempt may have been stored.",
    )


def storage_unreadable() -> Refusal:
    """Part of the log could not be read."""
    return Refusal(
        Code.STORAGE_FAILED,
        "Part of the hub's log could not be read, so the request was not completed.",
        "The operator has to check the disk (signalhub log verify); then try again.",
    )


class Damaged(Refusal):
    """The log is damaged and read-only."""


def storage_damaged(segment: str, position: int, reason: str) -> Damaged:
    """The log was found damaged, at the start or later, and is read-only."""
    return Damaged(
        Code.STORAGE_FAILED,
        f"The hub's log is damaged and read-only: {segment}, byte {position}: {reason}.",
        "The operator has to restore the segment from a backup and restart the hub; then try again"
        " with the same id.",
        details={"segment": segment, "position": position, "reason": reason},
    )


def held_up(topic: str | None, subscription: str, seq: int, obstacle: Refusal) -> Refusal:
    """A subscription, or a mailbox (without a topic), gets nothing more because of the log."""
    what = "The mailbox" if topic is None else f"The subscription {subscription} of {topic}"
    where: dict[str, object] = {"seq": seq}
    if topic is not None:
        where |= {"topic": topic, "subscription": subscription}
    return Refusal(
        Code.STORAGE_FAILED,
        f"{what} waits at seq {seq}, everything before it is delivered. {obstacle.message}",
        "Stay connected, or come back later: it continues when the operator has repaired the log"
        " and restarted the hub.",
        details=where | obstacle.details,
    )


def wrong_epoch(stream: str, given: str, current: str) -> Refusal:
    """The position belongs to another epoch of the stream."""
    return Refusal(
        Code.WRONG_EPOCH,
        f"The position belongs to epoch {given!r} of {stream}; the current epoch is {current!r}.",
        "The stream was recreated or cut: start again from earliest, or from a position of the"
        " current epoch.",
        details={"current": current, "given": given, "stream": stream},
    )


def unknown_topic(topic: str) -> Refusal:
    """There is no durable topic of this name."""
    return Refusal(
        Code.UNKNOWN_TOPIC,
        f"There is no durable topic {topic!r}.",
        "Create it with hub:topic_create; hub:list_topics lists the existing ones.",
        details={"topic": topic},
    )


def topic_conflict(topic: str, definition: dict[str, object]) -> Refusal:
    """The topic exists with another definition."""
    return Refusal(
        Code.TOPIC_CONFLICT,
        f"The topic {topic!r} exists with another definition.",
        "Use the existing definition (details.definition), or change it with hub:topic_update.",
        details={"topic": topic, "definition": definition},
    )


def too_many_topics(limit: int) -> Refusal:
    """The limit of durable topics is reached."""
    return Refusal(
        Code.LIMIT_EXCEEDED,
        f"The hub has {limit} durable topics, which is the limit.",
        "Delete topics that are not needed, or raise topics.limit.",
        details={"limit": limit},
    )


def too_many_subscriptions(limit: int) -> Refusal:
    """The limit of durable subscriptions is reached."""
    return Refusal(
        Code.LIMIT_EXCEEDED,
        f"The hub has {limit} durable subscriptions, which is the limit.",
        "Delete subscriptions that are not needed, or raise dispatch.limit.",
        details={"limit": limit},
    )


def too_many_patterns(limit: int) -> Refusal:
    """The limit of pattern subscriptions is reached."""
    return Refusal(
        Code.LIMIT_EXCEEDED,
        f"The hub has {limit} subscriptions to patterns, which is the limit.",
        "Delete those that are not needed, or raise limits.patterns_max.",
        details={"limit": limit},
    )


def crowded_pattern(pattern: str, limit: int, *, of_identity: bool) -> Refusal:
    """A topic would match more pattern subscriptions than one may."""
    whose = " of one identity" if of_identity else ""
    setting = "limits.identity_share" if of_identity else "limits.patterns_per_topic"
    return Refusal(
        Code.LIMIT_EXCEEDED,
        f"With {pattern!r}, a topic could match more than {limit} pattern subscriptions{whose}.",
        "Delete patterns that overlap with it, share one subscription among several consumers,"
        f" choose a narrower pattern, or ask the operator to raise {setting}.",
        details={"pattern": pattern, "limit": limit, "setting": setting},
    )


def too_many_plain_subscriptions(limit: int) -> Refusal:
    """The limit of subscriptions that are not durable is reached."""
    return Refusal(
        Code.LIMIT_EXCEEDED,
        f"The hub has {limit} subscriptions that are not durable, which is the limit.",
        "Unsubscribe from topics that are not needed, or raise limits.plain_subscriptions_max.",
        retryable=True,
        details={"limit": limit},
    )


def backlog_full(topic: str, subscription: str) -> Refusal:
    """A subscription whose backlog is limited refuses further messages."""
    return Refusal(
        Code.QUEUE_FULL,
        f"The backlog of the subscription {subscription!r} of {topic!r} is full.",
        "Send the message again once its consumers have caught up.",
        retryable=True,
        details={"topic": topic, "subscription": subscription},
    )


def unknown_subscription(topic: str, subscription: str) -> Refusal:
    """The topic has no such subscription."""
    return Refusal(
        Code.UNKNOWN_SUBSCRIPTION,
        f"The topic {topic!r} has no subscription {subscription!r}.",
        "Check the name with hub:list_subs; hub:subscribe creates it.",
        details={"topic": topic, "subscription": subscription},
    )


def subscription_busy(subscription: str, consumer: str) -> Refusal:
    """The subscription is exclusive and has a consumer."""
    return Refusal(
        Code.SUBSCRIPTION_BUSY,
        f"The exclusive subscription {subscription!r} is held by {consumer}.",
        "Wait until it leaves, take over under the same consumer name, or use another mode.",
        retryable=True,
        details={"subscription": subscription, "consumer": consumer},
    )


def subscription_conflict(subscription: str, mode: str) -> Refusal:
    """The subscription exists with another mode."""
    return Refusal(
        Code.SUBSCRIPTION_CONFLICT,
        f"The subscription {subscription!r} exists with the mode {mode}.",
        "Join it with its own mode, or choose another name.",
        details={"subscription": subscription, "mode": mode},
    )


def other_generation(subscription: str, planned: int, generation: int) -> Refusal:
    """A plan is out of date, because somebody has sought since."""
    return Refusal(
        Code.SUBSCRIPTION_CONFLICT,
        f"The subscription {subscription!r} was sought since the plan was made.",
        "Look at it again, and make a new plan.",
        details={"subscription": subscription, "planned": planned, "generation": generation},
    )


def part_of_pattern(topic: str, subscription: str, pattern: str) -> Refusal:
    """The name belongs to a pattern on this topic."""
    return Refusal(
        Code.SUBSCRIPTION_CONFLICT,
        f"The subscription {subscription!r} of the topic {topic!r} is a part of the pattern"
        f" {pattern!r}.",
        "Name the pattern instead of the topic, or choose another name.",
        details={"topic": topic, "subscription": subscription, "pattern": pattern},
    )


def pattern_conflict(subscription: str, place: str) -> Refusal:
    """A pattern would take a name that is in use."""
    return Refusal(
        Code.SUBSCRIPTION_CONFLICT,
        f"The name {subscription!r} is in use: {place} has a subscription of that name.",
        "Choose another name; on every topic a name belongs to one subscription or pattern.",
        details={"subscription": subscription},
    )


def no_mailbox(address: str) -> Refusal:
    """The target of a replay needs a mailbox."""
    return Refusal(
        Code.NO_MAILBOX,
        f"The actor {address} has no mailbox, so nothing can be replayed to it.",
        "Let it register with durable: true, or name a durable topic.",
        details={"actorAddress": address},
    )


def replay_conflict(job: str, epoch: int, offset: int) -> Refusal:
    """The job exists with another bound, so it is another selection."""
    return Refusal(
        Code.REPLAY_CONFLICT,
        f"The replay {job!r} is bounded by offset {offset} of epoch {epoch}.",
        "Continue with that bound (details.until), or choose another job.",
        details={"job": job, "until": {"epoch": epoch, "offset": offset}},
    )


def replay_forgotten(job: str, limit: int) -> Refusal:
    """The progress of the job has been forgotten."""
    return Refusal(
        Code.REPLAY_FORGOTTEN,
        f"The hub remembers the newest {limit} replays, and {job!r} is not one of them: its"
        " progress is unknown, and messages might be sent twice.",
        "Find out what arrived (metadata.original), and start another job for the rest.",
        details={"job": job, "limit": limit},
    )


def not_a_consumer(what: str) -> Refusal:
    """Only consumers may settle."""
    return Refusal(
        Code.NOT_A_CONSUMER,
        f"This session is not a consumer of {what}.",
        "Subscribe first (for a mailbox: register the address), then settle what you receive.",
        details={"name": what},
    )


def duplicate_host(address: str) -> Refusal:
    """Two instances with one address would both run the same actors."""
    return Refusal(
        Code.DUPLICATE_HOST,
        f"Another instance of the host {address} is connected.",
        "Stop one of them, or give this one another address. If the other is gone, try again when"
        " its lease has ended.",
        retryable=True,
        details={"actorAddress": address},
    )


def no_host(kind: str) -> Refusal:
    """No host serves actors of this kind."""
    return Refusal(
        Code.NO_HOST,
        f"There is no host for durable actors of the kind {kind!r}.",
        "Start a host that serves the kind, and try again.",
        retryable=True,
        details={"kind": kind},
    )


def host_is_away(host: str, kind: str) -> Refusal:
    """What a host may do is known only while it is connected."""
    return Refusal(
        Code.NO_HOST,
        f"The host {host} is not connected, so it is unknown whether it may have {kind!r}.",
        "Start the host, and try again.",
        retryable=True,
        details={"kind": kind},
    )


def not_placed(actor: str) -> Refusal:
    """The actor has no place that could be forgotten."""
    return Refusal(
        Code.STALE_PLACEMENT,
        f"The actor {actor} has no place.",
        "Check the name; if its place was forgotten before, there is nothing left to do.",
        details={"stale": [{"actor": actor, "host": None, "token": None}]},
    )


def place_forgotten(actor: str) -> Refusal:
    """What a host has of an actor is outdated, because an operator had its place forgotten."""
    return Refusal(
        Code.STALE_PLACEMENT,
        f"The place of the actor {actor} was forgotten; what this host has of it is outdated.",
        "The next call places the actor anew.",
        details={"stale": [{"actor": actor, "host": None, "token": None}]},
    )


def unknown_session(session_id: str) -> Refusal:
    """There is no such session, or it has ended."""
    return Refusal(
        Code.UNKNOWN_SESSION,
        "There is no open session with this id.",
        "List the sessions with hub:list_sessions.",
        details={"sessionId": session_id},
    )


def too_many_actors(limit: int, *, with_forgotten: bool) -> Refusal:
    """The limit of places is reached, or that of places and forgotten ones together."""
    if with_forgotten:
        return Refusal(
            Code.LIMIT_EXCEEDED,
            f"{2 * limit} durable actors have a place or had one, which is twice the limit.",
            "Raise actors.limit: forgotten places keep their tokens, so forgetting more of them "
            "makes no room.",
            details={"limit": limit},
        )
    return Refusal(
        Code.LIMIT_EXCEEDED,
        f"{limit} durable actors have a place, which is the limit.",
        "Forget places that are not needed (`signalhub actors forget`), or raise actors.limit.",
        details={"limit": limit},
    )


def quota_exceeded(
    resource: str, scope: str, name: str, limit: int, used: int, setting: str
) -> Refusal:
    """One identity, or one source address, has as many as it may."""
    words = resource.replace("_", " ")
    less = f"Give up some of the {words}"
    if resource == "places":
        less = "Forget places that are not needed (`signalhub actors forget`)"
    return Refusal(
        Code.LIMIT_EXCEEDED,
        f"The limit of {words} for one {scope} is {limit}, and {name} has {used}.",
        f"{less}, or ask the operator to raise {setting}.",
        details={
            "resource": resource,
            "scope": scope,
            "limit": limit,
            "used": used,
            "setting": setting,
        },
    )


def stale_placement(details: dict[str, object]) -> Refusal:
    """The sender's place of an actor is out of date; `stale` holds the current one."""
    return Refusal(
        Code.STALE_PLACEMENT,
        "A durable actor does not live where the message says.",
        "Get the current place from details.stale or hub:place, and send a new message.",
        details=details,
    )


def not_its_host(actor: str) -> Refusal:
    """Only the host that an actor lives on may move it."""
    return Refusal(
        Code.UNAUTHORIZED,
        f"The actor {actor} lives on a host that this session has not registered.",
        "Only that host can move it.",
        details={"action": "move", "target": actor},
    )
