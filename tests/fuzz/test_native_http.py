"""The same bytes with the native part and without it: the same requests, envelopes and answers."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import count
from typing import Any, Final

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from signalhub import native
from signalhub.core.rooms import values
from signalhub.server.port import door, http
from signalhub.server.port.door import Door
from signalhub.server.port.http import (
    BODY_BYTES_MAX,
    HEAD_BYTES_MAX,
    RequestReader,
    listed_in_python,
)
from signalhub.server.port.native import NativeRequestReader, _plain
from signalhub.server.rooms import envelopes, posts
from signalhub.server.rooms.envelopes import EnvelopeReader, RoomEnvelope
from signalhub.wire.errors import RoomError
from signalhub.wire.room_ids import Names
from tests.fuzz.corpus import FOUND_REQUESTS
from tests.fuzz.http import BODIES, HEADERS, INBOX, ODD, TARGETS, Asker, DoorTarget
from tests.fuzz.mutations import Damage
from tests.fuzz.shards import HTTP, ROOM_API, TIMEOUT_S, attack

pytestmark = [
    pytest.mark.skipif(not native.IS_ON, reason="without the native part there is no other way"),
    pytest.mark.timeout(TIMEOUT_S),
]

_CIPHERTEXT_BYTES_MAX: Final = 300
_USUAL: Final = [
    *("Content-Type: application/json", f"X-Inbox-ID: {INBOX}", "X-Room-ID: general"),
    *(
        "X-Pseudonym-ID: me",
        "User-Agent: somebody/1.0 (of no kind)",
        "Accept: */*",
        "X-Own:  a b",
        "X-Odd: a ",
    ),
    *("Connection: keep-alive", "connection:Keep-Alive", "accept-encoding: gzip, br"),
]


# What may stand beside the message in the head of a post.
_POSTED: Final = [
    *("User-Agent: somebody/1.0", "Accept: */*", "Connection: keep-alive", "Connection: close"),
    *(f"X-Inbox-ID: {INBOX}", "X-Inbox-ID: a/b", "X-Inbox-ID: Z2VuZXJhbA", "X-Room-ID: general"),
    *("X-Pseudonym-ID: me", "Authorization: Bearer a.b.c", "Authorization: none", "X-Own: a"),
    *("Origin: http://localhost", "Origin: http://example.com", "X-Forwarded-For: 192.0.2.7"),
    *("Expect: 100-continue", "Host: example.com"),
]

_GET: Final = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
_INSIDE: Final = b"POST /health HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"
_CHUNKED: Final = b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
_CLOSE: Final = b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
_OLD: Final = b"GET / HTTP/1.0\r\n\r\n"
# Reads that begin with what would be a plain request anywhere else, and other borders.
HARD: Final = [
    [_INSIDE % len(_GET), _GET, _GET],
    [_INSIDE % (2 * len(_GET)), _GET, _GET, _GET],
    [_CHUNKED + b"%x\r\n" % len(_GET), _GET, b"\r\n0\r\n\r\n", _GET],
    [_CHUNKED + b"0\r\n", b"\r\n", _GET],
    [b"GET / HTTP/1.1\r\nHost: a\r\nX: ", _GET, _GET],
    [b"GET / HTTP/1.1\r\n", _GET, _GET],
    [b"G", _GET],
    [b"\r\n", _GET],
    [_GET + b"G", _GET[1:], _GET],
    [_GET + b"\r\n", _GET],
    [_GET + b"\r\n\r\n" + _GET],
    [_CLOSE, _GET],
    [_GET + _CLOSE + _GET, _GET],
    [_OLD, _GET],
    [b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", _GET, _OLD, _GET],
    [_GET + b"X: " + b"y" * HEAD_BYTES_MAX, _GET],
    [_GET + b"GET / HTTP/1.1\r\nX: " + b"y" * HEAD_BYTES_MAX, b"y" * HEAD_BYTES_MAX],
    [_GET.replace(b"GET", b"HEAD"), _GET],
    [_INSIDE % 5 + b"hell", b"o" + _GET],
    [_INSIDE % 0 + _GET],
    [_INSIDE % BODY_BYTES_MAX, _GET],
    [_GET.replace(b"\r\n\r\n", b"\r\nExpect: 100-continue\r\n\r\n"), _GET],
    [_GET.replace(b"\r\n\r\n", b"\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n"), _GET],
]


class Plain(Asker):
    """Requests as clients send them, some of them a little damaged."""

    def next(self) -> list[bytes]:
        data = b"".join(self._request() for _ in range(1 + self.below(4)))
        return self.pieces(self.damaged(data, 0.5))

    def _request(self) -> bytes:
        if self.is_likely(0.1):
            return super()._request()
        lines = ["Host: localhost"]
        for _ in range(self.below(5)):
            lines.insert(self.below(len(lines) + 1), self.pick(_USUAL))
        if self.is_likely(0.1):
            lines.append(self.pick(HEADERS))
        if self.is_likely(0.3):
            target = self.pick(TARGETS[:10])
            return "\r\n".join([f"GET {target} HTTP/1.1", *lines, "", ""]).encode("latin-1")
        body = self._body()
        lines.insert(self.below(len(lines) + 1), f"Content-Length: {len(body)}")
        first = f"POST {self.pick(TARGETS[:6])} HTTP/1.1"
        return "\r\n".join([first, *lines, "", ""]).encode("latin-1") + body


class Bodies(Damage):
    """Messages for rooms as JSON text, some of them a little wrong."""

    def next(self) -> bytes:
        value: dict[str, Any] = dict(self.pick(BODIES))
        if self.is_likely(0.8):
            value.pop("type", None)
            value.pop("proposalId", None)
        end = self.pick(("", "QUI", "QU", "Q", "QU==", "+/")) if self.is_likely(0.5) else ""
        value["ciphertext"] = "Qx-_" * self.below(110) + end
        if self.is_likely(0.3):
            value["pseudonymId"] = self.pick(("me", "a:b", "a..b", "", "ä", "x" * 129))
        if self.is_likely(0.3):
            value = self.altered(value, ODD)
        text = msgspec.json.encode(value)
        if self.is_likely(0.2):
            text = msgspec.json.format(text, indent=self.below(3))
        return self.damaged(text, 0.3)


def _state(reader: RequestReader) -> tuple[object, ...]:
    failure = reader.failure
    return (
        failure,
        reader.rest,
        reader.wants_continue,
        reader.is_idle,
        reader.body_bytes,
        reader._parser is None,
        reader._unparsed_bytes,
    )


def both_readers(pieces: list[bytes]) -> int:
    """After each read both have found the same, and are as far; how many were plain requests?"""
    readers = NativeRequestReader(), RequestReader()
    for piece in pieces:
        found = [reader.feed(piece) for reader in readers]
        assert found[0] == found[1]
        assert _state(readers[0]) == _state(readers[1])
    for reader in readers:
        reader.stop()
    return len(_plain.read(b"".join(pieces), "", "")[0])


def _outcome(read: Callable[[], RoomEnvelope]) -> object:
    try:
        return read()
    except RoomError as error:
        return error.code, error.text
    except (ValueError, RecursionError) as error:
        return type(error)


def both_envelopes(body: bytes) -> bool:
    """Both find the same; was it a usual one?"""
    reader = EnvelopeReader(_CIPHERTEXT_BYTES_MAX)
    assert reader.usual is not None
    ours = _outcome(lambda: reader.read(body))
    theirs = _outcome(
        lambda: envelopes.read_envelope(envelopes.read_members(body), _CIPHERTEXT_BYTES_MAX)
    )
    assert ours == theirs
    return reader.usual.read(body) is not None


class BothDoors:
    """Two hubs that are asked the same."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._patch = patch
        self._targets = DoorTarget(), DoorTarget()
        self._numbers = count(), count()

    def fire(self, pieces: list[bytes]) -> None:
        sent = [self._sent(which, pieces) for which in (0, 1)]
        assert sent[0] == sent[1]

    def _sent(self, which: int, pieces: list[bytes]) -> bytes:
        target, numbers = self._targets[which], self._numbers[which]
        with self._patch.context() as patch:
            # The hub makes ids for messages without one, and tells the time.
            patch.setattr(envelopes, "new_message_id", lambda: f"own-{next(numbers)}")
            if which:
                patch.setattr(door, "new_reader", RequestReader)
                patch.setattr(http, "with_listed", listed_in_python)
                patch.setattr(EnvelopeReader, "read", _read_in_python)
            return re.sub(rb"\r\nDate: [^\r]*", b"", target.fire(pieces))


def _read_in_python(reader: EnvelopeReader, body: bytes) -> RoomEnvelope:
    return envelopes.read_envelope(envelopes.read_members(body), reader._ciphertext_bytes_max)


@pytest.mark.parametrize("make", [Plain, Asker])
@pytest.mark.parametrize("seed", HTTP.seeds)
def test_both_readers_find_the_same_requests(seed: int, make: type[Asker]) -> None:
    plain = []

    attack(seed, HTTP.cases, make(seed).next, lambda case: plain.append(both_readers(case)))

    assert sum(plain) > HTTP.cases // (2 if make is Plain else 20)


@pytest.mark.parametrize("case", [*HARD, *FOUND_REQUESTS])
def test_both_readers_find_the_same_in_hard_cases(case: list[bytes]) -> None:
    both_readers(case)
    whole = b"".join(case)
    for cut in range(min(len(whole), 500)):
        both_readers([whole[:cut], whole[cut:]])


@pytest.mark.parametrize("seed", HTTP.seeds)
def test_both_ways_find_the_same_envelopes(seed: int) -> None:
    usual = []

    attack(seed, HTTP.cases, Bodies(seed).next, lambda body: usual.append(both_envelopes(body)))

    assert HTTP.cases // 5 < sum(usual) < HTTP.cases * 4 // 5


@pytest.mark.parametrize("seed", ROOM_API.seeds)
async def test_both_ways_give_the_same_answers(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    both = BothDoors(monkeypatch)

    attack(seed, ROOM_API.cases, Plain(2_000 + seed).next, both.fire, FOUND_REQUESTS)


class Posts(Damage):
    """Messages for rooms in the form in which clients post them, some of them a little wrong."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._bodies = Bodies(seed)

    def next(self) -> list[bytes]:
        """Up to three requests, a read each; a few of them in pieces."""
        requests = [self._post() for _ in range(1 + self.below(3))]
        if self.is_likely(0.1):
            return [b"".join(requests)]
        return [self.damaged(one, 0.1) for one in requests]

    def _post(self) -> bytes:
        body = self._bodies.next() if self.is_likely(0.1) else self._message()
        lines = ["Host: localhost", "Content-Type: application/json"]
        if self.is_likely(0.3):
            lines.append(self.pick(_POSTED))
        lines.insert(self.below(len(lines) + 1), f"Content-Length: {len(body)}")
        head = "\r\n".join(["POST /api/v1/message HTTP/1.1", *lines, "", ""])
        return head.encode("latin-1") + body

    def _message(self) -> bytes:
        value: dict[str, Any] = {
            "roomId": self.pick(("general", "t:general", "other", "r" * 128)),
            # Few ids and ciphertexts, so that there are repeats with the same and other content.
            "messageId": f"m{self.below(20)}",
            "ciphertext": self.pick(("QUJD", "Qx-_", "QUI")),
        }
        if self.is_likely(0.5):
            value["pseudonymId"] = self.pick(("me", "a:b"))
        if self.is_likely(0.1):
            value["tenantId"] = "t"
        return msgspec.json.encode(value)


@pytest.mark.parametrize("seed", ROOM_API.seeds)
async def test_both_ways_answer_posts_with_the_same_bytes(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = []
    take = posts.Posts.take

    def counted(self: posts.Posts, door: Door, data: bytes) -> bool:
        taken.append(take(self, door, data))
        return taken[-1]

    monkeypatch.setattr(posts.Posts, "take", counted)
    both = BothDoors(monkeypatch)

    attack(seed, ROOM_API.cases, Posts(3_000 + seed).next, both.fire)

    assert sum(taken) > ROOM_API.cases // 2


@pytest.mark.parametrize("size", [0, 1, 2, 500])
def test_both_ways_list_values_in_the_same_way(size: int) -> None:
    values = [b'{"seq":%d}' % number for number in range(size)]
    given = b"Content-Length: ", b"\r\n\r\n[", 1, values, b"]"

    assert http.with_listed(*given) == listed_in_python(*given)
    assert listed_in_python(*given).partition(b"\r\n\r\n")[2] == b"[%b]" % b",".join(values)


@given(
    st.sampled_from(["", "me", "a:b", "x" * 128]),
    st.binary(min_size=1, max_size=400),
    st.binary(max_size=80),
)
def test_both_ways_digest_messages_in_the_same_way(
    pseudonym: str, ciphertext: bytes, secret: bytes
) -> None:
    names = Names(secret)

    assert names.content(pseudonym, ciphertext) == names.content_in_python(pseudonym, ciphertext)


@pytest.mark.parametrize("created", [None, b"2026-01-31T12:00:05Z"])
@pytest.mark.parametrize("seq", [1, 2**40 - 1])
def test_both_ways_write_messages_of_pages_in_the_same_way(seq: int, created: bytes | None) -> None:
    parts = seq, "m-1", b"QUJD", created

    assert values.json_item(*parts) == values.json_item_in_python(*parts)
