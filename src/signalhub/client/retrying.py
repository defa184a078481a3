"""Trying again what a hub could not do for now, and what it means when that comes to an end."""

from __future__ import annotations

import logging
from collections.abc import Callable

from signalhub.errors import ClientError, OutcomeUnknown, Refused

BASE_S = 0.1
CAP_S = 10.0
_DOUBLINGS_MAX = 16

log = logging.getLogger("signalhub.client")


def retry_wait_s(retry_after_s: float, attempts: int, random: Callable[[], float]) -> float:
    """Never shorter than the hub asked for, and spread.

    A hub names the moment at which one of all who wait may come; without jitter all of them would.
    """
    step_s = min(CAP_S, BASE_S * (1 << min(attempts, _DOUBLINGS_MAX)))
    return max(retry_after_s, step_s / 2) + random() * max(step_s / 2, retry_after_s / 4)


def log_wait(error: ClientError, wait_s: float) -> None:
    """Let those who watch know why nothing happens for a while."""
    reason = error.message if isinstance(error, Refused) else str(error)
    log.info("Waiting for the hub", extra={"reason": reason, "wait_s": wait_s})


class Attempts:
    """The attempts at one request that is repeated under one id.

    An attempt without an answer leaves a doubt. Only a refusal of a limit dispels it, because a
    hub looks for the id before it counts.
    """

    def __init__(self) -> None:
        self.count = 0
        self.is_doubtful = False
        self._error: ClientError | None = None

    def failed(self, error: ClientError) -> None:
        """One more attempt came to nothing, for now."""
        self.count += 1
        self._error = error
        if isinstance(error, OutcomeUnknown):
            self.is_doubtful = True
        elif isinstance(error, Refused):
            self.is_doubtful = False

    def failure(self, text: str) -> ClientError:
        """What to raise when there is no time left; `text` if no attempt said anything."""
        if self.is_doubtful and not isinstance(self._error, OutcomeUnknown):
            return OutcomeUnknown(f"{text}: {self._error}")
        return self._error or OutcomeUnknown(text)
