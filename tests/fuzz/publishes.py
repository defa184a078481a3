"""Reads with durable publishes: usual ones, repeats, unusual ones, and what else a client sends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Final, TypeVar

from jwt import PyJWT
from msgspec.structs import replace

from signalhub.auth.tokens import Authenticator
from signalhub.settings.model import AuthSettings, LimitsSettings, Settings
from tests.fuzz.corpus import ODD_VALUES
from tests.fuzz.mutations import Mutator
from tests.fuzz.twins import SENDER, TARGETS, Reads, Way
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
        "publish": ["kept/*"],
        "create": ["kept/*", "secret/*"],
        "subscribe": ["*"],
        "consume": ["*"],
        "register": ["fuzz/*"],
    },
}
_NOW_MS: Final = 1_760_000_000_000
_FRAMES_MAX: Final = 100
# Of hubs that take turns; what they have is in `prepare`.
_KINDS: Final = 8

T = TypeVar("T")
Members = list[tuple[bytes, bytes]]

_TOPICS: Final = ["kept/a", "kept/b", "kept/full", "secret/a"]
_NAMES: Final = [*[b'"kept/a"'] * 6, b'"kept/b"', b'"kept/b"', b'"kept/full"', b'"secret/a"']
_ODD_NAMES: Final = [
    *(b'"kept/new"', b'"plain"', b'"kept/\\u0061"', b'""', b'"kept/+"', '"kept/ä"'.encode()),
    *(b'"%b"' % (b"t" * size) for size in (255, 256, 257)),
    b"7",
    b"null",
]
_DATA: Final = [
    *(b"null", b"[]", b'{"a":[1,{"b":"c"}],"d":"\\u00e9"}', '"größe \U0001f600"'.encode(), b"1"),
    *(b'"' + b"x" * size + b'"' for size in (200, 253, 254, 255, 3_000)),
    *(b'"\\ud800"', b"1e999", b'{"a" :\t1 }', b"[" * 65 + b"]" * 65),
]
_TYPES: Final = [
    b'"news"',
    b'"a b"',
    b'""',
    b'"hub:x"',
    '"größe"'.encode(),
    b'"actors:batch"',
    b"1",
]
_IDS: Final = [
    *(b'""', b'"' + b"i" * 256 + b'"', b'"' + b"i" * 257 + b'"', '"é"'.encode(), b'"\\n"', b"5"),
    *(b'"' + b"i" * size + b'"' for size in (31, 32, 90, 100, 110, 128, 200, 255)),
]
_KEYS: Final = [
    *(b'"k"', b'"other"', b'""', b"null", b'"\\n"', b"5", '"ä"'.encode()),
    *(b'"' + b"k" * size + b'"' for size in (31, 32, 255, 256, 257)),
]
_HEADERS: Final = [b"null", b"{}", b'{"a":"b"}', b'{"a":1}', b"[]"]
_TIMES: Final = [
    b"null",
    b"0",
    *(b"%d" % (_NOW_MS + more) for more in (-60_000, 0, 50, 60_000)),
    b"1.5",
    b'"x"',
]
_LIVES: Final = [b"0", b"1", b"127", b"128", b"60000", b"4294967296", b"60000.0", b"-5", b"1e999"]
_STAMPS: Final = [b"0", b"-1", b"%d" % (_NOW_MS - 600_000), b"9" * 15, b"9" * 16, b"1.5", b"1e12"]
_DURABLE: Final = [b"true", b"false", b"null", b"1"]
_PATTERNS: Final = [b'"ask"', b'"tell"', b'"shout"']
_METADATA: Final = [b"{}", b"null", b'{"a":1}', b'{"traceId":"t","spanId":"s"}', b'{"via":1}', b"7"]
_ODD: Final = {
    b"id": _IDS,
    b"from": [b'"@(fuzz/second)"', b'"@(cloudflare/signal-hub)"', b'"@(unknown/unknown)"', b'"x"'],
    b"type": _TYPES,
    b"pattern": _PATTERNS,
    b"timestamp": _STAMPS,
    b"ttl": _LIVES,
    b"metadata": _METADATA,
    b"topic": _ODD_NAMES,
    b"data": _DATA,
    b"key": _KEYS,
    b"headers": _HEADERS,
    b"deliverAt": _TIMES,
    b"durable": _DURABLE,
}


class Publishes:
    """A kind: publishes to durable topics."""

    name = "publishes"
    senders: tuple[str, ...] = (SENDER,)

    def settings(self, number: int) -> Settings:
        is_slow = number % _KINDS == 2
        return Settings(
            message_rate=3_000.0 if is_slow else 0.0,
            message_burst=40 if is_slow else 1_000_000_000,
            limits=LimitsSettings(frame_rate=0.0, byte_rate=0.0),
        )

    def token(self, number: int) -> tuple[Authenticator | None, str]:
        if number % _KINDS != 4:
            return None, ""
        return Authenticator(_AUTH), PyJWT().encode(_CLAIMS, _SECRET, "HS256")

    def prepare(self, way: Way, number: int) -> None:
        for topic in _TOPICS:
            way.say(SENDER, "hub:topic_create", {"topic": topic, "durable": True}, id=topic)
        reader, listener, _ = TARGETS
        kind = number % _KINDS
        consume = {"subscription": "work", "from": "earliest", "window": 1_000}
        if kind == 1:
            way.slow.append(SENDER)
            way.wires[SENDER].room = 5_000
        if kind == 5:
            every = {"pattern": "kept/#", **consume, "subscription": "all"}
            way.say(reader, "hub:subscribe", every, id="s0")
        if kind == 2:
            mine = {"pattern": "kept/#", "subscription": "mine", "window": 30, "mode": "shared"}
            way.say(SENDER, "hub:subscribe", {**mine, "from": "earliest"}, id="s9")
        if kind in (3, 5):
            way.say(reader, "hub:subscribe", {"topic": "kept/b", **consume}, id="s1")
        if kind in (5, 6):
            full = {"topic": "kept/full", **consume, "backlogMax": 5, "backlogPolicy": "refuse"}
            way.say(reader, "hub:subscribe", full, id="s2")
            way.say(reader, "hub:sub_pause", {"topic": "kept/full", "subscription": "work"})
        if kind in (6, 7):
            way.say(listener, "hub:subscribe", {"topic": "kept/b"}, id="s3")
        if kind == 7:
            oldest = {
                "topic": "kept/a",
                **consume,
                "backlogMax": 20,
                "backlogPolicy": "drop_oldest",
            }
            way.say(reader, "hub:subscribe", oldest, id="s4")
            way.say(reader, "hub:sub_pause", {"topic": "kept/a", "subscription": "work"})

    def maker(self, random: Random, number: int) -> Callable[[], tuple[Reads, int]]:
        return _Maker(random).next


class Crowd(Publishes):
    """A kind: publishes of several clients that are read one after the other."""

    name = "crowd"
    senders: tuple[str, ...] = (SENDER, "@(fuzz/second)", "@(fuzz/third)", "@(fuzz/fourth)")

    def settings(self, number: int) -> Settings:
        settings = super().settings(number)
        # So few that some of those that come together are refused.
        return replace(settings, message_burst=3) if settings.message_rate else settings

    def maker(self, random: Random, number: int) -> Callable[[], tuple[Reads, int]]:
        return _CrowdMaker(random).next


class _Maker:
    """Makes reads of one client."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._others = Mutator(random.getrandbits(32))
        self._serial = 0
        self._topic = _NAMES[0]
        self._sender = SENDER

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
            return self._others.damage(self._publish(0))
        if chance < 0.015:
            return self._subscribe()
        if chance < 0.08:
            return self._settle()
        return self._publish(0 if chance < 0.85 else 1 + self._below(2))

    def _subscribe(self) -> bytes:
        """Read what it publishes, all or only the last few."""
        self._serial += 1
        name = {"topic": self._topic.strip(b'"').decode(), "subscription": self._pick("ab")}
        few = {"backlogMax": 3, "backlogPolicy": "drop_oldest"} if self._below(2) else {}
        payload = {**name, "from": "latest", "window": 5, **few}
        return envelope("hub:subscribe", payload, id=f"m{self._serial}", sender=SENDER)

    def _settle(self) -> bytes:
        """Acknowledge what it may have got through a pattern."""
        self._serial += 1
        topic = self._pick(_TOPICS[:3])
        seq = 1 + self._below(40)
        payload: dict[str, object] = {"topic": topic, "subscription": "mine", "seq": seq}
        if self._below(3):
            del payload["seq"]
            payload["seqs"] = list(range(seq, seq + self._below(20) + 1))
        pattern = "tell" if self._below(4) else "ask"
        names = {"id": f"m{self._serial}", "sender": SENDER, "pattern": pattern}
        return envelope("hub:ack", payload, **names)

    def _publish(self, odd: int) -> bytes:
        """One with so many odd members."""
        if not self._below(10):
            self._topic = self._pick(_NAMES)
        self._serial += 1
        # Now and then one of the last ones again.
        number = self._serial - (self._below(60) if not self._below(12) else 0)
        members: Members = [
            (b"id", b'"m%d"' % number),
            (b"from", b'"%b"' % self._sender.encode()),
            (b"to", b'"@(cloudflare/signal-hub)"'),
            (b"type", b'"hub:publish"'),
            (b"pattern", b'"ask"'),
            (b"correlationId", b"null"),
            (b"timestamp", b"%d" % (_NOW_MS + self._below(300) - 150)),
            (b"ttl", b"null" if self._below(10) else self._pick(_LIVES[:6])),
            (b"signature", b"null"),
            (b"metadata", b"{}" if self._below(20) else self._pick(_METADATA)),
        ]
        payload: Members = [(b"topic", self._topic), (b"type", b'"news"'), (b"durable", b"true")]
        if self._below(20):
            payload.append((b"data", _DATA[self._below(8)]))
        if not self._below(4):
            payload.append((b"key", self._pick(_KEYS[:3])))
        for _ in range(odd):
            self._spoil(self._pick((members, payload)))
        if not self._below(20):
            self._random.shuffle(members)
            self._random.shuffle(payload)
        space = b" " if not self._below(30) else b""
        rows = [*members, (b"payload", _object(payload, space))]
        return _object(rows, space)

    def _spoil(self, some: Members) -> None:
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
                some.append((self._pick([b"x", b"i\\u0064", b"headers", b"deliverAt"]), b"null"))
            case 4:
                other = self._pick([b"headers", b"deliverAt", b"key"])
                some.append((other, self._pick(_ODD[other])))
            case _:
                some[at] = (name, self._pick(_ODD.get(name, ODD_VALUES)))


class _CrowdMaker(_Maker):
    """Makes short reads, each of another client."""

    def __init__(self, random: Random) -> None:
        super().__init__(random)
        self._turn = 0

    def next(self) -> tuple[Reads, int]:
        # Now and then somebody else sends what another one may have sent already.
        is_own = self._below(4)
        senders = Crowd.senders
        self._sender = senders[self._turn % len(senders)] if is_own else self._pick(senders)
        self._turn += 1
        count = self._pick((1, 1, 1, 1, 1, 2, 7))
        data = b"".join([masked_frame(TEXT, self._message()) for _ in range(count)])
        return [data], count


def _object(members: Members, space: bytes) -> bytes:
    rows = [b'"%b":%b%b' % (name, space, value) for name, value in members]
    return b"{" + (b"," + space).join(rows) + b"}"
