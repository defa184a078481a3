"""Which room, pseudonym and inbox an upgrade asks for, and how it is told no."""

from __future__ import annotations

import json
from base64 import urlsafe_b64encode
from typing import cast

import pytest

from signalhub.server.port import door
from signalhub.server.port.door import Door
from signalhub.server.port.http import FAILED, HttpRequest, Response, Routes, Upgrade
from signalhub.server.port.listener import at_capacity, too_many_connections
from signalhub.server.rooms.socket import Visit
from signalhub.server.rooms.upgrade import PATH, PROTOCOL, TENANT_PATH, Gate, rephrased, visit_of
from signalhub.wire.errors import RoomError
from tests.support.memory.room_sockets import RoomStage

INBOX = "pw1oQgdmuN2WQLXM3CpAZaVIVGvyJRwpcv9QG4XsHfg"
NO_DOOR = cast(Door, None)


def encoded(text: str) -> str:
    return urlsafe_b64encode(text.encode()).rstrip(b"=").decode()


def request(
    *protocols: str,
    room: str | None = None,
    pseudonym: str | None = None,
    inbox: str | None = None,
    query: str = "",
) -> HttpRequest:
    """An upgrade with these headers and subprotocols."""
    given = {"x-room-id": room, "x-pseudonym-id": pseudonym, "x-inbox-id": inbox}
    headers = {name: value for name, value in given.items() if value is not None}
    if protocols:
        headers["sec-websocket-protocol"] = ", ".join(protocols)
    return HttpRequest("GET", "/room", query, headers)


def offered(**ids: str) -> list[str]:
    return [PROTOCOL, *(f"{kind}.{encoded(value)}" for kind, value in ids.items())]


def test_ids_come_in_headers() -> None:
    visit = visit_of(request(room="r:1", pseudonym="p", inbox=INBOX))

    assert visit == Visit("r:1", None, "r:1", "p", INBOX)


def test_ids_come_as_subprotocols() -> None:
    visit = visit_of(request(*offered(room="r", pseudonym="p", inbox=INBOX)))

    assert visit == Visit("r", None, "r", "p", INBOX)


def test_subprotocol_may_be_padded() -> None:
    assert visit_of(request("room.cg==", "pseudonym.cA=")).name == "r"


def test_path_gives_tenant_and_room_and_the_query_the_pseudonym() -> None:
    visit = visit_of(request(query="a=1&pseudonym=p%3A1"), "t", "r")

    assert visit == Visit("t:r", "t", "r", "p:1", None)


@pytest.mark.parametrize("room", ["r", "t:r"])
def test_header_may_repeat_the_room_of_the_path_by_either_name(room: str) -> None:
    assert visit_of(request(room=room, pseudonym="p"), "t", "r").name == "t:r"


def test_what_is_said_twice_alike_is_fine() -> None:
    twice = request(
        *offered(room="r", pseudonym="p", inbox=INBOX + "="),
        *offered(room="r"),
        room="r",
        pseudonym="p",
        inbox=INBOX,
    )

    assert visit_of(twice) == Visit("r", None, "r", "p", INBOX)


@pytest.mark.parametrize(
    "asked",
    [
        request(),
        request(room="r"),
        request(pseudonym="p"),
        request(room="", pseudonym="p"),
        request(room="r", pseudonym=""),
        request(room="r", pseudonym="p", inbox=""),
        request(room="r, s", pseudonym="p"),
        request(room="a..b", pseudonym="p"),
        request(room="r", pseudonym="p q"),
        request(room="r", pseudonym="ä"),
        request(room="r", pseudonym="p", query="pseudonym=q", inbox="a/b"),
        request(*offered(room="r"), room="s", pseudonym="p"),
        request(*offered(pseudonym="q"), room="r", pseudonym="p"),
        request(*offered(inbox="i"), room="r", pseudonym="p", inbox="j"),
        request(*offered(room="r"), *offered(room="s"), pseudonym="p"),
        request("room.", pseudonym="p"),
        request("room.*", pseudonym="p"),
        request("room.c", pseudonym="p"),
        request(f"room.{urlsafe_b64encode(bytes((255, 254))).decode()}", pseudonym="p"),
        request(PROTOCOL, "room", "pseudonym"),
    ],
)
def test_missing_bad_and_contradicting_ids_are_refused(asked: HttpRequest) -> None:
    with pytest.raises(RoomError) as refusal:
        visit_of(asked)

    assert refusal.value.code == "BAD_REQUEST"


@pytest.mark.parametrize(
    ("asked", "tenant", "room"),
    [
        (request(), "t", "r"),
        (request(query="pseudonym="), "t", "r"),
        (request(query="pseudonym=p&pseudonym=q"), "t", "r"),
        (request(query="pseudonym=p", pseudonym="q"), "t", "r"),
        (request(room="s", pseudonym="p"), "t", "r"),
        (request(room="t:s", pseudonym="p"), "t", "r"),
        (request(pseudonym="p"), "t:u", "r"),
        (request(pseudonym="p"), "t", "a/b"),
        (request(pseudonym="p"), "t", "\ufffd"),
    ],
)
def test_path_with_missing_bad_or_contradicting_ids_is_refused(
    asked: HttpRequest, tenant: str, room: str
) -> None:
    with pytest.raises(RoomError) as refusal:
        visit_of(asked, tenant, room)

    assert refusal.value.code == "BAD_REQUEST"


def test_refusals_never_repeat_what_was_given() -> None:
    for asked in (
        request(room="my secret room", pseudonym="p"),
        request(room="r", pseudonym="my secret name"),
        request(room="r", pseudonym="p", inbox="my secret inbox"),
        request("room.my-secret*"),
        request(*offered(room="secret-a"), room="secret-b", pseudonym="p"),
    ):
        with pytest.raises(RoomError) as refusal:
            visit_of(asked)
        assert "secret" not in refusal.value.text


def test_both_ways_lead_in() -> None:
    with RoomStage() as stage:
        routes = Routes()
        Gate(stage.runner, stage.clock).add_to(routes)

        for path, pattern in (("/room", PATH), ("/ws/t/r", TENANT_PATH)):
            found = routes.find(path)
            assert found is not None
            assert found[0].pattern == pattern
            assert found[0].opener is not None


@pytest.mark.parametrize(
    ("protocols", "chosen"),
    [
        ((), None),
        ((PROTOCOL,), PROTOCOL),
        (("chat",), None),
        (("chat", PROTOCOL), PROTOCOL),
        (("tunnl3d.v2",), None),
        ((f"room.{encoded('r')}",), None),
    ],
)
def test_gate_lets_in_at_once_and_chooses_only_its_own_protocol(
    protocols: tuple[str, ...], chosen: str | None
) -> None:
    with RoomStage() as stage:
        gate = Gate(stage.runner, stage.clock)

        upgrade = gate.open_room(request(*protocols, room="r", pseudonym="p"), NO_DOOR)

        assert isinstance(upgrade, Upgrade)
        assert upgrade.protocol == chosen
        assert not upgrade.needs_hello
        assert upgrade.frame_bytes_max == 2 * 87_384 + 8_192
        assert stage.present == 1


def refused(answer: Response | Upgrade) -> tuple[int, str]:
    assert isinstance(answer, Response)
    assert answer.content_type == "application/json"
    return answer.status, json.loads(answer.body)["errorCode"]


def test_room_that_is_bound_to_another_inbox_is_a_conflict_and_nobody_has_entered() -> None:
    with RoomStage() as stage:
        gate = Gate(stage.runner, stage.clock)
        gate.open_room(request(room="r", pseudonym="p", inbox=INBOX), NO_DOOR)
        before = len(stage.runner.connections)

        answer = gate.open_room(request(room="r", pseudonym="q", inbox="other"), NO_DOOR)

        assert refused(answer) == (409, "CONFLICT")
        assert stage.present == before == len(stage.runner.connections)


def test_hub_that_wants_capabilities_asks_for_the_inbox() -> None:
    with RoomStage(rooms={"require_capability": True}) as stage:
        gate = Gate(stage.runner, stage.clock)

        answer = gate.open_room(request(room="r", pseudonym="p"), NO_DOOR)

        assert refused(answer) == (400, "BAD_REQUEST")
        assert isinstance(
            gate.open_room(request(room="r", pseudonym="p", inbox=INBOX), NO_DOOR), Upgrade
        )


def test_hub_without_space_for_another_room_is_unavailable() -> None:
    with RoomStage(rooms={"limit": 1}) as stage:
        gate = Gate(stage.runner, stage.clock)
        gate.open_room(request(room="r", pseudonym="p"), NO_DOOR)

        answer = gate.open_room(request(room="s", pseudonym="p"), NO_DOOR)

        assert refused(answer) == (503, "UNAVAILABLE")


def test_fault_while_entering_is_answered_and_leaves_nobody_behind(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    asked = request(room="general", pseudonym="p")

    def broken(*_: object) -> None:
        raise RuntimeError(asked.headers)

    with RoomStage() as stage:
        gate = Gate(stage.runner, stage.clock)
        monkeypatch.setattr(stage.runner, "perform", broken)
        answer = gate.open_room(asked, NO_DOOR)
        monkeypatch.undo()

        assert refused(answer) == (500, "INTERNAL_ERROR")
        assert "general" not in caplog.text
        assert not stage.runner.connections
        assert stage.present == 0


@pytest.mark.parametrize(
    ("refusal", "code"),
    [
        (door.UPGRADE_REQUIRED, "UPGRADE_REQUIRED"),
        (door.NO_CONNECTION, "BAD_REQUEST"),
        (too_many_connections(2, 100, 0), "RATE_LIMIT_EXCEEDED"),
        (at_capacity(0.99), "UNAVAILABLE"),
        (FAILED, "INTERNAL_ERROR"),
    ],
)
def test_refusals_of_the_front_door_keep_status_and_headers_and_are_json(
    refusal: Response, code: str
) -> None:
    answer = rephrased(refusal)

    assert refused(answer) == (refusal.status, code)
    assert refusal.headers.items() <= answer.headers.items()
    body = json.loads(answer.body)
    if refusal.status in (429, 503):
        assert body["retryAfterMs"] == int(answer.headers["Retry-After"]) * 1000
    assert body["error"]


def test_refusal_of_an_origin_is_that_of_every_path() -> None:
    assert rephrased(door.ORIGIN_REFUSED) is door.ORIGIN_REFUSED
