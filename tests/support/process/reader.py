"""Readers: write down what arrives, then settle it, and come back whenever the hub does."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from random import Random
from typing import Any, NamedTuple

from tests.support.process.ledger import Ledger
from tests.support.process.lines import Joined, Noted, Received, Settled
from tests.support.process.link import BROKEN, RETRY_S, connect
from tests.support.process.plans import ReaderPlan
from tests.support.socket.peer import Envelope, Peer

REPLAY_PAGE = 500
BACKOFF_MS = 20


class Arrival(NamedTuple):
    """A copy that waits to be settled."""

    epoch: str
    seq: int
    delivery_id: str | None
    is_marked: bool


class Reader:
    """A consumer of a subscription, or the owner of a durable mailbox."""

    def __init__(
        self, plan: ReaderPlan, port: int, ledger: Ledger, random: Random, quiet_s: float
    ) -> None:
        self._plan = plan
        self._port = port
        self._ledger = ledger
        self._random = random
        self._quiet_s = quiet_s
        self._peer: Peer | None = None
        self._session = ""
        self._sessions = 0
        self._name: dict[str, Any] = {}
        self._arrivals: list[Arrival] = []
        self._settling: dict[str, list[Arrival]] = {}
        self._processed: tuple[str, int] | None = None
        self._leave_at_s = float("inf")
        self._heard_at_s = 0.0
        self.moved_at_s = 0.0
        self._finishing = asyncio.Event()

    @property
    def is_ready(self) -> bool:
        return self._peer is not None

    def is_done(self, now_s: float) -> bool:
        is_quiet = now_s - self._heard_at_s > self._quiet_s
        return self._finishing.is_set() and self._peer is not None and is_quiet

    def finish(self) -> None:
        """Stay, take everything, and be done once nothing more comes."""
        self._finishing.set()
        self._leave_at_s = float("inf")
        self._heard_at_s = time.monotonic()

    async def run(self) -> None:
        """Be connected for ever, except for the absences that are planned."""
        plan = self._plan
        address = plan.stream if plan.mode == "mailbox" else f"@(chaos/{plan.consumer})"
        while True:
            peer = await connect(self._port, address, self._random, "ack")
            try:
                if await self._join(peer):
                    self._peer = peer
                while self._peer is peer:
                    await self._listen(peer)
            except BROKEN:
                self._peer = None
            finally:
                peer.abort()
            self._arrivals.clear()
            self._settling.clear()
            await asyncio.sleep(RETRY_S)
            with suppress(TimeoutError):
                async with asyncio.timeout(plan.away_s * self._random.uniform(0.5, 1.5)):
                    await self._finishing.wait()

    async def _listen(self, peer: Peer) -> None:
        try:
            message = await peer.receive()
        except TimeoutError:
            # A standby has nothing to hear, and a socket that ends says so.
            return
        if self._peer is peer:
            self._hear(message)

    async def _join(self, peer: Peer) -> bool:
        plan = self._plan
        if plan.mode == "mailbox":
            reply = await peer.register(plan.stream, "receive", durable=True)
            self._name = {"stream": plan.stream}
        else:
            reply = await peer.ask("hub:subscribe", self._wish())
            self._name = {"subscriptionId": reply["payload"].get("subscriptionId")}
            if plan.settle == "each":
                self._name = {"topic": plan.stream, "subscription": plan.subscription}
        now_s = self._heard_at_s = time.monotonic()
        if reply["type"] not in ("hub:registered", "hub:subscribed"):
            self._ledger.write(Noted(now_s, f"join: {reply['payload'].get('code')}"))
            return False
        self._sessions += 1
        self._session = f"{plan.consumer}#{self._sessions}"
        if plan.stay_s and not self._finishing.is_set():
            self._leave_at_s = now_s + plan.stay_s * self._random.uniform(0.5, 1.5)
        is_recovered = reply["payload"].get("recovered", True)
        names = (self._session, plan.consumer, plan.stream, plan.subscription)
        self._ledger.write(Joined(now_s, *names, plan.mode, is_recovered))
        return True

    def _wish(self) -> dict[str, Any]:
        plan = self._plan
        wish: dict[str, Any] = {
            "topic": plan.stream,
            "subscription": plan.subscription,
            "mode": plan.mode,
            "from": "earliest",
            "consumer": plan.consumer,
            "backoffMs": BACKOFF_MS,
        }
        if plan.settle == "up_to" and self._processed is not None:
            epoch, seq = self._processed
            wish["resume"] = {"epoch": epoch, "seq": seq}
        return wish

    def _hear(self, message: Envelope) -> None:
        now_s = time.monotonic()
        delivery = message["metadata"].get("delivery")
        if delivery is not None:
            self._heard_at_s = self.moved_at_s = now_s
            epoch, seq = delivery["epoch"], delivery["seq"]
            is_marked = delivery["redelivered"] and delivery["attempt"] > 1
            self._arrivals.append(Arrival(epoch, seq, delivery.get("id"), is_marked))
            self._ledger.write(
                Received(now_s, self._session, epoch, seq, message["payload"]["id"], is_marked)
            )
        elif (settled := self._settling.pop(message["correlationId"] or "", None)) is not None:
            self._confirm(message, settled, now_s)
        elif message["type"] in ("hub:error", "hub:unsubscribed", "hub:disconnect"):
            reason = message["payload"].get("code") or message["payload"].get("reason")
            self._ledger.write(Noted(now_s, f"{message['type']}: {reason}"))

    def _confirm(self, reply: Envelope, settled: list[Arrival], now_s: float) -> None:
        if reply["type"] != "hub:acked":
            self._ledger.write(Noted(now_s, f"settle: {reply['payload'].get('code')}"))
            return
        ignored = set(reply["payload"]["ignored"])
        for arrival in settled:
            if arrival.seq not in ignored:
                self._ledger.write(Settled(now_s, self._session, arrival.epoch, arrival.seq))

    def prepare(self, now_s: float) -> None:
        """Receipts are noted as they come; only leaving has its hour."""
        if self._peer is not None and now_s >= self._leave_at_s:
            self._leave_at_s = float("inf")
            self._arrivals.clear()
            self._peer.abort()
            self._peer = None

    def flush(self) -> None:
        """The receipts are on disk: settle."""
        arrivals, self._arrivals = self._arrivals, []
        if self._peer is None or not arrivals:
            return
        accepted: list[Arrival] = []
        turned_down: list[Arrival] = []
        for arrival in arrivals:
            is_liked = arrival.is_marked or self._random.random() >= self._plan.nack_share
            (accepted if is_liked or self._finishing.is_set() else turned_down).append(arrival)
        if turned_down:
            payload = {"seqs": [one.seq for one in turned_down], "reason": "not now"}
            self._say(self._peer, "hub:nack", turned_down[0].epoch, payload)
        if accepted:
            last = max(accepted, key=lambda one: one.seq)
            self._processed = (last.epoch, last.seq)
            self._accept(self._peer, accepted)

    def _accept(self, peer: Peer, arrivals: list[Arrival]) -> None:
        payload: dict[str, Any]
        match self._plan.settle:
            case "each":
                for one in arrivals:
                    payload = {"seq": one.seq}
                    if one.delivery_id is not None:
                        payload["id"] = one.delivery_id
                    self._say(peer, "hub:ack", one.epoch, payload, [one])
            case "list":
                payload = {"seqs": [one.seq for one in arrivals]}
                self._say(peer, "hub:ack", arrivals[0].epoch, payload, arrivals)
            case "up_to":
                payload = {"upTo": max(one.seq for one in arrivals)}
                self._say(peer, "hub:ack", arrivals[0].epoch, payload, arrivals)

    def _say(
        self,
        peer: Peer,
        type: str,
        epoch: str,
        payload: dict[str, Any],
        settles: list[Arrival] | None = None,
    ) -> None:
        is_confirmed = settles is not None and self._plan.is_confirmed
        whole = self._name | {"epoch": epoch} | payload
        message_id = peer.send(type, whole, pattern="ask" if is_confirmed else "tell")
        if settles is not None and is_confirmed:
            self._settling[message_id] = settles


class Replay:
    """Reads a whole topic again, once, page by page."""

    def __init__(self, plan: ReaderPlan, port: int, ledger: Ledger, random: Random) -> None:
        self._plan = plan
        self._port = port
        self._ledger = ledger
        self._random = random
        self._is_over = False
        self.is_ready = True
        self.moved_at_s = 0.0

    def is_done(self, now_s: float) -> bool:
        return self._is_over

    async def run(self) -> None:
        plan = self._plan
        peer = await connect(self._port, f"@(chaos/{plan.consumer})", self._random)
        names = (plan.consumer, plan.consumer, plan.stream, plan.subscription)
        self._ledger.write(Joined(time.monotonic(), *names, "replay"))
        next_seq: int | None = 1
        while next_seq is not None:
            next_seq = await self._page(peer, next_seq)
        peer.abort()
        self._is_over = True

    async def _page(self, peer: Peer, first_seq: int) -> int | None:
        wish = {"topic": self._plan.stream, "fromSeq": first_seq, "limit": REPLAY_PAGE}
        request = peer.send("hub:replay", wish, pattern="ask")
        while (message := await peer.receive())["correlationId"] != request:
            assert message["metadata"]["replay"] is True, message
            delivery = message["metadata"]["delivery"]
            epoch, seq, message_id = delivery["epoch"], delivery["seq"], message["payload"]["id"]
            now_s = self.moved_at_s = time.monotonic()
            self._ledger.write(Received(now_s, self._plan.consumer, epoch, seq, message_id))
        assert message["type"] == "hub:replayed", message
        answer = message["payload"]
        return None if answer["complete"] or not answer["count"] else answer["next"]

    def finish(self) -> None:
        """It ends by itself."""

    def prepare(self, now_s: float) -> None:
        """It sends nothing in the beat of the others."""

    def flush(self) -> None:
        """It settles nothing."""
