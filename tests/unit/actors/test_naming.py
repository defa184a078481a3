"""Names of actors: what they look like, and what is said about those that are none."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from signalhub.actors.api.names import Ref, kind_of, parse_ref, ref


class Stock:
    kind = "stock"


def test_a_ref_is_written_with_a_slash() -> None:
    assert str(ref("stock", "blue-mug")) == "stock/blue-mug"


def test_a_class_with_a_kind_will_do_for_the_kind() -> None:
    assert ref(Stock, "blue-mug") == ref("stock", "blue-mug") == Ref("stock", "blue-mug")


def test_refs_can_be_keys_of_a_dict() -> None:
    assert {ref("stock", "a"): 1}[ref(Stock, "a")] == 1


def test_the_first_slash_separates_so_that_keys_may_have_slashes() -> None:
    assert parse_ref("stock/shelf/3") == Ref("stock", "shelf/3")


@given(st.from_regex(r"[a-z][a-z0-9_-]{0,63}", fullmatch=True), st.text(min_size=1, max_size=256))
def test_what_can_be_made_can_be_written_and_read(kind: str, key: str) -> None:
    try:
        made = ref(kind, key)
    except ValueError:
        assert any(ord(one) < 32 or 127 <= ord(one) < 160 for one in key)
    else:
        assert parse_ref(str(made)) == made


@pytest.mark.parametrize("kind", ["", "Stock", "1a", "-a", "a/b", "a b", "ä", "a" * 65, "a\n"])
def test_a_kind_is_a_short_lower_case_name(kind: str) -> None:
    with pytest.raises(ValueError, match="starting with a letter"):
        ref(kind, "x")


@pytest.mark.parametrize("key", ["", "x" * 257])
def test_a_key_is_neither_empty_nor_long(key: str) -> None:
    with pytest.raises(ValueError, match="use 1 to 256"):
        ref("stock", key)


@pytest.mark.parametrize("key", ["a\nb", "\x00", "\x7f", "\x85", "\ud800"])
def test_a_key_is_text_that_can_be_stored_and_shown(key: str) -> None:
    with pytest.raises(ValueError, match="use plain text"):
        ref("stock", key)


@pytest.mark.parametrize("key", [1, None, b"x"])
def test_a_key_that_is_no_text_is_to_be_made_text(key: Any) -> None:
    with pytest.raises(TypeError, match="str"):
        ref("stock", key)


@pytest.mark.parametrize("kind", [1, None, int, object()])
def test_a_kind_is_text_or_a_class_that_has_one(kind: Any) -> None:
    with pytest.raises(TypeError, match="a class with a `kind`"):
        ref(kind, "x")


def test_an_address_without_a_slash_is_none() -> None:
    with pytest.raises(ValueError, match="stock/blue-mug"):
        parse_ref("stock")
    with pytest.raises(TypeError, match="stock/blue-mug"):
        parse_ref(Ref("a", "b"))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("Stock", "stock"),
        ("PaymentGateway", "payment-gateway"),
        ("HTTPServer", "http-server"),
        ("Order2Go", "order2-go"),
        ("_Hidden", "hidden"),
        ("snake_case", "snake_case"),
    ],
)
def test_the_kind_of_a_class_is_its_name_in_lower_case(name: str, kind: str) -> None:
    assert kind_of(name) == kind


@pytest.mark.parametrize("name", ["Ähre", "_", "A" * 65])
def test_a_class_whose_name_makes_no_kind_has_to_say_one(name: str) -> None:
    with pytest.raises(ValueError, match="set kind ="):
        kind_of(name)
