"""Looking at actors: through a hub, or into the folder of a host that runs or is stopped."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from signalhub.cli.failures import Exit, Failure, usage
from signalhub.cli.hosts import Source, talk
from signalhub.cli.looking import Looking
from signalhub.errors import SettingsError

if TYPE_CHECKING:
    from signalhub.actors.store import Store

T = TypeVar("T")


class FolderSource(Source):
    """The host that a folder belongs to, whether it runs or not."""

    def __init__(self, store: Store) -> None:
        super().__init__([str(store.get_meta("host") or "?")])
        self._store = store

    async def ask(self, host: str, name: str, **arguments: Any) -> Any:
        from signalhub.actors import control

        return control.look(self._store, name, arguments)


def look(looking: Looking, work: Callable[[Source], Awaitable[T]]) -> T:
    """Look at actors: into a folder if one is named, otherwise through the hub."""
    looking.check()
    if looking.data is None:
        return talk(looking, work)
    return _look_into(looking.data, work)


def _look_into(data: Path, work: Callable[[Source], Awaitable[T]]) -> T:
    import asyncio

    import apsw

    from signalhub.actors.host import FILE
    from signalhub.actors.store import Store

    path = data / FILE
    if not path.is_file():
        raise usage(
            f"{data} is no folder of a host of actors: there is no {FILE} in it",
            "name one that was given to `signalhub actors run --data`",
        )
    try:
        store = Store.read_only(path)
    except SettingsError as error:
        message, _, _ = str(error).partition(". ")
        raise usage(message, "name another folder with --data") from None
    try:
        store.execute("BEGIN")  # So that all of it is of one moment.
        return asyncio.run(_done(work(FolderSource(store))))
    except apsw.Error as error:
        message = f"{path} cannot be read: {error}"
        resolution = "try again; if it stays so, ask the running host with --url"
        raise Failure(Exit.FAILED, "unreadable", message, resolution) from None
    finally:
        store.close()


async def _done(work: Awaitable[T]) -> T:
    return await work
