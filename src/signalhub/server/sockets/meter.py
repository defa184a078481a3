"""How much of one socket is read: frames and bytes per second, and frames per tick.

Every frame counts, also control frames and malformed ones. A connection counts in units: a frame,
or 2 KiB of a larger one. So most frames cost one subtraction and two comparisons, and their bytes
are charged as 2 KiB. It handles frames from a small grant of units; the buckets are charged after
several grants. A tick gives it one grant, and more up to `frames_per_tick` while its turn has not
lasted long: so a socket with frames that cost much, or with many in one read, does not keep others
waiting for longer than a busy one does. A turn of frames that cost little may last longer, because
ending it costs as much as handling a dozen of them.
Above a rate nothing is refused: reading pauses, and TCP slows the client down. A client that is
held back all the time for `flood_s` is closed.
"""

from __future__ import annotations

from msgspec.structs import replace

from signalhub.settings.model import LimitsSettings, Settings

UNIT_BYTES = 2**11
# What a connection may handle before it looks at the clock, and how often it does so before its
# buckets are charged.
_GRANT_UNITS = 32
GRANT_BYTES = _GRANT_UNITS * UNIT_BYTES
_GRANTS_CHARGED = 8
# A burst is charged in this many parts at least, so that little more than it is read.
_BURST_PARTS = 4


def limits_of(settings: Settings) -> LimitsSettings:
    """Return the limits in force: who turns off the message rate wants no rate at all."""
    limits = settings.limits
    return limits if settings.message_rate else replace(limits, frame_rate=0.0, byte_rate=0.0)


def grant_of(limits: LimitsSettings) -> int:
    """Return how many units a connection may handle at once.

    At most half of `frames_per_tick`, because the rest of an earlier grant may be used in the same
    tick.
    """
    return min(_GRANT_UNITS, limits.frames_per_tick // 2)


def charge_of(limits: LimitsSettings) -> int:
    """Return how many units are handled before the buckets are charged."""
    return min(
        grant_of(limits) * _GRANTS_CHARGED,
        limits.frame_burst // _BURST_PARTS,
        limits.byte_burst // UNIT_BYTES // _BURST_PARTS,
    )


def extra_units(size: int) -> int:
    """Return how many units a frame of this size takes besides the first."""
    return max(0, size - 1) // UNIT_BYTES


class Meter:
    """The buckets of one socket, and since when they have been exceeded."""

    __slots__ = ("_at_s", "_bytes", "_frames", "_limits", "_over_since_s")

    def __init__(self, limits: LimitsSettings, now_s: float) -> None:
        self._limits = limits
        self._frames = float(limits.frame_burst)
        self._bytes = float(limits.byte_burst)
        self._at_s = now_s
        self._over_since_s: float | None = None

    def charge(self, frames: int, units: int, now_s: float) -> float:
        """Take what was read; return how many seconds to pause before more is read."""
        limits = self._limits
        elapsed_s = max(0.0, now_s - self._at_s)
        self._at_s = now_s
        wait_s = 0.0
        if limits.frame_rate:
            refilled = self._frames + elapsed_s * limits.frame_rate
            self._frames = min(float(limits.frame_burst), refilled) - frames
            wait_s = -self._frames / limits.frame_rate
        if limits.byte_rate:
            refilled = self._bytes + elapsed_s * limits.byte_rate
            self._bytes = min(float(limits.byte_burst), refilled) - units * UNIT_BYTES
            wait_s = max(wait_s, -self._bytes / limits.byte_rate)
        if self._frames >= limits.frame_burst / 2 and self._bytes >= limits.byte_burst / 2:
            self._over_since_s = None
        elif wait_s > 0 and self._over_since_s is None:
            self._over_since_s = now_s
        return max(0.0, wait_s)

    def is_flood(self, now_s: float) -> bool:
        """Has the socket used all it may use for too long?"""
        since_s = self._over_since_s
        return since_s is not None and now_s - since_s >= self._limits.flood_s
