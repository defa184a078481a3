"""A hub of a few lines that keeps everything in memory, and can be told to cheat.

It serves what the workers need, so that workers and checker can be shown to find faults that a
real hub hopefully does not have. `restart` does to clients what a kill does: connections end,
answers that were under way are gone, and whatever was not settled comes again, marked.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Literal, NamedTuple, Self
from zlib import crc32

from picows import WSFrame, WSListener, WSMsgType, WSTransport, WSUpgradeRequest, ws_create_server

from tests.support.socket.peer import HUB

Fault = Literal[
    "drop_tail",
    "no_marks",
    "lose_one",
    "append_twice",
    "forget_settled",
    "newest_first",
    "refuse_and_keep",
]
EPOCH = "toy"
# Longer than a beat of the workers, so that every restart finds answers under way.
ANSWER_S = 0.02
LOST_SEQ = 20

Message = dict[str, Any]


class Entry(NamedTuple):
    """One message of a stream."""

    sender: str
    id: str
    type: str
    data: Any
    key: str


@dataclass
class Group:
    """The readers of one subscription, or the owner of a mailbox."""

    mode: str
    ready: list[int] = field(default_factory=list)
    flights: dict[int, Link] = field(default_factory=dict)
    settled: set[int] = field(default_factory=set)
    shown: set[int] = field(default_factory=set)
    members: list[Link] = field(default_factory=list)


@dataclass
class Stream:
    """A topic or a mailbox."""

    name: str
    entries: list[Entry] = field(default_factory=list)
    places: dict[tuple[str, str], int] = field(default_factory=dict)
    groups: dict[str, Group] = field(default_factory=dict)


class Link(WSListener):
    """The hub's end of one connection."""

    def __init__(self, hub: ToyHub) -> None:
        self._hub = hub
        self._transport: WSTransport

    def on_ws_connected(self, transport: WSTransport) -> None:
        self._transport = transport
        self._hub.links[self] = None

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        if frame.msg_type == WSMsgType.TEXT:
            self._hub.take(self, json.loads(frame.get_payload_as_bytes()))

    def on_ws_disconnected(self, transport: WSTransport) -> None:
        self._hub.gone(self)

    def abort(self) -> None:
        self._transport.disconnect(False)

    def send(
        self,
        type: str,
        payload: Any,
        metadata: Message | None = None,
        correlation_id: str | None = None,
        sender: str = HUB,
    ) -> None:
        message = {
            "id": str(uuid.uuid4()),
            "from": sender,
            "to": "@(toy/client)",
            "type": type,
            "payload": payload,
            "pattern": "tell",
            "correlationId": correlation_id,
            "timestamp": 1,
            "metadata": metadata or {},
            "ttl": None,
            "signature": None,
        }
        self._transport.send(WSMsgType.TEXT, json.dumps(message).encode())


class ToyHub:
    """Listens on the loopback; honest unless `fault` says otherwise."""

    def __init__(self, fault: Fault | None = None) -> None:
        self.port = 0
        self.links: dict[Link, None] = {}
        self.streams: dict[str, Stream] = {}
        self._fault = fault
        self._server: asyncio.Server

    async def __aenter__(self) -> Self:
        self._server = await ws_create_server(self._upgraded, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.close()
        self.restart()
        # The sockets leave the loop one step later.
        await asyncio.sleep(0)

    def _upgraded(self, request: WSUpgradeRequest) -> WSListener:
        return Link(self)

    def restart(self) -> None:
        """End every connection, and forget whatever a killed hub would."""
        for link in list(self.links):
            self.gone(link)
            link.abort()
        for stream in self.streams.values():
            if self._fault == "drop_tail":
                self._drop(stream, keep=len(stream.entries) - 5)
            for group in stream.groups.values():
                group.shown |= set(range(1, len(stream.entries) + 1))
                if self._fault == "forget_settled":
                    forgotten = sorted(group.settled)[-5:]
                    group.settled -= set(forgotten)
                    group.ready = sorted([*group.ready, *forgotten])

    @staticmethod
    def _drop(stream: Stream, keep: int) -> None:
        del stream.entries[max(0, keep) :]
        stream.places = {name: seq for name, seq in stream.places.items() if seq <= keep}
        for group in stream.groups.values():
            group.ready = [seq for seq in group.ready if seq <= keep]
            group.settled = {seq for seq in group.settled if seq <= keep}
            group.shown = {seq for seq in group.shown if seq <= keep}

    def gone(self, link: Link) -> None:
        """A connection ended: what it had not settled is ready again."""
        if link not in self.links:
            return
        del self.links[link]
        for stream in self.streams.values():
            for group in stream.groups.values():
                back = [seq for seq, holder in group.flights.items() if holder is link]
                for seq in back:
                    del group.flights[seq]
                group.ready = sorted([*group.ready, *back])
                group.members = [member for member in group.members if member is not link]
                self._deliver(stream, group)

    # Requests.

    def take(self, link: Link, message: Message) -> None:
        """A message arrived."""
        payload = message["payload"]
        match message["type"]:
            case "hub:connect":
                self._answer(link, message, "hub:connected", {})
            case "hub:topic_create":
                self._stream(payload["topic"])
                self._answer(link, message, "hub:topic_created", {})
            case "hub:register":
                stream = self._stream(payload["actorAddress"])
                self._answer(link, message, "hub:registered", {})
                self._join(stream, "mailbox", "mailbox", link)
            case "hub:subscribe":
                stream, name = self._stream(payload["topic"]), payload["subscription"]
                named = {"subscriptionId": f"{stream.name}|{name}", "recovered": True}
                self._answer(link, message, "hub:subscribed", named)
                self._join(stream, name, payload["mode"], link)
            case "hub:publish":
                self._append(link, message, payload["topic"], "hub:published")
            case "hub:send":
                self._append(link, message, payload["to"], "hub:delivery_ack")
            case "hub:ack" | "hub:nack":
                self._settle(link, message)
            case "hub:replay":
                self._replay(link, message)

    def _answer(self, link: Link, request: Message, type: str, payload: Any) -> None:
        if link in self.links:
            link.send(type, payload, correlation_id=request["id"])

    def _stream(self, name: str) -> Stream:
        return self.streams.setdefault(name, Stream(name))

    def _join(self, stream: Stream, name: str, mode: str, link: Link) -> None:
        group = stream.groups.get(name)
        if group is None:
            ready = list(range(1, len(stream.entries) + 1))
            group = stream.groups[name] = Group(mode, ready)
        group.members.append(link)
        self._deliver(stream, group)

    def _append(self, link: Link, message: Message, name: str, reply: str) -> None:
        stream, payload = self._stream(name), message["payload"]
        place = (message["from"], message["id"])
        seq = stream.places.get(place)
        if seq is None or self._fault == "append_twice":
            key = payload.get("key", "")
            entry = Entry(message["from"], message["id"], payload["type"], payload["data"], key)
            stream.entries.append(entry)
            seq = stream.places[place] = len(stream.entries)
            for group in stream.groups.values():
                group.ready.append(seq)
                self._deliver(stream, group)
        answer: Message = {"epoch": EPOCH, "seq": seq}
        if self._fault == "refuse_and_keep" and seq % 50 == 0:
            reply, answer = "hub:error", {"code": "storage_full", "retryable": False}
        # As if a disk had to be waited for: a restart may come first.
        asyncio.get_running_loop().call_later(ANSWER_S, self._answer, link, message, reply, answer)

    # Delivery.

    def _deliver(self, stream: Stream, group: Group) -> None:
        waiting: list[int] = []
        holders = {stream.entries[seq - 1].key: link for seq, link in group.flights.items()}
        blocked: set[str] = set()
        for seq in group.ready[:: -1 if self._fault == "newest_first" else 1]:
            if self._fault == "lose_one" and seq == LOST_SEQ:
                group.settled.add(seq)
                continue
            key = stream.entries[seq - 1].key
            if self._waits_for_a_pair(stream, group, key):
                waiting.append(seq)
                continue
            link = self._chosen(group, seq, key)
            if group.mode == "key-shared" and holders.get(key, link) is not link:
                blocked.add(key)
            if link is None or (group.mode == "key-shared" and key in blocked):
                waiting.append(seq)
                continue
            holders[key] = group.flights[seq] = link
            self._send_copy(stream, group, seq, link)
        group.ready = sorted(waiting)

    def _waits_for_a_pair(self, stream: Stream, group: Group, key: str) -> bool:
        """One entry of a key alone cannot come in the wrong order, and chance might send no two."""
        if self._fault != "newest_first" or group.mode != "key-shared":
            return False
        return sum(stream.entries[seq - 1].key == key for seq in group.ready) < 2

    @staticmethod
    def _chosen(group: Group, seq: int, key: str) -> Link | None:
        if not group.members:
            return None
        match group.mode:
            case "shared":
                return group.members[seq % len(group.members)]
            case "key-shared":
                return group.members[crc32(key.encode()) % len(group.members)]
        return group.members[0]

    def _send_copy(self, stream: Stream, group: Group, seq: int, link: Link) -> None:
        is_marked = seq in group.shown and self._fault != "no_marks"
        attempt = 2 if is_marked else 1
        delivery = {"epoch": EPOCH, "seq": seq, "attempt": attempt, "redelivered": is_marked}
        group.shown.add(seq)
        entry = stream.entries[seq - 1]
        link.send(entry.type, entry.data, {"delivery": delivery}, sender=entry.sender)

    def _settle(self, link: Link, message: Message) -> None:
        payload = message["payload"]
        stream, group = self._named(payload)
        seqs = payload.get("seqs") or [payload.get("seq")]
        if "upTo" in payload:
            seqs = [seq for seq in group.flights if seq <= payload["upTo"]]
        ignored = [seq for seq in seqs if group.flights.get(seq) is not link]
        for seq in set(seqs) - set(ignored):
            del group.flights[seq]
            if message["type"] == "hub:ack":
                group.settled.add(seq)
            else:
                group.ready = sorted([*group.ready, seq])
        if message["pattern"] == "ask":
            self._answer(link, message, "hub:acked", {"ignored": ignored})
        self._deliver(stream, group)

    def _named(self, payload: Message) -> tuple[Stream, Group]:
        if "stream" in payload:
            topic, name = payload["stream"], "mailbox"
        elif "subscriptionId" in payload:
            topic, _, name = payload["subscriptionId"].rpartition("|")
        else:
            topic, name = payload["topic"], payload["subscription"]
        return self.streams[topic], self.streams[topic].groups[name]

    def _replay(self, link: Link, message: Message) -> None:
        payload = message["payload"]
        entries = self.streams[payload["topic"]].entries
        first = payload["fromSeq"]
        page = entries[first - 1 : first - 1 + payload["limit"]]
        for seq, entry in enumerate(page, start=first):
            metadata = {"replay": True, "delivery": {"epoch": EPOCH, "seq": seq}}
            link.send(entry.type, entry.data, metadata, sender=entry.sender)
        following = first + len(page)
        answer = {
            "count": len(page),
            "complete": following > len(entries),
            "next": following,
        }
        self._answer(link, message, "hub:replayed", answer)
