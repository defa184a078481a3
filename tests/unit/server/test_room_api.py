"""The HTTP endpoints of rooms and inboxes, with the real core behind them and no socket before."""

from __future__ import annotations

import base64
from typing import Any

import msgspec
import pytest

from signalhub.core import refusals
from signalhub.core.rooms.values import Accepted, Page
from signalhub.server.port.http import HttpRequest, Later, Response, Routes
from signalhub.server.rooms import answers
from signalhub.server.rooms.answers import Timestamps, time_text
from signalhub.server.rooms.api import Api
from signalhub.settings.model import RoomsSettings
from signalhub.wire.entry import ProposalBody
from signalhub.wire.errors import RoomCode, RoomError
from signalhub.wire.room_ids import Names
from tests.support.memory.write_path import Stage

AT_MS = 1_769_860_805_123  # 2026-01-31T12:00:05.123Z
INBOX = "pw1oQgdmuN2WQLXM3CpAZaVIVGvyJRwpcv9QG4XsHfg"
JSON = {"content-type": "application/json"}
LATER = (RoomCode.RATE_LIMIT_EXCEEDED, RoomCode.UNAVAILABLE, RoomCode.STORAGE_FAILED)


class Desk:
    """Asks the endpoints of one hub, a request at a time."""

    def __init__(self, origins: tuple[str, ...] = (), **rooms: Any) -> None:
        self.stage = Stage(rooms=RoomsSettings(**rooms), origins=origins)
        self.stage.hub.rooms.use(Names(b"a key"))
        self.routes = Routes()
        Api(self.stage.hub, self.stage.runner, self.stage.clock).add_to(self.routes)
        self.stage.loop.run_dry()

    def begin(
        self, method: str, target: str, headers: dict[str, str], body: bytes = b""
    ) -> Response | Later:
        """Ask, and do not wait for the disk."""
        path, _, query = target.partition("?")
        found = self.routes.find(path)
        assert found is not None
        route, parts = found
        request = HttpRequest(method, path, query, headers, body)
        if method not in route.methods:
            return self.routes.refuse_method(route, request)
        assert route.handler is not None
        answer = route.handler(request, *parts)
        assert isinstance(answer, Response | Later)
        return answer

    def ask(
        self, method: str, target: str, headers: dict[str, str] | None = None, body: bytes = b""
    ) -> Response:
        answer = self.begin(method, target, headers or {}, body)
        self.stage.loop.run_dry()
        response = said(answer)
        assert response is not None
        return response

    def send(self, headers: dict[str, str] | None = None, **members: object) -> Response:
        body = msgspec.json.encode({"roomId": "general", "ciphertext": "QUJD"} | members)
        return self.ask("POST", "/api/v1/message", JSON | (headers or {}), body)

    def append(self, **members: object) -> Response:
        body = msgspec.json.encode({"messageId": "m1", "ciphertext": "QUJD"} | members)
        return self.ask("POST", "/v1/inbox/append", JSON | {"x-inbox-id": INBOX}, body)

    def fetch(self, query: str = "", inbox: str = INBOX) -> Response:
        return self.ask("GET", f"/v1/inbox/messages?{query}", {"x-inbox-id": inbox})

    def put(self, body: bytes = b"blob", **conditions: str) -> Response:
        headers = {name.replace("_", "-"): value for name, value in conditions.items()}
        return self.ask("PUT", "/v1/room/metadata", {"x-room-id": "general"} | headers, body)

    def get(self, path: str = "/v1/room/metadata", **conditions: str) -> Response:
        headers = {name.replace("_", "-"): value for name, value in conditions.items()}
        return self.ask("GET", path, {"x-room-id": "general"} | headers)


def said(answer: Response | Later) -> Response | None:
    """The response, if it is there."""
    return answer if isinstance(answer, Response) else answer.wait(lambda response: None)


def json_of(response: Response) -> Any:
    return msgspec.json.decode(response.content)


def is_refusal(response: Response, status: int, code: RoomCode) -> bool:
    body = json_of(response)
    return (response.status, body["errorCode"]) == (status, code.value) and bool(body["error"])


def inbox_of(name: str) -> str:
    return base64.urlsafe_b64encode(name.encode()).decode().rstrip("=")


# Messages to rooms.


@pytest.mark.parametrize(
    ("headers", "members", "room"),
    [
        ({}, {"roomId": "r"}, "r"),
        ({"x-room-id": "r"}, {"roomId": None}, "r"),
        ({"x-room-id": "r"}, {"roomId": "r"}, "r"),
        ({}, {"roomId": "r", "tenantId": "t"}, "t:r"),
        ({"x-room-id": "r"}, {"roomId": None, "tenantId": "t"}, "t:r"),
        ({"x-room-id": "r"}, {"roomId": "r", "tenantId": "t"}, "t:r"),
        ({"x-room-id": "t:r"}, {"roomId": "r", "tenantId": "t"}, "t:r"),
        ({"x-room-id": "t:r"}, {"roomId": None, "tenantId": "t"}, "t:r"),
        ({"x-room-id": "t:r"}, {"roomId": None}, "t:r"),
        ({"x-pseudonym-id": "p:1"}, {"roomId": "r", "pseudonymId": "p:1"}, "r"),
    ],
)
def test_header_and_envelope_name_a_room_together(
    headers: dict[str, str], members: dict[str, object], room: str
) -> None:
    desk = Desk()

    assert desk.send(headers, **members).status == 200
    assert len(json_of(desk.fetch(inbox=inbox_of(room)))["messages"]) == 1


@pytest.mark.parametrize(
    ("headers", "members", "code"),
    [
        ({}, {"roomId": None}, RoomCode.BAD_ENVELOPE),
        ({}, {"roomId": "a/b"}, RoomCode.BAD_ENVELOPE),
        ({}, {"ciphertext": None}, RoomCode.BAD_ENVELOPE),
        ({}, {"type": "mls_other"}, RoomCode.BAD_ENVELOPE),
        ({"x-room-id": "other"}, {}, RoomCode.BAD_REQUEST),
        ({"x-room-id": "t:other"}, {"tenantId": "t"}, RoomCode.BAD_REQUEST),
        ({"x-room-id": ""}, {"roomId": None}, RoomCode.BAD_REQUEST),
        ({"x-room-id": "ä"}, {"roomId": None}, RoomCode.BAD_REQUEST),
        ({"x-room-id": "a, b"}, {"roomId": None}, RoomCode.BAD_REQUEST),
        ({"x-pseudonym-id": "p"}, {"pseudonymId": "q"}, RoomCode.BAD_REQUEST),
        ({"x-pseudonym-id": "p/"}, {}, RoomCode.BAD_REQUEST),
        ({"x-inbox-id": ""}, {}, RoomCode.BAD_REQUEST),
        ({"x-inbox-id": "../x"}, {}, RoomCode.BAD_REQUEST),
    ],
)
def test_a_message_that_is_not_in_order_is_refused(
    headers: dict[str, str], members: dict[str, object], code: RoomCode
) -> None:
    assert is_refusal(Desk().send(headers, **members), 400, code)


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"{", b"[]", b"null", b'"text"', b"7", b"{}x", b'{"a":NaN}', b"\xef\xbb\xbf{}"),
        *(b'{"ciphertext":"\xff"}', b'{"a":"\\ud800"}', b'{"a":' * 5_000, b"\0"),
    ],
)
@pytest.mark.parametrize("path", ["/api/v1/message", "/v1/inbox/append"])
def test_what_is_no_json_object_is_no_envelope(path: str, body: bytes) -> None:
    response = Desk().ask("POST", path, JSON | {"x-inbox-id": INBOX}, body)

    assert is_refusal(response, 400, RoomCode.BAD_ENVELOPE)


def test_a_disk_that_takes_nothing_is_told_and_may_be_tried_again() -> None:
    desk = Desk()
    desk.stage.engine.refuse(refusals.storage_full(), is_final=True)

    for response in (desk.send(), desk.append(), desk.put()):
        assert is_refusal(response, 503, RoomCode.UNAVAILABLE)
        assert int(response.headers["Retry-After"]) >= 1
        assert json_of(response)["retryAfterMs"] >= 1


def test_a_fault_in_the_core_is_answered_and_its_text_is_not() -> None:
    desk = Desk()
    desk.stage.hub.rooms.directory.names = None  # type: ignore[assignment]

    response = desk.send()

    assert is_refusal(response, 500, RoomCode.INTERNAL_ERROR)
    assert "NoneType" not in response.content.decode()


# Inboxes.


@pytest.mark.parametrize(
    ("query", "seqs", "next_seq"),
    [
        ("", [1, 2, 3], 4),
        ("fromSeq=2", [2, 3], 4),
        ("fromSeq=0&limit=2", [1, 2], 3),
        ("limit=5000", [1, 2, 3], 4),
        ("limit=9007199254740991", [1, 2, 3], 4),
        ("fromSeq=0002", [2, 3], 4),
        pytest.param(f"fromSeq={'0' * 5_000}2", [2, 3], 4, id="many zeros"),
        ("from%53eq=%32", [2, 3], 4),
        ("fromSeq=9007199254740991", [], 9007199254740991),
        ("unknown=1&unknown=2&fromSeq=3&=&", [3], 4),
        ("fromseq=3", [1, 2, 3], 4),
    ],
)
def test_a_page_begins_and_ends_where_it_is_asked_to(
    query: str, seqs: list[int], next_seq: int
) -> None:
    desk = Desk()
    for number in range(3):
        desk.append(messageId=f"m{number}")

    response = desk.fetch(query)

    assert desk.ask("HEAD", f"/v1/inbox/messages?{query}", {"x-inbox-id": INBOX}) == response
    assert [one["seq"] for one in json_of(response)["messages"]] == seqs
    assert json_of(response)["nextSeq"] == next_seq
    assert response.headers["X-Inbox-Oldest-Seq"] == "1"


@pytest.mark.parametrize("name", ["fromSeq", "limit"])
@pytest.mark.parametrize(
    "value",
    [
        *("", "-1", "+5", "%2B5", "1.0", "1e3", "0x1", " 1", "1_000", "abc", "null", "٣", "%D9%A3"),
        *("9007199254740992", "9" * 5_000, "1,2", "%C2%B2"),
    ],
)
def test_what_is_no_number_of_digits_is_refused(name: str, value: str) -> None:
    response = Desk().fetch(f"{name}={value}")

    assert is_refusal(response, 400, RoomCode.BAD_REQUEST)
    assert name in json_of(response)["error"]


# Blobs and proposals.


@pytest.mark.parametrize(
    ("status", "matches", "none_matches"),
    [
        (204, ['"2"', "*", '"1", "2"', '"x" ,, "2",'], ['"1"']),
        (412, ['"1"', '"02"', '"other,words"', 'W/"2"'], ["*", '"2"', 'W/"2"']),
        (400, ["2", "", "*, *", '"a"b"', '"1" "2"', '"one tag"', 'w/"2"'], ["abc"]),
    ],
)
def test_a_writer_may_insist_on_a_version(
    status: int, matches: list[str], none_matches: list[str]
) -> None:
    conditions = [{"if_match": tag} for tag in matches]
    conditions += [{"if_none_match": tag} for tag in none_matches]
    if status != 400:
        other = '"1"' if status == 204 else "*"
        conditions.append({"if_match": '"2"', "if_none_match": other})
    for given in conditions:
        desk = Desk()
        desk.put(b"one")
        desk.put(b"two")
        assert desk.put(b"three", **given).status == status, given
        assert desk.get().body == (b"three" if status == 204 else b"two")


def test_a_writer_may_insist_on_there_being_none() -> None:
    for conditions, status in (
        ({"if_match": "*"}, 412),
        ({"if_match": '"1"'}, 412),
        ({"if_none_match": "*"}, 204),
        ({"if_none_match": '"1"'}, 204),
    ):
        desk = Desk()
        assert desk.put(b"blob", **conditions).status == status
        assert desk.get().status == (200 if status == 204 else 404)


def test_of_two_writers_that_know_the_same_version_one_is_late() -> None:
    desk = Desk()
    desk.put(b"one")
    headers = {"x-room-id": "general", "if-match": '"1"'}

    first = desk.begin("PUT", "/v1/room/metadata", headers, b"mine")
    second = desk.begin("PUT", "/v1/room/metadata", headers, b"yours")
    desk.stage.loop.run_dry()

    assert (said(first) or Response(500)).status == 204
    assert is_refusal(said(second) or Response(500), 412, RoomCode.PRECONDITION_FAILED)
    assert desk.get().body == b"mine"


@pytest.mark.parametrize(
    ("known", "status"),
    [('"1"', 304), ('W/"1"', 304), ("*", 304), ('"2", "1"', 304), ('"2"', 200), ("1", 400)],
)
def test_a_reader_is_spared_what_it_knows(known: str, status: int) -> None:
    desk = Desk()
    desk.put(b"one")

    response = desk.get(if_none_match=known)

    assert (response.status, response.headers["Cache-Control"]) == (status, "no-store")
    assert response.content != b"one" or status == 200
    assert status == 400 or response.headers["ETag"] == '"1"'


@pytest.mark.parametrize("path", ["metadata", "quorum", "proposals", "proposals/p1"])
def test_a_rooms_state_needs_a_room(path: str) -> None:
    bad = [{}, {"x-room-id": ""}, {"x-room-id": "a/b"}, {"x-room-id": "a", "x-inbox-id": "/"}]
    for headers in bad:
        response = Desk().ask("GET", f"/v1/room/{path}", headers)
        assert is_refusal(response, 400, RoomCode.BAD_REQUEST)


# What only an answer itself can show.


@pytest.mark.parametrize(
    ("code", "wait_ms", "wait_s", "text"),
    [
        (RoomCode.RATE_LIMIT_EXCEEDED, 1_847, "2", "Rate limit exceeded"),
        (RoomCode.UNAVAILABLE, 1, "1", "No."),
        (RoomCode.UNAVAILABLE, 1_000, "1", "No."),
        (RoomCode.UNAVAILABLE, 1_001, "2", "No."),
        (RoomCode.UNAVAILABLE, None, "1", "No."),
        *((code, 5, None, "No.") for code in RoomCode if code not in LATER),
    ],
)
def test_only_some_refusals_invite_to_try_again(
    code: RoomCode, wait_ms: int | None, wait_s: str | None, text: str
) -> None:
    response = answers.error_response(RoomError(code, "No.", retry_after_ms=wait_ms))

    retry = {"retryAfterMs": wait_ms or 1_000} if wait_s else {}
    assert 400 <= response.status <= 503
    assert response.headers.get("Retry-After") == wait_s
    assert response.headers["Cache-Control"] == "no-store"
    assert json_of(response) == {"error": text, "errorCode": code.value} | retry


@pytest.mark.parametrize(
    ("timestamps", "late_ms", "text"),
    [
        ("exact", 0, "2026-01-31T12:00:05.123Z"),
        ("coarse", 0, "2026-01-31T12:00:05Z"),
        ("coarse", 4_000, "2026-01-31T12:00:05Z"),
        ("coarse", 5_000, "2026-01-31T12:00:10Z"),
        ("none", 0, None),
    ],
)
def test_times_are_told_as_exactly_as_the_hub_may(
    timestamps: Timestamps, late_ms: int, text: str | None
) -> None:
    known = Accepted("m", 7, False, AT_MS + late_ms)

    told = {} if text is None else {"storedAt": text}
    assert json_of(answers.deposited(known, timestamps)) == {"seq": 7} | told
    assert time_text(None, timestamps) is None


def test_only_a_partial_page_says_that_it_is_one() -> None:
    messages = [b'{"seq":3}', b'{"seq":9}']
    page = answers.page(Page(messages, 10, 2, RoomCode.STORAGE_FAILED, [(4, 8)]))

    assert json_of(page) == {
        "messages": [{"seq": 3}, {"seq": 9}],
        "nextSeq": 10,
        "partial": True,
        "reason": "storage_failed",
        "skipped": [{"fromSeq": 4, "toSeq": 8}],
    }
    assert json_of(answers.page(Page([], 9, None))) == {"messages": [], "nextSeq": 9}
    assert page.headers["X-Inbox-Oldest-Seq"] == "2"
    assert "X-Inbox-Oldest-Seq" not in answers.page(Page([], 9, None)).headers


def test_a_proposal_has_its_times_and_its_proposer_if_there_is_one() -> None:
    day_ms = 86_400_000
    known = ProposalBody("p1", "anna", b"b25l", "pending", AT_MS, AT_MS + day_ms, [b"dHdv"])
    record = {"proposalId": "p1", "encryptedContent": "b25l", "encryptedApprovals": []}

    told = json_of(answers.proposal(known, "exact"))
    assert told["createdAt"] == "2026-01-31T12:00:05.123Z"
    assert told["expiresAt"] == "2026-02-01T12:00:05.123Z"
    anonymous = ProposalBody("p1", "", b"b25l", "expired", AT_MS, AT_MS)
    assert json_of(answers.proposal(anonymous, "none")) == record | {"status": "expired"}


# Methods and origins.


PAGE = "https://app.example.org"


def test_a_page_of_an_allowed_origin_may_ask_and_read() -> None:
    desk = Desk(origins=(PAGE,))

    preflight = desk.ask("OPTIONS", "/api/v1/message", {"origin": PAGE})
    answers = [
        desk.send({"origin": PAGE}),
        desk.send({"origin": PAGE}, roomId="a/b"),
        desk.get(origin=PAGE),
    ]

    assert preflight.status == 204
    assert {"GET", "PUT", "POST"} <= set(
        preflight.headers["Access-Control-Allow-Methods"].split(", ")
    )
    allowed = preflight.headers["Access-Control-Allow-Headers"].split(", ")
    assert {"X-Inbox-ID", "X-Room-ID", "X-Pseudonym-ID", "Content-Type"} < set(allowed)
    assert {"If-Match", "If-None-Match", "Authorization", "Idempotency-Key"} < set(allowed)
    assert preflight.headers["Access-Control-Max-Age"] == "600"
    for response in (preflight, *answers):
        assert response.headers["Access-Control-Allow-Origin"] == PAGE
        assert response.headers["Vary"] == "Origin"
    for response in answers:
        exposed = response.headers["Access-Control-Expose-Headers"].split(", ")
        assert exposed == ["Idempotent-Replay", "X-Inbox-Oldest-Seq", "ETag", "Retry-After"]


def test_nobody_else_hears_about_origins() -> None:
    desk = Desk(origins=(PAGE,))

    for headers, status in (({"origin": "https://evil.example.org"}, 403), ({}, 204)):
        preflight = desk.ask("OPTIONS", "/v1/inbox/messages", headers)
        assert preflight.status == status
        for response in (preflight, desk.send(headers), desk.get(**headers)):
            assert not any(name.startswith("Access-Control") for name in response.headers)
            assert headers or "Vary" not in response.headers
