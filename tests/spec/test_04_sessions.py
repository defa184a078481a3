"""Section 4: sessions, identity, duplicates and clean-up; their ids are in test_17_suite.py."""

from __future__ import annotations

import pytest

from signalhub.testing import FakeClock
from tests.support.peer import HUB, Closed, Peer, code_of
from tests.support.socket.stage import InProcess
from tests.support.stage import Stage, addresses, until_gone

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
    ("app:anything", None),
]


async def identity_of(peer: Peer) -> str:
    """Where the hub sends what is no reply: the identity of the session."""
    peer.send_text("{}")
    return (await peer.receive("hub:error"))["to"]


async def subscribers(peer: Peer, topic: str) -> int:
    """How many hear the topic."""
    reply = await peer.ask("hub:publish", {"topic": topic, "type": "note", "data": 1})
    return int(reply["payload"]["subscriberCount"])


@pytest.mark.also_over_sockets
async def test_4_2_nothing_but_connect_is_served_before_hello(stage: Stage) -> None:
    bystander, peer = await stage.join("@(local/b)"), await stage.dial()

    for type, payload in BEFORE_HELLO:
        for pattern in ("tell", "ask"):
            reply = await peer.ask(type, payload, pattern=pattern)
            assert code_of(reply) == "unauthorized", type

    assert (await peer.connect())["type"] == "hub:connected"
    assert await addresses(peer) == ["@(local/b)"]
    await bystander.nothing_more()


async def test_4_3_identity_is_the_sender_of_the_last_hello_until_something_is_registered(
    stage: Stage,
) -> None:
    peer = await stage.dial()
    names = []

    for name in ("@(local/first)", "@(local/second)"):
        peer.sender = name
        assert (await peer.connect())["metadata"]["actorIdentity"] == name
        names.append(await identity_of(peer))
    for address in ("@(local/a)", "@(local/b)", "@(local/a)"):
        await peer.register(address)
        names.append(await identity_of(peer))
    peer.sender = "@(local/third)"
    await peer.connect()
    names.append(await identity_of(peer))

    assert names == [
        *("@(local/first)", "@(local/second)"),
        *("@(local/a)", "@(local/b)", "@(local/a)"),
        "@(local/third)",
    ]
    assert await addresses(peer) == ["@(local/a)", "@(local/b)"]


async def test_4_3_session_that_leaves_its_address_goes_by_the_one_before(stage: Stage) -> None:
    peer = await stage.connect("@(local/hello)")
    for address in ("@(local/one)", "@(local/two)", "@(local/three)"):
        await peer.register(address)

    names = []
    for address in ("@(local/two)", "@(local/three)", "@(local/one)"):
        await peer.ask("hub:unregister", {"actorAddress": address})
        names.append(await identity_of(peer))
    await stage.join("@(local/three)")

    assert names == ["@(local/three)", "@(local/one)", "@(local/hello)"]
    # The next owner of the address does not evict this session.
    await peer.nothing_more()


async def test_4_3_subscription_belongs_to_the_sender_if_registered_here_else_to_the_identity(
    stage: Stage,
) -> None:
    peer = await stage.connect("@(local/hello)")
    await peer.ask("hub:subscribe", {"topic": "early"})
    for address in ("@(local/x)", "@(local/y)"):
        await peer.register(address)

    await peer.ask("hub:subscribe", {"topic": "own"}, sender="@(local/x)")
    await peer.ask("hub:subscribe", {"topic": "stranger"}, sender="@(never/registered)")

    for topic, heard_as in (
        ("early", "@(local/hello)"),
        ("own", "@(local/x)"),
        ("stranger", "@(local/y)"),
    ):
        assert await subscribers(peer, topic) == 1
        assert (await peer.receive("note"))["to"] == heard_as


@pytest.mark.also_over_sockets
async def test_4_4_last_registration_wins_and_the_old_session_is_told_before_the_close(
    stage: Stage,
) -> None:
    old, third = await stage.join("@(local/a)", "old"), await stage.join("@(local/b)")
    for peer in (old, third):
        await peer.ask("hub:subscribe", {"topic": "news"})
    by_name_only = await stage.connect("@(local/a)")
    # A hello alone evicts nobody.
    await old.nothing_more()
    await by_name_only.nothing_more()

    new = await stage.join("@(local/a)", "new")

    for peer in (old, by_name_only):
        notice = await peer.receive("hub:disconnect")
        assert (notice["from"], notice["to"]) == (HUB, "@(local/a)")
        assert notice["correlationId"] is None
        assert notice["payload"]["reason"] == "duplicate_connection"
        assert notice["payload"]["message"]
        assert await peer.until_closed() == 1000
        with pytest.raises(Closed):
            await peer.receive()
    found = await new.ask("hub:discover", {"pattern": "local/a"})
    assert found["payload"]["actors"] == [{"address": "@(local/a)", "capabilities": ["new"]}]
    # Its subscriptions are gone; those of others are not.
    assert await subscribers(new, "news") == 1
    assert (await third.receive("note"))["payload"] == 1


async def test_4_4_messages_go_to_the_new_session_at_once(timed: Stage) -> None:
    sender, old = await timed.connect(), await timed.join("@(local/a)")
    new = await timed.connect()

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
    socket_stage: InProcess,
) -> None:
    old = await socket_stage.join("@(local/a)")
    old.answers_close = False

    new = await socket_stage.join("@(local/a)")

    assert (await new.ask_actor("@(local/a)", "note"))["type"] == "hub:delivery_ack"
    assert await old.close_frame() == 1000
    # The hub does not wait for the answer forever either.
    await old.until_closed()


async def test_4_4_refused_registration_evicts_nobody(stage: Stage) -> None:
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


async def test_4_4_old_owner_that_goes_by_another_name_stays_but_has_lost_the_address(
    stage: Stage,
) -> None:
    owner, other = await stage.connect(), await stage.connect()
    token = (await owner.register("@(local/a)"))["payload"]["renewalToken"]
    await owner.register("@(local/b)")

    reply = await other.register("@(local/a)")

    assert reply["payload"]["version"] == 2
    owner.tell("@(local/a)", "note", 1)
    owner.tell("@(local/b)", "note", 2)
    assert (await other.receive("note"))["payload"] == 1
    assert (await owner.receive("note"))["payload"] == 2
    owner.send("hub:unregister", {"actorAddress": "@(local/a)"})
    refused = await owner.ask("hub:renew", {"renewalToken": token}, sender="@(local/a)")
    assert code_of(refused) == "unauthorized"
    await owner.ask("hub:disconnect")
    assert await addresses(other) == ["@(local/a)"]
    assert (await other.ask_actor("@(local/a)", "note"))["type"] == "hub:delivery_ack"


async def test_4_4_registering_again_on_the_same_session_is_no_duplicate(stage: Stage) -> None:
    peer = await stage.connect()
    first = (await peer.register("@(local/a)", "old"))["payload"]
    await peer.ask("hub:subscribe", {"topic": "news"})

    second = (await peer.register("@(local/a)", "new"))["payload"]
    await peer.register("@(local/b)")

    assert second["version"] == first["version"] + 1
    assert second["renewalToken"] != first["renewalToken"]
    assert await subscribers(peer, "news") == 1


@pytest.mark.also_over_sockets
@pytest.mark.parametrize("how", ["disconnect", "close", "hang_up", "abort"])
async def test_4_5_whoever_leaves_takes_registrations_and_subscriptions_along(
    stage: Stage, how: str
) -> None:
    stays, leaves = await stage.join("@(local/stays)"), await stage.connect()
    await leaves.ask("hub:subscribe", {"topic": "early"})
    for address in ("@(local/a)", "@(local/b)"):
        await leaves.register(address)
        await leaves.ask("hub:subscribe", {"topic": "news"})

    if how == "disconnect":
        await leaves.ask("hub:disconnect")
    else:
        getattr(leaves, how)()

    await until_gone(stays, "@(local/b)")
    assert await addresses(stays) == ["@(local/stays)"]
    assert [await subscribers(stays, topic) for topic in ("early", "news")] == [0, 0]
    assert (await stays.ask_actor("@(local/a)", "note"))["type"] == "hub:unknown_actor"


async def test_4_5_disconnect_followed_by_an_immediate_close_harms_nobody(
    socket_stage: InProcess,
) -> None:
    stays = await socket_stage.join("@(local/stays)")
    for number in range(10):
        leaves = await socket_stage.join(f"@(local/leaves-{number})")
        leaves.send("hub:disconnect")
        leaves.close()
        leaves.hang_up()

    for number in range(10):
        await until_gone(stays, f"@(local/leaves-{number})")
    assert await addresses(stays) == ["@(local/stays)"]


async def test_4_6_idle_session_is_never_dropped_and_hears_nothing(
    timed: Stage, clock: FakeClock
) -> None:
    idle = await timed.connect()

    for _ in range(3):
        await timed.pass_time(600)
    clock.advance(86_400)
    await timed.pass_time(1)

    await idle.nothing_more()
