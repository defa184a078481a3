"""The table of permissions against a running hub: every route with every verb."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from signalhub.auth.matrix import ROUTES, VERBS, Access
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
    f"{HUB}/publish": post(f"{HUB}/publish", MESSAGE),
    f"{HUB}/publish/batch": post(f"{HUB}/publish/batch", [MESSAGE]),
    **{f"{HUB}/{how}": post(f"{HUB}/{how}", SEND) for how in ("tell", "ask", "request")},
    f"{HUB}/topics/{{}}/messages": get(f"{HUB}/topics/orders/messages"),
    f"{SUBSCRIPTION}/pull": settle("pull", {}),
    f"{SUBSCRIPTION}/extend": settle("extend", {"seq": 1, "ms": 1}),
    **{f"{SUBSCRIPTION}/{how}": settle(how, {"seq": 1}) for how in ("ack", "nack", "term")},
    f"{HUB}/actors": get(f"{HUB}/actors"),
}


def tokens(house: OpenHouse, access: Access) -> Iterator[tuple[str, Headers, bool]]:
    """Tokens to try it with, and whether it should be allowed."""
    yield "no token", {}, access.is_open
    for verbs in ((), VERBS, *((verb,) for verb in VERBS)):
        is_allowed = access.is_allowed(frozenset(verbs), are_others_denied=True)
        yield "+".join(verbs) or "nothing", bearer(house, *verbs), is_allowed


async def test_every_route_is_allowed_exactly_with_what_the_table_says() -> None:
    async with open_house(hub={"auth": AUTH, "connection_rate": 0}, **OFTEN) as house:
        paths = house.hub.app._listener.routes.paths
        assert {one.request for one in ROUTES} == paths, "declare it in signalhub/auth/matrix.py"
        assert set(TRIALS) == paths, "and say here how to try it"
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
                status = await TRIALS[access.request](house, headers | extra)
                assert status != 429, access
                assert (status not in (401, 403)) == is_allowed, (access, name, status)


async def test_without_authentication_every_route_is_open() -> None:
    async with open_house(**OFTEN) as house:
        for path, trial in TRIALS.items():
            assert await trial(house, {}) not in (401, 403), path
