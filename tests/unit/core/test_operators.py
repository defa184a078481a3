"""Operators: sessions they see and end, tokens they deny, refused logins they read about."""

from __future__ import annotations

from typing import Any

import pytest

from signalhub.auth.denials import Denial, Denials
from signalhub.core import refusals
from signalhub.settings.model import Settings
from signalhub.wire.entry import Kind, OperatedBody, decode_body
from tests.support.memory.shell import HELLO, MemoryShell, Message, Peer
from tests.support.memory.tokens import admitted, guarded, token
from tests.support.memory.topics import code_of

OPERATOR = {"admin": ["sessions"]}


def listed(peer: Peer, **payload: Any) -> Message:
    reply = peer.ask("hub:list_sessions", payload)
    assert reply["type"] == "hub:session_list", reply
    page: Message = reply["payload"]
    return page


def close(peer: Peer, session_id: str) -> Message:
    return peer.ask("hub:close_session", {"sessionId": session_id})


def deny(shell: MemoryShell, *entries: Denial) -> None:
    shell.perform(shell.hub.deny(Denials(entries), shell.now))
    shell.settle()


def test_an_operator_sees_who_is_connected_and_what_they_hold() -> None:
    shell = guarded()
    operator = admitted(shell, "ops/olga", OPERATOR)
    alice = admitted(shell)
    alice.register()
    alice.ask("hub:subscribe", {"topic": "news"})
    shell.open()

    page = listed(operator)

    assert [row["identity"] for row in page["sessions"]] == [
        "@(ops/olga)",
        "@(local/alice)",
        None,
    ]
    assert (page["total"], page["next"]) == (3, None)
    row = page["sessions"][1]
    assert row["sessionId"] == alice.session.id
    assert row["subject"] == "@(local/alice)"
    assert (row["registrations"], row["subscriptions"], row["consumers"]) == (1, 1, 0)
    assert row["connectedAt"] == shell.now
    assert row["tokenExpiresAt"] > shell.now
    assert row["queuedBytes"] == 0


def test_pages_of_sessions_neither_skip_nor_repeat_while_sessions_end() -> None:
    shell = MemoryShell(Settings(message_rate=0))
    peers = [shell.connect(f"@(local/{n})") for n in range(10)]
    seen: list[str] = []
    after: int | None = 0

    while after is not None:
        page = listed(peers[9], after=after, limit=3)
        seen += [row["identity"] for row in page["sessions"]]
        peers[len(seen) - 2].drop()
        after = page["next"]

    assert seen == [f"@(local/{n})" for n in range(10)]
    one = listed(peers[9], pattern="@(local/9)")
    assert [row["identity"] for row in one["sessions"]] == ["@(local/9)"]


def test_a_closed_session_is_told_and_the_operation_is_on_record_first() -> None:
    shell = guarded()
    operator, alice = admitted(shell, "ops/olga", OPERATOR), admitted(shell)
    shell.engine.is_prompt = False
    assert operator.request("hub:close_session", {"sessionId": alice.session.id}) == []
    assert alice.closed is None

    shell.engine.is_prompt = True
    shell.settle()

    assert alice.closed == (1001, "closed_by_operator")
    assert alice.take()[-1]["payload"]["reason"] == "closed_by_operator"
    assert operator.take()[-1]["type"] == "hub:session_closed"
    (record,) = [one for one in shell.engine.entries if one.kind == Kind.OPERATED]
    assert decode_body(OperatedBody, record.body) == OperatedBody(
        "@(ops/olga)", "@(ops/olga)", "admin", "@(local/alice)", request="hub:close_session"
    )
    assert code_of(close(operator, alice.session.id)) == "unknown_session"
    # Nothing keeps operators from their own sessions.
    operator.request("hub:close_session", {"sessionId": operator.session.id})
    assert [one["type"] for one in operator.take()[-2:]] == ["hub:session_closed", "hub:disconnect"]
    assert operator.closed == (1001, "closed_by_operator")


def test_a_session_is_closed_although_the_log_is_full_and_the_output_says_so() -> None:
    shell = guarded()
    operator, alice = admitted(shell, "ops/olga", OPERATOR), admitted(shell)
    shell.engine.is_full = True

    reply = close(operator, alice.session.id)

    assert reply["payload"] == {
        "sessionId": alice.session.id,
        "identity": "@(local/alice)",
        "recorded": False,
    }
    assert alice.closed == (1001, "closed_by_operator")
    (note,) = shell.notes
    assert note.text == "an operator closed a session, which could not be recorded"
    assert note.facts == {
        "session": alice.session.id,
        "identity": "@(local/alice)",
        "by": "@(ops/olga)",
        "operator": "@(ops/olga)",
        "reason": "storage_full",
    }


def test_a_session_is_closed_although_the_log_has_failed() -> None:
    shell = guarded()
    operator, alice = admitted(shell, "ops/olga", OPERATOR), admitted(shell)
    shell.engine.refuse(refusals.storage_failed(), is_final=True)

    assert close(operator, alice.session.id)["payload"]["recorded"] is False
    assert alice.closed == (1001, "closed_by_operator")


def test_others_neither_see_nor_close_sessions() -> None:
    shell = guarded()
    alice = admitted(shell, permissions={"send": ["*"], "admin": ["view", "metrics"]})

    for reply in (alice.ask("hub:list_sessions"), close(alice, alice.session.id)):
        assert code_of(reply) == "unauthorized"
        assert reply["payload"]["details"] == {"action": "admin", "target": "sessions"}
    assert alice.closed is None


def test_without_authentication_everybody_may() -> None:
    shell = MemoryShell()
    one, other = shell.connect("@(local/one)"), shell.connect("@(local/other)")

    assert listed(one)["total"] == 2
    assert close(one, other.session.id)["type"] == "hub:session_closed"
    assert other.closed == (1001, "closed_by_operator")


def test_those_on_the_denial_list_are_ended_at_once_and_stay_out() -> None:
    shell = guarded()
    alice, bob = admitted(shell), admitted(shell, "local/bob")
    alice.register()

    deny(shell, Denial(sub="@(local/alice)", until=shell.now / 1000 + 60))

    assert alice.closed == (1008, "unauthorized")
    assert alice.take()[-1]["payload"] == {
        "reason": "unauthorized",
        "message": "The token has been revoked.",
    }
    assert bob.closed is None
    sent = bob.ask("hub:send", {"to": "@(local/alice)", "type": "note"})
    assert sent["type"] == "hub:unknown_actor"
    again = shell.open()
    hello = HELLO | {"authToken": token(shell)}
    assert code_of(again.hello("@(local/alice)", metadata=hello)) == "unauthorized"
    shell.pass_time(61)
    assert again.hello("@(local/alice)", metadata=hello)["type"] == "hub:connected"


def test_refused_logins_are_logged_with_their_source_and_not_without_end() -> None:
    shell = guarded()
    hub = shell.hub

    def attempt(source: str) -> None:
        session = shell.open().session
        session.source = source
        session.link.request(  # type: ignore[attr-defined]
            "hub:connect", metadata=HELLO | {"authToken": "a.b.c"}
        )

    for _ in range(100):
        attempt("192.0.2.1")
    attempt("192.0.2.2")

    lines = [(one.text, one.facts) for one in shell.notes]
    assert len(lines) == 6
    first = {"source": "192.0.2.1", "door": "hub:connect", "reason": "The token is not a JWT."}
    assert lines[0] == ("a login was refused", first)
    assert lines[5][1] == first | {"source": "192.0.2.2", "not_logged": 95}
    assert hub.tally.logins_refused == 101
    # Many sources share one allowance, and the rest is told once a minute.
    for number in range(2_000):
        attempt(f"2001:db8::{number:x}")
    assert len(shell.notes) == 50
    shell.pass_time(61)
    assert [(one.text, one.facts) for one in shell.notes[50:]] == [
        ("more logins were refused", {"not_logged": 1956})
    ]


@pytest.mark.parametrize("payload", [None, {}, {"sessionId": 7}, {"sessionId": None}, []])
def test_a_session_to_close_must_be_named(payload: object) -> None:
    shell = MemoryShell()

    assert code_of(shell.connect().ask("hub:close_session", payload)) == "internal_error"
