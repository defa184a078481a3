"""What the hub keeps about sessions is gone when they are, and a fault of its own ends none."""

from __future__ import annotations

from signalhub.settings.model import Settings
from tests.support.memory.shell import HELLO, MemoryShell, envelope
from tests.support.memory.tokens import admitted, guarded, token


def test_nothing_is_kept_of_sessions_that_left() -> None:
    shell = guarded()
    for _ in range(5):
        peer = admitted(shell)
        for _ in range(5):
            peer.hello("@(local/alice)", metadata=HELLO | {"authToken": token(shell)})
        peer.register("@(local/alice)")
        peer.ask("hub:subscribe", {"topic": "prices"})
        peer.drop()
        peer.drop()

    assert not shell.hub.sessions
    assert not shell.hub.sessions._token_ends_ms
    assert len(shell.hub.identities) == len(shell.hub.registry) == 0
    assert shell.hub.topics.audience("prices").recipients == []
    assert shell.rows == {}
    assert shell.tally.connections_opened == shell.tally.connections_closed == 5


def test_a_shared_name_is_kept_as_long_as_anybody_goes_by_it() -> None:
    shell = MemoryShell()
    first, second, third = (shell.connect("@(local/same)") for _ in range(3))

    second.drop()
    sharing = shell.hub.identities.get("@(local/same)")
    first.hello("@(local/other)")
    third.drop()

    assert sharing == [first.session, third.session]
    assert shell.hub.identities.get("@(local/same)") == []
    assert len(shell.hub.identities) == 1


def test_a_session_may_hear_only_a_number_of_topics_over_all_its_addresses() -> None:
    peer = MemoryShell(Settings(subscriptions_max=3)).join("@(local/a)")
    peer.register("@(local/b)")

    def subscribe(topic: str, name: str) -> str:
        reply = peer.ask("hub:subscribe", {"topic": topic}, sender=f"@(local/{name})")
        code: str = reply["payload"].get("code", "")
        return code

    for topic, name in (("1", "a"), ("1", "b"), ("2", "b")):
        assert subscribe(topic, name) == ""
    assert subscribe("3", "a") == "limit_exceeded"
    # A topic that is already heard can be subscribed again.
    assert subscribe("1", "a") == ""
    peer.tell("hub:unsubscribe", {"topic": "2"}, sender="@(local/b)")
    assert subscribe("3", "a") == ""


def test_a_fault_of_the_hub_itself_is_answered_and_keeps_the_socket() -> None:
    shell = MemoryShell()
    peer = shell.connect("@(local/a)")
    frame = envelope("hub:heartbeat", id="m-1", sender="@(local/a)")

    shell.perform(shell.hub.failed(peer.session, frame, shell.now))
    shell.perform(shell.hub.failed(peer.session, b"not even json", shell.now))

    first, second = peer.received[-2:]
    assert first["correlationId"] == "m-1"
    assert first["payload"]["code"] == second["payload"]["code"] == "internal_error"
    assert first["payload"]["retryable"] is second["payload"]["retryable"] is True
    assert peer.closed is None


def test_a_trace_that_cannot_be_read_is_left_out() -> None:
    peer = MemoryShell().connect()
    frame = envelope("hub:nonsense", metadata={"traceId": "t", "n": 7}).replace(b":7", b":1e999")

    peer.write(frame)

    assert peer.received[-1]["type"] == "hub:error"
    assert peer.received[-1]["metadata"] in ({}, {"traceId": "t"})
