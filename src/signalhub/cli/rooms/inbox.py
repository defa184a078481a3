"""`signalhub inbox`: read and write an inbox without being in its room."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from cyclopts.validators import Number
from msgspec.structs import replace

from signalhub.cli.rooms.connection import (
    LOCAL_ROOMS,
    LOST,
    SEQ_MAX,
    RoomConnection,
    run,
    tell_missing,
)
from signalhub.cli.rooms.encryption import (
    INBOX_VARIABLE,
    KeyFile,
    Raw,
    TextCodec,
    codec_of,
    inbox_of,
    read_key,
)
from signalhub.cli.terminal.arguments import DASHED, check_no_option
from signalhub.cli.terminal.failures import Exit, Failure, usage
from signalhub.cli.terminal.output import Output, shown
from signalhub.wire.errors import RoomCode

if TYPE_CHECKING:
    from signalhub.client import Hub, InboxAccess, InboxPage, RoomMessage, Stored
    from signalhub.client.rooms.answers import Gap

LIMIT = 100
LIMIT_MAX = 1000
# The hub serves sixty pages a minute; a reader of more has to wait for the next minute.
PAGE_S = 90.0
_ASK_AGAIN: Mapping[str, str] = {
    RoomCode.STORAGE_FAILED: "its log is damaged there; see its /health, and try again once it was"
    " repaired and restarted",
}


@Parameter(name="*", group="Encryption")
@dataclass(frozen=True, kw_only=True)
class InboxOptions:
    """How the messages of an inbox are decrypted."""

    key: KeyFile = None
    room: Annotated[
        str | None,
        DASHED,
        Parameter(help="With --key: the room of the inbox, which is part of the encryption."),
    ] = None
    tenant: Annotated[str | None, Parameter(help="Tenant of the room.")] = None
    raw: Raw = False

    def codec(self, *, is_reading: bool) -> TextCodec:
        """How text is encoded."""
        from signalhub.client.arguments import room_name

        if self.key is not None and self.room is None and not self.raw:
            raise usage("--key requires a room", "give it with --room")
        try:
            name = "" if self.room is None else room_name(self.tenant, self.room)
        except ValueError as error:
            raise usage(str(error), "correct --room or --tenant") from None
        return codec_of(read_key(self.key), name, is_raw=self.raw, is_reading=is_reading)

    def inbox(self, named: str | None) -> str:
        """The given inbox, or the one that belongs to the key."""
        found = inbox_of(read_key(self.key), named or os.environ.get(INBOX_VARIABLE))
        if found is None:
            raise usage("no inbox given", f"give its id, set {INBOX_VARIABLE}, or give --key")
        return found


NO_INBOX_OPTIONS = InboxOptions()


def fetch(
    inbox: Annotated[
        str | None,
        DASHED,
        Parameter(
            name="INBOX",
            show_default=False,
            help="Id of the inbox; default: SIGNALHUB_INBOX, then the inbox of --key.",
        ),
    ] = None,
    /,
    *,
    from_seq: Annotated[
        int, Parameter(name="--from", validator=Number(gte=0, lte=SEQ_MAX), help="First position.")
    ] = 0,
    limit: Annotated[
        int, Parameter(validator=Number(gte=1, lte=LIMIT_MAX), help="At most N messages.")
    ] = LIMIT,
    all: Annotated[
        bool, Parameter(negative=(), show_default=False, help="Fetch all messages, page by page.")
    ] = False,
    options: InboxOptions = NO_INBOX_OPTIONS,
    connection: RoomConnection = LOCAL_ROOMS,
) -> None:
    """Print the messages of an inbox.

    Standard error says which messages are no longer stored, and where to
    continue if there are more: SIGNALHUB_INBOX=… signalhub inbox fetch --from 42
    """
    codec, named = options.codec(is_reading=True), options.inbox(inbox)

    async def work(hub: Hub) -> InboxPage | None:
        access = hub.inbox(named)
        if all:
            await _print_all(access, from_seq, codec, connection)
            return None
        return await _print_some(access, from_seq, limit, codec, connection)

    page = run(connection, work)
    if page is not None:
        _tell_the_rest(page, from_seq, limit, connection)


def append(
    inbox: Annotated[
        str,
        Parameter(
            name="INBOX",
            allow_leading_hyphen=True,
            help="Id of the inbox; may be omitted with SIGNALHUB_INBOX or --key.",
        ),
    ],
    text: Annotated[
        str | None,
        Parameter(
            name="TEXT",
            show_default=False,
            help="Text to append; - reads standard input.",
            allow_leading_hyphen=True,
        ),
    ] = None,
    /,
    *,
    message_id: Annotated[
        str | None,
        Parameter(name="--id", help="Message id; a message appended again with it counts once."),
    ] = None,
    options: InboxOptions = NO_INBOX_OPTIONS,
    connection: RoomConnection = LOCAL_ROOMS,
) -> None:
    """Append a message to an inbox and print its position; nobody is notified.

    signalhub inbox append "$INBOX" 'read this later' --key general.key --room general
    """
    from signalhub.client.arguments import checked_room_message_id

    variable = os.environ.get(INBOX_VARIABLE)
    if text is None and inbox == variable:
        raise usage("nothing to append: the only argument is the inbox id", "give a text")
    if text is None and not variable and options.key is None:
        advice = f"give both INBOX and TEXT, or set {INBOX_VARIABLE}, or give --key"
        raise usage("INBOX or TEXT is missing", advice)
    content, given = (inbox, None) if text is None else (text, inbox)
    try:
        check_no_option(str, given)
    except ValueError as error:
        raise usage(str(error), "see --help") from None
    codec, named = options.codec(is_reading=False), options.inbox(given)
    try:
        own = checked_room_message_id(message_id)
    except ValueError as error:
        raise usage(str(error), "choose another --id") from None
    ciphertext = codec.ciphertext(content, own)

    async def work(hub: Hub) -> Stored:
        codec.warn(connection.plain)
        return await hub.inbox(named).append(
            ciphertext, message_id=own, timeout_s=connection.timeout_s, attempts=1
        )

    stored = run(connection, work)
    facts = {
        "messageId": stored.message_id,
        "seq": stored.seq,
        "duplicate": stored.is_repeat,
        "storedAt": stored.stored_at,
    }
    result = f"seq {stored.seq} (duplicate)" if stored.is_repeat else f"seq {stored.seq}"
    connection.plain.output.fact(facts, result)


async def _print_some(
    access: InboxAccess, from_seq: int, limit: int, codec: TextCodec, connection: RoomConnection
) -> InboxPage:
    """As many messages as were asked for: the hub ends a page by its size, too.

    They are printed at once, in case the next page is refused.
    """
    whole = page = await access.fetch(from_seq, limit, timeout_s=connection.timeout_s, attempts=1)
    _print_page(page, codec, connection)
    while page and not page.is_partial and len(whole) < limit:
        left = limit - len(whole)
        page = await access.fetch(page.next_seq, left, timeout_s=connection.timeout_s, attempts=1)
        _print_page(page, codec, connection)
        whole = replace(
            page,
            messages=whole.messages + page.messages,
            oldest_seq=whole.oldest_seq,
            skipped=whole.skipped + page.skipped,
        )
    return whole


def _print_page(page: InboxPage, codec: TextCodec, connection: RoomConnection) -> None:
    for message in page:
        _print(message, codec, connection.plain.output)


async def _print_all(
    access: InboxAccess, from_seq: int, codec: TextCodec, connection: RoomConnection
) -> None:
    from signalhub.client.rooms.answers import Gap

    messages = access.messages(from_seq, timeout_s=max(PAGE_S, connection.timeout_s), attempts=1)
    told = seen = 0
    async for message in messages:
        while told < len(messages.missed) and messages.missed[told].first < message.seq:
            missed = messages.missed[told]
            _tell_gone(Gap(*missed, is_skipped=missed in messages.skipped), connection)
            told += 1
        _print(message, codec, connection.plain.output)
        seen += 1
    if not seen:
        _tell_nothing(from_seq, connection)


def _tell_the_rest(page: InboxPage, from_seq: int, limit: int, connection: RoomConnection) -> None:
    if page.contiguous != page.messages:
        raise Failure(
            Exit.FAILED,
            "partial",
            "the hub cannot read the whole page now; messages may be missing above",
            "try again in a few seconds",
        )
    from signalhub.client import Missed
    from signalhub.client.rooms.answers import gaps_of

    first = max(1, from_seq)
    deleted = Missed(first, first - 1 if page.oldest_seq is None else page.oldest_seq - 1)
    for gap in gaps_of(page.skipped, deleted, SEQ_MAX):
        _tell_gone(gap, connection)
    if page.is_partial:
        code = page.reason or "partial"
        message = f"the hub cannot read messages from seq {max(1, page.next_seq)} on now"
        raise Failure(
            Exit.FAILED, code, message, _ASK_AGAIN.get(code, "try again in a few seconds")
        )
    if not page:
        _tell_nothing(from_seq, connection)
    if len(page) == limit:
        sentence = f"there may be more: continue with --from {page.next_seq}, or use --all"
        connection.plain.remark({"next": page.next_seq}, sentence)


def _tell_gone(gap: Gap, connection: RoomConnection) -> None:
    from signalhub.client import Missed

    missed = Missed(gap.first, gap.last)
    if gap.is_skipped:
        tell_missing(connection, missed, LOST, LOST)
    else:
        tell_missing(connection, missed, "is no longer stored", "are no longer stored")


def _tell_nothing(from_seq: int, connection: RoomConnection) -> None:
    where = f" from seq {from_seq} on" if from_seq > 1 else ""
    connection.plain.note(f"note: no messages{where}; an unused inbox looks the same")


def _print(message: RoomMessage, codec: TextCodec, output: Output) -> None:
    text, style = codec.text(message)
    line = [(str(message.seq), "bold"), (_moment(message), "dim"), (shown(text), style)]
    output.line(codec.facts(message), line)


def _moment(message: RoomMessage) -> str:
    """When it was stored, with the precision of the hub."""
    moment = message.created_at
    if moment is None:
        return ""
    precision = "milliseconds" if moment.microsecond else "seconds"
    return f"{moment.replace(tzinfo=None).isoformat(timespec=precision)}Z"
