"""Whatever happens in whatever order, every request ends once and nothing overtakes."""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from signalhub.client.protocol.effects import Answered, Drop, Effect, Failed, Stop
from signalhub.client.protocol.frame import Request
from signalhub.client.protocol.protocol import WAITING_MAX, LinkPhase
from signalhub.wire.errors import GaveUp, OutcomeUnknown, Unavailable
from tests.support.memory.client import BOB, Scene


class ClientModel(RuleBasedStateMachine):
    """Each request has at most one end, exactly one when the client has ended; an end that says
    "did not happen" is true; first sendings to one recipient keep the order of the calls."""

    def __init__(self) -> None:
        super().__init__()
        self.scene = Scene()
        self.requests: dict[str, Request] = {}
        self.open: dict[str, dict[str, Any]] = {}
        self.undecided: Counter[str] = Counter()
        self.first_sent: list[str] = []
        self.order: list[str] = []
        self.has_been_paused = False

    @initialize(rate=st.sampled_from([0, 5, 1000]))
    def begin(self, rate: int) -> None:
        offers = {"messageRate": rate, "messageBurst": rate} if rate else {}
        self.offers = {"capabilities": offers, "heartbeatInterval": 20_000}
        self.scene.connect(**self.offers)
        self.watch()

    @property
    def phase(self) -> LinkPhase:
        return self.scene.protocol.phase

    def watch(self) -> None:
        """Note what was written."""
        for message in self.scene.sent():
            if message["type"] in ("hub:send", "hub:publish"):
                self.open[message["id"]] = message
                self.undecided[message["id"]] += 1
                if message["id"] not in self.first_sent:
                    self.first_sent.append(message["id"])
            elif message["type"] == "hub:heartbeat":
                self.scene.hear("hub:heartbeat_ack", {}, message)

    def made(self, request: Request) -> None:
        self.requests[request.id] = request
        if request.target == BOB:
            self.order.append(request.id)
        self.watch()

    @rule()
    def tell(self) -> None:
        self.made(self.scene.tell("t"))

    @rule(timeout_s=st.sampled_from([1.0, 30.0]), attempts=st.integers(1, 3))
    def ask(self, timeout_s: float, attempts: int) -> None:
        self.made(self.scene.ask("a", timeout_s=timeout_s, attempts=attempts))

    @rule(durable=st.booleans(), attempts=st.integers(1, 3))
    def publish(self, durable: bool, attempts: int) -> None:
        self.made(self.scene.publish("p", durable=durable, attempts=attempts))

    @precondition(lambda self: self.phase is LinkPhase.READY and self.open)
    @rule(data=st.data())
    def answer(self, data: st.DataObject) -> None:
        message = self.open.pop(data.draw(st.sampled_from(sorted(self.open))))
        kind = "hub:published" if message["type"] == "hub:publish" else "hub:delivery_ack"
        self.scene.hear(kind, {}, message)
        self.watch()

    @precondition(lambda self: self.phase is LinkPhase.READY and self.open)
    @rule(
        data=st.data(),
        code=st.sampled_from(
            ["rate_limited", "actor_reconnecting", "storage_full", "unauthorized", "timeout"]
        ),
    )
    def refuse(self, data: st.DataObject, code: str) -> None:
        message = self.open.pop(data.draw(st.sampled_from(sorted(self.open))))
        self.undecided[message["id"]] -= 1
        self.scene.refuse(message, code, details={"retryAfterMs": 300})
        self.watch()

    @precondition(lambda self: self.phase is LinkPhase.READY)
    @rule(type=st.sampled_from(["hub:pause", "hub:resume"]), whom=st.sampled_from([None, BOB]))
    def steer(self, type: str, whom: str | None) -> None:
        # A paused target lets asks overtake the tells to it, as the protocol wants it.
        self.has_been_paused = True
        self.scene.hear(type, {"target": whom} if whom else {})
        self.watch()

    @precondition(lambda self: self.phase is LinkPhase.READY)
    @rule(is_congested=st.booleans())
    def congest(self, is_congested: bool) -> None:
        self.scene.effects += self.scene.protocol.congested(is_congested, self.scene.now)
        self.watch()

    @precondition(lambda self: self.phase is LinkPhase.READY)
    @rule()
    def lose(self) -> None:
        self.scene.lose()
        self.open.clear()

    @precondition(lambda self: self.phase is LinkPhase.DOWN)
    @rule()
    def reconnect(self) -> None:
        self.scene.connect(**self.offers)
        self.watch()

    @rule(seconds=st.sampled_from([0.01, 0.5, 7.0, 61.0]))
    def wait(self, seconds: float) -> None:
        dropped = len(self.scene.of(Drop))
        self.scene.time(seconds)
        self.watch()
        if len(self.scene.of(Drop)) > dropped:
            self.lose()

    def teardown(self) -> None:
        """However it ends, everything ends with it."""
        protocol = self.scene.protocol
        if len(self.requests) % 2:
            self.scene.effects += protocol.leave(self.scene.now)
            self.scene.lose()
        else:
            self.scene.effects += protocol.stop(GaveUp("enough"))
        assert len(self.scene.of(Stop)) == 1
        assert set(self.ends()) == set(self.requests)
        self.no_request_ends_twice()
        self.what_is_said_not_to_have_happened_did_not()

    def ends(self) -> Counter[str]:
        effects: list[Effect] = self.scene.effects
        return Counter(e.id for e in effects if isinstance(e, Answered | Failed))

    @invariant()
    def no_request_ends_twice(self) -> None:
        assert all(count == 1 for count in self.ends().values())

    @invariant()
    def what_is_said_not_to_have_happened_did_not(self) -> None:
        for failed in self.scene.of(Failed):
            request = self.requests[failed.id]
            if isinstance(failed.error, Unavailable) and request.answer is not None:
                assert self.undecided[failed.id] <= 0
            if isinstance(failed.error, OutcomeUnknown):
                assert failed.id in self.first_sent

    @invariant()
    def first_sendings_keep_their_order(self) -> None:
        if not self.has_been_paused:
            sent = [each for each in self.first_sent if each in set(self.order)]
            assert sent == [each for each in self.order if each in set(sent)]

    @invariant()
    def waiting_is_bounded(self) -> None:
        assert 0 <= self.scene.protocol._flow.waiting <= WAITING_MAX


ClientModel.TestCase.settings = settings(
    max_examples=80, stateful_step_count=40, deadline=None, print_blob=True
)
TestClient = ClientModel.TestCase
