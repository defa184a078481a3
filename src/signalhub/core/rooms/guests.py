"""What sockets are told when they enter a room."""

from __future__ import annotations

from typing import Final

from signalhub.core.effects import Answer, Dismiss, Effect
from signalhub.core.rooms import refusals
from signalhub.core.rooms.inbox import Inbox
from signalhub.core.rooms.room import Room
from signalhub.core.rooms.values import Guest, Welcome

TRY_AGAIN_LATER: Final = 1013


def welcome(inbox: Inbox | None, now: int) -> Welcome:
    """Where an inbox stands, as far as it is known without reading the log."""
    if inbox is None:
        return Welcome(0, 1)
    oldest = inbox.oldest
    if inbox.has_stale_oldest(now) and inbox.recent and inbox.recent_first <= oldest:
        alive = (seq for seq, kept in inbox.recent.items() if kept.expires_ms > now)
        oldest = next(alive, inbox.head + 1)
    return Welcome(inbox.head, min(oldest, inbox.head + 1))


def let_in(room: Room, now: int) -> list[Effect]:
    """The room is bound: those who waited for it are welcome."""
    return [Answer(guest.link, welcome(room.inbox, now)) for guest in _waiting(room)]


def turn_away(room: Room) -> list[Effect]:
    """The room could not be bound: those who waited for it shall try again."""
    effects: list[Effect] = []
    for guest in _waiting(room):
        effects.append(Answer(guest.link, refusals.storage()))
        effects.append(Dismiss(guest, TRY_AGAIN_LATER, "the log takes nothing"))
    return effects


def _waiting(room: Room) -> list[Guest]:
    waiting, room.unwelcomed = room.unwelcomed, []
    return [guest for guest in waiting if guest in room.guests]
