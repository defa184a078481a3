"""A move of an actor to another host, as seen by the command that starts it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from signalhub.cli.actors.hosts import ConnectedHosts, Hosts, NoAnswer, Row, name_of
from signalhub.cli.terminal.failures import Exit, Failure
from signalhub.wire.errors import OutcomeUnknown

if TYPE_CHECKING:
    from collections.abc import Mapping

# If several hosts know an actor, it is where the first of these statuses applies.
ORDER = ("here", "leaving", "arriving", "unplaced", "gone")


def residence(found: Mapping[str, Row]) -> str | None:
    """The host that has the actor; `None` if no host knows it."""
    return min(found, key=lambda host: ORDER.index(found[host]["status"]), default=None)


def unknown_actor(actor: str, source: Hosts) -> Failure:
    """The failure for an actor no host knows."""
    asked = ", ".join(sorted(set(source.hosts) - source.silent)) or "no host"
    if source.silent:
        return Failure(
            Exit.UNKNOWN,
            OutcomeUnknown.code,
            f"{actor} is unknown to {asked}, and there was no answer from"
            f" {', '.join(sorted(source.silent))}",
            "it may be busy or gone: try again, or wait longer with --timeout",
        )
    if source.away:
        away = ", ".join(source.away)
        resolution = f"it was never called, or is on a host that is away: {away}"
    else:
        resolution = "it was never called; list actors with `signalhub actors ls`"
    message = f"unknown actor {actor}; queried hosts: {asked}"
    return Failure(Exit.FAILED, "unknown_actor", message, resolution)


class ActorMove:
    """One move: started, then observed on both hosts."""

    def __init__(self, hosts: ConnectedHosts, actor: str, goal: str) -> None:
        self._hosts = hosts
        self._actor = actor
        self._goal = goal
        self._origin: str | None = None
        self._step = ""
        self.is_begun = False
        self.is_over = False

    def facts(self) -> dict[str, Any]:
        return {
            "actor": self._actor,
            "from": self._origin,
            "to": self._goal,
            "moved": self.is_begun,
            "arrived": self.is_over,
        }

    async def begin(self) -> None:
        """Start it, unless it is in progress or complete."""
        found = await self._hosts.each("actor", actor=self._actor)
        host = residence(found)
        if host is None:
            raise unknown_actor(self._actor, self._hosts)
        status, move = found[host]["status"], found[host].get("move")
        if host == self._goal and status == "here":
            self.is_over = True
            return
        self.is_begun = True
        if status == "leaving" and move is not None:
            self._origin = host
            if name_of(move["peer"]) != self._goal:
                raise self._failure(
                    "moving",
                    f"{self._actor} is already moving to {name_of(move['peer'])}",
                    "wait for that move, then try again",
                )
            return
        if host == self._goal and status == "arriving":
            self._origin = None if move is None else name_of(move["peer"])
            return
        if status != "here":
            raise self._failure(
                "not_here",
                f"{self._actor} is on no connected host; on {host} it is {status}",
                "start the host it is on, then try again",
            )
        await self._tell(host)

    async def repeat(self) -> None:
        """Make the old host send everything again."""
        found = await self._hosts.each("actor", actor=self._actor)
        leaving = [host for host, row in found.items() if row["status"] == "leaving"]
        if not leaving:
            raise self._failure(
                "not_leaving",
                f"{self._actor} is not leaving any connected host",
                "start the host it comes from, or omit --again to begin a move",
            )
        self.is_begun = True
        await self._tell(leaving[0], again=True)

    async def _tell(self, host: str, **options: bool) -> None:
        from signalhub.actors.host.host import host_address

        self._origin = host
        goal = host_address(self._goal)
        try:
            await self._hosts.ask(host, "move", actor=self._actor, to=goal, **options)
        except NoAnswer:
            raise self._failure(
                "outcome_unknown",
                f"host {host} did not answer in time",
                f"the move may have begun: see `signalhub actors show {self._actor}`",
                Exit.UNKNOWN,
            ) from None

    async def wait(self, timeout_s: float, poll_s: float) -> None:
        """Wait until the actor is on its new host."""
        import asyncio

        try:
            async with asyncio.timeout(timeout_s):
                while not await self._has_arrived():  # noqa: ASYNC110  There is no event.
                    await asyncio.sleep(poll_s)
        except TimeoutError:
            raise await self._late(timeout_s) from None
        self.is_over = True

    async def _has_arrived(self) -> bool:
        view = await self._view(self._goal)
        if view is not None and view["status"] == "here":
            return True
        origin = None if self._origin is None else await self._view(self._origin)
        if origin is not None:
            if origin["status"] == "gone":
                # The new host, which may have connected only now, has confirmed.
                return True
            self._step = (origin.get("move") or {}).get("step") or self._step
            if origin["status"] == "here" and origin.get("moveFailed"):
                raise self._failure(
                    "move_refused",
                    f"{self._actor} stays on {self._origin}: {origin['moveFailed']}",
                    "it continues there; see `signalhub actors ls`",
                )
        return False

    async def _view(self, host: str) -> Row | None:
        """A host's view of the actor; `None` if the host is away or does not answer."""
        if host not in self._hosts.directory.present:
            return None
        try:
            found: Row | None = await self._hosts.ask(host, "actor", actor=self._actor)
        except NoAnswer:
            return None
        return found

    async def _late(self, timeout_s: float) -> Failure:
        directory = await self._hosts.present_again()
        step = f" (the old host reports: {self._step})" if self._step else ""
        if self._goal not in directory.present:
            return self._failure(
                "host_away",
                f"{self._goal} is not connected; {self._actor} waits, partly in the mailbox of"
                f" {self._goal}{step}",
                f"start {self._goal}, then the move continues by itself",
                Exit.UNKNOWN,
            )
        return self._failure(
            "outcome_unknown",
            f"{self._actor} is not on {self._goal} after {timeout_s:g} s{step}",
            f"the move continues by itself: see `signalhub actors show {self._actor}`",
            Exit.UNKNOWN,
        )

    def _failure(
        self, code: str, message: str, resolution: str, exit: Exit = Exit.FAILED
    ) -> Failure:
        return Failure(exit, code, message, resolution, facts=self.facts())
