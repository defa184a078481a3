"""Broadcast and publish: one message, a copy for each who should hear it."""

from __future__ import annotations

import pytest

from signalhub.core.effects import FanOut
from signalhub.settings.model import Settings
from signalhub.wire.names import HUB_ADDRESS
from tests.support.memory.shell import MemoryShell, envelope


def test_a_broadcast_copy_carries_the_senders_data_but_not_its_metadata() -> None:
    shell = MemoryShell()
    alice = shell.join("@(local/alice)")
    bob = shell.join("@(local/bob)")

    alice.tell(
        "hub:broadcast",
        {"type": "alarm", "data": {"level": 3}},
        id="b1",
        metadata={"traceId": "t"},
        ttl=5_000,
    )

    (copy,) = bob.take()
    assert copy.pop("id")
    assert copy == {
        "from": "@(local/alice)",
        "to": "@(local/bob)",
        "type": "alarm",
        "payload": {"level": 3},
        "pattern": "tell",
        "correlationId": "b1",
        "timestamp": shell.now,
        "metadata": {"broadcast": True, "via": HUB_ADDRESS},
        "ttl": 5_000,
        "signature": None,
    }


def test_a_broadcast_reaches_every_address_the_senders_own_included() -> None:
    shell = MemoryShell()
    alice = shell.join("@(local/alice)")
    alice.register("@(local/alias)")
    bob = shell.join("@(local/bob)")
    unregistered = shell.connect("@(local/stranger)")
    alice.take()
    unregistered.take()

    (ack,) = alice.tell("hub:broadcast", {"type": "t"}, id="b1")

    copies = alice.heard()
    assert [one["to"] for one in copies] == ["@(local/alice)", "@(local/alias)"]
    assert len(bob.heard()) == 1
    assert unregistered.take() == []
    assert ack["payload"] == {
        "messageId": "b1",
        "deliveredCount": 3,
        "queuedCount": 0,
        "failedCount": 0,
    }


def test_all_copies_share_one_id_and_the_ack_comes_last() -> None:
    shell = MemoryShell()
    alice = shell.join("@(local/alice)")
    bob = shell.join("@(local/bob)")

    alice.tell("hub:broadcast", {"type": "t"})

    own, ack = alice.take()
    assert own["id"] == bob.heard()[0]["id"]
    assert ack["type"] == "hub:broadcast_ack"


def test_exclude_self_leaves_out_only_the_sending_address() -> None:
    shell = MemoryShell()
    alice = shell.join("@(local/alice)")
    alice.register("@(local/alias)")

    ack = alice.ask("hub:broadcast", {"type": "t", "excludeSelf": True}, sender="@(local/alice)")

    assert [one["to"] for one in alice.heard()] == ["@(local/alias)"]
    assert ack["payload"]["deliveredCount"] == 1


@pytest.mark.parametrize(("capability", "count"), [("draw", 2), ("plan", 1), ("x", 0), ("", 3)])
def test_a_broadcast_may_aim_at_a_capability(capability: str, count: int) -> None:
    shell = MemoryShell()
    shell.join("@(a/1)", capabilities=["draw"])
    shell.join("@(a/2)", capabilities=["plan", "draw"])
    sender = shell.join("@(a/3)")

    ack = sender.ask(
        "hub:broadcast", {"type": "t"}, metadata={"targetCapability": capability, "other": 1}
    )

    assert ack["payload"]["deliveredCount"] == count


def test_a_large_broadcast_says_how_many_copies_wait_for_a_later_batch() -> None:
    shell = MemoryShell(Settings(message_rate=0))
    host = shell.connect("@(local/host)")
    for number in range(250):
        host.register(f"@(local/{number})")

    payload = host.ask("hub:broadcast", {"type": "t"})["payload"]

    assert (payload["deliveredCount"], payload["queuedCount"]) == (100, 150)
    assert len(host.heard()) == 250
    assert (shell.tally.broadcasts, shell.tally.broadcast_copies) == (1, 250)


def test_fan_outs_name_the_size_of_their_batches() -> None:
    shell = MemoryShell(Settings(broadcast_batch=7, fanout_batch=9))
    peer = shell.join("@(local/a)")

    batches = []
    for type in ("hub:broadcast", "hub:publish"):
        frame = envelope(type, {"type": "t", "topic": "t"})
        (effect,) = shell.hub.received(peer.session, frame, shell.now)
        assert isinstance(effect, FanOut)
        batches.append(effect.chunk)

    assert batches == [7, 9]


def test_copies_that_cannot_be_queued_are_counted_as_failed() -> None:
    shell = MemoryShell()
    alice = shell.join("@(local/alice)")
    bob = shell.join("@(local/bob)")
    # The socket has closed, but the hub has not heard of it yet.
    bob.closed = (1006, "")

    ack = alice.ask("hub:broadcast", {"type": "t"})

    assert ack["payload"]["deliveredCount"] == 1
    assert ack["payload"]["failedCount"] == 1
    assert shell.tally.broadcast_failed == 1


@pytest.mark.parametrize(
    ("payload", "metadata"),
    [
        (None, {}),
        ({}, {}),
        ({"type": ""}, {}),
        ({"type": "hub:disconnect"}, {}),
        ({"type": "t", "excludeSelf": "yes"}, {}),
        ({"type": "t"}, {"targetCapability": 5}),
    ],
)
def test_a_broadcast_that_does_not_fit_is_refused(payload: object, metadata: object) -> None:
    shell = MemoryShell()
    peer = shell.join("@(local/a)")

    (reply,) = peer.tell("hub:broadcast", payload, metadata=metadata)

    assert reply["payload"]["code"] == "internal_error"
    assert shell.tally.broadcasts == 0


def test_a_publication_says_its_topic_and_comes_to_the_subscribing_address() -> None:
    shell = MemoryShell()
    alice = shell.join("@(local/alice)")
    bob = shell.join("@(local/bob)")
    bob.ask("hub:subscribe", {"topic": 'prices/"eu"'})
    bob.take()

    (reply,) = alice.tell(
        "hub:publish",
        {"topic": 'prices/"eu"', "type": "price:new", "data": {"v": 12}},
        id="p1",
        metadata={"mine": 1},
    )

    (copy,) = bob.take()
    assert copy.pop("id")
    assert copy == {
        "from": "@(local/alice)",
        "to": "@(local/bob)",
        "type": "price:new",
        "payload": {"v": 12},
        "pattern": "tell",
        "correlationId": "p1",
        "timestamp": shell.now,
        "metadata": {"topic": 'prices/"eu"', "publication": True, "via": HUB_ADDRESS},
        "ttl": None,
        "signature": None,
    }
    assert reply["payload"] == {"topic": 'prices/"eu"', "subscriberCount": 1}
    assert shell.tally.published == 1


def test_a_publisher_hears_itself_before_it_is_answered() -> None:
    shell = MemoryShell()
    alice = shell.join("@(local/alice)")
    alice.ask("hub:subscribe", {"topic": "t"})
    alice.take()

    alice.tell("hub:publish", {"topic": "t", "type": "news"})

    assert [one["type"] for one in alice.take()] == ["news", "hub:published"]


def test_only_who_subscribes_now_hears_a_publication() -> None:
    shell = MemoryShell()
    early, late = shell.join("@(local/early)"), shell.join("@(local/late)")
    publisher = shell.connect("@(local/publisher)")
    early.ask("hub:subscribe", {"topic": "t"})
    publisher.tell("hub:publish", {"topic": "t", "type": "one"})
    late.ask("hub:subscribe", {"topic": "t"})
    early.tell("hub:unsubscribe", {"topic": "t"})

    publisher.tell("hub:publish", {"topic": "t", "type": "two"})

    assert [one["type"] for one in early.heard()] == ["one"]
    assert [one["type"] for one in late.heard()] == ["two"]


@pytest.mark.parametrize(
    "payload",
    [
        None,
        {"type": "t"},
        {"topic": "", "type": "t"},
        {"topic": "x" * 257, "type": "t"},
        {"topic": "a/+", "type": "t"},
        {"topic": "a/#", "type": "t"},
        {"topic": "#", "type": "t"},
        {"topic": "a"},
        {"topic": "a", "type": "hub:x"},
    ],
)
def test_a_publication_that_does_not_fit_is_refused(payload: object) -> None:
    shell = MemoryShell()

    (reply,) = shell.connect().tell("hub:publish", payload)

    assert reply["payload"]["code"] == "internal_error"
    assert shell.tally.published == 0


def test_a_plus_or_a_hash_inside_a_level_is_an_ordinary_character() -> None:
    shell = MemoryShell()
    peer = shell.join("@(local/a)")
    peer.ask("hub:subscribe", {"topic": "c++/c#"})

    published = peer.ask("hub:publish", {"topic": "c++/c#", "type": "t"})

    assert published["payload"]["subscriberCount"] == 1
