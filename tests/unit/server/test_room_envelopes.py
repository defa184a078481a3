"""Envelopes and ids: what is taken, in which form it goes on, what is refused in which words."""

from __future__ import annotations

import base64
import json
import re
import time
from collections.abc import Callable
from functools import partial
from time import process_time

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from signalhub.core.rooms.values import ABOUT_PROPOSALS, TYPES
from signalhub.server.rooms.envelopes import (
    RoomEnvelope,
    inbox_id,
    new_message_id,
    proposal_id,
    pseudonym_id,
    read_deposit,
    read_envelope,
    read_members,
    room_name,
)
from signalhub.wire.errors import RoomCode, RoomError
from signalhub.wire.room_ids import default_inbox

BYTES_MAX = 2**16
CAPABILITY = "pw1oQgdmuN2WQLXM3CpAZaVIVGvyJRwpcv9QG4XsHfg"

# Too long, empty, of another alphabet, or able to climb out of a folder.
BAD_IDS = ["", "x" * 129, "a/b", "a b", "a\nb", "ä", "٣", "a..b", "..", 'a"b', "a\\b", "a\0b", "%"]


def envelope(**members: object) -> RoomEnvelope:
    return read_envelope({"ciphertext": "QUJD"} | members, BYTES_MAX)


def refusal(**members: object) -> RoomError:
    with pytest.raises(RoomError) as caught:
        envelope(**members)
    return caught.value


def test_an_envelope_holds_what_its_sender_said_and_the_hub_asks_for() -> None:
    only = RoomEnvelope(None, b"QUJD", "mls_app", "", None, None, None)
    names = ("messageId", "roomId", "tenantId", "pseudonymId", "type", "proposalId")

    assert envelope() == only
    assert envelope(**dict.fromkeys(names)) == only, "null means absent"
    assert envelope(sequence=[], timestamp={"a": 1}, extra="..", action="send") == only
    members = {"messageId": "m-1", "roomId": "r:1", "tenantId": "t", "pseudonymId": "p:1"}
    read = envelope(**members, type="mls_group_info")
    assert read == RoomEnvelope("m-1", b"QUJD", "mls_group_info", "", "p:1", "r:1", "t")
    assert envelope(messageId="x" * 128).message_id == "x" * 128
    assert refusal(ciphertext=None).code == RoomCode.BAD_ENVELOPE


@pytest.mark.parametrize("type_", sorted(TYPES))
def test_proposals_and_what_is_said_about_them_need_an_id(type_: str) -> None:
    if type_ in ABOUT_PROPOSALS:
        assert envelope(type=type_, proposalId="p1").proposal == "p1"
        assert "proposalId" in refusal(type=type_).text
        assert "proposalId" in refusal(type=type_, proposalId="a:b").text
    else:
        assert envelope(type=type_, proposalId="p1").proposal == ""
        assert envelope(type=type_, proposalId=7).proposal == ""


@pytest.mark.parametrize("member", ["messageId", "roomId", "tenantId", "pseudonymId", "type"])
def test_a_bad_member_is_named_and_not_repeated(member: str) -> None:
    colon = ["a:b"] if member in ("messageId", "tenantId") else []
    for value in (*BAD_IDS, *colon, 1, 1.5, True, [], ["a"], {"a": "b"}, "some/secret!"):
        error = refusal(**{member: value})
        assert error.code == RoomCode.BAD_ENVELOPE
        assert error.text.startswith(f"{member} must be ")
        assert "secret" not in error.text
    for other in ("proposalId", "ciphertext"):
        secret = {"type": "mls_commit", "proposalId": "p1", other: "some/secret!"}
        assert "secret" not in refusal(**secret).text


@given(st.binary(min_size=1, max_size=200), st.booleans(), st.booleans())
def test_a_ciphertext_goes_on_as_base64url_without_padding(
    data: bytes, is_standard: bool, is_padded: bool
) -> None:
    encode = base64.b64encode if is_standard else base64.urlsafe_b64encode
    given_text = encode(data).decode() if is_padded else encode(data).decode().rstrip("=")

    stored = envelope(ciphertext=given_text).ciphertext

    assert stored == base64.urlsafe_b64encode(data).rstrip(b"=")
    assert envelope(ciphertext="QR").ciphertext == b"QR", "also bits that decode to nothing"


@pytest.mark.parametrize(
    "text",
    [
        *("", "=", "==", "A", "A===", "AAAAA", "QQ=", "QUI==", "QUJD=", "QUJD====", "QQ===="),
        *("QU=D", "Q-U+", "Q_U/", "QU JD", "QUJD\n", "ÄÖÜ!", "QUJ.", "QU\0D", "٣٣٣٣"),
        *(0, 7, True, [], {}, ["QUJD"]),
    ],
)
def test_what_is_no_base64_is_refused(text: object) -> None:
    error = refusal(ciphertext=text)

    assert error.code == RoomCode.BAD_ENVELOPE
    assert error.text.startswith("ciphertext")


def test_a_ciphertext_is_as_large_as_what_it_decodes_to() -> None:
    largest = base64.urlsafe_b64encode(bytes(BYTES_MAX)).decode()
    larger = base64.urlsafe_b64encode(bytes(BYTES_MAX + 1)).decode()

    assert envelope(ciphertext=largest).ciphertext == largest.rstrip("=").encode()
    assert refusal(ciphertext=larger).code == RoomCode.TOO_LARGE
    assert refusal(ciphertext=larger.rstrip("=")).code == RoomCode.TOO_LARGE


def test_a_direct_write_needs_an_id_and_a_ciphertext() -> None:
    assert read_deposit({"messageId": "m", "ciphertext": "+/8="}, 9) == ("m", b"-_8")
    for members, word in (
        ({"ciphertext": "QUJD"}, "messageId"),
        ({"ciphertext": "QUJD", "messageId": "a/b"}, "messageId"),
        ({"messageId": "m"}, "ciphertext"),
    ):
        with pytest.raises(RoomError, match=word) as caught:
            read_deposit(dict(members), 9)
        assert caught.value.code == RoomCode.BAD_ENVELOPE


def test_ids_in_headers_stay_as_they_are_or_are_bad_requests() -> None:
    assert room_name(None, "general") == "general"
    assert room_name("acme", "general") == room_name(None, "acme:general")
    assert pseudonym_id("p:1~.-_") == "p:1~.-_"
    assert proposal_id("p.1~-_") == "p.1~-_"
    bad: list[Callable[[], str]] = [lambda: room_name("a:b", "general"), lambda: proposal_id("p:1")]
    for text in BAD_IDS:
        bad += [partial(read, text) for read in (pseudonym_id, proposal_id)]
        bad += [partial(room_name, None, text), partial(room_name, text, "general")]

    for read in bad:
        with pytest.raises(RoomError) as caught:
            read()
        assert caught.value.code == RoomCode.BAD_REQUEST


@given(st.binary(min_size=32, max_size=32))
def test_a_capability_is_the_same_in_every_base64(data: bytes) -> None:
    canonical = base64.urlsafe_b64encode(data).decode().rstrip("=")

    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        text = encode(data).decode()
        assert inbox_id(text) == canonical
        assert inbox_id(text.rstrip("=")) == canonical


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        (CAPABILITY, CAPABILITY),
        (CAPABILITY.replace("w", "+"), CAPABILITY.replace("w", "-")),
        ("a", "a"),
        ("a=", "a"),
        ("a==", "a"),
        ("my.inbox~1", "my.inbox~1"),
        ("x" * 344, "x" * 344),
        ("acme:general", default_inbox("acme:general")),
        ("YWNtZTpnZW5lcmFs", default_inbox("acme:general")),
    ],
)
def test_an_inbox_id_has_one_form(text: str, canonical: str) -> None:
    assert inbox_id(text) == canonical


@pytest.mark.parametrize(
    "text",
    [
        *("", "=", "===", "a===", "x" * 345, "a/b", "a+b", "a b", "ä", "..", "a..b", "=a"),
        CAPABILITY[:-1] + "+=" + "=",
        CAPABILITY[:-2] + "+",
        CAPABILITY[:-3] + "..w",
        CAPABILITY[:-2] + "+_",
    ],
)
def test_what_is_no_inbox_id_is_a_bad_request(text: str) -> None:
    with pytest.raises(RoomError, match="inbox id must be") as caught:
        inbox_id(text)

    assert caught.value.code == RoomCode.BAD_REQUEST
    assert len(text) < 4 or text not in caught.value.text


def test_minted_ids_are_ulids_of_now() -> None:
    before = time.time_ns() // 1_000_000
    ids = [new_message_id() for _ in range(1_000)]
    after = time.time_ns() // 1_000_000

    assert len(set(ids)) == len(ids)
    assert all(re.fullmatch("[0-7][0-9A-HJKMNP-TV-Z]{25}", one) for one in ids)
    digits = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
    for one in ids:
        at = sum(digits.index(digit) * 32**place for place, digit in enumerate(one[9::-1]))
        assert before <= at <= after
    assert envelope(messageId=ids[0]).message_id == ids[0]


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"7", b'"text"', b'{"a":}', b'{"roomId":"\\ud800"}', b"[" * 5_000]
)
def test_a_body_that_is_no_object_is_refused(body: bytes) -> None:
    with pytest.raises((ValueError, RecursionError)):
        read_members(body)


@given(
    st.dictionaries(
        st.sampled_from(["roomId", "type", "ciphertext", "action", "t", "other"]),
        st.none() | st.text() | st.integers() | st.booleans() | st.lists(st.text()),
    )
)
def test_of_a_body_known_texts_are_read_and_nothing_else_is(given: dict[str, object]) -> None:
    read = read_members(json.dumps(given).encode())

    known = {name: value for name, value in given.items() if name not in ("t", "other")}
    assert read.keys() == known.keys()
    for name, value in known.items():
        is_text = value is None or isinstance(value, str)
        assert read[name] == value if is_text else type(read[name]) is object


def fastest_s(body: bytes) -> float:
    found = []
    for _ in range(5):
        began_s = process_time()
        read_members(body)
        found.append(process_time() - began_s)
    return min(found)


@pytest.mark.parametrize("name", ["roomId", "unknown"])
def test_a_body_of_many_small_values_is_read_without_making_them(name: str) -> None:
    small = b",".join([b"{}"] * 300_000)

    assert fastest_s(b'{"%b":[%b]}' % (name.encode(), small)) < 0.3 * decoded_s(b"[%b]" % small)


def decoded_s(body: bytes) -> float:
    began_s = process_time()
    msgspec.json.decode(body)
    return process_time() - began_s
