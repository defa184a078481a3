"""Hosts of durable actors, asked by the hub itself.

A hub knows hosts and not what is in them. Commands go to them from an internal address with the
permissions of whoever asks, so the hub checks them and records those that may change something, as
it does with those of the command line. Hosts that do not answer in time are named, the others are
shown.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from signalhub.server.admin.answers import Done, Planned
from signalhub.server.admin.api import (
    AdminApi,
    AdminRefusal,
    Asked,
    bad_request,
    not_found,
    slices,
)
from signalhub.server.callers import Answer, Caller, CallRefused
from signalhub.server.history.answers import Call, CallRow, Calls, Host, HostRows, Hosts
from signalhub.server.history.asking import Asking
from signalhub.server.history.questions import CallQuestion, CallsQuestion
from signalhub.wire import names

if TYPE_CHECKING:
    from signalhub.core.hub import Hub

ADDRESS: Final = "@(hub/admin.0)"
HOST_PREFIX: Final = "@(actors/"
CONTROL: Final = "actors:control"
ANSWER: Final = "actors:answer"

ANSWER_S: Final = 2.0
AT_ONCE_MAX: Final = 4
HOSTS_MAX: Final = 500

# How far one can leaf through the rows of several hosts together.
ROWS_MAX: Final = 2_000
# Answers of one host for one page: it shortens those that would be too long.
_PARTS_MAX: Final = 16
_REASON_CHARS: Final = 300

_OPEN: Final = "open"
_ENDED: Final = "ended"
_FINISHED: Final = "finished"
_STATES: Final = (_OPEN, _ENDED, _FINISHED)


class RedriveBody(msgspec.Struct, frozen=True, rename="camel"):
    """Which dead letter or skipped alarm of a host to try again, or which letter to delete."""

    actor: str
    id: str
    dry_run: bool = False


class MoveBody(msgspec.Struct, frozen=True, rename="camel"):
    """Which actor to move, to which host; `again` repeats a move that seems to be stuck."""

    actor: str
    to: str
    again: bool = False
    dry_run: bool = False


class _Reply(msgspec.Struct):
    """What a host answers."""

    id: str = ""
    result: Any = None
    error: str | None = None


_decode_reply = msgspec.json.Decoder(_Reply).decode


class _OpenCall(msgspec.Struct, rename="camel"):
    """A call that its caller's host has open."""

    call: str
    actor: str | None = None
    target: str | None = None
    method: str | None = None
    state: str = "open"
    deadline_ms: int | None = None
    host: str | None = None
    key: str | None = None
    withheld: bool = False

    def row(self) -> CallRow:
        return CallRow(
            call=self.call,
            caller=self.actor,
            target=self.target,
            method=self.method,
            state=self.state,
            deadline=self.deadline_ms,
            host=self.host,
            key=self.key,
            withheld=self.withheld,
        )


class _FinishedCall(msgspec.Struct, rename="camel"):
    """A call that a host has executed."""

    call: str
    caller: str | None = None
    actor: str | None = None
    method: str | None = None
    outcome: str = "returned"
    ended_ms: int | None = None
    host: str | None = None
    withheld: bool = False

    def row(self) -> CallRow:
        return CallRow(
            call=self.call,
            caller=self.caller,
            target=self.actor,
            method=self.method,
            state=self.outcome,
            ended_at=self.ended_ms,
            host=self.host,
            withheld=self.withheld,
        )


_Shape = _OpenCall | _FinishedCall


class _Told(NamedTuple):
    """What several hosts have answered, and which have not."""

    found: dict[str, Any]
    silent: list[str]
    failed: dict[str, str]


_Row = dict[str, Any]


class HostSilent(Exception):
    """A host did not answer in time."""


class HostDesk:
    """Answers about hosts, their actors and calls, and passes commands on."""

    def __init__(self, hub: Hub, asking: Asking, *, answer_s: float = ANSWER_S) -> None:
        self._hub = hub
        self._asking = asking
        self._answer_s = answer_s
        self._turns = asyncio.Semaphore(AT_ONCE_MAX)

    def add_to(self, api: AdminApi) -> None:
        """Add the routes."""
        page = ("limit", "offset")
        api.add("GET", "/hosts", self.list_hosts, answer=Hosts)
        api.add("GET", "/hosts/{}/actors", self.list_actors, answer=HostRows, query=(*page, "kind"))
        api.add("GET", "/hosts/{}/actors/{}", self.show_actor, answer=HostRows)
        api.add(
            "GET", "/calls", self.list_calls, answer=Calls,
            query=(*page, "state", "actor", "id", "text", "host", "before"),
        )  # fmt: skip
        api.add("GET", "/calls/{}", self.show_call, answer=Call, query=("before",))
        listed = (*page, "actor", "id", "host")
        api.add("GET", "/alarms", self.list_alarms, answer=HostRows, query=(*listed, "status"))
        api.add("GET", "/host-letters", self.list_letters, answer=HostRows, query=listed)
        api.add("GET", "/host-letters/{}/{}", self.show_letter, answer=HostRows, query=("actor",))
        for what in ("redrive", "purge"):
            api.add(
                "POST", f"/hosts/{{}}/{what}", self._acting(what), answer=Done, preview=Planned,
                body=RedriveBody, summary=f"{what.capitalize()} a dead letter of a host.",
            )  # fmt: skip
        api.add("POST", "/hosts/{}/move", self.move, answer=Done, preview=Planned, body=MoveBody)

    # Which hosts there are.

    async def _hosts(self, asked: Asked, only: str | None = None) -> tuple[list[str], list[str]]:
        """The addresses of hosts that are there, and of those that are away.

        With `only`, that one must be there, and one must be permitted to control it.
        """
        if only is not None:
            asked.require("control", address_of(only))
        present: list[str] = []
        away: list[str] = []
        async for some in slices(list(self._hub.streams.mailboxes.values())):
            for box in some:
                if box.is_host and only in (None, box.name, name_of(box.name)):
                    is_here = self._hub.registry.find(box.name, asked.now) is not None
                    (present if is_here else away).append(box.name)
        if only is not None and not present:
            state = "not connected" if away else "unknown"
            raise not_found(
                f"The host {name_of(only)} is {state}.",
                "Start it with `signalhub actors run`, or look at `GET /hosts`.",
            )
        return sorted(present), sorted(away)

    async def list_hosts(self, asked: Asked) -> Hosts:
        """Hosts of durable actors, connected or away; those one may control say how they are."""
        present, away = await self._hosts(asked)
        allowed = [one for one in present if asked.may("control", one)][:HOSTS_MAX]
        told = await self._each(
            allowed, lambda host: self._command(asked, host, "stats", {}), self._answer_s
        )
        rows = [
            self._row(one, "silent" if one in told.silent else "present", told.found.get(one))
            for one in present
        ]
        rows += [self._row(one, "away", None) for one in away]
        return Hosts(hosts=rows[:HOSTS_MAX], silent=_names(told.silent), failed=told.failed)

    def _row(self, address: str, state: Any, stats: Any) -> Host:
        hub, facts = self._hub, stats if isinstance(stats, dict) else {}
        box = hub.streams.mailboxes.get(address)
        subscription = None if box is None else box.subscription
        lag = 0 if subscription is None else subscription.lag
        oldest = subscription.oldest_ms() if subscription is not None and lag else None
        return Host(
            host=name_of(address),
            address=address,
            state=state,
            kinds=list((box.kinds if box is not None else None) or ()),
            away_since=hub.wall.shown(box.attached_at_ms)
            if box is not None and state == "away"
            else None,
            waiting=lag,
            oldest_at=None if oldest is None else hub.wall.shown(oldest),
            moves=_numbers(facts.get("moves")),
            counters=_numbers(facts.get("counters")),
        )

    # What is in them.

    async def list_actors(self, asked: Asked, host: str) -> HostRows:
        """Actors of a host, and what waits for each."""
        return await self._rows(asked, "actors", host, {"kind": asked.text("kind")})

    async def show_actor(self, asked: Asked, host: str, actor: str) -> HostRows:
        """One actor of a host: its state by key and size, its calls, alarms and dead letters."""
        return await self._one(asked, "actor", host, actor=actor)

    async def list_alarms(self, asked: Asked) -> HostRows:
        """Alarms of all hosts, by the time they are due."""
        wanted = {
            "address": asked.text("actor"),
            "id": asked.text("id"),
            "status": asked.text("status"),
        }
        return await self._rows(asked, "alarms", asked.text("host"), wanted, order="dueMs")

    async def list_letters(self, asked: Asked) -> HostRows:
        """Dead letters of all hosts: what their actors failed at too often."""
        wanted = {"address": asked.text("actor"), "id": asked.text("id")}
        return await self._rows(asked, "dead", asked.text("host"), wanted, order="deadMs")

    async def show_letter(self, asked: Asked, host: str, id: str) -> HostRows:
        """One dead letter of a host with its contents."""
        return await self._one(asked, "letter", host, actor=asked.text("actor") or "", id=id)

    async def list_calls(self, asked: Asked) -> Calls:
        """Calls: open ones as their hosts say them, ended ones from log and lake."""
        state = asked.chosen("state", _STATES, _OPEN)
        if state == _ENDED:
            question = CallsQuestion(
                before=asked.text("before"),
                text=asked.text("text") or asked.text("id"),
                actor=asked.text("actor"),
                limit=asked.limit(),
                reach=self._asking.reach(asked),
                hidden=self._asking.hidden(),
            )
            return await self._asking.ask(asked, question, Calls, is_search=True)
        command = "calls" if state == _OPEN else _FINISHED
        wanted = {"address": asked.text("actor")}
        if state == _OPEN:
            wanted["id"] = asked.text("id")
        shape: type[_Shape] = _OpenCall if state == _OPEN else _FinishedCall
        found = await self._rows(asked, command, asked.text("host"), wanted, shape=shape)
        rows = [msgspec.convert(one, shape, strict=False).row() for one in found.rows]
        return Calls(
            rows=rows,
            has_more=found.has_more,
            next=None,
            silent=found.silent,
            away=found.away,
            denied=found.denied,
            failed=found.failed,
        )

    async def show_call(self, asked: Asked, call: str) -> Call:
        """One call: what hosts know, and its steps in log and lake with those it caused."""
        question = CallQuestion(
            call=call,
            before=asked.text("before"),
            payload_bytes=self._asking.payload_bytes,
            reach=self._asking.reach(asked),
            hidden=self._asking.hidden(),
        )
        present, away = await self._hosts(asked)
        allowed = [one for one in present if asked.may("control", one)]
        asking = self._asking.ask(asked, question, Call, is_search=True)
        told, steps = await asyncio.gather(
            self._each(
                allowed,
                lambda host: self._command(asked, host, "call", {"call": call}),
                self._answer_s,
            ),
            asking,
        )
        known = {name_of(host): one for host, one in told.found.items() if isinstance(one, dict)}
        whole: Call = msgspec.structs.replace(
            steps,
            known=known,
            silent=_names(told.silent),
            away=_names(away),
            failed=told.failed,
        )
        return whole

    async def _rows(
        self,
        asked: Asked,
        command: str,
        host: str | None,
        arguments: dict[str, str | None],
        *,
        order: str | None = None,
        shape: type[_Shape] | None = None,
    ) -> HostRows:
        """Rows of one host or all, merged; those of a shape, if one is given."""
        offset, limit = asked.number("offset", 0), asked.limit()
        if host is None and offset + limit > ROWS_MAX:
            raise bad_request(
                f"only the first {ROWS_MAX} rows of all hosts together are listed",
                "Name a `host`, or an actor.",
            )
        present, away = await self._hosts(asked, host)
        allowed = [one for one in present if asked.may("control", one)]
        given = {name: value for name, value in arguments.items() if value is not None}
        # Any of the hosts may have all the rows that come before.
        first = 0 if host is None else offset
        skipped = offset - first
        most = skipped + limit + 1
        unfit: dict[str, str] = {}

        async def rows_of(one: str) -> list[_Row]:
            rows, why = await self._rows_of(asked, one, command, given, first, most, shape)
            if why is not None:
                unfit[name_of(one)] = why
            return rows

        told = await self._each(allowed, rows_of, 2 * self._answer_s)
        # Each host's own order stays, so that a page begins where the one before has ended.
        lists = [
            [row | {"host": name_of(one)} for row in told.found[one]]
            for one in allowed
            if one in told.found
        ]
        merged = heapq.merge(*lists, key=lambda row: _number(row.get(order))) if order else None
        rows = list(itertools.islice(merged or itertools.chain(*lists), most))
        return HostRows(
            rows=rows[skipped : skipped + limit],
            has_more=len(rows) == most,
            silent=_names(told.silent),
            away=_names(away),
            denied=[name_of(one) for one in present if one not in allowed],
            failed=unfit | told.failed,
        )

    async def _rows_of(
        self,
        asked: Asked,
        host: str,
        command: str,
        given: dict[str, Any],
        offset: int,
        most: int,
        shape: type[_Shape] | None,
    ) -> tuple[list[_Row], str | None]:
        """Rows of one host, at most so many, and why these are not all.

        It shortens answers that would be too long, so only an empty one says that there is no more.
        """
        rows: list[_Row] = []
        dropped = 0
        for _ in range(_PARTS_MAX):
            page = {"limit": most - len(rows), "offset": offset}
            part = await self._command(asked, host, command, given | page)
            if not isinstance(part, list):
                return rows, "It has answered with something else than rows."
            fitting = [row for row in part if _fits(row, shape)]
            dropped += len(part) - len(fitting)
            rows += fitting[: most - len(rows)]
            offset += len(part)
            if not part or len(rows) == most:
                break
        else:
            return rows, "Its rows are too large to list that many; ask for fewer."
        return rows, f"{dropped} of its rows are not understood." if dropped else None

    async def _one(self, asked: Asked, command: str, host: str, **arguments: Any) -> HostRows:
        (address,), away = await self._hosts(asked, host)
        silent: list[str] = []
        facts = None
        async with self._turns:
            try:
                facts = await self._command(asked, address, command, arguments)
            except HostSilent:
                silent.append(address)
        if facts is None and not silent:
            raise not_found(f"The host {name_of(address)} has nothing of that name.")
        if facts is not None and not isinstance(facts, dict):
            raise AdminRefusal(
                409,
                "host_refused",
                f"{name_of(address)} has answered with something else than facts.",
                "See `GET /hosts`.",
            )
        rows = [] if facts is None else [facts | {"host": name_of(address)}]
        return HostRows(rows=rows, has_more=False, silent=_names(silent), away=_names(away))

    # Commands.

    def _acting(self, command: str) -> Callable[[Asked, str], Any]:
        async def act(asked: Asked, host: str) -> Done | Planned:
            body = asked.parsed(RedriveBody)
            arguments = {"actor": body.actor, "id": body.id}
            verb = "delete" if command == "purge" else "control"
            return await self._act(asked, host, command, verb, arguments, body.dry_run)

        return act

    async def move(self, asked: Asked, host: str) -> Done | Planned:
        """Move an actor of this host to another one."""
        body = asked.parsed(MoveBody)
        arguments = {"actor": body.actor, "to": address_of(body.to)} | (
            {"again": True} if body.again else {}
        )
        return await self._act(asked, host, "move", "control", arguments, body.dry_run)

    async def _act(
        self,
        asked: Asked,
        host: str,
        command: str,
        verb: str,
        arguments: dict[str, Any],
        is_preview: bool,
    ) -> Done | Planned:
        address = address_of(host)
        operation, target = f"hosts.{command}", f"{name_of(address)}: {arguments['actor']}"
        if is_preview:
            allowed = asked.may("control", address) and asked.may(verb, address)
            return Planned(
                operation=operation, target=target, needs=f"{verb}: {address}", allowed=allowed
            )
        asked.require(verb, address)
        await self._hosts(asked, host)
        try:
            result = await self._command(asked, address, command, arguments)
        except HostSilent:
            raise AdminRefusal(
                504,
                "outcome_unknown",
                f"{name_of(address)} has not answered within {self._answer_s:g} s;"
                " it is unknown whether it did this.",
                "Look at it again; repeating the request does no harm.",
            ) from None
        if result is False:
            raise not_found("There is no such dead letter or skipped alarm.")
        return Done(operation=operation, target=target, result={"value": result})

    async def _each(
        self, hosts: Iterable[str], ask: Callable[[str], Awaitable[Any]], most_s: float
    ) -> _Told:
        """The answers of several hosts, a few at a time; those that fail do not keep the others."""
        told = _Told({}, [], {})

        async def one(host: str) -> None:
            async with self._turns:
                try:
                    async with asyncio.timeout(most_s):
                        told.found[host] = await ask(host)
                except (HostSilent, TimeoutError):
                    told.silent.append(host)
                except AdminRefusal as refusal:
                    told.failed[name_of(host)] = refusal.text[:_REASON_CHARS]
                except CallRefused as refusal:
                    told.failed[name_of(host)] = str(refusal)[:_REASON_CHARS]

        await asyncio.gather(*(one(host) for host in hosts))
        told.silent.sort()
        return told

    async def _command(
        self, asked: Asked, host: str, command: str, arguments: dict[str, Any]
    ) -> Any:
        """The answer of one host; raises `HostSilent`, `AdminRefusal` and `CallRefused`."""
        caller: Caller = self._asking.visitors.caller(asked.visitor, ADDRESS)
        request_id = self._hub.ids.next().decode()

        def fits(answer: Answer) -> bool:
            return answer.type == ANSWER and _id_of(answer) == request_id

        body = {"id": request_id, "name": command, "arguments": arguments}
        with caller.in_use(), caller.expects(host, fits) as replied:
            caller.tell(host, CONTROL, body)
            try:
                answer = await asyncio.wait_for(asyncio.shield(replied), self._answer_s)
            except TimeoutError:
                raise HostSilent(host) from None
        reply = _decode_reply(answer.payload)
        if reply.error is not None:
            raise AdminRefusal(
                409, "host_refused", f"{name_of(host)}: {reply.error}.", "See `GET /hosts`."
            )
        return reply.result


def _id_of(answer: Answer) -> str:
    try:
        return _decode_reply(answer.payload).id
    except (ValueError, RecursionError):
        return ""


def address_of(host: str) -> str:
    """The address of a host, given as name or address."""
    return host if names.is_address(host) else f"{HOST_PREFIX}{host})"


def name_of(host: str) -> str:
    """The name of a host, given as name or address."""
    return names.path_of(host).removeprefix("actors/")


def _numbers(value: Any) -> dict[str, Any]:
    """Members that are numbers; lists count."""
    if isinstance(value, list):
        return {"moving": len(value)} if value else {}
    if not isinstance(value, dict):
        return {}
    return {
        str(name): one
        for name, one in value.items()
        if isinstance(one, (int, float)) and not isinstance(one, bool)
    }


def _number(value: Any) -> float:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return value if is_number else 0


def _names(hosts: Iterable[str]) -> list[str]:
    return [name_of(one) for one in hosts]


def _fits(row: Any, shape: type[_Shape] | None) -> bool:
    """Is this a row, and one of that shape? Hosts are programs of others."""
    if shape is None:
        return isinstance(row, dict)
    try:
        msgspec.convert(row, shape, strict=False)
    except msgspec.ValidationError:
        return False
    return isinstance(row, dict)
