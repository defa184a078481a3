"""A door without a socket: what it writes is kept, what it asks is not answered."""

from __future__ import annotations


class Nobody:
    """A gatekeeper who is not asked."""


class Wire:
    """What a door uses of its transport."""

    def __init__(self, peer: str = "192.0.2.1") -> None:
        self.peer = peer
        self.sent = b""
        self.pauses = 0
        self.is_reading = True
        self.is_over = False
        self.is_aborted = False

    def write(self, data: bytes) -> None:
        assert not self.is_over, "nothing may be written after the end"
        self.sent += data

    def write_eof(self) -> None:
        self.is_over = True

    def close(self) -> None:
        self.is_over = True

    def abort(self) -> None:
        self.is_over = self.is_aborted = True

    def get_extra_info(self, name: str) -> object:
        return (self.peer, 4711) if name == "peername" else None

    def is_closing(self) -> bool:
        return self.is_over

    def pause_reading(self) -> None:
        self.pauses += self.is_reading
        self.is_reading = False

    def resume_reading(self) -> None:
        self.is_reading = True

    def get_write_buffer_size(self) -> int:
        return 0
