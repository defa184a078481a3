"""People who ask a hub about the past, by the admin API."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from signalhub.server.history.routes import HistoryDesk
from signalhub.testing import RunningHub, run_hub
from tests.support.socket.http import Answer, Web

API = "/api/admin/v1"


# Connections that the end of the hub closes.
_WEBS: list[Web] = []


class Person:
    """Somebody who uses the API, with a token if the hub asks for one."""

    def __init__(self, hub: RunningHub, token: str | None = None) -> None:
        self.hub = hub
        self.web = Web(hub.port)
        _WEBS.append(self.web)
        self.headers = {} if token is None else {"Authorization": f"Bearer {token}"}

    async def ask(self, path: str, body: Any = None) -> Answer:
        if body is None:
            return await self.web.get(API + path, self.headers)
        return await self.web.post(API + path, body, self.headers)

    async def get(self, path: str) -> Any:
        answer = await self.ask(path)
        assert answer.status == 200, answer.body
        return answer.json

    @property
    def desk(self) -> HistoryDesk:
        found = self.hub.app.history
        assert found is not None
        return found


@asynccontextmanager
async def open_hub(**settings: Any) -> AsyncIterator[RunningHub]:
    async with run_hub(**{"message_rate": 0, "ui": {"payload_bytes": 64}, **settings}) as hub:
        try:
            yield hub
        finally:
            while _WEBS:
                _WEBS.pop().close()
