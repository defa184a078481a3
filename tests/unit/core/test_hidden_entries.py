"""A hub that could not read all of its log: what it answers, and what it no longer claims."""

from __future__ import annotations

from signalhub.core import refusals
from signalhub.core.hub import ABOUT_THE_LOG
from tests.support.memory.shell import MemoryShell

DAMAGE = refusals.storage_damaged("00000000000000000000.log", 48, "the checksum does not match")
# These need no log, or look at what they ask for: whether it is an ask, durable, named or away.
WITHOUT_THE_LOG = {
    *("hub:connect", "hub:disconnect", "hub:heartbeat", "hub:refresh_token", "hub:queue_stats"),
    *("hub:metrics", "hub:list_sessions", "hub:close_session", "hub:list_actors", "hub:renew"),
    *("hub:broadcast", "hub:credit", "hub:unregister", "hub:unsubscribe"),
    *("hub:send", "hub:register", "hub:subscribe", "hub:discover"),
}


def test_every_request_is_known_to_need_the_log_or_not() -> None:
    assert set(MemoryShell().hub.handlers) == WITHOUT_THE_LOG | ABOUT_THE_LOG
    assert set() == WITHOUT_THE_LOG & ABOUT_THE_LOG


def test_damage_that_hides_nothing_stops_writing_only() -> None:
    storage = MemoryShell().hub.storage
    storage.stop(DAMAGE)

    assert (storage.is_damaged, storage.gap, storage.durability) == (True, None, "none")
    storage.check_known()


def test_a_failed_log_is_not_taken_for_a_damaged_one() -> None:
    storage = MemoryShell().hub.storage
    storage.stop(refusals.storage_failed())

    assert (storage.is_damaged, storage.durability) == (False, "fsync")
