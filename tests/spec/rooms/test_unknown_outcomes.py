"""A sync that fails: what may have happened is told apart from what did not."""

from __future__ import annotations

import asyncio

import pytest

import signalhub
from signalhub import OutcomeUnknown, Unavailable
from tests.support.socket.disk import held_disk
from tests.support.socket.http import Answer
from tests.support.socket.rooms import ROOM, OpenHouse, default_inbox, refused

POSTS = 24
METADATA = "/v1/room/metadata"
DEFAULT = default_inbox()


async def put(house: OpenHouse, data: bytes, after: Answer) -> Answer:
    """Write the next version of a blob."""
    headers = {"X-Room-ID": "blobs", "If-Match": after.header("ETag") or ""}
    return await house.another_web().put(METADATA, data, headers)


async def test_what_was_refused_for_certain_is_never_there_after_a_restart(
    broken: OpenHouse,
) -> None:
    await broken.sent("kept")
    first = await broken.web.put(METADATA, b"1", {"X-Room-ID": "blobs"})
    with held_disk() as disk:
        disk.hold()
        posts = [asyncio.create_task(broken.send("m-0", web=broken.another_web()))]
        await disk.wait()
        # These wait behind the sync that fails.
        puts = [asyncio.create_task(put(broken, b"2", first))]
        posts += [
            asyncio.create_task(broken.send(f"m-{n}", web=broken.another_web()))
            for n in range(1, POSTS)
        ]
        await broken.read(DEFAULT)
        disk.break_down()
        disk.release()
        answers = await asyncio.gather(*posts)
        written = await asyncio.gather(*puts)
    told = {f"m-{n}": refused(one, one.status) for n, one in enumerate(answers)}

    assert set(told.values()) == {"outcome_unknown", "UNAVAILABLE"}
    assert {one.status for one in answers} == {500, 503}
    assert "same messageId" in answers[0].json["error"]
    assert answers[0].header("Retry-After") is None
    # As long as the log has failed, nobody knows more about the first ones.
    for message_id, code in told.items():
        again = await broken.send(message_id)
        assert refused(again, again.status) == code

    await broken.restart()

    found = set((await broken.read(DEFAULT)).ids)
    blob = await broken.web.get(METADATA, {"X-Room-ID": "blobs"})
    certain = {message_id for message_id, code in told.items() if code == "UNAVAILABLE"}
    assert found & certain == set()
    assert found - {"kept"} == set(told) - certain, "this disk had kept what it did not sync"
    assert refused(written[0], 503) == "UNAVAILABLE"
    assert blob.body == b"1"
    assert (await broken.send("m-0")).status == 200


async def test_a_blob_that_was_being_written_is_unknown(broken: OpenHouse) -> None:
    first = await broken.web.put(METADATA, b"1", {"X-Room-ID": "blobs"})
    with held_disk() as disk:
        disk.hold()
        writing = asyncio.create_task(put(broken, b"2", first))
        await disk.wait()
        disk.break_down()
        disk.release()
        answer = await writing

    assert refused(answer, 500) == "outcome_unknown"
    assert "read it" in answer.json["error"]
    assert refused(await put(broken, b"3", first), 503) == "UNAVAILABLE"
    await broken.restart()
    assert (await broken.web.get(METADATA, {"X-Room-ID": "blobs"})).body in (b"1", b"2")
    assert (await put(broken, b"3", first)).status == 412


async def test_a_socket_says_so_too(broken: OpenHouse) -> None:
    guest = await broken.join()
    with held_disk() as disk:
        disk.hold()
        guest.send("a")
        await disk.wait()
        disk.break_down()
        disk.release()
        told = await guest.error()

    assert (told["errorCode"], told["messageId"]) == ("outcome_unknown", "a")
    assert (await guest.submit("b"))["errorCode"] == "UNAVAILABLE"


@pytest.mark.parametrize("is_room", [True, False])
async def test_the_client_raises_outcome_unknown(broken: OpenHouse, is_room: bool) -> None:
    async with signalhub.hub(broken.hub.http_url) as hub, hub.room(ROOM, pseudonym="p") as room:
        to = room.send if is_room else hub.inbox(DEFAULT).append
        with held_disk() as disk:
            disk.hold()
            sending = asyncio.create_task(to(b"x", message_id="m-1", timeout_s=0.5))
            await disk.wait()
            disk.break_down()
            disk.release()
            # It has tried again with the same id until its time was over.
            with pytest.raises(OutcomeUnknown, match="outcome is unknown"):
                await sending
        with pytest.raises(Unavailable, match="nothing was accepted"):
            await to(b"y", message_id="m-2", timeout_s=0.5)
