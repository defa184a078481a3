"""Section 4: sessions, identity, duplicates and clean-up."""

from __future__ import annotations

import pytest

from signalhub.testing import FakeClock
from tests.support.socket.peer import HUB, Closed, Peer
from tests.support.socket.stage import InProcess, addresses, code_of, run_stage, until_gone


@pytest.fixture
def stage(socket_stage: InProcess) -> InProcess:
    return socket_stage


BEFORE_HELLO = [
    ("hub:heartbeat", {"timestamp": 1}),
    ("hub:register", {"actorAddress": "@(local/a)", "capabilities": ["x"]}),
    ("hub:unregister", {"actorAddress": "@(local/a)"}),
    ("hub:renew", {"renewalToken": "x"}),
    ("hub:discover", {"pattern": "*"}),
    ("hub:list_actors", {}),
    ("hub:send", {"to": "@(local/b)", "type": "note", "data": 1}),
    ("hub:broadcast", {"type": "note", "data": 1}),
    ("hub:subscribe", {"topic": "news"}),
    ("hub:unsubscribe", {"topic": "news"}),
    ("hub:publish", {"topic": "news", "type": "note", "data": 1}),
    ("hub:queue_stats", None),
    ("hub:metrics", None),
    ("hub:refresh_token", {"token": "x"}),
    ("hub:disconnect", None),
    ("hub:nonsense", None),
]


async def test_4_1_session_ids_are_unique_and_stay_with_their_socket(stage: InProcess) -> None:
    peers = [await stage.dial() for _ in range(5)]

    replies = [await peer.connect() for peer in peers]
    again = [await peer.connect() for peer in peers]

    ids = [reply["payload"]["sessionId"] for reply in replies]
    assert len(set(ids)) == 5
    assert all(session_id.startswith("session-") for session_id in ids)
    assert [reply["payload"]["sessionId"] for reply in again] == ids


@pytest.mark.parametrize(("type", "payload"), BEFORE_HELLO)
async def test_4_2_nothing_but_connect_is_served_before_hello(
    stage: InProcess, type: str, payload: object
) -> None:
    bystander = await stage.join("@(local/b)")
    peer = await stage.dial()

    for pattern in ("tell", "ask"):
        reply = await peer.ask(type, payload, pattern=pattern)
        assert code_of(reply) == "unauthorized"

    assert (await peer.connect())["type"] == "hub:connected"
    assert await addresses(peer) == ["@(local/b)"]
    await bystander.nothing_more()


async def test_4_2_refused_hello_leaves_the_socket_open_for_another(stage: InProcess) -> None:
    peer = await stage.dial()

    assert code_of(await peer.connect(protocolVersion="9.0.0")) == "version_mismatch"
    assert code_of(await peer.ask("hub:discover", {"pattern": "*"})) == "unauthorized"
    assert (await peer.connect())["type"] == "hub:connected"


async def test_4_3_identity_is_the_sender_of_the_hello(stage: InProcess) -> None:
    peer = await stage.dial()

    reply = await peer.ask(
        "hub:connect",
        metadata={"protocolVersion": "0.1.0", "capabilities": ["send"]},
        sender="@(browser/actor-7)",
    )

    assert reply["metadata"]["actorIdentity"] == "@(browser/actor-7)"


async def test_4_3_repeated_hello_resets_the_identity_and_keeps_the_session(
    stage: InProcess,
) -> None:
    peer = await stage.dial()
    peer.sender = "@(local/first)"
    first = await peer.connect()
    await peer.register("@(local/actor)")

    peer.sender = "@(local/second)"
    second = await peer.connect()

    assert second["payload"]["sessionId"] == first["payload"]["sessionId"]
    assert second["metadata"]["actorIdentity"] == "@(local/second)"
    assert await addresses(peer) == ["@(local/actor)"]


async def test_4_3_one_session_may_register_many_addresses(stage: InProcess) -> None:
    sender, peer = await stage.connect(), await stage.connect()
    names = [f"@(local/actor-{number})" for number in range(5)]
    for name in names:
        assert (await peer.register(name))["type"] == "hub:registered"

    for name in names:
        sender.tell(name, "note", name)

    for name in names:
        heard = await peer.receive("note")
        assert heard["to"] == heard["payload"] == name


async def test_4_3_subscription_belongs_to_the_sender_if_this_session_registered_it(
    stage: InProcess,
) -> None:
    peer = await stage.connect()
    await peer.register("@(local/x)")
    await peer.register("@(local/y)")

    await peer.ask("hub:subscribe", {"topic": "news"}, sender="@(local/x)")
    peer.send("hub:publish", {"topic": "news", "type": "note", "data": 1})

    assert (await peer.receive("note"))["to"] == "@(local/x)"


async def test_4_3_subscription_of_a_stranger_belongs_to_the_identity(stage: InProcess) -> None:
    peer = await stage.join("@(local/x)")

    await peer.ask("hub:subscribe", {"topic": "news"}, sender="@(never/registered)")
    peer.send("hub:publish", {"topic": "news", "type": "note", "data": 1})

    assert (await peer.receive("note"))["to"] == "@(local/x)"


async def test_4_3_sender_is_taken_as_sent_without_authentication(stage: InProcess) -> None:
    target, sender = await stage.join("@(local/b)"), await stage.join("@(local/a)")

    sender.tell("@(local/b)", "note", 1, sender="@(somebody/else)")

    assert (await target.receive("note"))["from"] == "@(somebody/else)"


async def test_4_4_last_registration_wins_and_the_old_session_is_told_before_the_close(
    stage: InProcess,
) -> None:
    old = await stage.join("@(local/a)", "old")

    new = await stage.join("@(local/a)", "new")

    notice = await old.receive("hub:disconnect")
    assert notice["from"] == HUB
    assert notice["to"] == "@(local/a)"
    assert notice["correlationId"] is None
    assert notice["payload"]["reason"] == "duplicate_connection"
    assert notice["payload"]["message"]
    assert await old.until_closed() == 1000
    with pytest.raises(Closed):
        await old.receive()
    reply = await new.ask("hub:discover", {"pattern": "*"})
    assert reply["payload"]["actors"] == [{"address": "@(local/a)", "capabilities": ["new"]}]


async def test_4_4_identity_from_the_hello_is_evicted_too(stage: InProcess) -> None:
    old = await stage.connect("@(local/a)")

    await stage.join("@(local/a)")

    assert (await old.receive("hub:disconnect"))["payload"]["reason"] == "duplicate_connection"
    assert await old.until_closed() == 1000


async def test_4_4_hello_alone_evicts_nobody(stage: InProcess) -> None:
    owner = await stage.join("@(local/a)")

    other = await stage.connect("@(local/a)")

    await owner.nothing_more()
    await other.nothing_more()


async def test_4_4_sessions_with_other_addresses_are_not_disturbed(stage: InProcess) -> None:
    first, second = await stage.join("@(local/b)"), await stage.join("@(local/c)")
    await first.ask("hub:subscribe", {"topic": "news"})
    old = await stage.join("@(local/a)")

    await stage.join("@(local/a)")
    await old.until_closed()

    second.tell("@(local/b)", "note", 1)
    second.send("hub:publish", {"topic": "news", "type": "news", "data": 2})
    assert (await first.receive("note"))["payload"] == 1
    assert (await first.receive("news"))["payload"] == 2


async def test_4_4_messages_go_to_the_new_session_at_once(stage: InProcess) -> None:
    sender, old = await stage.connect(), await stage.join("@(local/a)")
    new = await stage.connect()

    for number in range(50):
        sender.tell("@(local/a)", "note", number)
    await new.register("@(local/a)")
    for number in range(50, 100):
        sender.tell("@(local/a)", "note", number)
    assert (await sender.ask_actor("@(local/a)", "last"))["type"] == "hub:delivery_ack"

    await old.until_closed()
    heard = [*await notes_until(old, "hub:disconnect"), *await notes_until(new, "last")]
    assert heard == list(range(100))


async def notes_until(peer: Peer, type: str) -> list[int]:
    """The payloads of all notes before a message of `type`."""
    heard = []
    while (message := await peer.receive())["type"] != type:
        heard.append(message["payload"])
    return heard


async def test_4_4_old_socket_that_does_not_answer_the_close_delays_nobody(
    stage: InProcess,
) -> None:
    old = await stage.join("@(local/a)")
    old.answers_close = False

    new = await stage.join("@(local/a)")

    assert (await new.ask_actor("@(local/a)", "note"))["type"] == "hub:delivery_ack"
    assert await old.close_frame() == 1000
    # The hub does not wait for the answer for ever either.
    await old.until_closed()


async def test_4_4_refused_registration_evicts_nobody(stage: InProcess) -> None:
    owner, other = await stage.join("@(local/a)"), await stage.connect()

    for payload in (
        {"actorAddress": "@(local/a)"},
        {"actorAddress": "@(local/a)", "capabilities": "x"},
        {"actorAddress": "@(local/a)", "capabilities": ["x"], "ttlSeconds": "soon"},
        {"actorAddress": "@(local/a)", "capabilities": ["x"], "metadata": []},
    ):
        assert code_of(await other.ask("hub:register", payload)) == "internal_error"

    await owner.nothing_more()
    assert (await other.ask_actor("@(local/a)", "note"))["type"] == "hub:delivery_ack"


async def test_4_4_old_owner_that_goes_by_another_name_stays(stage: InProcess) -> None:
    owner, other = await stage.join("@(local/a)"), await stage.connect()
    await owner.register("@(local/b)")

    reply = await other.register("@(local/a)")

    assert reply["payload"]["version"] == 2
    await owner.nothing_more()
    owner.tell("@(local/a)", "note", 1)
    owner.tell("@(local/b)", "note", 2)
    assert (await other.receive("note"))["payload"] == 1
    assert (await owner.receive("note"))["payload"] == 2


async def test_4_4_old_owner_has_no_power_over_what_it_lost(stage: InProcess) -> None:
    owner, other = await stage.connect(), await stage.connect()
    token = (await owner.register("@(local/a)"))["payload"]["renewalToken"]
    await owner.register("@(local/b)")
    await other.register("@(local/a)")

    owner.send("hub:unregister", {"actorAddress": "@(local/a)"})
    refused = await owner.ask("hub:renew", {"renewalToken": token}, sender="@(local/a)")
    await owner.ask("hub:disconnect")

    assert code_of(refused) == "unauthorized"
    assert await addresses(other) == ["@(local/a)"]
    assert (await other.ask_actor("@(local/a)", "note"))["type"] == "hub:delivery_ack"


async def test_4_4_registering_again_on_the_same_session_is_no_duplicate(stage: InProcess) -> None:
    peer = await stage.connect()
    first = await peer.register("@(local/a)", "old")
    await peer.ask("hub:subscribe", {"topic": "news"})

    second = await peer.register("@(local/a)", "new")

    assert second["payload"]["version"] == first["payload"]["version"] + 1
    assert second["payload"]["renewalToken"] != first["payload"]["renewalToken"]
    peer.send("hub:publish", {"topic": "news", "type": "note", "data": 1})
    assert (await peer.receive("note"))["payload"] == 1


@pytest.mark.parametrize("how", ["disconnect", "close frame", "hang up", "abort"])
async def test_4_5_whoever_leaves_takes_registrations_and_subscriptions_along(
    stage: InProcess, how: str
) -> None:
    stays, leaves = await stage.join("@(local/stays)"), await stage.connect()
    await leaves.ask("hub:subscribe", {"topic": "early"})
    for address in ("@(local/a)", "@(local/b)"):
        await leaves.register(address)
        await leaves.ask("hub:subscribe", {"topic": "news"})

    match how:
        case "disconnect":
            await leaves.ask("hub:disconnect")
        case "close frame":
            leaves.close()
        case "hang up":
            leaves.hang_up()
        case _:
            leaves.abort()

    await until_gone(stays, "@(local/b)")
    assert await addresses(stays) == ["@(local/stays)"]
    for topic in ("early", "news"):
        reply = await stays.ask("hub:publish", {"topic": topic, "type": "note", "data": 1})
        assert reply["payload"]["subscriberCount"] == 0
    assert (await stays.ask_actor("@(local/a)", "note"))["type"] == "hub:unknown_actor"


async def test_4_5_disconnect_followed_by_an_immediate_close_harms_nobody(
    stage: InProcess,
) -> None:
    stays = await stage.join("@(local/stays)")
    for number in range(10):
        leaves = await stage.join(f"@(local/leaves-{number})")
        leaves.send("hub:disconnect")
        leaves.close()
        leaves.hang_up()

    for number in range(10):
        await until_gone(stays, f"@(local/leaves-{number})")
    assert await addresses(stays) == ["@(local/stays)"]


async def test_4_6_idle_session_is_never_dropped() -> None:
    clock = FakeClock()
    async with run_stage(clock, hello_s=0.2) as stage:
        idle = await stage.connect()
        # The hub's own timers run while this socket waits for its deadline.
        for _ in range(3):
            clock.advance(600)
            await (await stage.dial()).until_closed()

        await idle.nothing_more()
