"""Operations and continuations: references to methods that can be stored and run later."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from functools import partial, wraps
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from signalhub.actors.api import operation as operations
from signalhub.actors.api import payload
from signalhub.actors.api.operation import (
    RESULT,
    Continuation,
    cont,
    continuation_of,
    decode_continuation,
    decode_operation,
    encode_continuation,
    encode_operation,
    op,
    place,
    run,
)
from signalhub.actors.api.payload import PayloadError


def logged(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def logging(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return logging


class Calculator:
    def __init__(self) -> None:
        self.done: list[tuple[Any, ...]] = []

    def add(self, one: int, other: int = 0) -> int:
        self.done.append((one, other))
        return one + other

    def on_sum(self, *args: Any, **kwargs: Any) -> None: ...

    def _private(self, outcome: Any) -> None: ...

    @logged
    def on_logged(self, outcome: Any) -> None: ...

    @classmethod
    def on_class(cls, outcome: Any) -> None: ...

    on_lambda = lambda self, outcome: None  # noqa: E731

    size = 5

    class Inner: ...


class Better(Calculator):
    def on_sum(self, *args: Any, **kwargs: Any) -> None: ...

    def parents(self) -> Callable[..., None]:
        return super().on_sum


def module_function(self: Any, number: int) -> None: ...


def same(value: Any) -> Any:
    return value


def test_an_operation_is_the_name_of_a_method_and_its_arguments() -> None:
    class Local:
        def go(self, number: int) -> None: ...

    made = op(Calculator.add, 1, other=2)

    assert (made.method, made.args, made.kwargs) == ("add", (1,), {"other": 2})
    assert op("add", 1, other=2) == made
    assert op("add", function=1, self=2).kwargs == {"function": 1, "self": 2}
    # The owner is the class that defines the method, if that can be found.
    assert made.owner is op(Better.add, 1).owner is op(Calculator.on_logged, 1).owner is Calculator
    assert op(Better.on_sum).owner is Better
    assert op("add").owner is op(Local.go, 1).owner is None
    # Without an error here the ignored ones would be reported as unused.
    op(Calculator.add, "one")  # type: ignore[call-overload]
    op(Calculator.add, 1, wrong=2)  # type: ignore[call-arg]
    op(Calculator.add)  # type: ignore[call-overload]


def test_an_operation_that_nobody_may_call_is_refused_with_advice() -> None:
    for name in ("", "_private", "__init__", "a.b", "a b", "1a"):
        with pytest.raises(ValueError, match="invalid method name"):
            op(name)
    calculator: list[Any] = [Calculator().add, Calculator, module_function, lambda self: 1]
    for function in (*calculator, len, 5, None, partial(len)):
        with pytest.raises(TypeError, match=r"write op\(Stock.reserve, …\)"):
            op(function)


def test_nested_operations_are_evaluated_first_and_the_rest_is_passed_as_it_is() -> None:
    """add(add(1, 10), add(100, 1000)) in one hop."""
    actor = Calculator()
    operation = op("add", op(Calculator.add, 1, 10), op(Calculator.add, 100, 1000))
    stored = decode_operation(encode_operation(operation))

    assert run(stored, lambda name: getattr(actor, name)) == 1111
    assert actor.done == [(1, 10), (100, 1000), (11, 1100)]
    with pytest.raises(TypeError):
        run(op("add", op("add", "x", 1), 1), lambda name: getattr(actor, name))
    assert actor.done[3:] == [("x", 1)], "an error ends the operation before its call"

    for argument in ([{"a": [1, (2, 3)]}], cont("on_sum", RESULT)):
        assert run(op("same", argument), lambda _: same) is argument


def test_operations_within_lists_and_dicts_and_keywords_are_evaluated() -> None:
    def resolve(name: str) -> Callable[..., Any]:
        if name == "secret":
            raise PermissionError(name)
        return (lambda: 1) if name == "one" else (lambda *args, **kwargs: [args, kwargs])

    one = op("one")
    seen = run(op("see", [one, 5], {"a": {"b": (one,)}}, [7], key=one), resolve)

    assert seen == [([1, 5], {"a": {"b": (1,)}}, [7]), {"key": 1}]
    with pytest.raises(PermissionError):
        run(op("see", [op("secret")]), resolve)


def test_methods_partials_and_names_are_continuations() -> None:
    actor = Calculator()
    spellings: list[Any] = [
        partial(actor.on_sum, "sku", count=2),
        partial(partial(actor.on_sum, "sku"), count=2),
        cont(actor.on_sum, "sku", count=2),
        cont(partial(actor.on_sum, "sku"), count=2),
        cont(cont(actor.on_sum, "sku"), count=2),
        cont("on_sum", "sku", count=2),
    ]

    for value in spellings:
        found = continuation_of(value, actor)
        assert found == Continuation("on_sum", ("sku",), {"count": 2})
        assert found.owner is None
    for method in ("on_sum", "_private", "on_logged"):
        assert continuation_of(method, actor) == Continuation(method)
        assert continuation_of(getattr(actor, method), actor) == Continuation(method)
    assert cont(partial(actor.on_sum, a=1, b=1), b=2).kwargs == {"a": 1, "b": 2}


def test_what_is_no_method_of_the_actor_is_no_continuation() -> None:
    actor, other, better = Calculator(), Calculator(), Better()
    functions: list[Any] = [lambda outcome: None, module_function, Calculator.on_sum, len]
    for value in (*functions, 5, None, object()):
        with pytest.raises(TypeError, match=r"self\.on_done"):
            continuation_of(value, actor)
        with pytest.raises(TypeError, match=r"self\.on_done"):
            cont(partial(value) if callable(value) else value)
    theirs: list[Any] = [other.on_sum, partial(other.on_sum, 1), cont(other.on_sum)]
    for value in (*theirs, actor.on_class):
        with pytest.raises(TypeError, match=r"runs in the actor that makes the call"):
            continuation_of(value, actor)
    for name in ("gone", "__init__", "__class__", "size", "Inner", "done", ""):
        with pytest.raises(TypeError, match="Calculator has no method"):
            continuation_of(name, actor)
    with pytest.raises(TypeError, match=r"different function .* use self\.on_sum"):
        continuation_of(better.parents(), better)
    with pytest.raises(TypeError, match="no method '<lambda>'"):
        continuation_of(better.on_lambda, better)


@pytest.mark.parametrize("outcome", ["!", None, 0, "", False, []])
@pytest.mark.parametrize(
    ("continuation", "expected"),
    [
        (cont("m"), lambda it: ([it], {})),
        (cont("m", 1, 2), lambda it: ([1, 2, it], {})),
        (cont("m", 1, k=2), lambda it: ([1, it], {"k": 2})),
        (cont("m", RESULT, 1), lambda it: ([it, 1], {})),
        (cont("m", 1, RESULT, 2), lambda it: ([1, it, 2], {})),
        (cont("m", 1, RESULT), lambda it: ([1, it], {})),
        (cont("m", RESULT, RESULT), lambda it: ([it, it], {})),
        (cont("m", 1, k=RESULT), lambda it: ([1], {"k": it})),
        (cont("m", [0, {"a": (RESULT,)}]), lambda it: ([[0, {"a": (it,)}]], {})),
        (cont("m", k={"a": [RESULT]}), lambda it: ([], {"k": {"a": [it]}})),
        (cont("m", op("go", [RESULT], k=1)), lambda it: ([op("go", [it], k=1)], {})),
        # One among the arguments keeps its own sentinel.
        (cont("m", cont("inner", RESULT)), lambda it: ([cont("inner", RESULT), it], {})),
    ],
)
def test_the_outcome_goes_where_the_sentinel_stands_or_to_the_end(
    continuation: Continuation, expected: Callable[[Any], Any], outcome: Any
) -> None:
    args, kwargs = place(continuation, outcome)
    assert (args, kwargs) == expected(outcome)
    args.append(2)
    kwargs["more"] = 3
    assert place(continuation, outcome) == expected(outcome), "the continuation is as it was"
    stored = decode_continuation(encode_continuation(continuation))
    assert place(stored, outcome) == expected(outcome)


def test_copies_of_the_sentinel_are_the_sentinel() -> None:
    assert repr(RESULT) == "RESULT"
    for other in (
        copy.copy(RESULT),
        copy.deepcopy([RESULT])[0],
        pickle.loads(pickle.dumps(RESULT)),
    ):
        assert other is RESULT
    assert payload.decode(payload.encode([RESULT]))[0] is RESULT


def test_the_stored_form_is_a_name_and_arguments() -> None:
    items = [1]
    data = encode_operation(op("add", items, other=2))
    items.append(2)

    assert data == b'{"m":"add","a":[[1]],"k":{"other":2}}'
    assert encode_continuation(cont("on_sum", RESULT)) == (
        b'{"m":"on_sum","a":[{"$":"result","v":null}],"k":{}}'
    )
    assert encode_operation(op("add", op("add", 1))) == (
        b'{"m":"add","a":[{"$":"op","v":{"m":"add","a":[1],"k":{}}}],"k":{}}'
    )


def containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    some = st.lists(inner, max_size=3)
    return st.one_of(
        some,
        st.dictionaries(st.text("ab$", max_size=2), inner, max_size=3),
        some.map(lambda args: op("go", *args)),
        some.map(lambda args: cont("on", RESULT, *args)),
    )


leaves = st.integers() | st.text("ab$") | st.tuples(st.integers())


@given(st.recursive(leaves, containers, max_leaves=8))
def test_what_is_stored_is_what_was_meant(value: Any) -> None:
    operation = op("add", value, key=value, **{"$": 1})
    continuation = cont("add", value, RESULT, key=value)

    assert decode_operation(encode_operation(operation)) == operation
    assert decode_continuation(encode_continuation(continuation)) == continuation


@pytest.mark.parametrize(
    ("operation", "text"),
    [
        (op("m", 1, {"items": [0, 0, 0, {"price": object()}]}), "argument 2: items[3].price: "),
        (op("m", object()), "argument 1: object cannot be sent"),
        (op("m", 1, sku=[object()]), "argument sku: [0]: object"),
        (op("m", op("n", 1, object())), "argument 1: n[1]: object"),
        (op("m", op("n", k=object())), "argument 1: n.k: object"),
        (op("m", "x" * 2**20), "the arguments of m: the value takes more than 1048576 bytes"),
    ],
)
def test_an_argument_that_cannot_be_sent_is_named(operation: Any, text: str) -> None:
    with pytest.raises(PayloadError) as caught:
        encode_operation(operation)

    assert str(caught.value).startswith(text)


def test_the_number_and_the_depth_of_arguments_are_limited() -> None:
    encode_operation(op("m", *range(99), k=1))
    encode_continuation(cont("m", *range(3)), max_args=3)
    for operation in (op("m", *range(100), k=1), op("m", [op("n", *range(101))])):
        with pytest.raises(PayloadError, match="gets 101 arguments, the limit is 100"):
            encode_operation(operation)
    with pytest.raises(PayloadError, match="pass a list"):
        encode_continuation(cont("m", *range(4)), max_args=3)
    encode_operation(op("m", [[1]], k=[[1]]), max_depth=2)
    with pytest.raises(PayloadError, match=r"argument 1: \[0\]\[0\]: .*too deeply"):
        encode_operation(op("m", [[[1]]]), max_depth=2)


def test_the_sentinel_has_a_meaning_only_in_continuations() -> None:
    nested = (op("m", [{"a": (RESULT,)}]), op("m", op("n", RESULT)))
    for operation in (op("m", RESULT), op("m", k=RESULT), *nested):
        with pytest.raises(PayloadError, match="RESULT is only for continuations"):
            encode_operation(operation)
    carried = op("m", cont("on", RESULT))
    assert decode_operation(encode_operation(carried)) == carried


@pytest.mark.parametrize(
    "content",
    [
        *[None, [], "add", {}, {"m": "add", "a": []}, {"m": "add", "a": [], "k": {}, "more": 1}],
        *[{"m": "", "a": [], "k": {}}, {"m": "a.b", "a": [], "k": {}}, {"m": 5, "a": [], "k": {}}],
        *[{"m": "add", "a": {}, "k": {}}, {"m": "add", "a": [], "k": []}],
        {"m": "add", "a": [], "k": {"$": "dict", "v": [[1, 2]]}},
        {"m": "add", "a": [{"$": "op", "v": {"m": "add"}}], "k": {}},
        {"m": "add", "a": [{"$": "op", "v": 5}], "k": {}},
    ],
)
def test_an_invalid_operation_is_refused(content: Any) -> None:
    for decode in (decode_operation, decode_continuation):
        with pytest.raises(PayloadError):
            decode(msgspec.json.encode(content))


_PARTS = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda parts: (
        st.lists(parts, max_size=3)
        | st.dictionaries(st.sampled_from(["x", "$", "v", "é"]), parts, max_size=2)
    ),
    max_leaves=5,
)


@given(
    st.sampled_from(["add", "é", "1a", "", "a b"]) | _PARTS,
    st.lists(_PARTS, max_size=4) | _PARTS,
    st.dictionaries(st.sampled_from(["x", "$", "é"]), _PARTS, max_size=2) | _PARTS,
    st.booleans(),
)
@example("add", [], {"$": 1}, False)
@example("add", [], {"$": "tuple", "v": "x"}, False)
@example("add", [1], {}, True)
@example("1a", [1], {}, False)
def test_plain_stored_forms_are_read_as_all_others(
    method: object, args: object, kwargs: object, is_odd: bool
) -> None:
    content = {"m": method, "a": args, "k": kwargs} | ({"z": 1} if is_odd else {})
    data = msgspec.json.encode(content)

    def outcome(read: Callable[[], Any]) -> object:
        try:
            found = read()
        except PayloadError as error:
            return str(error)
        # 1, 1.0 and True are equal.
        return found, repr(found)

    expected = outcome(lambda: operations._decoded(payload.decode(data)))
    assert outcome(lambda: operations._read_parts(data)) == expected


@given(st.lists(_PARTS, max_size=4))
def test_small_arguments_are_stored_as_all_others(args: list[Any]) -> None:
    content = {"m": "add", "a": args, "k": {}}

    assert encode_operation(op("add", *args)) == payload.encode(content)


@pytest.mark.parametrize("size", [0, 255, 256, 257])
def test_arguments_have_the_same_limit_however_small_they_are(size: int) -> None:
    data = encode_operation(op("add", "x" * size))

    assert encode_operation(op("add", "x" * size), max_bytes=len(data)) == data
    with pytest.raises(PayloadError, match=f"more than {len(data) - 1} bytes"):
        encode_operation(op("add", "x" * size), max_bytes=len(data) - 1)
