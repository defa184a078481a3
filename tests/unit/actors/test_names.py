"""Names of actors and ids: what they look like, and what is said about invalid ones."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from signalhub.actors.api.names import Ref, kind_of, parse_ref, ref
from signalhub.ids import TIME_MAX, Ulids, is_ulid, time_of
from tests.support.actors.scripted import Target

keys = st.text(min_size=1, max_size=20) | st.text(min_size=250, max_size=256)


def test_a_ref_is_written_with_a_slash_and_keys_may_have_more() -> None:
    assert str(ref("target", "blue-mug")) == "target/blue-mug"
    assert ref(Target, "a") == ref("target", "a") == Ref("target", "a")
    assert {ref("target", "a"): 1}[ref(Target, "a")] == 1
    assert parse_ref("stock/shelf/3") == Ref("stock", "shelf/3")


@given(st.from_regex(r"[a-z][a-z0-9_-]{0,63}", fullmatch=True), keys)
def test_what_can_be_made_can_be_written_and_read(kind: str, key: str) -> None:
    try:
        made = ref(kind, key)
    except ValueError:
        assert any(ord(one) < 32 or 127 <= ord(one) < 160 for one in key)
    else:
        assert parse_ref(str(made)) == made


INVALID: dict[tuple[Any, str], list[tuple[Any, Any]]] = {
    (ValueError, "starting with a letter"): [
        (kind, "x") for kind in ("", "Stock", "1a", "-a", "a/b", "a b", "ä", "a" * 65, "a\n")
    ],
    (TypeError, "a class with a `kind`"): [(kind, "x") for kind in (1, None, int, object())],
    (ValueError, "use 1 to 256"): [("stock", ""), ("stock", "x" * 257)],
    (ValueError, "use plain text"): [
        ("stock", key) for key in ("a\nb", "\x00", "\x7f", "\x85", "\ud800")
    ],
    (TypeError, "str"): [("stock", 1), ("stock", None), ("stock", b"x")],
}


@pytest.mark.parametrize(("error", "text"), INVALID)
def test_an_invalid_name_is_refused_with_advice(error: type[Exception], text: str) -> None:
    for kind, key in INVALID[error, text]:
        with pytest.raises(error, match=text):
            ref(kind, key)


def test_an_address_without_a_slash_is_refused() -> None:
    with pytest.raises(ValueError, match="stock/blue-mug"):
        parse_ref("stock")
    with pytest.raises(TypeError, match="stock/blue-mug"):
        parse_ref(Ref("a", "b"))  # type: ignore[arg-type]


def test_the_kind_of_a_class_is_its_name_in_lower_case() -> None:
    kinds = {"Stock": "stock", "PaymentGateway": "payment-gateway", "HTTPServer": "http-server"}
    kinds |= {"Order2Go": "order2-go", "_Hidden": "hidden", "snake_case": "snake_case"}

    assert {name: kind_of(name) for name in kinds} == kinds
    for name in ("Ähre", "_", "A" * 65):
        with pytest.raises(ValueError, match="set kind ="):
            kind_of(name)


NOW = 1_760_000_000_000
LAST = "7" + "Z" * 25


def ones(size: int) -> bytes:
    return b"\xff" * size


def test_an_id_is_its_time_and_then_chance() -> None:
    # The example of the specification: 1469918176385 ms are 01ARYZ6S41.
    assert Ulids(bytes).next(1_469_918_176_385) == "01ARYZ6S410000000000000000"
    assert Ulids(ones).next(1_469_918_176_385) == "01ARYZ6S41ZZZZZZZZZZZZZZZZ"
    chances = iter([b"\x00" * 9 + b"\x05", b"\x00" * 9 + b"\x03"])
    ids = Ulids(lambda size: next(chances))
    assert [ids.next(NOW)[-2:], ids.next(NOW)[-2:], ids.next(NOW + 1)[-2:]] == ["05", "06", "03"]


def test_within_a_millisecond_and_on_a_clock_set_back_ids_are_counted() -> None:
    ids = Ulids(bytes)
    first = ids.next(NOW)
    assert first < ids.next(NOW - 3_600_000) < ids.next(NOW)
    assert time_of(ids.last) == NOW
    assert [ids.next(NOW)[-4:] for _ in range(31)][-3:] == ["000Z", "0010", "0011"]
    carrying = Ulids(bytes, last="01ARYZ6S4100000000001ZZZZZ")
    assert carrying.next(0) == "01ARYZ6S410000000000200000"
    full = Ulids(ones)
    assert full.next(NOW) < full.next(NOW)
    assert time_of(full.last) == NOW + 1, "where counting ends the time goes on"


def test_after_a_restart_ids_go_on_above_the_last() -> None:
    last = Ulids(ones).next(NOW)
    after = Ulids(bytes, last=last)
    after.seed("01ARYZ6S410000000000000000")

    assert after.last == last, "a smaller seed changes nothing"
    assert after.next(NOW - 1000) > last


@given(st.lists(st.integers(0, TIME_MAX - 100), min_size=2, max_size=50), st.binary(min_size=10))
def test_ids_grow_whatever_the_clock_says(times: list[int], chance: bytes) -> None:
    ids = Ulids(lambda size: chance[:size])
    made = [ids.next(now) for now in times]

    assert made == sorted(set(made))
    assert all(map(is_ulid, made))
    assert time_of(made[0]) == times[0]
    assert all(time_of(one) >= now for one, now in zip(made, times, strict=True))


def test_an_invalid_id_and_a_time_that_does_not_fit_are_refused() -> None:
    assert is_ulid(LAST)
    assert is_ulid("0" * 26)
    assert time_of(Ulids(bytes).next(TIME_MAX)) == TIME_MAX
    for ids, now in ((Ulids(bytes), TIME_MAX + 1), (Ulids(bytes, last=LAST), NOW)):
        with pytest.raises(ValueError, match="does not fit"):
            ids.next(now)
    short: list[Any] = ["", "0" * 25, "0" * 27, "8" + "0" * 25, "0" * 25 + "U", "0" * 25 + "a"]
    for text in (*short, None, 5):
        assert not is_ulid(text)
        for use in (time_of, Ulids(bytes).seed):
            with pytest.raises(ValueError, match="invalid ULID"):
                use(text)
