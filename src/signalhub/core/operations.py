"""The record of operations: who used a permission over what belongs to others.

Whatever needs `manage`, `delete`, `control` or `admin` (`view` and `metrics` excepted) appends an
entry together with the change itself, whichever door it came through. Commands that only show
something on a host are excepted, too. What people do with what is theirs needs none of these verbs
and leaves no entry. Without authentication nobody owns anything and everybody is allowed
everything: requests that need one of these verbs by nature are recorded, with the address of the
session and an empty subject. What jobs write is in `jobs.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from signalhub.core.effects import Append
from signalhub.wire.entry import Entry, Kind, OperatedBody, encode_body

if TYPE_CHECKING:
    from signalhub.core.sessions.session import Session

OVER_CHARS_MAX = 256
REQUEST_CHARS_MAX = 64


def operated(
    session: Session, request: str, verb: str, over: str, now: int, detail: str = ""
) -> list[Append]:
    """Record a request that used a permission."""
    body = OperatedBody(
        session.allowance.subject,
        session.address,
        verb,
        over[:OVER_CHARS_MAX],
        request=request[:REQUEST_CHARS_MAX],
        detail=detail,
    )
    return [Append(Entry(Kind.OPERATED, "", 0, 0, now, encode_body(body)))]


def operated_unless_owned(
    session: Session, request: str, verb: str, over: str, owner: str, now: int
) -> list[Append]:
    """Record an operation on what somebody else made."""
    return [] if session.allowance.owns(owner) else operated(session, request, verb, over, now)
