"""Rulings 1–18, where they say more than the sections do.

Ruling 8 is in test_restart.py. Rulings 4 and 9 speak of durable actors, rulings 5 and 6 in part;
what they mean for actors that are not durable is here. Ruling 18 is the client's.
"""

from __future__ import annotations

import json

import pytest

from signalhub.testing import FakeClock
from tests.support.socket import frames
from tests.support.socket.peer import Peer, Rejected
from tests.support.socket.slow_readers import block, notes, stop_reading
from tests.support.socket.stage import InProcess, addresses, code_of, numbered, run_stage
from tests.support.socket.tokens import AUTH, token_for


@pytest.fixture
def stage(socket_stage: InProcess) -> InProcess:
    return socket_stage


# Everything a codec that decodes and encodes again would change.
RAW = (
    '{ "b":1.0,"a" : 1e2, "big":123456789012345678901234567890,"neg":-0.0,"dup":1,"dup":2,'
    '"esc":"\\u0041\\/\\ud83e\\udd89","deep":[[[[ ]]]] }'
)
SPEAKING = ("hub:send", "hub:publish", "hub:broadcast", "hub:subscribe")
# One payload that fits all four.
SPOKEN = {"to": "@(local/me)", "topic": "news", "type": "x"}


@pytest.mark.parametrize("type", ["hub:publish", "hub:broadcast"])
async def test_r1_all_copies_of_one_fan_out_share_one_id(stage: InProcess, type: str) -> None:
    names = [*numbered("n", 5), "@(another/address-of-different-length)"]
    sender, peers = await stage.connect(), [await stage.join(name) for name in names]
    for peer in peers:
        await peer.ask("hub:subscribe", {"topic": "news"})

    texts: list[list[str]] = []
    for _ in range(2):
        await sender.ask(type, {"topic": "news", "type": "x", "data": {"n": [1]}})
        texts.append([await peer.receive_text() for peer in peers])

    ids = [{json.loads(text)["id"] for text in copies} for copies in texts]
    assert [len(each) for each in ids] == [1, 1]
    assert ids[0] != ids[1]
    # Without the recipient they are the same bytes.
    for copies in texts:
        bare = {text.replace(json.dumps(json.loads(text)["to"]), "") for text in copies}
        assert len(bare) == 1


@pytest.mark.parametrize(
    ("type", "payload"),
    [
        ("hub:send", '{"to":"@(local/b)","type":"x","data":RAW}'),
        ("hub:publish", '{"topic":"news","type":"x","data":RAW}'),
        ("hub:broadcast", '{"type":"x","excludeSelf":true,"data":RAW}'),
    ],
)
async def test_r1_data_is_passed_through_byte_by_byte(
    stage: InProcess, type: str, payload: str
) -> None:
    sender, target = await stage.join("@(local/a)"), await stage.join("@(local/b)")
    await target.ask("hub:subscribe", {"topic": "news"})
    message = json.dumps(sender.envelope(type, "PAYLOAD"))

    sender.send_text(message.replace('"PAYLOAD"', payload.replace("RAW", RAW)))

    assert f'"payload":{RAW},' in await target.receive_text()


async def test_r1_metadata_of_a_send_is_passed_through_byte_by_byte(stage: InProcess) -> None:
    sender, target = await stage.connect(), await stage.join("@(local/b)")
    payload = {"to": "@(local/b)", "type": "x"}
    message = json.dumps(sender.envelope("hub:send", payload, metadata="METADATA"))

    sender.send_text(message.replace('"METADATA"', RAW))

    assert RAW.strip("{ }") in await target.receive_text()


async def test_r2_tells_and_asks_to_one_recipient_keep_their_order() -> None:
    async with run_stage(message_rate=0) as stage:
        sender, target = await stage.connect(), await stage.join("@(local/b)")

        for number in range(200):
            sender.tell("@(local/b)", "note", number, pattern="ask" if number % 3 else "tell")

        assert [(await target.receive("note"))["payload"] for _ in range(200)] == list(range(200))


async def test_r2_order_holds_for_a_blocked_recipient_too() -> None:
    async with run_stage(message_rate=0) as stage:
        sender, slow = await stage.join("@(local/a)"), await stop_reading(stage, "@(local/slow)")
        sent = await block(sender, "@(local/slow)")

        for number in range(sent, sent + 100):
            pattern = "ask" if number % 2 else "tell"
            sender.tell("@(local/slow)", "note", [number, ""], pattern=pattern)
        sender.tell("@(local/slow)", "last")
        slow.resume()

        assert await notes(slow, "last") == list(range(sent + 100))


async def test_r3_acknowledgement_follows_the_message_on_one_socket(stage: InProcess) -> None:
    peer = await stage.join("@(local/a)")

    for number in range(20):
        peer.tell("@(local/a)", "note", number, pattern="ask")

    seen = [(await peer.receive())["type"] for _ in range(40)]
    for index in range(1, 41):
        assert seen[:index].count("note") >= seen[:index].count("hub:delivery_ack")


async def test_r4_copy_that_repeats_nothing_says_nothing_of_repeats(stage: InProcess) -> None:
    sender, target = await stage.connect(), await stage.join("@(local/b)")

    await sender.ask_actor("@(local/b)", "note", 1)

    text = await target.receive_text()
    assert "redelivered" not in text
    assert "attempt" not in text


async def test_r5_ack_for_an_actor_that_is_not_durable_has_no_position(stage: InProcess) -> None:
    sender = await stage.join("@(local/a)")

    reply = await sender.ask_actor("@(local/a)", "note")

    assert set(reply["payload"]) == {"messageId", "deliveredAt", "status", "durability"}


async def test_r5_target_that_goes_before_its_bytes_leave_is_unknown_and_retryable() -> None:
    async with run_stage(message_rate=0) as stage:
        sender, slow = await stage.join("@(local/a)"), await stop_reading(stage, "@(local/slow)")
        await block(sender, "@(local/slow)")
        ask_id = sender.tell("@(local/slow)", "question", pattern="ask")
        await sender.nothing_more()

        slow.abort()

        reply = await sender.reply_to(ask_id)
        assert reply["type"] == "hub:unknown_actor"
        assert reply["payload"]["retryable"] is True
        back = await stage.join("@(local/slow)")
        again = await sender.ask_actor("@(local/slow)", "question", id=ask_id)
        assert again["type"] == "hub:delivery_ack"
        await back.receive("question")


async def test_r6_repeat_while_the_first_is_on_its_way_is_delivered_once() -> None:
    async with run_stage(message_rate=0) as stage:
        sender, slow = await stage.join("@(local/a)"), await stop_reading(stage, "@(local/slow)")
        await block(sender, "@(local/slow)")
        other = await stage.connect()

        for peer in (sender, sender, other):
            peer.tell("@(local/slow)", "question", id="q-1", pattern="ask", sender="@(local/a)")
        await sender.nothing_more()
        await other.nothing_more()
        slow.resume()

        for peer in (sender, other):
            assert (await peer.reply_to("q-1"))["type"] == "hub:delivery_ack"
        await notes(slow, "question")
        await slow.nothing_more()


async def test_r7_advertised_interval_is_a_third_of_the_default_lease(stage: InProcess) -> None:
    peer = await stage.dial()

    assert (await peer.connect())["payload"]["heartbeatInterval"] == 100_000


@pytest.mark.parametrize("type", ["hub:queue_stats", "hub:discover", "hub:send", "hub:publish"])
async def test_r7_every_accepted_frame_renews_the_leases_of_its_session(type: str) -> None:
    clock = FakeClock()
    async with run_stage(clock) as stage:
        peer, other = await stage.join("@(local/a)"), await stage.connect()

        for _ in range(4):
            clock.advance(200)
            await peer.ask(type, {"pattern": "*", "to": "@(no/body)", "topic": "t", "type": "x"})

        assert await addresses(other) == ["@(local/a)"]


async def test_r7_heartbeat_of_one_session_renews_no_other() -> None:
    clock = FakeClock()
    async with run_stage(clock) as stage:
        await stage.join("@(local/silent)")
        other = await stage.join("@(local/b)")
        clock.advance(200)
        await other.ask("hub:heartbeat", sender="@(local/silent)")
        clock.advance(101)

        assert await addresses(other) == ["@(local/b)"]


async def test_r7_hidden_actor_comes_back_with_its_next_frame() -> None:
    clock = FakeClock()
    async with run_stage(clock) as stage:
        peer, other = await stage.join("@(local/a)"), await stage.connect()
        clock.advance(301)
        assert (await other.ask_actor("@(local/a)", "x"))["type"] == "hub:unknown_actor"

        await peer.ask("hub:heartbeat")

        assert (await other.ask_actor("@(local/a)", "x"))["type"] == "hub:delivery_ack"


async def test_r10_invalid_utf8_is_closed_with_1007(stage: InProcess) -> None:
    peer = await stage.connect()

    peer.send_text(b'{"type":"\xff"}')

    assert await peer.until_closed() == 1007


async def guest(stage: InProcess, **permissions: list[str]) -> Peer:
    """An authenticated session of `@(local/me)` that may do everything but register strangers."""
    granted = {"send": ["*"], "broadcast": ["*"], "publish": ["*"], "subscribe": ["*"]}
    token = token_for("@(local/me)", stage.clock, permissions=granted | permissions)
    return await stage.connect("@(local/me)", authToken=token)


@pytest.mark.parametrize("type", SPEAKING)
@pytest.mark.parametrize("pattern", ["tell", "ask"])
async def test_r11_speaking_as_somebody_else_is_unauthorized(type: str, pattern: str) -> None:
    async with run_stage(FakeClock(), auth=AUTH) as stage:
        peer = await guest(stage)
        await peer.register("@(local/me)")

        reply = await peer.ask(type, SPOKEN, sender="@(local/somebody)", pattern=pattern)

        assert code_of(reply) == "unauthorized"
        await peer.nothing_more()


@pytest.mark.parametrize("type", SPEAKING)
async def test_r11_identity_own_address_and_covered_address_may_speak(type: str) -> None:
    async with run_stage(FakeClock(), auth=AUTH) as stage:
        peer = await guest(stage, register=["local/worker-*"])
        await peer.register("@(local/worker-1)")
        await peer.register("@(local/me)")

        for sender in ("@(local/me)", "@(local/worker-1)", "@(local/worker-2)"):
            reply = await peer.ask(type, SPOKEN, sender=sender)
            assert reply["type"] != "hub:error", reply


async def test_r11_control_messages_ignore_the_sender() -> None:
    async with run_stage(FakeClock(), auth=AUTH) as stage:
        peer = await guest(stage)
        await peer.register("@(local/me)")
        stranger = "@(local/signal-hub-client)"

        for type, payload in (
            ("hub:heartbeat", None),
            ("hub:discover", {"pattern": "*"}),
            ("hub:list_actors", {}),
            ("hub:queue_stats", None),
            ("hub:metrics", None),
            ("hub:unsubscribe", {"topic": "news"}),
            ("hub:disconnect", None),
        ):
            reply = await peer.ask(type, payload, sender=stranger)
            assert reply["type"] != "hub:error", reply
        assert await peer.until_closed() == 1000


async def test_r11_address_a_new_token_does_not_cover_is_lost_with_the_old_one() -> None:
    async with run_stage(FakeClock(), auth=AUTH) as stage:
        worker = token_for("@(local/me)", stage.clock, permissions={"register": ["local/*"]})
        peer = await stage.connect("@(local/me)", authToken=worker)
        await peer.register("@(local/worker)")
        less = token_for("@(local/me)", stage.clock, permissions={"publish": ["*"]})
        await peer.connect(authToken=less)

        refused = await peer.ask("hub:publish", SPOKEN, sender="@(local/worker)")
        found = await peer.ask("hub:discover", {"pattern": "local/worker"})
        as_itself = await peer.ask("hub:publish", SPOKEN, sender="@(local/me)")

        assert code_of(refused) == "unauthorized"
        assert found["payload"]["actors"] == []
        assert as_itself["type"] == "hub:published"


async def test_r12_expired_tells_and_asks_are_counted() -> None:
    async with run_stage() as stage:
        peer = await stage.join("@(local/a)")

        peer.tell("@(local/a)", "x", ttl=1, timestamp=1)
        await peer.ask_actor("@(local/a)", "x", ttl=1, timestamp=1)

        assert await stage.metric("signal_hub_tells_expired_total") == 1
        assert await stage.metric("signal_hub_asks_expired_total") == 1


async def test_r15_message_limit_is_the_only_one(stage: InProcess) -> None:
    sender = await stage.join("@(local/a)")
    data = "x" * 1_000_000
    message = json.dumps(
        sender.envelope("hub:send", {"to": "@(local/a)", "type": "x", "data": data})
    )

    for piece in frames.fragments(message.encode(), *range(10_000, len(message), 10_000)):
        sender.write(piece)

    assert (await sender.receive("x"))["payload"] == data


async def test_r16_overlapping_wildcards_give_one_copy_per_address(stage: InProcess) -> None:
    peer = await stage.connect()
    for address in ("@(local/a)", "@(local/b)"):
        await peer.register(address)
        for topic in ("news/eu", "news/+", "news/#", "#", "+/eu"):
            await peer.ask("hub:subscribe", {"topic": topic})

    reply = await peer.ask("hub:publish", {"topic": "news/eu", "type": "x"})

    assert reply["payload"]["subscriberCount"] == 2
    heard = [(await peer.receive("x"))["to"] for _ in range(2)]
    assert heard == ["@(local/a)", "@(local/b)"]
    await peer.nothing_more()


LOOPBACK = [
    None,
    "http://localhost",
    "http://localhost:3000",
    "https://127.0.0.1:8443",
    "http://[::1]:8080",
    "http://LOCALHOST:1",
]
FOREIGN = [
    "https://example.org",
    "http://localhost.example.org",
    "http://127.0.0.1.example.org",
    "http://example.org:80",
    "null",
    "",
    "file://",
    "http://localhost@example.org",
    "http://user@localhost",
    "http://localhost/path",
    "ws://[::2]",
    "localhost",
]


async def answer_to(stage: InProcess, origin: str | None) -> int:
    """The status an upgrade from this origin gets."""
    try:
        await stage.dial(headers={} if origin is None else {"Origin": origin})
    except Rejected as rejected:
        return rejected.response.status
    return 101


@pytest.mark.parametrize("origin", LOOPBACK)
async def test_r17_empty_list_admits_loopback_and_clients_without_origin(
    stage: InProcess, origin: str | None
) -> None:
    assert await answer_to(stage, origin) == 101


@pytest.mark.parametrize("origin", FOREIGN)
async def test_r17_empty_list_refuses_all_others(stage: InProcess, origin: str) -> None:
    assert await answer_to(stage, origin) == 403


async def test_r17_list_admits_its_members_only() -> None:
    origins = ["https://app.example.org", "http://intra:8080"]
    async with run_stage(origins=origins) as stage:
        answers = {
            origin: await answer_to(stage, origin)
            for origin in (
                None,
                "https://app.example.org",
                "https://app.example.org:443",
                "http://intra:8080",
                "http://app.example.org",
                "https://app.example.org:444",
                "https://evil.app.example.org",
                "http://localhost:3000",
            )
        }

    assert list(answers.values()) == [101, 101, 101, 101, 403, 403, 403, 403]


async def test_r17_refused_origin_costs_nothing_and_health_is_open(stage: InProcess) -> None:
    assert await answer_to(stage, "https://example.org") == 403
    answer = await stage.get("/health", headers={"Origin": "https://example.org"})

    assert answer.status == 200
