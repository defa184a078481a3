"""What was given up or could not be read: kept, shown, tried again, and never fatal."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar

import pytest

from signalhub.actors import alias, remote, wire
from signalhub.actors.kernel.calls import WaitingCall
from signalhub.actors.kernel.dead_letters import DeadLetter, Evidence, contents
from signalhub.actors.kernel.events import (
    DeliveryArrived,
    Effect,
    LocateActors,
    SendBatch,
    SettleDelivery,
)
from signalhub.testing.local_actors import CALLER
from tests.support.actors.scripted import Scripted, Stage, Target, stored

HALF_AN_HOUR = 1_800


class Caller(Scripted):
    is_broken: ClassVar[bool] = False

    @remote
    def ask(self, method: str, *args: Any) -> None:
        self.call("target/1", method, *args, then=self.on_done, timeout=None)

    def on_done(self, outcome: Any) -> None:
        if Caller.is_broken:
            raise KeyError("broken")
        self.note(outcome)


class Renamed(Caller):
    """`on_done` is gone."""

    kind = "caller"
    on_done = None  # type: ignore[assignment]


class Found(Renamed):
    """And has become another method."""

    kind = "caller"

    @alias("on_done")
    def on_outcome(self, outcome: Any) -> None:
        self.note(["found", outcome])


def redrive(self: Scripted) -> list[bool]:
    return [self.redrive(letter.id) for letter in self.dead_letters()]


def redrive_and_raise(self: Scripted) -> None:
    assert redrive(self) == [True]
    raise ValueError("no")


def letters(local: Stage) -> list[DeadLetter]:
    return local.kernel.letters.of("caller/1")


@pytest.fixture
def local(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    monkeypatch.setattr(Caller, "is_broken", False)
    return stored(tmp_path, Caller, Target)


@pytest.fixture
def dead(local: Stage) -> Stage:
    """An actor with a dead letter: its continuation failed for a reason that is gone."""
    Caller.is_broken = True
    local.call("caller/1", "ask", "note", 7)
    local.advance(60)
    Caller.is_broken = False
    assert len(letters(local)) == 1
    return local


@pytest.fixture
def renamed(local: Stage) -> Stage:
    """An actor with a pending call whose continuation is gone after a restart."""
    local.call("caller/1", "ask", "later")
    local.restart(Renamed, Target)
    local.run()
    return local


def test_an_actor_sees_its_letters_and_redrives_them(dead: Stage) -> None:
    def errors(self: Scripted) -> list[str]:
        return [letter.error for letter in self.dead_letters()]

    Caller.is_broken = True
    dead.do("caller/1", redrive)
    dead.advance(60)
    assert [letter.attempts for letter in letters(dead)] == [5], "it has failed again"
    Caller.is_broken = False
    dead.restart()
    assert dead.do("caller/1", errors) == ["KeyError: 'broken'"]
    assert dead.do("caller/2", errors) == []
    (letter,) = letters(dead)
    assert dead.do("caller/1", lambda self: self.redrive("01ARZ3NDEKTSV4RRFFQ69G5FAV")) is False

    assert dead.do("caller/1", redrive) == [True]
    assert dead.kernel.letters.redrive("caller/1", letter.id) is False
    assert dead.notes() == [7]
    assert letters(dead) == []
    assert dead.count("pending") == 0


def test_a_redrive_in_a_handler_that_raises_has_not_happened(dead: Stage) -> None:
    with pytest.raises(ValueError, match="no"):
        dead.do("caller/1", redrive_and_raise)
    dead.advance(60)

    assert dead.notes() == []
    assert not dead.kernel.has_work
    assert dead.kernel.counters.late_results == 0
    assert dead.do("caller/1", redrive) == [True]
    assert dead.notes() == [7]


def test_a_letter_can_be_read_and_deleted(dead: Stage) -> None:
    (letter,) = letters(dead)
    shown = contents(dead.kernel.store, "caller/1", letter.id)

    assert shown is not None
    assert (shown["dest"], shown["method"]) == ("target/1", "note")
    assert shown["outcome"] == '{"ok":7}'
    assert shown["then"] == '{"m":"on_done","a":[],"k":{}}'
    assert dead.kernel.letters.purge("caller/1", letter.id) is True
    assert dead.kernel.letters.purge("caller/1", letter.id) is False
    assert contents(dead.kernel.store, "caller/1", letter.id) is None
    assert letters(dead) == []


def test_a_pending_continuation_whose_method_is_gone_is_a_letter_at_the_start(
    local: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    local.call("caller/1", "ask", "later")
    local.restart(Renamed, Target)
    local.run()

    (letter,) = letters(local)
    assert letter.error == "Renamed no longer has a method on_done"
    assert "is set aside" in caplog.text
    assert local.count("pending") == 0


def test_a_renamed_method_is_found_by_its_alias(local: Stage) -> None:
    local.call("caller/1", "ask", "later")
    local.restart(Found, Target)
    local.call("target/1", "answer", 8)

    assert local.notes() == [["found", 8]]


@pytest.mark.parametrize("is_early", [True, False])
def test_an_outcome_may_come_before_or_after_a_redrive(renamed: Stage, is_early: bool) -> None:
    if is_early:
        renamed.call("target/1", "answer", 8)
    assert renamed.kernel.counters.late_results == 0
    renamed.restart(Found, Target)
    assert renamed.do("caller/1", redrive) == [True]
    if not is_early:
        assert renamed.notes() == []
        renamed.call("target/1", "answer", 8)

    assert renamed.notes() == [["found", 8]]


def test_a_second_outcome_for_a_letter_is_late(renamed: Stage) -> None:
    (letter,) = letters(renamed)
    add = renamed.kernel.letters.add_outcome

    assert add("caller/1", letter.call_id, b'{"ok":1}') is True
    assert add("caller/1", letter.call_id, b'{"ok":2}') is False


def test_a_continuation_whose_method_is_gone_is_not_tried_again(local: Stage) -> None:
    Caller.is_broken = True
    local.call("caller/1", "ask", "note", 7)
    local.restart(Renamed, Target)
    local.advance(2)

    (letter,) = letters(local)
    assert "Renamed has no method on_done; if it was renamed, add @alias" in letter.error
    local.restart(Found, Target)
    assert local.do("caller/1", redrive) == [True]
    assert local.notes() == [["found", 7]]


@pytest.mark.parametrize(
    ("column", "expected"),
    [('"then"', "invalid payload"), ("context", "the context of the call cannot be read")],
)
def test_what_is_stored_and_cannot_be_read_is_a_letter_and_not_a_crash(
    local: Stage, column: str, expected: str
) -> None:
    local.call("caller/1", "ask", "later")
    with local.kernel.store.transaction():
        local.kernel.store.execute(f"UPDATE pending SET {column} = ?", (b"nonsense",))
    local.restart()
    local.call("target/1", "answer", 8)

    (letter,) = letters(local)
    assert expected in letter.error


def test_a_catch_that_is_gone_is_a_letter_at_the_start_as_well(local: Stage) -> None:
    def call(self: Caller) -> None:
        self.call("target/1", "later", then=self.note, catch=self.on_done)

    local.do("caller/1", call)
    local.restart(Renamed, Target)
    local.run()

    assert "no longer has a method on_done" in letters(local)[0].error


def test_calls_of_a_kind_that_is_no_longer_served_are_left_alone(local: Stage) -> None:
    local.call("caller/1", "ask", "later")
    local.restart(Target)
    local.run()

    assert letters(local) == []
    local.restart(Caller, Target)
    local.call("target/1", "answer", 8)
    assert local.notes() == [8]


def test_what_could_not_be_read_is_shown_and_cannot_be_redriven(local: Stage) -> None:
    local.deliver(wire.BATCH, b"\xffnonsense", "@(actors/new)")
    local.run()
    (letter,) = local.kernel.letters.of("")

    shown = contents(local.kernel.store, "", letter.id)
    assert shown is not None
    assert "nonsense" in shown["data"]
    assert local.kernel.letters.redrive("", letter.id) is False
    assert len(local.kernel.letters.of("")) == 1


@pytest.mark.parametrize("outcome", [None, b"{}"])
def test_a_call_can_be_restored_from_its_evidence(local: Stage, outcome: bytes | None) -> None:
    calls = local.kernel.calls
    waiting = WaitingCall("c1", "target/1", "note", b"then", b"catch", True, b"null")
    evidence = Evidence.of(waiting, outcome)

    item = calls.restore("caller/1", "c1", evidence)

    assert calls.find("caller/1", "c1") == waiting
    assert evidence.outcome == outcome
    assert (item is None) == (outcome is None)


class Silent(Stage):
    """A hub that does not say where `target/1` lives, until it does."""

    is_silent = True

    def _perform(self, effect: Effect) -> None:
        if self.is_silent and isinstance(effect, LocateActors) and "target/1" in effect.actors:
            return
        super()._perform(effect)


@pytest.fixture
def silent() -> Silent:
    return Silent(Caller, Target)


def send(self: Caller, value: Any = 7) -> None:
    self.send("target/1", "note", value)


@pytest.mark.parametrize("is_ordered", [True, False])
def test_a_call_without_a_timeout_ends_after_half_an_hour(silent: Silent, is_ordered: bool) -> None:
    def call(self: Caller) -> None:
        self.call("target/1", "note", then=self.note, timeout=None, ordered=is_ordered)

    silent.do("caller/1", call)
    silent.advance(HALF_AN_HOUR - 1)
    assert silent.notes() == []
    silent.advance(6)

    assert silent.notes()[0].startswith("CallUndeliverable")
    assert silent.count("outbox", "pending") == 0


def test_calls_and_sends_wait_in_order_until_their_target_is_found(silent: Silent) -> None:
    silent.call("caller/1", "ask", "note", "call")
    for number in range(5):
        silent.do("caller/1", send, number)
    silent.advance(HALF_AN_HOUR - 60)
    silent.is_silent = False
    for number in range(5, 10):
        silent.do("caller/1", send, number)
    silent.advance(30)

    assert silent.notes("target/1") == ["call", *range(10)]
    assert silent.notes() == ["call"]


def test_a_send_that_finds_no_receiver_is_a_letter_and_can_be_sent_again(silent: Silent) -> None:
    silent.do("caller/1", send)
    silent.advance(HALF_AN_HOUR + 6)
    (letter,) = letters(silent)
    assert (letter.origin, letter.error) == ("send", "no receipt within 1800 s")
    shown = contents(silent.kernel.store, "caller/1", letter.id)
    assert shown is not None
    assert shown["dest"] == "target/1"

    silent.is_silent = False
    silent.call("target/1", "note", "is here by now")
    with pytest.raises(ValueError, match="no"):
        silent.do("caller/1", redrive_and_raise)
    silent.advance(30)
    assert silent.notes("target/1") == ["is here by now"]
    assert len(letters(silent)) == 1

    assert silent.do("caller/1", redrive) == [True]
    assert silent.notes("target/1") == ["is here by now", 7]
    assert letters(silent) == []


PEER = "@(actors/elsewhere)"


@pytest.fixture
def host() -> Stage:
    host = Stage(Target)
    host.call("target/1", "note", "here")
    return host


def deliver(host: Stage, type: str, data: bytes, sender: str) -> list[Effect]:
    event = DeliveryArrived(type, data, sender, host.clock.now_ms(), "it")
    effects = host.kernel.turn([event], host.clock.now_ms())
    assert SettleDelivery("it") in effects
    host.run()
    return effects


def request(version: int, sender: str = "", to: str = "target/1", kind: str = "request") -> bytes:
    message = {"kind": kind, "call": "c-1", "to": to, "from": sender}
    body = {"m": "note", "a": ["done"], "k": {}}
    return json.dumps({"v": version, "messages": [message | {"body": body}]}).encode()


@pytest.mark.parametrize(
    ("data", "text"),
    [(request(2), b"version 2"), (request(1, to="Not A Name"), b"invalid address")],
    ids=["version", "address"],
)
def test_a_call_that_cannot_be_done_is_an_error(host: Stage, data: bytes, text: bytes) -> None:
    effects = deliver(host, wire.CALL, data, CALLER)

    (answer,) = (one for one in effects if isinstance(one, SendBatch))
    assert answer.to == CALLER
    ((result, _),) = wire.split(answer.data)
    assert result.call == "c-1"
    assert text in bytes(result.body)
    assert host.notes("target/1") == ["here"]
    assert host.count("inbox") == 0


@pytest.mark.parametrize(
    ("type", "data", "sender", "error"),
    [
        (wire.BATCH, request(1, "order/17"), "@(callers/mallory)", "is not a host"),
        # Not only hosts may have such an address and send what is no batch.
        ("chat:line", request(1, "order/17"), PEER, "sent 'chat:line'"),
        (wire.RESULT, request(1, "order/17", kind="result"), PEER, "sent 'actors:result'"),
        ("chat:line", request(2, "order/17"), PEER, "sent 'chat:line'"),
        (wire.BATCH, request(1, "nobody at all"), PEER, "invalid sender"),
        (wire.BATCH, request(1, "@no such (address"), PEER, "invalid sender"),
        (wire.CALL, request(1, kind="result"), CALLER, "can only make requests"),
        (wire.BATCH, b'{"v":2,"messages":[]}', PEER, "version 2"),
        (wire.BATCH, b'{"messages":[]}', PEER, ""),
        *[
            (type, data, PEER, "")
            for type in (wire.BATCH, wire.MARK, wire.MOVE, "chat:line")
            for data in (b"[]", b'"\xff"', b'{"v":1}', b'{"v":1,"messages":[7]}', b"nonsense")
        ],
    ],
)
def test_what_cannot_be_read_is_kept_as_evidence_and_answers_nobody(
    host: Stage, type: str, data: bytes, sender: str, error: str
) -> None:
    effects = deliver(host, type, data, sender)

    (letter,) = host.kernel.letters.of("")
    assert letter.origin == "unreadable"
    assert error in letter.error
    assert host.kernel.counters.unreadable == 1
    assert all(isinstance(effect, SettleDelivery) for effect in effects)
    assert host.notes("target/1") == ["here"]
    assert host.count("outbox") == 0
    assert host.call("target/1", "note", "well") == "well"


def test_a_batch_of_a_host_is_done(host: Stage) -> None:
    deliver(host, wire.BATCH, request(1, "target/1"), PEER)

    assert host.notes("target/1") == ["here", "done"]


def test_only_the_newest_evidence_is_kept(host: Stage) -> None:
    events = [DeliveryArrived("chat:line", b"%d" % n, PEER, 1, n) for n in range(1_010)]
    host.kernel.turn(events, host.clock.now_ms())

    kept = [row[0] for row in host.kernel.store.execute("SELECT payload FROM dead ORDER BY 1")]
    assert len(kept) == 1_000
    assert bytes(max(kept, key=int)) == b"1009"
