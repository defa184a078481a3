"""Every way the hub says no, with what the sender should do about it."""

from __future__ import annotations

from signalhub.settings.model import OutboundSettings
from signalhub.wire.envelope import PROTOCOL_VERSION
from signalhub.wire.errors import Code, Refusal


def structural(reason: str) -> Refusal:
    """The message is not of the form its type demands."""
    return Refusal(
        Code.INTERNAL_ERROR,
        f"The message cannot be used: {reason}.",
        "Correct the message; sending it again unchanged will fail again.",
    )


def malformed(reason: str) -> Refusal:
    """Not JSON; the socket is closed after this."""
    return Refusal(
        Code.MALFORMED_MESSAGE,
        f"The frame is not JSON: {reason}.",
        "Send one JSON object per frame; connect again to go on.",
    )


def unknown_type(type: str) -> Refusal:
    """No such request."""
    return Refusal(
        Code.INTERNAL_ERROR,
        f"The hub does not know the message type {type!r}.",
        "To reach another actor, wrap the message in hub:send.",
        details={"type": type},
    )


def too_large(size: int, limit: int) -> Refusal:
    """Above the message limit, below the point where the socket is closed."""
    return Refusal(
        Code.MESSAGE_TOO_LARGE,
        f"The message has {size} bytes; the limit is {limit}.",
        "Split the message, or store the content elsewhere and send a reference.",
        details={"actualSize": size, "maxSize": limit},
    )


def hello_first() -> Refusal:
    """Nothing but `hub:connect` is served on a new socket."""
    return Refusal(
        Code.UNAUTHORIZED,
        "This socket has not said hub:connect yet.",
        "Send hub:connect and wait for hub:connected first.",
    )


def rate_limited(rate_s: float, retry_after_ms: int) -> Refusal:
    """The session's bucket is empty."""
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


_TOWARDS = {"send": "to ", "publish": "to ", "subscribe": "to "}


def unauthorized(action: str, target: str) -> Refusal:
    """The token does not permit it."""
    return Refusal(
        Code.UNAUTHORIZED,
        f"The session's token does not permit to {action} {_TOWARDS.get(action, '')}{target}.",
        f"Ask for a token whose permissions cover it ({action}).",
        details={"action": action, "target": target},
    )


def not_your_address(sender: str) -> Refusal:
    """`from` is not an address of this session."""
    return Refusal(
        Code.UNAUTHORIZED,
        f"This session may not speak as {sender}.",
        "Register the address on this session first, or use the session's own identity.",
        details={"action": "speak as", "target": sender},
    )


def no_capabilities() -> Refusal:
    """`hub:connect` must announce what the client can do."""
    return Refusal(
        Code.UNAUTHORIZED,
        "hub:connect needs metadata.capabilities, a non-empty array.",
        'Announce what the client can do, for example ["send", "receive"].',
    )


def bad_renewal() -> Refusal:
    """Neither the token nor the sender belongs to a registration of this session."""
    return Refusal(
        Code.UNAUTHORIZED,
        "The renewal token fits no registration of this session.",
        "Register the address again.",
    )


def invalid_token(reason: str) -> Refusal:
    """A token refresh failed."""
    return Refusal(Code.INVALID_TOKEN, reason, "Connect again with a fresh token.")


def expired(ttl: float) -> Refusal:
    """The message outlived its `ttl` before it could be delivered."""
    return Refusal(
        Code.MESSAGE_EXPIRED,
        f"The message expired before it could be delivered (ttl {ttl:g} ms).",
        "Send a new message, with a longer ttl if this happens often.",
        details={"ttl": ttl},
    )


def reconnecting(address: str) -> Refusal:
    """The hub restarted and the target has not come back yet."""
    return Refusal(
        Code.ACTOR_RECONNECTING,
        f"The actor {address} was registered before the hub restarted and is expected back.",
        "Try again in a few seconds with the same id.",
        retryable=True,
        details={"actorAddress": address},
    )


def queue_full(address: str, waiting: int, bounds: OutboundSettings) -> Refusal:
    """The target reads so slowly that nothing more may wait for it."""
    return Refusal(
        Code.QUEUE_FULL,
        f"Too much already waits for {address}.",
        "Wait for hub:resume, or try again later with the same id.",
        retryable=True,
        details={
            "limit": bounds.messages_max,
            "limitBytes": bounds.bytes_max,
            "waiting": waiting,
        },
    )


def registry_full(size: int, limit: int) -> Refusal:
    """New addresses are refused near the limit."""
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
    """One session holds more of something than it may."""
    return Refusal(
        Code.LIMIT_EXCEEDED,
        f"This session already has {limit} {what}, which is the limit.",
        f"Remove some of the {what}, or use another session.",
        details={"limit": limit},
    )


def failed() -> Refusal:
    """A fault of the hub itself."""
    return Refusal(
        Code.INTERNAL_ERROR,
        "The hub failed to handle this message; the fault is logged.",
        "Try again; if it fails again, report the time and the message id.",
        retryable=True,
    )


def mailbox_full(address: str, waiting: int, limit: int, setting: str) -> Refusal:
    """The actor is away and enough waits for it already."""
    return Refusal(
        Code.QUEUE_FULL,
        f"{address} is away and {waiting} messages already wait for it.",
        f"Try again later with the same id, or raise {setting}.",
        retryable=True,
        details={"limit": limit, "waiting": waiting},
    )


def storage_full() -> Refusal:
    """The disk has no room for the log."""
    return Refusal(
        Code.STORAGE_FULL,
        "The hub's disk is full; the message was not accepted.",
        "Try again later with the same id; the operator has to make room.",
        retryable=True,
    )


def storage_failed() -> Refusal:
    """The log has stopped acknowledging."""
    return Refusal(
        Code.STORAGE_FAILED,
        "The hub's log has failed; whether the message was stored is not known.",
        "Ask again with the same id after the hub was restarted; the operator has to check the"
        " disk and restart it.",
    )


def storage_unreadable() -> Refusal:
    """A part of the log could not be read."""
    return Refusal(
        Code.STORAGE_FAILED,
        "A part of the hub's log could not be read; what was asked for is not complete.",
        "The operator has to check the disk (signalhub log verify); then ask again.",
    )


def storage_damaged(reason: str) -> Refusal:
    """The log was found damaged at the start and is only read."""
    return Refusal(
        Code.STORAGE_FAILED,
        f"The hub's log is damaged and takes nothing more: {reason}.",
        "The operator has to restore the segment from a backup and restart the hub; then ask again"
        " with the same id.",
    )


def wrong_epoch(stream: str, given: str, current: str) -> Refusal:
    """A position in a stream that is not the one there is now."""
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
        "Create it with hub:topic_create; hub:list_topics shows what there is.",
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
    """No room for another durable topic."""
    return Refusal(
        Code.LIMIT_EXCEEDED,
        f"The hub has {limit} durable topics, which is the limit.",
        "Delete topics that are not needed, or raise topics.limit.",
        details={"limit": limit},
    )


def unknown_subscription(topic: str, subscription: str) -> Refusal:
    """The topic has no such subscription."""
    return Refusal(
        Code.UNKNOWN_SUBSCRIPTION,
        f"The topic {topic!r} has no subscription {subscription!r}.",
        "Check the name with hub:list_subs; hub:subscribe makes it.",
        details={"topic": topic, "subscription": subscription},
    )


def subscription_busy(subscription: str, consumer: str) -> Refusal:
    """Exclusive, and somebody has it."""
    return Refusal(
        Code.SUBSCRIPTION_BUSY,
        f"The exclusive subscription {subscription!r} is held by {consumer}.",
        "Wait until it leaves, take over under the same consumer name, or use another mode.",
        retryable=True,
        details={"subscription": subscription, "consumer": consumer},
    )


def subscription_conflict(subscription: str, mode: str) -> Refusal:
    """It exists with another mode."""
    return Refusal(
        Code.SUBSCRIPTION_CONFLICT,
        f"The subscription {subscription!r} exists with the mode {mode}.",
        "Join it with its own mode, or choose another name.",
        details={"subscription": subscription, "mode": mode},
    )


def no_mailbox(address: str) -> Refusal:
    """Only what can be stored can be replayed."""
    return Refusal(
        Code.NO_MAILBOX,
        f"The actor {address} has no mailbox, so nothing can be replayed to it.",
        "Let it register with durable: true, or name a durable topic.",
        details={"actorAddress": address},
    )


def replay_conflict(job: str, epoch: int, offset: int) -> Refusal:
    """The job is known with another bound, so it is another selection."""
    return Refusal(
        Code.REPLAY_CONFLICT,
        f"The replay {job!r} is bounded by offset {offset} of epoch {epoch}.",
        "Go on with its own bound (details.until), or choose another job.",
        details={"job": job, "until": {"epoch": epoch, "offset": offset}},
    )


def replay_forgotten(job: str, limit: int) -> Refusal:
    """What it has appended is not known any more."""
    return Refusal(
        Code.REPLAY_FORGOTTEN,
        f"The replay {job!r} is not among the newest {limit} the hub remembers; what it has sent"
        " is not known, and it might be sent twice.",
        "Find out what arrived (metadata.original), and begin another job for the rest.",
        details={"job": job, "limit": limit},
    )


def not_a_consumer(what: str) -> Refusal:
    """Only a consumer settles."""
    return Refusal(
        Code.NOT_A_CONSUMER,
        f"This session is not a consumer of {what}.",
        "Subscribe first (for a mailbox: register the address), then settle what is received.",
        details={"name": what},
    )


def duplicate_host(address: str) -> Refusal:
    """Two instances under one address would take the same actors for their own."""
    return Refusal(
        Code.DUPLICATE_HOST,
        f"Another instance of the host {address} is connected.",
        "Stop one of them, or give this one an address of its own. If the other is gone, try again"
        " when its lease has ended.",
        retryable=True,
        details={"actorAddress": address},
    )


def no_host(kind: str) -> Refusal:
    """Nobody could serve the actor."""
    return Refusal(
        Code.NO_HOST,
        f"There is no host for durable actors of the kind {kind!r}.",
        "Start a host that serves the kind, and ask again.",
        retryable=True,
        details={"kind": kind},
    )


def too_many_actors(limit: int) -> Refusal:
    """No room for another place."""
    return Refusal(
        Code.LIMIT_EXCEEDED,
        f"The hub knows the places of {limit} durable actors, which is the limit.",
        "Raise actors.limit.",
        details={"limit": limit},
    )


def stale_placement(details: dict[str, object]) -> Refusal:
    """The sender, or whoever moves an actor, knows an earlier place; `stale` says the present."""
    return Refusal(
        Code.STALE_PLACEMENT,
        "A durable actor does not live where the message takes it to be.",
        "Look at details.stale, or ask hub:place, and send a new message.",
        details=details,
    )


def not_its_host(actor: str, host: str) -> Refusal:
    """Only the host an actor lives on gives it away."""
    return Refusal(
        Code.UNAUTHORIZED,
        f"The actor {actor} lives on {host}, which this session has not registered.",
        "Let the host it lives on move it.",
        details={"action": "move", "target": actor},
    )
