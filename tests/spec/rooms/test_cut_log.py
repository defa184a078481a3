"""What outlives the log: positions, ids, bindings, blobs and proposals after it has been cut."""

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


def segments(data: str | Path) -> set[str]:
    """The files of the log that can be deleted whole."""
    return {path.name for path in (Path(data) / "log").glob("*.log")}


async def write_something_of_everything(house: House) -> None:
    """All that a room remembers beside its messages, at the very beginning of the log."""
    await house.sent("first", inbox=INBOX, type="mls_proposal", proposalId="p")
    await house.sent("second", type="mls_commit", proposalId="p")
    await house.join("joined", inbox=OTHER_INBOX)
    assert await house.appended(INBOX, "appended") == 3
    assert (await house.web.put(METADATA, b"blob", NAMED)).status == 204


async def everything_is_remembered(house: House, last: int) -> None:
    """It still is, though the messages are gone."""
    assert refused(await house.send("x", inbox="another"), 409) == "CONFLICT"
    assert refused(await house.send("x", "another", inbox=INBOX), 409) == "CONFLICT"
    assert refused(await house.send("x", "joined", inbox="another"), 409) == "CONFLICT"
    for seq, message_id in enumerate(("first", "second", "appended", "m-1"), start=1):
        repeat = await house.send(message_id)
        assert (accepted(repeat), is_replay(repeat)) == (seq, True)
    repeat = await house.append(INBOX, "second")
    assert (stored(repeat), is_replay(repeat)) == (2, True)
    blob = await house.web.get(METADATA, NAMED)
    assert (blob.body, blob.header("ETag")) == (b"blob", '"1"')
    (record,) = (await house.web.get(PROPOSALS, NAMED)).json["proposals"]
    assert (record["status"], record["encryptedContent"]) == ("committed", sealed("first"))
    assert (await house.join()).welcome["lastSeq"] == last


async def test_log_is_cut_and_only_what_has_expired_is_forgotten() -> None:
    clock = exact_clock()
    log: dict[str, Any] = {"segment_bytes": 2**16, "retention_s": HOUR}
    async with open_house(clock, retention_s=HOUR, hub={"log": log}) as house:
        await write_something_of_everything(house)
        guest = await house.join()
        # In several commits, since one is never parted between two segments.
        for first in range(1, FILLED + 1, FILLED // 3):
            await fill(guest, FILLED // 3, first, LARGE)
        before = segments(house.hub.settings.data)
        assert len(before) > 1

        clock.advance(DAY)
        await eventually(lambda: min(before) not in segments(house.hub.settings.data))

        last = FILLED + 3
        await everything_is_remembered(house, last)
        for life in range(1, 3):
            await house.restart()
            await everything_is_remembered(house, last)
            assert (await house.read(INBOX)).messages == []
            last += 1
            assert await house.sent(f"later-{life}") == last
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
