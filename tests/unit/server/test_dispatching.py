"""Durable messages on the real write path: who gets them, when, and what the log hears of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from signalhub.core import refusals
from tests.support.memory.write_path import Peer, Stage


@pytest.fixture
def stage() -> Iterator[Stage]:
    with Stage() as stage:
        yield stage


def subscribe(peer: Peer, mode: str = "shared", **options: Any) -> None:
    payload = {"topic": "orders", "subscription": "s", "mode": mode, "from": "earliest"}
    peer.request("hub:subscribe", payload | options)
    peer.stage.loop.run_dry()


def publish(peer: Peer, count: int) -> None:
    for number in range(count):
        payload = {"topic": "orders", "type": "news", "data": number, "durable": True}
        peer.request("hub:publish", payload)
    peer.stage.loop.run_dry()


def test_a_publish_is_answered_and_sent_after_the_commit_and_not_before(stage: Stage) -> None:
    a, b = stage.join("@(a/a)"), stage.join("@(a/b)")
    publish(a, 1)
    subscribe(b)
    stage.engine.is_prompt = False

    publish(a, 1)
    before = (len(a.messages()), b.heard())
    stage.engine.is_prompt = True
    stage.engine.commit()
    stage.loop.run_dry()

    assert before == (len(a.messages()) - 1, [0])
    assert b.heard() == [0, 0]
    assert a.messages()[-1]["payload"]["seq"] == 2


def test_a_consumer_that_does_not_read_gets_no_more_until_it_does(stage: Stage) -> None:
    a, b = stage.join("@(a/a)"), stage.join("@(a/b)")
    publish(a, 1)
    subscribe(b, mode="exclusive")
    b.stall()

    publish(a, 50)
    waiting = stage.writer.depth()
    publish(a, 50)

    assert stage.writer.depth() == waiting
    b.read()
    stage.loop.run_dry()
    assert len(b.heard()) == 101


def test_a_short_write_settles_nothing_that_did_not_leave(stage: Stage) -> None:
    a, b = stage.join("@(a/a)"), stage.join("@(a/b)")
    publish(a, 1)
    b.stall(room=600)
    subscribe(b, mode="exclusive", autoAck=True)
    publish(a, 5)

    whole = len(b.heard())
    b.reset()
    stage.loop.run_dry()
    c = stage.join("@(a/c)")
    subscribe(c, mode="exclusive", autoAck=True)

    assert whole < 6
    assert len(c.heard()) == 6 - whole


def test_a_log_that_fails_says_so_and_takes_nothing_more(stage: Stage) -> None:
    a = stage.join("@(a/a)")
    publish(a, 1)
    stage.engine.is_prompt = False
    ids = [
        a.request("hub:publish", {"topic": "orders", "type": "t", "data": number})
        for number in range(2)
    ]
    stage.loop.run_dry()

    stage.engine.refuse(refusals.storage_failed(), is_final=True)
    ids.append(a.request("hub:publish", {"topic": "orders", "type": "t", "data": 2}))
    stage.loop.run_dry()

    codes = [a.replies(one)[0]["payload"]["code"] for one in ids]
    assert codes == ["storage_failed"] * 3
