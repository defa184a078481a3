"""Whatever the kernel and the peers do, a room's sockets hear everything in order or are closed.

A schedule is a list of steps drawn from a seed: messages, sockets that take little, nothing or
break, visitors that come and go in every way. Then everybody who is left reads on. A schedule that
fails is cut down before it is shown.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable

import pytest
from picows import WSMsgType

from signalhub.settings.model import OutboundSettings
from signalhub.wire.frames import Opcode
from tests.property.cutting import check
from tests.support.memory.room_sockets import RoomStage, Visitor
from tests.support.memory.write_path import EVERYTHING
from tests.support.volume import SEEDS, volume

pytestmark = pytest.mark.usefixtures("picows_reads")

RUNS = volume(SEEDS, 900)
GROUPS = 3
STEPS_MIN, STEPS_MAX = 20, 120
VISITORS = 4
ROOMS = ("general", "general", "general", "other")
CLOSE_CODES = {None, 1000, 1008, 1013}

Step = tuple[str, int, int]


def drawn(seed: int) -> list[Step]:
    """The schedule of a seed."""
    dice = random.Random(seed)
    length = dice.randint(STEPS_MIN, STEPS_MAX)
    weights = [weight for weight, _ in STEPS.values()]
    names = dice.choices(list(STEPS), weights, k=length)
    return [(name, dice.randrange(VISITORS), dice.randrange(1_000)) for name in names]


class Run:
    """One schedule on one stage, and who sent what."""

    def __init__(self, stage: RoomStage) -> None:
        self.stage = stage
        self.serial = 0
        self.sent: dict[str, Visitor] = {}
        self.present = [
            stage.visit(f"p{number}", room) for number, room in enumerate(ROOMS[:VISITORS])
        ]

    def play(self, steps: list[Step]) -> None:
        for name, which, number in steps:
            self.stage.clock.advance(0.000_001)
            STEPS[name][1](self, self.present[which], number)
        self.let_everybody_read()

    def let_everybody_read(self) -> None:
        stage = self.stage
        for _ in range(50):
            for visitor in stage.visitors:
                visitor.socket.short = None
                visitor.socket.breaks_after_write = False
                visitor.read()
                if visitor.close_code is not None:
                    visitor.say_close()
            stage.loop.run_dry()
            stage.writer.sweep()
            if not stage.loop.ready:
                break
        stage.pass_time(7)

    # Steps.

    def send(self, visitor: Visitor, number: int) -> None:
        self.serial += 1
        message_id = f"m{self.serial}"
        if visitor.is_open and not visitor.connection.is_closing:
            self.sent[message_id] = visitor
        visitor.send(message_id, "A" * (4 + number % 7 * 40))

    def break_later(self, visitor: Visitor, number: int) -> None:
        visitor.socket.short = number % 50
        visitor.socket.breaks_after_write = True

    def ping(self, visitor: Visitor, number: int) -> None:
        if number % 2:
            visitor.frame(WSMsgType.PING, b"p" * (number % 100))
        else:
            visitor.say({"action": "ping", "t": number})

    def arrive(self, visitor: Visitor, number: int) -> None:
        at = self.present.index(visitor)
        self.present[at] = Visitor(self.stage, f"p{at}", ROOMS[at])
        self.stage.visitors.append(self.present[at])

    def sweep(self, visitor: Visitor, number: int) -> None:
        self.stage.clock.advance(0.25)
        self.stage.writer.sweep()

    # What must hold in the end.

    def check(self) -> None:
        for visitor in self.stage.visitors:
            self.check_frames(visitor)
            self.check_hearing(visitor)
        self.check_answers()
        self.check_rest()

    def check_frames(self, visitor: Visitor) -> None:
        frames = visitor.socket.taken.frames()
        opcodes = [opcode for opcode, _, _ in frames]
        assert Opcode.CLOSE not in opcodes[:-1], "something follows the close frame"
        assert visitor.close_code in CLOSE_CODES
        if not visitor.transport.is_gone:
            whole = frames[-1][2] if frames else 0
            assert whole == len(visitor.socket.taken.data), "a live socket holds half a frame"

    def check_hearing(self, visitor: Visitor) -> None:
        """From its welcome on everything without a gap, up to the last if it is still there."""
        frames = visitor.frames()
        if not frames:
            assert visitor.transport.is_gone
            return
        assert [one["action"] for one in frames].count("welcome") == 1
        assert frames[0]["action"] == "welcome"
        first, heard = frames[0]["lastSeq"] + 1, visitor.heard()
        assert heard == list(range(first, first + len(heard))), f"{heard} after {first - 1}"
        if visitor.is_open and not visitor.connection.is_closing:
            guest = visitor.room_socket.guest
            assert guest is not None
            inbox = guest.room.inbox
            head = inbox.head if inbox is not None else 0
            assert first + len(heard) == head + 1, "somebody who is there missed the end"

    def check_answers(self) -> None:
        for message_id, visitor in self.sent.items():
            frames = [one for one in visitor.frames() if one.get("messageId") == message_id]
            acks = [at for at, one in enumerate(frames) if one["action"] == "ack"]
            fresh = [at for at in acks if "duplicate" not in frames[at]]
            assert len(fresh) <= 1, f"{message_id} was acknowledged as new twice"
            if fresh:
                assert [one["action"] for one in frames[: fresh[0]]].count("message") == 1
            if visitor.is_open and not visitor.connection.is_closing:
                assert acks, f"{message_id} was never answered"

    def check_rest(self) -> None:
        stage = self.stage
        writer, runner = stage.writer, stage.runner
        there = [one for one in stage.visitors if not one.transport.is_gone]
        assert stage.present == len(there) == len(runner.connections) == stage.hub.rooms.guests
        for visitor in stage.visitors:
            connection = visitor.connection
            assert not connection.queue
            assert not connection.waiting
            assert not connection.is_dirty
            assert not connection.is_in_bulk
            assert visitor.room_socket.outbound is None
            assert visitor.transport.is_gone == (connection not in runner.connections)
        assert not writer.dirty
        assert not writer._bulk
        assert not writer._blocked
        assert not writer._closing
        assert writer.tick_ms == 0
        assert stage.tally.dropped_tells == 0
        assert not stage.engine.pending


def shorten(run: Run, visitor: Visitor, number: int) -> None:
    visitor.socket.short = number % 3 * number // 2


def send_again(run: Run, visitor: Visitor, number: int) -> None:
    visitor.send(f"m{max(1, run.serial - number % 3)}")


# How often each step comes, and what it does.
STEPS: dict[str, tuple[int, Callable[[Run, Visitor, int], object]]] = {
    "send": (30, Run.send),
    "send_again": (3, send_again),
    "turn": (22, lambda run, visitor, number: run.stage.loop.turn()),
    "stall": (7, lambda run, visitor, number: visitor.stall(number % 3 * number)),
    "read": (9, lambda run, visitor, number: visitor.read(EVERYTHING if number % 2 else number)),
    "short": (6, shorten),
    "break_later": (1, Run.break_later),
    "ping": (3, Run.ping),
    "nonsense": (2, lambda run, visitor, number: visitor.say(b"nonsense")),
    "say_close": (1, lambda run, visitor, number: visitor.say_close()),
    "hang_up": (1, lambda run, visitor, number: visitor.hang_up()),
    "reset": (1, lambda run, visitor, number: visitor.reset()),
    "arrive": (4, Run.arrive),
    "sweep": (5, Run.sweep),
    "wait": (1, lambda run, visitor, number: run.stage.pass_time(11)),
}


def play(steps: list[Step]) -> None:
    with RoomStage(
        rooms={"socket_queue": 8},
        outbound=OutboundSettings(bytes_max=4_000),
        broadcast_batch=1,
        fanout_batch=2,
    ) as stage:
        run = Run(stage)
        run.play(steps)
        run.check()


@pytest.mark.parametrize("group", range(GROUPS))
def test_every_schedule_leaves_sockets_that_heard_everything_or_are_closed(
    group: int, caplog: pytest.LogCaptureFixture
) -> None:
    # A slow reader that is closed is logged, and the schedules close thousands.
    caplog.set_level(logging.ERROR, "signalhub.server")
    for seed in range(group, RUNS, GROUPS):
        check(seed, drawn(seed), play)
    assert not caplog.records
