"""Hosts of durable actors that commands can query: those connected to a hub, or a host's folder.

A hub knows hosts, but not the state of their actors. So queries go to all connected hosts, and the
answers are merged here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from signalhub.cli.actors.options import ViewOptions
from signalhub.cli.terminal.connection import (
    HubConnection,
    RefusalLog,
    failure_of,
    quiet_client_log,
    socket_url,
)
from signalhub.cli.terminal.failures import Exit, Failure, usage
from signalhub.cli.terminal.paging import every
from signalhub.wire.errors import (
    ClientError,
    Code,
    OutcomeUnknown,
    Refused,
    SettingsError,
    Unavailable,
)

if TYPE_CHECKING:
    from signalhub.actors.host.caller import ActorHub
    from signalhub.actors.store.store import HostStore
    from signalhub.client.answers import Placements

T = TypeVar("T")
Row = dict[str, Any]

HOSTS_PAGE: Final = 100
ROWS_PAGE: Final = 500
_KIND_PREFIX: Final = "actor:"

START_ONE = "start one with `signalhub actors run`, or read the folder of one with --data"


class NoAnswer(Exception):
    """A host did not answer in time."""


@dataclass
class HostRows:
    """Rows of several hosts, each with its host."""

    rows: list[Row]
    has_more: bool = False


class Hosts(ABC):
    """Hosts by name: those that can be queried, those that are away, those that did not answer."""

    def __init__(self, hosts: Sequence[str]) -> None:
        self.hosts = hosts
        self.away: Sequence[str] = ()
        self.silent: set[str] = set()

    @abstractmethod
    async def ask(self, host: str, name: str, **arguments: Any) -> Any:
        """The answer of one host to a command; raises `NoAnswer`, and `Failure` if it refuses."""

    async def each(self, name: str, **arguments: Any) -> dict[str, Any]:
        """The answers of all hosts, except those that are `None`."""
        found = await self._each(lambda host: self.ask(host, name, **arguments))
        return {host: answer for host, answer in found.items() if answer is not None}

    async def rows(
        self,
        name: str,
        limit: int,
        *,
        order: Callable[[Row], Any],
        is_shown: Callable[[Row], bool] = lambda row: True,
        **arguments: Any,
    ) -> HostRows:
        """The first rows of all hosts, merged; rows that are not shown do not count."""

        async def all_of(host: str) -> list[Row]:
            rows: list[Row] = []
            seen = 0
            while len(rows) <= limit:
                # If many rows are not shown, small pages would take many requests.
                asked = ROWS_PAGE if seen > len(rows) else min(ROWS_PAGE, limit + 1 - seen)
                # A page may be shorter than requested; only an empty one is the last.
                page = await self.ask(host, name, **arguments, limit=asked, offset=seen)
                seen += len(page)
                rows += filter(is_shown, page)
                if not page:
                    break
            return rows

        found = await self._each(all_of)
        rows = [{**row, "host": host} for host, some in found.items() for row in some]
        rows.sort(key=order)
        return HostRows(rows[:limit], len(rows) > limit)

    async def _each(self, question: Callable[[str], Awaitable[T]]) -> dict[str, T]:
        import asyncio

        async def quietly(host: str) -> dict[str, T]:
            try:
                return {host: await question(host)}
            except NoAnswer:
                self.silent.add(host)
                return {}

        answers = await asyncio.gather(*(quietly(host) for host in self.hosts))
        return {host: answer for some in answers for host, answer in some.items()}

    def check(self, timeout_s: float) -> None:
        """Fail if a host did not answer; called after the results are shown."""
        if not self.silent:
            return
        names = ", ".join(sorted(self.silent))
        raise Failure(
            Exit.UNKNOWN,
            OutcomeUnknown.code,
            f"no answer within {timeout_s:g} s from {names}; results are incomplete",
            "it may be busy or gone: try again, or wait longer with --timeout",
            facts={"silent": sorted(self.silent)},
        )


@dataclass(frozen=True)
class HostDirectory:
    """The hosts a hub knows, each with its kinds: connected ones, and those that are away."""

    present: Mapping[str, frozenset[str]] = field(default_factory=dict)
    away: Mapping[str, frozenset[str]] = field(default_factory=dict)


class ConnectedHosts(Hosts):
    """Hosts that are connected to a hub."""

    def __init__(
        self,
        hub: ActorHub,
        connection: HubConnection,
        directory: HostDirectory,
        refusals: RefusalLog,
    ) -> None:
        super().__init__(sorted(directory.present))
        self.away = sorted(directory.away)
        self.hub = hub
        self.directory = directory
        self._connection = connection
        self._refusals = refusals

    async def ask(self, host: str, name: str, **arguments: Any) -> Any:
        from signalhub.actors.host.host import host_address

        given = {key: value for key, value in arguments.items() if value is not None}
        try:
            return await self.hub.command(
                host_address(host), name, given, timeout_s=self._connection.timeout_s
            )
        except TimeoutError:
            # The hub may have refused the message, which is the better explanation.
            self._refusals.check()
            raise NoAnswer(host) from None
        except ValueError as refusal:
            resolution = "see `signalhub actors show`"
            raise Failure(Exit.FAILED, "host_refused", str(refusal), resolution) from None

    async def present_again(self) -> HostDirectory:
        """The hosts that are connected now."""
        return await hosts_at(self.hub, self._connection)

    async def placed(self, actor: str) -> Placements:
        """Where an actor lives; the hub assigns a place if it has none."""
        return await self._connection.in_time(self.hub.client.place([actor]))

    def only(self, host: str) -> None:
        """Query only this host, which must be connected."""
        if host not in self.directory.present:
            raise no_such_host(host, self.directory)
        self.hosts = [host]


def unasked(source: Hosts) -> str:
    """Hosts that may know more, as the end of a message about something not found."""
    parts = (
        ("no answer from", sorted(source.silent)),
        ("hosts that are away:", source.away),
    )
    return "".join(f"; {words} {', '.join(names)}" for words, names in parts if names)


def no_such_host(host: str, directory: HostDirectory) -> Failure:
    """The failure for a host that is not connected."""
    names = ", ".join(sorted(directory.present)) or "none"
    if host in directory.away:
        message = f"host {host} is not connected; connected hosts: {names}"
        return Failure(
            Exit.FAILED, "host_away", message, "start it again with `signalhub actors run`"
        )
    message = f"unknown host {host}; connected hosts: {names}"
    return Failure(Exit.FAILED, "unknown_host", message, "correct the name")


def talk(connection: HubConnection, work: Callable[[ConnectedHosts], Awaitable[T]]) -> T:
    """Query the hosts connected to the hub; fails if there are none."""

    async def among(hub: ActorHub, refusals: RefusalLog) -> T:
        directory = await hosts_at(hub, connection)
        if not directory.present:
            raise _no_hosts(directory)
        return await work(ConnectedHosts(hub, connection, directory, refusals))

    return reach(connection, among)


def reach(connection: HubConnection, work: Callable[[ActorHub, RefusalLog], Awaitable[T]]) -> T:
    """Connect with an address of our own and do the work."""
    import asyncio

    with quiet_client_log():
        try:
            return asyncio.run(_reach(connection, work, RefusalLog()))
        except ClientError as error:
            raise failure_of(error) from error


async def _reach(
    connection: HubConnection,
    work: Callable[[ActorHub, RefusalLog], Awaitable[T]],
    refusals: RefusalLog,
) -> T:
    from signalhub.actors.host.caller import ActorHub

    hub = ActorHub(socket_url(connection.url), token=connection.token(), listener=refusals)
    async with AsyncExitStack() as stack:
        try:
            await connection.in_time(stack.enter_async_context(hub))
        except OutcomeUnknown as error:
            # Nothing was requested yet.
            raise Unavailable(f"{connection.url}: {error}") from None
        except Refused as error:
            if error.code == Code.UNAUTHORIZED and error.details.get("action") is not None:
                raise _unregistered(error) from None
            raise
        refusals.sender = hub.client.address
        return await work(hub, refusals)


def _unregistered(error: Refused) -> Failure:
    """Answers need a registered address that is not in use."""
    message = f"cannot register an address for the answer: {error.message}"
    resolution = (
        "use a token created with --register 'callers/*', with --token-file or SIGNALHUB_TOKEN"
    )
    return Failure(Exit.FAILED, error.code, message, resolution)


async def hosts_at(hub: ActorHub, connection: HubConnection) -> HostDirectory:
    """All connected hosts, and those that are away."""
    from signalhub.actors.host.host import HOST_CAPABILITY, host_address

    pattern = host_address("*")
    found = await connection.in_time(
        hub.client.discover(
            pattern, capability=HOST_CAPABILITY, limit=HOSTS_PAGE, include_away=True
        )
    )
    present = {one.address: one.capabilities for one in found if not one.away}
    away = {one.address: one.capabilities for one in found if one.away}
    if found.has_more:
        present |= await _all_present(hub, connection)
    return HostDirectory(_named(present), _named(away))


async def _all_present(hub: ActorHub, connection: HubConnection) -> dict[str, tuple[str, ...]]:
    """All connected hosts, page by page."""
    from signalhub.actors.host.host import HOST_CAPABILITY

    listed = await every(
        connection,
        lambda offset: hub.client.actors(offset=offset, limit=HOSTS_PAGE),
        lambda one: one.address,
    )
    return {one.address: one.capabilities for one in listed if HOST_CAPABILITY in one.capabilities}


def _named(capabilities: Mapping[str, Sequence[str]]) -> dict[str, frozenset[str]]:
    """The kinds of each host, by host name."""
    return {
        name_of(address): frozenset(
            one.removeprefix(_KIND_PREFIX) for one in some if one.startswith(_KIND_PREFIX)
        )
        for address, some in capabilities.items()
    }


def name_of(host: str) -> str:
    """The name of a host, given as name or address."""
    return host.removeprefix("@(").removesuffix(")").removeprefix("actors/")


def _no_hosts(directory: HostDirectory) -> Failure:
    away = f"; hosts that are away: {', '.join(sorted(directory.away))}" if directory.away else ""
    return Failure(
        Exit.FAILED, Code.NO_HOST, f"no actor host is connected to this hub{away}", START_ONE
    )


class StoredHost(Hosts):
    """The host a folder belongs to, running or not."""

    def __init__(self, store: HostStore) -> None:
        super().__init__([str(store.get_meta("host") or "?")])
        self._store = store

    async def ask(self, host: str, name: str, **arguments: Any) -> Any:
        from signalhub.actors.kernel import commands

        return commands.look(self._store, name, arguments)


def look(looking: ViewOptions, work: Callable[[Hosts], Awaitable[T]]) -> T:
    """Query a host's folder if one is given, otherwise the hosts connected to the hub."""
    looking.check()
    if looking.data is None:
        return talk(looking, work)
    return _look_into(looking.data, work)


def _look_into(data: Path, work: Callable[[Hosts], Awaitable[T]]) -> T:
    import asyncio

    import apsw

    from signalhub.actors.host.host import FILE
    from signalhub.actors.store.store import HostStore

    path = data / FILE
    if not path.is_file():
        raise usage(
            f"{data} is not the folder of an actor host: it contains no {FILE}",
            "give the folder that was passed to `signalhub actors run --data`",
        )
    try:
        store = HostStore.read_only(path)
    except SettingsError as error:
        message, _, _ = str(error).partition(". ")
        raise usage(message, "choose another folder with --data") from None
    try:
        store.execute("BEGIN")  # A consistent snapshot.
        return asyncio.run(_done(work(StoredHost(store))))
    except apsw.Error as error:
        message = f"cannot read {path}: {error}"
        resolution = "try again, or query the running host with --url"
        raise Failure(Exit.FAILED, "unreadable", message, resolution) from None
    finally:
        store.close()


async def _done(work: Awaitable[T]) -> T:
    return await work
