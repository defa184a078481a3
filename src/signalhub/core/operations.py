"""The record of operations: who used a permission over what belongs to others.

Whatever needs `manage`, `delete`, `control` or `admin` (`view` and `metrics` excepted) appends an
entry together with the change itself, whichever door it came through. What people do with what is
theirs needs none of these verbs and leaves no entry. Without authentication nobody owns anything
and everybody is allowed everything: requests that need one of these verbs by nature are recorded,
with the address of the session and an empty subject.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from signalhub.core.effects import Append
from signalhub.wire.entry import Entry, Kind, OperatedBody, encode_body

if TYPE_CHECKING:
    from signalhub.core.sessions.session import Session

OVER_CHARS_MAX = 256

# A job writes an entry when it begins and another when it ends.
Phase = Literal["", "begin", "end"]


def operated(session: Session, verb: str, over: str, now: int) -> list[Append]:
    """Record an operation."""
    body = OperatedBody(session.allowance.subject, session.address, verb, over[:OVER_CHARS_MAX])
    return [Append(Entry(Kind.OPERATED, "", 0, 0, now, encode_body(body)))]


def operated_unless_owned(
    session: Session, verb: str, over: str, owner: str, now: int
) -> list[Append]:
    """Record an operation on what somebody else made."""
    return [] if session.allowance.owns(owner) else operated(session, verb, over, now)


def operated_by_job(
    session: Session, operation: str, job: str, phase: Phase, now: int, *, is_named: bool = True
) -> Append:
    """Record that an administrative job begins or ends; unless it is named, not by whom."""
    by, address = (session.allowance.subject, session.address) if is_named else ("", "")
    body = OperatedBody(by, address, "admin", operation, phase, job)
    return Append(Entry(Kind.OPERATED, "", 0, 0, now, encode_body(body)))
