"""Calls between hosts of durable actors, as log and lake tell them.

Every request and every outcome between hosts is mail: an `actors:call` or `actors:batch` to the
host of the target, a batch or an `actors:result` back. Hosts forget a call when it has ended.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from signalhub.server.history.answers import Call, CallRow, Calls, CallStep, HistoryRow
from signalhub.server.history.questions import (
    CallQuestion,
    CallsQuestion,
    Filter,
    Question,
    ScrollQuestion,
)
from signalhub.server.history.reader.pace import Pace
from signalhub.server.history.reader.rows import BadQuestion, decoded, parse_position, position_text
from signalhub.server.history.reader.scroll import Page
from signalhub.server.history.reader.tiers import Sources
from signalhub.wire import names
from signalhub.wire.entry import Kind, MessageBody, StoredEntry

CALL: Final = "actors:call"
BATCH: Final = "actors:batch"
RESULT: Final = "actors:result"
HOST_PREFIX: Final = "@(actors/"

STEPS_MAX: Final = 500
PAYLOAD_BYTES: Final = 4_096
_MAILS_MAX: Final = 500


class _Member(msgspec.Struct, rename={"sender": "from"}, gc=False):
    """One message from actor to actor."""

    kind: str
    call: str
    to: str
    body: msgspec.Raw = msgspec.Raw(b"null")
    sender: str = ""
    context: msgspec.Raw = msgspec.Raw(b"null")


class _Batch(msgspec.Struct):
    messages: list[_Member] = []


class _Operation(msgspec.Struct, rename={"method": "m"}):
    method: str = ""


class _Outcome(msgspec.Struct):
    error: msgspec.Raw = msgspec.Raw(b"")


class _Error(msgspec.Struct):
    name: str = ""


class _Context(msgspec.Struct):
    chain: list[str] = []
    call: str = ""
    caller: str | None = None


_decode_batch = msgspec.json.Decoder(_Batch).decode
_decode_operation = msgspec.json.Decoder(_Operation).decode
_decode_outcome = msgspec.json.Decoder(_Outcome).decode
_decode_error = msgspec.json.Decoder(_Error).decode
_decode_context = msgspec.json.Decoder(_Context).decode


class _Mails(Page):
    """Pages of mail between hosts; the steps of calls in it are collected."""

    def __init__(
        self,
        sources: Sources,
        asked: Question,
        pace: Pace,
        *,
        before: str | None = None,
        after: str | None = None,
        needle: str = "",
    ) -> None:
        """`needle` is in the body of every mail that matters."""
        question = ScrollQuestion(
            filter=Filter(kinds=("mail",)),
            before=before,
            after=after,
            limit=_MAILS_MAX,
            payload_bytes=PAYLOAD_BYTES,
            reach=asked.reach,
            hidden=asked.hidden,
        )
        super().__init__(sources, question, pace)
        self.chooses = self.reads_bodies = True
        self._needle = needle.encode()
        self.steps: list[CallStep] = []

    def is_wanted(self, epoch: int, stored: StoredEntry) -> bool:
        if stored.kind != Kind.MAIL or stored.is_erased or self.sight.hides(epoch, stored.offset):
            return False
        if b"actors:" not in stored.body or self._needle not in stored.body:
            return False
        message = decoded(MessageBody, stored)
        if message is None or message.type not in (CALL, BATCH, RESULT):
            return False
        if self.sight.hides_message(message, epoch, stored.offset):
            return False
        steps = [one for one in self._steps(epoch, stored, message) if self.fits(one)]
        self.steps += steps
        return bool(steps)

    def fits(self, step: CallStep) -> bool:
        """Is this step wanted?"""
        return True

    def _steps(self, epoch: int, stored: StoredEntry, message: MessageBody) -> Iterator[CallStep]:
        try:
            members = _decode_batch(message.data).messages
        except (msgspec.MsgspecError, ValueError, RecursionError):
            return
        may_read = self.sight.may_read(stored.stream)
        position = position_text(epoch, stored.offset)
        for one in members[::-1] if self.is_down else members:
            yield self._step(stored, one, position, may_read=may_read)

    def _step(
        self, stored: StoredEntry, one: _Member, position: str, *, may_read: bool
    ) -> CallStep:
        is_request = one.kind == "request"
        body = bytes(one.body)
        text, is_cut, _ = self.printer.cut(body)
        chain = _context(one).chain if is_request else []
        return CallStep(
            at=stored.at_ms,
            what="requested" if is_request else "answered",
            call=one.call,
            # A result goes from the target to the caller.
            caller=(one.sender if is_request else one.to) or None,
            target=(one.to if is_request else one.sender) or None,
            method=_method(body) if is_request else None,
            outcome=None if is_request else _outcome(body, may_read=may_read),
            position=position,
            host=names.path_of(stored.stream).removeprefix("actors/"),
            chain=chain,
            payload=text if may_read else None,
            cut=is_cut and may_read,
        )


def _context(one: _Member) -> _Context:
    try:
        return _decode_context(one.context)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return _Context()


def _method(body: bytes) -> str | None:
    try:
        return _decode_operation(body).method or None
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None


def _outcome(body: bytes, *, may_read: bool) -> str:
    """`returned`, or the type of the error for those who may see it."""
    try:
        error = bytes(_decode_outcome(body).error)
        if not error:
            return "returned"
        return (_decode_error(error).name or "failed") if may_read else "failed"
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return "failed"


class _OneCall(_Mails):
    """The steps of one call, back to its request."""

    def __init__(self, sources: Sources, asked: CallQuestion, pace: Pace) -> None:
        super().__init__(sources, asked, pace, before=asked.before, needle=asked.call)
        self._call = asked.call
        self.request: CallStep | None = None

    def fits(self, step: CallStep) -> bool:
        return step.call == self._call

    def add(self, row: HistoryRow) -> bool:
        found = next((one for one in self.steps if one.what == "requested"), None)
        self.request = found
        return super().add(row) and found is None


class _Caused(_Mails):
    """The steps of what a call has caused, from its request to its answer."""

    def __init__(
        self, sources: Sources, asked: CallQuestion, pace: Pace, request: CallStep, end: str | None
    ) -> None:
        super().__init__(sources, asked, pace, after=request.position)
        # Whoever is called by its target has these actors before it.
        self._chain = [*request.chain, request.target]
        self._calls: set[str] = set()
        self._end = None if end is None else parse_position(end)
        self._is_over = False

    def fits(self, step: CallStep) -> bool:
        assert step.position is not None
        if self._end is not None and parse_position(step.position) > self._end:
            self._is_over = True
            return True
        if step.what == "requested" and step.chain[: len(self._chain)] == self._chain:
            self._calls.add(step.call)
        return step.call in self._calls

    def add(self, row: HistoryRow) -> bool:
        if self._is_over:
            self.steps.pop()
        return super().add(row) and not self._is_over


def calls_of(sources: Sources, asked: CallsQuestion, pace: Pace) -> Calls:
    """Calls that log and lake know, the newest first; an answered one where its answer is."""
    page = _Mails(sources, asked, pace, before=asked.before)
    found = page.make()
    rows: dict[str, CallRow] = {}
    for step in page.steps:
        if asked.actor is not None and asked.actor not in (step.caller, step.target):
            continue
        known = rows.get(step.call)
        if step.what == "answered" and known is None:
            rows[step.call] = _row(step, step.outcome or "returned", ended_at=step.at)
        elif step.what == "requested":
            rows[step.call] = (
                _row(step, "requested")
                if known is None
                else msgspec.structs.replace(
                    known,
                    at=step.at,
                    method=step.method,
                    caller=known.caller or step.caller,
                    target=known.target or step.target,
                    host=step.host,
                )
            )
    wanted = [
        row
        for row in rows.values()
        if asked.text is None
        or any(asked.text in (one or "") for one in (row.call, row.caller, row.target, row.method))
    ]
    return Calls(
        rows=wanted,
        has_more=not found.complete,
        next=found.next,
        silent=[],
        away=[],
        searched_to=found.searched_to,
        reason=found.reason,
    )


def _row(step: CallStep, state: str, ended_at: int | None = None) -> CallRow:
    return CallRow(
        call=step.call,
        caller=step.caller,
        target=step.target,
        method=step.method,
        state=state,
        at=step.at if step.what == "requested" else None,
        ended_at=ended_at,
        host=step.host,
    )


def call_of(sources: Sources, asked: CallQuestion, pace: Pace) -> Call:
    """The steps of a call and of those it caused, oldest first."""
    if not asked.call or len(asked.call) > names.ID_CHARS_MAX:
        raise BadQuestion("give the id of a call")
    own = _OneCall(sources, asked, pace)
    found = own.make()
    steps = own.steps[::-1]
    is_complete = found.complete or own.request is not None
    if own.request is not None:
        answer = next((one for one in own.steps if one.what == "answered"), None)
        end = None if answer is None else answer.position
        caused = _Caused(sources, asked, pace, own.request, end)
        is_complete = caused.make().complete or answer is not None
        steps = sorted([*steps, *caused.steps], key=lambda one: one.at)
    steps = steps[:STEPS_MAX]
    return Call(
        call=asked.call,
        known={},
        steps=steps,
        complete=is_complete,
        next=None if own.request is not None else found.next,
        searched_to=found.searched_to,
        silent=[],
        away=[],
        withheld=any(one.payload is None for one in steps),
    )
