"""A hub with clients of its HTTP API for messages."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from signalhub.core.subscriptions.consumers import Consumers
from signalhub.testing import FakeClock
from tests.support.socket.http import Answer, Web
from tests.support.socket.stage import InProcess, run_stage
from tests.support.socket.tokens import token_for

BASE = "/api/hub/v1"
ORDERS = f"{BASE}/topics/orders"
BILLING = f"{ORDERS}/subscriptions/billing"


class House:
    """A hub with one HTTP client."""

    def __init__(self, stage: Any) -> None:
        self.stage = stage
        self.web = Web(stage.port)

    async def post(
        self, path: str, body: Any, headers: Mapping[str, str] | None = None, **more: Any
    ) -> Answer:
        path = path if path.startswith("/") else f"{BASE}/{path}"
        return await self.web.post(path, body, headers or {})

    async def get(self, path: str, headers: Mapping[str, str] | None = None) -> Answer:
        return await self.web.get(path, headers or {})

    async def publish(self, data: Any = 7, **more: Any) -> Answer:
        body = {"topic": "orders", "type": "order", "data": data, "durable": True}
        return await self.post("publish", body | more)

    async def fill(self, count: int) -> None:
        for number in range(count):
            assert (await self.publish(number)).status == 200

    async def pull(self, path: str = BILLING, **body: Any) -> list[Any]:
        answer = await self.post(f"{path}/pull", body)
        assert answer.status == 200, answer.body
        messages: list[Any] = answer.json["messages"]
        return messages

    @property
    def consumers(self) -> Consumers:
        """Those of the subscription."""
        topic = self.stage.hub.app.hub.streams.topics["orders"]
        consumers: Consumers = topic.subscriptions["billing"].consumers
        return consumers

    async def until_pulled_from(self, count: int = 1) -> None:
        """Wait until so many pulls wait for messages."""
        async with asyncio.timeout(10):
            while sum(bool(one.asked) for one in self.consumers.all) < count:
                await self.stage.health()

    async def settle(self, how: str, **body: Any) -> Any:
        answer = await self.post(f"{BILLING}/{how}", body)
        assert answer.status == 200, answer.body
        return answer.json


@asynccontextmanager
async def house(clock: FakeClock | None = None, **settings: Any) -> AsyncIterator[House]:
    async with run_stage(clock, **settings) as stage:
        one = House(stage)
        try:
            yield one
        finally:
            one.web.close()


@asynccontextmanager
async def staff(home: House) -> AsyncIterator[list[House]]:
    """Two programs more, at the same hub."""
    workers = [House(home.stage) for _ in range(2)]
    yield workers
    for one in workers:
        one.web.close()


def bearer(stage: InProcess, name: str = "eve", **permissions: list[str]) -> dict[str, str]:
    token = token_for(f"local/{name}", stage.clock, permissions=permissions)
    return {"Authorization": f"Bearer {token}"}


def refusal(answer: Answer) -> tuple[int, str]:
    body = answer.json
    assert body["error"]
    assert answer.header("Cache-Control") == "no-store"
    return answer.status, body["errorCode"]
