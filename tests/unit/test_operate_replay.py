"""What a replay makes of its target, its job and the messages it sends."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from signalhub.client import Original
from signalhub.operate.arguments import InvalidArgument
from signalhub.operate.replay import BYTES_MAX, batch_size, batches, preview, replay
from signalhub.operate.target import ReplayTarget, candidates
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

ORDERS = Selection("topic = 'orders'", "topic:again")
UNTIL = Bound(7, 41)


def original(offset: int, data: Any = 1) -> Original:
    return Original(epoch=1, offset=offset, id="m", type="n", data=data)


@pytest.mark.parametrize(
    ("text", "targets"),
    [
        ("topic:orders", [ReplayTarget("orders")]),
        ("topic:orders:eu", [ReplayTarget("orders:eu")]),
        ("subscription:orders:billing", [ReplayTarget("orders", "billing")]),
        ("subscription:a:b:c", [ReplayTarget("a", "b:c"), ReplayTarget("a:b", "c")]),
        ("@(demo/alice)", [ReplayTarget(actor="@(demo/alice)")]),
        ("actor:demo/alice", [ReplayTarget(actor="@(demo/alice)")]),
        ("orders", []),
    ],
)
def test_a_target_says_what_it_is_or_has_to_be_looked_up(
    text: str, targets: list[ReplayTarget]
) -> None:
    assert candidates(text) == targets


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


@pytest.mark.parametrize("text", ["topic:a:b", "subscription:a:b", "actor:@(demo/alice)"])
def test_a_target_is_written_as_it_is_read(text: str) -> None:
    (target,) = candidates(text)

    assert str(target) == text


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


def test_a_name_stands_for_one_selection(tmp_path: Path) -> None:
    write_job(tmp_path, "again", job_of("again", ORDERS, UNTIL, 1))

    with pytest.raises(ReplayConflict, match="another --job"):
        read_job(tmp_path, "again", Selection(ORDERS.where, "topic:other"))


def test_a_spoilt_file_is_not_taken_for_a_new_replay(tmp_path: Path) -> None:
    write_job(tmp_path, "again", job_of("again", ORDERS, UNTIL, 1))
    (path,) = (tmp_path / "pipeline" / "replays").iterdir()
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


@pytest.mark.parametrize("name", ["", "../up", "a/b", ".hidden", "x" * 65, "a b"])
def test_a_name_is_also_one_of_a_file(name: str) -> None:
    assert not NAME.fullmatch(name)


def test_an_older_file_with_more_in_it_is_read(tmp_path: Path) -> None:
    job = job_of("again", ORDERS, UNTIL, 1)
    write_job(tmp_path, "again", job)
    (path,) = (tmp_path / "pipeline" / "replays").iterdir()
    path.write_bytes(msgspec.json.encode(msgspec.to_builtins(job) | {"more": 1}))

    assert isinstance(read_job(tmp_path, "again", ORDERS), ReplayJob)
