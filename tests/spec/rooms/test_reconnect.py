"""Members that come and go while others talk miss nothing and take nothing twice."""

from __future__ import annotations

import asyncio

from tests.support.socket.guest import Guest, TurnedAway
from tests.support.socket.http import HungUp
from tests.support.socket.peer import Closed
from tests.support.socket.rooms import INBOX, ROOM, House, Members, accepted, open_house

TALKERS, EACH = 4, 150
TOTAL = TALKERS * EACH
OFTEN = 1_000_000


class Member:
    """Reads as the specification recommends: socket, welcome, pages up to it, then the socket."""

    def __init__(self) -> None:
        self.last_seen = 0
        self.ids: list[str] = []
        self.repeats = 0
        self.from_pages = 0
        self._known: set[str] = set()
        self._news = asyncio.Event()

    @property
    def has_everything(self) -> bool:
        return len(self.ids) >= TOTAL

    def take(self, message: Members) -> None:
        """Apply a message, unless it is known; after that none may be missing before it."""
        if message["messageId"] in self._known:
            self.repeats += 1
            return
        assert message["seq"] == self.last_seen + 1, f"{message['seq']} after {self.last_seen}"
        self.last_seen = message["seq"]
        self._known.add(message["messageId"])
        self.ids.append(message["messageId"])
        self._news.set()

    async def until(self, seq: int) -> None:
        """Wait until it has come so far."""
        while self.last_seen < seq:
            self._news.clear()
            await self._news.wait()

    async def visit(self, house: House, guest: Guest, frames: int) -> None:
        """Catch up, then stay for so many live frames; what comes meanwhile is held."""
        last = guest.welcome["lastSeq"]
        while self.last_seen < last:
            page = await house.read(INBOX, self.last_seen + 1, 50)
            self.from_pages += len(page.messages)
            for message in page.messages:
                self.take(message)
        for _ in range(frames):
            if self.has_everything:
                return
            self.take(await guest.receive("message"))

    async def catch_up_first(self, house: House) -> Guest:
        """The older order: pages, then the socket; safe only with one more look after it."""
        while (page := await house.read(INBOX, self.last_seen + 1, 50)).messages:
            for message in page.messages:
                self.take(message)
        return await house.join(inbox=INBOX)


async def talk(house: House, talker: int) -> None:
    """Send everything, again and again until it is accepted."""
    web = house.another_web()
    for number in range(EACH):
        message_id = f"t-{talker}-{number}"
        while True:
            try:
                answer = await house.send(message_id, inbox=INBOX, web=web)
            except (HungUp, ConnectionError):
                await asyncio.sleep(0.01)
                continue
            if answer.status == 200:
                accepted(answer, message_id)
                break
            assert answer.status == 503, answer


def is_complete(member: Member) -> None:
    assert sorted(member.ids) == sorted(f"t-{t}-{n}" for t in range(TALKERS) for n in range(EACH))
    assert member.last_seen == TOTAL
    # Each talker waited for one answer before its next message.
    for talker in range(TALKERS):
        mine = [one for one in member.ids if one.startswith(f"t-{talker}-")]
        assert mine == [f"t-{talker}-{number}" for number in range(EACH)]


async def come_and_go(house: House, member: Member, frames: int) -> None:
    """Visits that end without a word, each after some frames."""
    while not member.has_everything:
        try:
            guest = await house.join(inbox=INBOX)
            await member.visit(house, guest, frames)
        except (Closed, HungUp, ConnectionError, TurnedAway):
            await asyncio.sleep(0.01)
            continue
        guest.abort()


async def test_member_who_reconnects_while_others_talk_misses_nothing() -> None:
    settings = {"connection_rate": 0, "message_rate": 0}
    async with open_house(rate=OFTEN, fetch_rate=OFTEN, hub=settings) as house:
        members = {frames: Member() for frames in (1, 7, 40, TOTAL)}

        async with asyncio.TaskGroup() as group:
            for frames, member in members.items():
                group.create_task(come_and_go(house, member, frames))
            for talker in range(TALKERS):
                group.create_task(talk(house, talker))

        for member in members.values():
            is_complete(member)
        assert members[1].from_pages > 0


async def test_older_order_is_safe_with_one_more_fetch_after_the_welcome() -> None:
    settings = {"connection_rate": 0, "message_rate": 0}
    async with open_house(rate=OFTEN, fetch_rate=OFTEN, hub=settings) as house:
        member = Member()

        async def follow() -> None:
            while not member.has_everything:
                guest = await member.catch_up_first(house)
                await member.visit(house, guest, 10)
                guest.abort()

        async with asyncio.TaskGroup() as group:
            group.create_task(follow())
            for talker in range(TALKERS):
                group.create_task(talk(house, talker))

        is_complete(member)


async def test_hub_that_restarts_amid_the_talk_loses_and_repeats_nothing() -> None:
    settings = {"connection_rate": 0, "message_rate": 0, "drain_s": 0.5}
    async with open_house(rate=OFTEN, fetch_rate=OFTEN, hub=settings) as house:
        members = [Member(), Member()]

        async def restart_twice() -> None:
            for share in (3, 2):
                await members[0].until(TOTAL // share)
                await house.restart()

        async with asyncio.TaskGroup() as group:
            for member, frames in zip(members, (25, TOTAL), strict=True):
                group.create_task(come_and_go(house, member, frames))
            for talker in range(TALKERS):
                group.create_task(talk(house, talker))
            group.create_task(restart_twice())

        for member in members:
            is_complete(member)
        assert (await house.join(ROOM, inbox=INBOX)).welcome["lastSeq"] == TOTAL
