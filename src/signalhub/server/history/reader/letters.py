"""Dead letters that wait in a topic, and what operators did: both the newest first."""

from __future__ import annotations

from collections import Counter
from typing import Final

import msgspec

from signalhub.log.errors import LogDamaged
from signalhub.ranges import Ranges
from signalhub.server.admin.answers import ReasonCount
from signalhub.server.history.answers import (
    Action,
    Actions,
    Letter,
    Letters,
)
from signalhub.server.history.questions import (
    ActionsQuestion,
    Filter,
    LettersQuestion,
    ScrollQuestion,
)
from signalhub.server.history.reader.pace import Pace
from signalhub.server.history.reader.rows import Print, Sight, decoded, position_text
from signalhub.server.history.reader.scroll import ANSWER_BYTES_MAX, LIMIT_MAX, Page
from signalhub.server.history.reader.tiers import Sources
from signalhub.wire.entry import MessageBody, OperatedBody, StoredEntry, decode_body

_PAGE: Final = 256
_BYTES: Final = 4 * 2**20
_REASONS_MAX: Final = 100


class LettersPage:
    """One page of dead letters."""

    def __init__(self, sources: Sources, question: LettersQuestion, pace: Pace) -> None:
        self._sources = sources
        self._question = question
        self._pace = pace
        self._sight = Sight(question.reach, question.hidden)
        self._may_read = self._sight.may_read(question.topic)
        self._print = Print(self._sight, question.payload_bytes)
        self._removed = Ranges(question.removed)
        self._epoch = sources.folder.epoch

    def make(self) -> Letters:
        """The page."""
        asked = self._question
        limit = max(1, min(asked.limit, LIMIT_MAX))
        rows: list[Letter] = []
        reasons: Counter[str] = Counter()
        scanned = size = 0
        high = asked.head if asked.before is None else min(asked.head, asked.before - 1)
        reason: str | None = None
        while high >= asked.first and len(rows) < limit and reason is None:
            low = max(asked.first, high - _PAGE + 1)
            try:
                found = self._letters(low, high)
            except LogDamaged as error:
                reason = str(error)
                break
            for stored in reversed(found):
                high = stored.seq - 1
                if stored.seq in self._removed or stored.is_erased:
                    continue
                scanned += 1
                letter = self._letter(stored)
                if letter is None:
                    continue
                if self._may_read and letter.reason is not None:
                    reasons[letter.reason] += 1
                rows.append(letter)
                size += 500 + 2 * len(letter.payload or "")
                if len(rows) == limit:
                    break
                if size > ANSWER_BYTES_MAX:
                    reason = "size"
                    break
            else:
                high = low - 1
                if not self._pace.go_on():
                    reason = "time"
        removed = self._removed.count_within(asked.first, asked.head)
        return Letters(
            topic=asked.topic,
            epoch=asked.wire_epoch,
            rows=rows,
            next=str(high + 1) if high >= asked.first else None,
            complete=high < asked.first,
            waiting=max(0, asked.head - asked.first + 1 - removed),
            ever=asked.head,
            through=asked.head,
            scanned=scanned,
            by_reason=[
                ReasonCount(reason=one, count=count)
                for one, count in reasons.most_common(_REASONS_MAX)
            ],
            reason=reason,
        )

    def _letters(self, low: int, high: int) -> list[StoredEntry]:
        asked = self._question
        found: list[StoredEntry] = []
        following = low
        while following <= high:
            some = self._sources.log.read(
                asked.topic, asked.stream_epoch, following, high - following + 1, _BYTES
            )
            if not some:
                break
            found += [one for one in some if one.seq <= high]
            following = some[-1].seq + 1
        return found

    def _letter(self, stored: StoredEntry) -> Letter | None:
        """A letter; `None` if it is not wanted."""
        asked, epoch = self._question, self._epoch
        message = decoded(MessageBody, stored)
        if message is None or self._sight.hides(epoch, stored.offset):
            return None
        if self._sight.hides_message(message, epoch, stored.offset):
            return None
        dead = message.dead
        about_contents = asked.reason is not None
        if about_contents and not self._may_read:
            return None
        cause = None if dead is None else dead.reason
        if asked.reason is not None and cause != asked.reason:
            return None
        if asked.source is not None and (dead is None or dead.topic != asked.source):
            return None
        if asked.subscription is not None and (
            dead is None or dead.subscription != asked.subscription
        ):
            return None
        failed = stored.at_ms if dead is None else dead.last_failure or stored.at_ms
        if not (asked.since or 0) <= failed <= (asked.until or failed):
            return None
        text, is_cut, _ = self._print.cut(message.data)
        may_read = self._may_read
        return Letter(
            seq=stored.seq,
            position=position_text(epoch, stored.offset),
            at=stored.at_ms,
            source="" if dead is None else dead.topic,
            subscription="" if dead is None else dead.subscription,
            original_epoch="" if dead is None else dead.epoch,
            original_seq=0 if dead is None else dead.seq,
            attempts=0 if dead is None else dead.attempts,
            reason=cause if may_read else None,
            first_failure=None if dead is None else dead.first_failure or None,
            last_failure=None if dead is None else dead.last_failure or None,
            id=message.id,
            type=message.type if may_read else None,
            key=message.key if may_read else None,
            sender=message.sender,
            bytes=len(message.data),
            payload=text if may_read else None,
            cut=is_cut and may_read,
            headers=message.headers if may_read else None,
            redriven_before=message.redriven is not None,
            withheld=not may_read,
        )


def actions_of(sources: Sources, question: ActionsQuestion, pace: Pace) -> Actions:
    """What operators did, from log and lake."""
    page = _ActionsPage(sources, question, pace)
    found = page.make()
    return Actions(
        rows=[page.actions[row.position] for row in found.rows],
        next=found.next,
        complete=found.complete,
        searched_to=found.searched_to,
        scanned=found.scanned,
        reason=found.reason,
        gaps=found.gaps,
    )


class _ActionsPage(Page):
    """A page of `operated` entries, decoded."""

    def __init__(self, sources: Sources, question: ActionsQuestion, pace: Pace) -> None:
        super().__init__(
            sources,
            ScrollQuestion(
                filter=Filter(kinds=("operated",)),
                before=question.before,
                after=question.after,
                at=question.at,
                limit=question.limit,
                reach=question.reach,
                hidden=question.hidden,
            ),
            pace,
        )
        self._wanted = question
        self.chooses = any((question.verb, question.by, question.text))
        self.actions: dict[str, Action] = {}

    def is_wanted(self, epoch: int, stored: StoredEntry) -> bool:
        if not super().is_wanted(epoch, stored):
            return False
        action = self._action(epoch, stored)
        asked = self._wanted
        texts = (action.over, action.request, action.detail, action.by, action.address)
        is_fitting = (
            asked.verb in (None, action.verb)
            and (asked.by is None or asked.by in (action.by, action.address))
            and (asked.text is None or any(asked.text in (one or "") for one in texts))
        )
        if is_fitting:
            self.actions[action.position] = action
        return is_fitting

    def _action(self, epoch: int, stored: StoredEntry) -> Action:
        body: OperatedBody | None = None
        is_gone = stored.is_erased or self.sight.hides(epoch, stored.offset)
        if not is_gone:
            try:
                body = decode_body(OperatedBody, stored.body)
            except (msgspec.MsgspecError, ValueError):
                body = None
        return Action(
            at=stored.at_ms,
            position=position_text(epoch, stored.offset),
            by=body.by or None if body else None,
            address=body.address or None if body else None,
            verb=body.verb if body else "",
            over=body.over if body else "",
            request=body.request or None if body else None,
            phase=body.phase or None if body else None,
            job=body.job or None if body else None,
            detail=body.detail or None if body else None,
            removed="erased" if is_gone else None,
        )
