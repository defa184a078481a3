"""What servers are sent, and how what they answer is counted: the same for each, once, in time."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench import rooms
from bench.frames import TEXT, masked, masked_run
from bench.lake.sender import send_on_schedule
from bench.lake.site import CpuMeter
from bench.load import Generator, Lane, LoadFailed
from bench.machine import Cores
from bench.protocols import MARKER, Nats, SignalHub, SocketIo
from bench.servers import Server, running
from bench.stores import MESSAGE_BYTES, HubStore, JetStream, RedisStreams, StoreDialect
from bench.subjects import MeasurementFailed
from tests.support.socket.frames import unmask

_CORE = min(os.sched_getaffinity(0))
CORES = Cores(server=_CORE, generator=_CORE)


def messages_in(frames: bytes) -> list[bytes]:
    found = []
    while frames:
        _, payload, frames = unmask(frames)
        found.append(payload)
    return found


@pytest.mark.parametrize("size", [0, 3, 4, 125, 126, 65_535, 65_536, 70_001])
def test_a_masked_frame_reads_back_at_every_length_form(size: int) -> None:
    payload = bytes(index % 251 for index in range(size))

    assert unmask(masked(payload)) == (TEXT, payload, b"")
    assert masked_run([payload] * 2) == masked(payload) * 2


@pytest.mark.parametrize("dialect", [SignalHub(), Nats(), SocketIo()])
def test_every_server_gets_the_same_envelopes_each_with_one_marker(dialect: Any) -> None:
    found = messages_in(
        dialect.sends("s00001", "r00001", range(5, 8)) + dialect.publishes("s00001", range(2))
    )
    text = found[0][found[0].index(b'{"id"') : found[0].rindex(b"}") + 1]
    message = json.loads(text)

    assert [payload.count(MARKER) for payload in found] == [1] * 5
    assert len(set(found)) == 5
    assert (message["type"], message["ttl"]) == ("hub:send", 60_000)
    assert message["payload"]["to"] == "@(bench/r00001)"
    assert 350 <= len(text) <= 400
    assert len(dialect.subscribed(1, "f")) >= len(dialect.registered(1, "f")) > 1


@pytest.mark.parametrize(
    ("store", "kept", "refused"),
    [
        (
            HubStore(),
            b'{"id":"1","type":"hub:published","payload":{"topic":"t","seq":1}}',
            b'{"type":"hub:error","payload":{"code":"storage_full"}}',
        ),
        (RedisStreams(), b"$15\r\n1700000000000-0\r\n", b"-MISCONF Errors writing to the AOF\r\n"),
        (
            JetStream(),
            b'MSG _INBOX.p 1 30\r\n{"stream":"KEPT00000","seq":17}\r\n',
            b'MSG _INBOX.p 1 9\r\n{"error":{"code":503},"stream":"KEPT00000"}\r\n',
        ),
    ],
    ids=["hub", "redis", "jetstream"],
)
def test_every_store_gets_the_same_bytes_and_only_what_is_kept_counts(
    store: StoreDialect, kept: bytes, refused: bytes
) -> None:
    frames, single_frame = (store.publishes("p00001", 0, range(n)) for n in (6, 1))
    (ours,) = messages_in(HubStore().publishes("p00001", 0, range(1)))
    found = ours
    if not isinstance(store, HubStore):
        match = re.search(rb'\{"id".*"signature":null\}', single_frame)
        assert match is not None
        found = match[0]

    changing = rb'"timestamp":\d+'
    assert re.sub(changing, b"", found) == re.sub(changing, b"", ours)
    assert (len(ours), len(frames)) == (MESSAGE_BYTES, 6 * len(single_frame))
    assert (kept.count(store.published), refused.count(store.published)) == (1, 0)


def test_acks_name_positions_and_only_full_pages_and_quoted_sizes_count() -> None:
    acks = messages_in(HubStore().acks("c1", 2, range(9, 11)))
    page = rooms.fetched(29, 100)

    assert [json.loads(one)["payload"]["seq"] for one in acks] == [9, 10]
    ack = JetStream().acks("c00001", 2, range(9, 10))
    assert ack == b"PUB $JS.ACK.KEPT00002.c00001.1.000000009.000000009.0.0 4\r\n+ACK\r\n"
    assert b'{"messages":[],"nextSeq":129}'.count(page) == 1
    for other in (b"128}", b"1290}", b'129,"partial":true}'):
        assert page not in b'{"messages":[],"nextSeq":' + other
    for size, chars in ((256, 342), (1_024, 1_366), (96, 128)):
        text = rooms.ciphertext(size)
        assert (len(text), text.count(MARKER.decode())) == (chars, 1)


needs_compiler = pytest.mark.skipif(
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


def lane(pair: Pair, messages: int, frame: bytes = MARKER, **options: Any) -> Lane:
    left, right = pair
    ends: dict[str, Any] = {"receivers": [right.fileno()], "window": 10, "refill_at": 5}
    ends |= options
    return Lane(sender=left.fileno(), frames=frame * messages, messages=messages, **ends)


@needs_compiler
class TestGenerator:
    def test_markers_are_counted_once_wherever_reads_cut_them(
        self, generator: Generator, pair: Pair
    ) -> None:
        # The window is larger than the kernel's buffers, so frames are cut where those were full.
        frame = MARKER[:-1] + b"?" + MARKER + MARKER[1:]
        wide = lane(pair, 20_000, frame, window=10_000, refill_at=5_000)

        done = generator.drive([wide], seconds_max=30.0)

        assert (done.deliveries, len(done.lanes[0].took_s)) == (20_000, 20_000)

    def test_a_message_is_complete_when_its_last_copy_arrived(
        self, generator: Generator, pair: Pair
    ) -> None:
        far, near = socket.socketpair()
        with far, near:
            far.sendall(MARKER)
            both = [pair[1].fileno(), near.fileno()]
            done = generator.drive([lane(pair, 2, receivers=both)], seconds_max=0.2)

        assert (done.deliveries, len(done.lanes[0].took_s)) == (3, 1)

    def test_scheduled_messages_leave_at_their_times_and_background_is_not_awaited(
        self, generator: Generator, pair: Pair
    ) -> None:
        silent = socket.socketpair()
        with silent[0], silent[1]:
            background = lane(silent, 1, b"no marker", is_background=True)
            due = generator.drive([lane(pair, 50, window=0)], seconds_max=30.0, rate_s=1_000.0)
            done = generator.drive([lane(pair, 100), background], seconds_max=30.0)

        assert (due.deliveries, due.seconds >= 0.049) == (50, True)
        assert [each.deliveries for each in done.lanes] == [100, 0]
        assert done.seconds < 30.0

    @pytest.mark.parametrize(
        ("answer", "answers", "sent"), [(b"<kept><kept>", 2, 2), (b"kept", 1, 3)]
    )
    def test_answers_are_counted_and_open_the_window(
        self, generator: Generator, pair: Pair, answer: bytes, answers: int, sent: int
    ) -> None:
        messages = 2 if answers == 2 else 9
        pair[1].sendall(answer)
        asking = lane(
            pair, messages, b"publish", receivers=[], window=2, refill_at=1, answer=b"kept"
        )

        done = generator.drive([asking], seconds_max=0.1 if answers == 1 else 30.0)

        assert (done.answers, done.deliveries) == (answers, 0)
        assert pair[1].recv(100) == b"publish" * sent

    @pytest.mark.parametrize(
        ("frame", "answer", "words"),
        [
            (MARKER + MARKER, b"", "Protocol error"),
            (b"x", b"keptkeptkept", "Protocol error"),
            (b"x", b"storage_full", "storage_full"),
        ],
    )
    def test_a_copy_or_answer_too_many_and_a_refusal_end_the_run(
        self, generator: Generator, pair: Pair, frame: bytes, answer: bytes, words: str
    ) -> None:
        pair[1].sendall(answer)
        options = {"receivers": [], "answer": b"kept"} if answer else {}

        with pytest.raises(LoadFailed, match=words):
            generator.drive([lane(pair, 2, frame, **options)], seconds_max=0.3)

    def test_every_copy_is_acknowledged_with_the_frame_of_its_turn(
        self, generator: Generator, pair: Pair
    ) -> None:
        consumer, server = pair
        consumer.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4_096)
        copies, read = 2_000, bytearray()

        def take_all() -> None:
            while len(read) < copies * 100:
                read.extend(server.recv(65_536))

        acks = b"".join(b"%0100d" % number for number in range(copies + 1))
        ends = {"receivers": [consumer.fileno()], "window": copies + 1, "acks": acks}
        taken = lane((consumer, consumer), copies + 1, b"", **ends)
        server.sendall(MARKER * copies)
        reader = threading.Thread(target=take_all)
        reader.start()
        done = generator.drive([taken], seconds_max=0.5)
        reader.join()

        assert done.deliveries == copies
        assert read == acks[:-100]


def test_a_killed_server_starts_again_on_its_data() -> None:
    program = (
        "import pathlib, signal, sys; starts = pathlib.Path(sys.argv[1], 'starts');"
        "starts.open('a').write('x'); print(f'port={len(starts.read_text())}', flush=True);"
        "signal.pause()"
    )

    def command(folder: Path) -> list[str]:
        return [sys.executable, "-c", program, str(folder)]

    with running(Server(name="toy", command=command, ready=r"port=(\d+)"), CORES) as target:
        (first,) = target.pids
        target.kill()
        assert target.start() > 0
        assert target.port == 2
        assert not Path("/proc", str(first)).exists()

    assert not target.folder.exists()


def test_the_time_of_a_process_tree_is_counted_and_never_taken_back() -> None:
    burn = "import time\nwhile time.process_time() < 0.4: pass\nprint(flush=True)\ninput()"
    pipe = subprocess.PIPE
    with CpuMeter(os.getpid()) as burnt:
        child = subprocess.Popen([sys.executable, "-c", burn], stdin=pipe, stdout=pipe)
        assert child.stdout is not None
        child.stdout.readline()
    with child, CpuMeter(os.getpid()) as idle:
        child.kill()
        child.wait()

    assert burnt.seconds > 0.3
    assert 0 <= idle.seconds < 0.3


def test_messages_leave_on_schedule_and_every_answer_is_counted_once() -> None:
    ours, theirs = socket.socketpair()

    def answer() -> None:
        left = 500
        while left:
            left -= len(theirs.recv(left))
        theirs.sendall(b"x<ke")
        theirs.sendall(b"pt>" + b"<kept>" * 49)
        theirs.close()

    with ours:
        thread = threading.Thread(target=answer)
        thread.start()
        sent = send_on_schedule(ours.fileno(), b"0123456789" * 50, 50, 1_000.0, b"<kept>")
        thread.join()
        with pytest.raises((MeasurementFailed, BrokenPipeError)):
            send_on_schedule(ours.fileno(), b"0", 1, 1_000.0, b"<kept>")
    assert (len(sent.answered), len(sent.answered_s(40))) == (50, 10)
    assert sent.due[-1] - sent.due[0] == pytest.approx(0.049)
