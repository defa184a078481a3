"""What the generator sends to rooms and inboxes: post a message, send one by socket, fetch a page.

The hub and its peer have the same paths and frames, so both get the same bytes. A ciphertext is
sent as base64url text; the marker is part of that text.
"""

from __future__ import annotations

import base64
import random
from collections.abc import Iterable, Sequence
from functools import cache

from bench.frames import masked_run, upgrade
from bench.protocols import MARKER, Script, Step

# Each occurs exactly once in the answer that confirms a message, or in a complete page.
ACCEPTED = b'"seq":'
ACKED = b'"action":"ack"'
_WELCOMED = b'"action":"welcome"'
_NEXT = b'"nextSeq":'

_ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
_NOBODY = "nobody-has-sent-here"


def room_name(index: int) -> str:
    return f"room-{index:06d}"


def inbox_of(room: str) -> str:
    """Return the default inbox of a room."""
    return base64.urlsafe_b64encode(room.encode()).decode().rstrip("=")


@cache
def ciphertext(size: int) -> str:
    """Return `size` bytes as base64url text: noise, with the marker in the middle."""
    marker = MARKER.decode()
    noise = random.Random(size).choices(_ALPHABET, k=-(-size * 8 // 6) - len(marker))
    half = len(noise) // 2
    return "".join([*noise[:half], marker, *noise[half:]])


def posts(port: int, rooms: Sequence[str], ids: Iterable[int], size: int) -> bytes:
    """Return requests of equal length, one message each, to the rooms in turn."""
    text = ciphertext(size)
    requests = []
    for turn, message_id in enumerate(ids):
        body = (
            f'{{"roomId":"{rooms[turn % len(rooms)]}","pseudonymId":"bench",'
            f'"messageId":"{_message_id(message_id)}","ciphertext":"{text}"}}'
        )
        requests.append(
            f"POST /api/v1/message HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n{body}"
        )
    return "".join(requests).encode()


def sends(ids: Iterable[int], size: int) -> bytes:
    """Return frames of equal length, one message each to the room of the socket."""
    text = ciphertext(size)
    return masked_run(
        [
            f'{{"action":"send","messageId":"{_message_id(each)}","ciphertext":"{text}"}}'.encode()
            for each in ids
        ]
    )


def fetches(port: int, inboxes: Sequence[str], count: int, from_seq: int, limit: int) -> bytes:
    """Return requests of equal length for one page each, from the inboxes in turn."""
    requests = [_fetch(port, inbox, from_seq, limit) for inbox in inboxes]
    rounds, rest = divmod(count, len(requests))
    return b"".join(requests * rounds + requests[:rest])


def fetched(from_seq: int, limit: int) -> bytes:
    """Return text that ends a full page, and no shorter one."""
    return b"%b%d}" % (_NEXT, from_seq + limit)


def connected(port: int) -> Script:
    """Open a connection for requests, and check that it is answered."""
    return [Step(_fetch(port, inbox_of(_NOBODY), 0, 1), _NEXT)]


def joined(port: int, room: str, pseudonym: str) -> Script:
    """Open a socket in a room."""
    headers = {"X-Room-ID": room, "X-Pseudonym-ID": pseudonym}
    return [Step(upgrade("/room", port, headers), _WELCOMED)]


def _fetch(port: int, inbox: str, from_seq: int, limit: int) -> bytes:
    return (
        f"GET /v1/inbox/messages?fromSeq={from_seq}&limit={limit} HTTP/1.1\r\n"
        f"Host: 127.0.0.1:{port}\r\nX-Inbox-ID: {inbox}\r\n\r\n"
    ).encode()


def _message_id(number: int) -> str:
    return f"00000000-0000-4000-8000-{number:012d}"
