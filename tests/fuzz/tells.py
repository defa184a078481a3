"""Reads with tells: usual ones, unusual ones, and what else a client may send between them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from random import Random
from typing import Final, TypeVar

import msgspec
from jwt import PyJWT

from signalhub.auth.tokens import Authenticator
from signalhub.server.sockets.meter import UNIT_BYTES, extra_units
from signalhub.settings.model import AuthSettings, LimitsSettings, OutboundSettings, Settings
from signalhub.wire.frames import is_text
from tests.fuzz.corpus import ODD_VALUES
from tests.fuzz.mutations import Mutator
from tests.fuzz.twins import SENDER, SLOW, TARGETS, Reads, Way
from tests.support.memory.shell import envelope
from tests.support.socket.frames import BINARY, CLOSE, CONTINUATION, PING, TEXT, masked_frame

_SECRET: Final = "a shared secret that is long enough for anybody"
_AUTH: Final = AuthSettings(enabled=True, secret=_SECRET)
_CLAIMS: Final = {
    "iss": "signal-hub",
    "sub": "somebody",
    "actorId": "fuzz/anybody",
    "iat": 1_759_999_000,
    "exp": 1_760_080_000,
    "permissions": {
        "send": ["fuzz/victim", "fuzz/attacker"],
        "publish": ["*"],
        "subscribe": ["*"],
        "register": ["fuzz/*"],
    },
}
# Less than a socket may send in a tick. At the end of a grant both ways differ about large frames.
_UNITS_MAX: Final = 400
_NOW_MS: Final = 1_760_000_000_000
FRAME_BYTES_MAX: Final = 100_000

T = TypeVar("T")
Members = list[tuple[bytes, bytes]]

_SENDERS: Final = [*[b'"%b"' % SENDER.encode()] * 4, b'"@(fuzz/second)"']
_TARGETS: Final = [b'"%b"' % one.encode() for one in (*TARGETS, SENDER)]
_ADDRESSES: Final = [
    *_TARGETS,
    *(b'"@(nobody/here)"', b'""', b'"@("', b'"fuzz/victim"', b'"@(fuzz/victim"', b"null", b"7"),
    *(b'"@(fuzz/\\u0076ictim)"', '"@(fuzz/größe)"'.encode(), b'"@(cloudflare/signal-hub)"'),
    *(b'"@(' + b"x" * size + b')"' for size in (252, 253, 254)),
    b'"@(' + "é".encode() * 253 + b')"',
    b'"@(unknown/unknown)"',
    b'"@(hub/x)"',
]
_TYPES: Final = [
    *(b'"news"', b'"a b"', b'"a/b:c"', b'""', b'"hub:x"', b'"hub:"', b'"actors:batch"'),
    *(b'"actors:control"', b'"actors:mark"', b'"n\\u0065ws"', '"größe"'.encode(), b"null", b"1"),
    *(b'"' + b"t" * size + b'"' for size in (255, 256, 257)),
    b'"\x7f"',
    b'"tab\t"',
]
_IDS: Final = [b'"m-%d"' % number for number in range(8)] + [
    *(b'""', b'"' + b"i" * 256 + b'"', b'"' + b"i" * 257 + b'"', '"é"'.encode(), b'"\\n"', b"5"),
    b'"a\\"b"',
]
_DATA: Final = [
    *(b"null", b"1", b"[]", b"{}", b'"x"', b'{"a":[1,{"b":"c"}],"d":"\\u00e9"}', b"-0.5e+10"),
    *('"größe \U0001f600"'.encode(), b'"\\ud83d\\ude00"', b'"\\ud800"', b"1e999", b"9" * 400),
    *(b'{"a":1,"a":2}', b'{"a" :\t1 }', b'"' + b"x" * 3_000 + b'"', b'"' + b"z" * 2_000 + b'"'),
    *(b'"\xef\xbb\xbf"', b"[" * 60 + b"]" * 60, b"[" * 65 + b"]" * 65, b'{"":[{"x":"\\\\\\""}]}'),
    b'"' + b"y" * 60_000 + b'"',
]
# They end the connection, so they come last in a read.
_BROKEN: Final = [
    *(b'"\xff"', b'"\xc3"', b'"\xed\xa0\x80"', b'"\\u12G4"', b'"\\x"', b"01", b"1.", b"+1", b"NaN"),
    *(b"[1,]", b"{", b'"\x00"', b"tru", b"[" * 1_100 + b"]" * 1_100, b'{"a":1,}', b'"a" 1', b'"'),
    *(b'"long enough for words \xff"', b'"\xf4\x90\x80\x80"', b'"\xc0\xaf"', b"-", b"1e", b".5"),
    *(b'{"a" 1}', b"[1 2]", b'"\n"', b"nullnull", b"\x0b1", b"1\x0b"),
]
_METADATA: Final = [
    *(b"{}", b"{ }", b"null", b'{"a":1}', b'{ "a" : [1] }', b"[]", b'"x"', b"7", b'{"via":1}'),
    *(
        b'{"x":{"forwarded":1}}',
        b'{"v\\u0069a":1}',
        b'{"a":"\\u00e9"}',
        b'{"a":"\\n"}',
        b'{"a":1,}',
    ),
    *(b'{"originalMessageId":"x","b":2}', '{"ä":"ö"}'.encode(), b'{"a":"' + b"m" * 2_033 + b'"}'),
    *(b'{"a":"' + b"m" * size + b'"}' for size in (2_038, 2_039, 2_040, 2_041)),
    *(b'{"%b":1}' % name for name in (b"delivery", b"publication", b"broadcast", b"replay")),
    *(b'{"%b":1}' % name for name in (b"deadLetter", b"original", b"redriven", b"Via", b"forward")),
    b'{"a":"via"}',
    b'{"traceId":"t","a":{}}',
]
_NUMBERS: Final = [
    *(b"0", b"-0", b"1", b"60000", b"60000.0", b"6e4", b"-5", b"null", b'"60"', b"0.0", b"1e999"),
    *(b"%d" % (_NOW_MS + more) for more in (-600_000, -3, -1, 0, 1, 2, 5, 600_000)),
    *(b"9" * size for size in (14, 15, 16, 17)),
    b"-" + b"9" * 15,
    b"9007199254740993",
    b"00",
    b"1.5",
]
_PUBLISH: Final = envelope(
    "hub:publish", {"topic": "prices/eu", "type": "price"}, sender=SENDER, pattern="tell"
)
_LIVES: Final = [b"null", b"null", b"null", b"0", b"100", b"300", b"60000"]
_NULLS: Final = [b"null", b'"x"', b"nul", b"0", b'""', b"null "]
_ODD: Final = {
    b"id": _IDS,
    b"from": _ADDRESSES,
    b"to": _ADDRESSES,
    b"type": _TYPES + [b'"hub:send"'] * 4,
    b"pattern": [b'"tell"', b'"ask"', b'"shout"', b"null", b'"tel\\u006c"'],
    b"correlationId": _NULLS,
    b"signature": _NULLS,
    b"timestamp": _NUMBERS,
    b"ttl": _NUMBERS,
    b"metadata": _METADATA,
    b"data": _DATA,
}
# Figures depend on what was written in which tick, and how deep a value may be on the callers.
_depends: Final = re.compile(rb'hub:(?:queue_stats|metrics)|(?:\{"a":){500}').search
_skip: Final = msgspec.json.Decoder(msgspec.Raw).decode
_SPACE: Final = [b"", b"", b" ", b"\n", b"\t ", b"\r\n  ", b"\x0b"]
_BEFORE: Final = [b" ", b"\n", b"\xef\xbb\xbf", b"\x0b", b""]
_AFTER: Final = [b" ", b"x", b"\0", b"}"]
_CLOSES: Final = [b"", b"\x03\xe8", b"\x03\xe8bye", b"\x0f\xa0"]
_LONG_LENGTHS: Final = [b"\x7e\0\x02", b"\x7f" + bytes(7) + b"\2"]
_MASKS: Final = [b"\0\0\0\0"] * 6 + [b"\x5a\x17\xc3\x88", b"\xff\xff\xff\xff"]


class Tells:
    """A kind: tells to actors."""

    name = "tells"
    senders: tuple[str, ...] = (SENDER,)

    def settings(self, number: int) -> Settings:
        limits = LimitsSettings(frame_rate=0.0, byte_rate=0.0)
        match number % 6:
            case 1:
                rate, limits = 0.0, LimitsSettings(frame_rate=0.0, byte_rate=0.0, frames_per_tick=8)
            case 2:
                # Slow enough that some are refused.
                rate = 3_000.0
            case 3:
                # A read of this size may take several grants and be charged.
                rate, limits = 1e9, LimitsSettings(frame_burst=2_000, frame_rate=20_000.0)
            case _:
                rate = 0.0
        return Settings(
            message_rate=rate,
            message_burst=40 if number % 6 == 2 else 1_000_000_000,
            frame_bytes_max=FRAME_BYTES_MAX,
            message_bytes_max=FRAME_BYTES_MAX - 10_000,
            limits=limits,
            outbound=OutboundSettings(pause_messages=20, resume_messages=5, messages_max=60),
        )

    def token(self, number: int) -> tuple[Authenticator | None, str]:
        if number % 6 != 4:
            return None, ""
        return Authenticator(_AUTH), PyJWT().encode(_CLAIMS, _SECRET, "HS256")

    def prepare(self, way: Way, number: int) -> None:
        for address in TARGETS:
            way.say(address, "hub:subscribe", {"topic": "prices/eu"})

    def maker(self, random: Random, number: int) -> Callable[[], tuple[Reads, int]]:
        return _Maker(random, is_to_one=number % 6 == 2, is_small=number % 6 == 1).next


def _waits(message: bytes) -> bool:
    """May it wait for the log or a slow reader, so that it matters in which tick it was read?"""
    return b'"hub:send"' not in message or any(
        part in message for part in (b'"ask"', b"actors:", SLOW.encode())
    )


class _Maker:
    """Makes reads of one client."""

    def __init__(self, random: Random, is_to_one: bool, is_small: bool) -> None:
        self._random = random
        self._is_small = is_small
        # With a rate, messages to several targets may be charged in another order.
        self._targets = _TARGETS[:1] if is_to_one else _TARGETS
        self._others = Mutator(random.getrandbits(32))
        self._serial = 0
        # How the client writes its messages, and how it does so now and then.
        self._text = self._other = (b"", [""])
        self._shape()
        self._shape()

    def _below(self, limit: int) -> int:
        return int(self._random.random() * limit)

    def _pick(self, choices: Sequence[T]) -> T:
        return choices[int(self._random.random() * len(choices))]

    def next(self) -> tuple[Reads, int]:
        """Reads, and how many messages they hold."""
        chance = self._random.random
        frames: Reads = []
        left = _UNITS_MAX
        for _ in range(1 + self._below(self._pick_size())):
            message = self._message()
            if self._is_small and (len(message) > UNIT_BYTES or _waits(message)):
                continue
            left -= 1 + extra_units(len(message))
            if left < 0:
                break
            frames.append(self._frame(message))
        count = len(frames)
        if chance() < 0.3:
            frames.insert(self._below(count + 1), self._other_frame())
        reads = [b"".join(frames)]
        if chance() < 0.3:
            # Frames do not end where reads do.
            data = reads[0]
            at = self._below(len(data) + 1)
            reads = [data[:at], data[at:]]
        if chance() < 0.03:
            reads.append(self._violation())
        if chance() < 0.02:
            reads.append(self._frame(self._damaged()))
        if chance() < 0.04:
            reads[-1] += self._frame(self._broken())
        return [data for data in reads if data], count

    def _pick_size(self) -> int:
        return (4, 16, 64, 200)[self._below(4)]

    def _frame(self, message: bytes) -> bytes:
        size = len(message)
        if size < 126:
            head = bytes((0x81, 0x80 | size))
        elif size < 65_536:
            head = b"\x81\xfe" + size.to_bytes(2, "big")
        else:
            head = b"\x81\xff" + size.to_bytes(8, "big")
        if self._below(16):
            return head + b"\0\0\0\0" + message
        return masked_frame(TEXT, message, mask=self._pick(_MASKS))

    def _message(self) -> bytes:
        chance = self._random.random()
        if chance < 0.7:
            return self._usual()
        if chance < 0.97:
            message = self._unusual()
            # What is no JSON ends the connection, and with it the rest of a read.
            return message if self._is_json(message) or not self._below(200) else self._usual()
        if chance < 0.99:
            message = self._others.next()
            if len(self._targets) > 1 or b"hub:send" not in message:
                return self._usual() if _depends(message) else message
        # Between runs to those who have subscribed.
        return _PUBLISH if chance < 0.996 else b'{"type":"ping"}'

    def _is_json(self, message: bytes) -> bool:
        try:
            _skip(message)
            return is_text(message)
        except (ValueError, RecursionError):
            return False

    def _shape(self) -> None:
        """How the client writes its messages from now on."""
        members = self._members(b"%b")
        payload = self._members_of_payload()
        self._random.shuffle(members)
        self._random.shuffle(payload)
        holes: list[str] = []
        self._other, self._text = self._text, (self._object(members, payload, holes), holes)

    def _usual(self) -> bytes:
        """One in the shape of the client, with other values."""
        if not self._below(30):
            self._shape()
        elif not self._below(5):
            self._text, self._other = self._other, self._text
        text, holes = self._text
        self._serial += 1
        values = {
            "id": b'"m%d"' % self._serial,
            "to": self._pick(self._targets),
            "data": _DATA[self._below(7)] if self._below(8) else _DATA[7],
            "timestamp": b"%d" % (_NOW_MS + self._below(600) - 300),
        }
        if not self._below(12):
            name = self._pick(holes)
            values[name] = self._pick(_SPACE[:6]) + values[name] + self._pick(_SPACE[:6])
        return text % tuple([values[name] for name in holes])

    def _members(self, hole: bytes) -> Members:
        return [
            (b"id", hole),
            (b"from", self._pick(_SENDERS)),
            (b"to", self._pick(self._targets)),
            (b"type", b'"hub:send"'),
            (b"pattern", b'"tell"'),
            (b"correlationId", b"null"),
            (b"timestamp", hole),
            (b"ttl", self._pick(_LIVES)),
            (b"signature", b"null"),
            (b"metadata", _METADATA[self._below(5)]),
        ]

    def _members_of_payload(self) -> Members:
        members = [(b"type", b'"news"'), (b"data", b"%b")]
        if self._below(8):
            members.append((b"to", b"%b"))
        return members

    def _object(self, members: Members, payload: Members, holes: list[str]) -> bytes:
        """The text of a message with holes, and whose these are."""
        space = self._pick([b"", b"", b" "])
        inside = b"{" + (b"," + space).join(b'"%b":%b' % one for one in payload) + b"}"
        at = self._below(len(members) + 1)
        rows = [*members[:at], (b"payload", inside), *members[at:]]
        for name, value in rows:
            if name == b"payload":
                holes += [part.decode() for part, data in payload if data == b"%b"]
            elif value == b"%b":
                holes.append(name.decode())
        return b"{" + (b"," + space).join(b'"%b":%b' % one for one in rows) + b"}"

    def _unusual(self) -> bytes:
        """One with something that is odd, out of place, missing, doubled or in another order."""
        self._serial += 1
        members = self._members(b"")
        members[0] = (b"id", b'"m%d"' % self._serial)
        members[6] = (b"timestamp", b"%d" % _NOW_MS)
        payload = [
            (b"to", self._pick(self._targets)),
            (b"type", b'"news"'),
            (b"data", self._pick(_DATA[:8])),
        ]
        for _ in range(1 + self._below(2)):
            some = payload if self._random.random() < 0.4 else members
            at = self._below(len(some))
            name = some[at][0]
            if name == b"to" and len(self._targets) == 1:
                continue
            match self._below(14):
                case 0:
                    del some[at]
                    if not some:
                        some.append((b"type", b'"news"'))
                case 1:
                    some.insert(
                        self._below(len(some) + 1), (name, self._pick(_ODD.get(name, ODD_VALUES)))
                    )
                case 2:
                    self._random.shuffle(some)
                case 3:
                    some[at] = (name, self._pick(ODD_VALUES))
                case 4:
                    other = self._pick([b"x", b"", b"ID", b"i\\u0064", b"fences", "ä".encode()])
                    some.append((other, self._pick(_DATA[:8])))
                case 5:
                    some[at] = (name.replace(b"t", b"\\u0074"), some[at][1])
                case _:
                    some[at] = (name, self._pick(_ODD.get(name, ODD_VALUES)))
        rows = self._spaced(members)
        inside = b",".join(self._spaced(payload))
        rows.insert(self._below(len(rows) + 1), b'"payload":{%b}' % inside)
        return b"{" + b",".join(rows) + b"}"

    def _spaced(self, members: Members) -> list[bytes]:
        """Members with white space wherever there may be some."""
        found = []
        for name, value in members:
            one, two = self._pick(_SPACE[:6]), self._pick(_SPACE[:6])
            found.append(b'%b"%b"%b:%b%b' % (one, name, two, one, value))
        return found

    def _broken(self) -> bytes:
        """A usual one with a value that is no JSON or no UTF-8, or around which something is."""
        text = self._usual()
        if not self._below(4):
            return self._pick(_BEFORE) + text + self._pick(_AFTER)
        values = [b'"data":', b'"timestamp":', b'"metadata":', b'"id":', b'"ttl":']
        before, name, after = text.partition(self._pick(values))
        end = min((at for at in (after.find(b","), after.find(b"}")) if at >= 0), default=0)
        return before + name + self._pick(_BROKEN) + after[end:]

    def _damaged(self) -> bytes:
        return self._others.damage(self._usual())

    def _other_frame(self) -> bytes:
        """A control frame, or a message in fragments with other frames between them."""
        match self._below(5):
            case 0:
                return masked_frame(PING, b"x" * self._below(126))
            case 1:
                return masked_frame(0xA, b"")
            case 2 if not self._below(10):
                return masked_frame(CLOSE, self._pick(_CLOSES))
            case _:
                message = self._usual()
                at, until = sorted((self._below(len(message)), self._below(len(message))))
                between = masked_frame(PING, b"") if self._below(2) else b""
                if not self._below(20):
                    # Forbidden here.
                    between = self._frame(self._usual())
                return b"".join(
                    (
                        masked_frame(TEXT, message[:at], fin=False),
                        between,
                        masked_frame(CONTINUATION, message[at:until], fin=False),
                        masked_frame(CONTINUATION, message[until:]),
                    )
                )

    def _violation(self) -> bytes:
        """What ends a connection, in a read of its own: picows drops the frame before it."""
        match self._below(8):
            case 0:
                data = masked_frame(TEXT, self._usual(), mask=None)
            case 1:
                data = masked_frame(TEXT, self._usual(), rsv=1 + self._below(7))
            case 2:
                data = masked_frame(self._below(16), self._usual()[:100])
            case 3:
                data = masked_frame(TEXT, b"x" * (FRAME_BYTES_MAX + 1))
            case 4:
                data = masked_frame(TEXT, b"{}", length=self._pick(_LONG_LENGTHS))
            case 5:
                data = masked_frame(BINARY, self._usual())
            case 6:
                data = masked_frame(PING, b"x" * self._below(130), fin=bool(self._below(2)))
            case _:
                data = masked_frame(TEXT, b'"\xff"' + self._usual())
        return data + (self._frame(self._usual()) if self._below(2) else b"")
