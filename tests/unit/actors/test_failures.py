"""Errors on their way: what the caller sees of what was raised elsewhere."""

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


@register_error
class OutOfStock(LookupError):
    """Wants arguments nobody has on the other side, and keeps them privately."""

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


def sent(error: Any) -> CallError:
    """What arrives of an error, over the wire."""
    return rebuild(payload.decode(payload.encode(describe(error))))


def builtin_errors() -> list[type[Exception]]:
    found = {one for one in vars(builtins).values() if isinstance(one, type)}
    errors = [one for one in found if issubclass(one, Exception)]
    special = (StopIteration, StopAsyncIteration, ExceptionGroup)
    return sorted(
        (one for one in errors if one is not Exception and not issubclass(one, special)),
        key=lambda one: one.__name__,
    )


def test_a_known_error_is_an_error_of_its_class_and_a_failed_call() -> None:
    outcome = sent(raised(ValueError("too few")))

    assert isinstance(outcome, CallError)
    assert isinstance(outcome, RemoteError)
    assert isinstance(outcome, ValueError)
    assert (outcome.name, outcome.message, str(outcome)) == ("ValueError", "too few", "too few")
    assert outcome.args == ("too few",)
    with pytest.raises(ValueError, match="too few"):
        raise outcome


@pytest.mark.parametrize("cls", builtin_errors())
def test_the_errors_of_python_are_known_from_the_start(cls: type[Exception]) -> None:
    outcome = sent(cls.__new__(cls))

    assert isinstance(outcome, cls)
    assert isinstance(outcome, RemoteError)
    assert outcome.name == cls.__name__
    assert isinstance(str(outcome) + repr(outcome), str)


def test_attributes_the_interpreter_keeps_arrive() -> None:
    outcome: Any = sent(raised(FileNotFoundError(2, "gone", "a.txt")))

    assert FileNotFoundError in type(outcome).__mro__
    assert (outcome.errno, outcome.strerror, outcome.filename) == (2, "gone", "a.txt")
    assert outcome.message == "[Errno 2] gone: 'a.txt'"
    assert sent(KeyError("sku")).args == ("sku",)


def test_a_registered_error_arrives_without_its_constructor_being_run() -> None:
    outcome: Any = sent(raised(OutOfStock("mug", left=2)))

    assert {OutOfStock, LookupError} <= {*type(outcome).__mro__}
    assert (outcome.sku, outcome.left, outcome.code) == ("mug", 2, 17)
    assert (outcome.name, outcome.message) == ("OutOfStock", "only 2 of mug")
    assert outcome.attrs == {"sku": "mug", "_left": 2}


def test_errors_that_resist_arrive_nevertheless() -> None:
    frozen: Any = sent(FrozenError("here"))
    frozen.call_id = "c1"
    slotted = SlottedError("x")
    slotted.detail = [1]  # type: ignore[attr-defined]
    strange: Any = sent(MadeStrangely(5, "io", must_have=1))

    assert isinstance(frozen, FrozenError)
    assert frozen.where == "here"
    assert {frozen: 1}[frozen] == 1
    assert sent(slotted).detail == [1]  # type: ignore[attr-defined]
    assert isinstance(strange, MadeStrangely)
    assert (strange.errno, strange.must_have) == (5, 1)


def test_an_unknown_error_keeps_its_name_and_the_classes_that_are_known() -> None:
    outcome = sent(raised(Unknown("x")))

    assert isinstance(outcome, ValueError)
    assert not isinstance(outcome, Unknown)
    assert outcome.name == "Unknown"
    stranger = sent(Stranger("y"))
    assert type(stranger) is RemoteError
    assert (stranger.name, stranger.message) == ("Stranger", "y")


def test_a_class_that_only_has_the_name_of_a_known_one_is_not_taken_for_it() -> None:
    impostor = type("KeyError", (Exception,), {})

    assert not isinstance(sent(impostor("x")), KeyError)
    assert sent(impostor("x")).name == "KeyError"


def test_a_class_that_is_known_only_there_is_what_is_known_here() -> None:
    data = describe(OutOfStock("mug", left=1))
    data["kinds"].remove("OutOfStock")
    data["kinds"].insert(0, "KnownThere")

    assert isinstance(rebuild(data), LookupError)


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError()])
def test_what_ends_a_process_there_does_not_end_one_here(error: BaseException) -> None:
    outcome = sent(raised(error))

    assert isinstance(outcome, Exception)
    assert not isinstance(outcome, type(error))
    assert outcome.name == type(error).__name__


@pytest.mark.parametrize(
    "error", [StopIteration(1), StopAsyncIteration(), ExceptionGroup("g", [KeyError()])]
)
def test_errors_with_a_meaning_for_their_surroundings_lose_it(error: Exception) -> None:
    assert type(sent(raised(error))) is RemoteError


def test_attributes_that_cannot_be_sent_arrive_as_what_they_look_like() -> None:
    error = ValueError("x", object)
    error.lock = object  # type: ignore[attr-defined]
    error.when = timedelta(1)  # type: ignore[attr-defined]
    error.large = "x" * 200_000  # type: ignore[attr-defined]
    outcome = sent(error)

    assert outcome.attrs["lock"] == "<class 'object'>"
    assert outcome.attrs["when"] == timedelta(1)
    assert len(outcome.attrs["large"]) < 600
    assert outcome.args == ("x", "<class 'object'>")


def test_attributes_named_as_ours_do_not_replace_them() -> None:
    error = ValueError("x")
    for name in ("name", "message", "call_id", "args_", "with_traceback", "attrs"):
        setattr(error, name, "theirs")
    outcome: Any = sent(error)

    assert (outcome.name, outcome.message, outcome.call_id) == ("ValueError", "x", None)
    assert outcome.attrs["name"] == outcome.attrs["message"] == "theirs"
    assert outcome.args_ == "theirs"
    assert callable(outcome.with_traceback)


def test_the_causes_arrive_in_their_order() -> None:
    error = ValueError("outer")
    error.__cause__ = OutOfStock("mug", left=0)
    error.__cause__.__cause__ = Stranger("inner")
    outcome = sent(error)

    assert isinstance(outcome.__cause__, OutOfStock)
    assert isinstance(outcome.__cause__.__cause__, RemoteError)
    assert outcome.__cause__.__cause__.name == "Stranger"
    assert outcome.__cause__.__cause__.__cause__ is None


def test_no_more_than_ten_causes_arrive() -> None:
    error = last = ValueError("0")
    for number in range(1, 30):
        last.__cause__ = ValueError(str(number))
        last = last.__cause__
    outcome: BaseException | None = sent(error)
    names = []
    while outcome is not None:
        names.append(str(outcome))
        outcome = outcome.__cause__

    assert names == [str(number) for number in range(11)]


def test_causes_that_go_round_in_a_circle_end() -> None:
    one, other = ValueError("one"), ValueError("other")
    one.__cause__, other.__cause__ = other, one

    outcome = sent(one)

    assert str(outcome.__cause__) == "other"
    assert outcome.__cause__ is not None
    assert outcome.__cause__.__cause__ is None


def test_the_traceback_arrives_as_text() -> None:
    assert "in raised" in sent(raised(ValueError("x"))).traceback_text
    assert sent(ValueError("never raised")).traceback_text == ""


def test_of_a_long_traceback_the_end_arrives() -> None:
    def deep(levels: int) -> None:
        if levels:
            # Other than itself in turns, or the text would say "repeated" instead of growing.
            (lambda: deep(levels - 1))()
        else:
            raise ValueError("é" * 10_000 + "the end")

    with pytest.raises(ValueError, match="the end") as caught:
        deep(50)
    text = sent(caught.value).traceback_text

    assert len(text.encode()) <= 16 * 1024
    assert text.startswith("…")
    assert text.endswith("the end\n")


def test_an_error_passed_on_keeps_its_name_and_tells_both_places() -> None:
    first = sent(raised(OutOfStock("mug", left=1)))
    second: Any = sent(raised(first))

    assert OutOfStock in type(second).__mro__
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
def test_a_timeout_of_another_call_is_not_taken_for_that_of_ones_own(error: CallError) -> None:
    """Raised by a handler, or handed on as it came: this caller's call has been executed."""
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
    error = cls("x")
    error.self = error  # type: ignore[attr-defined]
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
        None,
        5,
        "x",
        [],
        {},
        {"name": 5, "message": [], "attrs": 7, "args": {}, "causes": 1, "traceback": {}},
        {"name": "X", "kinds": ["ValueError"], "attrs": {"__class__": int, "args": 1, 5: 6}},
        {"name": "X", "kinds": ["UnicodeDecodeError"], "attrs": {"start": "x", "reason": 5}},
        {"name": "X", "kinds": ["OSError"], "args": [1, 2, 3, 4, 5, 6, 7]},
        {"name": "X", "kinds": [["ValueError"], None, "Exception", "__builtins__", "SystemExit"]},
        {"name": "X", "causes": [1, {}, {"name": "Y"}] * 100},
        {"own": "CallTimeout", "attrs": {"executed": "yes"}},
        {"own": ["CallTimeout"]},
        {"name": "X", "kinds": ["OutOfStock"], "attrs": {"left": 1, "__init__": 1, "__dict__": {}}},
    ],
)
def test_any_description_gives_an_error_that_can_be_used(data: Any) -> None:
    outcome = rebuild(data)

    assert isinstance(outcome, CallError)
    assert isinstance(outcome.name, str)
    assert isinstance(outcome.message, str)
    assert isinstance(outcome.attrs, dict)
    assert isinstance(outcome.args, tuple)
    assert str(outcome) == outcome.message
    assert repr(outcome)
    assert sent(raised(outcome)).name == outcome.name


junk = st.recursive(
    st.none() | st.integers() | st.sampled_from(["ValueError", "OutOfStock", "args", "own", "x"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["name", "message", "kinds", "args", "attrs", "causes", "own", "__class__"]
            ),
            inner,
            max_size=5,
        )
    ),
    max_leaves=20,
)


@given(junk)
@settings(max_examples=200)
def test_no_description_raises(data: Any) -> None:
    assert isinstance(sent(rebuild(data)), CallError)


def test_outcomes_can_be_copied() -> None:
    outcome: Any = sent(raised(OutOfStock("mug", left=1)))
    outcome.call_id = "c1"

    for other in [copy.copy(outcome), copy.deepcopy(outcome), pickle.loads(pickle.dumps(outcome))]:
        assert OutOfStock in type(other).__mro__
        assert (other.name, other.left, other.call_id) == ("OutOfStock", 1, "c1")
        assert other.traceback_text == outcome.traceback_text
    assert copy.copy(CallTimeout(executed="no")).executed == "no"


def test_a_remote_error_can_be_made_by_hand() -> None:
    error = RemoteError("OutOfStock", "no mugs", {"sku": "mug"})

    assert (error.name, error.message, error.attrs) == ("OutOfStock", "no mugs", {"sku": "mug"})
    assert repr(error) == "<RemoteError OutOfStock: 'no mugs'>"
    assert CallError("x").name == "CallError"


def test_a_name_belongs_to_one_class() -> None:
    assert register_error(OutOfStock) is OutOfStock
    with pytest.raises(ValueError, match="'OutOfStock' is already registered"):
        register_error(type("OutOfStock", (Exception,), {}))


@pytest.mark.parametrize("cls", [int, 5, SystemExit, ValueError("x")])
def test_only_errors_can_be_registered(cls: Any) -> None:
    with pytest.raises(TypeError, match="derived from Exception"):
        register_error(cls)


def test_errors_derived_from_ours_can_be_registered() -> None:
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


@pytest.mark.parametrize(
    ("after", "kind"),
    [
        (True, TypeError),
        ("1", TypeError),
        (-1, ValueError),
        (float("nan"), ValueError),
        (float("inf"), ValueError),
    ],
)
def test_a_retry_lies_ahead(after: Any, kind: type[Exception]) -> None:
    with pytest.raises(kind, match="Retry"):
        Retry(after)
