"""Reads with asks: to actors that are there, slow, away or unknown, with what has to keep its order
behind them, repeats, and a log that refuses some of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from random import Random
from typing import Final, TypeVar

from jwt import PyJWT

from signalhub.auth.tokens import Authenticator
from signalhub.core import refusals
from signalhub.core.messages.ask import Orphan
from signalhub.settings.model import (
    AuthSettings,
    LimitsSettings,
    MailboxSettings,
    OutboundSettings,
    Settings,
)
from tests.fuzz.corpus import ODD_VALUES
from tests.fuzz.mutations import Mutator
from tests.fuzz.twins import ID, SENDER, SLOW, TARGETS, Reads, Way
from tests.support.memory.shell import envelope
from tests.support.socket.frames import TEXT, masked_frame

_SECRET: Final = "a shared secret that is long enough for anybody"
_AUTH: Final = AuthSettings(enabled=True, secret=_SECRET)
_CLAIMS: Final = {
    "iss": "signal-hub",
    "sub": "somebody",
    "actorId": "fuzz/anybody",
    "iat": 1_759_999_000,
    "exp": 1_760_080_000,
    "permissions": {
        "send": ["fuzz/*"],
        "subscribe": ["*"],
        "publish": ["*"],
        "register": ["fuzz/*"],
        "broadcast": ["*"],
    },
}
_NOW_MS: Final = 1_760_000_000_000
_FRAMES_MAX: Final = 60
# Of hubs that take turns; what they have is in `prepare`.
_KINDS: Final = 8
_KEPT: Final = "@(fuzz/kept)"
_AWAY: Final = "@(fuzz/away)"
_TOPIC: Final = "prices/eu"
# So many of their commits go well between two that are refused, or before the log is damaged.
_GOOD: Final = 6

T = TypeVar("T")
Members = list[tuple[bytes, bytes]]

_TO: Final = [
    *(b'"%b"' % TARGETS[0].encode(),) * 6,
    *(b'"%b"' % TARGETS[1].encode(),) * 2,
    *(b'"%b"' % SLOW.encode(),) * 3,
    *(b'"%b"' % one.encode() for one in (_AWAY, _AWAY, _KEPT, _KEPT, SENDER)),
    b'"@(fuzz/nobody)"',
]
_ODD_TO: Final = [
    *(b'""', b"null", b"7", b'"x"', b'"@(other/actor)"', '"@(fuzz/ä)"'.encode()),
    *(b'"@(' + b"t" * size + b'"' for size in (252, 253, 254)),
    b'"@(fuzz/\\u0061)"',
]
_DATA: Final = [
    *(b"null", b"[]", b'{"a":[1,{"b":"c"}],"d":"\\u00e9"}', '"größe \U0001f600"'.encode(), b"1"),
    *(b'"' + b"x" * size + b'"' for size in (20, 200, 253, 254, 255, 3_000)),
    *(b'"\\ud800"', b"1e999", b'{"a" :\t1 }', b"[" * 65 + b"]" * 65),
]
_TYPES: Final = [
    *(b'"a b"', b'""', b'"hub:x"', '"größe"'.encode(), b"1"),
    *(b'"actors:batch"', b'"actors:control"', b'"actors:move"', b'"actors:mark"'),
]
_IDS: Final = [
    *(b'""', b'"' + b"i" * 256 + b'"', b'"' + b"i" * 257 + b'"', '"é"'.encode(), b'"\\n"', b"5"),
    *(b'"' + b"i" * size + b'"' for size in (31, 32, 60, 90, 100, 128, 255)),
]
_LIVES: Final = [b"0", b"1", b"127", b"60", b"60000", b"4294967296", b"60000.0", b"-5", b"1e999"]
_STAMPS: Final = [b"0", b"-1", b"%d" % (_NOW_MS - 600_000), b"9" * 15, b"9" * 16, b"1.5", b"1e12"]
_METADATA: Final = [
    *(
        b"{}",
        b"null",
        b'{"a":1}',
        b'{ "a":1}',
        b'{"a":1 }',
        b"{ }",
        b'{"traceId":"t","spanId":"s"}',
    ),
    *(b'{"via":1}', b"7", b'{"delivery":{}}'),
]
_FENCES: Final = [b"null", b"{}", b'{"fuzz/a":1}', b"7"]
_ODD: Final = {
    b"id": _IDS,
    b"from": [b'"@(fuzz/second)"', b'"@(cloudflare/signal-hub)"', b'"@(unknown/unknown)"', b'"x"'],
    b"to": _ODD_TO,
    b"type": _TYPES,
    b"pattern": [b'"ask"', b'"tell"', b'"shout"'],
    b"timestamp": _STAMPS,
    b"ttl": _LIVES,
    b"metadata": _METADATA,
    b"data": _DATA,
    b"fences": _FENCES,
}


class Asks:
    """A kind: asks to actors."""

    name = "asks"
    senders: tuple[str, ...] = (SENDER,)

    def settings(self, number: int) -> Settings:
        is_slow = number % _KINDS == 2
        return Settings(
            message_rate=3_000.0 if is_slow else 0.0,
            message_burst=40 if is_slow else 1_000_000_000,
            limits=LimitsSettings(frame_rate=0.0, byte_rate=0.0),
            outbound=OutboundSettings(pause_messages=20, resume_messages=5, messages_max=60),
            mailbox=MailboxSettings(limit=30, window=5),
        )

    def token(self, number: int) -> tuple[Authenticator | None, str]:
        if number % _KINDS != 3:
            return None, ""
        return Authenticator(_AUTH), PyJWT().encode(_CLAIMS, _SECRET, "HS256")

    def prepare(self, way: Way, number: int) -> None:
        for address in (_KEPT, _AWAY):
            way.join(address)
            durable = {"actorAddress": address, "capabilities": ["x"], "durable": True}
            way.say(address, "hub:register", durable, id=address)
        way.wires.pop(_AWAY).close()
        way.loop.run_dry()
        way.say(TARGETS[0], "hub:subscribe", {"topic": _TOPIC})
        kind = number % _KINDS
        if kind == 1:
            way.slow.append(SENDER)
            way.wires[SENDER].room = 5_000
        if kind == 4:
            for at in range(1, 200, 3):
                way.hub.asks.restore(SENDER, f"m{at}", Orphan(at, _NOW_MS, ID))
        if kind in (5, 6):
            _refuse_some(way, is_final=kind == 6)

    def maker(self, random: Random, number: int) -> Callable[[], tuple[Reads, int]]:
        # With a rate, tells to several targets may be charged in another order.
        return _Maker(random, has_tells=number % _KINDS != 2).next


def _refuse_some(way: Way, *, is_final: bool) -> None:
    """Let the disk be full now and then, or the log be damaged after some time."""
    engine, turns = way.engine, count(1)
    commit = engine.commit

    def some(count: int | None = None) -> bool:
        turn = next(turns)
        if is_final and turn > _GOOD and engine.pending and engine.fault is None:
            engine.flush()
            engine.refuse(refusals.storage_damaged("a segment", 1, "of a test"), is_final=True)
            return True
        engine.is_full = not is_final and turn % _GOOD == 0
        return commit(count)

    engine.commit = some  # type: ignore[method-assign]


class _Maker:
    """Makes reads of one client."""

    def __init__(self, random: Random, *, has_tells: bool) -> None:
        self._random = random
        self._has_tells = has_tells
        self._others = Mutator(random.getrandbits(32))
        self._serial = 0
        self._to = _TO[0]

    def _below(self, limit: int) -> int:
        return int(self._random.random() * limit)

    def _pick(self, choices: Sequence[T]) -> T:
        return choices[int(self._random.random() * len(choices))]

    def next(self) -> tuple[Reads, int]:
        """Reads, and how many messages they hold."""
        count = 1 + self._below(self._pick((1, 4, 16, _FRAMES_MAX)))
        data = b"".join([masked_frame(TEXT, self._message()) for _ in range(count)])
        if self._below(3):
            return [data], count
        # Frames do not end where reads do.
        at = self._below(len(data) + 1)
        return [part for part in (data[:at], data[at:]) if part], count

    def _message(self) -> bytes:
        chance = self._random.random()
        if chance < 0.01:
            return self._others.damage(self._sent(0))
        if chance < 0.03:
            return self._fan()
        if chance < 0.85:
            return self._sent(0)
        return self._sent(1 + self._below(2))

    def _fan(self) -> bytes:
        """What goes to many, behind asks to some of them."""
        self._serial += 1
        id = f"m{self._serial}"
        if self._below(3):
            payload = {"topic": _TOPIC, "type": "price", "data": self._serial}
            return envelope("hub:publish", payload, id=id, sender=SENDER, pattern="tell")
        return envelope("hub:broadcast", {"type": "news", "data": 1}, id=id, sender=SENDER)

    def _sent(self, odd: int) -> bytes:
        """An ask, or now and then a tell, with so many odd members."""
        if not self._below(6):
            self._to = self._pick(_TO)
        self._serial += 1
        # Now and then one of the last ones again.
        number = self._serial - (self._below(60) if not self._below(12) else 0)
        members: Members = [
            (b"id", b'"m%d"' % number),
            (b"from", b'"%b"' % SENDER.encode()),
            (b"to", b'"@(cloudflare/signal-hub)"' if self._below(20) else self._pick(_TO)),
            (b"type", b'"hub:send"'),
            (b"pattern", b'"tell"' if not self._below(6) and self._has_tells else b'"ask"'),
            (b"correlationId", b"null"),
            (b"timestamp", b"%d" % (_NOW_MS + self._below(300) - 150)),
            (b"ttl", b"null" if self._below(8) else self._pick(_LIVES[:6])),
            (b"signature", b"null"),
            (b"metadata", b"{}" if self._below(20) else self._pick(_METADATA)),
        ]
        payload: Members = [(b"type", b'"news"')]
        if self._below(20):
            payload.append((b"to", self._to))
        if self._below(20):
            payload.append((b"data", _DATA[self._below(8)]))
        for _ in range(odd):
            self._spoil(self._pick((members, payload)))
        if not self._below(20):
            self._random.shuffle(members)
            self._random.shuffle(payload)
        space = b" " if not self._below(30) else b""
        rows = [*members, (b"payload", _object(payload, space))]
        return _object(rows, space)

    def _spoil(self, some: Members) -> None:
        if not some:
            return
        at = self._below(len(some))
        name = some[at][0]
        match self._below(8):
            case 0:
                del some[at]
            case 1:
                some.append((name, self._pick(_ODD.get(name, ODD_VALUES))))
            case 2:
                some[at] = (name, self._pick(ODD_VALUES))
            case 3:
                some.append((self._pick([b"x", b"i\\u0064"]), b"null"))
            case 4:
                some.append((b"fences", self._pick(_FENCES)))
            case _:
                some[at] = (name, self._pick(_ODD.get(name, ODD_VALUES)))


def _object(members: Members, space: bytes) -> bytes:
    rows = [b'"%b":%b%b' % (name, space, value) for name, value in members]
    return b"{" + (b"," + space).join(rows) + b"}"
