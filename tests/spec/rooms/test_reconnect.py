"""Members that come and go while others send miss nothing and apply nothing twice."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.socket.guest import Guest, TurnedAway
from tests.support.socket.http import HungUp
from tests.support.socket.peer import Closed
from tests.support.socket.rooms import INBOX, House, Members, accepted, open_house

SENDERS, EACH = 4, 150
TOTAL = SENDERS * EACH
CUT_OFF = (Closed, HungUp, ConnectionError, TurnedAway, asyncio.IncompleteReadError)


class Member:
    """Reads as the specification recommends: socket, welcome, pages up to it, then the socket."""

    def __init__(self) -> None:
        self.last_seen = 0
        self.ids: list[str] = []
        self.from_pages = 0
        self._known: set[str] = set()
        self._news = asyncio.Event()

    @property
    def has_everything(self) -> bool:
        return len(self.ids) >= TOTAL

    def take(self, message: Members) -> None:
        """Apply a message unless it is known; then none may be missing before it."""
        if message["messageId"] in self._known:
            return
        assert message["seq"] == self.last_seen + 1, f"{message['seq']} after {self.last_seen}"
        self.last_seen = message["seq"]
        self._known.add(message["messageId"])
        self.ids.append(message["messageId"])
        self._news.set()

    async def until(self, seq: int) -> None:
        """Wait until it has read up to this position."""
        while self.last_seen < seq:
            self._news.clear()
            await self._news.wait()

    async def read(self, house: House) -> bool:
        """One more page; is there another?"""
        page = await house.read(INBOX, self.last_seen + 1, 50)
        self.from_pages += len(page.messages)
        for message in page.messages:
            self.take(message)
        return bool(page.messages)

    async def visit(self, house: House, guest: Guest, frames: int) -> None:
        """Catch up, then stay for some live frames; frames that arrive before are held."""
        while self.last_seen < guest.welcome["lastSeq"]:
            await self.read(house)
        for _ in range(frames):
            if self.has_everything:
                return
            self.take(await guest.receive("message"))

    async def come_and_go(self, house: House, frames: int, *, reads_first: bool = False) -> None:
        """Visits that end without a goodbye, each after some frames.

        Pages before the socket is the older order: safe with one more look after the welcome.
        """
        while not self.has_everything:
            try:
                while reads_first and await self.read(house):
                    pass
                guest = await house.join(inbox=INBOX)
                await self.visit(house, guest, frames)
            except CUT_OFF:
                await asyncio.sleep(0.01)
                continue
            guest.abort()


async def send_all(house: House, sender: int) -> None:
    """Send everything, and repeat each message until it is accepted."""
    web = house.another_web()
    for number in range(EACH):
        message_id = f"t-{sender}-{number}"
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


@pytest.mark.parametrize("restarts", [0, 2])
async def test_member_who_reconnects_while_others_send_misses_nothing(restarts: int) -> None:
    settings = {"connection_rate": 0, "message_rate": 0, "drain_s": 0.5}
    async with open_house(rate=1_000_000, fetch_rate=1_000_000, hub=settings) as house:
        members = {frames: Member() for frames in (1, 7, 40, TOTAL)}
        older = Member()

        async def restart() -> None:
            for number in range(1, restarts + 1):
                await older.until(number * TOTAL // 3)
                await house.restart()

        async with asyncio.TaskGroup() as group:
            for frames, member in members.items():
                group.create_task(member.come_and_go(house, frames))
            group.create_task(older.come_and_go(house, 10, reads_first=True))
            for sender in range(SENDERS):
                group.create_task(send_all(house, sender))
            group.create_task(restart())

        for member in (*members.values(), older):
            assert len(member.ids) == member.last_seen == TOTAL
            # Each sender waited for one answer before its next message.
            for sender in range(SENDERS):
                mine = [one for one in member.ids if one.startswith(f"t-{sender}-")]
                assert mine == [f"t-{sender}-{number}" for number in range(EACH)]
        assert members[1].from_pages > 0
        assert (await house.join(inbox=INBOX)).welcome["lastSeq"] == TOTAL
