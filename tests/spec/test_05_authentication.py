"""Sections 5 and 6.16, ruling 11: tokens, identity and permissions."""

from __future__ import annotations

from typing import Any

import jwt
import pytest

from signalhub.testing import FakeClock
from tests.support.peer import Peer, code_of
from tests.support.socket.tokens import EVERYTHING, SECRET, key_pair, odd_token, token_for
from tests.support.stage import Stage, addresses

NOTHING: dict[str, list[str]] = {}
NOW_S = FakeClock().now_ms() // 1000
ME = "@(local/me)"


async def enter(stage: Stage, actor: str = ME, **options: Any) -> Peer:
    """A session of `actor`, by a token with the given options."""
    return await stage.connect(actor, authToken=token_for(actor, stage.clock, **options))


async def admit(stage: Stage, actor: str) -> Peer:
    """The same, registered under its name."""
    peer = await enter(stage, actor)
    await peer.register(actor)
    return peer


@pytest.mark.also_over_sockets
@pytest.mark.parametrize("kid", [None, "shared", "signed"], ids=["HS256", "HS256 kid", "EdDSA kid"])
async def test_5_good_token_connects_as_its_actor(guarded: Stage, kid: str | None) -> None:
    token = token_for("@(browser/ui-7)", guarded.clock, kid=kid, lifetime_s=600)

    for prefix in ("", "Bearer ", "bearer ", "BEARER   "):
        peer = await guarded.dial()
        reply = await peer.connect(authToken=prefix + token)
        assert reply["type"] == "hub:connected"
        assert reply["metadata"] == {
            "actorIdentity": "@(browser/ui-7)",
            "tokenExpiresAt": guarded.clock.now_ms() + 600_000,
        }
    for claims in ({}, {"exp": 99_999_999_999}, {"nbf": 1}, {"jti": "x"}):
        peer = await guarded.dial()
        reply = await peer.connect(authToken=odd_token(guarded.clock, **claims))
        assert reply["type"] == "hub:connected", claims


@pytest.mark.parametrize(
    "claims",
    [
        *({"iss": value} for value in (..., "somebody-else", "")),
        *({"sub": value} for value in (..., "", 7)),
        *({"actorId": value} for value in (..., "", 7)),
        *({"iat": value} for value in (..., "yesterday", NOW_S + 60)),
        {"iat": NOW_S - 86_401, "exp": NOW_S * 1000},
        *({"exp": value} for value in (NOW_S, "tomorrow")),
        {"nbf": NOW_S + 1},
        {"capabilities": "send"},
        # As the suite of the ecosystem makes them.
        {"iss": ..., "actorId": ..., "sub": "@(local/a)", "exp": NOW_S + 60},
    ],
    ids=str,
)
async def test_5_token_with_bad_claims_is_refused_without_repeating_it(
    guarded: Stage, claims: dict[str, Any]
) -> None:
    peer = await guarded.dial()
    token = odd_token(guarded.clock, **claims)

    reply = await peer.connect(authToken=token)

    assert code_of(reply) == "unauthorized"
    assert token.split(".")[2] not in str(reply)
    assert (await peer.connect(authToken=odd_token(guarded.clock)))["type"] == "hub:connected"


async def test_5_without_a_good_token_nothing_is_served_and_the_socket_stays(
    guarded: Stage,
) -> None:
    peer = await guarded.dial()

    for token in (None, "", "   ", "bearer ", "garbage", "a.b.c", 7, ["x"], "x" * 9000):
        assert code_of(await peer.connect(authToken=token)) == "unauthorized"
        for type in ("hub:disconnect", "hub:heartbeat", "hub:discover", "hub:nonsense"):
            assert code_of(await peer.ask(type, {"pattern": "*"})) == "unauthorized"

    assert (await peer.connect(authToken=odd_token(guarded.clock)))["type"] == "hub:connected"


async def test_5_token_cannot_choose_how_it_is_checked(guarded: Stage) -> None:
    body = {"iss": "signal-hub", "sub": "u", "actorId": "local/a", "iat": NOW_S}
    other = key_pair()
    forged = [
        odd_token(guarded.clock, "HS512"),
        jwt.encode(body, "", algorithm="none"),
        jwt.encode(body, "the wrong secret, as long as a right one", algorithm="HS256"),
        *(
            jwt.encode(body, SECRET, algorithm="HS256", headers={"kid": kid})
            for kid in ("signed", "shared", "unknown")
        ),
        jwt.encode(body, other.private, algorithm="EdDSA", headers={"kid": "signed"}),
        jwt.encode(body, other.private, algorithm="EdDSA"),
    ]

    for token in forged:
        peer = await guarded.dial()
        assert code_of(await peer.connect(authToken=token)) == "unauthorized"


async def test_5_version_is_checked_before_the_token_and_capabilities_after_it(
    guarded: Stage,
) -> None:
    peer = await guarded.dial()
    good = token_for("@(local/a)", guarded.clock)

    assert code_of(await peer.connect(protocolVersion="1.0.0")) == "version_mismatch"
    refused = await peer.connect(authToken="garbage", capabilities=[])
    assert "token" in refused["payload"]["message"].lower()
    refused = await peer.connect(authToken=good, capabilities=[])
    assert "capabilities" in refused["payload"]["message"]


@pytest.mark.parametrize(
    "token",
    ["garbage", "a.b.c", "", None, 7, odd_token(FakeClock(0), exp=1)],
    ids=["garbage", "dots", "empty", "null", "number", "expired"],
)
async def test_5_any_token_connects_with_authentication_off(stage: Stage, token: object) -> None:
    peer = await stage.dial()

    reply = await peer.connect(authToken=token)

    assert reply["type"] == "hub:connected"
    assert reply["metadata"]["actorIdentity"] == peer.sender


# What each verb permits, and what it does not.
VERBS: list[tuple[str, str, str, dict[str, Any], dict[str, Any]]] = [
    (
        *("send", "local/*", "hub:send"),
        {"to": "@(local/other)", "type": "note"},
        {"to": "@(browser/other)", "type": "note"},
    ),
    (
        *("broadcast", "chart*", "hub:broadcast"),
        {"type": "note", "capability": "charts"},
        {"type": "note", "capability": "plans"},
    ),
    (
        *("publish", "news/eu/*", "hub:publish"),
        {"topic": "news/eu/prices", "type": "note"},
        {"topic": "news/us/prices", "type": "note"},
    ),
    (
        *("subscribe", "news/eu/*", "hub:subscribe"),
        {"topic": "news/eu/+"},
        {"topic": "news/#"},
    ),
    (
        *("register", "@(local/worker-*)", "hub:register"),
        {"actorAddress": "@(local/worker-7)", "capabilities": []},
        {"actorAddress": "@(local/boss)", "capabilities": []},
    ),
]


def aimed(payload: dict[str, Any]) -> dict[str, Any]:
    """Where a broadcast says whom it is for."""
    return {"metadata": {"targetCapability": payload.get("capability")}}


@pytest.mark.also_over_sockets
@pytest.mark.parametrize(
    ("verb", "pattern", "type", "allowed", "denied"), VERBS, ids=[row[0] for row in VERBS]
)
async def test_5_verb_is_permitted_by_its_patterns_and_by_nothing_else(
    guarded: Stage,
    verb: str,
    pattern: str,
    type: str,
    allowed: dict[str, Any],
    denied: dict[str, Any],
) -> None:
    other = await admit(guarded, "@(local/other)")
    await other.ask("hub:subscribe", {"topic": "news/eu/prices"})
    others = {name: ["*"] for name in EVERYTHING if name != verb}
    without = await enter(guarded, "@(local/without)", permissions=others)
    with_all = await enter(guarded, "@(local/with)", permissions={verb: ["*"]})
    with_some = await enter(guarded, permissions={verb: [pattern]})

    for how in ("tell", "ask"):
        reply = await without.ask(type, allowed, **aimed(allowed), pattern=how)
        assert code_of(reply) == "unauthorized"
        assert reply["payload"]["details"]["action"] == verb
        assert reply["payload"]["retryable"] is False
    assert code_of(await with_some.ask(type, denied, **aimed(denied))) == "unauthorized"
    await other.nothing_more()
    for peer in (with_all, with_some):
        assert (await peer.ask(type, allowed, **aimed(allowed)))["type"] != "hub:error"


async def test_5_own_identity_may_always_be_registered_and_a_broadcast_to_all_needs_the_star(
    guarded: Stage,
) -> None:
    peer = await enter(guarded, permissions={"broadcast": ["chart*"]})

    assert (await peer.register(ME))["type"] == "hub:registered"
    assert await addresses(peer) == [ME]
    assert code_of(await peer.ask("hub:broadcast", {"type": "note"})) == "unauthorized"


async def test_5_repeat_is_refused_once_its_permission_is_gone(guarded: Stage) -> None:
    peer = await admit(guarded, ME)
    assert (await peer.ask_actor(ME, "note", id="a1"))["type"] == "hub:delivery_ack"

    await peer.connect(authToken=token_for(ME, guarded.clock, permissions=NOTHING))

    assert code_of(await peer.ask_actor(ME, "note", id="a1")) == "unauthorized"


# One payload that fits all four types whose sender matters.
SPOKEN = {"to": ME, "topic": "news", "type": "x"}


@pytest.mark.also_over_sockets
@pytest.mark.parametrize("type", ["hub:send", "hub:publish", "hub:broadcast", "hub:subscribe"])
async def test_r11_session_speaks_as_itself_as_its_addresses_and_as_what_it_may_register(
    guarded: Stage, type: str
) -> None:
    peer = await enter(guarded, permissions=EVERYTHING | {"register": ["local/worker-*"]})
    await peer.register("@(local/worker-1)")
    await peer.register(ME)

    for pattern in ("tell", "ask"):
        reply = await peer.ask(type, SPOKEN, sender="@(local/somebody)", pattern=pattern)
        assert code_of(reply) == "unauthorized"
        await peer.nothing_more()
    for sender in (ME, "@(local/worker-1)", "@(local/worker-2)"):
        assert (await peer.ask(type, SPOKEN, sender=sender))["type"] != "hub:error"


async def test_r11_control_messages_ignore_the_sender(guarded: Stage) -> None:
    peer = await admit(guarded, ME)

    for type, payload in (
        ("hub:heartbeat", None),
        ("hub:discover", {"pattern": "*"}),
        ("hub:list_actors", {}),
        ("hub:queue_stats", None),
        ("hub:metrics", None),
        ("hub:unsubscribe", {"topic": "news"}),
        ("hub:disconnect", None),
    ):
        reply = await peer.ask(type, payload, sender="@(local/signal-hub-client)")
        assert reply["type"] != "hub:error", reply
    assert await peer.until_closed() == 1000


@pytest.mark.also_over_sockets
async def test_5_session_ends_with_its_token(guarded: Stage, clock: FakeClock) -> None:
    sooner = await enter(guarded, "@(local/sooner)", lifetime_s=59)
    ending = [
        await enter(guarded, f"@(local/{number})", kid=kid, lifetime_s=60 + fraction_ms / 1000)
        for number, (kid, fraction_ms) in enumerate(
            [(None, 0.0), (None, 0.2), ("signed", 0.0), ("signed", 0.9)]
        )
    ]
    await ending[0].register("@(local/0)")
    extended = await enter(guarded, lifetime_s=60)
    await extended.connect(authToken=token_for(ME, clock, lifetime_s=600))

    clock.advance(59)
    assert await sooner.until_closed() == 1008
    for peer in ending:
        await peer.nothing_more()
    clock.advance(2)

    for peer in ending:
        notice = await peer.receive("hub:disconnect")
        assert notice["payload"]["reason"] == "unauthorized"
        assert notice["correlationId"] is None
        assert await peer.until_closed() == 1008
    assert await addresses(extended) == []


@pytest.mark.parametrize("how", ["hub:connect", "hub:refresh_token"])
async def test_r11_rights_end_with_the_token_that_gave_them(guarded: Stage, how: str) -> None:
    rights = {"subscribe": ["secret/x"], "register": ["local/*"], "publish": ["*"]}
    peer = await enter(guarded, permissions=rights)
    await peer.register("@(local/worker)")
    await peer.ask("hub:subscribe", {"topic": "secret/x"}, sender=ME)
    await peer.ask("hub:subscribe", {"topic": "secret/x"}, sender="@(local/worker)")
    publisher = await enter(guarded, "@(local/b)")

    less = token_for(ME, guarded.clock, permissions={"publish": ["*"]})
    if how == "hub:connect":
        await peer.connect(authToken=less)
    else:
        await peer.ask(how, {"token": less})
    told = await publisher.ask("hub:publish", {"topic": "secret/x", "type": "x", "data": 1})

    assert told["payload"]["subscriberCount"] == 0
    assert await addresses(publisher, "local/worker") == []
    refused = await peer.ask("hub:publish", SPOKEN, sender="@(local/worker)")
    assert code_of(refused) == "unauthorized"
    assert (await peer.ask("hub:publish", SPOKEN, sender=ME))["type"] == "hub:published"
    await peer.nothing_more()


@pytest.mark.parametrize("kid", [None, "shared", "signed"])
@pytest.mark.parametrize("place", ["payload", "metadata"])
async def test_6_16_refreshed_session_goes_on_until_the_new_token_ends(
    guarded: Stage, clock: FakeClock, kid: str | None, place: str
) -> None:
    first = token_for(ME, clock, kid=kid, lifetime_s=60)
    later = token_for(ME, clock, kid=kid, lifetime_s=600, permissions={"publish": ["news"]})
    peer = await guarded.connect(ME, authToken=first)
    members: dict[str, Any] = {"metadata": {"authToken": later}} if place == "metadata" else {}
    payload = None if place == "metadata" else {"token": f"Bearer {later}"}

    clock.advance(30)
    reply = await peer.ask("hub:refresh_token", payload, **members)

    assert reply["type"] == "hub:token_refreshed"
    # Only a shared secret lets the hub sign a longer one; the other is confirmed.
    is_signed_anew = kid != "signed"
    ends_ms = clock.now_ms() + (3_600_000 if is_signed_anew else 570_000)
    facts = reply["payload"]
    assert facts["expiresAt"] == facts["tokenExpiresAt"] == ends_ms
    assert (facts["token"] != later) is is_signed_anew
    # It brings the permissions of the new token.
    for topic, type in (("news", "hub:published"), ("other", "hub:error")):
        assert (await peer.ask("hub:publish", {"topic": topic, "type": "x"}))["type"] == type
    left_s = (ends_ms - clock.now_ms()) / 1000
    sooner = await enter(guarded, "@(local/sooner)", lifetime_s=left_s - 1)
    clock.advance(left_s - 1)
    assert await sooner.until_closed() == 1008
    await peer.nothing_more()
    again = await guarded.dial()
    connected = await again.connect(authToken=facts["token"])
    assert connected["metadata"]["actorIdentity"] == ME
    clock.advance(2)
    assert await peer.until_closed() == 1008


async def test_6_16_bad_token_or_that_of_another_refreshes_and_ends_nothing(guarded: Stage) -> None:
    peer = await admit(guarded, ME)
    tokens = [None, "", "garbage", "a.b.c", "stkn-abc", token_for("@(local/b)", guarded.clock)]

    for payload in (None, {}, *({"token": token} for token in tokens)):
        assert code_of(await peer.ask("hub:refresh_token", payload)) == "invalid_token"

    assert (await peer.register(ME))["type"] == "hub:registered"


@pytest.mark.also_over_sockets
async def test_6_16_without_authentication_the_hubs_own_token_is_exchanged(
    timed: Stage, clock: FakeClock
) -> None:
    peer, other = await timed.dial(), await timed.connect()
    token = (await peer.connect())["metadata"]["sessionToken"]
    clock.advance(60)

    reply = await peer.ask("hub:refresh_token", {"token": token})
    stolen = await other.ask("hub:refresh_token", {"token": token})
    payload = reply["payload"]
    again = await peer.ask("hub:refresh_token", {"token": payload["token"]})
    clock.advance(3_540)
    too_late = await peer.ask("hub:refresh_token", {"token": token})

    assert reply["type"] == again["type"] == "hub:token_refreshed"
    assert payload["token"] != token
    assert payload["expiresAt"] == payload["tokenExpiresAt"] == clock.now_ms() + 60_000
    assert code_of(stolen) == code_of(too_late) == "invalid_token"
    for bad in (None, {}, {"token": None}, {"token": ""}, {"token": "x"}, {"token": "stkn-"}):
        assert code_of(await peer.ask("hub:refresh_token", bad)) == "invalid_token"
    await peer.nothing_more()
