"""What the load generator says to servers that keep messages."""

from __future__ import annotations

import json
import re

import pytest

from bench.protocols import MARKER
from bench.stores import (
    MESSAGE_BYTES,
    ConsumedDialect,
    HubStore,
    JetStream,
    RedisStreams,
    StoreDialect,
    publications,
)
from tests.support.socket.frames import unmask

STORES = (HubStore(), RedisStreams(), JetStream())
CONSUMED = (HubStore(), JetStream())


def hub_messages(frames: bytes) -> list[dict[str, object]]:
    found = []
    while frames:
        _, payload, frames = unmask(frames)
        found.append(json.loads(payload))
    return found


def test_a_publication_has_exactly_the_size_that_is_quoted() -> None:
    found = publications("p00001", 3, range(10, 13))

    assert [len(each) for each in found] == [MESSAGE_BYTES] * 3
    message = json.loads(found[0])
    assert message["type"] == "hub:publish"
    assert message["payload"]["topic"] == "bench/kept-00003"
    assert message["payload"]["durable"] is True
    assert message["payload"]["data"]["mark"] == MARKER.decode()
    assert (message["pattern"], message["ttl"]) == ("ask", None)


def test_the_hub_can_be_given_larger_messages() -> None:
    _, payload, rest = unmask(HubStore(message_bytes=535).publishes("p00001", 0, range(1)))

    assert (len(payload), rest) == (535, b"")


@pytest.mark.parametrize("store", [*STORES, JetStream(batch=2)])
def test_publications_of_one_lane_have_one_length(store: StoreDialect) -> None:
    frames = store.publishes("p00001", 0, range(6))

    assert len(frames) % 6 == 0
    first = store.publishes("p00001", 0, range(store.batch))
    assert len(first) == len(frames) // 6 * store.batch


@pytest.mark.parametrize("store", [RedisStreams(), JetStream()])
def test_every_store_gets_the_bytes_the_hub_gets(store: StoreDialect) -> None:
    _, sent_to_hub, _ = unmask(HubStore().publishes("p00001", 0, range(1)))
    pattern = rb'"timestamp":\d+'

    found = re.search(rb'\{"id".*"signature":null\}', store.publishes("p00001", 0, range(1)))

    assert found is not None
    assert re.sub(pattern, b"", found[0]) == re.sub(pattern, b"", sent_to_hub)


@pytest.mark.parametrize(
    ("store", "answer"),
    [
        (HubStore(), b'{"id":"1","type":"hub:published","payload":{"topic":"t","seq":1}}'),
        (RedisStreams(), b"$15\r\n1700000000000-0\r\n"),
        (JetStream(), b'MSG _INBOX.p 1 30\r\n{"stream":"KEPT00000","seq":17}\r\n'),
    ],
)
def test_the_word_for_kept_stands_once_in_its_answer(store: StoreDialect, answer: bytes) -> None:
    assert answer.count(store.published) == 1


@pytest.mark.parametrize(
    ("store", "answer"),
    [
        (HubStore(), b'{"type":"hub:error","payload":{"code":"storage_full"}}'),
        (RedisStreams(), b"-MISCONF Errors writing to the AOF file\r\n"),
        (JetStream(), b'MSG _INBOX.p 1 9\r\n{"error":{"code":503},"stream":"KEPT00000"}\r\n'),
    ],
)
def test_a_refusal_does_not_count_as_kept(store: StoreDialect, answer: bytes) -> None:
    assert store.published not in answer


def test_redis_is_told_the_length_of_every_word() -> None:
    words = RedisStreams().publishes("p00001", 0, range(1)).split(b"\r\n")

    assert words[0] == b"*5"
    assert [b"$%d" % len(word) for word in words[2::2]] == words[1:-1:2]
    assert words[2] == b"XADD"


@pytest.mark.parametrize("store", CONSUMED)
def test_acks_of_one_lane_have_one_length(store: ConsumedDialect) -> None:
    frames = store.acks("c00001", 0, range(9, 12))

    assert len(frames) % 3 == 0
    assert len(store.acks("c00001", 0, range(10, 11))) == len(frames) // 3


def test_the_hub_reads_the_seq_of_an_ack_as_a_number() -> None:
    acks = hub_messages(HubStore().acks("c00001", 2, range(9, 11)))

    assert [ack["payload"] for ack in acks] == [
        {"topic": "bench/kept-00002", "subscription": "c00001", "seq": seq} for seq in (9, 10)
    ]
    assert {ack["pattern"] for ack in acks} == {"tell"}


def test_jetstream_finds_both_positions_in_the_subject_of_an_ack() -> None:
    ack = JetStream().acks("c00001", 2, range(9, 10))

    assert ack == b"PUB $JS.ACK.KEPT00002.c00001.1.000000009.000000009.0.0 4\r\n+ACK\r\n"


def test_a_consumer_of_the_hub_is_paused_until_it_starts() -> None:
    *_, subscribe, pause = HubStore().consumer(1, "c00001", 0, 256)
    (resume,) = hub_messages(HubStore().starts("c00001", 0))

    (joined,) = hub_messages(subscribe.request)
    (paused,) = hub_messages(pause.request)
    assert joined["payload"] == {
        "topic": "bench/kept-00000",
        "subscription": "c00001",
        "mode": "exclusive",
        "from": "earliest",
        "window": 256,
    }
    assert (paused["type"], resume["type"]) == ("hub:sub_pause", "hub:sub_resume")
    assert paused["payload"] == resume["payload"]


def test_a_consumer_of_jetstream_delivers_where_nobody_listens_until_it_starts() -> None:
    hello, create = JetStream().consumer(1, "c00001", 0, 256)
    start = JetStream().starts("c00001", 0)

    settings = json.loads(create.request.split(b"\r\n")[1])["config"]
    assert settings["ack_policy"] == "explicit"
    assert settings["max_ack_pending"] == 256
    assert settings["deliver_subject"].encode() not in hello.request
    assert start == b"SUB %b 2\r\n" % settings["deliver_subject"].encode()


def test_requests_to_jetstream_announce_their_exact_length() -> None:
    _, create = JetStream().prepared(1, 1)
    line, body, rest = create.request.split(b"\r\n")

    assert int(line.split()[-1]) == len(body)
    assert rest == b""


def test_only_the_last_message_of_a_batch_commits_and_wants_an_answer() -> None:
    frames = JetStream(batch=3).publishes("p00001", 0, range(6))

    commits = [match.start() for match in re.finditer(b"Nats-Batch-Commit: 1", frames)]
    assert len(commits) == 2
    assert frames.count(b"_INBOX.p00001") == 2
    assert re.findall(rb"Nats-Batch-Sequence: (\d+)", frames) == [b"1", b"2", b"3"] * 2
    assert len(set(re.findall(rb"Nats-Batch-Id: (\S+)", frames))) == 2


def test_a_batched_message_announces_its_headers_and_its_length() -> None:
    line, _, rest = JetStream(batch=1).publishes("p", 0, range(1)).partition(b"\r\n")
    assert line.startswith(b"PUB ")
    assert int(line.split()[-1]) == len(rest.removesuffix(b"\r\n"))

    line, _, rest = JetStream(batch=2).publishes("p", 0, range(2)).partition(b"\r\n")
    headers, size = map(int, line.split()[-2:])
    assert rest[:headers].endswith(b"\r\n\r\n")
    assert rest[size : size + 2] == b"\r\n"


def test_subscriptions_of_one_session_have_names_of_their_own() -> None:
    found = hub_messages(HubStore().subscribes("p00001", 4, ["s-1", "s-2"]))

    assert len({message["id"] for message in found}) == 2
    names = [message["payload"]["subscription"] for message in found]  # type: ignore[index]
    assert names == ["s-1", "s-2"]


def test_a_mailbox_belongs_to_a_durable_actor() -> None:
    *_, register = HubStore().mailbox(1, "t00001")

    (message,) = hub_messages(register.request)
    assert message["payload"] == {
        "actorAddress": "@(bench/t00001)",
        "capabilities": [],
        "durable": True,
    }


def test_asks_carry_the_marker_to_their_target() -> None:
    (message,) = hub_messages(HubStore().asks("p00001", "t00001", range(1)))

    assert (message["type"], message["pattern"]) == ("hub:send", "ask")
    assert message["payload"]["to"] == "@(bench/t00001)"  # type: ignore[index]
    assert message["payload"]["data"]["mark"] == MARKER.decode()  # type: ignore[index]
