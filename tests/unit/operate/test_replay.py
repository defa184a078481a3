"""A replay: its target, its job, and how its messages reach a hub."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from signalhub.client import Original, OriginalPosition
from signalhub.operate.arguments import InvalidArgument
from signalhub.operate.replay import (
    BYTES_MAX,
    Behind,
    HubBusy,
    Sender,
    Sending,
    batch_size,
    batches,
    preview,
    replay,
)
from signalhub.operate.session import HubAccess
from signalhub.operate.target import ReplayTarget, UnknownTarget, candidates, find
from signalhub.pipeline.replay.job import (
    NAME,
    Bound,
    ReplayConflict,
    ReplayJob,
    Selection,
    job_of,
    read_job,
    write_job,
)
from signalhub.settings.model import Settings
from signalhub.testing import Peer, ScriptedHub
from signalhub.wire.errors import OutcomeUnknown, Refused, Unavailable
from tests.support.memory.client import conversation

ORDERS = Selection("topic = 'orders'", "topic:again")
UNTIL = Bound(7, 41)
ACCESS = HubAccess(timeout_s=5.0)


def original(offset: int, data: Any = 1) -> Original:
    return Original(epoch=1, offset=offset, id="m", type="n", data=data)


def sender(events: list[Behind | Sending | HubBusy]) -> Sender:
    return Sender("job", UNTIL, ReplayTarget(topic="again"), 0, ACCESS, events.append)


async def answer(peer: Peer, **facts: Any) -> dict[str, Any]:
    request = await peer.receive("hub:republish")
    peer.answer(request, "hub:republished", {"job": "job", **facts})
    return request


@pytest.mark.parametrize(
    ("text", "targets"),
    [
        ("topic:orders", [ReplayTarget("orders")]),
        ("topic:orders:eu", [ReplayTarget("orders:eu")]),
        ("subscription:orders:billing", [ReplayTarget("orders", "billing")]),
        ("subscription:a:b:c", [ReplayTarget("a", "b:c"), ReplayTarget("a:b", "c")]),
        ("@(demo/alice)", [ReplayTarget(actor="@(demo/alice)")]),
        ("actor:demo/alice", [ReplayTarget(actor="@(demo/alice)")]),
        ("actor:@(demo/alice)", [ReplayTarget(actor="@(demo/alice)")]),
        ("orders", []),
    ],
)
def test_a_target_says_what_it_is_or_has_to_be_looked_up(
    text: str, targets: list[ReplayTarget]
) -> None:
    assert candidates(text) == targets
    if len(targets) == 1 and not text.startswith(("@", "actor:demo")):
        assert str(targets[0]) == text, "it is written as it is read"


@pytest.mark.parametrize(
    "text",
    ["", "topic:", "topic:orders/#", "subscription:orders", "subscription::a", "actor:", "@()"],
)
def test_an_invalid_target_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument):
        candidates(text)


@pytest.mark.parametrize("operation", [replay, preview])
@pytest.mark.parametrize(
    ("job", "words"), [("a b", "invalid job name 'a b'; use up to 64"), ("again", "no lake at")]
)
def test_a_replay_needs_a_lake_and_a_usable_name(
    operation: Callable[..., object], job: str, words: str, tmp_path: Path
) -> None:
    with pytest.raises(InvalidArgument, match=words):
        operation(Settings(data=str(tmp_path)), "true", "topic:orders", job=job)

    assert list(tmp_path.iterdir()) == []


def test_requests_hold_no_more_than_the_hub_takes() -> None:
    large = "x" * (BYTES_MAX // 3)
    originals = [original(n) for n in range(250)]
    originals += [original(n, large) for n in range(250, 255)]
    originals.append(original(255, "x" * 2 * BYTES_MAX))

    found = list(batches(iter(originals), 100))

    assert [one for batch in found for one in batch] == originals
    assert [len(batch) for batch in found] == [100, 100, 52, 2, 1, 1]
    assert all(len(msgspec.json.encode(batch)) <= BYTES_MAX + 200 for batch in found[:-1])


@pytest.mark.parametrize(("rate", "size"), [(0, 100), (1_000, 100), (30, 30), (0.5, 1)])
def test_a_slow_replay_sends_small_requests(rate: float, size: int) -> None:
    assert batch_size(rate) == size


def test_a_replay_is_found_again_by_its_selection_or_its_name(tmp_path: Path) -> None:
    own, named = job_of(None, ORDERS, UNTIL, 1), job_of("again", ORDERS, UNTIL, 2)
    write_job(tmp_path, None, own)
    write_job(tmp_path, "again", named)

    assert read_job(tmp_path, None, ORDERS) == own
    assert read_job(tmp_path, "again", ORDERS) == named
    assert own.job == f"{ORDERS.name}-7.41"
    assert named.job == "again"
    assert read_job(tmp_path, None, Selection("true", "topic:again")) is None
    assert sorted(one.suffix for one in (tmp_path / "pipeline" / "replays").iterdir()) == [
        ".json",
        ".json",
    ]


def test_a_name_stands_for_one_selection_and_its_file_is_read_with_care(tmp_path: Path) -> None:
    job = job_of("again", ORDERS, UNTIL, 1)
    write_job(tmp_path, "again", job)
    (path,) = (tmp_path / "pipeline" / "replays").iterdir()

    with pytest.raises(ReplayConflict, match="another --job"):
        read_job(tmp_path, "again", Selection(ORDERS.where, "topic:other"))
    path.write_bytes(msgspec.json.encode(msgspec.to_builtins(job) | {"more": 1}))
    assert isinstance(read_job(tmp_path, "again", ORDERS), ReplayJob), "a newer one has more"
    path.write_text("{")
    with pytest.raises(ReplayConflict, match="cannot be read"):
        read_job(tmp_path, "again", ORDERS)


def test_selections_that_differ_have_different_names() -> None:
    others = [
        Selection("true", ORDERS.to),
        Selection(ORDERS.where, "topic:other"),
        Selection(ORDERS.where, ORDERS.to, True),
    ]

    assert len({one.name for one in (ORDERS, *others)}) == 4
    assert all(NAME.fullmatch(one.name) for one in (ORDERS, *others))
    for name in ("", "../up", "a/b", ".hidden", "x" * 65, "a b"):
        assert not NAME.fullmatch(name), "a name is also one of a file"


async def test_messages_are_sent_in_batches_and_each_is_reported() -> None:
    events: list[Behind | Sending | HubBusy] = []
    originals = [original(n) for n in range(150)]
    async with conversation() as (_, peer, me):
        asking = asyncio.create_task(sender([]).ask(me))
        asked = await answer(peer, position={"shard": 0, "epoch": 7, "offset": 41})
        assert await asking == OriginalPosition(0, 7, 41)
        sending = asyncio.create_task(sender(events).send(me, iter(originals), 150))
        first = await answer(peer, appended=60, skipped=40)
        second = await answer(peer, appended=50)
        last = await answer(peer)
        done = await sending
        refused = asyncio.create_task(sender([]).send(me, iter(originals), 1))
        peer.refuse(await peer.receive("hub:republish"), "replay_conflict")
        with pytest.raises(Refused, match="replay_conflict"):
            await refused

    assert asked["payload"]["until"] == {"epoch": 7, "offset": 41}
    assert [len(one["payload"]["messages"]) for one in (first, second, last)] == [100, 50, 0]
    assert [one["payload"].get("ended") for one in (first, second, last)] == [None, None, True]
    assert events == [
        Sending("job", 150),
        Sending("job", 150, 100, 60, 40),
        Sending("job", 150, 150, 110, 40),
    ]
    assert done == events[-1]


async def test_a_plain_name_is_the_one_thing_the_hub_has_under_it() -> None:
    async with conversation() as (_, peer, me):
        finding = asyncio.create_task(find(me, "orders", ACCESS))
        listing = await peer.receive("hub:list_subs")
        peer.answer(listing, "hub:sub_list", {"subscriptions": [], "hasMore": False})
        await answer(peer)
        peer.refuse(await peer.receive("hub:republish"), "no_mailbox")

        assert await finding == ReplayTarget(topic="orders")


@pytest.mark.parametrize(("exists", "error"), [(True, InvalidArgument), (False, UnknownTarget)])
async def test_a_name_that_means_several_things_or_nothing_is_an_error(
    exists: bool, error: type[Exception]
) -> None:
    async with conversation() as (_, peer, me):
        finding = asyncio.create_task(find(me, "subscription:a:b:c", ACCESS))
        for _ in range(2):
            if exists:
                await answer(peer)
            else:
                peer.refuse(await peer.receive("hub:republish"), "unknown_subscription")

        with pytest.raises(error):
            await finding


async def test_no_answer_in_time_is_told_from_no_connection() -> None:
    async with ScriptedHub() as hub:
        access = HubAccess(url=hub.url, timeout_s=0.05)

        with pytest.raises(Unavailable, match=r"no answer within 0\.05 s"):
            async with access.session():
                pass
        with pytest.raises(OutcomeUnknown):
            await access.in_time(asyncio.Event().wait())
