"""Tokens in a session's life: at the hello, at every message, at the end."""

from __future__ import annotations

import pytest

from tests.support.memory.shell import MemoryShell
from tests.support.memory.tokens import ALL, admitted, guarded, hello, token


def test_the_identity_is_the_tokens_not_the_senders() -> None:
    shell = guarded()
    peer = shell.open()

    welcome = hello(peer, "Bearer " + token(shell))

    assert welcome["metadata"] == {
        "actorIdentity": "@(local/alice)",
        "tokenExpiresAt": shell.now + 600_000,
    }
    assert peer.session.identity == "@(local/alice)"


@pytest.mark.parametrize("given", [None, "", "garbage", "a.b.c", 5, ["x"]])
def test_without_a_good_token_nobody_gets_in_but_may_try_again(given: object) -> None:
    shell = guarded()
    peer = shell.open()

    refused = hello(peer, given)
    early = peer.ask("hub:heartbeat")
    welcome = hello(peer, token(shell))

    assert refused["payload"]["code"] == early["payload"]["code"] == "unauthorized"
    assert peer.closed is None
    assert welcome["type"] == "hub:connected"


def test_a_later_bad_token_does_not_revoke_the_first() -> None:
    shell = guarded()
    peer = admitted(shell)

    refused = hello(peer, "garbage")

    assert refused["payload"]["code"] == "unauthorized"
    assert peer.ask("hub:heartbeat")["type"] == "hub:heartbeat_ack"
    assert peer.session.identity == "@(local/alice)"


def test_with_authentication_off_any_token_will_do() -> None:
    peer = MemoryShell().open()

    assert hello(peer, "garbage")["type"] == "hub:connected"


@pytest.mark.parametrize(
    ("type", "payload"),
    [
        ("hub:send", {"to": "@(local/alice)", "type": "t"}),
        ("hub:publish", {"topic": "t", "type": "t"}),
        ("hub:broadcast", {"type": "t"}),
        ("hub:subscribe", {"topic": "t"}),
    ],
)
def test_nobody_may_speak_for_somebody_else(type: str, payload: object) -> None:
    shell = guarded()
    peer = admitted(shell, permissions=ALL | {"register": ["mine/*"]})
    peer.register("@(mine/registered)")

    refused = peer.ask(type, payload, sender="@(local/bob)")
    as_itself = peer.ask(type, payload, sender="@(local/alice)")
    as_registered = peer.ask(type, payload, sender="@(mine/registered)")
    as_permitted = peer.ask(type, payload, sender="@(mine/other)")

    assert refused["payload"]["code"] == "unauthorized"
    for reply in (as_itself, as_registered, as_permitted):
        assert reply["payload"].get("code") != "unauthorized"


def test_requests_to_the_hub_itself_may_come_from_any_address() -> None:
    shell = guarded()
    peer = admitted(shell)

    assert peer.ask("hub:heartbeat", sender="@(local/client)")["type"] == "hub:heartbeat_ack"
    assert peer.ask("hub:discover", {"pattern": "*"}, sender="@(x/y)")["type"] == "hub:discovered"


@pytest.mark.parametrize(
    ("verb", "type", "payload"),
    [
        ("send", "hub:send", {"to": "@(local/bob)", "type": "t"}),
        ("publish", "hub:publish", {"topic": "t", "type": "t"}),
        ("broadcast", "hub:broadcast", {"type": "t"}),
        ("subscribe", "hub:subscribe", {"topic": "t"}),
        ("register", "hub:register", {"actorAddress": "@(x/y)", "capabilities": []}),
    ],
)
def test_what_the_token_does_not_permit_is_refused(verb: str, type: str, payload: object) -> None:
    shell = guarded()
    permissions = {name: globs for name, globs in ALL.items() if name != verb}
    peer = admitted(shell, permissions=permissions)

    reply = peer.ask(type, payload)

    assert reply["payload"]["code"] == "unauthorized"
    assert reply["payload"]["details"]["action"] == verb


def test_a_repeat_is_refused_once_its_permission_is_gone() -> None:
    shell = guarded()
    peer = admitted(shell)
    peer.register()
    peer.send("@(local/alice)", pattern="ask", id="a1")

    hello(peer, token(shell, permissions=ALL | {"send": []}))
    peer.address = "@(local/alice)"
    (again,) = peer.send("@(local/alice)", pattern="ask", id="a1")

    assert again["payload"]["code"] == "unauthorized"


@pytest.mark.parametrize("is_ed", [True, False])
def test_a_session_ends_with_its_token(is_ed: bool) -> None:
    shell = guarded()
    peer = admitted(shell, is_ed=is_ed, lifetime_s=60)
    peer.register()
    peer.take()

    shell.pass_time(59)
    before = peer.closed
    shell.pass_time(1)

    (notice,) = peer.take()
    assert before is None
    assert notice["type"] == "hub:disconnect"
    assert notice["payload"]["reason"] == "unauthorized"
    assert peer.closed == (1008, "unauthorized")
    assert shell.rows == {}


def test_a_refreshed_session_lives_on_until_the_new_token_ends() -> None:
    shell = guarded()
    first = token(shell, lifetime_s=60)
    peer = shell.open()
    hello(peer, first)
    shell.pass_time(30)

    refreshed = peer.ask("hub:refresh_token", {"token": first})
    shell.pass_time(3_599)
    before = peer.closed
    shell.pass_time(2)

    assert refreshed["type"] == "hub:token_refreshed"
    payload = refreshed["payload"]
    assert payload["token"] != first
    assert payload["expiresAt"] == payload["tokenExpiresAt"]
    assert before is None
    assert peer.closed == (1008, "unauthorized")


@pytest.mark.parametrize("fraction_ms", [0.0, 0.2, 0.5, 0.9])
def test_a_session_ends_whatever_fraction_of_a_millisecond_its_token_has(
    fraction_ms: float,
) -> None:
    shell = guarded()
    peer = admitted(shell, is_ed=True, lifetime_s=60 + fraction_ms / 1000)
    confirmed = token(shell, is_ed=True, lifetime_s=90 + fraction_ms / 1000)
    assert peer.ask("hub:refresh_token", {"token": confirmed})["payload"]["token"] == confirmed

    shell.pass_time(89)
    before = peer.closed
    shell.pass_time(2)

    assert before is None
    assert peer.closed == (1008, "unauthorized")


def test_the_token_may_be_refreshed_from_the_metadata_too() -> None:
    shell = guarded()
    peer = admitted(shell)

    reply = peer.ask("hub:refresh_token", metadata={"authToken": token(shell)})

    assert reply["type"] == "hub:token_refreshed"


@pytest.mark.parametrize(
    "payload", [None, {}, {"token": ""}, {"token": None}, {"token": "garbage"}]
)
def test_a_refresh_without_a_good_token_is_refused_and_ends_nothing(payload: object) -> None:
    peer = admitted(guarded())

    reply = peer.ask("hub:refresh_token", payload)

    assert reply["payload"]["code"] == "invalid_token"
    assert peer.closed is None


def test_a_token_of_another_actor_refreshes_nothing() -> None:
    shell = guarded()
    peer = admitted(shell)

    reply = peer.ask("hub:refresh_token", {"token": token(shell, "local/bob")})

    assert reply["payload"]["code"] == "invalid_token"


def test_a_refresh_brings_the_permissions_of_the_new_token() -> None:
    shell = guarded()
    peer = admitted(shell, permissions={})
    refused = peer.ask("hub:subscribe", {"topic": "t"})

    peer.ask("hub:refresh_token", {"token": token(shell)})
    accepted = peer.ask("hub:subscribe", {"topic": "t"})

    assert refused["payload"]["code"] == "unauthorized"
    assert accepted["type"] == "hub:subscribed"


def test_nothing_is_kept_of_sessions_that_left_before_their_token_ended() -> None:
    shell = guarded()
    for _ in range(5):
        peer = admitted(shell)
        for _ in range(5):
            hello(peer, token(shell))
        peer.drop()

    assert not shell.hub.sessions._token_ends_ms
    assert not shell.hub.sessions


def test_without_authentication_the_hub_hands_out_a_session_token_that_can_be_refreshed() -> None:
    shell = MemoryShell()
    peer, other = shell.open(), shell.open()
    first = peer.hello("@(local/a)")["metadata"]["sessionToken"]
    foreign = other.hello("@(local/b)")["metadata"]["sessionToken"]
    shell.clock.advance(60)

    refreshed = peer.ask("hub:refresh_token", {"token": first})
    stolen = peer.ask("hub:refresh_token", {"token": foreign})
    shell.clock.advance(3_541)
    too_late = peer.ask("hub:refresh_token", {"token": first})

    assert refreshed["payload"]["token"] not in ("", first)
    assert refreshed["payload"]["expiresAt"] == shell.now - 3_541_000 + 3_600_000
    assert stolen["payload"]["code"] == too_late["payload"]["code"] == "invalid_token"
    assert peer.closed is None
