"""Operations and continuations: references to methods that can be stored and run later."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from functools import partial, wraps
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from signalhub.actors.api import payload
from signalhub.actors.api.operation import (
    RESULT,
    Continuation,
    Operation,
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

    def total(self, numbers: list[int]) -> int:
        return sum(numbers)

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


class TestOperations:
    def test_a_method_of_a_class_becomes_its_name_and_arguments(self) -> None:
        made = op(Calculator.add, 1, other=2)

        assert (made.method, made.args, made.kwargs) == ("add", (1,), {"other": 2})
        assert made.owner is Calculator

    def test_arguments_are_those_of_the_method_for_the_type_checker(self) -> None:
        # Without an error here the ignored ones would be reported as unused.
        op(Calculator.add, "one")  # type: ignore[call-overload]
        op(Calculator.add, 1, wrong=2)  # type: ignore[call-arg]
        op(Calculator.add)  # type: ignore[call-overload]

    def test_the_owner_is_the_class_that_defines_the_method(self) -> None:
        assert op(Better.add, 1).owner is Calculator
        assert op(Better.on_sum).owner is Better
        assert op(Calculator.on_logged, 1).owner is Calculator

    def test_a_class_within_a_function_cannot_be_found_but_its_methods_can_be_called(self) -> None:
        class Local:
            def go(self, number: int) -> None: ...

        assert op(Local.go, 1) == Operation("go", (1,))
        assert op(Local.go, 1).owner is None

    def test_a_name_will_do(self) -> None:
        assert op("add", 1, 2) == op(Calculator.add, 1, 2)
        assert op("add").owner is None

    def test_arguments_may_have_any_name(self) -> None:
        assert op("add", function=1, self=2).kwargs == {"function": 1, "self": 2}

    @pytest.mark.parametrize("name", ["", "_private", "__init__", "a.b", "a b", "1a"])
    def test_a_name_that_nobody_may_call_is_refused(self, name: str) -> None:
        with pytest.raises(ValueError, match="invalid method name"):
            op(name)

    @pytest.mark.parametrize(
        "function",
        [Calculator().add, module_function, lambda self: 1, len, Calculator, 5, None, partial(len)],
    )
    def test_what_is_no_method_of_a_class_is_refused_with_advice(self, function: Any) -> None:
        with pytest.raises(TypeError, match=r"write op\(Stock.reserve, …\)"):
            op(function)


class TestRunning:
    def test_nested_operations_are_evaluated_first(self) -> None:
        """add(add(1, 10), add(100, 1000)) in one hop."""
        add = Calculator.add
        operation = op("add", op(add, 1, 10), op(add, 100, 1000))
        actor = Calculator()
        stored = decode_operation(encode_operation(operation))

        assert run(stored, lambda name: getattr(actor, name)) == 1111
        assert actor.done == [(1, 10), (100, 1000), (11, 1100)]

    def test_operations_within_lists_and_dicts_and_keywords_are_evaluated(self) -> None:
        seen: list[Any] = []

        def see(*args: Any, **kwargs: Any) -> None:
            seen.extend([args, kwargs])

        def resolve(name: str) -> Callable[..., Any]:
            return see if name == "see" else lambda: 1

        one = op("one")
        run(op("see", [one, 5], {"a": {"b": (one,)}}, [7], key=one), resolve)

        assert seen == [([1, 5], {"a": {"b": (1,)}}, [7]), {"key": 1}]

    def test_arguments_without_operations_are_passed_as_they_are(self) -> None:
        argument = [{"a": [1, (2, 3)]}]

        assert run(op("same", argument), lambda _: lambda value: value) is argument

    def test_every_operation_has_to_be_allowed(self) -> None:
        def resolve(name: str) -> Callable[..., Any]:
            if name == "secret":
                raise PermissionError(name)
            return Calculator().total

        with pytest.raises(PermissionError):
            run(op("total", [op("secret")]), resolve)

    def test_an_error_within_ends_the_operation_before_its_call(self) -> None:
        actor = Calculator()

        with pytest.raises(TypeError):
            run(op("add", op("add", "x", 1), 1), lambda name: getattr(actor, name))
        assert actor.done == [("x", 1)]

    def test_a_continuation_among_the_arguments_is_data(self) -> None:
        data = cont("on_sum", RESULT)

        assert run(op("same", data), lambda _: lambda value: value) is data


class TestContinuations:
    def test_methods_partials_and_names_are_continuations(self) -> None:
        actor = Calculator()
        wanted = Continuation("on_sum", ("sku",), {"count": 2})
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
            assert found == wanted
            assert found.owner is None
        assert continuation_of(actor.on_sum, actor) == Continuation("on_sum")
        assert continuation_of("on_sum", actor) == Continuation("on_sum")

    def test_later_keywords_win_as_they_do_with_partial(self) -> None:
        actor = Calculator()

        assert cont(partial(actor.on_sum, a=1, b=1), b=2).kwargs == {"a": 1, "b": 2}

    def test_targets_need_not_be_public(self) -> None:
        actor = Calculator()

        assert continuation_of(actor._private, actor).method == "_private"
        assert continuation_of(actor.on_logged, actor).method == "on_logged"

    @pytest.mark.parametrize(
        "value",
        [lambda outcome: None, module_function, Calculator.on_sum, len, 5, None, object()],
        ids=lambda value: type(value).__name__,
    )
    def test_what_is_no_method_is_refused_with_advice(self, value: Any) -> None:
        with pytest.raises(TypeError, match=r"self\.on_done"):
            continuation_of(value, Calculator())
        with pytest.raises(TypeError, match=r"self\.on_done"):
            cont(partial(value) if callable(value) else value)

    def test_a_method_of_another_object_is_refused(self) -> None:
        actor, other = Calculator(), Calculator()

        theirs: list[Any] = [other.on_sum, partial(other.on_sum, 1), cont(other.on_sum)]

        for value in [*theirs, actor.on_class]:
            with pytest.raises(TypeError, match=r"runs in the actor that makes the call"):
                continuation_of(value, actor)

    @pytest.mark.parametrize("name", ["gone", "__init__", "__class__", "size", "Inner", "done", ""])
    def test_a_name_that_is_no_method_is_refused(self, name: str) -> None:
        with pytest.raises(TypeError, match="Calculator has no method"):
            continuation_of(name, Calculator())

    def test_a_function_the_name_does_not_lead_to_is_refused(self) -> None:
        better = Better()

        with pytest.raises(TypeError, match=r"different function .* use self\.on_sum"):
            continuation_of(better.parents(), better)
        with pytest.raises(TypeError, match="no method '<lambda>'"):
            continuation_of(better.on_lambda, better)


class TestPlacing:
    @pytest.mark.parametrize(
        ("continuation", "args", "kwargs"),
        [
            (cont("m"), ["!"], {}),
            (cont("m", 1, 2), [1, 2, "!"], {}),
            (cont("m", 1, k=2), [1, "!"], {"k": 2}),
            (cont("m", RESULT, 1), ["!", 1], {}),
            (cont("m", 1, RESULT, 2), [1, "!", 2], {}),
            (cont("m", 1, RESULT), [1, "!"], {}),
            (cont("m", RESULT, RESULT), ["!", "!"], {}),
            (cont("m", 1, k=RESULT), [1], {"k": "!"}),
            (cont("m", [0, {"a": (RESULT,)}]), [[0, {"a": ("!",)}]], {}),
            (cont("m", k={"a": [RESULT]}), [], {"k": {"a": ["!"]}}),
            (cont("m", op("go", [RESULT], k=1)), [op("go", ["!"], k=1)], {}),
        ],
    )
    def test_the_outcome_goes_where_the_sentinel_stands_or_to_the_end(
        self, continuation: Continuation, args: list[Any], kwargs: dict[str, Any]
    ) -> None:
        assert place(continuation, "!") == (args, kwargs)
        stored = decode_continuation(encode_continuation(continuation))
        assert place(stored, "!") == (args, kwargs)

    @pytest.mark.parametrize("outcome", [None, 0, "", False, []])
    def test_outcomes_that_count_as_false_are_outcomes(self, outcome: Any) -> None:
        assert place(cont("m"), outcome) == ([outcome], {})
        assert place(cont("m", RESULT, 1), outcome) == ([outcome, 1], {})

    def test_a_continuation_among_the_arguments_keeps_its_own_sentinel(self) -> None:
        inner = cont("inner", RESULT)

        assert place(cont("m", inner), 1) == ([inner, 1], {})

    def test_the_continuation_is_as_it_was(self) -> None:
        continuation = cont("m", [RESULT], k={})
        args, kwargs = place(continuation, 1)
        args.append(2)
        kwargs["more"] = 3

        assert place(continuation, 1) == ([[1]], {"k": {}})

    def test_copies_of_the_sentinel_are_the_sentinel(self) -> None:
        assert repr(RESULT) == "RESULT"
        for other in [copy.copy(RESULT), copy.deepcopy([RESULT])[0]]:
            assert other is RESULT
        assert pickle.loads(pickle.dumps(RESULT)) is RESULT
        assert payload.decode(payload.encode([RESULT]))[0] is RESULT


class TestStoring:
    def test_the_stored_form_is_a_name_and_arguments(self) -> None:
        assert encode_operation(op("add", 1, other=2)) == b'{"m":"add","a":[1],"k":{"other":2}}'
        assert encode_continuation(cont("on_sum", RESULT)) == (
            b'{"m":"on_sum","a":[{"$":"result","v":null}],"k":{}}'
        )
        assert encode_operation(op("add", op("add", 1))) == (
            b'{"m":"add","a":[{"$":"op","v":{"m":"add","a":[1],"k":{}}}],"k":{}}'
        )

    @given(
        st.recursive(
            st.integers() | st.text("ab$") | st.tuples(st.integers()),
            lambda inner: st.one_of(
                st.lists(inner, max_size=3),
                st.dictionaries(st.text("ab$", max_size=2), inner, max_size=3),
                st.builds(lambda args: op("go", *args), st.lists(inner, max_size=3)),
                st.builds(lambda args: cont("on", RESULT, *args), st.lists(inner, max_size=3)),
            ),
            max_leaves=8,
        )
    )
    def test_what_is_stored_is_what_was_meant(self, value: Any) -> None:
        operation = op("add", value, key=value, **{"$": 1})
        continuation = cont("add", value, RESULT, key=value)

        assert decode_operation(encode_operation(operation)) == operation
        assert decode_continuation(encode_continuation(continuation)) == continuation

    def test_arguments_that_change_later_have_no_effect(self) -> None:
        items = [1]
        data = encode_operation(op("total", items))
        items.append(2)

        assert decode_operation(data).args == ([1],)

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
    def test_an_argument_that_cannot_be_sent_is_named(self, operation: Any, text: str) -> None:
        with pytest.raises(PayloadError) as caught:
            encode_operation(operation)

        assert str(caught.value).startswith(text)

    def test_there_are_no_more_arguments_than_allowed(self) -> None:
        encode_operation(op("m", *range(99), k=1))
        encode_continuation(cont("m", *range(3)), max_args=3)
        for operation in [op("m", *range(100), k=1), op("m", [op("n", *range(101))])]:
            with pytest.raises(PayloadError, match="gets 101 arguments, the limit is 100"):
                encode_operation(operation)
        with pytest.raises(PayloadError, match="pass a list"):
            encode_continuation(cont("m", *range(4)), max_args=3)

    def test_depth_is_that_of_the_arguments(self) -> None:
        encode_operation(op("m", [[1]], k=[[1]]), max_depth=2)
        with pytest.raises(PayloadError, match=r"argument 1: \[0\]\[0\]: .*too deeply"):
            encode_operation(op("m", [[[1]]]), max_depth=2)

    @pytest.mark.parametrize(
        "operation",
        [op("m", RESULT), op("m", k=RESULT), op("m", [{"a": (RESULT,)}]), op("m", op("n", RESULT))],
    )
    def test_the_sentinel_has_no_meaning_in_an_operation(self, operation: Operation) -> None:
        with pytest.raises(PayloadError, match="RESULT is only for continuations"):
            encode_operation(operation)

    def test_it_has_one_in_a_continuation_the_operation_carries(self) -> None:
        operation = op("m", cont("on", RESULT))

        assert decode_operation(encode_operation(operation)) == operation

    @pytest.mark.parametrize(
        "content",
        [
            None,
            [],
            "add",
            {},
            {"m": "add", "a": []},
            {"m": "add", "a": [], "k": {}, "more": 1},
            {"m": "", "a": [], "k": {}},
            {"m": "a.b", "a": [], "k": {}},
            {"m": 5, "a": [], "k": {}},
            {"m": "add", "a": {}, "k": {}},
            {"m": "add", "a": [], "k": []},
            {"m": "add", "a": [], "k": {"$": "dict", "v": [[1, 2]]}},
            {"m": "add", "a": [{"$": "op", "v": {"m": "add"}}], "k": {}},
            {"m": "add", "a": [{"$": "op", "v": 5}], "k": {}},
        ],
    )
    def test_what_is_no_operation_is_refused(self, content: Any) -> None:
        data = msgspec.json.encode(content)

        with pytest.raises(PayloadError):
            decode_operation(data)
        with pytest.raises(PayloadError):
            decode_continuation(data)
