"""Settings of actors: what may be overridden, by whom, and what holds for a whole host."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, ClassVar

import pytest

from signalhub.actors import Actor
from signalhub.actors.api.config import DEFAULTS, DurableConfig, check_timeout, config_of, for_host
from signalhub.actors.api.config import merged as merged_config
from signalhub.actors.api.kinds import Kinds
from tests.support.actors.scripted import Scripted, Stage

DAY_MS = 86_400_000


def test_the_defaults_are_those_of_the_specification() -> None:
    expected = DurableConfig(
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
        tombstone_ttl_ms=DAY_MS,
        durability="power",
        idempotency_ttl_ms=DAY_MS,
        handler_warn_ms=1000,
    )

    assert expected == DEFAULTS == config_of(object)


def merged(**overrides: Any) -> DurableConfig:
    return merged_config(DEFAULTS, overrides, where="Order")


@pytest.mark.parametrize(
    ("overrides", "error", "text"),
    [
        ({"max_arg": 1}, TypeError, r"Order: .*'max_arg'\. Did you mean 'max_args'\?.*durabil"),
        ({"zzz": 1}, TypeError, "The keys are call_timeout_ms, durability"),
        ({5: 1}, TypeError, "The keys are call_timeout_ms, durability"),
        ({None: 1}, TypeError, "The keys are call_timeout_ms, durability"),
        *[
            ({"max_args": value}, TypeError, "Order: max_args must be an int")
            for value in (True, 1.0, "1", None, [1])
        ],
        ({"max_args": 0}, ValueError, "Order: max_args is 0; use a number above 0"),
        ({"max_args": -1}, ValueError, "Order: max_args is -1; use a number above 0"),
        ({"max_depth": 101}, ValueError, "max_depth is 101; use at most 100"),
        ({"outbound_batch_size": 1_001}, ValueError, "size is 1001; use at most 1000"),
        ({"durability": "none"}, ValueError, "'power' or 'process'"),
        ({"durability": 1}, TypeError, "'power' or 'process'"),
        *[
            ({key: DAY_MS}, ValueError, f"Order: tombstone_ttl_ms = {DAY_MS} must exceed {key}")
            for key in ("call_timeout_ms", "max_request_age_ms")
        ],
    ],
)
def test_a_wrong_override_is_refused(overrides: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        merged_config(DEFAULTS, overrides, where="Order")
    with pytest.raises(error):
        DurableConfig(**{f"{key}": value for key, value in overrides.items()})
    with pytest.raises(error, match=text.replace("Order", "Bad")):
        type("Bad", (Actor,), {"config_overrides": overrides})


def test_overrides_at_their_limits_are_accepted() -> None:
    assert merged() == DEFAULTS
    assert merged(durability="process").durability == "process"
    assert merged(max_depth=100, outbound_batch_size=1_000).max_depth == 100
    for key in ("call_timeout_ms", "max_request_age_ms"):
        assert merged(**{key: DAY_MS, "tombstone_ttl_ms": DAY_MS + 1})
    with pytest.raises(TypeError, match="Wrong: config_overrides must be a mapping"):
        config_of(type("Wrong", (), {"config_overrides": [("max_args", 1)]}))


@pytest.mark.parametrize(
    ("timeout", "ms"),
    [(None, None), (30, 30_000), (0.25, 250), (0.00001, 1), (timedelta(minutes=1), 60_000)],
)
def test_a_timeout_is_seconds_or_none(timeout: Any, ms: int | None) -> None:
    assert check_timeout(DEFAULTS, timeout) == ms


def test_a_timeout_is_a_number_ahead_and_shorter_than_ids_are_remembered() -> None:
    wrong: dict[tuple[Any, str], list[Any]] = {
        (ValueError, "or None for no timeout"): [0, -1, float("nan"), float("inf"), timedelta(0)],
        (TypeError, "timeout must be a number of seconds"): [True, "30", [1]],
        (ValueError, "tombstone_ttl_ms = 86400000"): [86_400, 10**9, 1e308, 10**400],
    }
    for (error, text), timeouts in wrong.items():
        for timeout in timeouts:
            with pytest.raises(error, match=text):
                check_timeout(DEFAULTS, timeout)


class Plain(Scripted):
    """With the settings of its host."""


class Parent(Plain):
    config_overrides: ClassVar[Mapping[str, Any]] = {"max_args": 7, "outbound_timeout_ms": 10_000}


class Child(Parent):
    config_overrides: ClassVar[Mapping[str, Any]] = {"max_args": 3, "retry_cap_ms": 60_000}


class Quick(Plain):
    config_overrides: ClassVar[Mapping[str, Any]] = {
        "outbound_timeout_ms": 1_000,
        "outbound_batch_size": 10,
        "inbound_batch_size": 500,
        "sweep_interval_ms": 1_000,
        "max_request_age_ms": 60_000,
        "durability": "process",
    }


class Forgetful(Plain):
    config_overrides: ClassVar[Mapping[str, Any]] = {
        "tombstone_ttl_ms": 60_000,
        "max_request_age_ms": 30_000,
    }


class Mindful(Plain):
    config_overrides: ClassVar[Mapping[str, Any]] = {"tombstone_ttl_ms": 10 * DAY_MS}


def test_a_class_overrides_its_parents_and_these_the_host() -> None:
    base = DurableConfig(max_args=9, max_depth=9, inbound_batch_size=9)
    kinds = Kinds([Parent, Child, Quick, Plain], base)

    def settings(kind: str) -> tuple[int, int, int]:
        config = kinds.config(kind)
        return config.max_args, config.max_depth, config.outbound_timeout_ms

    assert [settings(kind) for kind in ("parent", "child", "quick", "plain")] == [
        *((7, 9, 10_000), (3, 9, 10_000), (9, 9, 10_000), (9, 9, 10_000))
    ]
    assert kinds.names[:2] == ["child", "parent"]


@pytest.mark.parametrize(
    ("classes", "expected"),
    [
        ([], {}),
        ([Plain], {}),
        ([Child], {"outbound_timeout_ms": 10_000, "retry_cap_ms": 60_000}),
        # The most patient class decides about times, the host's own among them.
        ([Quick, Child], {"outbound_timeout_ms": 10_000, "max_request_age_ms": 1_800_000}),
        ([Quick], {"outbound_timeout_ms": 1_000, "durability": "process"}),
        # The least is done at a time, and one class that needs the disk is enough.
        ([Quick, Plain], {"outbound_timeout_ms": 5_000, "durability": "power"}),
        ([Quick, Plain], {"outbound_batch_size": 10, "inbound_batch_size": 100}),
        ([Quick, Plain], {"sweep_interval_ms": 1_000}),
        # Ids are never forgotten before other hosts expect it.
        ([Forgetful], {"tombstone_ttl_ms": DAY_MS}),
        ([Mindful, Plain], {"tombstone_ttl_ms": 10 * DAY_MS}),
    ],
)
def test_what_holds_for_a_host(classes: list[type[Actor]], expected: dict[str, Any]) -> None:
    config = for_host(DEFAULTS, classes)

    assert {key: getattr(config, key) for key in expected} == expected
    assert config.max_args == DEFAULTS.max_args
    assert for_host(config, classes) == config, "also for a host that has it already"
    assert Kinds(classes, DEFAULTS).host_config == config
    if not expected:
        assert config == DEFAULTS


def test_a_class_cannot_allow_timeouts_beyond_what_other_hosts_remember() -> None:
    def call(self: Mindful, seconds: float) -> None:
        self.call("plain/2", "note", then=self.note, timeout=seconds)

    local = Stage(Mindful, Plain)
    with pytest.raises(ValueError, match="a repeat could run twice"):
        local.do("mindful/1", call, 5 * DAY_MS / 1000)
    local.do("mindful/1", call, DAY_MS / 2000)


@pytest.mark.parametrize("key", ["call_timeout_ms", "max_request_age_ms"])
def test_a_class_cannot_try_calls_for_longer_than_other_hosts_remember(key: str) -> None:
    overrides = {"tombstone_ttl_ms": 10 * DAY_MS, key: 5 * DAY_MS}
    stubborn: Any = type("Stubborn", (Actor,), {"config_overrides": overrides})

    with pytest.raises(ValueError, match=f"Stubborn: {key} = .* of the host's own configuration"):
        Kinds([stubborn], DEFAULTS)
    assert Kinds([stubborn], DurableConfig(tombstone_ttl_ms=10 * DAY_MS))
