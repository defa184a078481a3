"""Whatever one client does, others are served about as fast as beside a busy one that is legal.

The delay of a pair of bystanders is measured by turns in one hub: beside a legal neighbour that is
as busy as the attackers, then beside each attack. Compared are percentiles of all turns: the 99th
in `make soak`, the 90th of the fewer turns in `make test`. Nothing the pair asks may be lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from typing import Any

import pytest

from signalhub.wire.envelope import RAW_PING
from signalhub.wire.frames import Opcode
from tests.support.process.machine import resident_bytes
from tests.support.socket.bystanders import RATIO_MAX, Busy, watch
from tests.support.socket.frames import masked_frame
from tests.support.socket.neighbours import (
    NUMBER,
    Caller,
    Crowd,
    Flooder,
    Neighbour,
    hello,
    request,
    text,
)
from tests.support.socket.peer import request as web_request
from tests.support.socket.peer import upgrade_request
from tests.support.socket.stage import Spawned, spawn_stage
from tests.support.stage import greeted
from tests.support.volume import volume

ROOM = {"X-Room-ID": "quiet", "X-Pseudonym-ID": "x"}
ELSEWHERE = "127.0.0.2"
MEGABYTE = 1_000_000
# The disk is not what is measured, nor what the hub keeps of its log.
LOG = {"sync": "os", "cache_bytes": MEGABYTE}

Prepare = Callable[[Spawned], Awaitable[object]]
# What they do on a port.
Doing = Callable[[int], Neighbour]


async def nothing(stage: Spawned) -> None:
    pass


@dataclass(frozen=True)
class Scene:
    """A hub, a legal neighbour and attacks by clients that are as busy."""

    legal: Doing
    attacks: Mapping[str, Doing]
    settings: Mapping[str, Any] = field(default_factory=lambda: {"log": LOG})
    files_max: int | None = None
    prepare: Prepare = nothing
    # Holds after the attacks, which were not in vain.
    check: Prepare = nothing
    # How much the hub may grow during all of it.
    growth_max: int = 30 * MEGABYTE


def flood(frame: bytes, **options: Any) -> Doing:
    """Frames of a session as fast as the hub reads them."""
    return lambda port: Flooder(port, frame, **{"first": hello()} | options)


def talk(frame: bytes, **options: Any) -> Doing:
    """The same, by somebody who reads the answers."""
    return flood(frame, reads=True, **options)


# Pages that are asked for and not read.

BARE: dict[str, Any] = {"path": None, "first": b""}


def page(path: str) -> bytes:
    return web_request("GET", path, {"Host": "localhost"})


PAGES = Scene(
    talk(page("/metrics"), **BARE),
    {
        "metrics that nobody reads": flood(page("/metrics"), **BARE),
        "pages that nobody reads": flood(page("/openapi.json"), **BARE),
    },
    growth_max=10 * MEGABYTE,
)

# Sockets that take the places and files of others.

FILES_MAX = 256
HEALTH = web_request("GET", "/health", {"Host": "localhost", "Connection": "close"})


async def files_are_left(stage: Spawned) -> None:
    assert "Too many open files" not in stage.hub.log()
    assert (await stage.health())["status"] == "ok"
    assert await stage.metric('signal_hub_sockets_refused_total{reason="idle"}') > 0


IDLE = Scene(
    partial(Caller, said=HEALTH),
    {
        "silent connections": partial(Caller, stays=FILES_MAX),
        "sockets without a hello": partial(Caller, said=upgrade_request(), stays=FILES_MAX),
    },
    {"connection_rate": 0, "log": LOG | {"segment_bytes": 2**16}},
    files_max=FILES_MAX,
    check=files_are_left,
)

# Readers that do not read.

LISTENERS = volume(8, 100)
SEALED = "x" * 60_000
NEWS = request("hub:publish", {"topic": "news", "type": "news", "data": SEALED}, pattern="tell")
MESSAGE = text(f'{{"action":"send","messageId":"m{NUMBER}","ciphertext":"{SEALED}"}}')
SUBSCRIBE = hello() + request("hub:subscribe", {"topic": "news"})
# The kernel takes some megabytes for every listener, which therefore have to come quickly.
SPEAKING_S = volume(2, 10) / 1_000


def subscribers(port: int, *, reads: bool) -> Neighbour:
    speaker = Flooder(
        port, NEWS, first=hello(), reads=True, pause_s=SPEAKING_S, warm_bytes=10 * MEGABYTE
    )
    until = b"hub:subscribed"
    return Crowd(port, LISTENERS, speaker, first=SUBSCRIBE, until=until, reads=reads)


def guests(port: int, *, reads: bool) -> Neighbour:
    room: dict[str, Any] = {"path": "/room", "headers": ROOM}
    speaker = Flooder(
        port, MESSAGE, reads=True, pause_s=SPEAKING_S, warm_bytes=10 * MEGABYTE, **room
    )
    return Crowd(port, LISTENERS, speaker, until=b"welcome", reads=reads, **room)


DEBTS = {
    "connection_rate": 0,
    "log": LOG,
    "outbound": {"total_bytes_max": 2 * MEGABYTE},
    "rooms": {"rate": 1_000_000, "buffer_bytes": MEGABYTE},
}
# The budget, and what allocators keep.
DEBTS_MAX = 25 * MEGABYTE


async def debts_were_collected(stage: Spawned) -> None:
    assert await stage.metric("signal_hub_outbound_closed_total") > 0


DEAF_SUBSCRIBERS = Scene(
    partial(subscribers, reads=True),
    {"subscribers that do not read": partial(subscribers, reads=False)},
    DEBTS,
    check=debts_were_collected,
    growth_max=DEBTS_MAX,
)
DEAF_GUESTS = Scene(
    partial(guests, reads=True),
    {"guests that do not read": partial(guests, reads=False)},
    DEBTS,
    check=debts_were_collected,
    growth_max=DEBTS_MAX,
)

# Frames that nobody needs.

FLOODS: dict[str, bytes] = {
    "pongs": masked_frame(Opcode.PONG, b""),
    "pings": masked_frame(Opcode.PING, b"x"),
    "raw pings": text(RAW_PING),
    "lists": text(b"[]"),
    "deep JSON": text(b'{"payload":' + b"[" * 2_000 + b"]" * 2_000 + b"}"),
    "hellos": hello(),
}
IN_ROOM: dict[str, Any] = {"path": "/room", "headers": ROOM, "first": b""}
FRAMES = Scene(
    talk(request("hub:heartbeat")),
    {f"{name} of an actor": flood(frame) for name, frame in FLOODS.items()},
)
ROOM_FRAMES = Scene(
    talk(text(b'{"action":"ping"}'), **IN_ROOM),
    {f"{name} in a room": flood(frame, **IN_ROOM) for name, frame in FLOODS.items()},
)

# Wildcards that make a publish look at as many nodes as possible.

PATTERNS = volume(300, 1_000)
LEVELS = 16


def patterns() -> list[str]:
    """Wildcards of which all but the last level match a topic of the levels `a`."""
    choices = ("/".join(levels) for levels in product("+a", repeat=10))
    tail = "/".join("a" * (LEVELS - 11))
    return [f"{one}/{tail}/x" for one, _ in zip(choices, range(PATTERNS), strict=False)]


async def subscribe_to_patterns(stage: Spawned) -> None:
    subscriber = await stage.connect()
    for pattern in patterns():
        reply = await subscriber.ask("hub:subscribe", {"topic": pattern})
        assert reply["type"] == "hub:subscribed", reply


def publish(topic: str) -> bytes:
    return request("hub:publish", {"topic": topic, "type": "news"}, pattern="tell")


def subscribe_and_back(topic: str) -> bytes:
    return b"".join(
        request(type, {"topic": topic}, pattern="tell")
        for type in ("hub:subscribe", "hub:unsubscribe")
    )


DEEP = "/".join("a" * (LEVELS - 1))
WILDCARDS = Scene(
    talk(publish(f"news/{NUMBER}") + subscribe_and_back(f"other/{NUMBER}")),
    {
        "publishes to many wildcards": talk(publish(f"{DEEP}/{NUMBER}")),
        "wildcards that come and go": talk(
            publish(f"{DEEP}/b") + subscribe_and_back("/".join("+" * LEVELS))
        ),
    },
    prepare=subscribe_to_patterns,
)

# Places of actors.

HOSTS = volume(100, 3_000)
ACTORS = 1_000


# Fewer than a session may send in a burst.
AT_ONCE = 500


async def register_all(stage: Spawned, prefix: str, count: int, **payload: Any) -> None:
    """Register that many actors, some hundreds by each session."""
    for first in range(0, count, AT_ONCE):
        peer = await stage.connect()
        asked = []
        for number in range(first, min(first + AT_ONCE, count)):
            address = f"@({prefix}/{number})"
            given = {"actorAddress": address, "capabilities": []} | payload
            asked.append(peer.send("hub:register", given, pattern="ask", sender=address))
        for id in asked:
            reply = await peer.reply_to(id)
            assert reply["type"] == "hub:registered", reply


async def host_many(stage: Spawned) -> None:
    kinds = ["actor-host", "actor:order"]
    await register_all(stage, "host", HOSTS, capabilities=kinds, durable=True)


def place(*actors: str) -> bytes:
    return request("hub:place", {"actors": actors})


PLACES = Scene(
    talk(place(*(f"order/{number}" for number in range(10)))),
    {
        "unknown kinds": talk(place(*(f"unknown{number}/1" for number in range(ACTORS)))),
        "new actors": talk(place(f"order/{NUMBER}")),
    },
    {"log": LOG},
    prepare=host_many,
)

# The registry, and searches of all of it.

CROWD = volume(2_000, 45_000)


async def register_many(stage: Spawned) -> None:
    await register_all(stage, "crowd", CROWD)


def register(address: str) -> bytes:
    return request(
        "hub:register", {"actorAddress": address, "capabilities": []}, **{"from": address}
    )


SEARCHES = Scene(
    talk(request("hub:discover", {"pattern": "nobody/here"})),
    {
        "searches of everybody": talk(request("hub:discover", {"pattern": "*a*b*c*"})),
        "the end of the list of everybody": talk(request("hub:list_actors", {"offset": CROWD})),
    },
    {"message_burst": 50_000, "message_rate": 50_000, "log": LOG},
    prepare=register_many,
)


async def newcomers_get_in(stage: Spawned) -> None:
    assert await stage.metric("signal_hub_registrations_refused_total") > 0
    newcomer = await stage.connect()
    assert (await newcomer.ask("hub:heartbeat"))["type"] == "hub:heartbeat_ack"


REGISTRY = Scene(
    talk(register("@(busy/neighbour)")),
    {"a full registry": talk(register(f"@(crowd/{NUMBER})"), warm_bytes=MEGABYTE // 2)},
    {"registry": {"limit": 500}, "log": LOG},
    check=newcomers_get_in,
)


RATE = 50


async def others_still_connect(stage: Spawned) -> None:
    assert await stage.metric("signal_hub_connections_refused_total") > 0
    await greeted(await stage.dial(source="127.0.0.3"))


STORM = Scene(
    partial(Caller, said=HEALTH, source=ELSEWHERE),
    {
        "a storm of connections": partial(
            Caller, said=upgrade_request(), source=ELSEWHERE, warm=2 * RATE
        )
    },
    {"log": LOG, "connection_rate": RATE, "connection_burst": RATE},
    check=others_still_connect,
)

# Subscriptions that nobody reads.


def store(topic: str) -> bytes:
    payload = {"topic": topic, "type": "news", "data": "x" * 1_000, "durable": True}
    return request("hub:publish", payload, id=f"{topic}-{NUMBER}")


async def leave_subscriptions(stage: Spawned) -> None:
    peer = await stage.connect()
    limited = {"backlogMax": 100, "backlogPolicy": "drop_oldest"}
    for topic, options in (("read", None), ("left", {}), ("limited", limited)):
        await peer.ask("hub:topic_create", {"topic": topic})
        if options is not None:
            given = {"topic": topic, "subscription": "abandoned"} | options
            reply = await peer.ask("hub:subscribe", given)
            assert reply["type"] == "hub:subscribed", reply
    await peer.ask("hub:disconnect")


async def retention_is_held_up(stage: Spawned) -> None:
    reader = await stage.connect()
    health = await stage.health()
    async for _ in reader.polls():
        if health["status"] != "ok":
            break
        # It is looked at every second.
        await asyncio.sleep(0.1)
        health = await stage.health()
    assert health["degradations"] == ["retention_held_by_subscriptions"], health
    held = health["details"]["retention"]["oldest"]
    assert ("left", "abandoned") in [(one["stream"], one["subscription"]) for one in held]
    info = await reader.ask("hub:sub_info", {"topic": "limited", "subscription": "abandoned"})
    assert 0 < info["payload"]["lag"] <= 110


ABANDONED = Scene(
    talk(store("read")),
    {
        "an abandoned subscription": talk(store("left"), warm_bytes=MEGABYTE // 2),
        "a full backlog": talk(store("limited"), warm_bytes=MEGABYTE // 2),
    },
    {"log": LOG | {"segment_bytes": 2**16, "retention_bytes": 2**17}},
    prepare=leave_subscriptions,
    check=retention_is_held_up,
)

# Rooms that have used up their disk.


def post(message_id: str) -> bytes:
    sealed = "x" * 4_000
    return text(f'{{"action":"send","messageId":"{message_id}","ciphertext":"{sealed}"}}')


async def rooms_are_full(stage: Spawned) -> None:
    assert "rooms_disk_full" in (await stage.health())["degradations"]


FULL_ROOMS = Scene(
    talk(post("again"), **IN_ROOM),
    {"rooms without disk": talk(post(f"m{NUMBER}"), warm_bytes=2 * MEGABYTE, **IN_ROOM)},
    {"log": LOG, "rooms": {"rate": 1_000_000, "disk_bytes_max": MEGABYTE}},
    check=rooms_are_full,
)

SCENES = {
    "B1 pages": PAGES,
    "B2 idle sockets": IDLE,
    "B3 deaf subscribers": DEAF_SUBSCRIBERS,
    "B3 deaf guests": DEAF_GUESTS,
    "B4 frames": FRAMES,
    "B4 frames in rooms": ROOM_FRAMES,
    "B5 wildcards": WILDCARDS,
    "B6 places": PLACES,
    "B7 searches": SEARCHES,
    "B7 registry": REGISTRY,
    "B7 storm": STORM,
    "B8 abandoned subscriptions": ABANDONED,
    "B9 full rooms": FULL_ROOMS,
}


@pytest.mark.timeout(volume(120, 900))
@pytest.mark.parametrize("name", SCENES)
async def test_an_attack_delays_others_no_more_than_a_busy_neighbour_does(name: str) -> None:
    scene = SCENES[name]
    async with spawn_stage(files_max=scene.files_max, **scene.settings) as stage:
        pair = await watch(stage)
        await scene.prepare(stage)
        before = resident_bytes(stage.hub.pid)

        attacks: dict[str, Busy] = {
            one: partial(do, stage.port) for one, do in scene.attacks.items()
        }
        found = await pair.compare(partial(scene.legal, stage.port), attacks)

        for one, watched in found.items():
            print(f"{one}: {watched}")
        grown = resident_bytes(stage.hub.pid) - before
        print(f"grown by {grown / MEGABYTE:.1f} MB")
        assert {one: str(each) for one, each in found.items() if each.ratio > RATIO_MAX} == {}
        assert grown < scene.growth_max
        await scene.check(stage)
