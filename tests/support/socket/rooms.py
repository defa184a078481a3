"""A running hub with its rooms, its HTTP clients and its guests; leaving sends them all away."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from signalhub.clock import Clock
from signalhub.testing import FakeClock, HubProcess, RunningHub, run_hub, spawn_hub
from tests.support.socket.guest import Guest, Told, encoded, knock, offer, sealed
from tests.support.socket.http import Answer, Headers, Web, pairs

ROOM = "general"
PSEUDONYM = "p-1"
INBOX = "pw1oQgdmuN2WQLXM3CpAZaVIVGvyJRwpcv9QG4XsHfg"
OTHER_INBOX = "0w1oQgdmuN2WQLXM3CpAZaVIVGvyJRwpcv9QG4XsHf0"
LIMITED = "RATE_LIMIT_EXCEEDED"
HOUR, DAY = 3_600, 86_400

MESSAGE = "/api/v1/message"
MESSAGES = "/v1/inbox/messages"
APPEND = "/v1/inbox/append"
# Without an archive the log alone serves what memory does not, as long as it is kept.
KEPT: dict[str, Any] = {"message_rate": 0, "log": {"retention_s": 100.0 * DAY}}

_STEP = 250
_MESSAGE_MEMBERS = {"seq", "messageId", "ciphertext", "createdAt"}
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{3})?Z")

Members = dict[str, Any]


class Page(NamedTuple):
    """A page of an inbox, after checking its form."""

    messages: list[Members]
    next_seq: int
    oldest: int | None

    @property
    def seqs(self) -> list[int]:
        return [message["seq"] for message in self.messages]

    @property
    def ids(self) -> list[str]:
        return [message["messageId"] for message in self.messages]


class House:
    """One hub, one HTTP connection to it, and the other clients of a test."""

    def __init__(self, hub: RunningHub | HubProcess) -> None:
        self._hub = hub
        self._webs: list[Web] = []
        self._guests: list[Guest] = []
        self.web = self.another_web()

    @property
    def port(self) -> int:
        return self._hub.port

    def another_web(self) -> Web:
        """One more HTTP connection."""
        web = Web(self.port)
        self._webs.append(web)
        return web

    async def enter(
        self,
        path: str = "/room",
        headers: Headers = (),
        *,
        receive_bytes: int = 0,
        is_welcome: bool = True,
    ) -> Guest:
        """A socket at this path, or `TurnedAway`."""
        guest = await knock(self.port, path, headers, receive_bytes, is_welcome)
        self._guests.append(guest)
        return guest

    async def join(
        self,
        room: str = ROOM,
        pseudonym: str = PSEUDONYM,
        inbox: str | None = None,
        *,
        receive_bytes: int = 0,
    ) -> Guest:
        """A guest in a room, by headers."""
        headers = {"X-Room-ID": room, "X-Pseudonym-ID": pseudonym}
        return await self.enter("/room", headers | named_inbox(inbox), receive_bytes=receive_bytes)

    async def join_as_browsers_do(self, **ids: str) -> Guest:
        """A guest in a room, by subprotocols."""
        return await self.enter("/room", offer(**ids))

    async def send(
        self,
        message_id: str | None = None,
        room: str | None = ROOM,
        *,
        inbox: str | None = None,
        headers: Headers = (),
        web: Web | None = None,
        **members: Any,
    ) -> Answer:
        """Post an envelope; `...` leaves a member out."""
        envelope = {
            "messageId": ... if message_id is None else message_id,
            "roomId": ... if room is None else room,
            "ciphertext": sealed(message_id or "anonymous"),
        } | members
        envelope = {name: value for name, value in envelope.items() if value is not ...}
        given = [*named_inbox(inbox).items(), *pairs(headers)]
        return await (web or self.web).post(MESSAGE, envelope, given)

    async def sent(self, message_id: str, room: str = ROOM, **options: Any) -> int:
        """Post an envelope that must be accepted as new; its position."""
        answer = await self.send(message_id, room, **options)
        seq = accepted(answer, message_id)
        assert not is_replay(answer)
        return seq

    async def append(
        self, inbox: str, message_id: str, ciphertext: str | None = None, **members: Any
    ) -> Answer:
        """Write to an inbox past its room."""
        body = {"messageId": message_id, "ciphertext": ciphertext or sealed(message_id)} | members
        return await self.web.post(APPEND, body, {"X-Inbox-ID": inbox})

    async def appended(self, inbox: str, message_id: str, ciphertext: str | None = None) -> int:
        """Append what must be accepted as new; its position."""
        answer = await self.append(inbox, message_id, ciphertext)
        assert not is_replay(answer)
        return stored(answer)

    async def fetch(self, inbox: str, query: str = "", web: Web | None = None) -> Answer:
        """A page of an inbox as it is; the query begins with its question mark."""
        return await (web or self.web).get(MESSAGES + query, {"X-Inbox-ID": inbox})

    async def read(self, inbox: str, from_seq: int | None = None, limit: int | None = None) -> Page:
        """A page of an inbox that must be there."""
        given = {"fromSeq": from_seq, "limit": limit}
        query = "&".join(f"{name}={value}" for name, value in given.items() if value is not None)
        page = page_of(await self.fetch(inbox, f"?{query}" if query else ""))
        assert page.messages or page.next_seq == (from_seq or 0)
        return page

    async def read_all(self, inbox: str, limit: int = 1000) -> list[Members]:
        """Everything in an inbox, page by page until there is an empty one."""
        page = await self.read(inbox, 0, limit)
        found = list(page.messages)
        while page.messages:
            page = await self.read(inbox, page.next_seq, limit)
            found += page.messages
        return found

    def forget_connections(self) -> None:
        """The hub has gone away; what comes next goes over new connections."""
        for web in self._webs:
            web.close()

    def send_everybody_away(self) -> None:
        self.forget_connections()
        for guest in self._guests:
            guest.abort()
        self._guests.clear()


class OpenHouse(House):
    """A hub in the test's own loop; it can be stopped and started again on the same data."""

    def __init__(self, hub: RunningHub) -> None:
        super().__init__(hub)
        self.hub = hub

    async def stop(self) -> None:
        await self.hub.stop()
        self.forget_connections()

    async def restart(self) -> None:
        """Stop and start again on the same data."""
        await self.stop()
        await self.hub.start()


class SpawnedHouse(House):
    """A hub in a process of its own, to be killed."""

    def __init__(self, hub: HubProcess) -> None:
        super().__init__(hub)
        self.hub = hub

    async def crash(self) -> None:
        """Kill it without warning and start it again."""
        await self.hub.kill()
        self.forget_connections()
        await self.hub.start()


@asynccontextmanager
async def open_house(
    clock: Clock | None = None, hub: Mapping[str, Any] | None = None, **rooms: Any
) -> AsyncIterator[OpenHouse]:
    """A hub with these settings of its rooms, the defaults otherwise; `hub` has the other ones."""
    async with run_hub(clock, rooms=rooms, **(hub or {})) as running:
        house = OpenHouse(running)
        try:
            yield house
        finally:
            house.send_everybody_away()


@asynccontextmanager
async def spawn_house(
    hub: Mapping[str, Any] | None = None, **rooms: Any
) -> AsyncIterator[SpawnedHouse]:
    """The same in a process of its own."""
    async with spawn_hub(rooms=rooms, **(hub or {})) as process:
        house = SpawnedHouse(process)
        try:
            yield house
        finally:
            house.send_everybody_away()


def exact_clock() -> FakeClock:
    """A clock on which whole milliseconds stay whole, however seconds are turned into them."""
    return FakeClock(mono_s=1_000.000_25)


def named_inbox(inbox: str | None) -> dict[str, str]:
    return {} if inbox is None else {"X-Inbox-ID": inbox}


def default_inbox(room: str = ROOM, tenant: str | None = None) -> str:
    """The inbox of a room that is bound to none."""
    return encoded(room if tenant is None else f"{tenant}:{room}")


def accepted(answer: Answer, message_id: str | None = None) -> int:
    """The position of a message that was accepted, now or before."""
    assert answer.status == 200, answer
    body = answer.json
    assert set(body) == {"messageId", "seq"}, body
    assert type(body["seq"]) is int, body
    assert message_id is None or body["messageId"] == message_id, body
    return int(body["seq"])


def stored(answer: Answer) -> int:
    """The position of a message that was appended, now or before."""
    assert answer.status == 202, answer
    body = answer.json
    assert {"seq"} <= set(body) <= {"seq", "storedAt"}, body
    assert type(body["seq"]) is int, body
    return int(body["seq"])


def is_replay(answer: Answer) -> bool:
    """Does the answer say that the message was known already?"""
    header = answer.header("Idempotent-Replay")
    assert header in (None, "true"), header
    return header is not None


def refused(answer: Answer, status: int) -> str:
    """The code of an error, after checking its body and what it says about trying again."""
    assert answer.status == status, answer
    body = answer.json
    assert isinstance(body["error"], str), body
    assert body["error"], body
    assert re.fullmatch(r"[A-Z]+(_[A-Z]+)*|outcome_unknown", body["errorCode"]), body
    if status in (429, 503):
        assert set(body) == {"error", "errorCode", "retryAfterMs"}, body
        wait_ms = body["retryAfterMs"]
        assert type(wait_ms) is int, body
        assert wait_ms >= 1, body
        assert answer.header("Retry-After") == str(-(-wait_ms // 1000)), answer
    else:
        assert set(body) == {"error", "errorCode"}, body
    code: str = body["errorCode"]
    return code


def allowed(answer: Answer) -> set[str]:
    """The methods an answer names."""
    return set((answer.header("Allow") or "").replace(" ", "").split(","))


def wait_ms(answer: Answer) -> int:
    """How long a limited client is to wait."""
    assert refused(answer, 429) == LIMITED
    assert answer.json["error"] == "Rate limit exceeded"
    return int(answer.json["retryAfterMs"])


def page_of(answer: Answer) -> Page:
    """A page in ascending order, without a message twice and with nothing but what is promised."""
    assert answer.status == 200, answer
    body = answer.json
    assert set(body) == {"messages", "nextSeq"}, body
    page = Page(body["messages"], body["nextSeq"], oldest_of(answer))
    for message in page.messages:
        assert _MESSAGE_MEMBERS - {"createdAt"} <= set(message) <= _MESSAGE_MEMBERS, message
        assert _TIME.fullmatch(message.get("createdAt", "2026-01-31T12:00:05Z")), message
    assert page.seqs == sorted(set(page.seqs))
    assert len(set(page.ids)) == len(page.ids)
    if page.messages:
        assert page.next_seq == page.seqs[-1] + 1
    return page


def oldest_of(answer: Answer) -> int | None:
    header = answer.header("X-Inbox-Oldest-Seq")
    return None if header is None else int(header)


async def fill(guest: Guest, number: int, first: int = 1, ciphertext: str | None = None) -> None:
    """Send messages `m-1`, `m-2` and so on through a socket, many at once."""
    for start in range(first, first + number, _STEP):
        ids = [f"m-{n}" for n in range(start, min(start + _STEP, first + number))]
        for message_id in ids:
            guest.send(message_id, ciphertext)
        for message_id in ids:
            ack = await _ack(guest)
            assert ack["messageId"] == message_id, ack
            assert "duplicate" not in ack


async def _ack(guest: Guest) -> Told:
    while (told := await guest.receive())["action"] == "message":
        pass
    assert told["action"] == "ack", told
    return told


async def at_once(*answers: Any) -> list[Answer]:
    """The answers to requests that are made together."""
    return list(await asyncio.gather(*answers))
