"""A hub with people who look at it: requests of the admin API, and live sockets."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from signalhub.auth.permissions import ROLES
from signalhub.server.admin.desk import Desk
from signalhub.testing import FakeClock
from signalhub.wire.entry import Kind, OperatedBody, decode_body
from tests.support.socket.http import Answer, Web
from tests.support.socket.peer import Peer
from tests.support.socket.stage import InProcess, run_stage
from tests.support.socket.tokens import AUTH, token_for

ADMIN = "/api/admin/v1"
BILLING = "/topics/orders/subscriptions/billing"
NOTE = {"topic": "orders", "type": "order:new", "durable": True}


class Person:
    """Somebody with a token, or without one."""

    def __init__(self, web: Web, token: str | None = None) -> None:
        self.web = web
        self.token = token

    async def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """One request of the admin API."""
        given = {} if self.token is None else {"Authorization": f"Bearer {self.token}"}
        content = None if body is None else json.dumps(body).encode()
        if content is not None:
            given["Content-Type"] = "application/json"
        return await self.web.request(method, ADMIN + path, given | dict(headers or {}), content)

    async def get(self, path: str) -> Any:
        """The answer to a request that must be fine."""
        answer = await self.ask("GET", path)
        assert answer.status == 200, (path, answer.body)
        return answer.json

    async def post(self, path: str, body: Any = None) -> Any:
        answer = await self.ask("POST", path, body or {})
        assert answer.status == 200, (path, answer.body)
        return answer.json


class Office:
    """A hub in the test's own loop, and the people around it."""

    def __init__(self, stage: InProcess) -> None:
        self.stage = stage
        self._webs: list[Web] = []

    @property
    def desk(self) -> Desk:
        desk = self.stage.hub.app.desk
        assert desk is not None
        return desk

    def person(self, role: str | None = None, name: str = "people/ann", **more: Any) -> Person:
        """Somebody with the permissions of a role, and with more; `None`: without a token."""
        web = Web(self.stage.port)
        self._webs.append(web)
        if role is None:
            return Person(web)
        grants: dict[str, Any] = dict(ROLES.get(role, {})) | more
        return Person(web, token_for(name, self.stage.clock, permissions=grants))

    async def orders(self, messages: int = 3, consumer: str = "@(demo/alice)") -> Peer:
        """A topic with messages and a subscription, whose consumer settles nothing."""
        peer = await self.consumer(consumer)
        for number in range(messages):
            data = NOTE | {"key": f"c-{number}", "data": {"n": number}}
            assert (await peer.ask("hub:publish", data))["type"] != "hub:error"
        return peer

    async def consumer(self, name: str = "@(demo/alice)") -> Peer:
        """A consumer of the subscription `billing` of the topic `orders`."""
        metadata: dict[str, Any] = {}
        if self.stage.hub.app.settings.auth.enabled:
            everything = {verb: ["*"] for verb in ("send", "publish", "subscribe", "create")}
            token = token_for(name[2:-1], self.stage.clock, permissions=everything)
            metadata["authToken"] = token
        peer = await self.stage.connect(name, **metadata)
        # Those of dead letters.
        reply = await peer.ask("hub:topic_create", {"topic": "orders", "poison": "dead_letter"})
        assert reply["type"] in ("hub:topic_created", "hub:error"), reply
        wanted = {"topic": "orders", "subscription": "billing", "from": "earliest"}
        reply = await peer.ask("hub:subscribe", wanted)
        assert reply["type"] == "hub:subscribed", reply
        return peer

    async def looker(self, path: str = f"{ADMIN}/live", token: str | None = None) -> Looker:
        """A page that has said hello."""
        looker = Looker(await self.stage.dial(path))
        looker.say(op="hello", token=token)
        looker.me = await looker.next()
        return looker

    def tick(self, seconds: float = 1.0) -> None:
        """A second passes, as the timer of the hub would notice."""
        self.stage.clock.advance(seconds)  # type: ignore[attr-defined]
        self.stage.hub.app._tick()

    def operated(self) -> list[OperatedBody]:
        """Every entry about an action, in order."""
        engine = self.stage.hub.app._engine
        found = engine.scan(engine.first)
        return [decode_body(OperatedBody, one.body) for one in found if one.kind == Kind.OPERATED]

    def close(self) -> None:
        for web in self._webs:
            web.close()


class Looker:
    """The live socket of a page."""

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self.me: dict[str, Any] = {}

    def say(self, **members: Any) -> None:
        """Send one frame; members that are `None` are left out."""
        given = {name: value for name, value in members.items() if value is not None}
        self.peer.send_text(json.dumps(given))

    async def next(self) -> dict[str, Any]:
        """The next frame."""
        frame: dict[str, Any] = json.loads(await self.peer.receive_text())
        return frame

    async def watch(self, what: str, number: int = 1, **members: Any) -> dict[str, Any]:
        """Begin to watch; the first frame."""
        self.say(op="watch", id=number, what=what, **members)
        return await self.next()


@asynccontextmanager
async def open_office(*, is_limited: bool = False, **settings: Any) -> AsyncIterator[Office]:
    """A hub whose time stands still; without authentication, unless `auth` is given.

    Unless it `is_limited`, people may send as many requests as they like.
    """
    async with run_stage(FakeClock(), **({"message_rate": 0} | settings)) as stage:
        office = Office(stage)
        if not is_limited:
            office.desk.api._bucket.rate_s = office.desk.api._visitor_rate_s = 0
        try:
            yield office
        finally:
            office.close()


GUARDED: dict[str, Any] = {"auth": AUTH, "connection_rate": 0}
