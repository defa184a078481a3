"""`signalhub room`: send to a room, listen to it, create a key for it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter
from cyclopts.validators import Number

from signalhub.cli.messages.messages import Count, For, take_each
from signalhub.cli.rooms.connection import (
    LOCAL_ROOMS,
    SEQ_MAX,
    RoomConnection,
    joined,
    run,
)
from signalhub.cli.rooms.encryption import (
    INBOX_VARIABLE,
    KeyFile,
    Raw,
    Text,
    TextCodec,
    codec_of,
    inbox_of,
    read_key,
    write_key,
)
from signalhub.cli.terminal.arguments import DASHED
from signalhub.cli.terminal.failures import usage
from signalhub.cli.terminal.output import AsJson, Output, shown
from signalhub.operate.session import brief_reconnect

if TYPE_CHECKING:
    from signalhub.client import Hub, Reconnect, Room, RoomMessage, Sent
    from signalhub.client.lifecycle import Opening

Kind = Literal[
    "mls_app", "mls_proposal", "mls_approval", "mls_rejection", "mls_commit", "mls_group_info"
]
# In a blind hub it is an inbox id, which may begin with a dash.
RoomId = Annotated[str, DASHED, Parameter(name="ROOM", help="Id of the room, such as general.")]


@Parameter(name="*", group="Room")
@dataclass(frozen=True, kw_only=True)
class RoomOptions:
    """The tenant of a room, our name in it, and what only members know."""

    tenant: Annotated[str | None, Parameter(help="Tenant of the room.")] = None
    pseudonym: Annotated[
        str | None, Parameter(help="Name shown to other members; default: random.")
    ] = None
    inbox: Annotated[
        str | None,
        DASHED,
        Parameter(
            env_var=INBOX_VARIABLE,
            show_default=False,
            help="Inbox of the room; default: the inbox of --key, if given.",
        ),
    ] = None
    key: KeyFile = None
    raw: Raw = False

    def codec(self, room: str, *, is_reading: bool) -> TextCodec:
        """How text is encoded in this room."""
        from signalhub.client.arguments import room_name

        try:
            name = room_name(self.tenant, room)
        except ValueError as error:
            raise usage(str(error), "correct ROOM or --tenant") from None
        return codec_of(read_key(self.key), name, is_raw=self.raw, is_reading=is_reading)

    def opening(
        self, hub: Hub, room: str, since: int | None, reconnect: Reconnect | None
    ) -> Opening[Room]:
        try:
            return hub.room(
                room,
                tenant=self.tenant,
                pseudonym=self.pseudonym,
                inbox=inbox_of(read_key(self.key), self.inbox),
                since=since,
                reconnect=reconnect,
            )
        except ValueError as error:
            raise usage(str(error), "correct the command; see --help") from None


NO_ROOM_OPTIONS = RoomOptions()


def send(
    room: RoomId,
    text: Text,
    /,
    *,
    type: Annotated[Kind, Parameter(help="Message type.")] = "mls_app",
    proposal: Annotated[str | None, Parameter(help="Proposal the message is about.")] = None,
    message_id: Annotated[
        str | None,
        Parameter(name="--id", help="Message id; a message sent again with it counts once."),
    ] = None,
    options: RoomOptions = NO_ROOM_OPTIONS,
    connection: RoomConnection = LOCAL_ROOMS,
) -> None:
    """Send a message to a room and print its position.

    With --key only holders of the key can read it, otherwise the hub can:
    signalhub room send general 'see you at six' --key general.key
    """
    from signalhub.client.arguments import checked_kind, checked_room_message_id

    codec = options.codec(room, is_reading=False)
    try:
        own = checked_room_message_id(message_id)
        checked_kind(type, proposal)
    except ValueError as error:
        raise usage(str(error), "correct --id, --type or --proposal") from None
    ciphertext = codec.ciphertext(text, own)
    if message_id is not None and options.pseudonym is None:
        # A repeat must have the same sender.
        options = replace(options, pseudonym=sha256(own.encode()).hexdigest()[:16])

    async def work(hub: Hub) -> Sent:
        opening = options.opening(hub, room, None, None)
        async with await joined(connection, opening) as place:
            codec.warn(connection.plain)
            return await place.send(
                ciphertext,
                message_id=own,
                type=type,
                proposal_id=proposal,
                timeout_s=connection.timeout_s,
            )

    sent = run(connection, work)
    facts = {"messageId": sent.message_id, "seq": sent.seq, "duplicate": sent.is_repeat}
    result = f"seq {sent.seq} (duplicate)" if sent.is_repeat else f"seq {sent.seq}"
    connection.plain.output.fact(facts, result)


def listen(
    room: RoomId,
    /,
    *,
    since: Annotated[
        int,
        Parameter(
            validator=Number(gte=0, lte=SEQ_MAX), help="Last position already read; 0 for none."
        ),
    ] = 0,
    new: Annotated[
        bool,
        Parameter(negative=(), show_default=False, help="Only new messages."),
    ] = False,
    count: Count = None,
    for_s: For = None,
    options: RoomOptions = NO_ROOM_OPTIONS,
    connection: RoomConnection = LOCAL_ROOMS,
) -> None:
    """Print the messages of a room until Ctrl-C: stored ones, then new ones.

    Each is printed once and in order, also after reconnecting. Sender and type
    are known only for new messages.
    signalhub room listen general --since 41 --key general.key
    """
    if new and since:
        raise usage("--new and --since exclude each other", "give one of them")
    codec = options.codec(room, is_reading=True)

    async def show(message: RoomMessage, _is_last: bool) -> None:
        _print(message, codec, connection.plain.output)

    async def work(hub: Hub) -> None:
        opening = options.opening(hub, room, None if new else since, brief_reconnect())
        async with await joined(connection, opening) as place:
            connection.plain.note("listening; press Ctrl-C to stop")
            await take_each(place, show, count=count, for_s=for_s)

    run(connection, work, is_following=True)


def key(
    *,
    out: Annotated[
        Path | None,
        Parameter(show_default=False, help="Create a key and write it to this new file."),
    ] = None,
    show: Annotated[
        Path | None,
        Parameter(show_default=False, help="Read the key in this file."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Create a key for a room, or read one, and print its inbox id.

    Give the file only to members of the room, over a secure channel:
    signalhub room key --out general.key
    """
    from signalhub.client.sealing import new_key

    path = out or show
    if path is None or (out and show):
        raise usage("give exactly one of --out and --show", "each takes a file")
    made = read_key(show, "--show") or new_key()
    inbox = inbox_of(made, None)
    if out is not None:
        write_key(out, made)
    Output(as_json).fact({"key": str(path), "inbox": inbox}, str(inbox))


def _print(message: RoomMessage, codec: TextCodec, output: Output) -> None:
    text, style = codec.text(message)
    line = [
        (str(message.seq), "bold"),
        (shown(message.pseudonym or ""), "cyan"),
        (message.type or "", "yellow"),
        (shown(text), style),
    ]
    output.line(codec.facts(message), line)
