"""Messages from the lake appended again: each once, whatever happens to the replay."""

from __future__ import annotations

from typing import Any

import pytest

from signalhub.core import refusals, replay
from signalhub.core.replay import Replays
from signalhub.settings.model import MailboxSettings, Settings
from signalhub.wire.entry import Kind
from tests.support.memory.shell import MemoryShell, Message, Peer
from tests.support.memory.tokens import admitted, guarded
from tests.support.memory.topics import (
    ACTOR,
    NAME,
    TOPIC,
    code_of,
    commit_all,
    create,
    publish,
    subscribe,
    subscription_of,
    topic_of,
)

JOB = "job-1"
UNTIL = {"epoch": 1, "offset": 1_000}


def original(offset: int, **members: Any) -> Message:
    given: Message = {
        "shard": 0,
        "epoch": 1,
        "offset": offset,
        "id": f"m-{offset}",
        "type": "order:new",
        "from": "@(shop/alice)",
        "key": f"k-{offset % 2}",
        "headers": {"source": "test"},
        "data": {"n": offset},
    }
    return given | members


def request(*messages: Message, **members: Any) -> Message:
    given: Message = {"job": JOB, "until": UNTIL, "to": {"topic": TOPIC}, "messages": [*messages]}
    return given | members


def republish(peer: Peer, *offsets: int, **members: Any) -> Message:
    reply = peer.ask("hub:republish", request(*map(original, offsets), **members))
    assert reply["type"] == "hub:republished", reply
    payload: Message = reply["payload"]
    return payload


def refusal(peer: Peer, *messages: Message, **members: Any) -> str:
    return code_of(peer.ask("hub:republish", request(*messages, **members)))


def scene(settings: Settings | None = None) -> tuple[MemoryShell, Peer, Peer]:
    """A topic, the operator who replays into it, and a reader of its subscription."""
    shell = MemoryShell(settings)
    operator, reader = shell.connect("@(a/operator)"), shell.connect("@(a/reader)")
    create(operator)
    subscribe(reader)
    reader.take()
    return shell, operator, reader


def numbers(peer: Peer) -> list[int]:
    """The contents of the copies that have arrived since the last call."""
    return [one["payload"]["n"] for one in peer.heard()]


def test_a_copy_says_what_it_is_a_copy_of_and_keeps_all_but_its_ttl() -> None:
    _, operator, reader = scene()

    payload = republish(operator, 7)

    position = {"shard": 0, "epoch": 1, "offset": 7}
    assert payload == {"job": JOB, "position": position, "appended": 1, "skipped": 0}
    (copy,) = reader.heard()
    assert (copy["from"], copy["type"]) == ("@(shop/alice)", "order:new")
    assert (copy["payload"], copy["ttl"]) == ({"n": 7}, None)
    metadata = copy["metadata"]
    assert "replay" not in metadata
    assert metadata["original"] == {"job": JOB, "id": "m-7"} | position
    assert (metadata["key"], metadata["headers"]) == ("k-1", {"source": "test"})


def test_a_copy_has_the_same_id_whenever_it_is_made_and_no_other_has_it() -> None:
    ids = {
        replay.copy_id_of(job, place)
        for job in ("a", "b")
        for place in ((0, 1, 1), (0, 1, 2), (0, 2, 1), (1, 1, 1))
    }

    assert len(ids) == 8
    assert replay.copy_id_of("a", (0, 1, 1)) in ids


def test_what_a_job_has_appended_is_skipped_and_counted() -> None:
    _, operator, reader = scene()
    assert republish(operator) == {"job": JOB, "position": None, "appended": 0, "skipped": 0}
    republish(operator, 1, 3)

    payload = republish(operator, 1, 2, 3, 4)

    assert (payload["appended"], payload["skipped"]) == (1, 3)
    # A request without messages tells how far the job is; another job starts at the beginning.
    position = {"shard": 0, "epoch": 1, "offset": 4}
    assert payload["position"] == republish(operator)["position"] == position
    republish(operator, 1, job="job-2")
    assert numbers(reader) == [1, 3, 4, 1]


def test_a_request_that_comes_again_before_the_first_is_on_disk_waits_for_it() -> None:
    shell, operator, reader = scene()
    shell.engine.is_prompt = False

    first = operator.request("hub:republish", request(original(1), original(2)))
    again = operator.request("hub:republish", request(original(1), original(2)))
    more = operator.request("hub:republish", request(original(2), original(3)))
    assert (first, again, more) == ([], [], [])
    commit_all(shell)

    answers = [one["payload"] for one in operator.take() if one["type"] == "hub:republished"]
    assert [(one["appended"], one["skipped"]) for one in answers] == [(2, 0), (0, 2), (1, 1)]
    assert [one["position"]["offset"] for one in answers] == [2, 2, 3]
    assert numbers(reader) == [1, 2, 3]


def test_what_the_log_refuses_is_appended_when_it_is_asked_for_again() -> None:
    shell, operator, reader = scene()
    shell.engine.is_prompt = False
    operator.request("hub:republish", request(original(1), original(2), original(3)))
    operator.request("hub:republish", request(original(1), original(2), original(3)))

    # The record that the job begins, and one copy.
    shell.engine.commit(2)
    shell.engine.refuse(refusals.storage_full())
    shell.engine.is_prompt = True
    codes = [one["payload"]["code"] for one in operator.take() if one["type"] == "hub:error"]
    payload = republish(operator, 1, 2, 3)

    assert codes == ["storage_full", "storage_full"]
    assert (payload["appended"], payload["skipped"]) == (2, 1)
    assert numbers(reader) == [1, 2, 3]


def test_nothing_is_written_down_about_replays_unless_they_are_on_disk() -> None:
    shell, operator, _ = scene()
    publish(operator)
    shell.perform(shell.hub.anchors.anchor(shell.engine.head, shell.now))
    assert Kind.REPLAYS_STAND not in {one.kind for one in shell.engine.entries}
    republish(operator, 1)
    shell.engine.is_prompt = False
    operator.request("hub:republish", request(original(2)))

    assert shell.hub.replayer.anchor(shell.engine.head, shell.now) == []


# Where copies go.


def test_a_replay_into_a_subscription_reaches_nobody_else_and_into_a_topic_everybody() -> None:
    shell, operator, reader = scene()
    other, listener = shell.connect("@(a/other)"), shell.connect("@(a/listener)")
    subscribe(other, name="other")
    listener.ask("hub:subscribe", {"topic": TOPIC})

    republish(operator, 1, 2, to={"topic": TOPIC, "subscription": NAME})
    assert numbers(reader) == [1, 2]
    assert numbers(other) == numbers(listener) == []
    assert subscription_of(shell, name="other").lag == 0
    republish(operator, 3)

    for peer in (reader, other, listener):
        (copy,) = peer.heard()
        assert copy["metadata"]["original"]["offset"] == 3
    # A copy that is read from its topic says what it is too.
    operator.take()
    operator.request("hub:replay", {"topic": TOPIC, "fromSeq": 3})
    (copy,) = operator.heard()
    assert copy["metadata"]["replay"] is True
    assert copy["metadata"]["original"]["offset"] == 3


def test_a_replay_to_an_actor_waits_in_its_mailbox() -> None:
    shell, operator, _ = scene()
    actor = shell.connect(ACTOR)
    actor.register(durable=True)
    actor.drop()

    republish(operator, 1, 2, to={"actor": ACTOR})
    actor = shell.connect(ACTOR)
    actor.register(durable=True)

    copies = actor.heard()
    assert [one["payload"]["n"] for one in copies] == [1, 2]
    assert copies[0]["metadata"]["original"]["id"] == "m-1"
    assert copies[0]["metadata"]["delivery"]["stream"] == ACTOR


def test_a_full_mailbox_lets_the_replay_wait() -> None:
    shell = MemoryShell(Settings(mailbox=MailboxSettings(limit=3)))
    operator, actor = shell.connect("@(a/operator)"), shell.connect(ACTOR)
    actor.register(durable=True)
    actor.drop()
    to = {"actor": ACTOR}
    republish(operator, 1, 2, to=to)

    full = operator.ask("hub:republish", request(original(3), original(4), to=to))
    shell.connect(ACTOR).register(durable=True)
    payload = republish(operator, 3, 4, to=to)

    assert code_of(full) == "queue_full"
    assert full["payload"]["retryable"] is True
    assert payload["appended"] == 2


# What is refused.


@pytest.mark.parametrize(
    ("to", "code"),
    [
        ({"topic": "unknown"}, "unknown_topic"),
        ({"topic": TOPIC, "subscription": "unknown"}, "unknown_subscription"),
        ({"actor": "@(a/reader)"}, "no_mailbox"),
        ({}, "internal_error"),
        ({"topic": TOPIC, "actor": ACTOR}, "internal_error"),
        ({"actor": ACTOR, "subscription": NAME}, "internal_error"),
    ],
)
def test_a_replay_goes_only_where_something_is_stored(to: Message, code: str) -> None:
    shell, operator, _ = scene()

    assert refusal(operator, original(1), to=to) == code
    assert not len(shell.hub.replays)


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ([original(2), original(1)], "order"),
        ([original(1), original(1)], "order"),
        ([original(1_001)], "until"),
        ([original(1, epoch=2)], "until"),
        ([original(1, type="hub:send")], "hub:"),
        ([original(1, type="call:request")], "calls"),
        ([original(1, **{"from": "alice"})], "address"),
        ([original(1, key="k" * 257)], "key"),
        ([original(1, headers={str(n): "" for n in range(65)})], "headers"),
        ([original(-1)], "offset"),
        ([original(n) for n in range(101)], "100"),
    ],
)
def test_one_message_that_cannot_be_sent_again_refuses_them_all(
    messages: list[Message], words: str
) -> None:
    shell, operator, _ = scene()

    reply = operator.ask("hub:republish", request(original(0), *messages))

    assert code_of(reply) == "internal_error"
    assert words in reply["payload"]["message"]
    assert topic_of(shell).head == 0


def test_many_messages_are_bounded_in_bytes_and_one_alone_only_by_the_hub() -> None:
    _, operator, reader = scene()
    large = {"n": 1, "text": "x" * replay.BYTES_MAX}

    both = refusal(operator, original(1), original(2, data=large))
    alone = operator.ask("hub:republish", request(original(2, data=large)))

    assert both == "message_too_large"
    assert alone["type"] == "hub:republished"
    assert numbers(reader) == [1]


def test_a_job_keeps_its_bound() -> None:
    _, operator, _ = scene()
    republish(operator, 1)

    reply = operator.ask("hub:republish", request(until={"epoch": 1, "offset": 2_000}))

    assert code_of(reply) == "replay_conflict"
    assert reply["payload"]["details"]["until"] == UNTIL


def test_a_job_that_may_have_been_forgotten_is_refused_and_never_repeated() -> None:
    shell, operator, reader = scene()
    Replays.__init__(shell.hub.replays, jobs_max=2)
    for number in (1, 2, 3):
        until = {"epoch": 1, "offset": 100 * number}
        republish(operator, 50, job=f"job-{number}", until=until)
    reader.take()

    old = refusal(operator, original(51), job="job-1", until={"epoch": 1, "offset": 100})
    known = republish(operator, 51, job="job-3", until={"epoch": 1, "offset": 300})

    assert old == "replay_forgotten"
    assert known["appended"] == 1
    assert numbers(reader) == [51]


@pytest.mark.parametrize(
    ("permissions", "to", "action"),
    [
        ({}, {"topic": TOPIC}, "admin"),
        ({"publish": ["*"], "create": ["*"]}, {"topic": TOPIC}, "admin"),
        ({"admin": ["erase"], "publish": ["*"]}, {"topic": TOPIC}, "admin"),
        ({"admin": ["republish"], "publish": ["other"]}, {"topic": TOPIC}, "publish"),
        ({"admin": ["*"], "publish": ["*"]}, {"actor": ACTOR}, "send"),
    ],
)
def test_a_token_permits_replays_and_what_they_amount_to(
    permissions: Message, to: Message, action: str
) -> None:
    shell = guarded()

    reply = admitted(shell, permissions=permissions).ask("hub:republish", request(to=to))

    assert code_of(reply) == "unauthorized"
    assert reply["payload"]["details"]["action"] == action


def test_a_token_that_permits_it_replays_in_the_name_of_others() -> None:
    shell = guarded()
    everything = {"create": ["*"], "publish": [TOPIC], "subscribe": ["*"], "admin": ["republish"]}
    operator = admitted(shell, permissions=everything)
    create(operator)
    subscribe(operator)

    assert republish(operator, 1)["appended"] == 1
    (copy,) = operator.heard()
    assert copy["from"] == "@(shop/alice)"


def test_nothing_is_replayed_while_the_log_has_stopped() -> None:
    shell, operator, _ = scene()
    shell.hub.storage.stop(refusals.storage_failed())

    assert refusal(operator, original(1)) == "storage_failed"
    assert not shell.hub.replays.on_its_way
