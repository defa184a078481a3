"""Deliveries that close the socket of their consumer.

A client library that is given more than it accepts closes the socket with a code that says so. The
message would be delivered again after every reconnect, and everything behind it would wait for
ever. So the attempt counts as failed, and after enough of them the message is a dead letter.

Nobody says which message it was, and a disconnect alone must not count against anything. Too big
(1009) is what the largest delivery is, if any of them is. For the other codes there is no such
sign, so only a delivery that is the only one counts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from signalhub.core.sessions.session import Session
    from signalhub.core.subscriptions.subscription import Subscription
    from signalhub.core.subscriptions.window import Flight

_TOO_BIG: Final = 1009
# Protocol error, unacceptable data, invalid text, policy violation.
_UNREADABLE: Final = (1002, 1003, 1007, 1008)


def blame(session: Session, code: int, now: int) -> None:
    """Count a failed attempt if a client closed its socket because of a delivery."""
    if code != _TOO_BIG and code not in _UNREADABLE:
        return
    unsettled: list[tuple[int, Subscription, Flight]] = []
    for consumer in [part for one in session.consumers.values() for part in one.parts()]:
        subscription = consumer.subscription
        for flight in subscription.window.of(consumer):
            assert flight.held is not None
            unsettled.append((flight.held.size, subscription, flight))
    if not unsettled or (code != _TOO_BIG and len(unsettled) > 1):
        return
    _, subscription, flight = max(unsettled, key=lambda one: one[0])
    subscription.fail(flight, f"its consumer closed the socket with {code}", now)
