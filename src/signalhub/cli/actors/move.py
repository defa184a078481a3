"""An actor on its way from one host to another, as the command that started it sees it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from signalhub.cli.actors.hosts import ConnectedHosts, Hosts, NoAnswer, Row, name_of
from signalhub.cli.terminal.failures import Exit, Failure
from signalhub.wire.errors import OutcomeUnknown

if TYPE_CHECKING:
    from collections.abc import Mapping

# Where an actor is, if several hosts know it: the first of these that applies.
ORDER = ("here", "leaving", "arriving", "unplaced", "gone")


def residence(found: Mapping[str, Row]) -> str | None:
    """The host that has the actor, of all that know it; `None` if there is none."""
    return min(found, key=lambda host: ORDER.index(found[host]["status"]), default=None)


def unknown_actor(actor: str, source: Hosts) -> Failure:
    """What the user is told about an actor no host knows."""
    asked = ", ".join(sorted(set(source.hosts) - source.silent)) or "nobody"
    if source.silent:
        return Failure(
            Exit.UNKNOWN,
            OutcomeUnknown.code,
            f"{asked} does not know {actor}, and no answer came from"
            f" {', '.join(sorted(source.silent))}",
            "it may be busy or gone: try again, or wait longer with --timeout",
        )
    if source.away:
        away = ", ".join(source.away)
        resolution = f"it was never called, or lives on one of those that are away: {away}"
    else:
        resolution = "it was never called; see with `signalhub actors ls` which there are"
    message = f"no host knows {actor}; asked: {asked}"
    return Failure(Exit.FAILED, "unknown_actor", message, resolution)


class ActorMove:
    """One move: begun, then watched on both hosts."""

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
        """Start it, unless it is under way or over already."""
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
                    f"{self._actor} is on its way to {name_of(move['peer'])} already",
                    "wait until it is there, and move it then",
                )
            return
        if host == self._goal and status == "arriving":
            self._origin = None if move is None else name_of(move["peer"])
            return
        if status != "here":
            raise self._failure(
                "not_here",
                f"no host that is connected has {self._actor}; {host} only knows that it is"
                f" {status}",
                "start the host it lives on, and move it then",
            )
        await self._tell(host)

    async def repeat(self) -> None:
        """Let the old host send everything again."""
        found = await self._hosts.each("actor", actor=self._actor)
        leaving = [host for host, row in found.items() if row["status"] == "leaving"]
        if not leaving:
            raise self._failure(
                "not_leaving",
                f"{self._actor} is not leaving any host that is connected",
                "start the host it comes from; to move it for the first time, leave --again out",
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
                f"the host {host} did not answer in time",
                f"the move may have begun: look with `signalhub actors show {self._actor}`",
                Exit.UNKNOWN,
            ) from None

    async def wait(self, timeout_s: float, poll_s: float) -> None:
        """Until the actor lives on its new host."""
        import asyncio

        try:
            async with asyncio.timeout(timeout_s):
                while not await self._has_arrived():  # noqa: ASYNC110  Nobody tells us.
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
                # It was told so by the new host, which may have come only now.
                return True
            self._step = (origin.get("move") or {}).get("step") or self._step
            if origin["status"] == "here" and origin.get("moveFailed"):
                raise self._failure(
                    "move_refused",
                    f"{self._actor} stays on {self._origin}: {origin['moveFailed']}",
                    "it goes on there as before; see with `signalhub actors ls` who serves it",
                )
        return False

    async def _view(self, host: str) -> Row | None:
        """What a host knows of the actor; one that is away or does not answer says nothing."""
        if host not in self._hosts.directory.present:
            return None
        try:
            found: Row | None = await self._hosts.ask(host, "actor", actor=self._actor)
        except NoAnswer:
            return None
        return found

    async def _late(self, timeout_s: float) -> Failure:
        directory = await self._hosts.present_again()
        step = f" (its old host says: {self._step})" if self._step else ""
        if self._goal not in directory.present:
            return self._failure(
                "host_away",
                f"{self._goal} is not connected; {self._actor} waits with all it has, partly in"
                f" the mailbox of {self._goal}{step}",
                f"start {self._goal}, and the move goes on by itself",
                Exit.UNKNOWN,
            )
        return self._failure(
            "outcome_unknown",
            f"{self._actor} does not live on {self._goal} after {timeout_s:g} s{step}",
            f"it goes on by itself: look with `signalhub actors show {self._actor}`",
            Exit.UNKNOWN,
        )

    def _failure(
        self, code: str, message: str, resolution: str, exit: Exit = Exit.FAILED
    ) -> Failure:
        return Failure(exit, code, message, resolution, facts=self.facts())
