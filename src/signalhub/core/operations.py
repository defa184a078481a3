"""The record of operations: who used a permission over what belongs to others.

An entry is appended together with the effects of the request. A redrive or purge first reads what
it removes, so its record may be on disk earlier.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from signalhub.auth.permissions import EVERYTHING
from signalhub.core.effects import Append, Effect
from signalhub.wire.entry import Entry, Kind, OperatedBody, encode_body

if TYPE_CHECKING:
    from signalhub.core.sessions.session import Session

OVER_CHARS_MAX = 256


def operated(session: Session, verb: str, over: str, now: int) -> list[Effect]:
    """Record an operation; without authentication everybody is nobody, and nothing is recorded."""
    allowance = session.allowance
    if allowance is EVERYTHING:
        return []
    body = OperatedBody(allowance.subject, session.address, verb, over[:OVER_CHARS_MAX])
    return [Append(Entry(Kind.OPERATED, "", 0, 0, now, encode_body(body)))]


def operated_unless_owned(
    session: Session, verb: str, over: str, owner: str, now: int
) -> list[Effect]:
    """Record an operation on what somebody else made."""
    return [] if session.allowance.owns(owner) else operated(session, verb, over, now)
