"""Results of rooms and inboxes, as they travel."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from signalhub.core.rooms.values import Accepted, Blob, Page
from signalhub.server.port.http import Response
from signalhub.server.rooms import answers
from signalhub.server.rooms.answers import Timestamps, time_text
from signalhub.wire.entry import ProposalBody
from signalhub.wire.errors import RoomCode, RoomError

AT_MS = 1_769_860_805_123  # 2026-01-31T12:00:05.123Z


def json_of(response: Response) -> Any:
    assert response.content_type == "application/json"
    return msgspec.json.decode(response.content)


@pytest.mark.parametrize("code", list(RoomCode))
def test_every_code_has_a_status_and_is_told_with_its_text(code: RoomCode) -> None:
    response = answers.error_response(RoomError(code, "Something is wrong."))

    assert 400 <= response.status <= 503
    assert json_of(response)["errorCode"] == code.value
    assert json_of(response)["error"]


def test_a_rate_limit_says_when_to_come_back_in_these_words() -> None:
    error = RoomError(RoomCode.RATE_LIMIT_EXCEEDED, "in other words", retry_after_ms=1_847)

    response = answers.error_response(error)

    assert response.status == 429
    assert response.headers["Retry-After"] == "2"
    assert json_of(response) == {
        "error": "Rate limit exceeded",
        "errorCode": "RATE_LIMIT_EXCEEDED",
        "retryAfterMs": 1_847,
    }


@pytest.mark.parametrize(("wait_ms", "wait_s"), [(1, "1"), (1_000, "1"), (1_001, "2"), (None, "1")])
def test_seconds_to_wait_are_rounded_up(wait_ms: int | None, wait_s: str) -> None:
    error = RoomError(RoomCode.UNAVAILABLE, "Later.", retry_after_ms=wait_ms)

    response = answers.error_response(error)

    assert response.status == 503
    assert response.headers["Retry-After"] == wait_s
    assert json_of(response)["retryAfterMs"] == (wait_ms or 1_000)


def test_other_refusals_do_not_invite_to_try_again() -> None:
    response = answers.error_response(RoomError(RoomCode.CONFLICT, "No.", retry_after_ms=5))

    assert "Retry-After" not in response.headers
    assert json_of(response) == {"error": "No.", "errorCode": "CONFLICT"}


def test_a_message_that_was_sent_has_an_id_and_a_position() -> None:
    response = answers.sent(Accepted("m.1~-_", 7, False, AT_MS))

    assert response.status == 200
    assert json_of(response) == {"messageId": "m.1~-_", "seq": 7}
    assert "Idempotent-Replay" not in response.headers


def test_a_repeat_is_marked() -> None:
    again = Accepted("m", 7, True, None)

    assert answers.sent(again).headers["Idempotent-Replay"] == "true"
    assert answers.deposited(again, "coarse").headers["Idempotent-Replay"] == "true"
    assert json_of(answers.deposited(again, "coarse")) == {"seq": 7}


@pytest.mark.parametrize(
    ("timestamps", "expected"),
    [
        ("exact", {"seq": 7, "storedAt": "2026-01-31T12:00:05.123Z"}),
        ("coarse", {"seq": 7, "storedAt": "2026-01-31T12:00:05Z"}),
        ("none", {"seq": 7}),
    ],
)
def test_a_deposit_is_accepted_with_the_time_that_may_be_told(
    timestamps: Timestamps, expected: dict[str, object]
) -> None:
    response = answers.deposited(Accepted("m", 7, False, AT_MS), timestamps)

    assert response.status == 202
    assert json_of(response) == expected


def test_coarse_times_are_those_of_a_grid_of_five_seconds() -> None:
    assert time_text(AT_MS + 4_000, "coarse") == "2026-01-31T12:00:05Z"
    assert time_text(AT_MS + 5_000, "coarse") == "2026-01-31T12:00:10Z"
    assert time_text(0, "coarse") == "1970-01-01T00:00:00Z"
    assert time_text(None, "exact") is None


def test_a_page_joins_what_the_core_has_written() -> None:
    response = answers.page(Page([b'{"seq":3}', b'{"seq":4}'], 5, 2))

    assert response.status == 200
    assert response.content == b'{"messages":[{"seq":3},{"seq":4}],"nextSeq":5}'
    assert response.headers["X-Inbox-Oldest-Seq"] == "2"


def test_an_empty_page_does_not_say_whether_there_ever_was_something() -> None:
    response = answers.page(Page([], 9, None))

    assert response.content == b'{"messages":[],"nextSeq":9}'
    assert "X-Inbox-Oldest-Seq" not in response.headers


def test_only_a_partial_page_says_that_it_is_one() -> None:
    assert json_of(answers.page(Page([b"{}"], 1, 1, True))) == {
        "messages": [{}],
        "nextSeq": 1,
        "partial": True,
    }


def test_blobs_come_with_their_version() -> None:
    read, written = answers.blob(Blob(3, b"\0\xff")), answers.blob_written(Blob(4))
    unchanged = answers.blob_unchanged(Blob(3, b"\0\xff"))

    assert (read.status, read.body, read.content_type) == (
        *(200, b"\0\xff"),
        "application/octet-stream",
    )
    assert [one.headers["ETag"] for one in (read, written, unchanged)] == ['"3"', '"4"', '"3"']
    assert (written.status, written.body) == (204, b"")
    assert (unchanged.status, unchanged.body) == (304, b"")


def test_a_proposal_tells_what_is_known_about_it() -> None:
    known = ProposalBody(
        "p1", "anna", b"Y29udGVudA", "pending", AT_MS, AT_MS + 86_400_000, [b"b25l"]
    )

    assert json_of(answers.proposal(known, "exact")) == {
        "proposalId": "p1",
        "proposerPseudonymId": "anna",
        "encryptedContent": "Y29udGVudA",
        "encryptedApprovals": ["b25l"],
        "status": "pending",
        "createdAt": "2026-01-31T12:00:05.123Z",
        "expiresAt": "2026-02-01T12:00:05.123Z",
    }


def test_a_proposal_without_a_proposer_or_times_leaves_them_out() -> None:
    anonymous = ProposalBody("p1", "", b"Y29udGVudA", "expired", AT_MS, AT_MS)
    record = {
        "proposalId": "p1",
        "encryptedContent": "Y29udGVudA",
        "encryptedApprovals": [],
        "status": "expired",
    }

    assert json_of(answers.proposal(anonymous, "none")) == record
    assert json_of(answers.proposals([anonymous], "none")) == {"proposals": [record]}
    assert json_of(answers.proposals([], "none")) == {"proposals": []}


def test_what_depends_on_a_header_is_kept_by_no_cache() -> None:
    for response in (
        answers.page(Page([], 0, None)),
        answers.page(Page([b"{}"], 2, 1)),
        answers.blob(Blob(1, b"x")),
        answers.blob_unchanged(Blob(1, b"x")),
        answers.proposals([], "none"),
        answers.error_response(RoomError(RoomCode.NOT_FOUND, "No.")),
    ):
        assert response.headers["Cache-Control"] == "no-store"
