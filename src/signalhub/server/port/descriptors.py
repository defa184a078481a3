"""File descriptors: the limit of the process, and how many of them sockets may use.

The log, the state and threads that read need descriptors at any time. Sockets therefore never use
the last ones.
"""

from __future__ import annotations

import logging
import resource

import msgspec

from signalhub.settings.model import LimitsSettings

log = logging.getLogger("signalhub.server")

# Kept for the log, the state, the archive and child processes: an eighth, within these bounds.
_RESERVE_MIN = 64
_RESERVE_MAX = 1_024
# For HTTP requests and sockets before their hello, when all places for WebSockets are taken.
_DOORS_MIN = 16
# What to assume where the system has no limit.
_UNLIMITED = 2**20


class Places(msgspec.Struct, frozen=True):
    """How many sockets may be open at once."""

    sockets: int
    """WebSockets."""
    total: int
    """The same, with HTTP connections and sockets before their upgrade."""
    per_source: int
    """WebSockets of one source, and as many connections before their hello."""
    is_loopback_exempt: bool
    """Is loopback not limited per source?"""


def limit() -> int:
    """Return how many descriptors the process may open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _UNLIMITED if soft == resource.RLIM_INFINITY else soft


def raise_limit() -> None:
    """Raise the limit of descriptors as far as the process may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = max(soft, _UNLIMITED) if hard == resource.RLIM_INFINITY else hard
    if soft not in (wanted, resource.RLIM_INFINITY):
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (OSError, ValueError) as error:
            facts = {"limit": soft, "error": str(error)}
            log.warning("the limit of open files could not be raised", extra=facts)
            return
        log.info("the limit of open files was raised", extra={"limit": wanted, "before": soft})


def places(limits: LimitsSettings, descriptors: int) -> Places:
    """Divide the descriptors between sockets and everything else."""
    reserve = min(max(descriptors // 8, _RESERVE_MIN), _RESERVE_MAX)
    total = max(descriptors - reserve, descriptors // 2)
    sockets = max(1, total - max(total // 8, _DOORS_MIN))
    if limits.sockets_max:
        if limits.sockets_max > sockets:
            log.warning(
                "limits.sockets_max is more than the limit of open files allows",
                extra={"sockets_max": limits.sockets_max, "sockets": sockets, "files": descriptors},
            )
        sockets = min(limits.sockets_max, sockets)
        total = min(total, sockets + max(sockets // 8, _RESERVE_MAX))
    # One source alone cannot lock out all others; half of it serves any proxy or office.
    per_source = limits.sockets_per_source or max(1, sockets // 2)
    return Places(sockets, total, per_source, not limits.sockets_per_source)
