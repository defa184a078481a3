"""How messages are printed, and what becomes of them then."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from signalhub.cli.messages.messages import follow, message_facts, parts
from signalhub.cli.terminal.failures import Failure
from signalhub.cli.terminal.output import Output
from signalhub.client import Delivery, Message


def message(seq: int | None = None, attempt: int = 1, **metadata: Any) -> Message:
    delivery = None
    if seq is not None:
        delivery = Delivery(epoch="1.1", seq=seq, subscription="billing", attempt=attempt)
    return Message(
        id="m-1",
        sender="@(demo/alice)",
        to="@(cli/1)",
        type="text",
        payload=7,
        metadata=metadata,
        timestamp=1000,
        topic="orders",
        delivery=delivery,
    )


async def stream(*messages: Message) -> AsyncIterator[Message]:
    for one in messages:
        yield one


def texts(line: list[tuple[str, str]]) -> list[str]:
    return [text for text, _ in line]


def test_a_plain_message_has_no_position() -> None:
    line = parts(message(), is_terminal=False, has_position=True)

    assert texts(line) == ["orders", "@(demo/alice)", "text", "7"]
    assert "seq" not in message_facts(message())


def test_positions_are_columns_only_where_they_are_wanted() -> None:
    live = parts(message(3), is_terminal=False)
    durable = parts(message(3), is_terminal=False, has_position=True)

    assert texts(live) == ["orders", "@(demo/alice)", "text", "7"]
    assert texts(durable) == ["orders", "3", "1", "@(demo/alice)", "text", "7"]


@pytest.mark.parametrize(("attempt", "shown"), [(1, ""), (2, "attempt 2")])
def test_people_see_the_attempt_only_if_it_is_not_the_first(attempt: int, shown: str) -> None:
    _, topic, seq, told, *_ = texts(parts(message(3, attempt), is_terminal=True, has_position=True))

    assert (topic, seq, told) == ("orders", "3", shown)


def test_a_durable_message_is_an_object_with_its_position_key_and_headers() -> None:
    facts = message_facts(message(3, 2, key="k", headers={"a": "b"}))

    assert (facts["epoch"], facts["seq"], facts["attempt"]) == ("1.1", 3, 2)
    assert (facts["key"], facts["headers"]) == ("k", {"a": "b"})


def test_a_copy_of_a_replay_is_an_object_that_says_where_it_was_taken_from() -> None:
    original = {"job": "again", "epoch": 1, "offset": 41, "id": "m-7"}
    copy = msgspec.structs.replace(message(3), metadata={"original": original})

    assert message_facts(copy)["original"] == original | {"shard": 0}
    assert "original" not in message_facts(message(3))


async def test_each_message_is_settled_after_it_was_printed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    settled: list[tuple[int, bool, int]] = []
    printed: list[str] = []

    async def settle(one: Message, is_last: bool) -> None:
        printed.extend(capsys.readouterr().out.splitlines())
        assert one.delivery is not None
        settled.append((one.delivery.seq, is_last, len(printed)))

    source = stream(message(1), message(2), message(3))
    await follow(source, Output(as_json=True), count=2, for_s=None, settle=settle)

    assert settled == [(1, False, 1), (2, True, 2)]
    assert [json.loads(line)["seq"] for line in printed] == [1, 2]


async def test_too_few_messages_are_a_failure() -> None:
    with pytest.raises(Failure, match="1 of 2 messages"):
        await follow(stream(message(1)), Output(as_json=True), count=2, for_s=1.0)
