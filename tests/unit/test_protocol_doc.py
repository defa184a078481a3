"""docs/protocol.md against the code: what a machine can check of it, and its examples replayed.

The example requests are sent to a real hub in the order of the page, and each must get the reply
the page promises; the exchanges at the end are replayed frame by frame. Values that the hub makes
up and texts for people are masked.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
from collections import defaultdict
from collections.abc import Iterator
from copy import deepcopy
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple, get_args

import pytest

import signalhub.core
from signalhub.auth.permissions import Permissions
from signalhub.core import refusals
from signalhub.core import requests as payloads
from signalhub.core.hub import UNLIMITED
from signalhub.core.limits.degradations import Degraded
from signalhub.log import log
from signalhub.settings.model import OutboundSettings, Settings
from signalhub.testing import FakeClock
from signalhub.wire import envelope
from signalhub.wire.errors import Code, Refusal
from signalhub.wire.names import HUB_ADDRESS
from tests.support.memory.shell import MemoryShell
from tests.support.socket.peer import Peer
from tests.support.socket.stage import eventually, run_stage

Frame = dict[str, Any]

TEXT = (Path(__file__).parents[2] / "docs" / "protocol.md").read_text()
MEMBERS = list(envelope.Envelope.__struct_encode_fields__)

CALLER = "@(shop/orders)"
NEIGHBOUR = "@(shop/billing)"
# What a hub makes up, and texts for people.
MASKED = frozenset(
    ("message", "renewalToken", "resolution", "sessionId", "sessionToken", "subscriptionId")
)


class Reply(NamedTuple):
    """A documented reply: its type, the members it has, and those it may have."""

    type: str
    members: set[str]
    optional: set[str]

    def fits(self, type: str, payload: Frame) -> bool:
        given = set(payload)
        return self.type == type and self.members <= given <= self.members | self.optional


class Request(NamedTuple):
    """A subsection about one request."""

    type: str
    prose: str
    examples: list[Frame]

    @property
    def reply(self) -> Reply:
        """The documented reply; some are described where another request is."""
        found = re.search(r"Reply: `(hub:\w+)`(?: `(\{[^}]*\})`|, as `(hub:\w+)`(.*))", self.prose)
        assert found, f"{self.type} says nothing about its reply"
        if found[2]:
            return Reply(found[1], *members(found[2]))
        reply = REQUESTS[found[3]].reply
        assert reply.type == found[1]
        more = re.match(r", plus `(\w+)`", found[4])
        return reply._replace(members=reply.members | ({more[1]} if more else set()))

    @property
    def errors(self) -> set[str]:
        """The documented error codes."""
        _, _, errors = self.prose.partition("Errors: ")
        return set(re.findall(r"`(\w+)`", errors))


def members(listed: str) -> tuple[set[str], set[str]]:
    """What `{a, b?}` has for sure, and what it may have."""
    names = listed.strip("{}`").split(", ")
    optional = {name.removesuffix("?") for name in names if name.endswith("?")}
    return {name for name in names if not name.endswith("?")}, optional


def fenced(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)


def requests() -> Iterator[Request]:
    section = re.search(r"^## 5\. Requests\n(.*?)^## ", TEXT, re.MULTILINE | re.DOTALL)
    assert section
    for title, body in re.findall(
        r"^#### `(hub:\w+)`\n(.*?)(?=^####? |\Z)", section[1], re.MULTILINE | re.DOTALL
    ):
        prose, *examples = body.split("```json\n")
        frames = [json.loads(example.split("```")[0]) for example in examples]
        yield Request(title, " ".join(prose.split()), frames)


def table(*header: str) -> list[list[str]]:
    """The rows of the table with this header."""
    head = re.escape("| " + " | ".join(header) + " |\n")
    found = re.search(rf"^{head}\|[-|]+\n((?:\|.*\n)+)", TEXT, re.MULTILINE)
    assert found, f"there is no table {header}"
    return [[cell.strip() for cell in row[1:-1].split(" | ")] for row in found[1].splitlines()]


REQUESTS = {request.type: request for request in requests()}


def nodes_of_core() -> Iterator[ast.AST]:
    for path in Path(signalhub.core.__path__[0]).rglob("*.py"):
        yield from ast.walk(ast.parse(path.read_text()))


def hub_types_in_core() -> set[str]:
    """Every message type that a module of the core spells out."""
    return {
        node.value
        for node in nodes_of_core()
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and re.fullmatch(r"hub:[a-z_]+", node.value)
    }


def reasons_in_core() -> set[str]:
    """Why consumers are sent away, where they are told."""
    found = set()
    for node in nodes_of_core():
        if not isinstance(node, ast.Call) or len(node.args) < 2:
            continue
        name = ast.unparse(node.func).rpartition(".")[2]
        is_silent = any(ast.unparse(one) == "is_told=False" for one in node.keywords)
        if name in ("leave", "remove") and not is_silent:
            found |= {str(one.value) for one in node.args[1:2] if isinstance(one, ast.Constant)}
    return found


def retryable_by_code() -> dict[str, set[str]]:
    """Which codes the hub's refusals use, and whether they invite to try again."""
    samples: dict[str, object] = {
        "str": "x",
        "str | None": "x",
        "Refusal": refusals.outcome_unknown(),
        "int": 1,
        "bool": True,
        "float": 1.0,
        "object": None,
        "dict[str, object]": {},
        "OutboundSettings": OutboundSettings(),
    }
    found: dict[str, set[str]] = defaultdict(set)
    for _, refuse in inspect.getmembers(refusals, inspect.isfunction):
        parameters = inspect.signature(refuse).parameters.values()
        given = inspect.signature(refuse).bind_partial()
        given.arguments.update({one.name: samples[one.annotation] for one in parameters})
        refusal = refuse(*given.args, **given.kwargs)
        assert isinstance(refusal, Refusal)
        found[refusal.code].add("yes" if refusal.retryable else "no")
    return found


def test_every_request_and_type_of_the_hub_is_documented_and_no_other() -> None:
    assert set(REQUESTS) == set(MemoryShell().hub.handlers)
    assert hub_types_in_core() == set(re.findall(r"hub:[a-z_]+", TEXT))


def test_every_json_block_is_an_example_and_a_complete_envelope() -> None:
    blocks = fenced("json")

    assert len(blocks) == sum(len(request.examples) for request in REQUESTS.values())
    for block in blocks:
        assert sorted(json.loads(block)) == sorted(MEMBERS)
    for request in REQUESTS.values():
        read = [envelope.decode(json.dumps(example).encode()) for example in request.examples]
        assert {(message.type, message.to) for message in read} == {(request.type, HUB_ADDRESS)}
        assert request.errors <= set(Code)


def test_every_member_of_the_envelope_is_documented() -> None:
    rows = table("Member", "Type", "Meaning", "Checked by the hub")

    assert sorted(row[0].strip("`") for row in rows) == sorted(MEMBERS)


def test_every_error_code_is_documented_with_whether_to_retry() -> None:
    documented: dict[str, set[str]] = defaultdict(set)
    for code, retryable, *_ in table("Code", "Retryable", "When", "What to do"):
        documented[code.strip("`")].add(retryable)

    assert set(documented) == set(Code)
    # An unknown actor has a type of its own and is no refusal.
    assert documented.pop(Code.UNKNOWN_ACTOR) == {"yes", "no"}
    assert documented == retryable_by_code()


def test_every_documented_limit_is_the_default_of_its_setting() -> None:
    rows = table("Limit", "Default", "Setting")

    documented = {setting.strip("`"): float(default) for _, default, setting in rows}

    assert documented == {name: attrgetter(name)(Settings()) for name in documented}


# The hello and the heartbeat take almost anything; settlements share their members.
PAYLOADS = {
    "hub:register": payloads.RegisterRequest,
    "hub:unregister": payloads.UnregisterRequest,
    "hub:renew": payloads.Renewal,
    "hub:discover": payloads.DiscoverRequest,
    "hub:list_actors": payloads.ListActorsRequest,
    "hub:list_sessions": payloads.ListSessionsRequest,
    "hub:close_session": payloads.CloseSessionRequest,
    "hub:list_jobs": payloads.ListJobsRequest,
    "hub:send": payloads.SendRequest,
    "hub:broadcast": payloads.BroadcastRequest,
    "hub:subscribe": payloads.SubscribeRequest,
    "hub:unsubscribe": payloads.UnsubscribeRequest,
    "hub:publish": payloads.PublishRequest,
    "hub:refresh_token": payloads.RefreshRequest,
    "hub:limits": payloads.LimitsRequest,
    "hub:topic_create": payloads.TopicCreateRequest,
    "hub:topic_info": payloads.TopicNameRequest,
    "hub:list_topics": payloads.ListTopicsRequest,
    "hub:sub_info": payloads.SubscriptionNameRequest,
    "hub:list_subs": payloads.ListSubscriptionsRequest,
    "hub:seek": payloads.SeekRequest,
    "hub:replay": payloads.ReplayRequest,
    "hub:redrive": payloads.LettersRequest,
    "hub:credit": payloads.CreditRequest,
    "hub:republish": payloads.RepublishRequest,
}


def test_every_member_a_request_may_have_is_documented() -> None:
    for request_type, payload in PAYLOADS.items():
        mentioned = " ".join(re.findall(r"`([^`]*)`", REQUESTS[request_type].prose))
        missing = set(payload.__struct_encode_fields__) - set(re.findall(r"\w+", mentioned))
        assert missing == set(), request_type
    sections = ("hub:ack", "hub:nack", "hub:extend", "hub:term")
    prose = " ".join(REQUESTS[request_type].prose for request_type in sections)
    settling = set(payloads.SettleRequest.__struct_encode_fields__)
    assert settling - set(re.findall(r"`(\w+)`", prose)) == set()


def test_every_reason_to_send_a_consumer_away_is_documented() -> None:
    documented = {reason.strip("`") for reason, *_ in table("Reason", "When", "Client")}

    assert documented == reasons_in_core()


def test_every_degradation_is_documented() -> None:
    documented = {name.strip("`") for name, _ in table("Degradation", "Meaning")}

    assert documented == set(Degraded)
    assert {f"storage_{state}" for state in get_args(log.State) if state != "open"} <= documented


def test_the_requests_that_cost_nothing_permissions_and_the_version_are_documented() -> None:
    found = re.search(r"costs a token except the\s+raw ping, (.*?)\.", TEXT, re.DOTALL)
    (row,) = [row for row in table("Claim", "Rule") if row[0] == "`permissions`?"]

    assert found
    assert set(re.findall(r"hub:\w+", found[1])) == UNLIMITED
    assert members(row[1].split("`")[1])[0] == set(Permissions.__struct_fields__)
    assert f"Signal Hub {envelope.PROTOCOL_VERSION}," in TEXT


def say(peer: Peer, frame: Frame) -> None:
    peer.send_text(json.dumps(frame))


async def request(peer: Peer, frame: Frame) -> Frame:
    """Send a request and wait for its reply; what comes before it is not of interest."""
    say(peer, frame)
    while True:
        heard: Frame = {**await peer.receive()}
        if heard["correlationId"] == frame["id"] and heard["type"].startswith("hub:"):
            return heard


async def join(peer: Peer, address: str) -> tuple[Frame, Frame]:
    """Connect and register as the page's examples do."""
    (hello,), (register, *_) = REQUESTS["hub:connect"].examples, REQUESTS["hub:register"].examples
    connected = await request(peer, hello | {"from": f"@(client/{address[2:-1]})"})
    payload = register["payload"] | {"actorAddress": address}
    return connected, await request(peer, register | {"from": address, "payload": payload})


# Member of an example's payload, and where the reply before it says what it really is.
MADE_UP = {
    "hub:refresh_token": ("token", "hub:connected", "metadata", "sessionToken"),
    "hub:renew": ("renewalToken", "hub:registered", "payload", "renewalToken"),
    "hub:close_session": ("sessionId", "stranger", "payload", "sessionId"),
    "hub:credit": ("subscriptionId", "hub:subscribed", "payload", "subscriptionId"),
}


def as_sent(example: Frame, heard: dict[str, Frame]) -> Frame:
    """The example with what this hub made up instead of what the page did."""
    frame = deepcopy(example)
    if frame["type"] in MADE_UP:
        member, reply, group, name = MADE_UP[frame["type"]]
        frame["payload"][member] = heard[reply][group][name]
    return frame


async def test_the_examples_in_the_order_of_the_page_get_the_documented_replies() -> None:
    heard: dict[str, Frame] = {}
    wrong: dict[str, Frame] = {}
    async with run_stage(FakeClock()) as stage:
        caller, neighbour, stranger = [await stage.dial() for _ in range(3)]
        await join(neighbour, NEIGHBOUR)
        heard["stranger"], _ = await join(stranger, "@(far/stranger)")
        for section in REQUESTS.values():
            for example in section.examples:
                reply = await request(caller, as_sent(example, heard))
                heard[reply["type"]] = reply
                is_answer = (
                    sorted(reply) == sorted(MEMBERS)
                    and (reply["from"], reply["to"]) == (HUB_ADDRESS, example["from"])
                    and reply["pattern"] == "tell"
                )
                if not (is_answer and section.reply.fits(reply["type"], reply["payload"])):
                    wrong[example["id"]] = reply
            if section.type == "hub:publish":
                # The page's consumer settles three messages; two more are published like the first.
                for again in ("again-1", "again-2"):
                    await request(caller, section.examples[-1] | {"id": again})

    assert wrong == {}
    assert heard["hub:acked"]["payload"] == {"floor": 2, "accepted": 2, "ignored": []}
    assert heard["hub:termed"]["payload"] == {"floor": 3, "accepted": 1, "ignored": []}
    assert heard["hub:redriven"]["payload"] == {"count": 1}


@pytest.mark.parametrize("request_type", ["hub:discover", "hub:list_actors"])
async def test_actors_are_listed_with_the_documented_members(request_type: str) -> None:
    section = REQUESTS[request_type]
    async with run_stage(FakeClock()) as stage:
        caller = await stage.dial()
        await join(caller, CALLER)
        reply = await request(caller, section.examples[0])

    found = re.search(r"each actor is (`\{[^}]*\}`)", section.prose)
    assert found
    assert [set(actor) for actor in reply["payload"]["actors"]] == [members(found[1])[0]]


def exchange(transcript: str) -> list[tuple[str, str, Frame | str]]:
    """Its lines: who, `>` or `<`, and a frame or how the socket closes."""
    steps: list[tuple[str, str, Frame | str]] = []
    for step in re.split(r"\n(?=[ABC][<>])", transcript.strip()):
        who, direction, said = step[0], step[1], step[3:]
        steps.append((who, direction, said if said.startswith("close") else json.loads(said)))
    return steps


PLAIN, DURABLE = (exchange(transcript) for transcript in fenced("text"))


def masked(value: Any) -> Any:
    """The value with a dot for everything that differs from hub to hub."""
    if isinstance(value, dict):
        return {key: "·" if key in MASKED else masked(each) for key, each in value.items()}
    return value


def comparable(frame: Frame) -> Frame:
    """A frame of the hub, which makes up the id of each."""
    return {**masked(frame), "id": "·"}


@pytest.mark.parametrize(
    ("steps", "who", "address"),
    [(PLAIN, "B", NEIGHBOUR), (DURABLE, "A", CALLER)],
    ids=["plain", "durable"],
)
async def test_a_complete_exchange_happens_as_written(
    steps: list[tuple[str, str, Frame | str]], who: str, address: str
) -> None:
    said_ms = [said["timestamp"] for _, _, said in steps if not isinstance(said, str)]
    clock = FakeClock(said_ms[0])
    async with run_stage(clock) as stage:
        speakers = {speaker: await stage.dial() for speaker in "ABC"}
        await join(speakers[who], address)
        for speaker, direction, said in steps:
            peer = speakers[speaker]
            if isinstance(said, str):
                assert said == f"close {await peer.until_closed()}"
            elif direction == ">":
                # All events of a tick share one time, so it must not pass in one.
                await eventually(lambda: not stage.hub.app.runner.writer.tick_ms)
                clock.advance((said["timestamp"] - clock.now_ms()) / 1000)
                say(peer, said)
            else:
                assert comparable({**await peer.receive()}) == comparable(said)


def copies() -> list[Frame]:
    """The metadata of what actors get in the durable exchange, which happens as written."""
    said = [frame for _, direction, frame in DURABLE if direction == "<"]
    metadata: list[Frame] = [frame["metadata"] for frame in said if not isinstance(frame, str)]
    return [one for one in metadata if "delivery" in one]


def test_copies_and_dead_letters_say_what_is_documented() -> None:
    found = re.search(r"`metadata.deadLetter`\s(`\{[^}]*\}`)", TEXT)
    assert found
    (dead,) = [one["deadLetter"] for one in copies() if "deadLetter" in one]
    rows = table("Copy", "`metadata.delivery`")[:3]

    assert {frozenset(one["delivery"]) for one in copies()} == {
        frozenset(members(documented)[0]) for _, documented in rows
    }
    assert set(dead) == members(" ".join(found[1].split()))[0]
