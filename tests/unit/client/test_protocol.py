"""Frames that only Python meets; `tests/vectors/client/conversation.json` has the conversation."""

from __future__ import annotations

from signalhub.client.protocol.effects import Warned
from signalhub.client.protocol.protocol import LinkPhase
from tests.support.memory.client import Scene


def test_bytes_that_are_no_text_or_nested_too_deeply_are_reported_and_do_no_harm() -> None:
    scene = Scene()
    scene.connect()
    broken = [b"\xff", b"[" * 100_000]

    for frame in broken:
        scene.hear_raw(frame)

    assert len(scene.of(Warned)) == len(broken)
    assert scene.protocol.phase is LinkPhase.READY
