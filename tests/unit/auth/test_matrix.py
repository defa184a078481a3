"""The table of permissions against a hub: every request with every verb, alone and as declared."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from signalhub.auth.matrix import REQUESTS, VERBS, Access, page
from tests.support.memory.hosts import A, B
from tests.support.memory.shell import HELLO, Message, Peer
from tests.support.memory.tokens import admitted, guarded, token

PAGE = Path(__file__).parents[3] / "docs" / "operate" / "permissions.md"

Grants = dict[str, list[str]]
ALL: Grants = {verb: ["*"] for verb in VERBS}
NOTHING: Grants = {verb: [] for verb in VERBS}
# The other verbs can matter in tokens that do not mention them.
OLDER = ("send", "subscribe", "create")

ORDERS, MINE = "orders", "mine"
BILLING: Message = {"topic": ORDERS, "subscription": "billing"}
OWN: Message = {"topic": MINE, "subscription": "own"}
LETTERS = {"topic": "orders.dlq", "all": True}
ZOE, EVE = "@(people/zoe)", "@(people/eve)"
JOB = {"job": "j", "until": {"epoch": 1, "offset": 9}}
COPIES = {"messages": [{"epoch": 1, "offset": 1, "id": "o", "type": "note"}]}
OF_HOST: dict[str, Any] = {"capabilities": ["actor-host", "actor:order"], "durable": True}


class Scene:
    """What others have made, and somebody whose permissions are tried."""

    def __init__(self, grants: Grants) -> None:
        self.shell = guarded()
        self.grants = grants
        self.ann = admitted(self.shell, "people/ann", ALL)

    def eve(self) -> Peer:
        return admitted(self.shell, "people/eve", self.grants)

    def later(self, before: Callable[[Peer], object]) -> Peer:
        """Somebody who did something while everything was permitted."""
        eve = admitted(self.shell, "people/eve", ALL)
        before(eve)
        metadata = HELLO | {"authToken": token(self.shell, "people/eve", self.grants)}
        assert eve.hello(EVE, metadata=metadata)["type"] == "hub:connected"
        return eve

    def topic(self) -> Peer:
        """Ann has a topic with a subscription and a dead letter."""
        fine(self.ann.ask("hub:topic_create", {"topic": ORDERS, "poison": "dead_letter"}))
        fine(self.ann.ask("hub:subscribe", BILLING | {"mode": "shared", "consumer": "ann"}))
        fine(self.ann.ask("hub:publish", {"topic": ORDERS, "type": "note", "durable": True}))
        fine(self.ann.ask("hub:term", BILLING | {"seq": 1}))
        return self.eve()

    def owned(self) -> Peer:
        def make(eve: Peer) -> None:
            fine(eve.ask("hub:topic_create", {"topic": MINE}))
            fine(eve.ask("hub:subscribe", OWN | {"mode": "shared"}))

        return self.later(make)

    def zoe(self) -> Peer:
        fine(admitted(self.shell, "people/zoe", ALL).register(durable=True))
        return self.eve()

    def hosts(self) -> Peer:
        """Two hosts; on the first lives an actor."""
        for address in (A, B):
            host = admitted(self.shell, address[2:-1], ALL)
            fine(host.register(**OF_HOST))
            if address == A:
                self.host = host
                fine(host.ask("hub:place", {"actors": ["order/17"], "host": A}))
        return self.eve()


def fine(reply: Message) -> Message:
    assert reply["type"] != "hub:error", reply
    return reply


def may(reply: Message, *denials: str) -> bool:
    """Was it done? If not, then for lack of permission."""
    if reply["type"] != "hub:error":
        return True
    assert reply["payload"]["code"] in (denials or ("unauthorized",)), reply
    return False


def may_place(reply: Message) -> bool:
    if not may(reply):
        return False
    unplaced = reply["payload"]["unplaced"]
    assert {one["code"] for one in unplaced} <= {"unauthorized"}, reply
    return not unplaced


def has_host(scene: Scene) -> Peer | None:
    """Somebody who is a host, if that is permitted."""
    eve = scene.hosts()
    return eve if may(eve.register(**OF_HOST)) else None


def claims(scene: Scene) -> bool:
    eve = has_host(scene)
    return eve is not None and may_place(eve.ask("hub:place", {"actors": ["order/9"], "host": EVE}))


def moves(scene: Scene) -> bool:
    eve = has_host(scene)
    if eve is None or not may_place(eve.ask("hub:place", {"actors": ["order/9"], "host": EVE})):
        return False
    return may(eve.ask("hub:move", {"actor": "order/9", "token": 1, "to": B}))


def controls(scene: Scene, name: str) -> bool:
    command = {"id": "1", "name": name, "arguments": {}}
    given = {"to": A, "type": "actors:control", "data": command}
    return may(scene.hosts().ask("hub:send", given))


def sees_contents(scene: Scene) -> bool:
    if not controls(scene, "dead"):
        return False
    (command,) = [one for one in scene.host.take() if one["type"] == "actors:control"]
    return command["payload"].get("contents", True) is True


def changes_unowned(scene: Scene) -> bool:
    scene.topic()
    scene.shell.hub.streams.topics[ORDERS].subscriptions["billing"].definition.owner = ""
    given = BILLING | {"mode": "shared", "consumer": "eve", "maxDeliveries": 9}
    reply = scene.eve().ask("hub:subscribe", given)
    return may(reply) and "kept" not in reply["payload"]


def joins(scene: Scene, subscription: str, **options: Any) -> bool:
    payload = BILLING | {"subscription": subscription, "mode": "shared", "consumer": "eve"}
    return may(scene.topic().ask("hub:subscribe", payload | options))


def settles(request: str, **payload: Any) -> Callable[[Scene], bool]:
    def tried(scene: Scene) -> bool:
        scene.topic()
        joined = BILLING | {"mode": "shared", "consumer": "eve"}
        eve = scene.later(lambda eve: fine(eve.ask("hub:subscribe", joined)))
        return may(eve.ask(request, BILLING | {"seq": 1} | payload))

    return tried


def credits(scene: Scene) -> bool:
    scene.topic()
    found: list[str] = []

    def join(eve: Peer) -> None:
        reply = fine(eve.ask("hub:subscribe", BILLING | {"mode": "shared", "consumer": "eve"}))
        found.append(reply["payload"]["subscriptionId"])

    given = {"subscriptionId": "", "messages": 1}
    eve = scene.later(join)
    return may(eve.ask("hub:credit", given | {"subscriptionId": found[0]}), "not_a_consumer")


def redrives(scene: Scene) -> bool:
    reply = scene.topic().ask("hub:redrive", LETTERS)
    return may(reply) and bool(reply["payload"]["count"])


def edits(scene: Scene) -> bool:
    chosen = {"topic": "orders.dlq", "seqs": [1], "edits": {"1": {"data": 2}}}
    reply = scene.topic().ask("hub:redrive", chosen)
    return may(reply) and bool(reply["payload"]["count"])


def previews(scene: Scene) -> bool:
    reply = scene.topic().ask("hub:redrive", LETTERS | {"dryRun": True})
    return may(reply) and bool(reply["payload"]["count"]) and "byReason" in reply["payload"]


def replays(topic: str) -> Callable[[Scene], bool]:
    def tried(scene: Scene) -> bool:
        return may(scene.topic().request("hub:replay", {"topic": topic, "fromSeq": 1})[-1])

    return tried


def renews(scene: Scene) -> bool:
    eve = scene.eve()
    fine(eve.register())
    return may(eve.ask("hub:renew"))


def refreshes(scene: Scene) -> bool:
    fresh = token(scene.shell, "people/eve", scene.grants)
    return may(scene.eve().ask("hub:refresh_token", {"token": fresh}))


def sees(reply: Message, many: str, member: str, wanted: str) -> bool:
    return may(reply) and wanted in [one[member] for one in reply["payload"][many]]


def on_topic(request: str, **payload: Any) -> Callable[[Scene], bool]:
    return lambda scene: may(scene.topic().ask(request, {"topic": ORDERS} | payload))


def on_billing(request: str, **payload: Any) -> Callable[[Scene], bool]:
    return lambda scene: may(scene.topic().ask(request, BILLING | payload))


def on_own(request: str, **payload: Any) -> Callable[[Scene], bool]:
    return lambda scene: may(scene.owned().ask(request, OWN | payload))


def plainly(request: str, payload: object = None) -> Callable[[Scene], bool]:
    return lambda scene: may(scene.eve().ask(request, payload))


def as_host(scene: Scene) -> bool:
    return has_host(scene) is not None


def with_zoe(request: str, payload: Message, **members: Any) -> Callable[[Scene], bool]:
    return lambda scene: may(scene.zoe().ask(request, payload, **members))


def republishes(scene: Scene) -> bool:
    return may(scene.topic().ask("hub:republish", JOB | COPIES | {"to": {"topic": ORDERS}}))


NOTE = {"to": ZOE, "type": "note"}
BATCH = {"to": A, "type": "actors:batch", "data": {"messages": []}}
# How each row of the table is tried, in the order of the table.
TRIALS: dict[str, list[Callable[[Scene], bool]]] = {
    "hub:connect": [lambda scene: bool(scene.eve())],
    "hub:heartbeat": [plainly("hub:heartbeat")],
    "hub:disconnect": [plainly("hub:disconnect")],
    "hub:refresh_token": [refreshes],
    "hub:queue_stats": [plainly("hub:queue_stats")],
    "hub:metrics": [plainly("hub:metrics")],
    "hub:limits": [plainly("hub:limits")],
    "hub:list_sessions": [plainly("hub:list_sessions")],
    "hub:list_jobs": [plainly("hub:list_jobs")],
    "hub:close_session": [
        lambda scene: may(scene.eve().ask("hub:close_session", {"sessionId": scene.ann.session.id}))
    ],
    "hub:register": [
        lambda scene: may(scene.eve().register()),
        lambda scene: may(scene.eve().register("@(x/y)")),
        as_host,
    ],
    "hub:unregister": [plainly("hub:unregister", {"actorAddress": EVE})],
    "hub:renew": [renews],
    "hub:discover": [
        lambda scene: sees(
            scene.zoe().ask("hub:discover", {"pattern": "*"}), "actors", "address", ZOE
        )
    ],
    "hub:list_actors": [
        lambda scene: sees(scene.zoe().ask("hub:list_actors"), "actors", "actorAddress", ZOE)
    ],
    "hub:place": [
        lambda scene: may_place(scene.hosts().ask("hub:place", {"actors": ["order/17"]})),
        lambda scene: may_place(scene.hosts().ask("hub:place", {"actors": ["order/18"]})),
        claims,
    ],
    "hub:move": [moves],
    "hub:forget_place": [
        lambda scene: may(scene.hosts().ask("hub:forget_place", {"actor": "order/17"}))
    ],
    "hub:send": [
        with_zoe("hub:send", NOTE),
        with_zoe("hub:send", NOTE, sender="@(x/y)"),
        lambda scene: may(scene.hosts().ask("hub:send", BATCH)),
        lambda scene: controls(scene, "actors"),
        lambda scene: controls(scene, "purge"),
        sees_contents,
    ],
    "hub:broadcast": [plainly("hub:broadcast", {"type": "note"})],
    "hub:publish": [
        on_topic("hub:publish", type="note", durable=True),
        plainly("hub:publish", {"topic": "new", "type": "note", "durable": True}),
    ],
    "hub:subscribe": [
        on_topic("hub:subscribe"),
        lambda scene: joins(scene, "fresh"),
        lambda scene: joins(scene, "billing"),
        on_own("hub:subscribe"),
        lambda scene: joins(scene, "billing", maxDeliveries=9),
        changes_unowned,
        lambda scene: joins(scene, "billing", consumer="ann"),
        lambda scene: joins(scene, "fresh", deadLetter="letters"),
        lambda scene: joins(scene, "fresh", backlogMax=5, backlogPolicy="refuse"),
    ],
    "hub:unsubscribe": [on_topic("hub:unsubscribe")],
    "hub:topic_create": [
        plainly("hub:topic_create", {"topic": "new"}),
        plainly("hub:topic_create", {"topic": "new", "deadLetter": "letters"}),
    ],
    "hub:topic_update": [
        on_topic("hub:topic_update", poison="drop"),
        on_topic("hub:topic_update", deadLetter="letters"),
    ],
    "hub:topic_info": [on_topic("hub:topic_info")],
    "hub:list_topics": [
        lambda scene: sees(scene.topic().ask("hub:list_topics"), "topics", "topic", ORDERS)
    ],
    "hub:topic_delete": [on_topic("hub:topic_delete"), on_own("hub:topic_delete")],
    "hub:sub_info": [on_billing("hub:sub_info")],
    "hub:list_subs": [
        lambda scene: sees(scene.topic().ask("hub:list_subs"), "subscriptions", "topic", ORDERS)
    ],
    **{
        request: [on_billing(request, **payload), on_own(request, **payload)]
        for request, payload in (
            ("hub:sub_update", {"window": 3}),
            ("hub:sub_pause", {}),
            ("hub:sub_resume", {}),
            ("hub:sub_settle", {"seqs": [1], "verdict": "ack"}),
            ("hub:seek", {"to": "earliest"}),
            ("hub:sub_delete", {}),
        )
    },
    "hub:ack": [settles("hub:ack")],
    "hub:nack": [settles("hub:nack")],
    "hub:extend": [settles("hub:extend", ms=1_000)],
    "hub:term": [settles("hub:term")],
    "hub:credit": [credits],
    "hub:replay": [replays(ORDERS), replays("orders.dlq")],
    "hub:redrive": [redrives, edits, previews],
    "hub:purge": [
        on_topic("hub:purge", all=True),
        lambda scene: may(scene.owned().ask("hub:purge", {"topic": MINE, "all": True})),
    ],
    "hub:republish": [
        republishes,
        with_zoe("hub:republish", JOB | COPIES | {"to": {"actor": ZOE}}),
    ],
    "hub:erase": [plainly("hub:erase", {"actor": "@(people/bob)"})],
}


def rows() -> Iterator[tuple[Access, Callable[[Scene], bool]]]:
    """Every row of the table with the way to try it."""
    left = {request: iter(trials) for request, trials in TRIALS.items()}
    for access in REQUESTS:
        yield access, next(left[access.request])
    assert not [request for request, trials in left.items() if next(trials, None)]


def tokens(access: Access) -> Iterator[tuple[str, Grants, bool]]:
    """Tokens to try it with, and whether it should be allowed."""
    everything = frozenset(VERBS)
    yield "all", ALL, access.is_allowed(everything, are_others_denied=True)
    for given, are_denied in (
        *((frozenset[str](), are_denied) for are_denied in (True, False)),
        *((frozenset({verb}), True) for verb in VERBS),
        *((frozenset({verb}), False) for verb in OLDER),
        *((everything - {verb}, True) for need in access.alternatives for verb in need),
    ):
        grants = (NOTHING if are_denied else {}) | {verb: ["*"] for verb in given}
        name = f"{'+'.join(sorted(given)) or 'nothing'}{'' if are_denied else ', others absent'}"
        yield name, grants, access.is_allowed(given, are_others_denied=are_denied)
    for need in access.needs:
        exact = {one.partition(":")[0]: [one.partition(":")[2] or "*"] for one in need.split(" + ")}
        yield f"exactly {need}", NOTHING | exact, True
        if "admin" in exact:
            yield f"{need}, but for another operation", NOTHING | exact | {"admin": ["x"]}, False


def test_every_request_of_the_hub_is_in_the_table() -> None:
    declared = {access.request for access in REQUESTS}

    assert declared == set(guarded().hub.handlers), "declare it in signalhub/auth/matrix.py"
    assert declared == set(TRIALS), "and say here how to try it"


@pytest.mark.parametrize(
    ("access", "trial"), [*rows()], ids=[f"{one.request} {one.when}" for one in REQUESTS]
)
def test_a_request_is_allowed_exactly_with_what_the_table_says(
    access: Access, trial: Callable[[Scene], bool]
) -> None:
    for name, grants, is_allowed in tokens(access):
        assert trial(Scene(grants)) == is_allowed, f"{access.request} {access.when}, with {name}"


def test_the_page_is_made_from_the_table() -> None:
    command = "python -m signalhub.auth.matrix > docs/operate/permissions.md"
    assert PAGE.read_text() == page(), command
