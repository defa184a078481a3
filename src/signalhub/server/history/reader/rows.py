"""Entries as rows that people read, and which entries are wanted.

Log and lake store the same bodies, so both are decoded here. What a token may not read is left out
here, too, and a condition about contents finds nothing in what may not be read.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, TypeVar

import msgspec

from signalhub.ranges import Ranges
from signalhub.server.history.answers import HistoryRow, Removed, Tier
from signalhub.server.history.questions import Filter, Hidden, Reach
from signalhub.wire import names
from signalhub.wire.bodies import body_facts
from signalhub.wire.entry import (
    BroadcastBody,
    Kind,
    MessageBody,
    StoredEntry,
    decode_body,
)
from signalhub.wire.names import Pattern
from signalhub.wire.room_ids import INBOX_PREFIX

T = TypeVar("T")

SHARD: Final = 0

KIND_NAMES: Final = {one.value: one.name.lower() for one in Kind}
KINDS: Final = {name: number for number, name in KIND_NAMES.items()}
# What people mean by messages. Those of rooms are listed with all entries only.
MESSAGES: Final = frozenset((Kind.MAIL, Kind.PUBLISHED, Kind.BROADCAST))
_SENT: Final = frozenset((Kind.MAIL, Kind.PUBLISHED))
_ROOMS: Final = frozenset(
    (
        Kind.ROOM_MESSAGE,
        Kind.INBOX_STANDS,
        Kind.ROOM_BOUND,
        Kind.ROOM_BLOB,
        Kind.ROOM_PROPOSAL,
        Kind.INBOX_KEY,
    )
)
# Of other kinds than messages, these say why something failed.
_WITH_REASONS: Final = frozenset((Kind.SETTLED,))


class BadQuestion(ValueError):
    """A question that has no answer; the text says what is wrong with it."""


def position_text(epoch: int, offset: int, shard: int = SHARD) -> str:
    """A position as people write it."""
    return f"{shard}:{epoch}.{offset}" if shard else f"{epoch}.{offset}"


def parse_position(text: str) -> tuple[int, int]:
    """Epoch and offset of a position; raises `BadQuestion`."""
    shard, colon, rest = text.rpartition(":")
    epoch, dot, offset = rest.partition(".")
    numbers = [epoch, offset, *([shard] if colon else [])]
    if not dot or not all(one.isascii() and one.isdigit() and len(one) < 19 for one in numbers):
        raise BadQuestion(f"invalid position {text!r:.60}: write it as epoch.offset")
    if colon and int(shard) != SHARD:
        raise BadQuestion(f"unknown shard {shard}")
    return int(epoch), int(offset)


def kind_name(kind: int) -> str:
    """The name of a kind; its number if this version does not know it."""
    return KIND_NAMES.get(kind, str(kind))


def kind_numbers(kinds: Iterable[str]) -> frozenset[int] | None:
    """The kinds with these names, or messages; `None` for all. Raises `BadQuestion`."""
    found: set[int] = set()
    for one in kinds:
        name = one.replace("-", "_")
        if name == "all":
            return None
        if name not in KINDS:
            known = ", ".join(["all", *KINDS])
            raise BadQuestion(f"unknown kind {one!r:.60}; use some of {known}")
        found.add(KINDS[name])
    return frozenset(found) or MESSAGES


class Sight:
    """What somebody may see: contents by pattern, and nothing of what is being erased."""

    def __init__(self, reach: Reach, hidden: Hidden = Hidden()) -> None:  # noqa: B008
        self._topics = [Pattern(one, is_plain=True) for one in reach.topics]
        self._addresses = [Pattern(one) for one in reach.addresses]
        self.is_all = reach.is_all
        self._hidden_epoch = hidden.epoch
        self._hidden = Ranges(hidden.offsets)
        self._senders = hidden.senders

    def may_read(self, stream: str) -> bool:
        """May it see contents of this stream?"""
        if self.is_all:
            return True
        patterns = self._addresses if names.is_address(stream) else self._topics
        return any(pattern.matches(stream) for pattern in patterns)

    def hides(self, epoch: int, offset: int) -> bool:
        """Is this entry being erased?"""
        return epoch == self._hidden_epoch and offset in self._hidden

    def hides_message(self, message: MessageBody, epoch: int, offset: int) -> bool:
        """Is this message being erased because of who has sent it, or gets it?"""
        involved = (message.sender, message.dead.topic if message.dead is not None else "")
        return any(self.hides_sender(one, epoch, offset) for one in involved)

    def hides_sender(self, address: str, epoch: int, offset: int) -> bool:
        """Is what this actor had sent by then being erased?"""
        return epoch == self._hidden_epoch and offset < self._senders.get(address, 0)


class Match:
    """A filter, for entries that are decoded one by one."""

    def __init__(self, wanted: Filter, sight: Sight) -> None:
        self.kinds = kind_numbers(wanted.kinds)
        self._wanted = wanted
        self._sight = sight
        contents = (wanted.key, wanted.type, wanted.text)
        self.needs_contents = any(one is not None for one in contents)
        self.needs_body = self.needs_contents or wanted.sender is not None
        # Bytes that a fitting body contains: most bodies need not be decoded.
        self._needles = [
            one.encode()
            for one in (wanted.key, wanted.type, wanted.sender, wanted.text)
            if one is not None
        ]

    def __call__(self, epoch: int, stored: StoredEntry) -> bool:
        """Is this entry wanted?"""
        if self.kinds is not None and stored.kind not in self.kinds:
            return False
        wanted = self._wanted
        if wanted.stream is not None and stored.stream != wanted.stream:
            return False
        if wanted.stream is not None and is_of_rooms(stored):
            return False
        return not self.needs_body or self._fits(epoch, stored)

    def _fits(self, epoch: int, stored: StoredEntry) -> bool:
        wanted, sight = self._wanted, self._sight
        if stored.is_erased or sight.hides(epoch, stored.offset):
            return False
        if not all(needle in stored.body for needle in self._needles):
            return False
        if stored.kind == Kind.BROADCAST and not self.needs_contents:
            sent = decoded(BroadcastBody, stored)
            return sent is not None and sent.sender == wanted.sender
        if stored.kind not in _SENT:
            return False
        message = decoded(MessageBody, stored)
        if message is None or sight.hides_message(message, epoch, stored.offset):
            return False
        if self.needs_contents and not sight.may_read(stored.stream):
            return False
        return (
            wanted.key in (None, message.key)
            and wanted.type in (None, message.type)
            and wanted.sender in (None, message.sender)
            and (wanted.text is None or wanted.text.encode() in message.data)
        )


def decoded(kind: type[T], stored: StoredEntry) -> T | None:
    """The body of an entry; `None` if it cannot be decoded."""
    try:
        return decode_body(kind, stored.body)
    except (msgspec.MsgspecError, ValueError):
        return None


def is_of_rooms(stored: StoredEntry) -> bool:
    """Does its stream name something of rooms?"""
    return stored.kind in _ROOMS or stored.stream.startswith(INBOX_PREFIX)


class Print:
    """Makes rows of entries."""

    def __init__(self, sight: Sight, payload_bytes: int) -> None:
        self.sight = sight
        self._payload_bytes = payload_bytes

    def row(
        self, epoch: int, stored: StoredEntry, tier: Tier, removed: Removed | None = None
    ) -> HistoryRow:
        """One entry as a row."""
        sight = self.sight
        if removed is None and (stored.is_erased or sight.hides(epoch, stored.offset)):
            removed = "erased"
        row = HistoryRow(
            at=stored.at_ms,
            position=position_text(epoch, stored.offset),
            shard=SHARD,
            epoch=epoch,
            offset=stored.offset,
            kind=kind_name(stored.kind),
            tier=tier,
        )
        if is_of_rooms(stored):
            size = 0 if removed else len(stored.body)
            return msgspec.structs.replace(row, bytes=size, removed=removed)
        row = msgspec.structs.replace(
            row,
            stream=stored.stream,
            stream_epoch=stored.stream_epoch,
            seq=stored.seq,
            removed=removed,
        )
        if removed:
            return row
        if stored.kind in _SENT:
            message = decoded(MessageBody, stored)
            if message is not None:
                return self._message(row, message)
        if stored.kind == Kind.BROADCAST:
            sent = decoded(BroadcastBody, stored)
            if sent is not None:
                return msgspec.structs.replace(row, id=sent.id, sender=sent.sender)
        return self._other(row, stored)

    def _message(self, row: HistoryRow, message: MessageBody) -> HistoryRow:
        if self.sight.hides_message(message, row.epoch, row.offset):
            return msgspec.structs.replace(row, removed="erased")
        row = msgspec.structs.replace(
            row, id=message.id, sender=message.sender, bytes=len(message.data)
        )
        if not self.sight.may_read(row.stream):
            return msgspec.structs.replace(row, withheld=True)
        text, is_cut, is_text = self.cut(message.data)
        return msgspec.structs.replace(
            row,
            type=message.type,
            key=message.key,
            payload=text,
            cut=is_cut,
            encoding="json" if is_text else "hex",
        )

    def _other(self, row: HistoryRow, stored: StoredEntry) -> HistoryRow:
        size = len(stored.body)
        if stored.kind in _WITH_REASONS and not self.sight.may_read(stored.stream):
            return msgspec.structs.replace(row, bytes=size, withheld=True)
        facts = msgspec.json.encode(body_facts(stored))
        text, is_cut, _ = self.cut(facts)
        return msgspec.structs.replace(row, bytes=size, payload=text, cut=is_cut)

    def cut(self, data: bytes) -> tuple[str, bool, bool]:
        """The text of some data, whether that is not all, and whether it is text."""
        most = self._payload_bytes
        is_cut = len(data) > most
        begin = data[:most]
        if is_cut:
            # Not in the middle of a character.
            while begin and begin[-1] & 0xC0 == 0x80:
                begin = begin[:-1]
            begin = begin[:-1] if begin and begin[-1] >= 0xC0 else begin
        try:
            return begin.decode(), is_cut, True
        except UnicodeDecodeError:
            half = most // 2
            return data[:half].hex(), len(data) > half, False
