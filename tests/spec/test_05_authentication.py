"""Section 5: tokens, identity and permissions with authentication on; none with it off."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import jwt
import pytest

from signalhub.testing import FakeClock
from tests.support.socket.peer import Peer
from tests.support.socket.stage import InProcess, addresses, code_of, run_stage
from tests.support.socket.tokens import AUTH, SECRET, key_pair, odd_token, token_for


@pytest.fixture
def stage(socket_stage: InProcess) -> InProcess:
    return socket_stage


NOTHING: dict[str, list[str]] = {}


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
async def guarded(clock: FakeClock) -> AsyncIterator[InProcess]:
    """A hub that asks for tokens."""
    async with run_stage(clock, auth=AUTH) as stage:
        yield stage


async def enter(stage: InProcess, actor: str, **options: Any) -> Peer:
    """A session of `actor`, by a token with the given options."""
    return await stage.connect(actor, authToken=token_for(actor, stage.clock, **options))


@pytest.mark.parametrize("kid", [None, "shared", "signed"], ids=["HS256", "HS256 kid", "EdDSA kid"])
async def test_5_good_token_connects_as_its_actor(guarded: InProcess, kid: str | None) -> None:
    peer = await guarded.dial()
    token = token_for("@(browser/ui-7)", guarded.clock, kid=kid, lifetime_s=600)

    reply = await peer.connect(authToken=token)

    assert reply["type"] == "hub:connected"
    assert reply["metadata"]["actorIdentity"] == "@(browser/ui-7)"
    assert reply["metadata"]["tokenExpiresAt"] == guarded.clock.now_ms() + 600_000


@pytest.mark.parametrize("prefix", ["Bearer ", "bearer ", "BEARER   "])
async def test_5_bearer_prefix_is_stripped(guarded: InProcess, prefix: str) -> None:
    peer = await guarded.dial()

    reply = await peer.connect(authToken=prefix + token_for("@(local/a)", guarded.clock))

    assert reply["type"] == "hub:connected"


@pytest.mark.parametrize(
    "claims",
    [
        {"iss": ...},
        {"iss": "somebody-else"},
        {"iss": ""},
        {"sub": ...},
        {"sub": ""},
        {"sub": 7},
        {"actorId": ...},
        {"actorId": ""},
        {"actorId": 7},
        {"iat": ...},
        {"iat": "yesterday"},
        {"iat": FakeClock().now_ms() // 1000 - 86_401, "exp": FakeClock().now_ms()},
        {"iat": FakeClock().now_ms() // 1000 + 60},
        {"exp": FakeClock().now_ms() // 1000},
        {"exp": "tomorrow"},
        {"nbf": FakeClock().now_ms() // 1000 + 1},
        {"capabilities": "send"},
    ],
    ids=str,
)
async def test_5_token_with_bad_claims_is_refused_and_the_socket_stays(
    guarded: InProcess, claims: dict[str, Any]
) -> None:
    peer = await guarded.dial()

    reply = await peer.connect(authToken=odd_token(guarded.clock, **claims))

    assert code_of(reply) == "unauthorized"
    assert (await peer.connect(authToken=odd_token(guarded.clock)))["type"] == "hub:connected"


@pytest.mark.parametrize("claims", [{}, {"exp": 99_999_999_999}, {"nbf": 1}, {"jti": "x"}], ids=str)
async def test_5_optional_claims_may_be_absent_or_unused(
    guarded: InProcess, claims: dict[str, Any]
) -> None:
    peer = await guarded.dial()

    reply = await peer.connect(authToken=odd_token(guarded.clock, **claims))

    assert reply["type"] == "hub:connected"


@pytest.mark.parametrize(
    "token", [None, "", "   ", "bearer ", "garbage", "a.b.c", 7, [], "x" * 9000]
)
async def test_5_missing_or_malformed_token_is_refused(guarded: InProcess, token: object) -> None:
    peer = await guarded.dial()

    assert code_of(await peer.connect(authToken=token)) == "unauthorized"
    assert (await peer.connect(authToken=odd_token(guarded.clock)))["type"] == "hub:connected"


async def test_5_token_cannot_choose_how_it_is_checked(guarded: InProcess) -> None:
    now_s = guarded.clock.now_ms() // 1000
    body = {"iss": "signal-hub", "sub": "u", "actorId": "local/a", "iat": now_s}
    other = key_pair()
    forged = [
        odd_token(guarded.clock, "HS512"),
        jwt.encode(body, "", algorithm="none"),
        jwt.encode(body, "the wrong secret, as long as a right one", algorithm="HS256"),
        jwt.encode(body, SECRET, algorithm="HS256", headers={"kid": "signed"}),
        jwt.encode(body, SECRET, algorithm="HS256", headers={"kid": "shared"}),
        jwt.encode(body, SECRET, algorithm="HS256", headers={"kid": "unknown"}),
        jwt.encode(body, other.private, algorithm="EdDSA", headers={"kid": "signed"}),
        jwt.encode(body, other.private, algorithm="EdDSA"),
    ]

    for token in forged:
        peer = await guarded.dial()
        assert code_of(await peer.connect(authToken=token)) == "unauthorized"


async def test_5_suite_tokens_are_refused_with_authentication_on(guarded: InProcess) -> None:
    peer = await guarded.dial()
    now_s = guarded.clock.now_ms() // 1000
    claims: dict[str, Any] = {"iss": ..., "actorId": ..., "sub": "@(local/a)", "exp": now_s + 60}

    assert code_of(await peer.connect(authToken=odd_token(guarded.clock, **claims))) == (
        "unauthorized"
    )


async def test_5_version_is_checked_before_the_token_and_capabilities_after_it(
    guarded: InProcess,
) -> None:
    peer = await guarded.dial()
    good = token_for("@(local/a)", guarded.clock)

    assert code_of(await peer.connect(protocolVersion="1.0.0")) == "version_mismatch"
    refused = await peer.connect(authToken="garbage", capabilities=[])
    assert "token" in refused["payload"]["message"].lower()
    refused = await peer.connect(authToken=good, capabilities=[])
    assert "capabilities" in refused["payload"]["message"]


async def test_5_refusals_never_repeat_the_token(guarded: InProcess) -> None:
    peer = await guarded.dial()
    token = odd_token(guarded.clock, iss="somebody-else")

    reply = await peer.connect(authToken=token)

    assert token not in str(reply)
    assert token.split(".")[2] not in str(reply)


async def test_5_later_failing_hello_does_not_revoke_the_earlier_one(guarded: InProcess) -> None:
    peer = await enter(guarded, "@(local/a)")

    assert code_of(await peer.connect(authToken="garbage")) == "unauthorized"

    assert (await peer.register("@(local/a)"))["type"] == "hub:registered"


@pytest.mark.parametrize(
    "type", ["hub:disconnect", "hub:heartbeat", "hub:discover", "hub:nonsense"]
)
async def test_5_unauthenticated_session_is_refused_everything_else(
    guarded: InProcess, type: str
) -> None:
    peer = await guarded.dial()

    assert code_of(await peer.ask(type, {"pattern": "*"})) == "unauthorized"
    assert peer.is_open


@pytest.mark.parametrize("token", ["garbage", "a.b.c", "", None, 7, odd_token(FakeClock(0), exp=1)])
async def test_5_any_token_connects_with_authentication_off(
    stage: InProcess, token: object
) -> None:
    peer = await stage.dial()
    peer.sender = "@(local/me)"

    reply = await peer.connect(authToken=token)

    assert reply["type"] == "hub:connected"
    assert reply["metadata"]["actorIdentity"] == "@(local/me)"


VERBS = [
    ("send", "hub:send", {"to": "@(local/other)", "type": "note"}),
    ("broadcast", "hub:broadcast", {"type": "note", "excludeSelf": True}),
    ("publish", "hub:publish", {"topic": "news", "type": "note"}),
    ("subscribe", "hub:subscribe", {"topic": "news"}),
    ("register", "hub:register", {"actorAddress": "@(local/second)", "capabilities": []}),
]


@pytest.mark.parametrize(("verb", "type", "payload"), VERBS, ids=[verb for verb, _, _ in VERBS])
@pytest.mark.parametrize("pattern", ["tell", "ask"])
async def test_5_verb_without_permission_is_denied(
    guarded: InProcess, verb: str, type: str, payload: object, pattern: str
) -> None:
    other = await enter(guarded, "@(local/other)")
    await other.register("@(local/other)")
    await other.ask("hub:subscribe", {"topic": "news"})
    all_but_one = {name: ["*"] for name, _, _ in VERBS if name != verb}
    peer = await enter(guarded, "@(local/me)", permissions=all_but_one)

    reply = await peer.ask(type, payload, pattern=pattern)

    assert code_of(reply) == "unauthorized"
    assert reply["payload"]["details"]["action"] == verb
    assert reply["payload"]["retryable"] is False
    await other.nothing_more()


@pytest.mark.parametrize(("verb", "type", "payload"), VERBS, ids=[verb for verb, _, _ in VERBS])
async def test_5_verb_with_permission_alone_is_enough(
    guarded: InProcess, verb: str, type: str, payload: object
) -> None:
    other = await enter(guarded, "@(local/other)")
    await other.register("@(local/other)")
    peer = await enter(guarded, "@(local/me)", permissions={verb: ["*"]})

    reply = await peer.ask(type, payload)

    assert reply["type"] != "hub:error", reply


@pytest.mark.parametrize(
    ("permissions", "type", "allowed", "denied"),
    [
        (
            {"send": ["local/*"]},
            "hub:send",
            {"to": "@(local/other)", "type": "note"},
            {"to": "@(browser/other)", "type": "note"},
        ),
        (
            {"publish": ["news/eu/*"]},
            "hub:publish",
            {"topic": "news/eu/prices", "type": "note"},
            {"topic": "news/us/prices", "type": "note"},
        ),
        (
            {"subscribe": ["news/eu/*"]},
            "hub:subscribe",
            {"topic": "news/eu/+"},
            {"topic": "news/#"},
        ),
        (
            {"register": ["@(local/worker-*)"]},
            "hub:register",
            {"actorAddress": "@(local/worker-7)", "capabilities": []},
            {"actorAddress": "@(local/boss)", "capabilities": []},
        ),
    ],
    ids=["send", "publish", "subscribe", "register"],
)
async def test_5_patterns_of_a_permission_decide(
    guarded: InProcess,
    permissions: dict[str, list[str]],
    type: str,
    allowed: dict[str, Any],
    denied: dict[str, Any],
) -> None:
    for address in ("@(local/other)", "@(browser/other)"):
        await (await enter(guarded, address)).register(address)
    peer = await enter(guarded, "@(local/me)", permissions=permissions)

    assert (await peer.ask(type, allowed))["type"] != "hub:error"
    assert code_of(await peer.ask(type, denied)) == "unauthorized"


async def test_5_broadcast_patterns_are_over_the_capability_aimed_at(guarded: InProcess) -> None:
    peer = await enter(guarded, "@(local/me)", permissions={"broadcast": ["chart*"]})
    payload = {"type": "note"}

    to_charts = await peer.ask("hub:broadcast", payload, metadata={"targetCapability": "charts"})
    to_others = await peer.ask("hub:broadcast", payload, metadata={"targetCapability": "plans"})
    to_all = await peer.ask("hub:broadcast", payload)

    assert to_charts["type"] == "hub:broadcast_ack"
    assert code_of(to_others) == "unauthorized"
    assert code_of(to_all) == "unauthorized"


async def test_5_own_identity_may_always_be_registered(guarded: InProcess) -> None:
    peer = await enter(guarded, "@(local/me)", permissions=NOTHING)

    assert (await peer.register("@(local/me)"))["type"] == "hub:registered"
    assert await addresses(peer) == ["@(local/me)"]


async def test_5_token_that_ends_ends_its_session_and_a_refreshed_one_goes_on(
    guarded: InProcess, clock: FakeClock
) -> None:
    ends = await enter(guarded, "@(local/ends)", lifetime_s=60)
    stays = await enter(guarded, "@(local/stays)", lifetime_s=60)
    token = token_for("@(local/stays)", clock, lifetime_s=60)

    clock.advance(30)
    reply = await stays.ask("hub:refresh_token", {"token": token})
    clock.advance(31)

    assert reply["type"] == "hub:token_refreshed"
    notice = await ends.receive("hub:disconnect")
    assert notice["payload"]["reason"] == "unauthorized"
    assert notice["correlationId"] is None
    assert await ends.until_closed() == 1008
    await stays.nothing_more()


async def test_5_refreshed_token_works_for_a_new_connection(
    guarded: InProcess, clock: FakeClock
) -> None:
    peer = await enter(guarded, "@(local/a)", lifetime_s=60)
    reply = await peer.ask(
        "hub:refresh_token", {"token": token_for("@(local/a)", clock, lifetime_s=60)}
    )
    clock.advance(120)

    again = await guarded.dial()
    connected = await again.connect(authToken=reply["payload"]["token"])

    assert connected["metadata"]["actorIdentity"] == "@(local/a)"
    assert (await again.register("@(local/other)"))["type"] == "hub:registered"


async def test_5_hello_with_a_longer_token_extends_the_session(
    guarded: InProcess, clock: FakeClock
) -> None:
    stays = await enter(guarded, "@(local/stays)", lifetime_s=60)
    ends = await enter(guarded, "@(local/ends)", lifetime_s=60)

    await stays.connect(authToken=token_for("@(local/stays)", clock, lifetime_s=600))
    clock.advance(61)

    assert await ends.until_closed() == 1008
    await stays.nothing_more()


@pytest.mark.parametrize("how", ["hub:connect", "hub:refresh_token"])
async def test_5_rights_end_with_the_token_that_gave_them(guarded: InProcess, how: str) -> None:
    rights = {"subscribe": ["secret/x"], "register": ["local/*"]}
    peer = await enter(guarded, "@(local/a)", permissions=rights)
    await peer.register("@(local/worker)")
    await peer.ask("hub:subscribe", {"topic": "secret/x"}, sender="@(local/a)")
    publisher = await enter(guarded, "@(local/b)")

    less = token_for("@(local/a)", guarded.clock, permissions=NOTHING)
    if how == "hub:connect":
        await peer.connect(authToken=less)
    else:
        await peer.ask(how, {"token": less})
    told = await publisher.ask("hub:publish", {"topic": "secret/x", "type": "x", "data": 1})
    found = await publisher.ask("hub:discover", {"pattern": "local/worker"})

    assert told["payload"]["subscriberCount"] == 0
    assert found["payload"]["actors"] == []
    await peer.nothing_more()
