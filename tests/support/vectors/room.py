"""Plays a case of kind `room`: one member, on a socket and in a time that the case moves."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from signalhub.client.protocol.effects import Drop, Failed, Reported, SendFrame, Stop, Warned
from signalhub.client.protocol.events import MessagesDeleted, PositionsSkipped, RoomRewound
from signalhub.client.rooms.answers import InboxPage, Missed, RoomMessage
from signalhub.client.rooms.protocol import (
    Effect,
    FetchPage,
    Joined,
    MessageAccepted,
    RoomProtocol,
)
from signalhub.testing import FakeClock
from signalhub.wire.base64url import encoded
from signalhub.wire.errors import GaveUp, Refused, Unavailable
from tests.support.vectors.client import error_facts, plain
from tests.support.vectors.matching import Kept, seqs

_WAKES_MAX = 10_000


class RoomStage:
    """One member and its hub; the steps are methods named after them."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        numbers = list(given.get("random") or [0.0])
        self.clock = FakeClock()
        self.kept = Kept()
        self.protocol = RoomProtocol(
            given.get("pseudonym", "p1"),
            given.get("since", 0),
            lambda: numbers.pop(0) if len(numbers) > 1 else numbers[0],
        )
        self._frames: list[dict[str, Any]] = []
        self._fetches: list[int] = []
        self._events: list[dict[str, Any]] = []
        self._outcomes: dict[str, dict[str, Any] | None] = {}
        self._is_drained = False

    def play(self, steps: list[dict[str, Any]]) -> None:
        """Take the steps, one after another; an error says at which."""
        for index, step in enumerate(steps):
            name, *others = step
            try:
                members = {other: step[other] for other in others}
                getattr(self, f"step_{name}")(step[name], **members)
            except AssertionError as error:
                raise AssertionError(f"at step {index + 1}, {json.dumps(step)}: {error}") from error

    def end(self) -> None:
        """Nothing is left that no step has looked at."""
        assert not self._frames or self._is_drained, f"not looked at: {self._frames}"

    @property
    def _now_s(self) -> float:
        return self.clock.mono_s()

    def _perform(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case SendFrame(frame=frame):
                    self._frames.append(json.loads(frame))
                case FetchPage(from_seq=from_seq):
                    self._fetches.append(from_seq)
                case MessageAccepted(id=message_id, sent=sent):
                    self._finish(message_id, plain(sent))
                case Failed(id=message_id, error=error):
                    self._finish(message_id, {"error": error_facts(error)})
                case Joined():
                    self._events.append({"type": "joined"})
                case Drop(reason=reason):
                    self._events.append({"type": "drop", "reason": reason})
                    self._perform(self.protocol.lost(None))
                case Stop(error=error):
                    self._events.append({"type": "stopped", **error_facts(error)})
                case Warned(facts=facts):
                    self._events.append({"type": "warning", "facts": facts})
                case Reported(event=MessagesDeleted() as event):
                    self._events.append({"type": "deleted", **plain(event)})
                case Reported(event=PositionsSkipped() as event):
                    self._events.append({"type": "skipped", **plain(event)})
                case Reported(event=RoomRewound() as event):
                    self._events.append({"type": "rewound", **plain(event)})

    def _finish(self, message_id: str, outcome: dict[str, Any]) -> None:
        assert self._outcomes[message_id] is None, f"{message_id} ends twice"
        self._outcomes[message_id] = outcome

    # What the hub and the network do.

    def step_open(self, _: Any) -> None:
        self._perform(self.protocol.opened(self._now_s))

    def step_join(self, last_seq: int) -> None:
        self.step_open({})
        self.step_hear({"action": "welcome", "lastSeq": last_seq, "oldestBufferedSeq": 1})

    def step_hear(self, frame: dict[str, Any]) -> None:
        self.step_hear_text(json.dumps(self.kept.filled(frame)))

    def step_hear_text(self, text: str) -> None:
        self._perform(self.protocol.received(text.encode(), self._now_s))

    def step_live(self, listed: Any) -> None:
        for seq in seqs(listed):
            members = {"seq": seq, "messageId": f"m{seq}", "ciphertext": encoded(b"x")}
            self.step_hear({"action": "message", "type": "mls_app", **members})

    def step_lose(self, close_code: int | None) -> None:
        self._perform(self.protocol.lost(close_code))

    def step_congested(self, is_congested: bool) -> None:
        self._perform(self.protocol.congested(is_congested, self._now_s))

    def step_wait_ms(self, ms: float) -> None:
        end_s = self._now_s + ms / 1000
        for _ in range(_WAKES_MAX):
            wake_at_s = self.protocol.wake_at_s()
            if wake_at_s is None or wake_at_s > end_s:
                break
            if wake_at_s <= self._now_s:
                # What it waits for is not a matter of time; it was told so just now.
                wake_at_s = min(end_s, self._now_s + 0.001)
            self.clock.advance(wake_at_s - self._now_s)
            self._perform(self.protocol.tick(self._now_s))
        self.clock.advance(max(0.0, end_s - self._now_s))
        self._perform(self.protocol.tick(self._now_s))

    def step_page(self, said: dict[str, Any]) -> None:
        asked, listed = said["from"], said.get("seqs", [])
        if isinstance(listed, dict) or not all(isinstance(one, dict) for one in listed):
            listed = [{"seq": seq, "messageId": f"m{seq}"} for seq in seqs(listed)]
        messages = tuple(
            RoomMessage(seq=one["seq"], message_id=one["messageId"], ciphertext=b"x")
            for one in listed
        )
        page = InboxPage(
            messages=messages,
            next_seq=said.get("nextSeq", messages[-1].seq + 1 if messages else asked),
            is_partial=said.get("partial", False),
            skipped=tuple(Missed(*ends) for ends in said.get("skipped", [])),
        )
        self._perform(self.protocol.fetched(asked, page, self._now_s))

    def step_no_page(self, said: dict[str, Any]) -> None:
        wait_ms = said["retry_after_ms"]
        error = Refused("BAD_REQUEST", "no") if wait_ms is None else Unavailable("busy")
        wait_s = None if wait_ms is None else wait_ms / 1000
        self._perform(self.protocol.not_fetched(error, wait_s, self._now_s))

    # What the program does.

    def step_call(self, call: list[Any], options: Mapping[str, Any] | None = None) -> None:
        method, message_id, text = call
        assert method == "send", f"{method} is no method of a room"
        chosen = options or {}
        data = b"x" * text["size"] if isinstance(text, dict) else text.encode()
        members = {"ciphertext": encoded(data), "type": chosen.get("type", "mls_app")}
        deadline_s = self._now_s + chosen.get("timeoutMs", 1_000_000) / 1000
        before = self._outcomes.get(message_id)
        self._outcomes[message_id] = None
        try:
            effects = self.protocol.submit(message_id, data, members, deadline_s, self._now_s)
        except ValueError as error:
            self._outcomes[message_id] = before
            self._outcomes[f"{message_id} again"] = {"error": error_facts(error)}
        else:
            self._perform(effects)

    def step_cancel(self, message_id: str) -> None:
        self.protocol.forget(message_id)

    def step_give_up(self, why: str) -> None:
        self._perform(self.protocol.stop(GaveUp(why)))

    def step_repeat(self, times: int, steps: list[dict[str, Any]]) -> None:
        for number in range(1, times + 1):
            self.kept.keep("$n", number)
            self.play([self.kept.filled(step) for step in steps])

    def step_take(self, listed: Any) -> None:
        assert [one["seq"] for one in self._take()] == seqs(listed)

    def step_take_some(self, count: int) -> None:
        for _ in range(count):
            _, effects = self.protocol.take(self._now_s)
            self._perform(effects)

    def step_took(self, expected: list[Any]) -> None:
        self.kept.check(expected, self._take(), "messages")

    def _take(self) -> list[dict[str, Any]]:
        taken: list[dict[str, Any]] = []
        while True:
            message, effects = self.protocol.take(self._now_s)
            self._perform(effects)
            if message is None:
                return taken
            taken.append(plain(message) | {"ciphertext": message.ciphertext.decode()})

    # What is expected.

    def step_sent(self, expected: Any) -> None:
        match expected:
            case "nothing":
                assert self._frames == []
            case list():
                frames, self._frames = self._frames, []
                self.kept.check(expected, frames, "frames")
            case _:
                assert self._frames, "nothing was written"
                self.kept.check(expected, self._frames.pop(0), "frame")

    def step_sent_exactly(self, expected: dict[str, Any]) -> None:
        assert self._frames, "nothing was written"
        self.kept.check(expected, self._frames.pop(0), "frame", exactly=True)

    def step_wrote(self, message_ids: list[str]) -> None:
        frames, self._frames = self._frames, []
        assert [frame.get("messageId") for frame in frames] == message_ids

    def step_drain(self, _: bool) -> None:
        self._frames.clear()
        self._is_drained = True

    def step_done(self, message_id: str, value: Any = "$any") -> None:
        outcome = self._outcomes[message_id]
        assert outcome is not None, "there is no outcome yet"
        assert "error" not in outcome, f"it failed: {outcome}"
        self.kept.check(value, outcome, "value")

    def step_failed(self, message_id: str, **expected: Any) -> None:
        outcome = self._outcomes[message_id]
        assert outcome is not None, "there is no outcome yet"
        self.kept.check(expected, outcome.get("error"), "error")

    def step_pending(self, message_id: str) -> None:
        assert self._outcomes[message_id] is None, "there is an outcome"

    def step_event(self, expected: Any) -> None:
        members = {"type": expected} if isinstance(expected, str) else expected
        for index, event in enumerate(self._events):
            if event["type"] == members["type"]:
                del self._events[index]
                self.kept.check(members, event, "event")
                return
        raise AssertionError(f"there is no such event in {self._events}")

    def step_no_event(self, type: str) -> None:
        assert [event for event in self._events if event["type"] == type] == []

    def step_fetch(self, expected: int | str) -> None:
        fetches, self._fetches = self._fetches, []
        assert fetches == ([] if expected == "nothing" else [expected])

    def step_missed(self, expected: list[list[int]]) -> None:
        missed = [[one.first, one.last] for one in self.protocol.reading.missed]
        assert missed == expected, f"{missed}"

    def step_position(self, expected: int) -> None:
        assert self.protocol.reading.last_seq == expected

    def step_rewound(self, expected: int) -> None:
        assert self.protocol.reading.rewound == expected

    def step_wakes_in_ms(self, expected: float) -> None:
        wake_at_s = self.protocol.reading.wake_at_s
        assert wake_at_s is not None, "it does not wake"
        assert abs((wake_at_s - self._now_s) * 1000 - expected) < 1, f"{wake_at_s - self._now_s} s"


def play_room(case: Mapping[str, Any]) -> None:
    """Play one case."""
    stage = RoomStage(case.get("given", {}))
    stage.play(case["steps"])
    stage.end()
