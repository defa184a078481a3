"""`hub:republish`: messages from the lake are appended again, as copies of a replay.

The sender chooses and orders them; here each is appended at most once. Copies on their way to the
log count as appended, so a request that comes again meanwhile waits for the first one's.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, Final

import msgspec

from signalhub.core import asks, journal, letters, publishing, refusals, requests
from signalhub.core.effects import Append, Appending, Effect
from signalhub.core.policy import EVERYTHING
from signalhub.core.replays import OnItsWay, Place, place_of
from signalhub.core.session import Session
from signalhub.core.streams import Mailbox, Topic
from signalhub.entry import Entry, Kind, Message, Replay
from signalhub.envelope import Envelope
from signalhub.errors import Refusal
from signalhub.names import HUB_TYPE_PREFIX, is_address

if TYPE_CHECKING:
    from signalhub.core.hub import Hub

MESSAGES_MAX: Final = 100
# A single message may be larger: whatever was accepted once can be sent again.
BYTES_MAX: Final = 512 * 2**10
# Calls between actors are answered and must not be made twice.
CALL_TYPE_PREFIX: Final = "call:"
OPERATION: Final = "republish"


class Target(msgspec.Struct, frozen=True):
    """Where copies go."""

    stream: Topic | Mailbox
    only_for: str | None = None


def republish(hub: Hub, session: Session, message: Envelope, now: int) -> list[Effect]:
    """Append what this job has not appended yet; answered when all of it is on disk."""
    request = requests.parse(requests.Republish, message.payload)
    _check_may(session, request.to)
    target = _find(hub, request.to)
    _check(request, len(message.payload))
    bound = (request.until.epoch, request.until.offset)
    hub.replays.check(request.job, bound)
    newest = hub.replays.newest(request.job)
    fresh = [one for one in request.messages if newest is None or _place(one) > newest]
    answer = _answer(hub, session, message, request, len(fresh))
    if not fresh:
        pending = hub.replays.on_its_way.get(request.job)
        if pending is None:
            return answer.committed(hub, 0, now)
        pending.receipt.waiters.append(answer)
        return []
    hub.check_storage()
    _check_room(hub, target, len(fresh), now)
    appends = [
        _append(hub, target, _copy(request, one, target, message.sender), now) for one in fresh
    ]
    last = appends[-1]
    last.receipt = waited = journal.Waited(last.receipt, [answer])
    hub.replays.on_its_way[request.job] = OnItsWay(_replay(request, fresh[-1]), waited)
    return [*appends]


def _answer(
    hub: Hub, session: Session, message: Envelope, request: requests.Republish, appended: int
) -> journal.Answer:
    def payload() -> dict[str, object]:
        last = hub.replays.last(request.job)
        position = None
        if last is not None:
            position = {"shard": last.shard, "epoch": last.epoch, "offset": last.offset}
        skipped = len(request.messages) - appended
        return {
            "job": request.job,
            "position": position,
            "appended": appended,
            "skipped": skipped,
        }

    return journal.Answer(session, message, "hub:republished", payload)


# Checking.


def _check_may(session: Session, to: requests.Destination) -> None:
    allowance = session.allowance
    if allowance is EVERYTHING:
        return
    if not allowance.may_administer(OPERATION):
        raise refusals.unauthorized("admin", OPERATION)
    if to.topic is not None and not allowance.may_publish(to.topic):
        raise refusals.unauthorized("publish", to.topic)
    if to.actor is not None and not allowance.may_send(to.actor):
        raise refusals.unauthorized("send", to.actor)


def _find(hub: Hub, to: requests.Destination) -> Target:
    if (to.topic is None) is (to.actor is None) or (to.actor is not None and to.subscription):
        raise refusals.structural("payload.to needs a topic, a topic and subscription, or an actor")
    if to.actor is not None:
        mailbox = hub.streams.mailboxes.get(to.actor)
        if mailbox is None:
            raise refusals.no_mailbox(to.actor)
        return Target(mailbox)
    assert to.topic is not None
    topic = publishing.find(hub, to.topic)
    if to.subscription is not None:
        subscription = topic.subscriptions.get(to.subscription)
        if subscription is None or subscription.is_deleting:
            raise refusals.unknown_subscription(to.topic, to.subscription)
    return Target(topic, to.subscription)


def _check(request: requests.Republish, size: int) -> None:
    """Refuse what cannot be sent again, all of it or nothing."""
    messages = request.messages
    if len(messages) > MESSAGES_MAX:
        raise refusals.structural(f"payload.messages has more than {MESSAGES_MAX} members")
    if len(messages) > 1 and size > BYTES_MAX:
        raise refusals.too_large(size, BYTES_MAX)
    before: Place | None = None
    for one in messages:
        if before is not None and _place(one) <= before:
            raise refusals.structural("payload.messages is not in the order of positions")
        before = _place(one)
        if (one.epoch, one.offset) > (request.until.epoch, request.until.offset):
            raise refusals.structural("a message is beyond payload.until")
        if one.type.startswith(HUB_TYPE_PREFIX):
            raise refusals.structural("a type begins with `hub:`, which is the hub's own")
        if one.type.startswith(CALL_TYPE_PREFIX):
            raise refusals.structural("calls cannot be replayed: they would be made twice")
        if one.sender is not None and not is_address(one.sender):
            raise refusals.structural("`from` of a message is no address")
        publishing.check_parts(one.key, one.headers)


def _check_room(hub: Hub, target: Target, count: int, now: int) -> None:
    """While its owner is away, a mailbox takes as much as from any sender."""
    box = target.stream
    if not isinstance(box, Mailbox) or box.subscription.consumers:
        return
    asks.check_room(hub, box, count, now)


# Appending.


def _place(one: requests.Original) -> Place:
    return (one.shard, one.epoch, one.offset)


def _replay(request: requests.Republish, one: requests.Original) -> Replay:
    until = request.until
    place = _place(one)
    return Replay(request.job, *place, one.id, until.epoch, until.offset)


def _copy(
    request: requests.Republish, one: requests.Original, target: Target, sender: str
) -> Message:
    copy_id = copy_id_of(request.job, _place(one))
    copy = Message(copy_id, copy_id.encode(), one.sender or sender, one.type, bytes(one.data))
    copy.key, copy.headers = one.key, one.headers
    copy.only_for = target.only_for
    copy.replay = _replay(request, one)
    return copy


def copy_id_of(job: str, place: Place) -> str:
    """The same copy has the same id, whenever it is made; in the form of a UUID."""
    text = " ".join(map(str, (*place, job)))
    digits = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
    return f"{digits[:8]}-{digits[8:12]}-8{digits[13:16]}-a{digits[17:20]}-{digits[20:]}"


def _append(hub: Hub, target: Target, copy: Message, now: int) -> Append:
    stream = target.stream
    if isinstance(stream, Mailbox):
        append = letters.mail_again(hub, stream, copy, now)
    else:
        append = publishing.append(hub, stream, copy, now)
    assert copy.replay is not None
    append.receipt = Copied(append.receipt, copy.replay)
    return append


class Copied(msgspec.Struct):
    """A copy on its way to the log."""

    receipt: Appending
    replay: Replay

    def committed(self, hub: Hub, offset: int, now: int) -> list[Effect]:
        hub.replays.note(self.replay, offset)
        pending = hub.replays.on_its_way.get(self.replay.job)
        if pending is not None and place_of(pending.last) == place_of(self.replay):
            del hub.replays.on_its_way[self.replay.job]
        return self.receipt.committed(hub, offset, now)

    def refused(self, hub: Hub, refusal: Refusal, now: int) -> list[Effect]:
        # The log refuses everything that is on its way.
        hub.replays.on_its_way.pop(self.replay.job, None)
        return self.receipt.refused(hub, refusal, now)


# The log is cut.


def anchor(hub: Hub, end: int, now: int) -> list[Effect]:
    """Write down how far replays have come, if the log is about to forget it."""
    replays = hub.replays
    # With copies on their way it would not be the last word; there will be another occasion.
    if not replays.is_known or replays.defined_at >= end or replays.on_its_way:
        return []
    entry = Entry(Kind.REPLAYS_STAND, "", 0, 0, now, replays.state())
    return [Append(entry, Anchored())]


class Anchored:
    """What is known of replays, written again."""

    __slots__ = ()

    def committed(self, hub: Hub, offset: int, now: int) -> list[Effect]:
        hub.replays.defined_at = offset
        return []

    def refused(self, hub: Hub, refusal: Refusal, now: int) -> list[Effect]:
        return []
