"""One actor to another: what arrives, what is acknowledged, and when."""

from __future__ import annotations

import json
from typing import Any

import pytest

from signalhub.core.messages.ask import AskReceipt
from signalhub.wire.names import HUB_ADDRESS
from tests.support.memory.shell import MemoryShell, Message, Peer, envelope


def pair() -> tuple[MemoryShell, Peer, Peer]:
    shell = MemoryShell()
    return shell, shell.join("@(local/alice)"), shell.join("@(local/bob)")


def code_of(reply: Message) -> str:
    code: str = reply["payload"]["code"]
    return code


def test_a_message_arrives_flat_with_the_members_the_recipient_expects() -> None:
    shell, alice, bob = pair()

    alice.tell(
        "hub:send",
        {"to": "@(local/bob)", "type": "chart:draw", "data": {"points": [3, 5]}},
        id="a3",
        metadata={"traceId": "t-9"},
        ttl=10_000,
    )

    (message,) = bob.take()
    identity = message.pop("id")
    assert identity != "a3"
    assert message == {
        "from": "@(local/alice)",
        "to": "@(local/bob)",
        "type": "chart:draw",
        "payload": {"points": [3, 5]},
        "pattern": "tell",
        "correlationId": None,
        "timestamp": shell.now,
        "metadata": {
            "traceId": "t-9",
            "forwarded": True,
            "via": HUB_ADDRESS,
            "originalMessageId": "a3",
        },
        "ttl": 10_000,
        "signature": None,
    }


@pytest.mark.parametrize(
    "data",
    [
        None,
        0,
        "",
        [],
        {},
        False,
        [None, {"a": [{}]}],
        'ünïcødé \U0001f600 \u2028 " \\ \n',
        1.0,
        -0.0,
        12345678901234567890123,
        "x" * 10_240,
    ],
)
def test_data_arrives_as_it_was_sent(data: Any) -> None:
    _, alice, bob = pair()

    alice.send("@(local/bob)", data)

    (message,) = bob.heard()
    assert repr(message["payload"]) == repr(data)


def test_missing_data_arrives_as_null() -> None:
    _, alice, bob = pair()

    alice.tell("hub:send", {"to": "@(local/bob)", "type": "t"})

    assert bob.heard()[0]["payload"] is None


@pytest.mark.parametrize("to", ["", None])
def test_without_a_target_in_the_payload_the_envelope_names_it(to: object) -> None:
    _, alice, bob = pair()

    alice.tell("hub:send", {"to": to, "type": "t", "data": 1}, to="@(local/bob)")

    assert [one["to"] for one in bob.heard()] == ["@(local/bob)"]


def test_the_hubs_own_metadata_overrides_the_senders() -> None:
    _, alice, bob = pair()
    forged = {"forwarded": False, "via": "@(evil/hub)", "originalMessageId": "x", "mine": 1}

    alice.send("@(local/bob)", id="a1", metadata=forged)

    assert bob.heard()[0]["metadata"] == {
        "mine": 1,
        "forwarded": True,
        "via": HUB_ADDRESS,
        "originalMessageId": "a1",
    }


@pytest.mark.parametrize("metadata", [None, [], "text", 5, [{"via": 1}]])
def test_metadata_that_is_no_object_is_replaced(metadata: object) -> None:
    _, alice, bob = pair()

    alice.send("@(local/bob)", id="a1", metadata=metadata)

    assert bob.heard()[0]["metadata"] == {
        "forwarded": True,
        "via": HUB_ADDRESS,
        "originalMessageId": "a1",
    }


def test_metadata_with_a_number_out_of_range_is_passed_on_untouched() -> None:
    shell, alice, bob = pair()
    bob.stall()
    frame = envelope(
        "hub:send", {"to": "@(local/bob)", "type": "t"}, pattern="tell", metadata={"via": 1, "n": 7}
    ).replace(b'"n":7', b'"n":1e999')

    alice.write(frame)

    ((copy, _),) = bob.waiting
    assert b'"n":1e999' in copy
    assert json.loads(copy)["metadata"]["via"] == HUB_ADDRESS
    assert shell.tally.errors == {}


@pytest.mark.parametrize(("ttl", "seen"), [(None, None), (0, None), (5_000, 5_000), (1.5, 1.5)])
def test_a_ttl_of_zero_means_none(ttl: float | None, seen: float | None) -> None:
    _, alice, bob = pair()

    alice.send("@(local/bob)", ttl=ttl)

    assert bob.heard()[0]["ttl"] == seen


def test_messages_arrive_in_the_order_sent_tell_and_ask_mixed() -> None:
    _, alice, bob = pair()

    for number in range(100):
        alice.send("@(local/bob)", number, pattern="ask" if number % 3 else "tell")

    assert [one["payload"] for one in bob.heard()] == list(range(100))


def test_an_ask_is_acknowledged_after_its_copy_even_to_oneself() -> None:
    shell = MemoryShell()
    alice = shell.join("@(local/alice)")

    alice.send("@(local/alice)", "me", pattern="ask", id="a1")

    copy, ack = alice.take()
    assert copy["payload"] == "me"
    assert ack["type"] == "hub:delivery_ack"
    assert ack["correlationId"] == "a1"
    assert ack["payload"] == {
        "messageId": "a1",
        "deliveredAt": shell.now,
        "status": "delivered",
        "durability": "fsync",
    }


def test_an_ask_is_not_acknowledged_before_the_bytes_are_handed_over() -> None:
    shell, alice, bob = pair()
    bob.stall()

    before = alice.send("@(local/bob)", pattern="ask", id="a1")
    shell.clock.advance(2)
    bob.read_on()

    assert before == []
    (ack,) = alice.take()
    assert ack["payload"]["deliveredAt"] == shell.now
    assert shell.hub.pending == {}


def test_a_tell_is_never_answered() -> None:
    _, alice, bob = pair()

    assert alice.send("@(local/bob)") == []
    assert alice.send("@(no/body)") == []
    assert len(bob.heard()) == 1


def test_a_target_too_long_to_be_an_address_is_refused_without_repeating_it() -> None:
    _, alice, _ = pair()

    (reply,) = alice.send("@(" + "x" * 100_000 + ")", pattern="ask")

    assert code_of(reply) == "internal_error"
    assert len(json.dumps(reply)) < 1_000


@pytest.mark.parametrize(
    "target",
    ["@(no/body)", "not-a-valid-address", "runtime:fake/actor-999", HUB_ADDRESS, "x" * 256],
)
def test_an_ask_to_nobody_is_told_so(target: str) -> None:
    shell, alice, _ = pair()

    (reply,) = alice.send(target, pattern="ask")

    assert reply["type"] == "hub:unknown_actor"
    assert reply["payload"]["actorAddress"] == target
    assert "not registered" in reply["payload"]["message"]
    assert alice.closed is None
    assert shell.hub.pending == {}
    assert shell.tally.unknown_targets == 1


def test_a_target_that_leaves_before_the_bytes_do_is_unknown_and_worth_another_try() -> None:
    shell, alice, bob = pair()
    bob.stall()
    alice.send("@(local/bob)", pattern="ask", id="a1")

    bob.drop()

    (reply,) = alice.take()
    assert reply["type"] == "hub:unknown_actor"
    assert reply["correlationId"] == "a1"
    assert reply["payload"]["retryable"] is True
    assert shell.hub.pending == {}


def test_an_overflowing_target_refuses_the_ask_for_now() -> None:
    shell, alice, bob = pair()
    bob.stall()
    alice.send("@(local/bob)", pattern="ask", id="a1")
    (receipt,) = shell.hub.pending.values()
    assert isinstance(receipt, AskReceipt)
    bob.waiting.clear()

    shell.perform(shell.hub.overflowed(receipt, 10_000, shell.now))

    (reply,) = alice.take()
    assert code_of(reply) == "queue_full"
    assert reply["payload"]["retryable"] is True
    assert reply["payload"]["details"]["waiting"] == 10_000
    assert shell.hub.pending == {}


def test_an_asker_that_has_left_is_not_answered() -> None:
    shell, alice, bob = pair()
    bob.stall()
    alice.send("@(local/bob)", pattern="ask")
    alice.drop()
    seen = len(alice.received)

    bob.read_on()

    assert len(bob.heard()) == 1
    assert len(alice.received) == seen
    assert shell.hub.pending == {}


@pytest.mark.parametrize("pattern", ["ask", "tell"])
@pytest.mark.parametrize(
    "payload",
    [
        None,
        [],
        "text",
        {},
        {"to": "@(local/bob)"},
        {"to": "@(local/bob)", "type": ""},
        {"to": "@(local/bob)", "type": 5},
        {"to": "@(local/bob)", "type": "x" * 257},
        {"to": 5, "type": "t"},
        {"to": "@(local/bob)", "type": "hub:disconnect"},
        {"to": "@(local/bob)", "type": "hub:"},
    ],
)
def test_a_structural_error_is_answered_whatever_the_pattern(pattern: str, payload: object) -> None:
    _, alice, bob = pair()

    (reply,) = alice.request("hub:send", payload, pattern=pattern)

    assert code_of(reply) == "internal_error"
    assert bob.take() == []
