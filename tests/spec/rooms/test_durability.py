"""Hubs that are killed right after an answer, and logs that are cut: what was said holds."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from tests.support.socket.guest import sealed
from tests.support.socket.rooms import (
    DAY,
    HOUR,
    INBOX,
    OTHER_INBOX,
    ROOM,
    House,
    accepted,
    exact_clock,
    fill,
    is_replay,
    open_house,
    refused,
    spawn_house,
    stored,
)
from tests.support.socket.stage import eventually

METADATA, PROPOSALS = "/v1/room/metadata", "/v1/room/proposals"
NAMED = {"X-Room-ID": ROOM}
LARGE = "A" * 4_000
FILLED = 60


async def write_something_of_everything(house: House) -> None:
    """All that a room remembers, with a message by every way."""
    await house.sent("first", inbox=INBOX, type="mls_proposal", proposalId="p")
    await house.join("joined", inbox=OTHER_INBOX)
    assert await (await house.join()).accepted("second", type="mls_commit", proposalId="p") == 2
    assert await house.appended(INBOX, "appended") == 3
    assert (await house.web.put(METADATA, b"blob", NAMED)).status == 204


async def everything_is_remembered(house: House, last: int) -> None:
    """It still is, whether the messages are gone or not."""
    for room, inbox in [(ROOM, "another"), ("another", INBOX), ("joined", "another")]:
        assert refused(await house.send("x", room, inbox=inbox), 409) == "CONFLICT"
    guest = await house.join(inbox=INBOX)
    assert guest.welcome["lastSeq"] == last
    for seq, message_id in enumerate(("first", "second", "appended"), start=1):
        send, append = await house.send(message_id), await house.append(INBOX, message_id)
        assert (accepted(send), is_replay(send)) == (seq, True)
        assert (stored(append), is_replay(append)) == (seq, True)
        assert (await guest.submit(message_id))["duplicate"] is True
    blob = await house.web.get(METADATA, NAMED)
    assert (blob.body, blob.header("ETag")) == (b"blob", '"1"')
    (record,) = (await house.web.get(PROPOSALS, NAMED)).json["proposals"]
    assert (record["status"], record["encryptedContent"]) == ("committed", sealed("first"))


async def test_everything_survives_a_kill_right_after_its_answer() -> None:
    async with spawn_house() as house:
        await write_something_of_everything(house)
        for restarts in range(3):
            await house.crash()
            await everything_is_remembered(house, 3 + restarts)
            page = await house.read(INBOX)
            assert page.seqs == list(range(1, 4 + restarts))
            assert page.messages[1]["ciphertext"] == sealed("second")
            assert await house.sent(f"m-{restarts}") == 4 + restarts


# The log is cut.


def segments(data: str | Path) -> set[str]:
    """The files of the log that can be deleted whole."""
    return {path.name for path in (Path(data) / "log").glob("*.log")}


async def test_log_is_cut_and_only_what_has_expired_is_forgotten() -> None:
    clock = exact_clock()
    log: dict[str, Any] = {"segment_bytes": 2**16, "retention_s": HOUR}
    async with open_house(clock, retention_s=HOUR, hub={"log": log}) as house:
        await write_something_of_everything(house)
        guest = await house.join()
        # In several commits, since one is never split between two segments.
        for first in range(1, FILLED + 1, FILLED // 3):
            await fill(guest, FILLED // 3, first, LARGE)
        before = segments(house.hub.settings.data)
        assert len(before) > 1

        clock.advance(DAY)
        await eventually(lambda: min(before) not in segments(house.hub.settings.data))

        last = FILLED + 3
        await everything_is_remembered(house, last)
        for restarts in range(1, 3):
            await house.restart()
            await everything_is_remembered(house, last)
            assert (await house.read(INBOX)).messages == []
            last += 1
            assert await house.sent(f"later-{restarts}") == last
            clock.advance(DAY)


async def test_hub_that_is_killed_after_the_cut_remembers_too() -> None:
    log: dict[str, Any] = {"segment_bytes": 2**16, "retention_s": 1.0}
    hub: dict[str, Any] = {"log": log, "message_rate": 0}
    async with spawn_house(hub, retention_s=0.5, rate=100_000) as house:
        await write_something_of_everything(house)
        first = min(segments(house.hub.data))
        guest, sent = await house.join(), 0

        async with asyncio.timeout(60):
            while first in segments(house.hub.data):
                await fill(guest, FILLED, sent + 1, LARGE)
                sent += FILLED
                await asyncio.sleep(0.3)
        await house.crash()

        await everything_is_remembered(house, sent + 3)
        assert await house.sent("later") == sent + 4
