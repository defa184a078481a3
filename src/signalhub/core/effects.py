"""Everything the core can ask the shell to do.

`Session.link` leads the shell to its own connection object; the core never looks inside it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import msgspec

from signalhub.wire.entry import Entry, EntryRun, ErasedBody, StoredEntry

if TYPE_CHECKING:
    from signalhub.core.messages.ask import AskReceipt, FanReceipt
    from signalhub.core.messages.audience import Audience
    from signalhub.core.messages.dedup import Recalled
    from signalhub.core.messages.publish import RunReceipt
    from signalhub.core.messages.runs import TellRun
    from signalhub.core.rooms.accept import PendingMessage
    from signalhub.core.rooms.values import Archived, Guest, Result
    from signalhub.core.sessions.registry import Registration
    from signalhub.core.sessions.session import Session
    from signalhub.core.subscriptions.window import Attempt
    from signalhub.wire.errors import Refusal


T = TypeVar("T")


class Reply(msgspec.Struct, gc=False):
    """Send the hub's own message to a session; never dropped for back-pressure."""

    session: Session
    frame: bytes


class ReplyRuns(msgspec.Struct, gc=False):
    """Send several of the hub's own messages to each of several sessions.

    Their frames are complete with their headers; `counts` says how many each session gets.
    """

    sessions: list[Session]
    frames: list[bytes]
    counts: list[int]


class Deliver(msgspec.Struct, gc=False):
    """Send one actor's message to another's session.

    The shell reports `receipt`, if there is one, once the bytes are handed over, or lost.
    """

    session: Session
    frame: bytes
    sender: Session
    address: str
    expires_at: float | None
    receipt: AskReceipt | None


class DeliverRun(msgspec.Struct, gc=False):
    """Send several tells to one session; their frames are complete with their headers."""

    session: Session
    frames: bytes
    sender: Session
    address: str
    run: TellRun


class FanOut(msgspec.Struct, gc=False):
    """Queue head + address + tail for each recipient; write `chunk` sockets in this tick.

    The shell reports `receipt` with the number of copies it queued and could not queue.
    """

    audience: Audience
    head: bytes
    tail: bytes
    chunk: int
    receipt: FanReceipt


class Close(msgspec.Struct, gc=False):
    """Flush what is queued for the session, then close its socket."""

    session: Session
    code: int
    reason: str


class Persist(msgspec.Struct, gc=False):
    """Store a registration in `state.db`."""

    registration: Registration


class Forget(msgspec.Struct, gc=False):
    """Remove the registrations of addresses from `state.db`."""

    addresses: list[str]


# What to do once an entry is on disk, with its offset, or refused, with the reason.
Committed: TypeAlias = "Callable[[int, int], list[Effect]]"
Refused: TypeAlias = "Callable[[Refusal, int], list[Effect]]"


def nothing_committed(offset: int, now: int) -> list[Effect]:
    return []


def nothing_refused(refusal: Refusal, now: int) -> list[Effect]:
    return []


class Append(msgspec.Struct, gc=False):
    """Write an entry or a run to the log; commits are reported in the order of appending.

    `committed` is called with the offset, of a run that of its first entry, once it is as durable
    as the settings require; `refused` is called with the reason, which says whether a retry makes
    sense. Both get the time.
    """

    entry: Entry | EntryRun
    committed: Committed = nothing_committed
    refused: Refused = nothing_refused

    def follow(
        self,
        committed: Committed,
        refused: Refused = nothing_refused,
    ) -> None:
        """Add callbacks that run after the present ones."""
        self.committed = partial(_both, self.committed, committed)
        self.refused = partial(_both, self.refused, refused)


def _both(
    first: Callable[[T, int], list[Effect]],
    then: Callable[[T, int], list[Effect]],
    outcome: T,
    now: int,
) -> list[Effect]:
    return first(outcome, now) + then(outcome, now)


class AppendRun(Append, kw_only=True):
    """Write messages that are committed together with those beside them: a run, or one ask."""

    receipt: RunReceipt | AskReceipt


class AppendMessage(Append, kw_only=True):
    """Write a message of an inbox, which is committed together with those beside it."""

    message: PendingMessage


class Dispatch(msgspec.Struct, gc=False):
    """Send a subscription's message to a consumer; its window bounds it, nothing drops it.

    The shell reports `receipt`, if there is one, once the bytes are handed over, or lost.
    """

    session: Session
    frame: bytes
    receipt: Attempt | None


class DispatchRun(msgspec.Struct, gc=False):
    """Send several of a subscription's messages to a consumer, without receipts.

    Their frames are complete with their headers.
    """

    session: Session
    frames: bytes
    count: int


class Fetch(msgspec.Struct, gc=False):
    """Read entries of a stream from the log and pass them to `then`, with the time.

    The list starts later than requested if older entries are gone; it is empty if nothing can be
    read yet, and `None` if reading failed.
    """

    stream: str
    stream_epoch: int
    from_seq: int
    count_max: int
    bytes_max: int
    then: Callable[[list[StoredEntry] | None, int], list[Effect]]


class FindTime(msgspec.Struct, gc=False):
    """Find the first position accepted at or after a time and pass it to `then`.

    The position is 0 if there is none, `None` if reading failed.
    """

    stream: str
    stream_epoch: int
    time_ms: float
    then: Callable[[int | None, int], list[Effect]]


class Match(msgspec.Struct, frozen=True, gc=False):
    """An entry that is to be erased."""

    offset: int
    kind: int
    stream: str
    stream_epoch: int
    seq: int
    is_named: bool = False
    """Its stream is the address it is erased for."""


class Located(msgspec.Struct, gc=False):
    """Entries found before `end`, and the number of torn ends of the log that were removed."""

    found: list[Match]
    end: int
    torn: int = 0


class Locate(msgspec.Struct, gc=False):
    """Search the log for up to `count_max` entries to erase.

    `choose` is called on another thread. If anything is found, the next entry starts a new segment.
    Saved torn ends that contain `needle` are deleted. `then` gets `None` if the search failed.
    """

    choose: Callable[[StoredEntry], Match | None]
    from_offset: int
    to_offset: int
    count_max: int
    needle: bytes
    then: Callable[[Located | None, int], list[Effect]]


class EraseEntries(msgspec.Struct, gc=False):
    """Rewrite the segments that hold these entries, without the entries' content.

    `then` gets the number of rewritten segments, or the reason why none was.
    """

    bodies: list[ErasedBody]
    then: Callable[[int | Refusal, int], list[Effect]]


class Answer(msgspec.Struct, gc=False):
    """Answer a request to a room or an inbox.

    `caller` belongs to the shell and has a method `answer(result, message_id)`.
    """

    caller: object
    result: Result
    message_id: str = ""


class Announce(msgspec.Struct, gc=False):
    """Queue a frame on every socket of a room except `but`; close sockets whose queue is full."""

    guests: Collection[Guest]
    frame: bytes
    but: Guest | None = None


class Dismiss(msgspec.Struct, gc=False):
    """Close a room's socket."""

    guest: Guest
    code: int
    reason: str


class Recall(msgspec.Struct, gc=False):
    """Look up ids that are no longer in memory.

    `then` gets what is known of them, or `None` if the lookup failed.
    """

    keys: list[bytes]
    oldest_ms: int  # Accepted since then.
    then: Callable[[list[Recalled] | None, int], list[Effect]]


class Consult(msgspec.Struct, gc=False):
    """Read the first `count_max` messages of an inbox in a range of positions from the archive.

    `then` gets those that have not expired, in any order, or `None` if the archive is unreachable.
    """

    inbox: str
    from_seq: int
    to_seq: int
    count_max: int
    then: Callable[[list[Archived] | None, int], list[Effect]]


class GiveWay(msgspec.Struct, gc=False):
    """A message of the session took long: others get their turn before its next one."""

    session: Session


class Note(msgspec.Struct, gc=False):
    """Log something for the operator; `error` is the exception behind it, if there is one."""

    text: str
    facts: dict[str, object]
    error: Exception | None = None


Effect = (
    Reply
    | ReplyRuns
    | Deliver
    | DeliverRun
    | FanOut
    | Close
    | Persist
    | Forget
    | Append
    | Dispatch
    | DispatchRun
    | Fetch
    | FindTime
    | Locate
    | EraseEntries
    | Answer
    | Announce
    | Dismiss
    | Recall
    | Consult
    | GiveWay
    | Note
)
