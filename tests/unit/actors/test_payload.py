"""Values by copy: what goes in comes out, and what cannot is named."""

from __future__ import annotations

import enum
import math
from collections import OrderedDict, namedtuple
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from types import MappingProxyType
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from signalhub.actors.api import payload
from signalhub.actors.api.names import Ref
from signalhub.actors.api.payload import PayloadError, decode, encode
from signalhub.wire.errors import SignalHubError


@payload.register("test.Item")
@dataclass(frozen=True)
class Item:
    sku: str
    price: Any = None


@payload.register(name="test.Basket")
@dataclass
class Basket:
    items: list[Any]
    total: int = field(init=False)

    def __post_init__(self) -> None:
        self.total = len(self.items)


@payload.register
class PointUnderTest(msgspec.Struct, frozen=True):
    x: int
    y: Any = 0


@payload.register("test.Colour")
class Colour(enum.StrEnum):
    RED = "r"


@payload.register("test.Rights")
class Rights(enum.Flag):
    READ = 1
    WRITE = 2


@payload.register("test.Picky")
@dataclass(frozen=True)
class Picky:
    value: int

    def __post_init__(self) -> None:
        if self.value < 0:
            raise RuntimeError("never below zero")


Pair = namedtuple("Pair", "a b")
BERLIN = ZoneInfo("Europe/Berlin")

surrogates: Any = ["Cs"]
texts = st.text(st.characters(exclude_categories=surrogates), max_size=10)
zones: st.SearchStrategy[tzinfo | None] = st.one_of(
    st.none(),
    st.just(UTC),
    st.sampled_from(["Europe/Berlin", "America/New_York", "Asia/Kathmandu", "UTC"]).map(ZoneInfo),
    st.integers(-86_399, 86_399).map(lambda seconds: timezone(timedelta(seconds=seconds))),
)
scalars: st.SearchStrategy[Any] = st.one_of(
    *(st.none(), st.booleans(), st.integers(), st.integers(-(2**200), 2**200)),
    *(st.floats(allow_nan=False), texts, st.binary(max_size=20)),
    *(st.datetimes(timezones=zones, allow_imaginary=True), st.dates(), st.times(timezones=zones)),
    *(st.timedeltas(), st.decimals(allow_nan=False), st.uuids(), st.sampled_from(list(Colour))),
    st.sampled_from([Rights.READ, Rights.READ | Rights.WRITE, Rights(0)]),
    st.just(Ref("stock", "blue-mug")),
)
keys: st.SearchStrategy[Any] = st.one_of(
    scalars, st.tuples(scalars, scalars), st.frozensets(scalars, max_size=3)
)


def containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(texts | st.just("$"), inner, max_size=4),
        st.dictionaries(keys, inner, max_size=4),
        st.sets(keys, max_size=4),
        st.builds(Item, texts, inner),
        st.builds(Basket, st.lists(inner, max_size=2)),
        st.builds(PointUnderTest, st.integers(), inner),
    )


values = st.recursive(scalars, containers, max_leaves=15)
whole = st.integers(-(2**63), 2**63 - 1)
plain = st.recursive(
    st.none() | st.booleans() | whole | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner) | st.dictionaries(texts.filter("$".__ne__), inner),
    max_leaves=15,
)


def same(one: Any, other: Any) -> bool:
    """Equal, of the same type throughout, and equal in what equality overlooks."""
    if type(one) is not type(other) or one != other:
        return False
    if isinstance(one, list | tuple):
        return all(map(same, one, other))
    if isinstance(one, dict):
        have_same_keys = list(map(type, one)) == list(map(type, other))
        return have_same_keys and all(map(same, one.values(), other.values()))
    if isinstance(one, datetime | time):
        is_zone = isinstance(one.tzinfo, ZoneInfo)
        in_zone = one.tzinfo is other.tzinfo if is_zone else one.utcoffset() == other.utcoffset()
        is_same_time = one.replace(tzinfo=None) == other.replace(tzinfo=None)
        return in_zone and is_same_time and one.fold == other.fold
    if isinstance(one, float | Decimal):
        return math.copysign(1, one) == math.copysign(1, other) and str(one) == str(other)
    return True


@given(values)
@settings(max_examples=300)
def test_what_goes_in_comes_out_with_the_same_bytes_again(value: Any) -> None:
    data = encode(value)

    assert same(decode(data), value)
    assert encode(decode(data)) == data


@given(plain)
def test_plain_values_are_plain_json(value: Any) -> None:
    assert same(msgspec.json.decode(encode(value)), value)
    assert same(decode(encode(value)), value)


@given(st.binary(max_size=50))
def test_bytes_are_a_payload_or_refused(data: bytes) -> None:
    with suppress(PayloadError):
        decode(data)


tags = st.sampled_from([*payload._READERS, "none"])
contents = st.recursive(
    st.none() | st.integers() | texts | st.sampled_from(["test.Item", "Europe/Berlin", "a/b"]),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(texts, inner, max_size=2),
        st.builds(lambda tag, content: {"$": tag, "v": content}, tags, inner),
    ),
    max_leaves=10,
)


@given(tags, contents)
@settings(max_examples=300)
def test_tags_with_any_content_are_read_or_refused(tag: str, content: Any) -> None:
    with suppress(PayloadError):
        decode(msgspec.json.encode({"$": tag, "v": content}))


def test_numbers_have_no_limits() -> None:
    numbers = [math.inf, -math.inf, -0.0, 5e-324, 2**63, -(2**63) - 1, 10**5000]
    assert same(decode(encode({"x": numbers})), {"x": numbers})

    for value in (float("nan"), Decimal("NaN"), Decimal("sNaN")):
        assert str(decode(encode([value]))[0]) == str(value)


def test_a_time_in_a_zone_keeps_its_instant() -> None:
    first = datetime(2026, 10, 25, 2, 30, tzinfo=BERLIN)
    second = decode(encode(first.replace(fold=1)))
    assert decode(encode(first)).utcoffset() == timedelta(hours=2)
    assert second.utcoffset() == timedelta(hours=1)
    assert second.tzinfo is BERLIN

    # Written where the zone has other rules.
    data = encode(datetime(2026, 7, 1, 12, tzinfo=BERLIN)).replace(b"+02:00", b"+03:00")
    assert decode(data) == datetime(2026, 7, 1, 9, tzinfo=UTC)
    assert decode(data).hour == 11


def test_arguments_are_copied_and_aliases_become_copies() -> None:
    inner = [1]
    copy = decode(encode([inner, inner]))
    copy[0].append(2)

    assert (copy, inner) == ([[1, 2], [1]], [1])


@pytest.mark.parametrize("content", [{}, {"a": [1]}, {"$": 1}, {1: (2,)}])
def test_a_view_of_a_dict_is_copied_as_a_dict(content: dict[Any, Any]) -> None:
    view = MappingProxyType(content)

    assert encode(view) == encode(content)
    assert same(decode(encode([view])), [content])


@pytest.mark.parametrize(
    ("value", "data"),
    [
        ({"a": [1, "x", None]}, b'{"a":[1,"x",null]}'),
        ((1, 2), b'{"$":"tuple","v":[1,2]}'),
        ({1: 2}, b'{"$":"dict","v":[[1,2]]}'),
        ({"$": 1}, b'{"$":"dict","v":[["$",1]]}'),
        (Item("a"), b'{"$":"class","v":["test.Item",{"sku":"a","price":null}]}'),
        (Colour.RED, b'{"$":"class","v":["test.Colour","RED"]}'),
        (Rights.READ | Rights.WRITE, b'{"$":"class","v":["test.Rights",3]}'),
        (Ref("a", "b/c"), b'{"$":"ref","v":"a/b/c"}'),
        (UUID(int=1), b'{"$":"uuid","v":"00000000-0000-0000-0000-000000000001"}'),
        (2**64, b'{"$":"int","v":"0x10000000000000000"}'),
        ({"b", "a"}, b'{"$":"set","v":["a","b"]}'),
        (date(2026, 1, 2), b'{"$":"date","v":"2026-01-02"}'),
    ],
)
def test_the_stored_form_does_not_change(value: Any, data: bytes) -> None:
    assert encode(value) == data


def test_other_spellings_of_the_stored_form_are_read() -> None:
    assert decode(b'{"\\u0024":"tuple","v":[1]}') == (1,)
    assert decode(b'{ "v" : [1] , "$" : "tuple" }') == (1,)
    assert decode(b'["$"]') == ["$"]
    assert decode(memoryview(b"[1]")) == [1]
    # A field added later has its default.
    assert decode(b'{"$":"class","v":["test.Item",{"sku":"a"}]}') == Item("a", None)


class Lonely:
    pass


@dataclass
class Unregistered:
    x: int = 1


class Plain(enum.Enum):
    A = 1


class SubItem(Item):
    pass


REGISTER = "put @register_payload above the class"


@pytest.mark.parametrize(
    ("value", "advice"),
    [
        (Lonely(), "Lonely cannot be sent; turn it into plain values or a registered dataclass"),
        *[(Unregistered(), REGISTER), (SubItem("a"), REGISTER), (Plain.A, REGISTER)],
        (Pair(1, 2), "Pair cannot be sent; turn it into tuple"),
        (OrderedDict(), "OrderedDict cannot be sent; turn it into dict"),
        (bytearray(), "turn it into bytes"),
        *[(lambda: 1, "name of a method instead"), (Lonely, "name of a method instead")],
        (ValueError("x"), "ValueError is an error, not a value"),
        (Ref("No Kind", "x"), "invalid kind"),
        (time(1, tzinfo=timezone(timedelta(microseconds=1))), "whole seconds"),
        *[("\ud800", "lone surrogates"), ({"\ud800": 1}, "lone surrogates")],
        ({1: "\ud800"}, "lone surrogates"),
        ({"a": [1, {"b": "x\udfff"}]}, r"^a\[1\]\.b: text with lone surrogates"),
    ],
)
def test_what_cannot_be_sent_is_refused_with_advice(value: Any, advice: str) -> None:
    with pytest.raises(PayloadError, match=advice):
        encode(value)
    for kind in (SignalHubError, TypeError, ValueError):
        assert issubclass(PayloadError, kind)


@pytest.mark.parametrize(
    ("make", "path"),
    [
        (lambda bad: {"items": [1, 2, 3, {"price": bad}]}, "items[3].price: "),
        (lambda bad: [Item("a", (0, bad))], "[0].price[1]: "),
        (lambda bad: {"a b": bad}, "['a b']: "),
        (lambda bad: {1: {2: bad}}, "[1][2]: "),
        (lambda bad: {frozenset([bad]): 1}, "[…][…]: "),
        (lambda bad: bad, "Lonely cannot"),
    ],
)
def test_the_error_says_where(make: Callable[[Any], Any], path: str) -> None:
    with pytest.raises(PayloadError) as caught:
        encode(make(Lonely()))

    assert str(caught.value).startswith(path)


def test_a_value_that_contains_itself_is_refused_where_it_does() -> None:
    value: dict[str, Any] = {"a": [0]}
    value["a"].append(value)
    basket = Basket([])
    basket.items.append(basket)
    view: dict[str, Any] = {}
    view["a"] = MappingProxyType(view)

    for circle, where in ((value, r"a\[1\]"), (basket, r"items\[0\]"), (view, r"a\.a")):
        with pytest.raises(PayloadError, match=f"^{where}: the value contains itself"):
            encode(circle)


def nested(levels: int, wrap: Callable[[Any], Any] = lambda value: [value]) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = wrap(value)
    return value


@pytest.mark.parametrize(
    "wrap",
    [
        *[lambda value: [value], lambda value: {"x": value}, lambda value: (value,)],
        *[lambda value: {1: value}, lambda value: Item("a", value)],
    ],
)
def test_values_are_as_deep_as_allowed_and_no_deeper(wrap: Callable[[Any], Any]) -> None:
    deepest = nested(payload.DEPTH_MAX, wrap)

    assert decode(encode(nested(50, wrap))) == nested(50, wrap)
    assert decode(encode(deepest, max_depth=1000)) == deepest
    assert encode(nested(3, wrap), max_depth=3)
    for value, limit in [(nested(51, wrap), 50), (wrap(deepest), 1000), (nested(1, wrap), 0)]:
        with pytest.raises(PayloadError, match="nested too deeply"):
            encode(value, max_depth=limit)


def test_leaves_and_neighbours_are_not_deep() -> None:
    assert encode([Decimal(1), UTC.utcoffset(None)], max_depth=1)
    assert decode(encode([[]] * 5000)) == [[]] * 5000


@pytest.mark.parametrize("value", ["x" * 98, "x" * 97 + "é", [0] * 50, b"x" * 100, {"x" * 100: 1}])
def test_values_are_as_large_as_allowed_and_no_larger(value: Any) -> None:
    size = len(encode(value))

    assert encode(value, max_bytes=size)
    with pytest.raises(PayloadError, match=f"^the value takes more than {size - 1} bytes"):
        encode(value, max_bytes=size - 1)


def test_aliases_cannot_multiply_without_end() -> None:
    twice = [nested(45, lambda value: [value, value]), nested(45, lambda value: (value, value))]
    for value in (*twice, ["x" * 100_000] * 1_000_000):
        with pytest.raises(PayloadError, match="takes more than"):
            encode(value)


@pytest.mark.parametrize("levels", [600, 100_000])
def test_bytes_that_are_nested_too_deeply_are_refused(levels: int) -> None:
    for before, leaf, after in (
        *((b"[", b"", b"]"), (b'{"a":', b"1", b"}")),
        (b'{"$":"tuple","v":[', b"", b"]}"),
    ):
        with pytest.raises(PayloadError):
            decode(before * levels + leaf + after * levels)


@pytest.mark.parametrize("data", [b"", b"nonsense", b"[1", b"\xff", b'"\xed\xa0\x80"'])
def test_what_is_no_json_is_refused(data: bytes) -> None:
    with pytest.raises(PayloadError):
        decode(data)


@pytest.mark.parametrize(
    ("tag", "content"),
    [
        *[('"os.system"', '"true"'), ('["tuple"]', "[]"), ('"tuple"', "5"), ('"set"', "[[1]]")],
        *[('"dict"', "[[[1],1]]"), ('"dict"', "[[1]]"), ('"int"', '"x"'), ('"bytes"', '"?"')],
        *[('"tuple"', '[],"more":1'), ('"decimal"', '"x"'), ('"uuid"', '"x"'), ('"ref"', '"x"')],
        *[('"time"', '["25:00",null,0]'), ('"timedelta"', "[9999999999,0,0]")],
        ('"datetime"', '["2026-01-01","../../etc/passwd",0]'),
        ('"datetime"', '["2026-01-01","Nowhere/Here",0]'),
        ('"datetime"', '["2026-01-01",null,7]'),
        *[('"class"', "5"), ('"class"', '["os.system",{}]'), ('"class"', '[["test.Item"],{}]')],
        *[('"class"', '["test.Item",5]'), ('"class"', '["test.Item",{}]')],
        *[('"class"', '["test.Item",{"nonsense":1}]'), ('"class"', '["test.Picky",{"value":-1}]')],
        *[('"class"', '["test.Colour","BLUE"]'), ('"class"', '["test.Colour","__class__"]')],
        ('"class"', '["test.Rights",64]'),
    ],
)
def test_what_was_never_written_is_refused(tag: str, content: str) -> None:
    with pytest.raises(PayloadError):
        decode(f'{{"$":{tag},"v":{content}}}'.encode())
    with pytest.raises(PayloadError):
        decode(f'{{"$":{tag}}}'.encode())


def test_a_class_that_is_not_registered_here_is_not_searched_for() -> None:
    with pytest.raises(PayloadError, match=r"'gone\.Class' is not known here"):
        decode(b'{"$":"class","v":["gone.Class",{}]}')


def test_fields_no_constructor_takes_are_kept_and_missing_ones_named() -> None:
    basket = Basket([1])
    basket.total = 77
    assert decode(encode(basket)).total == 77

    del basket.total
    with pytest.raises(PayloadError, match=r"a field is not set: .*total"):
        encode([basket])


def test_a_name_belongs_to_one_class_and_a_class_has_one_name() -> None:
    assert payload.register("test.Item")(Item) is Item
    with pytest.raises(ValueError, match=r"Item is already registered as 'test.Item'"):
        payload.register("test.Item")(Unregistered)
    with pytest.raises(ValueError, match="under another name"):
        payload.register(Item)


@pytest.mark.parametrize(
    ("cls", "advice"),
    [
        (Lonely, "put @register_payload above @dataclass"),
        (SubItem, "put @register_payload above @dataclass"),
        (int, "is not a dataclass"),
        (KeyError, "use @register_error"),
    ],
)
def test_only_classes_with_named_fields_can_be_registered(cls: type, advice: str) -> None:
    with pytest.raises(TypeError, match=advice):
        payload.register(cls)
