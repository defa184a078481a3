"""Pages of what a durable topic holds, read with `hub:replay`."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote_plus

import msgspec
from msgspec import UNSET, Raw, UnsetType

from signalhub.core.effects import Effect
from signalhub.core.requests import Point
from signalhub.core.streams.streams import Topic
from signalhub.core.subscriptions.join import find_start
from signalhub.server.callers import Answer, Caller, CallRefused
from signalhub.server.messages.bodies import (
    ACTORS_MAX,
    NUMBER_MAX,
    PAGE_MAX,
    Delivery,
    History,
    StoredMessage,
)
from signalhub.wire.errors import RoomCode
from signalhub.wire.names import ADDRESS_CHARS_MAX

if TYPE_CHECKING:
    from signalhub.core.hub import Hub
    from signalhub.server.runner import HubRunner

AFTER, FROM, LIMIT = "after", "from", "limit"
PATTERN, CAPABILITY = "pattern", "capability"
PAGE_DEFAULT: Final = 100
# What `from` may say: a word, a position, or a time of RFC 3339.
START: Final = (
    r"^(?:earliest|latest|[1-9][0-9]{0,14}"
    r"|[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,6})?(?:Z|[+-][0-9]{2}:[0-9]{2}))$"
)
_START: Final = re.compile(START)
_DIGITS: Final = re.compile("[0-9]{1,16}")


class _Delivered(msgspec.Struct, gc=False, rename="camel"):
    epoch: str = ""
    seq: int = 0
    published_at: int = 0
    attempt: int = 1
    redelivered: bool = False
    id: str = ""


class _Copy(msgspec.Struct, gc=False, rename="camel"):
    """The metadata of a copy."""

    delivery: _Delivered
    replay: bool = False
    key: str | UnsetType = UNSET
    headers: dict[str, str] | UnsetType = UNSET
    dead_letter: Raw | UnsetType = UNSET


class _Replayed(msgspec.Struct, gc=False, rename="camel"):
    """The payload of `hub:replayed`."""

    topic: str
    epoch: str
    complete: bool
    next: int
    lost_from: int | UnsetType = UNSET
    lost_to: int | UnsetType = UNSET
    withheld: int | UnsetType = UNSET


_decode_copy = msgspec.json.Decoder(_Copy).decode
_decode_replayed = msgspec.json.Decoder(_Replayed).decode


def bad_request(text: str) -> CallRefused:
    """Return the refusal of a request that cannot be read."""
    return CallRefused(
        400,
        RoomCode.BAD_REQUEST,
        text,
        "Correct the request; sending it again unchanged will fail again.",
    )


def query_of(query: str, known: tuple[str, ...]) -> dict[str, str]:
    """Return the parameters of a query that are known; each may be given once."""
    given: dict[str, str] = {}
    for pair in query.split("&") if query else ():
        name, _, value = pair.partition("=")
        name = unquote_plus(name)
        if name not in known:
            continue
        if name in given:
            raise bad_request(f"{name} was given more than once.")
        given[name] = unquote_plus(value)
    return given


def number_of(given: dict[str, str], name: str, least: int, most: int, default: int) -> int:
    """Return an integer of a query."""
    text = given.get(name)
    if text is None:
        return default
    number = int(text) if _DIGITS.fullmatch(text) else -1
    if not least <= number <= most:
        raise bad_request(f"{name} must be an integer from {least} to {most}.")
    return number


def stored(answer: Answer) -> StoredMessage:
    """Return a message of a topic as it is shown."""
    copy = _decode_copy(answer.metadata)
    return StoredMessage(
        answer.id,
        copy.delivery.seq,
        copy.delivery.epoch,
        answer.sender,
        answer.type,
        answer.payload,
        copy.delivery.published_at,
        copy.key,
        copy.headers,
        copy.dead_letter,
    )


def delivered(answer: Answer) -> Delivery:
    """Return a message of a subscription as it is shown."""
    copy = _decode_copy(answer.metadata)
    delivery = copy.delivery
    return Delivery(
        answer.id,
        delivery.seq,
        delivery.epoch,
        answer.sender,
        answer.type,
        answer.payload,
        delivery.published_at,
        copy.key,
        copy.headers,
        copy.dead_letter,
        attempt=delivery.attempt,
        redelivered=delivery.redelivered,
        delivery_id=delivery.id,
    )


class Pages:
    """Reads topics for callers."""

    def __init__(self, hub: Hub, runner: HubRunner) -> None:
        self._hub = hub
        self._runner = runner
        # A caller reads one page at a time, because the messages do not say of which they are.
        self._turns: dict[Caller, asyncio.Lock] = {}

    async def read(self, caller: Caller, topic: str, query: str) -> History:
        """Return a page of messages, oldest first."""
        given = query_of(query, (AFTER, FROM, LIMIT))
        limit = number_of(given, LIMIT, 1, PAGE_MAX, PAGE_DEFAULT)
        after = number_of(given, AFTER, 0, NUMBER_MAX - 1, 0)
        start = given.get(FROM)
        if start is not None and AFTER in given:
            raise bad_request(f"Give {AFTER} or {FROM}, not both.")
        if start is not None and not _START.fullmatch(start):
            raise bad_request(f"{FROM} must be earliest, latest, a position or a time (RFC 3339).")
        with caller.in_use():
            turn = self._turns.get(caller)
            if turn is None:
                turn = self._turns[caller] = asyncio.Lock()
                caller.on_end.append(lambda: self._turns.pop(caller, None))
            async with turn:
                first = after + 1 if start is None else await self._start(topic, start)
                return await self._replay(caller, topic, first, limit)

    async def _replay(self, caller: Caller, topic: str, first: int, limit: int) -> History:
        messages: list[StoredMessage] = []

        def heard(answer: Answer) -> bool:
            is_mine = b'"replay":true' in bytes(answer.metadata)
            if is_mine:
                messages.append(stored(answer))
            return is_mine

        request = {"topic": topic, "fromSeq": first, "limit": limit}
        caller.listeners.insert(0, heard)
        try:
            answer = await caller.call("hub:replay", request)
        finally:
            caller.listeners.remove(heard)
        replayed = _decode_replayed(answer.payload)
        return History(
            topic,
            replayed.epoch,
            messages,
            max(1, replayed.next),
            replayed.complete,
            replayed.lost_from,
            replayed.lost_to,
            replayed.withheld,
        )

    async def _start(self, name: str, start: str) -> int:
        """Return the first position of a page; what may not be seen is refused when it is read."""
        topic = self._hub.streams.topics.get(name)
        if topic is None:
            return 1
        if start == "latest":
            return topic.head + 1
        if start == "earliest":
            return topic.first
        if start.isdigit():
            return int(start)
        return await self._since(topic, start)

    async def _since(self, topic: Topic, text: str) -> int:
        try:
            time_ms = datetime.fromisoformat(text).astimezone(UTC).timestamp() * 1000
        except (ValueError, OverflowError):
            raise bad_request(f"{FROM} is no valid time: {text}.") from None
        found: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()

        def tell(seq: int | None) -> list[Effect]:
            if not found.done():
                found.set_result(seq)
            return []

        then: Callable[[int, int], list[Effect]] = lambda floor, _: tell(floor + 1)  # noqa: E731
        point = Point(time=time_ms)
        self._runner.run(lambda now: find_start(topic, point, then, lambda _: tell(None), now))
        seq = await found
        if seq is None:
            raise CallRefused(
                503,
                RoomCode.STORAGE_FAILED,
                "Part of the hub's log could not be read.",
                "The operator has to check the disk (signalhub log verify); then try again.",
            )
        return seq


def actors_query(query: str) -> dict[str, object]:
    """Return the payload of `hub:discover`."""
    given = query_of(query, (PATTERN, CAPABILITY, LIMIT))
    for name in (PATTERN, CAPABILITY):
        if name in given and not 0 < len(given[name]) <= ADDRESS_CHARS_MAX:
            raise bad_request(f"{name} must have 1 to {ADDRESS_CHARS_MAX} characters.")
    payload: dict[str, object] = {
        "pattern": given.get(PATTERN, "*"),
        "limit": number_of(given, LIMIT, 1, ACTORS_MAX, ACTORS_MAX),
    }
    if CAPABILITY in given:
        payload["capability"] = given[CAPABILITY]
    return payload
