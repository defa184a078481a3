"""The routes about history, dead letters, the lake and what operators did."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from signalhub.server.admin.answers import ReasonCount
from signalhub.server.admin.api import AdminApi, Asked, bad_request, not_found, slices
from signalhub.server.history import answers
from signalhub.server.history.asking import Asking
from signalhub.server.history.child import HistoryReader, reader_command
from signalhub.server.history.hosts import HostDesk
from signalhub.server.history.questions import (
    ActionsQuestion,
    AuditQuestion,
    CountQuestion,
    EntryQuestion,
    Filter,
    LakeQuestion,
    LettersQuestion,
    ProofQuestion,
    ScrollQuestion,
    SeriesQuestion,
    TableQuestion,
)
from signalhub.server.history.work import LakeWork

if TYPE_CHECKING:
    from pathlib import Path

    from signalhub.core.hub import Hub
    from signalhub.engine.local import LocalEngine
    from signalhub.server.admin.desk import Desk
    from signalhub.server.lake import Lakeside
    from signalhub.server.runner import HubRunner

# So many topics are listed that hold dead letters.
_TOPICS_MAX: Final = 500
_LETTERS_SUFFIX: Final = ".dlq"
_MAILBOX_LETTERS: Final = "dead.mailboxes"
_DAY_S: Final = 86_400
# With one of these a page may look at everything there is.
_SEARCHED: Final = ("stream", "kinds", "key", "type", "sender", "text")
_PLACE: Final = ("before", "after", "at", "limit")


class HistoryDesk:
    """Everything about the past, added to the API of a hub."""

    def __init__(
        self,
        hub: Hub,
        runner: HubRunner,
        engine: LocalEngine,
        desk: Desk,
        data: Path,
        lakeside: Lakeside | None,
        *,
        config: str | None,
        port: Any,
    ) -> None:
        self._hub = hub
        self._engine = engine
        self._lakeside = lakeside
        api = desk.api
        self.reader = HistoryReader(
            reader_command(hub.settings, data),
            searches_max=hub.settings.ui.searches_max,
            tally=hub.tally.reader,
        )
        self._asking = Asking(hub, engine, api.visitors, self.reader)
        self.work = LakeWork(hub, runner, self._asking, desk.jobs, data, config, port)
        self._add_to(api)
        self.work.add_to(api)
        self.hosts = HostDesk(hub, self._asking)
        self.hosts.add_to(api)

    async def stop(self) -> None:
        """The hub stops."""
        await self.reader.stop()

    def _add_to(self, api: AdminApi) -> None:
        api.add(
            "GET", "/history", self.page, answer=answers.History,
            query=(*_SEARCHED, *_PLACE),
        )  # fmt: skip
        api.add(
            "GET", "/history/counts", self.counts, answer=answers.Counts,
            query=("stream", "from", "to", "buckets"),
        )  # fmt: skip
        api.add(
            "GET", "/history/series", self.series, answer=answers.Series,
            query=("names", "from", "to", "step"),
        )  # fmt: skip
        api.add("GET", "/history/{}/{}/{}", self.entry, answer=answers.HistoryEntry)
        api.add("GET", "/history/{}/{}", self.entry_of_shard_0, answer=answers.HistoryEntry)
        api.add("GET", "/letters/topics", self.letter_topics, answer=answers.LetterTopics)
        api.add(
            "GET", "/letters", self.letters, answer=answers.Letters,
            query=(
                *("topic", "reason", "source", "subscription", "since", "until"),
                *("before", "limit"),
            ),
        )  # fmt: skip
        api.add(
            "GET", "/actions", self.actions, answer=answers.Actions,
            query=("verb", "by", "text", *_PLACE),
        )  # fmt: skip
        api.add("GET", "/lake", self.lake, answer=answers.Lake)
        api.add("GET", "/lake/tables/{}", self.table, answer=answers.LakeRows, query=("limit",))
        api.add("GET", "/lake/audit", self.audit, answer=answers.Audit, query=("from", "to"))
        api.add("GET", "/lake/proof.json", self.proof, answer=answers.Proof)

    # The log.

    async def page(self, asked: Asked) -> Any:
        """A page of entries of log and lake, the newest first."""
        kinds = asked.text("kinds")
        is_long = any(asked.text(one) for one in _SEARCHED)
        question = ScrollQuestion(
            filter=Filter(
                stream=asked.text("stream"),
                kinds=() if kinds is None else tuple(one for one in kinds.split(",") if one),
                key=asked.text("key"),
                type=asked.text("type"),
                sender=asked.text("sender"),
                text=asked.text("text"),
            ),
            **self._place(asked),
            payload_bytes=self._asking.payload_bytes,
            reach=self._asking.reach(asked),
            hidden=self._asking.hidden(),
        )
        return await self._asking.raw(asked, question, is_search=True, is_long=is_long)

    def _place(self, asked: Asked) -> dict[str, Any]:
        at = asked.text("at")
        return {
            "before": asked.text("before"),
            "after": asked.text("after"),
            "at": None if at is None else self._own(asked.number("at", 0)),
            "limit": asked.limit(),
        }

    def _own(self, wall_ms: int) -> int:
        """The hub's own time, which the log has, for a time of the wall clock."""
        return int(self._hub.wall.own(wall_ms))

    async def entry(self, asked: Asked, shard: str, epoch: str, offset: str) -> Any:
        """One entry with its deliveries and what belongs to it."""
        numbers = (shard, epoch, offset)
        if not all(one.isascii() and one.isdigit() and len(one) < 19 for one in numbers):
            raise bad_request("an entry is named by shard, epoch and offset")
        question = EntryQuestion(
            shard=int(shard),
            epoch=int(epoch),
            offset=int(offset),
            reach=self._asking.reach(asked),
            hidden=self._asking.hidden(),
        )
        return await self._asking.raw(asked, question)

    async def entry_of_shard_0(self, asked: Asked, epoch: str, offset: str) -> Any:
        """The same of the shard with the number 0."""
        return await self.entry(asked, "0", epoch, offset)

    async def counts(self, asked: Asked) -> Any:
        """How many messages there are in each part of a time, for the rail."""
        begin, end = self._span(asked)
        question = CountQuestion(
            stream=asked.text("stream"),
            begin=begin,
            end=end,
            buckets=asked.number("buckets", 200, low=1, high=1_000, clamp=True),
            reach=self._asking.reach(asked),
        )
        return await self._asking.raw(asked, question)

    async def series(self, asked: Asked) -> Any:
        """Series of a time that the ring of `/series` has forgotten, by the minute at least."""
        begin, end = self._span(asked)
        names = tuple(one for one in (asked.text("names") or "in").split(",") if one)
        question = SeriesQuestion(
            names=names[:64],
            begin=begin,
            end=end,
            step_s=asked.number("step", 3_600, low=60, high=_DAY_S, clamp=True),
        )
        return await self._asking.raw(asked, question)

    def _span(self, asked: Asked) -> tuple[int, int]:
        end = self._own(asked.number("to", self._hub.wall.shown(asked.now)))
        return max(0, self._own(asked.number("from", max(0, end - 1_000 * _DAY_S)))), end

    # Dead letters and actions.

    async def letter_topics(self, asked: Asked) -> answers.LetterTopics:
        """Topics that hold dead letters, or held some."""
        found: list[answers.LetterTopic] = []
        async for some in slices(list(self._hub.streams.topics.values())):
            found += [
                answers.LetterTopic(topic=one.name, waiting=_waiting(one), ever=one.head)
                for one in some
                if one.name.endswith(_LETTERS_SUFFIX) or one.name == _MAILBOX_LETTERS
            ]
        found.sort(key=lambda one: (-one.waiting, one.topic))
        return answers.LetterTopics(topics=found[:_TOPICS_MAX])

    async def letters(self, asked: Asked) -> Any:
        """Dead letters of a topic with their reasons, the newest first."""
        name = asked.text("topic")
        if name is None:
            raise bad_request("name a topic; see `/letters/topics`")
        topic = self._hub.streams.topics.get(name)
        if topic is None or topic.is_deleting:
            raise not_found(f"There is no topic {name!r}.", "See `GET /letters/topics`.")
        before = asked.text("before")
        if topic.head < topic.first:
            empty = answers.Letters(
                topic=name,
                epoch=topic.epoch,
                rows=[],
                next=None,
                complete=True,
                waiting=0,
                ever=topic.head,
                through=topic.head,
                scanned=0,
                by_reason=list[ReasonCount](),
            )
            return empty
        question = LettersQuestion(
            topic=name,
            stream_epoch=topic.id,
            wire_epoch=topic.epoch,
            first=topic.first,
            head=topic.head,
            removed=tuple(topic.removed),
            before=None if before is None else asked.number("before", 0, low=1),
            reason=asked.text("reason"),
            source=asked.text("source"),
            subscription=asked.text("subscription"),
            since=None if asked.text("since") is None else self._own(asked.number("since", 0)),
            until=None if asked.text("until") is None else self._own(asked.number("until", 0)),
            limit=asked.limit(),
            payload_bytes=self._asking.payload_bytes,
            reach=self._asking.reach(asked),
            hidden=self._asking.hidden(),
        )
        return await self._asking.raw(asked, question, is_search=True)

    async def actions(self, asked: Asked) -> Any:
        """What operators did: entries of the kind `operated`, the newest first."""
        question = ActionsQuestion(
            verb=asked.text("verb"),
            by=asked.text("by"),
            text=asked.text("text"),
            **self._place(asked),
            reach=self._asking.reach(asked),
            hidden=self._asking.hidden(),
        )
        return await self._asking.raw(asked, question, is_search=True)

    # The lake.

    async def lake(self, asked: Asked) -> answers.Lake:
        """The state of the pipeline and of every table."""
        chosen = self._hub.settings.pipeline
        kept_s = {name: chosen.retention_s for name in ("entries", "messages", "deliveries")}
        question = LakeQuestion(head=self._engine.log.durable_head, kept_s=kept_s)
        found = await self._asking.ask(asked, question, answers.Lake)
        lakeside = self._lakeside
        if lakeside is None:
            return msgspec.structs.replace(found, pipeline="off", state="off", tables=[])
        return msgspec.structs.replace(
            found,
            pipeline=chosen.run,
            position=lakeside.position,
            behind=lakeside.lag,
            behind_ms=lakeside.lag_ms(asked.now),
            restarts=self._hub.tally.lake.restarts,
        )

    async def table(self, asked: Asked, name: str) -> Any:
        """The columns and newest rows of a table."""
        question = TableQuestion(
            name=name,
            limit=asked.number("limit", 20, low=1, high=100, clamp=True),
            reach=self._asking.reach(asked),
        )
        return await self._asking.raw(asked, question)

    async def audit(self, asked: Asked) -> answers.Audit:
        """The newest finding about each hour."""
        begin, end = asked.text("from"), asked.text("to")
        question = AuditQuestion(
            begin=None if begin is None else asked.number("from", 0),
            end=None if end is None else asked.number("to", 0),
        )
        found = await self._asking.ask(asked, question, answers.Audit)
        job = self.work.audit_job
        return msgspec.structs.replace(
            found, is_running=job is not None, job=None if job is None else job.name
        )

    async def proof(self, asked: Asked) -> Any:
        """What the newest audit found, to be checked without the hub."""
        question = ProofQuestion(hub=f"{self._hub.settings.ui.label or 'signal-hub'}")
        return await self._asking.raw(asked, question)


def _waiting(topic: Any) -> int:
    held: int = topic.head - topic.first + 1 - topic.removed.count_within(topic.first, topic.head)
    return max(0, held)
