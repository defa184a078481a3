"""The C loop between two ends of a socket pair: counting, windows, schedules and time limits."""

from __future__ import annotations

import shutil
import socket
import threading
from collections.abc import Iterator

import pytest

from bench.load import Generator, Lane, LoadFailed
from bench.protocols import MARKER, Step

pytestmark = pytest.mark.skipif(
    not any(map(shutil.which, ("cc", "gcc", "clang"))), reason="needs a C compiler"
)

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture(scope="module")
def generator() -> Generator:
    return Generator()


@pytest.fixture
def pair() -> Iterator[Pair]:
    left, right = socket.socketpair()
    with left, right:
        yield left, right


def lane(pair: Pair, messages: int, frame: bytes = MARKER, window: int = 0) -> Lane:
    left, right = pair
    return Lane(
        sender=left.fileno(),
        receivers=[right.fileno()],
        frames=frame * messages,
        messages=messages,
        window=window,
        refill_at=window // 2,
    )


def test_markers_split_between_two_reads_are_counted_once(generator: Generator, pair: Pair) -> None:
    # The window is larger than the kernel's buffers, so frames are cut wherever those were full.
    done = generator.drive([lane(pair, 200_000, window=100_000)], seconds_max=30.0)

    assert done.deliveries == 200_000
    assert len(done.lanes[0].took_s) == 200_000


def test_a_text_that_is_almost_the_marker_is_not_counted(generator: Generator, pair: Pair) -> None:
    frame = MARKER[:-1] + b"?" + MARKER + MARKER[1:]

    done = generator.drive([lane(pair, 1_000, frame, window=10)], seconds_max=30.0)

    assert done.deliveries == 1_000


def test_a_copy_too_many_is_noticed(generator: Generator, pair: Pair) -> None:
    with pytest.raises(LoadFailed, match="Protocol error"):
        generator.drive([lane(pair, 10, MARKER + MARKER, window=10)], seconds_max=30.0)


def test_a_message_is_complete_when_its_last_copy_arrived(generator: Generator, pair: Pair) -> None:
    left, right = pair
    other_left, other_right = socket.socketpair()
    with other_left, other_right:
        other_left.sendall(MARKER)
        two = Lane(
            sender=left.fileno(),
            receivers=[right.fileno(), other_right.fileno()],
            frames=MARKER * 2,
            messages=2,
            window=2,
            refill_at=1,
        )

        done = generator.drive([two], seconds_max=0.2)

    assert done.deliveries == 3
    assert len(done.lanes[0].took_s) == 1


def test_scheduled_messages_leave_at_their_times(generator: Generator, pair: Pair) -> None:
    done = generator.drive([lane(pair, 50)], seconds_max=30.0, rate_s=1_000.0)

    assert done.deliveries == 50
    assert done.seconds >= 0.049


def test_a_background_lane_does_not_keep_the_run_waiting(generator: Generator, pair: Pair) -> None:
    silent, unread = socket.socketpair()
    with silent, unread:
        background = Lane(
            sender=silent.fileno(),
            receivers=[unread.fileno()],
            frames=b"no marker here",
            messages=1,
            window=1,
            is_background=True,
        )

        done = generator.drive([lane(pair, 100, window=4), background], seconds_max=30.0)

    assert [each.deliveries for each in done.lanes] == [100, 0]
    assert done.seconds < 30.0


def test_a_run_in_which_nothing_arrives_tells_the_senders_answer(
    generator: Generator, pair: Pair
) -> None:
    left, right = pair
    right.sendall(b"rate_limited")
    mute = Lane(
        sender=left.fileno(),
        receivers=[right.fileno()],
        frames=b"x",
        messages=1,
        window=1,
    )

    with pytest.raises(LoadFailed, match="rate_limited"):
        generator.drive([mute], seconds_max=0.1)


def test_a_closed_connection_ends_the_run(generator: Generator, pair: Pair) -> None:
    left, _ = pair
    left.shutdown(socket.SHUT_WR)

    with pytest.raises(LoadFailed, match="sending"):
        generator.drive([lane(pair, 1, window=1)], seconds_max=30.0)


def test_a_refused_connection_is_an_error_that_names_the_reason(generator: Generator) -> None:
    with socket.socket() as idle:
        idle.bind(("127.0.0.1", 0))
        port = idle.getsockname()[1]

        with (
            pytest.raises(LoadFailed, match="Connection refused"),
            generator.connections(port, [[Step(b"hello", b"welcome")]]),
        ):
            pass


def echoed(pair: Pair, messages: int, answer: bytes, window: int = 2) -> Lane:
    """A lane whose far end has said everything already."""
    left, right = pair
    right.sendall(answer)
    return Lane(
        sender=left.fileno(),
        receivers=[],
        frames=b"publish" * messages,
        messages=messages,
        window=window,
        refill_at=window - 1,
        answer=b"kept",
    )


def test_answers_are_counted_on_the_senders_own_socket(generator: Generator, pair: Pair) -> None:
    done = generator.drive([echoed(pair, 2, b"<kept><kept>")], seconds_max=30.0)

    assert (done.answers, done.deliveries) == (2, 0)
    assert len(done.lanes[0].answered_s) == 2
    assert pair[1].recv(100) == b"publishpublish"


def test_the_window_is_in_answers_where_there_are_some(generator: Generator, pair: Pair) -> None:
    done = generator.drive([echoed(pair, 9, b"kept", window=2)], seconds_max=0.1)

    assert done.answers == 1
    assert pair[1].recv(100) == b"publish" * 3


def test_more_answers_than_messages_are_noticed(generator: Generator, pair: Pair) -> None:
    with pytest.raises(LoadFailed, match="Protocol error"):
        generator.drive([echoed(pair, 2, b"keptkeptkept")], seconds_max=30.0)


def test_a_refusal_instead_of_answers_is_told(generator: Generator, pair: Pair) -> None:
    with pytest.raises(LoadFailed, match="storage_full"):
        generator.drive([echoed(pair, 2, b"storage_full")], seconds_max=0.1)


def test_a_run_waits_for_answers_and_for_copies(generator: Generator, pair: Pair) -> None:
    left, right = pair
    far, near = socket.socketpair()
    with far, near:
        right.sendall(b"kept")
        both = Lane(
            sender=left.fileno(),
            receivers=[near.fileno()],
            frames=b"publish",
            messages=1,
            window=1,
            answer=b"kept",
        )

        waiting = generator.drive([both], seconds_max=0.1)
        far.sendall(MARKER)
        right.sendall(b"kept")
        done = generator.drive([both], seconds_max=30.0)

    assert (waiting.answers, waiting.deliveries) == (1, 0)
    assert (done.answers, done.deliveries) == (1, 1)
    assert done.seconds < 30.0


def test_every_copy_is_acknowledged_with_the_frame_of_its_turn(
    generator: Generator, pair: Pair
) -> None:
    consumer, server = pair
    server.sendall(MARKER + b"..." + MARKER)
    taken = Lane(
        sender=consumer.fileno(),
        receivers=[consumer.fileno()],
        frames=b"",
        messages=3,
        window=3,
        acks=b"ack1ack2ack3",
    )

    done = generator.drive([taken], seconds_max=0.1)

    assert done.deliveries == 2
    assert server.recv(100) == b"ack1ack2"


def test_acks_the_kernel_did_not_take_at_once_follow(generator: Generator, pair: Pair) -> None:
    consumer, server = pair
    consumer.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4_096)
    copies, ack = 2_000, b"%0100d"
    read: list[bytes] = []

    def take_all() -> None:
        while sum(map(len, read)) < copies * 100:
            read.append(server.recv(65_536))

    acks = b"".join(ack % number for number in range(copies))
    taken = Lane(
        sender=consumer.fileno(),
        receivers=[consumer.fileno()],
        frames=b"",
        messages=copies + 1,
        window=copies + 1,
        acks=acks + ack % copies,
    )
    server.sendall(MARKER * copies)
    reader = threading.Thread(target=take_all)
    reader.start()

    done = generator.drive([taken], seconds_max=0.5)
    reader.join()

    assert done.deliveries == copies
    assert b"".join(read) == acks
