"""Settings of actors: what may be overridden, and what is said about the rest."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, ClassVar

import pytest

from signalhub.actors.api.config import DEFAULTS, DurableConfig, check_timeout, config_of, merged


class Parent:
    config_overrides: ClassVar[Mapping[str, Any]] = {"max_args": 7, "outbound_batch_size": 10}


class Child(Parent):
    config_overrides: ClassVar[Mapping[str, Any]] = {"max_args": 3}


class Silent(Child):
    pass


def test_the_defaults_are_those_of_the_specification() -> None:
    assert (
        DurableConfig(
            outbound_batch_size=100,
            outbound_timeout_ms=5000,
            inbound_batch_size=100,
            call_timeout_ms=30_000,
            sweep_interval_ms=5000,
            retry_base_ms=1000,
            retry_cap_ms=10_000,
            max_request_age_ms=1_800_000,
            handler_max_attempts=5,
            max_args=100,
            max_depth=50,
            max_payload_bytes=1 << 20,
            tombstone_ttl_ms=86_400_000,
            durability="power",
            idempotency_ttl_ms=86_400_000,
            handler_warn_ms=1000,
        )
        == DEFAULTS
    )


def test_a_class_overrides_its_parents_and_they_the_base() -> None:
    base = DurableConfig(max_args=50, outbound_batch_size=50, inbound_batch_size=50)
    config = config_of(Silent, base)

    assert (config.max_args, config.outbound_batch_size, config.inbound_batch_size) == (3, 10, 50)


def test_without_overrides_the_base_holds() -> None:
    assert config_of(object) == DEFAULTS
    assert merged(DEFAULTS, {}, where="x") == DEFAULTS


def test_an_unknown_key_is_refused_with_the_one_that_was_meant() -> None:
    with pytest.raises(TypeError, match=r"Order: .*'max_arg'\. Did you mean 'max_args'\?.*durabil"):
        merged(DEFAULTS, {"max_arg": 1}, where="Order")


@pytest.mark.parametrize("key", ["zzz", 5, None])
def test_a_key_like_no_other_is_refused_with_all_there_are(key: Any) -> None:
    with pytest.raises(TypeError, match="The keys are call_timeout_ms, durability"):
        merged(DEFAULTS, {key: 1}, where="Order")


@pytest.mark.parametrize("value", [True, 1.0, "1", None, [1]])
def test_numbers_are_whole_and_a_bool_is_none(value: Any) -> None:
    with pytest.raises(TypeError, match="Order: max_args must be an int"):
        merged(DEFAULTS, {"max_args": value}, where="Order")


@pytest.mark.parametrize("value", [0, -1])
def test_numbers_are_positive(value: int) -> None:
    with pytest.raises(ValueError, match=f"Order: max_args is {value}; use a number above 0"):
        merged(DEFAULTS, {"max_args": value}, where="Order")


def test_values_cannot_be_deeper_than_the_stack_allows() -> None:
    with pytest.raises(ValueError, match="max_depth is 101; use at most 100"):
        merged(DEFAULTS, {"max_depth": 101}, where="Order")


def test_durability_is_one_of_two() -> None:
    assert merged(DEFAULTS, {"durability": "process"}, where="Order").durability == "process"
    with pytest.raises(ValueError, match="'power' or 'process'"):
        merged(DEFAULTS, {"durability": "none"}, where="Order")
    with pytest.raises(TypeError, match="'power' or 'process'"):
        merged(DEFAULTS, {"durability": 1}, where="Order")


@pytest.mark.parametrize("key", ["call_timeout_ms", "max_request_age_ms"])
def test_an_id_is_remembered_longer_than_its_request_can_come_again(key: str) -> None:
    with pytest.raises(ValueError, match=f"Order: tombstone_ttl_ms = 86400000 must exceed {key}"):
        merged(DEFAULTS, {key: 86_400_000}, where="Order")
    together = {key: 86_400_000, "tombstone_ttl_ms": 86_400_001}
    assert merged(DEFAULTS, together, where="Order").tombstone_ttl_ms == 86_400_001


def test_a_config_made_directly_is_checked_as_well() -> None:
    with pytest.raises(ValueError, match="must exceed"):
        DurableConfig(tombstone_ttl_ms=1)
    with pytest.raises(TypeError, match="max_args"):
        DurableConfig(max_args=True)


def test_overrides_are_a_mapping() -> None:
    class Wrong:
        config_overrides: ClassVar[Any] = [("max_args", 1)]

    with pytest.raises(TypeError, match="Wrong: config_overrides must be a mapping"):
        config_of(Wrong)


@pytest.mark.parametrize(
    ("timeout", "ms"),
    [(None, None), (30, 30_000), (0.25, 250), (0.00001, 1), (timedelta(minutes=1), 60_000)],
)
def test_a_timeout_is_seconds_or_none(timeout: Any, ms: int | None) -> None:
    assert check_timeout(DEFAULTS, timeout) == ms


@pytest.mark.parametrize("timeout", [0, -1, float("nan"), float("inf"), timedelta(0)])
def test_a_timeout_lies_ahead(timeout: Any) -> None:
    with pytest.raises(ValueError, match="or None for no timeout"):
        check_timeout(DEFAULTS, timeout)


@pytest.mark.parametrize("timeout", [True, "30", [1]])
def test_a_timeout_is_a_number(timeout: Any) -> None:
    with pytest.raises(TypeError, match="timeout must be a number of seconds"):
        check_timeout(DEFAULTS, timeout)


@pytest.mark.parametrize("timeout", [86_400, 10**9, 1e308, 10**400])
def test_a_timeout_is_shorter_than_ids_are_remembered(timeout: float) -> None:
    with pytest.raises(ValueError, match="tombstone_ttl_ms = 86400000"):
        check_timeout(DEFAULTS, timeout)
