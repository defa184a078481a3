"""What the load generator says to rooms and inboxes, and the peer's store."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from bench import rooms
from bench.figures import Measurement, summarise
from bench.goals import GOALS
from bench.peers.sqlite_messages import Commits, Message, Messages
from bench.protocols import MARKER
from bench.room_crowds import highest
from bench.room_shapes import turned
from bench.servers import HUB, STARLETTE
from tests.support.socket.frames import unmask

ROOMS = [rooms.room_name(index) for index in range(3)]


def requests(data: bytes) -> list[tuple[bytes, bytes]]:
    """Head and body of each request, read as HTTP/1.1 says."""
    found = []
    while data:
        head, _, rest = data.partition(b"\r\n\r\n")
        length = re.search(rb"Content-Length: (\d+)", head)
        size = int(length[1]) if length else 0
        found.append((head, rest[:size]))
        data = rest[size:]
    return found


@pytest.mark.parametrize(("size", "chars"), [(256, 342), (1_024, 1_366), (96, 128)])
def test_a_ciphertext_has_the_size_that_is_quoted(size: int, chars: int) -> None:
    text = rooms.ciphertext(size)

    assert len(text) == chars
    assert len(text) * 3 // 4 == size
    assert re.fullmatch(r"[A-Za-z0-9_-]+", text)
    assert text.count(MARKER.decode()) == 1


def test_posts_go_to_the_rooms_by_turns_with_ids_of_their_own() -> None:
    found = requests(rooms.posts(80, ROOMS, range(7, 12), 256))

    bodies = [json.loads(body) for _, body in found]
    assert [body["roomId"] for body in bodies] == [*ROOMS, *ROOMS[:2]]
    assert len({body["messageId"] for body in bodies}) == 5
    assert {head.split(b"\r\n")[0] for head, _ in found} == {b"POST /api/v1/message HTTP/1.1"}
    assert all(b"Content-Type: application/json" in head for head, _ in found)


def test_requests_of_one_lane_have_one_length() -> None:
    inboxes = [rooms.inbox_of(room) for room in ROOMS]

    assert len(rooms.posts(80, ROOMS, range(99, 104), 64)) % 5 == 0
    assert len(rooms.sends(range(99, 104), 64)) % 5 == 0
    assert len(rooms.fetches(80, inboxes, 5, 29, 100)) % 5 == 0


def test_a_socket_sends_to_the_room_it_joined() -> None:
    ((upgrade, welcome),) = rooms.joined(80, "room-1", "alice")
    _, payload, rest = unmask(rooms.sends(range(1), 256))

    assert upgrade.startswith(b"GET /room HTTP/1.1\r\n")
    assert b"\r\nX-Room-ID: room-1\r\nX-Pseudonym-ID: alice\r\n\r\n" in upgrade
    assert welcome in b'{"action":"welcome","lastSeq":0,"oldestBufferedSeq":1}'
    assert set(json.loads(payload)) == {"action", "messageId", "ciphertext"}
    assert rest == b""


def test_fetches_ask_the_inboxes_by_turns() -> None:
    inboxes = [rooms.inbox_of(room) for room in ROOMS]

    found = requests(rooms.fetches(80, inboxes, 4, 29, 100))

    asked = [re.findall(rb"X-Inbox-ID: (\S+)", head)[0].decode() for head, _ in found]
    assert asked == [*inboxes, inboxes[0]]
    assert found[0][0].startswith(b"GET /v1/inbox/messages?fromSeq=29&limit=100 HTTP/1.1\r\n")


def test_the_inbox_of_a_room_is_its_name_in_base64url() -> None:
    assert rooms.inbox_of("tenant-123:room-456") == "dGVuYW50LTEyMzpyb29tLTQ1Ng"


def test_only_a_full_page_counts() -> None:
    marker = rooms.fetched(29, 100)

    assert b'{"messages":[],"nextSeq":129}'.count(marker) == 1
    assert marker not in b'{"messages":[],"nextSeq":128}'
    assert marker not in b'{"messages":[],"nextSeq":1290}'
    assert marker not in b'{"messages":[],"nextSeq":129,"partial":true}'


@pytest.mark.parametrize(
    "refusal",
    [
        b'{"error":"Rate limit exceeded","errorCode":"RATE_LIMIT_EXCEEDED","retryAfterMs":7}',
        b'{"action":"error","error":"no","errorCode":"UNAVAILABLE","messageId":"1"}',
        b'{"action":"message","messageId":"1","ciphertext":"x","type":"mls_app"}',
    ],
)
def test_a_refusal_or_a_copy_is_no_answer(refusal: bytes) -> None:
    assert rooms.ACCEPTED not in refusal
    assert rooms.ACKED not in refusal


def test_connections_start_at_different_rooms() -> None:
    names = ["a", "b", "c", "d"]

    assert [turned(names, index, 2) for index in range(2)] == [names, ["c", "d", "a", "b"]]
    assert sorted(turned(names, 3, 64)) == names


@pytest.mark.parametrize("limit", [2_500.0, 9_000.0, 31_000.0])
def test_the_highest_rate_is_found_from_below(limit: float) -> None:
    found = highest(lambda rate: rate <= limit, 2_000.0)

    assert 0.9 * limit <= found <= limit


def test_the_highest_rate_is_found_from_above() -> None:
    assert 450.0 <= highest(lambda rate: rate <= 500.0, 2_000.0) <= 500.0


def test_no_rate_is_reported_when_none_holds() -> None:
    assert highest(lambda rate: False, 2_000.0) == 0.0


def test_idle_rooms_are_judged_by_what_they_add() -> None:
    (goal,) = [goal for goal in GOALS if "idle rooms" in goal.text]

    def judged(share: float) -> str:
        runs = [Measurement({"server_share": share, "empty_share": 0.01})]
        return goal.judge({("rooms-idle", HUB.name): summarise(runs)})

    assert judged(0.0149) == "pass"
    assert judged(0.0151) == "miss"


def test_a_peer_without_its_framework_is_not_installed() -> None:
    assert not replace(STARLETTE, module="no_such_framework_anywhere").is_installed


@asynccontextmanager
async def store(
    path: Path, commits: Commits
) -> AsyncIterator[tuple[Messages, asyncio.Queue[Message]]]:
    """The peer's store, and what it has committed in that order."""
    done: asyncio.Queue[Message] = asyncio.Queue()

    def committed(batch: Sequence[Message]) -> None:
        for message in batch:
            done.put_nowait(message)

    messages = Messages(path / "messages.db", commits, committed)
    messages.start()
    try:
        yield messages, done
    finally:
        messages.stop()


def message(room: str, message_id: str) -> Message:
    return Message(None, room, message_id, "abcd", "mls_app", "alice")


@pytest.mark.parametrize("commits", ["each", "group"])
async def test_the_peer_numbers_the_messages_of_a_room_without_gaps(
    tmp_path: Path, commits: Commits
) -> None:
    async with store(tmp_path, commits) as (messages, done):
        for number in range(6):
            messages.accept(message(f"room-{number % 2}", f"m{number}"))
        kept = [await done.get() for _ in range(6)]
        page = messages.page(rooms.inbox_of("room-1"), 2, 100)

    assert [one.message_id for one in kept] == [f"m{number}" for number in range(6)]
    assert [one.seq for one in kept] == [1, 1, 2, 2, 3, 3]
    assert [(seq, message_id) for seq, message_id, *_ in page] == [(2, "m3"), (3, "m5")]


@pytest.mark.parametrize("commits", ["each", "group"])
async def test_the_peer_answers_a_repeat_with_the_first_position_also_after_a_restart(
    tmp_path: Path, commits: Commits
) -> None:
    async with store(tmp_path, commits) as (messages, done):
        for message_id in ("a", "b", "a"):
            messages.accept(message("room-1", message_id))
        first = [await done.get() for _ in range(3)]
    async with store(tmp_path, commits) as (messages, done):
        for message_id in ("b", "c"):
            messages.accept(message("room-1", message_id))
        second = [await done.get() for _ in range(2)]
        head = messages.head("room-1")

    assert [(one.seq, one.is_repeat) for one in first] == [(1, False), (2, False), (1, True)]
    assert [(one.seq, one.is_repeat) for one in second] == [(2, True), (3, False)]
    assert head == 3
