"""What an error looks like: five members, the request's own id, its trace."""

from __future__ import annotations

from typing import Any

import pytest

from signalhub.wire.errors import Code
from tests.support.memory.shell import MemoryShell, envelope

MEMBERS = {"code", "message", "resolution", "details", "retryable"}

BAD_REQUESTS: list[tuple[str, object]] = [
    ("hub:nonsense", None),
    ("hub:connect", None),
    ("hub:register", None),
    ("hub:renew", None),
    ("hub:discover", None),
    ("hub:send", None),
    ("hub:broadcast", None),
    ("hub:publish", None),
    ("hub:subscribe", None),
    ("hub:unsubscribe", None),
    ("hub:unregister", 5),
    ("hub:list_actors", []),
    ("hub:refresh_token", None),
]


@pytest.mark.parametrize(("type", "payload"), BAD_REQUESTS)
@pytest.mark.parametrize("pattern", ["ask", "tell"])
def test_every_error_carries_the_five_members(type: str, payload: object, pattern: str) -> None:
    peer = MemoryShell().connect("@(local/a)")

    (reply,) = peer.request(type, payload, pattern=pattern, id="m-1", sender="@(local/b)")

    error = reply["payload"]
    assert reply["type"] == "hub:error"
    assert (reply["to"], reply["correlationId"]) == ("@(local/b)", "m-1")
    assert error.keys() == MEMBERS
    assert error["code"] in set(Code)
    assert error["message"]
    assert error["resolution"]
    assert isinstance(error["details"], dict)
    assert isinstance(error["retryable"], bool)
    assert peer.closed is None


def test_an_unknown_actor_carries_the_members_of_an_error_too() -> None:
    peer = MemoryShell().connect()

    (reply,) = peer.send("@(no/body)", pattern="ask")

    assert reply["payload"].keys() == MEMBERS | {"actorAddress"}
    assert reply["payload"]["code"] == "unknown_actor"


@pytest.mark.parametrize(
    ("metadata", "kept"),
    [
        ({"traceId": "t-1", "spanId": "s-1", "other": 1}, {"traceId": "t-1", "spanId": "s-1"}),
        ({"traceId": "t-1"}, {"traceId": "t-1"}),
        ({"spanId": '"quoted"'}, {"spanId": '"quoted"'}),
        ({"traceId": 5, "spanId": None}, {}),
        ({"other": "traceId"}, {}),
        ({"nested": {"traceId": "t"}}, {}),
        (["traceId"], {}),
        (None, {}),
    ],
)
@pytest.mark.parametrize(
    ("type", "payload"),
    [("hub:nonsense", None), ("hub:send", {"to": "@(no/body)", "type": "t"})],
)
def test_errors_carry_the_trace_of_the_request(
    type: str, payload: object, metadata: Any, kept: object
) -> None:
    peer = MemoryShell().connect()

    reply = peer.ask(type, payload, metadata=metadata)

    assert reply["metadata"] == kept


def test_a_trace_that_cannot_be_read_is_left_out() -> None:
    peer = MemoryShell().connect()
    frame = envelope("hub:nonsense", metadata={"traceId": "t", "n": 7}).replace(b":7", b":1e999")

    peer.write(frame)

    assert peer.received[-1]["type"] == "hub:error"
    assert peer.received[-1]["metadata"] in ({}, {"traceId": "t"})


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
