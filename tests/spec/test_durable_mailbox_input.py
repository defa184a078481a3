"""Bad input for all that mailboxes added: a clear error, nothing lost, the session lives."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.support.socket.bystanders import bystanders
from tests.support.socket.mailboxes import (
    ask,
    data_of,
    join_durable,
    keep_away,
    leave,
    place_of,
    settle,
    take,
    take_until_asked,
)
from tests.support.socket.peer import Peer
from tests.support.socket.stage import InProcess, addresses, code_of, run_stage

A = "@(local/a)"
SETTLES = ("hub:ack", "hub:nack", "hub:extend", "hub:term")
NOT_A_FLAG: list[Any] = ["true", "", 1, 0, 1.5, [], [True], {}]
NOT_A_TEXT: list[Any] = [1, 1.5, True, [], [A], {}]
NOT_A_SEQ: list[Any] = ["1", "", 1.5, True, [], [1], {}, {"seq": 1}]
ABSURD_SEQS: list[Any] = [0, -1, -(2**63), 2**31, 2**53, 2**63, 2**64, 10**30]
NOT_SEQS: list[Any] = ["1", 1, {}, ["1"], [1, None], [1, 1.5], [True], [[1]], [1, {}]]


def named(value: Any) -> str:
    return json.dumps(value)[:30]


@pytest.fixture
async def quiet() -> AsyncIterator[InProcess]:
    """A hub that sends nothing again by itself, with two actors who talk through it."""
    mailbox = {"backoff_ms": 60_000, "backoff_cap_ms": 600_000, "ack_timeout_ms": 600_000}
    async with run_stage(message_rate=0, mailbox=mailbox) as stage, bystanders(stage):
        yield stage


@pytest.fixture
async def target(quiet: InProcess) -> Peer:
    """A settling actor with one copy in its hands, the first of its mailbox."""
    sender, target = await quiet.connect(), await join_durable(quiet, A, settles=True)
    await ask(sender, A, "precious")
    target.set_aside(await take(target, 1))
    return target


async def nothing_is_lost(stage: InProcess, target: Peer) -> None:
    """The copy can be settled still; what comes after it arrives."""
    [copy] = await take(target, 1)
    assert copy["payload"] == "precious"
    sender = await stage.connect()
    assert data_of(await take_until_asked(target, sender)) == []
    assert (await settle(target, "hub:ack", copy))["floor"] == 1


@pytest.mark.parametrize("durable", NOT_A_FLAG, ids=named)
async def test_register_with_a_durable_that_is_no_flag_is_refused(
    stage: InProcess, durable: Any
) -> None:
    peer = await stage.connect()
    payload = {"actorAddress": A, "capabilities": [], "durable": durable}

    for pattern in ("tell", "ask"):
        reply = await peer.ask("hub:register", payload, pattern=pattern)
        assert code_of(reply) == "internal_error"
        assert reply["payload"]["retryable"] is False

    assert await addresses(peer, includeAway=True) == []
    assert (await peer.ask_actor(A, "note"))["type"] == "hub:unknown_actor"


@pytest.mark.parametrize("durable", NOT_A_FLAG, ids=named)
async def test_refused_registration_does_not_touch_the_mailbox(
    stage: InProcess, durable: Any
) -> None:
    peer = await stage.connect()
    await keep_away(stage, A)
    await ask(peer, A, "precious")

    assert code_of(await peer.register(A, durable=durable)) == "internal_error"

    back = await join_durable(stage, A)
    assert data_of(await take(back, 1)) == ["precious"]


@pytest.mark.parametrize("flag", NOT_A_FLAG, ids=named)
async def test_discover_with_an_include_away_that_is_no_flag_is_refused(
    stage: InProcess, flag: Any
) -> None:
    peer = await stage.connect()

    reply = await peer.ask("hub:discover", {"pattern": "*", "includeAway": flag})

    assert code_of(reply) == "internal_error"


@pytest.mark.parametrize("type", SETTLES)
@pytest.mark.parametrize("payload", [None, [], "text", 7, True, {}], ids=named)
async def test_settling_nothing_in_particular_is_refused(
    quiet: InProcess, target: Peer, type: str, payload: Any
) -> None:
    for pattern in ("tell", "ask"):
        reply = await target.reply_to(target.send(type, payload, pattern=pattern))
        assert code_of(reply) == "internal_error"

    await nothing_is_lost(quiet, target)


@pytest.mark.parametrize("type", SETTLES)
async def test_settling_without_a_name_or_a_position_is_refused(
    quiet: InProcess, target: Peer, type: str
) -> None:
    for payload in ({"seq": 1}, {"epoch": "e"}, {"stream": A}, {"stream": None, "seq": 1}):
        reply = await target.ask(type, payload | {"ms": 1000})
        assert code_of(reply) == "internal_error", payload

    await nothing_is_lost(quiet, target)


@pytest.mark.parametrize("type", SETTLES)
async def test_settling_a_position_of_the_wrong_type_is_refused(
    quiet: InProcess, target: Peer, type: str
) -> None:
    wrong: list[dict[str, Any]] = [{"seq": seq} for seq in NOT_A_SEQ]
    wrong += [{"seqs": seqs} for seqs in NOT_SEQS]
    wrong += [{"upTo": seq} for seq in NOT_A_SEQ]
    wrong += [{"seq": 1, "epoch": epoch} for epoch in NOT_A_TEXT]
    wrong += [{"seq": 1, "stream": stream} for stream in NOT_A_TEXT]

    for members in wrong:
        reply = await target.ask(type, {"stream": A, "ms": 1000} | members)
        assert code_of(reply) == "internal_error", members
        assert reply["payload"]["retryable"] is False

    await nothing_is_lost(quiet, target)


@pytest.mark.parametrize("type", SETTLES)
async def test_settling_absurd_positions_settles_nothing(
    quiet: InProcess, target: Peer, type: str
) -> None:
    for seq in ABSURD_SEQS:
        for members in ({"seq": seq}, {"seqs": [seq]}):
            reply = await target.ask(type, {"stream": A, "ms": 1000} | members)
            if reply["type"] == "hub:error":
                assert code_of(reply) == "internal_error"
            else:
                assert reply["payload"] == {"floor": 0, "accepted": 0, "ignored": [seq]}

    await nothing_is_lost(quiet, target)


async def test_settling_up_to_before_the_first_settles_nothing(
    quiet: InProcess, target: Peer
) -> None:
    for seq in (0, -1, -(2**63)):
        reply = await target.ask("hub:ack", {"stream": A, "upTo": seq})
        assert reply["type"] == "hub:error" or reply["payload"]["accepted"] == 0

    await nothing_is_lost(quiet, target)


async def test_huge_lists_of_positions_are_answered_and_settle_only_what_is_there(
    quiet: InProcess, target: Peer
) -> None:
    foreign = list(range(2, 50_002))

    reply = await target.ask("hub:nack", {"stream": A, "seqs": foreign})

    assert reply["type"] == "hub:error" or reply["payload"]["accepted"] == 0
    await nothing_is_lost(quiet, target)


async def test_empty_list_of_positions_settles_nothing(quiet: InProcess, target: Peer) -> None:
    reply = await target.ask("hub:ack", {"stream": A, "seqs": []})

    assert reply["type"] == "hub:error" or reply["payload"]["accepted"] == 0
    await nothing_is_lost(quiet, target)


@pytest.mark.parametrize("delay", ["soon", "", True, [], {}], ids=named)
async def test_nack_with_a_delay_that_is_no_number_is_refused(
    quiet: InProcess, target: Peer, delay: Any
) -> None:
    reply = await target.ask("hub:nack", {"stream": A, "seq": 1, "delayMs": delay})

    assert code_of(reply) == "internal_error"
    await nothing_is_lost(quiet, target)


@pytest.mark.parametrize("delay", [-1, -(10**30), 0, 0.5, 2**63, 10**30, 1e300], ids=named)
async def test_nack_with_an_absurd_delay_loses_nothing(
    quiet: InProcess, target: Peer, delay: Any
) -> None:
    reply = await target.ask("hub:nack", {"stream": A, "seq": 1, "delayMs": delay})

    if reply["type"] == "hub:error":
        assert code_of(reply) == "internal_error"
    else:
        assert reply["payload"]["accepted"] == 1
    await nothing_is_lost(quiet, target)


@pytest.mark.parametrize("reason", NOT_A_TEXT, ids=named)
@pytest.mark.parametrize("type", ["hub:nack", "hub:term"])
async def test_reason_that_is_no_text_is_refused(
    quiet: InProcess, target: Peer, type: str, reason: Any
) -> None:
    reply = await target.ask(type, {"stream": A, "seq": 1, "reason": reason})

    assert code_of(reply) == "internal_error"
    await nothing_is_lost(quiet, target)


@pytest.mark.parametrize("ms", [None, ..., "long", "", True, [], {}], ids=str)
async def test_extend_without_a_time_is_refused(quiet: InProcess, target: Peer, ms: Any) -> None:
    payload = {"stream": A, "seq": 1} | ({} if ms is ... else {"ms": ms})

    assert code_of(await target.ask("hub:extend", payload)) == "internal_error"

    await nothing_is_lost(quiet, target)


@pytest.mark.parametrize("ms", [-1, 0, -(10**30), 2**63, 10**30, 1e300], ids=named)
async def test_extend_by_an_absurd_time_loses_nothing(
    quiet: InProcess, target: Peer, ms: Any
) -> None:
    reply = await target.ask("hub:extend", {"stream": A, "seq": 1, "ms": ms})

    if reply["type"] == "hub:error":
        assert code_of(reply) == "internal_error"
    else:
        assert reply["payload"]["accepted"] == 1
    await nothing_is_lost(quiet, target)


@pytest.mark.parametrize("type", ["hub:ack", "hub:nack"])
async def test_attempt_id_that_fits_nothing_settles_nothing(
    quiet: InProcess, target: Peer, type: str
) -> None:
    reply = await target.ask(type, {"stream": A, "seq": 1, "id": "no such attempt"})

    if reply["type"] == "hub:error":
        code_of(reply)
    else:
        assert reply["payload"] == {"floor": 0, "accepted": 0, "ignored": [1]}
    await nothing_is_lost(quiet, target)


async def test_session_that_did_not_announce_ack_settles_nothing_and_loses_nothing(
    quiet: InProcess,
) -> None:
    sender, peer = await quiet.connect(), await join_durable(quiet, A)
    await ask(sender, A, "precious")
    [copy] = await take(peer, 1)

    for type in SETTLES:
        reply = await peer.ask(type, place_of(copy) | {"ms": 1000})
        if reply["type"] == "hub:error":
            assert code_of(reply) == "not_a_consumer"
        else:
            assert reply["payload"]["accepted"] == 0

    assert data_of(await take_until_asked(peer, sender)) == []
    await leave(peer)


@pytest.mark.parametrize("metadata", [None, "text", [], 7], ids=named)
async def test_odd_metadata_of_an_ask_does_not_spoil_its_delivery(
    stage: InProcess, metadata: Any
) -> None:
    sender = await stage.connect()
    await keep_away(stage, A)

    reply = await sender.ask_actor(A, "note", "precious", metadata=metadata)

    back = await join_durable(stage, A)
    if reply["type"] == "hub:error":
        code_of(reply)
        await back.nothing_more()
    else:
        copies = await take(back, 1)
        assert data_of(copies) == ["precious"]
        assert place_of(copies[0])["seq"] == reply["payload"]["seq"] == 1
