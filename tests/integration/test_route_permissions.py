"""The table of permissions against a running hub: every route with every verb."""

from __future__ import annotations

import itertools
import json
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from signalhub.auth.matrix import ROUTES, VERBS, Access
from signalhub.server.callers import Caller
from signalhub.server.port.http import HttpRequest
from tests.support.socket.guest import TurnedAway
from tests.support.socket.rooms import (
    APPEND,
    INBOX,
    MESSAGES,
    OTHER_INBOX,
    ROOM,
    OpenHouse,
    accepted,
    default_inbox,
    open_house,
)
from tests.support.socket.tokens import AUTH, token_for

METADATA, QUORUM, PROPOSALS = "/v1/room/metadata", "/v1/room/quorum", "/v1/room/proposals"
# A room of a tenant is another one than the room of that name.
TENANT = "/ws/{}/{}"
UPGRADE = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
}
# Every refused look counts, and here there are many.
OFTEN: dict[str, Any] = dict.fromkeys(("refused_rate", "state_rate", "fetch_rate"), 100_000)

GUARDED = {"auth": AUTH, "connection_rate": 0, "message_rate": 0}

Headers = dict[str, str]
Trial = Callable[[OpenHouse, Headers], Awaitable[int]]


def bearer(house: OpenHouse, *verbs: str) -> Headers:
    """The header of somebody with exactly these verbs, for everything."""
    grants = {verb: ["*"] if verb in verbs else [] for verb in VERBS}
    token = token_for("local/eve", house.hub.clock, permissions=grants)
    return {"Authorization": f"Bearer {token}"}


def get(path: str, named: Headers | None = None) -> Trial:
    async def tried(house: OpenHouse, headers: Headers) -> int:
        return (await house.web.get(path, (named or {}) | headers)).status

    return tried


def connect(path: str) -> Trial:
    async def tried(house: OpenHouse, headers: Headers) -> int:
        web = house.another_web()
        status = (await web.get(path, UPGRADE | headers)).status
        web.close()
        return status

    return tried


def enter(path: str, named: Headers) -> Trial:
    async def tried(house: OpenHouse, headers: Headers) -> int:
        try:
            await house.enter(path, named | headers)
        except TurnedAway as away:
            return away.answer.status
        return 101

    return tried


async def send(house: OpenHouse, headers: Headers) -> int:
    return (await house.send("sent", headers=headers)).status


async def append(house: OpenHouse, headers: Headers) -> int:
    inbox, deposit = default_inbox(ROOM), {"messageId": "appended", "ciphertext": "AAAA"}
    return (await house.web.post(APPEND, deposit, {"X-Inbox-ID": inbox} | headers)).status


ADMIN, TOPIC, LETTERS = "/api/admin/v1", "made-by-ann", "made-by-ann.dlq"
ONE_TOPIC = f"{ADMIN}/topics/{{}}"
ONE_SUBSCRIPTION = f"{ADMIN}/topics/{{}}/subscriptions/{{}}"


def ann(house: OpenHouse) -> Caller:
    """Somebody who may do everything, and owns what is tried."""
    everything = {verb: ["*"] for verb in VERBS}
    token = token_for("people/ann", house.hub.clock, permissions=everything)
    callers = house.hub.app.callers
    headers = {"authorization": f"Bearer {token}"}
    return callers.caller(callers.principal(HttpRequest("GET", "/", "", headers)))


async def make(house: OpenHouse) -> None:
    """Whatever an earlier trial has deleted is there again."""
    known = house.hub.app.hub.streams.topics.get(TOPIC)
    if known is not None and "billing" in known.subscriptions:
        return
    caller = ann(house)
    for topic in (TOPIC, LETTERS):
        await caller.call("hub:topic_create", {"topic": topic})
    wanted = {"topic": TOPIC, "subscription": "billing", "mode": "shared"}
    await caller.call("hub:subscribe", wanted)


def admin(method: str, path: str, body: dict[str, Any] | None = None) -> Trial:
    """A request of the admin API."""
    given = None if body is None else json.dumps(body).encode()
    content = {} if body is None else {"Content-Type": "application/json"}

    async def tried(house: OpenHouse, headers: Headers) -> int:
        await make(house)
        return (await house.web.request(method, ADMIN + path, headers | content, given)).status

    return tried


HUB = "/api/hub/v1"
SUBSCRIPTION = f"{HUB}/topics/{{}}/subscriptions/{{}}"
MESSAGE: dict[str, Any] = {"topic": "orders", "type": "order"}
SEND: dict[str, Any] = {"to": "@(local/nobody)", "type": "hello"}
numbers = itertools.count()


def post(path: str, body: Any) -> Trial:
    async def tried(house: OpenHouse, headers: Headers) -> int:
        return (await house.web.post(path, body, headers)).status

    return tried


def settle(how: str, body: dict[str, Any]) -> Trial:
    """With a subscription that nobody has made, because who has made one owns it."""

    async def tried(house: OpenHouse, headers: Headers) -> int:
        path = SUBSCRIPTION.format("orders", f"billing-{next(numbers)}")
        return (await house.web.post(f"{path}/{how}", body, headers)).status

    return tried


def of_topic(method: str, rest: str = "", body: dict[str, Any] | None = None) -> Trial:
    return admin(method, f"/topics/{TOPIC}{rest}", body)


async def close_session(house: OpenHouse, headers: Headers) -> int:
    web = house.another_web()
    await web.get("/ws", UPGRADE)
    session = list(house.hub.app.hub.sessions)[-1]
    path = f"{ADMIN}/sessions/{session.id}/close"
    status = (await house.web.post(path, {}, headers)).status
    web.close()
    return status


BILLING = "/subscriptions/billing"
ALL_LETTERS = {"topic": LETTERS, "all": True}
ADMIN_TRIALS: dict[str, Trial] = {
    **{
        f"{ADMIN}{path}": admin("GET", f"{path}{query}")
        for path, query in (
            *(("/me", ""), ("/settings", ""), ("/overview", ""), ("/series", "?names=in")),
            *(("/search", "?q=a"), ("/health", ""), ("/segments", ""), ("/warnings", "")),
            *(("/rooms", ""), ("/actors", ""), ("/sessions", ""), ("/topics", "")),
            *(("/subscriptions", ""), ("/jobs", ""), ("/openapi.json", "")),
        )
    },
    f"{ADMIN}/session/refresh": admin("POST", "/session/refresh", {}),
    f"{ADMIN}/actors/{{}}": admin("GET", "/actors/@(people%2Fann)"),
    f"{ADMIN}/sessions/{{}}": admin("GET", "/sessions/none"),
    f"{ADMIN}/sessions/{{}}/close": close_session,
    f"{ADMIN}/jobs/{{}}": admin("GET", "/jobs/none"),
    f"{ADMIN}/jobs/{{}}/cancel": admin("POST", "/jobs/none/cancel", {}),
    f"{ADMIN}/live": connect(f"{ADMIN}/live"),
    f"{ONE_TOPIC} GET": of_topic("GET"),
    f"{ONE_TOPIC} PUT": of_topic("PUT", body={}),
    f"{ONE_TOPIC} PATCH": of_topic("PATCH", body={}),
    f"{ONE_TOPIC} DELETE": of_topic("DELETE"),
    f"{ONE_SUBSCRIPTION} GET": of_topic("GET", BILLING),
    f"{ONE_SUBSCRIPTION} DELETE": of_topic("DELETE", BILLING),
    **{
        f"{ONE_SUBSCRIPTION}/{what}": of_topic("POST", f"{BILLING}/{what}", body)
        for what, body in (
            *(("pause", {}), ("resume", {}), ("set", {"window": 9})),
            *(("seek", {"to": "latest"}), ("settle", {"seqs": [1], "verdict": "ack"})),
        )
    },
    f"{ADMIN}/letters/redrive": admin("POST", "/letters/redrive", ALL_LETTERS),
    f"{ADMIN}/letters/purge": admin("POST", "/letters/purge", ALL_LETTERS),
    **{
        f"{ADMIN}{path}": admin("GET", f"{asked}")
        for path, asked in (
            *((one, one) for one in ("/history", "/history/counts", "/history/series")),
            *((one, one) for one in ("/letters/topics", "/actions", "/lake", "/lake/proof.json")),
            *((one, one) for one in ("/hosts", "/calls", "/alarms", "/host-letters")),
            ("/history/{}/{}", "/history/1/1"),
            ("/history/{}/{}/{}", "/history/0/1/1"),
            ("/letters", f"/letters?topic={LETTERS}"),
            ("/lake/tables/{}", "/lake/tables/messages"),
            ("/lake/audit GET", "/lake/audit"),
            ("/calls/{}", "/calls/none"),
            ("/hosts/{}/actors", "/hosts/none/actors"),
            ("/hosts/{}/actors/{}", "/hosts/none/actors/order%2F17"),
            ("/host-letters/{}/{}", "/host-letters/none/1"),
        )
    },
    f"{ADMIN}/lake/audit POST": admin("POST", "/lake/audit", {}),
    f"{ADMIN}/replay": admin("POST", "/replay", {"where": "true", "to": "topic:orders"}),
    **{
        f"{ADMIN}/hosts/{{}}/{what}": admin("POST", f"/hosts/none/{what}", body)
        for what, body in (
            *(("redrive", {"actor": "order/17", "id": "1"}), ("move", {"actor": "a", "to": "b"})),
            ("purge", {"actor": "order/17", "id": "1"}),
        )
    },
    **{path: get(path) for path in ("/ui", "/ui/", "/sdk.js")},
    "/ui/assets/{}": get("/ui/assets/none"),
}


NAMED = {"X-Room-ID": ROOM}
TRIALS: dict[str, Trial] = {
    "/ws": connect("/ws"),
    "/": connect("/"),
    **{path: get(path) for path in ("/health", "/healthz", "/readyz", "/metrics")},
    "/openapi.json": get("/openapi.json"),
    "/room": enter("/room", NAMED | {"X-Pseudonym-ID": "p-1"}),
    TENANT: enter(f"/ws/tenant/{ROOM}?pseudonym=p-1", {}),
    "/api/v1/message": send,
    "/v1/inbox/messages": get(MESSAGES, {"X-Inbox-ID": default_inbox(ROOM)}),
    "/v1/inbox/append": append,
    METADATA: get(METADATA, NAMED),
    QUORUM: get(QUORUM, NAMED),
    PROPOSALS: get(PROPOSALS, NAMED),
    f"{PROPOSALS}/{{}}": get(f"{PROPOSALS}/none", NAMED),
    **ADMIN_TRIALS,
    f"{HUB}/publish": post(f"{HUB}/publish", MESSAGE),
    f"{HUB}/publish/batch": post(f"{HUB}/publish/batch", [MESSAGE]),
    **{f"{HUB}/{how}": post(f"{HUB}/{how}", SEND) for how in ("tell", "ask", "request")},
    f"{HUB}/topics/{{}}/messages": get(f"{HUB}/topics/orders/messages"),
    f"{SUBSCRIPTION}/pull": settle("pull", {}),
    f"{SUBSCRIPTION}/extend": settle("extend", {"seq": 1, "ms": 1}),
    **{f"{SUBSCRIPTION}/{how}": settle(how, {"seq": 1}) for how in ("ack", "nack", "term")},
    f"{HUB}/actors": get(f"{HUB}/actors"),
}


def trial_of(access: Access) -> Trial:
    """How a row is tried: by its path, or by its path and method."""
    return TRIALS.get(f"{access.request} {access.when.partition(' ')[0]}") or TRIALS[access.request]


def tokens(house: OpenHouse, access: Access) -> Iterator[tuple[str, Headers, bool]]:
    """Tokens to try it with, and whether it should be allowed."""
    yield "no token", {}, access.is_open
    for verbs in ((), VERBS, *((verb,) for verb in VERBS)):
        is_allowed = access.is_allowed(frozenset(verbs), are_others_denied=True)
        yield "+".join(verbs) or "nothing", bearer(house, *verbs), is_allowed


def let_everybody_ask(house: OpenHouse) -> None:
    """All rows together are more than the admin API answers in a second."""
    desk = house.hub.app.desk
    assert desk is not None
    desk.api._bucket.rate_s = desk.api._visitor_rate_s = 0


async def test_every_route_is_allowed_exactly_with_what_the_table_says() -> None:
    async with open_house(hub=GUARDED, **OFTEN) as house:
        paths = house.hub.app._listener.routes.paths
        assert {one.request for one in ROUTES} == paths, "declare it in signalhub/auth/matrix.py"
        assert {trial.partition(" ")[0] for trial in TRIALS} == paths, "and say here how to try it"
        let_everybody_ask(house)
        member = bearer(house, "rooms")
        accepted(await house.send("first", headers=member | {"X-Inbox-ID": INBOX}))
        assert await TRIALS[TENANT](house, member | {"X-Inbox-ID": OTHER_INBOX}) == 101
        writer = bearer(house, "publish", "create")
        stored = await house.web.post(f"{HUB}/publish", MESSAGE | {"durable": True}, writer)
        assert stored.status == 200

        for access in ROUTES:
            extra: Headers = {}
            if access.when.startswith("with the capability"):
                extra["X-Inbox-ID"] = OTHER_INBOX if access.request == TENANT else INBOX
            for name, headers, is_allowed in tokens(house, access):
                status = await trial_of(access)(house, headers | extra)
                assert status != 429, access
                assert (status not in (401, 403)) == is_allowed, (access, name, status)


async def test_without_authentication_every_route_is_open() -> None:
    async with open_house(**OFTEN) as house:
        let_everybody_ask(house)
        for path, trial in TRIALS.items():
            assert await trial(house, {}) not in (401, 403), path
