"""Which room, pseudonym and inbox an upgrade asks for, and how it is refused."""

from __future__ import annotations

import json
from base64 import urlsafe_b64encode
from typing import cast

import pytest

from signalhub.server.port import door
from signalhub.server.port.door import Door
from signalhub.server.port.http import FAILED, HttpRequest, Response, Upgrade, text
from signalhub.server.port.listener import too_many_connections
from signalhub.server.rooms.socket import Visit
from signalhub.server.rooms.upgrade import PROTOCOL, Gate, rephrased, visit_of
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


IDS = {"room": "r", "pseudonym": "p", "inbox": INBOX}


@pytest.mark.parametrize(
    ("asked", "path", "visit"),
    [
        pytest.param(
            request("room.cg==", "pseudonym.cA="),
            *((), Visit("r", None, "r", "p", None)),
            id="padded",
        ),
        pytest.param(
            request(*offered(**IDS | {"inbox": INBOX + "="}), *offered(room="r"), **IDS),
            *((), Visit("r", None, "r", "p", INBOX)),
            id="all of it twice",
        ),
        pytest.param(
            request(room="t:r", pseudonym="p"),
            *(("t", "r"), Visit("t:r", "t", "r", "p", None)),
            id="path and header with tenant",
        ),
    ],
)
def test_ids_come_in_headers_subprotocols_and_paths(
    asked: HttpRequest, path: tuple[str, ...], visit: Visit
) -> None:
    assert visit_of(asked, *path) == visit


@pytest.mark.parametrize(
    ("asked", "path"),
    [
        *(
            (asked, ())
            for asked in (
                request(),
                request(room="r"),
                request(pseudonym="p"),
                request(room="", pseudonym="p"),
                request(room="r", pseudonym=""),
                request(room="r", pseudonym="p", inbox=""),
                request(room="r, s", pseudonym="p"),
                request(room="a..b", pseudonym="p"),
                request(room="my secret room", pseudonym="p"),
                request(room="r", pseudonym="my secret name"),
                request(room="r", pseudonym="ä"),
                request(room="r", pseudonym="p", inbox="my/secret"),
                request(*offered(room="secret-a"), room="secret-b", pseudonym="p"),
                request(*offered(pseudonym="q"), room="r", pseudonym="p"),
                request(*offered(inbox="i"), room="r", pseudonym="p", inbox="j"),
                request(*offered(room="r"), *offered(room="s"), pseudonym="p"),
                request("room.", pseudonym="p"),
                request("room.my-secret*", pseudonym="p"),
                request("room.c", pseudonym="p"),
                request(f"room.{urlsafe_b64encode(bytes((255, 254))).decode()}", pseudonym="p"),
                request(PROTOCOL, "room", "pseudonym"),
            )
        ),
        *(
            (asked, ("t", "r"))
            for asked in (
                request(),
                request(query="pseudonym="),
                request(query="pseudonym=p&pseudonym=q"),
                request(query="pseudonym=p", pseudonym="q"),
                request(room="s", pseudonym="p"),
                request(room="t:s", pseudonym="p"),
            )
        ),
        *((request(pseudonym="p"), path) for path in (("t:u", "r"), ("t", "a/b"), ("t", "\ufffd"))),
    ],
)
def test_missing_bad_and_contradicting_ids_are_refused_and_not_repeated(
    asked: HttpRequest, path: tuple[str, ...]
) -> None:
    with pytest.raises(RoomError) as refusal:
        visit_of(asked, *path)

    assert refusal.value.code == "BAD_REQUEST"
    assert "secret" not in refusal.value.text


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
def test_the_gate_lets_in_at_once_and_chooses_only_its_own_protocol(
    protocols: tuple[str, ...], chosen: str | None
) -> None:
    with RoomStage() as stage:
        gate = Gate(stage.runner, stage.clock)

        upgrade = gate.open_room(request(*protocols, room="r", pseudonym="p"), NO_DOOR)

        assert isinstance(upgrade, Upgrade)
        assert (upgrade.protocol, upgrade.needs_hello) == (chosen, False)
        assert upgrade.frame_bytes_max == 2 * 87_384 + 8_192
        assert stage.present == 1


def refused(answer: Response | Upgrade) -> tuple[int, str]:
    assert isinstance(answer, Response)
    assert answer.content_type == "application/json"
    return answer.status, json.loads(answer.body)["errorCode"]


@pytest.mark.parametrize(
    ("settings", "first", "second", "refusal"),
    [
        ({}, {"inbox": INBOX}, {"inbox": "other"}, (409, "CONFLICT")),
        ({"require_capability": True}, {"inbox": INBOX}, {}, (400, "BAD_REQUEST")),
        ({"limit": 1}, {}, {"room": "s"}, (503, "UNAVAILABLE")),
    ],
    ids=["another inbox", "no inbox", "too many rooms"],
)
def test_who_is_refused_has_not_entered(
    settings: dict[str, int],
    first: dict[str, str],
    second: dict[str, str],
    refusal: tuple[int, str],
) -> None:
    with RoomStage(rooms=settings) as stage:
        gate = Gate(stage.runner, stage.clock)
        ids = {"room": "r", "pseudonym": "p"}
        assert isinstance(gate.open_room(request(**ids | first), NO_DOOR), Upgrade)

        answer = gate.open_room(request(**ids | second), NO_DOOR)

        assert refused(answer) == refusal
        assert stage.present == len(stage.runner.connections) == 1


@pytest.mark.parametrize("place", ["the core", "its effects"])
def test_a_fault_while_entering_is_answered_and_leaves_nobody_behind(
    place: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    asked = request(room="general", pseudonym="p")

    def broken(*_: object) -> None:
        raise RuntimeError(asked.headers)

    with RoomStage() as stage:
        gate = Gate(stage.runner, stage.clock)
        owner, name = (
            (stage.hub.rooms, "join") if place == "the core" else (stage.runner, "perform")
        )
        monkeypatch.setattr(owner, name, broken)
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
        (too_many_connections(2, 100), "RATE_LIMIT_EXCEEDED"),
        (text(503, "Closed."), "UNAVAILABLE"),
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
    assert rephrased(door.ORIGIN_REFUSED) is door.ORIGIN_REFUSED
