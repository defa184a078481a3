"""A hub that could not read all of its log: what it answers, and what it no longer claims."""

from __future__ import annotations

import msgspec
import pytest

from signalhub.auth.tokens import Authenticator
from signalhub.core import refusals
from signalhub.core.hub import ABOUT_THE_LOG
from signalhub.settings.model import AuthSettings, Settings
from signalhub.wire.errors import RoomCode, RoomError
from tests.support.memory.rooms import SECRET, RoomShell
from tests.support.memory.shell import MemoryShell
from tests.support.socket.tokens import AUTH

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


def test_a_capability_is_not_called_unknown_if_its_room_may_lie_behind_the_damage() -> None:
    settings = Settings(auth=msgspec.convert(AUTH, AuthSettings))
    shell = RoomShell(settings, authenticator=Authenticator(settings.auth))
    shell.hub.storage.hide(DAMAGE)

    assert shell.send("m", inbox=SECRET).code == RoomCode.STORAGE_FAILED
    assert shell.deposit("m", inbox=SECRET).code == RoomCode.STORAGE_FAILED
    with pytest.raises(RoomError) as caught:
        shell.enter(inbox=SECRET)
    assert caught.value.code == RoomCode.STORAGE_FAILED
    # Who presents nothing is told so, as always.
    assert shell.send("m").code == RoomCode.UNAUTHORIZED
