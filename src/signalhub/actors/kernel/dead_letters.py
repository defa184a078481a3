"""Dead letters: messages an actor has given up, kept for inspection and retry."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from signalhub.actors.kernel.inbox import Item

if TYPE_CHECKING:
    from signalhub.actors.kernel.calls import WaitingCall
    from signalhub.actors.kernel.kernel import Kernel
    from signalhub.actors.store.store import HostStore

Origin = Literal["continuation", "alarm", "send", "stranded", "refused", "unreadable"]


class DeadLetter(msgspec.Struct, frozen=True):
    """A message an actor gave up, and why."""

    id: str
    actor: str
    origin: str
    call_id: str
    error: str
    attempts: int
    dead_ms: int


class Evidence(msgspec.Struct):
    """What a retry needs: a continuation and, if known, its outcome."""

    then: bytes | None
    catch: bytes | None
    errors_only: bool
    context: bytes
    method: str = ""
    dest: str = ""
    outcome: bytes | None = None

    @classmethod
    def of(cls, waiting: WaitingCall, outcome: bytes | None = None) -> Evidence:
        """The dead letter of a pending call."""
        return cls(
            waiting.then,
            waiting.catch,
            waiting.errors_only,
            waiting.context,
            waiting.method,
            waiting.dest,
            outcome,
        )


encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Evidence).decode


class UnsentMessage(msgspec.Struct):
    """The dead letter of a message that was never sent."""

    dest: str
    kind: str
    payload: bytes


_decode_message = msgspec.msgpack.Decoder(UnsentMessage).decode


class ActorDeadLetters:
    """The table `dead`."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._execute = kernel.store.execute

    def bury(
        self,
        actor: str,
        origin: Origin,
        call_id: str,
        payload: bytes,
        error: str,
        attempts: int,
    ) -> str:
        dead_id = self._kernel.new_id()
        self._execute(
            "INSERT INTO dead VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (actor, dead_id, origin, call_id, payload, error, attempts, self._kernel.time.wall_ms),
        )
        self._kernel.counters.dead += 1
        return dead_id

    def of(self, actor: str) -> list[DeadLetter]:
        rows = self._execute(
            "SELECT dead_id, actor, origin, call_id, error, attempts, dead_ms FROM dead"
            " WHERE actor = ? ORDER BY dead_id",
            (actor,),
        )
        return [DeadLetter(*columns) for columns in rows]

    def add_outcome(self, actor: str, call_id: str, outcome: bytes) -> bool:
        """Store an outcome with its dead letter, whose continuation no longer existed."""
        found = self._execute(
            "SELECT dead_id, payload FROM dead"
            " WHERE actor = ? AND call_id = ? AND origin = 'continuation'",
            (actor, call_id),
        ).fetchone()
        if found is None:
            return False
        try:
            evidence = _decode(found[1])
        except msgspec.DecodeError:
            return False  # Damaged, or from another version.
        if evidence.outcome is not None:
            return False
        evidence.outcome = outcome
        self._execute(
            "UPDATE dead SET payload = ? WHERE actor = ? AND dead_id = ?",
            (encode(evidence), actor, found[0]),
        )
        return True

    def redrive(
        self,
        actor: str,
        dead_id: str,
        deliver: Callable[[Item], None] | None = None,
    ) -> bool:
        """Retry it; `False` if there is no such letter, or it has nothing to retry.

        `deliver` gets messages for actors of this host; a run that may still fail holds them back.
        """
        found = self._execute(
            "SELECT origin, call_id, payload FROM dead WHERE actor = ? AND dead_id = ?",
            (actor, dead_id),
        ).fetchone()
        if found is None:
            return False
        origin, call_id, data = found
        kernel = self._kernel
        item: Item | None = None
        if origin == "continuation":
            item = kernel.calls.restore(actor, call_id, _decode(data))
        elif origin == "send":
            sent = _decode_message(data)
            item = kernel.post(
                actor,
                sent.dest,
                kernel.new_id(),
                sent.kind,
                call_id,
                sent.payload,
                is_held_back=True,
            )
        elif origin == "alarm":
            kernel.alarms.redrive(actor, data)
        else:
            return False
        self.purge(actor, dead_id)
        if item is not None:
            if deliver is None:
                kernel.inbox.put(item)
            else:
                deliver(item)
        return True

    def purge(self, actor: str, dead_id: str) -> bool:
        """Delete a letter permanently."""
        self._execute("DELETE FROM dead WHERE actor = ? AND dead_id = ?", (actor, dead_id))
        return bool(self._kernel.store.connection.changes())


def contents(store: HostStore, actor: str, dead_id: str) -> dict[str, Any] | None:
    """A letter in readable form; `None` if there is no such letter."""
    found = store.execute(
        "SELECT origin, payload FROM dead WHERE actor = ? AND dead_id = ?", (actor, dead_id)
    ).fetchone()
    if found is None:
        return None
    origin, data = found
    if origin == "continuation":
        return _readable(msgspec.structs.asdict(_decode(data)))
    if origin == "send":
        sent = _decode_message(data)
        return {"dest": sent.dest, "kind": sent.kind, "message": sent.payload.decode()}
    if origin == "alarm":
        return _readable(msgspec.msgpack.decode(data))
    return {"data": bytes(data).decode("utf-8", "replace")}


def _readable(members: dict[str, Any]) -> dict[str, Any]:
    return {
        name: value.decode() if isinstance(value, bytes) else value
        for name, value in members.items()
    }
