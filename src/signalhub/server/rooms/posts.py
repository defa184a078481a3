"""Posts of messages to rooms that need no second look: from what was read straight to the core.

The native part finds them in what a connection has read. Everything about them is checked as for
other requests; only nothing is made of what nobody looks at. Answers have the same bytes.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from signalhub import native
from signalhub.core.rooms.values import APP, Accepted, Result, SendToRoom
from signalhub.server.port.http import HttpRequest, Route, Routes, head_of_kept
from signalhub.server.rooms import answers, envelopes, openapi
from signalhub.wire.errors import RoomError

if native.IS_ON or TYPE_CHECKING:
    from signalhub_native import RoomMessages, RoomPosts, posted

if TYPE_CHECKING:
    from signalhub.core.hub import Hub
    from signalhub.server.port.door import Door
    from signalhub.server.runner import HubRunner

# What all of them have in common.
_POST: Final = HttpRequest("POST", openapi.MESSAGE, "", {})


class Posts:
    """Takes posts before they become requests."""

    def __init__(self, hub: Hub, runner: HubRunner, messages: RoomMessages) -> None:
        self._rooms = hub.rooms
        self._writer = runner.writer
        self._mono_s = runner.writer.mono_s
        self._run = runner.run
        self._read = RoomPosts(openapi.MESSAGE.encode(), messages).read
        self._route: Route

    def add_to(self, routes: Routes) -> None:
        """Take posts to a path that has its route."""
        found = routes.find(openapi.MESSAGE)
        assert found is not None, "the path has a route"
        self._route = found[0]
        routes.add_taker(self.take)

    def take(self, door: Door, data: bytes) -> bool:
        """Handle the post that is all of `data`; `False` if `data` is something else."""
        found = self._read(data)
        if found is None:
            return False
        host, authorization, inbox, room, message_id, pseudonym, ciphertext = found
        if not door.is_for(host):
            return False
        post = Post(door)
        door.expect_answer(_POST, self._route)
        writer = self._writer
        now = writer.tick_ms or writer.begin_tick()
        mono_ms = round(self._mono_s() * 1000)
        try:
            requester = self._rooms.identify(
                None if authorization is None else envelopes.bearer_token(authorization),
                door.source,
                now,
                mono_ms,
                has_inbox=inbox is not None,
            )
            if inbox is not None:
                inbox = envelopes.inbox_id(inbox)
        except RoomError as error:
            post.answer(error, message_id)
            return True
        except Exception as error:
            door.fail(error)
            return True
        send = SendToRoom(
            post,
            room,
            inbox,
            message_id,
            ciphertext,
            mono_ms,
            APP,
            pseudonym or "",
            requester=requester,
        )
        if not self._run(partial(self._rooms.send, send)):
            post.fail()
        return True


class Post:
    """A pending post; the core calls `answer` with the result."""

    __slots__ = ("_door",)

    def __init__(self, door: Door) -> None:
        self._door: Door | None = door

    def answer(self, result: Result, message_id: str) -> None:
        """Respond with the result."""
        door, self._door = self._door, None
        assert door is not None, "a request is answered once"
        if isinstance(result, RoomError):
            door.deliver(answers.error_response(result))
            return
        assert isinstance(result, Accepted), "a message is accepted or refused"
        if not result.is_repeat:
            whole = posted(*head_of_kept(200, answers.JSON), result.message_id, result.seq)
            if door.deliver_whole(whole):
                return
        door.deliver(answers.sent(result))

    def fail(self) -> None:
        """Respond with an internal error, unless the core has answered before."""
        door, self._door = self._door, None
        if door is not None:
            door.deliver(answers.INTERNAL_ERROR)
