"""Damaged frames; see `shards.py` for how many."""

from __future__ import annotations

from contextlib import closing

import pytest

from tests.fuzz.corpus import FOUND_FRAMES
from tests.fuzz.frames import Framer, SocketTarget
from tests.fuzz.shards import FRAMES, TIMEOUT_S, attack


@pytest.mark.timeout(TIMEOUT_S)
@pytest.mark.parametrize("seed", FRAMES.seeds)
async def test_damaged_frames_end_one_socket_only(
    seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    with closing(SocketTarget()) as target:
        attack(seed, FRAMES.cases, Framer(seed).next, target.fire, FOUND_FRAMES)

    assert not caplog.records, "nothing is worth a line in the log"
    assert target.closes > FRAMES.cases // 4
    assert target.answers > FRAMES.cases


@pytest.mark.parametrize("pieces", FOUND_FRAMES)
async def test_nothing_is_heard_after_a_frame_that_was_refused(pieces: list[bytes]) -> None:
    with closing(SocketTarget()) as target:
        for cut in (pieces, [b"".join(pieces)]):
            target.fire(cut)
            assert target.heard == []

    assert target.closes >= 2
