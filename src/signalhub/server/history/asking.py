"""What every request about history has in common: whose it is, and the process that answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from signalhub.server.admin.api import AdminRefusal, Asked
from signalhub.server.history.child import HistoryReader, ReadRefused
from signalhub.server.history.questions import AnyQuestion, Hidden, Reach

if TYPE_CHECKING:
    from signalhub.core.hub import Hub
    from signalhub.engine.local import LocalEngine
    from signalhub.server.admin.visitors import Visitors

T = TypeVar("T")


class Asking:
    """Asks the process on behalf of those who use the API."""

    def __init__(
        self, hub: Hub, engine: LocalEngine, visitors: Visitors, reader: HistoryReader
    ) -> None:
        self.visitors = visitors
        self.payload_bytes = hub.settings.ui.payload_bytes
        self._hub = hub
        self._engine = engine
        self._reader = reader

    def reach(self, asked: Asked) -> Reach:
        """What whoever asks may read; topics fall back to `subscribe`."""
        given = asked.visitor.permissions
        topics = given.subscribe if given.read is None else given.read
        return Reach(tuple(topics), tuple(given.read or ()))

    def hidden(self) -> Hidden:
        """What is being erased, and so must not be shown."""
        erasures = self._hub.erasures
        return Hidden(self._engine.epoch, erasures.hidden_offsets, erasures.hidden_senders)

    async def raw(
        self,
        asked: Asked,
        question: AnyQuestion,
        *,
        is_search: bool = False,
        is_long: bool = False,
    ) -> msgspec.Raw:
        """The answer as it came; raises `AdminRefusal`.

        Of the searches of one person only the newest goes on; few that may be long do at once.
        """
        whose = asked.visitor.name if is_search else ""
        try:
            found = await self._reader.ask(question, search_of=whose, is_long=is_long)
            return msgspec.Raw(found)
        except ReadRefused as refusal:
            raise AdminRefusal(
                refusal.status, refusal.code, refusal.text, refusal.resolution
            ) from None

    async def ask(
        self, asked: Asked, question: AnyQuestion, kind: type[T], *, is_search: bool = False
    ) -> T:
        """The answer as a struct, for those who add to it."""
        answer = await self.raw(asked, question, is_search=is_search)
        found: Any = msgspec.json.decode(answer, type=kind)
        return found  # type: ignore[no-any-return]
