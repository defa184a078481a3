"""`/api/admin/v1/live`: a WebSocket that keeps a page up to date.

The first frame is `{"op":"hello","token":…}`, answered by `{"op":"welcome", …}` with what `/me`
says. `{"op":"watch","id":1,"what":"overview"}` begins a watch: one frame with all of it, then once
a second the members that have changed. `stop` ends it, `token` renews the token, and the raw ping
of the wire protocol is answered.

What is watched is computed once a second for all sockets. Nothing is queued for a slow page: while
its socket is blocked it gets nothing, then one frame with everything that changed since its last.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from signalhub.core.overview.survey import KEPT_POINTS
from signalhub.core.sessions.outbound import Outbound
from signalhub.core.streams.streams import Topic
from signalhub.server.admin.answers import AdminError
from signalhub.server.admin.api import (
    PREFIX,
    AdminApi,
    AdminRefusal,
    bad_request,
    forbidden,
    not_found,
    refused,
)
from signalhub.server.callers import CallRefused
from signalhub.server.port.door import Door
from signalhub.server.port.http import HttpRequest, Response, Routes, Upgrade
from signalhub.server.sockets.connection import Connection
from signalhub.server.sockets.native import new_connection
from signalhub.wire.envelope import RAW_PING, RAW_PONG
from signalhub.wire.frames import CloseCode

if TYPE_CHECKING:
    from signalhub.core.hub import Hub
    from signalhub.core.streams.streams import Held, Mailbox, Stream
    from signalhub.server.admin.actors import Actors
    from signalhub.server.admin.facts import Facts
    from signalhub.server.admin.jobs import Jobs
    from signalhub.server.admin.overview import Overview
    from signalhub.server.admin.sampler import Sampler
    from signalhub.server.admin.streams import Streams
    from signalhub.server.admin.visitors import Visitor
    from signalhub.server.runner import HubRunner
    from signalhub.server.sockets.writer import Writer
    from signalhub.settings.model import OutboundSettings as Bounds

log = logging.getLogger("signalhub.admin")

PATH: Final = f"{PREFIX}/live"
FRAME_BYTES_MAX: Final = 2**16
WATCHES_MAX: Final = 16
HELLO_S: Final = 5.0
# Sockets before their hello; one that comes when there are more ends the one that waits longest.
WAITING_MAX: Final = 64
NAMES_MAX: Final = 100
NAME_CHARS_MAX: Final = 513
ROWS_MAX: Final = 50
# Of a tail: rows per second, messages looked at for them, bytes searched for a text, and how much
# of a payload is shown.
TAIL_ROWS_MAX: Final = 50
TAIL_LOOKED_MAX: Final = 500
TAIL_SEARCHED_BYTES: Final = 2**18
TAIL_PAYLOAD_BYTES: Final = 1_024
# What a page may send in a second before it is closed.
FRAMES_MAX: Final = 60
# What is computed at once for a page in a second; other watches begin with the next second.
COMPUTED_MAX: Final = 10
TOKEN_ENDED: Final = 4401
# For how long what was computed may be shown.
KEPT_MS: Final = 1_500
# How often tokens are verified again, since one may have been revoked.
_VERIFIED_TICKS: Final = 5
_METADATA_CHARS: Final = 256

What = Literal[
    "overview", "subscriptions", "subscription", "topic", "actors", "tail", "job", "actions"
]
Facts_ = dict[str, Any]


# What names something, or the topic and the subscription together.
Name = Annotated[str, Meta(max_length=NAME_CHARS_MAX)]


class TailFilter(msgspec.Struct, frozen=True):
    """Which messages a tail shows; what is given must all be so."""

    stream: Name | None = None
    key: Name | None = None
    type: Name | None = None
    sender: Name | None = None
    text: Name | None = None


class LiveRequest(msgspec.Struct, frozen=True):
    """One frame of a page."""

    op: Literal["hello", "watch", "stop", "token"]
    id: Annotated[int, Meta(ge=0, le=2**31)] = 0
    token: str | None = None
    what: What | None = None
    topic: Name | None = None
    name: Name | None = None
    ids: Annotated[list[Name], Meta(max_length=NAMES_MAX)] | None = None
    addresses: Annotated[list[Name], Meta(max_length=NAMES_MAX)] | None = None
    job: Name | None = None
    filter: TailFilter | None = None


_decode = msgspec.json.Decoder(LiveRequest).decode
_MISSING: Final = object()


class Tail:
    """The newest messages of one stream or of all, as far as they are in memory.

    It looks when it is read, so the write path does not know that anybody does.
    """

    def __init__(self, hub: Hub, visitor: Visitor, wanted: TailFilter, epoch: int) -> None:
        self._hub = hub
        self.visitor = visitor
        self._wanted = wanted
        self._text = None if wanted.text is None else wanted.text.encode()
        self._epoch = epoch
        self._seen = self._count()

    @property
    def searches(self) -> bool:
        """Does it look into payloads?"""
        return self._text is not None

    def _stream(self) -> Topic | Mailbox | None:
        name, streams = self._wanted.stream or "", self._hub.streams
        return streams.topics.get(name) or streams.mailboxes.get(name)

    def _count(self) -> int:
        """How many messages there have been."""
        if self._wanted.stream is None:
            return self._hub.streams.kept
        stream = self._stream()
        return 0 if stream is None else stream.head

    def _newest(self, count: int) -> Iterator[tuple[Stream, int]]:
        if self._wanted.stream is None:
            yield from islice(self._hub.streams.newest(), count)
            return
        stream = self._stream()
        if stream is not None:
            for seq in range(stream.head, max(stream.head - count, stream.first - 1), -1):
                yield stream, seq

    def read(self) -> tuple[list[dict[str, Any]], int]:
        """Return the rows since the last call, the oldest first, and how many are left out."""
        count = self._count()
        new, self._seen = max(0, count - self._seen), count
        rows: list[dict[str, Any]] = []
        looked_at = size = searched = 0
        for stream, seq in self._newest(min(new, TAIL_LOOKED_MAX)):
            if len(rows) == TAIL_ROWS_MAX or size > FRAME_BYTES_MAX // 2:
                break
            held = stream.recent.get(seq)
            if held is not None and self._text is not None:
                # The newest is searched however large it is.
                searched += len(held.message.data)
                if looked_at and searched > TAIL_SEARCHED_BYTES:
                    break
            looked_at += 1
            row = None if held is None else self._row(stream, held)
            if row is not None:
                rows.append(row)
                size += len(row["payload"] or "") + 512
        return rows[::-1], new - looked_at

    def _row(self, stream: Stream, held: Held) -> dict[str, Any] | None:
        message, wanted = held.message, self._wanted
        may_read = self.visitor.may("read", stream.name)
        if not may_read and (wanted.key, wanted.type, wanted.text) != (None, None, None):
            return None
        for given, found in (
            (wanted.key, message.key),
            (wanted.type, message.type),
            (wanted.sender, message.sender),
        ):
            if given is not None and given != found:
                return None
        if self._text is not None and self._text not in message.data:
            return None
        cut = min(self._hub.settings.ui.payload_bytes, TAIL_PAYLOAD_BYTES)
        payload = message.data[:cut].decode(errors="ignore") if may_read else None
        return {
            "at": self._hub.wall.shown(held.at_ms),
            "position": f"{self._epoch}.{held.offset}",
            "shard": 0,
            "epoch": self._epoch,
            "offset": held.offset,
            "kind": "published" if isinstance(stream, Topic) else "mail",
            "tier": "log",
            "stream": stream.name,
            "streamEpoch": stream.id,
            "seq": held.seq,
            "id": message.id,
            "type": message.type if may_read else None,
            "key": message.key if may_read else None,
            "sender": message.sender,
            "bytes": len(message.data),
            "payload": None if held.is_erased else payload,
            "cut": len(message.data) > cut,
            "encoding": "json",
            "removed": "erased" if held.is_erased else None,
            "withheld": not may_read,
            "became": None,
        }


class Watch:
    """One thing that a page watches, and what was sent of it."""

    __slots__ = ("compute", "id", "key", "request", "sent", "tail")

    def __init__(
        self,
        request: LiveRequest,
        key: tuple[Any, ...],
        compute: Callable[[int], Facts_] | None,
        tail: Tail | None = None,
    ) -> None:
        self.id = request.id
        # How the page asked for it.
        self.request = request
        # Watches with the same key show the same.
        self.key = key
        self.compute = compute
        self.sent: Facts_ | None = None
        self.tail = tail


class LiveSocket:
    """The socket of one page: both the owner and the party of its connection."""

    __slots__ = (
        "_live",
        "_request",
        "_watching",
        "computed",
        "connection",
        "frames",
        "opened_ms",
        "outbound",
        "sent",
        "visitor",
        "watches",
    )

    id = "live"
    slow_code = CloseCode.TRY_AGAIN_LATER
    frame_bytes_max = FRAME_BYTES_MAX
    run_bytes_max = 0

    def __init__(self, live: Live, request: HttpRequest) -> None:
        self._live = live
        self._request = request
        self.opened_ms = live.now_ms()
        self.outbound: Outbound | None = None
        self.sent = 0
        self.visitor: Visitor | None = None
        self.watches: dict[int, Watch] = {}
        # Frames of the page since the last second, and what was computed at once for them.
        self.frames = 0
        self.computed = 0
        self.connection: Connection[LiveSocket] = new_connection(self, None)

    @property
    def writer(self) -> Writer:
        return self._live.runner.writer

    @property
    def bounds(self) -> Bounds:
        return self._live.runner.bounds

    # Called by the connection.

    def opened(self, connection: Connection[Any]) -> LiveSocket:
        """Register the new connection."""
        self._live.runner.arrived(connection)
        return self

    def is_welcome(self, connection: Connection[Any]) -> bool:
        """Return `True`: the port does not wait for a hello, this class does."""
        return True

    def received_run(self, connection: Connection[Any], run: object) -> bool:
        """Return `False`: there are no runs."""
        return False

    gather = received_run

    def handle_gathered(self) -> None:
        """Do nothing: nothing is gathered."""

    def unheard(self, connection: Connection[Any]) -> None:
        """Do nothing: nobody is taken for silent."""

    def too_slow(self) -> None:
        """Do nothing: nothing waits for a page that does not read."""

    def caught_up(self, connection: Connection[Any]) -> None:
        """Do nothing: the next second brings what has changed."""

    def leaving(self, connection: Connection[Any], code: int | None = None) -> None:
        """Forget the watches."""
        self._live.left(self)

    def disconnected(self, connection: Connection[Any]) -> None:
        """Remove the closed socket."""
        self._live.left(self)
        self._live.runner.disconnected(connection)

    def received(self, connection: Connection[Any], payload: bytes) -> None:
        """Handle a frame."""
        self.frames += 1
        if self.frames > FRAMES_MAX:
            connection.close(CloseCode.POLICY_VIOLATION, "too many frames")
            return
        if payload == RAW_PING:
            self.say(RAW_PONG)
            return
        try:
            request = _decode(payload)
        except (ValueError, RecursionError) as error:
            self._refuse(0, bad_request(f"the frame is invalid: {error}"))
            return
        try:
            if request.op == "hello" or request.op == "token":
                self._greet(request)
            elif self.visitor is None:
                connection.close(CloseCode.POLICY_VIOLATION, "the first frame must be a hello")
            elif request.op == "stop":
                self.watches.pop(request.id, None)
            else:
                self._live.begin(self, request)
        except (AdminRefusal, CallRefused) as refusal:
            self._refuse(request.id, refusal)
            if self.visitor is None:
                connection.close(CloseCode.POLICY_VIOLATION, "unauthorized")

    def _greet(self, request: LiveRequest) -> None:
        visitor = self._live.api.visitors.identify(self._request, request.token)
        if not visitor.may("admin", "view"):
            raise forbidden("admin: view")
        is_first = self.visitor is None
        if is_first:
            self._live.check_room()
        self.visitor = visitor
        self._live.greeted()
        self._live.renew(self)
        me = self._live.facts.me(visitor, self._live.now_ms())
        word = "welcome" if is_first else "renewed"
        self.say(msgspec.json.encode({"op": word} | msgspec.to_builtins(me)))

    def _refuse(self, watch_id: int, error: AdminRefusal | CallRefused) -> None:
        body = msgspec.json.decode(refused(error).body, type=AdminError)
        self.say(msgspec.json.encode({"id": watch_id, "error": msgspec.to_builtins(body)}))

    def say(self, frame: bytes) -> None:
        """Send a frame; a page that does not read is closed rather than waited for."""
        if self.connection.is_closing:
            return
        if self.outbound is None:
            self.connection.queue_reply(frame)
        else:
            self.writer.close_slow(self.connection)

    @property
    def is_blocked(self) -> bool:
        """Does the page not read at the moment?"""
        return self.outbound is not None or self.connection.is_closing


class Live:
    """All live sockets."""

    def __init__(
        self,
        api: AdminApi,
        hub: Hub,
        runner: HubRunner,
        sampler: Sampler,
        facts: Facts,
        overview: Overview,
        streams: Streams,
        actors: Actors,
        jobs: Jobs,
    ) -> None:
        self.api = api
        self.runner = runner
        self.facts = facts
        self.now_ms = api.now_ms
        self._hub = hub
        self._sampler = sampler
        self._overview = overview
        self._streams = streams
        self._actors = actors
        self._jobs = jobs
        self._sockets: dict[LiveSocket, None] = {}
        self._sockets_max = hub.settings.ui.live_max
        self._pushing: asyncio.Task[None] | None = None
        self._ticks = 0
        # What was computed in this second, and how it was encoded, by what was sent before.
        self._computed: dict[tuple[Any, ...], Facts_] = {}
        self._encoded: dict[tuple[int, int], list[bytes]] = {}
        self._computed_ms = 0
        self.computations = 0

    def __len__(self) -> int:
        return len(self._sockets)

    def add_to(self, routes: Routes) -> None:
        """Register the path."""
        routes.add_socket(PATH, self.open)

    def open(self, request: HttpRequest, door: Door) -> Response | Upgrade:
        """Accept a socket of the hub's own page, or of a program."""
        try:
            refusal = self.api.guard(request)
            if refusal is not None:
                raise refusal
            self.check_room()
        except AdminRefusal as error:
            return refused(error)
        waiting = [one for one in self._sockets if one.visitor is None]
        if len(waiting) >= WAITING_MAX:
            waiting[0].connection.close(CloseCode.TRY_AGAIN_LATER, "others come")
        socket = LiveSocket(self, request)
        self._sockets[socket] = None
        return Upgrade(socket.connection, None, FRAME_BYTES_MAX, needs_hello=False)

    def greeted(self) -> None:
        """A page looks from now on."""
        if not self._sampler.is_watched:
            self._sampler.begin_round()
        self._count()

    def _count(self) -> None:
        self._sampler.watchers = sum(one.visitor is not None for one in self._sockets)

    def check_room(self) -> None:
        """Refuse a page if as many as may be are open; strangers do not count."""
        count = sum(one.visitor is not None for one in self._sockets)
        if count >= self._sockets_max:
            raise AdminRefusal(
                503,
                "too_many",
                f"{self._sockets_max} pages are open (ui.live_max).",
                "Close one.",
                headers={"Retry-After": "5"},
            )

    def left(self, socket: LiveSocket) -> None:
        """A page has closed."""
        socket.watches.clear()
        self._sockets.pop(socket, None)
        self._count()

    def stop(self) -> None:
        """The hub stops: tell the pages."""
        if self._pushing is not None:
            self._pushing.cancel()
        for socket in list(self._sockets):
            socket.connection.close(CloseCode.GOING_AWAY, "server_shutdown")

    # Watches.

    def begin(self, socket: LiveSocket, request: LiveRequest) -> None:
        """A page begins to watch something; raises `AdminRefusal`."""
        if request.id not in socket.watches and len(socket.watches) >= WATCHES_MAX:
            raise bad_request(f"at most {WATCHES_MAX} watches per page", "Stop one.")
        watch = self._watch(socket, request)
        if watch.tail is not None:
            others = (one.tail for one in socket.watches.values() if one.id != watch.id)
            if watch.tail.searches and any(one is not None and one.searches for one in others):
                raise bad_request("one tail per page may search for a text", "Stop the other one.")
            self._say(socket, watch, {"full": {}})
        elif self._is_known(watch) or socket.computed < COMPUTED_MAX:
            socket.computed += not self._is_known(watch)
            self._send(socket, watch, self._compute(watch), self.now_ms())
        socket.watches[request.id] = watch

    def renew(self, socket: LiveSocket) -> None:
        """A page has another token: what it watches follows the rights of that one."""
        visitor = socket.visitor
        assert visitor is not None
        for watch in list(socket.watches.values()):
            if watch.tail is not None:
                # It decides by each message, and goes on where it is.
                watch.tail.visitor = visitor
                continue
            # The next second shows what differs.
            renewed = self._watch(socket, watch.request)
            renewed.sent = watch.sent
            socket.watches[watch.id] = renewed

    def _watch(self, socket: LiveSocket, request: LiveRequest) -> Watch:
        visitor, what = socket.visitor, request.what
        assert visitor is not None
        match what:
            case "overview":
                is_named = visitor.may_name_all
                return Watch(
                    request, (what, is_named), lambda now: self._of_overview(now, is_named)
                )
            case "subscriptions":
                ids = tuple(request.ids or ())
                return Watch(
                    request,
                    (what, request.topic, ids),
                    lambda now: self._of_many(request.topic, ids),
                )
            case "subscription":
                topic, name = request.topic or "", request.name or ""
                may_read = visitor.may("read", topic)
                one = (what, topic, name, may_read)
                return Watch(request, one, lambda now: self._of_one(topic, name, may_read))
            case "topic":
                topic = request.topic or ""
                return Watch(request, (what, topic), lambda now: self._of_topic(topic))
            case "actors":
                named = tuple(
                    one for one in request.addresses or () if visitor.may("discover", one)
                )
                return Watch(request, (what, named), lambda now: self._of_actors(named, now))
            case "job":
                job = request.job or ""
                return Watch(request, (what, job), lambda now: self._of_job(job))
            case "actions":
                return Watch(request, (what,), lambda now: {"offset": self._hub_head()})
            case "tail":
                wanted = request.filter or TailFilter()
                tail = Tail(self._hub, visitor, wanted, self.facts.log_epoch)
                return Watch(request, (), None, tail)
            case _:
                raise bad_request("a watch needs `what`")

    def _of_overview(self, now: int, is_named: bool) -> Facts_:
        return _plain(self._overview.newest(now, with_names=is_named))

    def _of_many(self, topic: str | None, ids: tuple[str, ...]) -> Facts_:
        """Rows of subscriptions, by `topic/name`; of those furthest behind if none is named."""
        topics = self._hub.streams.topics
        found = []
        if topic is None and not ids:
            found = [one for _, one in self._sampler.survey.totals.behind if not one.is_deleted]
        if topic is not None:
            known = topics.get(topic)
            names = [] if known is None else known.names()[:NAMES_MAX]
            found = [known.subscriptions[one] for one in names if known is not None]
        for each in ids:
            # A name of a subscription may hold slashes, too: the first topic that fits counts.
            at = each.find("/")
            while at >= 0:
                known = topics.get(each[:at])
                one = None if known is None else known.subscriptions.get(each[at + 1 :])
                if one is not None:
                    found.append(one)
                    break
                at = each.find("/", at + 1)
        rows = {f"{one.stream.name}/{one.name}": one for one in found}
        return {name: _plain(self._streams.subscription_row(one)) for name, one in rows.items()} | {
            each: None for each in ids if each not in rows
        }

    def _of_one(self, topic: str, name: str, may_read: bool) -> Facts_:
        known = self._hub.streams.topics.get(topic)
        one = None if known is None else known.subscriptions.get(name)
        if one is None:
            raise not_found(f"{topic!r} has no subscription {name!r}.")
        answer = _plain(self._streams.subscription_answer(one, may_read))
        answer["history"] = answer["history"][-KEPT_POINTS:]
        return answer

    def _of_topic(self, topic: str) -> Facts_:
        known = self._hub.streams.topics.get(topic)
        if known is None:
            raise not_found(f"There is no durable topic {topic!r}.")
        answer = _plain(self._streams.topic_answer(known))
        answer["rows"] = answer["rows"][:ROWS_MAX]
        return answer

    def _of_actors(self, addresses: tuple[str, ...], now: int) -> Facts_:
        rows: Facts_ = {}
        for address in addresses:
            row = self._actors.row(address, now)
            rows[address] = None if row is None else _plain(row)
            if row is not None and row.metadata is not None:
                rows[address]["metadata"] = row.metadata[:_METADATA_CHARS]
        return rows

    def _of_job(self, name: str) -> Facts_:
        found = self._jobs.find(name)
        if found is None:
            raise not_found(f"There is no job {name!r} (any more).")
        return _plain(found)

    def _hub_head(self) -> int:
        """Where the log ends: new actions may be there if it has grown."""
        return self.facts.log_head

    # Once a second.

    def tick(self, now: int) -> None:
        """Send what has changed, a watch per turn."""
        self._ticks += 1
        for socket in list(self._sockets):
            socket.frames = socket.computed = 0
            if socket.visitor is None and now - socket.opened_ms > HELLO_S * 1000:
                socket.connection.close(CloseCode.POLICY_VIOLATION, "no hello")
            elif socket.visitor is not None and not self._is_welcome(socket.visitor, now):
                socket.connection.close(TOKEN_ENDED, "the token has ended")
        if self._sockets and (self._pushing is None or self._pushing.done()):
            self._pushing = asyncio.ensure_future(self._push(now))

    def _is_welcome(self, visitor: Visitor, now: int) -> bool:
        if visitor.expires_ms is not None and self._hub.wall.shown(now) >= visitor.expires_ms:
            return False
        return self._ticks % _VERIFIED_TICKS != 0 or self.api.visitors.is_welcome(visitor)

    async def _push(self, now: int) -> None:
        self._forget(self.now_ms())
        for socket in list(self._sockets):
            for watch in list(socket.watches.values()):
                if socket.is_blocked or socket.watches.get(watch.id) is not watch:
                    continue
                try:
                    self._look(socket, watch, now)
                except Exception:
                    log.exception("a watch failed")
                await asyncio.sleep(0)

    def _forget(self, now: int) -> None:
        """What was computed is out of date."""
        self._computed_ms = now
        self._computed.clear()
        self._encoded.clear()

    def _look(self, socket: LiveSocket, watch: Watch, now: int) -> None:
        if watch.tail is not None:
            rows, skipped = watch.tail.read()
            if rows or skipped:
                self._say(socket, watch, {"rows": rows, "skipped": skipped})
            return
        try:
            found = self._compute(watch)
        except AdminRefusal as refusal:
            # What was watched is gone.
            del socket.watches[watch.id]
            self._say(socket, watch, {"error": msgspec.to_builtins(refusal.answer())})
            return
        if found != watch.sent:
            self._send(socket, watch, found, now)

    def _is_known(self, watch: Watch) -> bool:
        """Was it computed a moment ago, for another page perhaps?"""
        return watch.key in self._computed and self.now_ms() - self._computed_ms < KEPT_MS

    def _compute(self, watch: Watch) -> Facts_:
        assert watch.compute is not None
        now = self.now_ms()
        if now - self._computed_ms >= KEPT_MS:
            # Nobody has looked for a while, or only this page does.
            self._forget(now)
        found = self._computed.get(watch.key)
        if found is None:
            found = self._computed[watch.key] = watch.compute(now)
            self.computations += 1
        return found

    def _send(self, socket: LiveSocket, watch: Watch, found: Facts_, now: int) -> None:
        key = (id(watch.sent), id(found))
        parts = self._encoded.get(key)
        if parts is None:
            parts = self._encoded[key] = _parts(watch.sent, found)
        watch.sent = found
        head = b'{"id":%d,"at":%d,' % (watch.id, self._hub.wall.shown(now))
        for part in parts:
            socket.say(head + part + b"}")

    def _say(self, socket: LiveSocket, watch: Watch, members: Facts_) -> None:
        at = self._hub.wall.shown(self.now_ms())
        socket.say(msgspec.json.encode({"id": watch.id, "at": at} | members))


def _parts(before: Facts_ | None, found: Facts_) -> list[bytes]:
    """The members to send: all of them, or those that differ, in frames that are not too large."""
    word = b"full" if before is None else b"change"
    changed = found
    if before is not None:
        changed = {
            name: value for name, value in found.items() if before.get(name, _MISSING) != value
        }
        changed |= {name: None for name in before if name not in found}
    encoded = [
        msgspec.json.encode(name) + b":" + msgspec.json.encode(value)
        for name, value in changed.items()
    ]
    parts: list[bytes] = []
    members: list[bytes] = []
    size = 0
    for one in encoded:
        if members and size + len(one) > FRAME_BYTES_MAX - 256:
            parts.append(b'"%b":{%b}' % (word, b",".join(members)))
            word, members, size = b"change", [], 0
        members.append(one)
        size += len(one) + 1
    parts.append(b'"%b":{%b}' % (word, b",".join(members)))
    return parts


def _plain(answer: msgspec.Struct) -> Facts_:
    found: Facts_ = msgspec.to_builtins(answer)
    return found
