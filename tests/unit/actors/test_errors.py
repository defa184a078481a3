"""Errors of calls: what the caller sees of what was raised elsewhere, exits included."""

from __future__ import annotations

import asyncio
import builtins
import copy
import pickle
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from signalhub.actors.api import payload
from signalhub.actors.api.errors import (
    CallError,
    CallTimeout,
    CallUndeliverable,
    RemoteError,
    Retry,
    describe,
    rebuild,
    register_error,
)
from tests.support.actors.scripted import Caller, Scripted, Stage, Target, number_of


@register_error
class OutOfStock(LookupError):
    """Wants arguments that are not known on the other side, and keeps them privately."""

    code = 17

    def __init__(self, sku: str, *, left: int) -> None:
        super().__init__(f"{sku} is sold out")
        self.sku = sku
        self._left = left

    @property
    def left(self) -> int:
        return self._left

    @property
    def name(self) -> str:
        return f"the name of {self.sku}"

    def __str__(self) -> str:
        return f"only {self._left} of {self.sku}"


@register_error
@dataclass(frozen=True)
class FrozenError(Exception):
    where: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "is_made_by_constructor", True)


@register_error
class SlottedError(ValueError):
    __slots__ = ("detail",)


@register_error
class MadeStrangely(OSError):
    def __new__(cls, *args: Any, must_have: int) -> MadeStrangely:
        return super().__new__(cls, *args)

    def __init__(self, *args: Any, must_have: int) -> None:
        super().__init__(*args)
        self.must_have = must_have


class Unknown(ValueError):
    pass


class Stranger(Exception):
    pass


def raised(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as caught:
        return caught


def sent(error: Any) -> Any:
    """What arrives of an error."""
    return rebuild(payload.decode(payload.encode(describe(error))))


def caused_by(error: BaseException | None) -> list[BaseException]:
    causes = []
    while error is not None and error.__cause__ is not None:
        error = error.__cause__
        causes.append(error)
    return causes


def builtin_errors() -> list[type[Exception]]:
    found = {one for one in vars(builtins).values() if isinstance(one, type)}
    special = (StopIteration, StopAsyncIteration, ExceptionGroup)
    errors = {one for one in found if issubclass(one, Exception) and not issubclass(one, special)}
    return sorted(errors - {Exception}, key=lambda one: one.__name__)


def test_a_known_error_is_an_error_of_its_class_and_a_failed_call() -> None:
    outcome = sent(raised(ValueError("too few")))

    assert isinstance(outcome, RemoteError)
    assert (outcome.name, outcome.message, str(outcome)) == ("ValueError", "too few", "too few")
    assert outcome.args == ("too few",)
    with pytest.raises(ValueError, match="too few"):
        raise outcome


def test_the_errors_of_python_are_known_from_the_start() -> None:
    for cls in builtin_errors():
        outcome = sent(cls.__new__(cls))
        assert isinstance(outcome, cls)
        assert isinstance(outcome, RemoteError)
        assert outcome.name == cls.__name__
        assert isinstance(str(outcome) + repr(outcome), str)


def test_attributes_arrive_whoever_keeps_them() -> None:
    lost = sent(raised(FileNotFoundError(2, "gone", "a.txt")))
    assert issubclass(type(lost), FileNotFoundError)
    assert (lost.errno, lost.strerror, lost.filename) == (2, "gone", "a.txt")
    assert lost.message == "[Errno 2] gone: 'a.txt'"
    assert sent(KeyError("sku")).args == ("sku",)

    registered = sent(raised(OutOfStock("mug", left=2)))
    assert issubclass(type(registered), OutOfStock)
    assert (registered.sku, registered.left, registered.code) == ("mug", 2, 17)
    assert (registered.name, registered.message) == ("OutOfStock", "only 2 of mug")
    assert registered.attrs == {"sku": "mug", "_left": 2}

    frozen = sent(FrozenError("here"))
    frozen.call_id = "c1"
    assert isinstance(frozen, FrozenError)
    assert frozen.where == "here"
    assert {frozen: 1}[frozen] == 1
    slotted: Any = SlottedError("x")
    slotted.detail = [1]
    assert sent(slotted).detail == [1]
    strange = sent(MadeStrangely(5, "io", must_have=1))
    assert isinstance(strange, MadeStrangely)
    assert (strange.errno, strange.must_have) == (5, 1)


def test_an_unknown_error_keeps_its_name_and_the_classes_that_are_known() -> None:
    outcome = sent(raised(Unknown("x")))
    assert outcome.name == "Unknown"
    assert isinstance(outcome, ValueError)
    assert not isinstance(outcome, Unknown)

    stranger = sent(Stranger("y"))
    assert type(stranger) is RemoteError
    assert (stranger.name, stranger.message) == ("Stranger", "y")

    impostor = sent(type("KeyError", (Exception,), {})("x"))
    assert not isinstance(impostor, KeyError)
    assert impostor.name == "KeyError"

    data = describe(OutOfStock("mug", left=1))
    data["kinds"] = ["KnownThere", *data["kinds"][1:]]
    assert isinstance(rebuild(data), LookupError)
    assert not isinstance(rebuild(data), OutOfStock)


@pytest.mark.parametrize(
    "error",
    [
        *(SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError()),
        *(StopIteration(1), StopAsyncIteration(), ExceptionGroup("g", [KeyError()])),
    ],
    ids=lambda error: type(error).__name__,
)
def test_what_ends_a_process_a_task_or_a_loop_there_is_an_error_here(error: BaseException) -> None:
    outcome = sent(raised(error))

    assert type(outcome) is RemoteError
    assert outcome.name == type(error).__name__


def test_attributes_that_cannot_be_sent_arrive_as_text_and_never_replace_ours() -> None:
    error: Any = ValueError("x", object)
    error.lock = object
    error.when = timedelta(1)
    error.large = "x" * 200_000
    for name in ("name", "message", "call_id", "args_", "with_traceback", "attrs"):
        setattr(error, name, "theirs")
    outcome = sent(error)

    assert outcome.attrs["lock"] == "<class 'object'>"
    assert outcome.attrs["when"] == timedelta(1)
    assert len(outcome.attrs["large"]) < 600
    assert outcome.args == ("x", "<class 'object'>")
    assert (outcome.name, outcome.call_id) == ("ValueError", None)
    assert outcome.message == "('x', <class 'object'>)"
    assert outcome.attrs["name"] == outcome.attrs["message"] == outcome.args_ == "theirs"
    assert callable(outcome.with_traceback)


def test_up_to_ten_causes_arrive_in_their_order() -> None:
    error = last = ValueError("0")
    for number in range(1, 30):
        last.__cause__ = ValueError(str(number))
        last = last.__cause__
    assert [str(one) for one in caused_by(sent(error))] == [str(n) for n in range(1, 11)]

    error.__cause__ = OutOfStock("mug", left=0)
    error.__cause__.__cause__ = Stranger("inner")
    known, unknown = caused_by(sent(error))
    assert isinstance(known, OutOfStock)
    assert isinstance(unknown, RemoteError)
    assert unknown.name == "Stranger"

    circle = ValueError("circle")
    circle.__cause__, error.__cause__ = error, circle
    assert [str(one) for one in caused_by(sent(error))] == ["circle"]


def test_the_traceback_arrives_as_text_and_of_a_long_one_the_end() -> None:
    def deep(levels: int) -> None:
        if levels:
            # Other than itself in turns, or the text would say "repeated" instead of growing.
            (lambda: deep(levels - 1))()
        else:
            raise ValueError("é" * 10_000 + "the end")

    assert "in raised" in sent(raised(ValueError("x"))).traceback_text
    assert sent(ValueError("never raised")).traceback_text == ""
    with pytest.raises(ValueError, match="the end") as caught:
        deep(50)
    text = sent(caught.value).traceback_text
    assert len(text.encode()) <= 16 * 1024
    assert text.startswith("…")
    assert text.endswith("the end\n")


def test_an_error_passed_on_keeps_its_name_and_tells_both_places() -> None:
    second = sent(raised(sent(raised(OutOfStock("mug", left=1)))))

    assert issubclass(type(second), OutOfStock)
    assert (second.name, second.sku, second.left) == ("OutOfStock", "mug", 1)
    assert second.traceback_text.count("Traceback") == 2


def test_a_timeout_is_stored_and_read_as_one() -> None:
    for executed in ("no", "unknown"):
        outcome = sent(CallTimeout("late", executed=executed, call_id="c1"))
        assert type(outcome) is CallTimeout
        assert (outcome.executed, outcome.call_id, outcome.message) == (executed, "c1", "late")
        assert outcome.name == "CallTimeout"
    lost = sent(CallUndeliverable("no such kind"))
    assert type(lost) is CallUndeliverable
    assert (lost.name, lost.message) == ("CallUndeliverable", "no such kind")


@pytest.mark.parametrize("error", [CallTimeout(executed="no"), CallUndeliverable()])
def test_a_timeout_of_another_call_is_not_taken_for_that_of_this_one(error: CallError) -> None:
    """Raised by a handler, or passed on as it came: this caller's call has been executed."""
    arrived = sent(error)

    for passed_on in [arrived, copy.copy(arrived), raised(type(error)())]:
        outcome = sent(passed_on)
        assert type(outcome) is RemoteError
        assert outcome.name == type(error).__name__
    assert getattr(sent(arrived), "executed", "no") == "no"


@pytest.mark.parametrize("thrown", ["text", 5, None, object()])
def test_what_is_no_error_is_wrapped(thrown: Any) -> None:
    outcome = sent(thrown)

    assert type(outcome) is RemoteError
    assert outcome.message == (thrown if thrown == "text" else repr(thrown))


class Hostile(Exception):
    def __str__(self) -> str:
        raise RuntimeError

    __repr__ = __str__


class HostileAttributes(Exception):
    __slots__ = ("bad",)

    def __getattribute__(self, name: str) -> Any:
        if name == "bad":
            raise RuntimeError
        return super().__getattribute__(name)


@pytest.mark.parametrize("cls", [Hostile, HostileAttributes])
def test_an_error_that_cannot_be_described_is_named_at_least(cls: type[Exception]) -> None:
    error: Any = cls("x")
    error.self = error
    outcome = sent(raised(error))

    assert outcome.name == cls.__name__
    assert outcome.message


def test_descriptions_fit_whatever_the_error_holds() -> None:
    error = ValueError(*["\x00\ud800" * 10_000] * 50)
    last: BaseException = error
    for _ in range(12):
        for number in range(200):
            setattr(last, f"ä{number}" * 40, ["\x00" * 5000])
        last.__cause__ = ValueError("\x00" * 100_000)
        last = last.__cause__

    assert len(payload.encode(describe(raised(error)))) < 2**20


@pytest.mark.parametrize(
    "data",
    [
        *(None, 5, "x", [], {}, {"own": ["CallTimeout"]}),
        {"name": 5, "message": [], "attrs": 7, "args": {}, "causes": 1, "traceback": {}},
        {"name": "X", "kinds": ["ValueError"], "attrs": {"__class__": int, "args": 1, 5: 6}},
        {"name": "X", "kinds": ["UnicodeDecodeError"], "attrs": {"start": "x", "reason": 5}},
        {"name": "X", "kinds": ["OSError"], "args": [1, 2, 3, 4, 5, 6, 7]},
        {"name": "X", "kinds": [["ValueError"], None, "Exception", "__builtins__", "SystemExit"]},
        {"name": "X", "causes": [1, {}, {"name": "Y"}] * 100},
        {"own": "CallTimeout", "attrs": {"executed": "yes"}},
        {"name": "X", "kinds": ["OutOfStock"], "attrs": {"left": 1, "__init__": 1, "__dict__": {}}},
    ],
)
def test_any_description_gives_an_error_that_can_be_used(data: Any) -> None:
    outcome = rebuild(data)

    assert isinstance(outcome, CallError)
    for value, kind in (
        *((outcome.name, str), (outcome.message, str)),
        *((outcome.attrs, dict), (outcome.args, tuple)),
    ):
        assert isinstance(value, kind)
    assert str(outcome) == outcome.message
    assert repr(outcome)
    assert sent(raised(outcome)).name == outcome.name


FIELDS = ["name", "message", "kinds", "args", "attrs", "causes", "own", "__class__"]
junk = st.recursive(
    st.none() | st.integers() | st.sampled_from(["ValueError", "OutOfStock", "args", "own", "x"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(FIELDS), inner, max_size=5)
    ),
    max_leaves=20,
)


@given(junk)
@settings(max_examples=200)
def test_no_description_raises(data: Any) -> None:
    assert isinstance(sent(rebuild(data)), CallError)


def test_outcomes_can_be_copied_and_made_by_hand() -> None:
    outcome = sent(raised(OutOfStock("mug", left=1)))
    outcome.call_id = "c1"

    for other in [copy.copy(outcome), copy.deepcopy(outcome), pickle.loads(pickle.dumps(outcome))]:
        assert issubclass(type(other), OutOfStock)
        assert (other.name, other.left, other.call_id) == ("OutOfStock", 1, "c1")
        assert other.traceback_text == outcome.traceback_text
    assert copy.copy(CallTimeout(executed="no")).executed == "no"
    made = RemoteError("OutOfStock", "no mugs", {"sku": "mug"})
    assert (made.name, made.message, made.attrs) == ("OutOfStock", "no mugs", {"sku": "mug"})
    assert repr(made) == "<RemoteError OutOfStock: 'no mugs'>"
    assert CallError("x").name == "CallError"


def test_only_errors_can_be_registered_each_under_a_name_of_its_own() -> None:
    assert register_error(OutOfStock) is OutOfStock
    with pytest.raises(ValueError, match="'OutOfStock' is already registered"):
        register_error(type("OutOfStock", (Exception,), {}))
    wrong: list[Any] = [int, 5, SystemExit, ValueError("x")]
    for cls in wrong:
        with pytest.raises(TypeError, match="derived from Exception"):
            register_error(cls)
    remote = register_error(type("RemoteOfOurs", (RemoteError,), {}))
    call = register_error(type("CallOfOurs", (CallError,), {}))
    assert isinstance(sent(remote("RemoteOfOurs", "x")), remote)
    assert isinstance(sent(call("x")), call)


@pytest.mark.parametrize(
    ("after", "ms"), [(1.0, 1000), (0, 0), (0.0001, 1), (timedelta(hours=1), 3_600_000)]
)
def test_a_retry_says_when(after: Any, ms: int) -> None:
    assert Retry(after).after_ms == ms
    assert Retry().after == 1.0


@pytest.mark.parametrize("after", [True, "1", -1, float("nan"), float("inf")])
def test_a_retry_is_a_number_of_seconds_from_now(after: Any) -> None:
    kind = ValueError if type(after) in (int, float) else TypeError
    with pytest.raises(kind, match="Retry"):
        Retry(after)


def raise_known(self: Target) -> None:
    self.note("never happened")
    try:
        dict[str, int]()["missing"]
    except KeyError as error:
        raise OutOfStock("mug", left=2) from error


def return_unsendable(self: Target) -> object:
    self.note("never happened")
    return object()


def raise_timeout(self: Target) -> None:
    raise CallTimeout("the one below me was too slow", executed="no")


def test_an_error_reaches_the_continuation_with_its_call_cause_and_traceback() -> None:
    def keep(self: Caller, outcome: Any) -> None:
        seen.append(outcome)

    def call(self: Caller) -> list[str]:
        methods: list[Any] = [raise_known, return_unsendable, raise_timeout]
        then = self.script(keep)
        ids = [self.call("target/1", "run", number_of(one), then=then) for one in methods]
        return [*ids, self.call("target/1", "run", then=then)]

    seen: list[Any] = []
    local = Stage(Caller, Target)
    call_ids = local.do("caller/1", call)
    known, unsendable, relayed, wrong_arguments = seen

    assert [one.call_id for one in seen] == call_ids
    assert issubclass(type(known), OutOfStock)
    assert isinstance(known.__cause__, KeyError)
    assert "in raise_known" in known.traceback_text
    assert "object" in str(unsendable)
    assert type(relayed) is RemoteError
    assert relayed.name == "CallTimeout"
    assert isinstance(wrong_arguments, TypeError)
    assert "missing 1 required positional argument" in str(wrong_arguments)
    assert local.state("target/1").list() == {}
    local.advance(3_600)
    assert len(seen) == 4, "errors are not tried again"


def test_an_error_of_a_send_is_logged_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    local = Stage(Caller, Target)
    local.do("caller/1", lambda self: self.send("target/1", "run", number_of(raise_known)))

    assert "no caller waits for it" in caplog.text
    assert "only 2 of mug" in caplog.text
    assert local.kernel.counters.request_errors == 1


def test_what_an_actor_keeps_outside_its_state_is_gone_after_an_error() -> None:
    def step(self: Any, is_failing: bool) -> int:
        self.count = getattr(self, "count", 0) + 1
        if is_failing:
            raise OutOfStock("mug", left=2)
        count: int = self.count
        return count

    local = Stage(Caller)
    assert [local.do("caller/1", step, False) for _ in range(2)] == [1, 2]
    with pytest.raises(OutOfStock) as caught:
        local.do("caller/1", step, True)

    assert caught.value.left == 2
    assert local.do("caller/1", step, False) == 1
    assert local.notes() == []


EXITS: dict[str, type[BaseException]] = {
    one.__name__: one for one in (SystemExit, GeneratorExit, asyncio.CancelledError)
}


class Fragile(Scripted):
    """Healthy, until it is told to exit."""


class Unwilling(Scripted):
    def on_start(self) -> None:
        raise EXITS[self.key]("2")


def leave(self: Fragile, name: str, *outcome: Any) -> None:
    self.note("left")
    raise EXITS[name]("2")


@pytest.fixture
def local() -> Stage:
    return Stage(Fragile, Unwilling)


@pytest.mark.parametrize("name", EXITS)
def test_whatever_exits_has_failed_like_anything_that_raises(local: Stage, name: str) -> None:
    def go(self: Fragile) -> None:
        self.call("fragile/other", "note", then=self.script(leave, name))
        self.alarms.schedule(1, self.script(leave, name))

    with pytest.raises(RemoteError) as raised:
        local.do("fragile/1", leave, name)
    assert raised.value.name == name
    local.do("fragile/1", go)
    local.start(f"unwilling/{name}", lambda self: None)
    local.advance(600)

    (letter,) = local.kernel.letters.of("fragile/1")
    assert letter.error.startswith(name)
    (alarm,) = local.kernel.alarms.of("fragile/1")
    assert str(alarm.last_error).startswith(name)
    assert local.kernel.counters.unstarted > 0
    assert local.state("fragile/1").list() == {}
    assert local.call("fragile/1", "note", "done") == "done"


def test_an_interrupt_ends_the_turn(local: Stage) -> None:
    def interrupt(self: Fragile) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        local.do("fragile/1", interrupt)
