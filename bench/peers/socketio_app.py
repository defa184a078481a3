"""The peer for python-socketio: a message relay written as its documentation suggests.

An actor registers under a name, a message goes to the actor named in it, a publication goes to a
room. Pings are rare on purpose: the generator does not answer them.
"""

from __future__ import annotations

from typing import Any

import socketio

hub = socketio.AsyncServer(
    async_mode="asgi", transports=["websocket"], ping_interval=300, cors_allowed_origins=[]
)
app = socketio.ASGIApp(hub)
sids: dict[str, str] = {}
names: dict[str, str] = {}


@hub.event  # type: ignore[untyped-decorator]
async def register(sid: str, name: str) -> None:
    sids[name] = sid
    names[sid] = name
    await hub.emit("registered", name, to=sid)


@hub.event  # type: ignore[untyped-decorator]
async def subscribe(sid: str, topic: str) -> None:
    await hub.enter_room(sid, topic)
    await hub.emit("subscribed", topic, to=sid)


@hub.event  # type: ignore[untyped-decorator]
async def send(sid: str, message: dict[str, Any]) -> None:
    await hub.emit("message", message, to=sids[message["payload"]["to"]])


@hub.event  # type: ignore[untyped-decorator]
async def publish(sid: str, message: dict[str, Any]) -> None:
    await hub.emit("message", message, room=message["payload"]["topic"])


@hub.event  # type: ignore[untyped-decorator]
async def disconnect(sid: str, reason: str) -> None:
    sids.pop(names.pop(sid, ""), None)
