"""Settings that hold for a whole host, and what classes that override them can do about that."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import pytest

from signalhub.actors import Actor, remote
from signalhub.actors.api.config import DurableConfig, for_host
from signalhub.actors.kernel.kernel import Kernel
from signalhub.actors.store.store import HostStore
from signalhub.testing.local_actors import LocalActors

DAY_MS = 86_400_000


class Plain(Actor):
    @remote
    def ask(self, seconds: float) -> None:
        self.call("plain/2", "hear", then=self.on_heard, timeout=seconds)

    @remote
    def hear(self) -> None:
        pass

    def on_heard(self, outcome: Any) -> None:
        pass


class Slow(Plain):
    kind = "slow"
    config_overrides: ClassVar[Mapping[str, Any]] = {"outbound_timeout_ms": 10_000}


class Slower(Slow):
    kind = "slower"
    config_overrides: ClassVar[Mapping[str, Any]] = {"retry_cap_ms": 60_000, "max_args": 7}


class Quick(Plain):
    kind = "quick"
    config_overrides: ClassVar[Mapping[str, Any]] = {
        "outbound_timeout_ms": 1_000,
        "outbound_batch_size": 10,
        "inbound_batch_size": 500,
        "sweep_interval_ms": 1_000,
        "max_request_age_ms": 60_000,
        "durability": "process",
    }


class Forgetful(Plain):
    kind = "forgetful"
    config_overrides: ClassVar[Mapping[str, Any]] = {
        "tombstone_ttl_ms": 60_000,
        "max_request_age_ms": 30_000,
    }


class Mindful(Plain):
    kind = "mindful"
    config_overrides: ClassVar[Mapping[str, Any]] = {"tombstone_ttl_ms": 10 * DAY_MS}


def kernel(*classes: type[Actor], config: DurableConfig | None = None) -> Kernel:
    return Kernel(HostStore(":memory:"), classes, host="@(actors/a)", config=config)


def test_without_overrides_the_hosts_own_configuration_holds() -> None:
    base = DurableConfig(outbound_timeout_ms=3_000)

    assert for_host(base, [Plain]) == base
    assert for_host(base, []) == base
    assert kernel(Plain, config=base).config == base


def test_a_timeout_for_receipts_that_a_class_overrides_is_the_hosts() -> None:
    assert kernel(Slow).config.outbound_timeout_ms == 10_000
    assert kernel(Slower).config.outbound_timeout_ms == 10_000


def test_the_most_patient_class_decides_about_times() -> None:
    config = for_host(DurableConfig(), [Quick, Slower])

    assert (config.outbound_timeout_ms, config.retry_cap_ms) == (10_000, 60_000)
    assert config.max_request_age_ms == 1_800_000
    assert config.max_args == DurableConfig().max_args


def test_a_class_that_overrides_nothing_counts_with_the_hosts_own() -> None:
    assert for_host(DurableConfig(), [Quick]).outbound_timeout_ms == 1_000
    assert for_host(DurableConfig(), [Quick, Plain]).outbound_timeout_ms == 5_000


def test_the_least_is_done_at_a_time() -> None:
    config = for_host(DurableConfig(), [Quick, Plain])

    assert config.outbound_batch_size == 10
    assert config.inbound_batch_size == 100
    assert config.sweep_interval_ms == 1_000


def test_one_class_that_needs_the_disk_is_enough() -> None:
    assert for_host(DurableConfig(), [Quick]).durability == "process"
    assert for_host(DurableConfig(), [Quick, Plain]).durability == "power"


def test_ids_are_never_forgotten_before_other_hosts_expect_it() -> None:
    assert for_host(DurableConfig(), [Forgetful]).tombstone_ttl_ms == DAY_MS
    assert for_host(DurableConfig(), [Mindful, Plain]).tombstone_ttl_ms == 10 * DAY_MS


def test_it_is_the_same_for_a_host_that_has_it_already() -> None:
    classes = [Slower, Quick, Plain, Forgetful]
    config = for_host(DurableConfig(), classes)

    assert for_host(config, classes) == config


def test_a_class_sees_what_holds_for_its_host_and_keeps_what_is_its_own() -> None:
    kinds = kernel(Slower, Quick).kinds

    assert kinds.config("quick").outbound_timeout_ms == 10_000
    assert kinds.config("slower").outbound_batch_size == 10
    assert (kinds.config("slower").max_args, kinds.config("quick").max_args) == (7, 100)


def test_a_class_cannot_allow_timeouts_beyond_what_other_hosts_remember() -> None:
    local = LocalActors(Mindful, Plain)

    with pytest.raises(ValueError, match="a repeat could run twice"):
        local.call("mindful/1", "ask", 5 * DAY_MS / 1000)
    local.call("mindful/1", "ask", DAY_MS / 2000)


@pytest.mark.parametrize("key", ["call_timeout_ms", "max_request_age_ms"])
def test_a_class_cannot_try_calls_for_longer_than_other_hosts_remember(key: str) -> None:
    class Stubborn(Actor):
        kind = f"stubborn-{key.replace('_', '-')}"
        config_overrides: ClassVar[Mapping[str, Any]] = {
            "tombstone_ttl_ms": 10 * DAY_MS,
            key: 5 * DAY_MS,
        }

    with pytest.raises(ValueError, match=f"Stubborn: {key} = .* of the host's own configuration"):
        kernel(Stubborn)
    assert kernel(Stubborn, config=DurableConfig(tombstone_ttl_ms=10 * DAY_MS))


def test_a_batch_has_no_more_messages_than_the_hub_takes_fences() -> None:
    assert DurableConfig(outbound_batch_size=1_000)
    with pytest.raises(ValueError, match="outbound_batch_size is 1001; use at most 1000"):
        DurableConfig(outbound_batch_size=1_001)
