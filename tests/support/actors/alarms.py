"""An actor that sets whatever alarms a test wants, and notes when they ran."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from signalhub.actors import Actor, op, remote
from signalhub.testing.local_actors import LocalActors

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Clock(Actor):
    @remote
    def schedule(self, when: Any, name: str = "x", **options: Any) -> str:
        return self.alarms.schedule(when, self.ring, name, **options).id

    @remote
    def every(self, seconds: Any, name: str = "x", **options: Any) -> str:
        return self.alarms.every(seconds, self.ring, name, **options).id

    @remote
    def shown(self, **filters: Any) -> list[str]:
        return [one.continuation.args[0] for one in self.alarms.list(**filters)]

    @remote
    def about(self, id: str) -> Any:
        found = self.alarms.get(id)
        return found and [found.type.value, found.due, found.status, found.attempts]

    @remote
    def cancel(self, id: str) -> Any:
        found = self.alarms.cancel(id)
        return found and found.continuation.args[0]

    @remote
    def trigger(self, count: int | None = None) -> int:
        return self.alarms.trigger(count)

    def ring(self, name: str) -> None:
        self.state.put("rung", [*self.state.get("rung", []), [name, self.now_ms - START_MS]])


START_MS = LocalActors(Clock).clock.now_ms()
START = EPOCH + timedelta(milliseconds=START_MS)


def set_alarm(local: LocalActors, *args: Any, method: str = "schedule", **options: Any) -> str:
    alarm_id: str = local.call("clock/1", op(method, *args, **options))
    return alarm_id


def rung(local: LocalActors) -> Any:
    return local.state("clock/1").get("rung", [])


def left(local: LocalActors) -> Any:
    return local.kernel.store.execute("SELECT count(*) FROM alarms").get
