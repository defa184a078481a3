"""A host under fire: other hosts send it parcels, parts of moves and messages that are damaged.

Invariant: whatever arrives, no turn of the host raises, rows and tables of other actors stay as
they are, and the host serves a bystander as ever, also after a restart.
"""

from __future__ import annotations

from base64 import b64encode
from pathlib import Path
from typing import Any, Final

import msgspec

from signalhub.actors import wire
from signalhub.actors.api.operation import op
from signalhub.actors.kernel.events import (
    ActorPlace,
    DeliveryArrived,
    Event,
    PlacesFound,
    Receipted,
    SendBatch,
)
from signalhub.actors.move.parcel import Parcel, pack
from signalhub.testing.local_actors import HOST, request_body
from tests.fuzz.mutations import Damage
from tests.support.actors.scripted import Caller, Stage, Target, calling, stored

PEER: Final = "@(actors/old)"
BYSTANDER: Final = "target/bystander"
BUSY: Final = "target/busy"
# As long as the names of the actors that arrive, which take its place in the parcel.
TRAVELLER: Final = "target/0000"
DAY_S: Final = 86_400
Case = tuple[bytes, dict[str, Any], str, bytes]
_CHANGED: Final = ("v", "token", "number", "count")
_TABLES: Final = (
    *("pending", "keys", "deferred", "offloads", "alarms", "dead", "state", "inbox", "outbox"),
    "done",
)

ODD: Final[list[Any]] = [
    *(None, True, 0, 1, -1, 2**31, 2**62, 2**63 - 1, 2**63, 2**64 - 1, -(2**63), 0.5),
    *(float("nan"), float("inf"), "", "x", "\0", "0", "é" * 300, "x" * 5_000),
    *(b"", b"\x00", b"\xff\xfe", b"\x80", b"\x90", b"\xc1", b"[]", b"{}", b"null", b"[" * 2_000),
    *([], {}, [[]], [None] * 3, {"a": {"b": []}}),
    *(TRAVELLER, BYSTANDER, "target/", "other/1", "meta", "state", "sqlite_schema", PEER, HOST),
    *("request", "response", "error", "pending", "failed", "at", "every", "cron", "7" + "Z" * 25),
    "01ARZ3NDEKTSV4RRFFQ69G5FAV",
    f"state:{TRAVELLER}:t",
    f"state:{BYSTANDER}:t",
    f'CREATE TABLE "state:{TRAVELLER}:t" (a, b)',
    f'CREATE TABLE "state:{TRAVELLER}:t" (a, b) STRICT',
    f'CREATE TABLE "state:{TRAVELLER}:u" (a CHECK (abs(-9223372036854775808)))',
    f'CREATE INDEX "state:{TRAVELLER}:i" ON "state:{TRAVELLER}:t" (a)',
    f'CREATE TABLE "state:{TRAVELLER}:t" AS SELECT * FROM state',
    f'CREATE TABLE "state:{BYSTANDER}:t" (a)',
    "DELETE FROM state",
    "COMMIT",
]


def _note_soon(actor: Any) -> None:
    actor.alarms.schedule(3_600, actor.script(_note), id="soon")
    actor.alarms.schedule("0 9 * * MON", actor.script(_note), id="weekly")
    actor.state.sql("CREATE TABLE {t} (a INTEGER PRIMARY KEY AUTOINCREMENT, b TEXT)")
    actor.state.sql("INSERT INTO {t} (b) VALUES ('x'), ('y')")
    actor.state.sql("CREATE INDEX {i} ON {t} (b)")


def _note(actor: Any) -> None:
    actor.note("it rang")


def _parcel() -> bytes:
    """Of an actor that has some of everything."""
    old = Stage(Target, Caller)
    old.call(TRAVELLER, "note", {"points": [3, 5.5, None, "é"]})
    old.do(TRAVELLER, _note_soon)
    old.begin(TRAVELLER, "later")
    old.begin(TRAVELLER, "put_off")
    old.run()
    old.do(TRAVELLER, calling("later", target="target/away", timeout=7_200, key="once"))
    parcel = Parcel.collect(old.kernel.store, TRAVELLER, old.kernel.ids.last, old.kernel.time)
    message = wire.ActorMessage(
        "request", "c-9", "target/away", msgspec.Raw(b"{}"), sender=TRAVELLER
    )
    request = wire.encode(message)
    parcel.outbox.append(
        [TRAVELLER, "target/away", parcel.last_id, "request", "c-9", HOST, 1, request, 0, None]
    )
    parcel.done.append([TRAVELLER, "call-99", old.clock.now_ms()])
    old.close()
    return pack(parcel)


class Shipper(Damage):
    """An endless supply of what another host may send."""

    def __init__(self, seed: int) -> None:
        super().__init__(
            seed, odd_text=[b"\x90", b"\x80", b"\xc0", b"\xff", b"\xdd\xff\xff\xff\xff"]
        )
        self._whole = _parcel()
        self._parts = msgspec.msgpack.decode(self._whole)
        call = request_body("call-1", BUSY, op("note", 1))
        self._messages = [
            (wire.CALL, call),
            (wire.BATCH, call),
            (wire.BATCH, call.replace(b'"request"', b'"result"')),
            (wire.CONTROL, b'{"v":1,"command":"actors","arguments":{"kind":"target"}}'),
            (wire.MARK, b'{"move":"m-1"}'),
            (wire.MOVE, b'{"v":1,"move":"m-1","actor":"target/0000","token":2}'),
            (wire.MOVE, b'{"v":1,"move":"m-1","actor":"target/0000","more":[]}'),
        ]

    def next(self) -> Case:
        """A parcel, what replaces the part that carries it, and any other message."""
        parts = self._parts
        for _ in range(self.below(3)):
            parts = self.altered(parts, ODD)
        whole = self.damaged(msgspec.msgpack.encode(parts), 0.25)
        if self.is_likely(0.02):
            whole = whole.replace(b"\x90", b"\x91" * self.below(3_000) + b"\x90", 1)
        changes = {self.pick(_CHANGED): self.pick(ODD[:25])} if self.is_likely(0.1) else {}
        kind, message = self.pick(self._messages)
        return whole, changes, kind, self._deep(self.damaged(message, 0.8))

    def _deep(self, message: bytes) -> bytes:
        if not self.is_likely(0.02):
            return message
        depth = self.below(3_000)
        return message.replace(b"[]", b"[" * depth + b"]" * depth)


class HostTarget:
    """A host, a bystander on it, and a number for each actor that arrives."""

    ACTORS_MAX: Final = 100

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._opened = 0
        self._host: Stage | None = None

    def fire(self, case: Case) -> None:
        if self._host is None:
            self._open()
        host = self._host
        assert host is not None
        self._arrived += 1
        whole, changes, kind, message = case
        actor = f"target/{self._arrived:04}"
        part = {
            "v": 1,
            "move": host.kernel.new_id(),
            "actor": actor,
            "token": 2,
            "number": 0,
            "count": 1,
            "body": b64encode(whole.replace(TRAVELLER.encode(), actor.encode())).decode(),
        } | changes
        self._turn(self._delivery(wire.MOVE, msgspec.json.encode(part)))
        self._turn(PlacesFound([ActorPlace(actor, HOST, 2)]))
        if self._hears_messages:
            self._turn(self._delivery(kind, message))
        if self._arrived == self.ACTORS_MAX:
            self._check()

    @property
    def _hears_messages(self) -> bool:
        """Every second host: a message with a damaged name may create the actor it names."""
        return self._opened % 2 == 0

    def _open(self) -> None:
        self._opened += 1
        self._arrived = 0
        self._host = host = stored(self._new_folder(), Target)
        host.call(BYSTANDER, "note", "mine")
        host.do(BYSTANDER, _note_soon)
        self._before = self._rows(BYSTANDER)

    def _new_folder(self) -> Path:
        folder = self._folder / str(self._opened)
        folder.mkdir()
        return folder

    def _delivery(self, kind: str, data: bytes) -> DeliveryArrived:
        assert self._host is not None
        return DeliveryArrived(kind, data, PEER, self._host.clock.now_ms(), "it")

    def _turn(self, *events: Event) -> None:
        """And the hub takes everything the host wants to send."""
        assert self._host is not None
        kernel, now_ms = self._host.kernel, self._host.clock.now_ms()
        effects = kernel.turn(events, now_ms)
        kernel.turn([Receipted(one.batch) for one in effects if isinstance(one, SendBatch)], now_ms)
        kernel.next_due_ms()

    def _check(self) -> None:
        """After all alarms have rung and the host has been restarted, the bystander is served."""
        host = self._host
        assert host is not None
        assert self._rows(BYSTANDER) == self._before
        known = {f"target/{number:04}" for number in range(1, self.ACTORS_MAX + 1)}
        for table in () if self._hears_messages else _TABLES:
            column = host.kernel.store.execute(f"SELECT DISTINCT actor FROM {table}")
            assert {name for (name,) in column} <= {*known, BYSTANDER, ""}, table
        for _ in range(2):
            for _ in range(self.ACTORS_MAX):
                self._turn()
            assert _noted(host, BYSTANDER)
            host.restart()
            host.clock.advance(7 * DAY_S)
        host.close()
        for path in (self._folder / str(self._opened)).iterdir():
            path.unlink()
        self._host = None

    def _rows(self, actor: str) -> list[Any]:
        assert self._host is not None
        execute = self._host.kernel.store.execute
        rows = [
            execute(f"SELECT * FROM {table} WHERE actor = ?", (actor,)).fetchall()
            for table in _TABLES
        ]
        tables = execute(
            "SELECT name, sql FROM sqlite_schema WHERE name LIKE 'state:' || ? || ':%'", (actor,)
        ).fetchall()
        return [*rows, tables, execute(f'SELECT * FROM "state:{actor}:t"').fetchall()]


def _noted(host: Stage, actor: str) -> bool:
    """The actor does what it is asked."""
    before = len(host.notes(actor))
    call = request_body(f"again-{host.kernel.new_id()}", actor, op("note", "again"))
    now_ms = host.clock.now_ms()
    host.kernel.turn([DeliveryArrived(wire.CALL, call, PEER, now_ms, "again")], now_ms)
    for _ in range(3 * HostTarget.ACTORS_MAX):
        if len(host.notes(actor)) > before:
            return True
        host.kernel.turn([], now_ms)
    return False
