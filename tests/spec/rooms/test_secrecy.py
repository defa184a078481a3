"""What the hub gives away: nothing in logs, metrics and errors, and no names on its disk."""

from __future__ import annotations

import json
import signal
from base64 import b64encode
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.support.socket.guest import TurnedAway, encoded, offer, send_frame
from tests.support.socket.http import JSON, Answer, Headers, HungUp
from tests.support.socket.rooms import (
    APPEND,
    MESSAGE,
    MESSAGES,
    SpawnedHouse,
    default_inbox,
    open_house,
    refused,
    spawn_house,
)

ROOM, TENANT, BOUND = "zq-room-4711", "zq-tenant-4712", "zq-bound-4713"
INBOX, OTHER_INBOX = "zq-inbox-4714", "zq-inbox-4715"
SPEAKER, GOVERNOR = "zq-speaker-4716", "zq-governor-4717"
APPROVER, COMMITTER = "zq-approver-4720", "zq-committer-4721"
MESSAGE_ID, PROPOSAL = "zq-message-4718", "zq-proposal-4719"
METADATA, PROPOSALS = "/v1/room/metadata", "/v1/room/proposals"
BY_PATH = f"/ws/{TENANT}/{ROOM}?pseudonym={SPEAKER}"
NAMED = {"X-Room-ID": ROOM}

UNKEPT = (
    *(ROOM, TENANT, BOUND, INBOX, OTHER_INBOX, SPEAKER, APPROVER, COMMITTER),
    *(f"{TENANT}:{ROOM}", f"x{ROOM}"),
)
NAMES = (*UNKEPT, GOVERNOR, MESSAGE_ID, PROPOSAL)
# Enough for everything that is meant to succeed, and then the limit.
RATE = 12


def given_away(data: bytes, names: Iterable[str] = NAMES) -> set[bytes]:
    """The names that can be read in what the hub has written, in any form."""
    found = set()
    for name in names:
        raw = name.encode()
        found |= {raw, raw[3:], encoded(name).encode(), b64encode(raw).rstrip(b"=")}
        found |= {raw.hex().encode(), raw.hex().upper().encode()}
    return {trace for trace in found if trace in data}


def files_in(folder: Path) -> dict[str, bytes]:
    """Everything the hub keeps."""
    paths = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


class Witness:
    """Uses a hub in good and bad ways and notes all it was told in errors."""

    def __init__(self, house: SpawnedHouse) -> None:
        self.house = house
        self.statuses: set[int] = set()
        self.codes: set[str] = set()
        self.heard: list[bytes] = []

    def note(self, answer: Answer) -> None:
        self.statuses.add(answer.status)
        if answer.status >= 400:
            self.heard += [repr(answer.headers).encode(), answer.body]

    async def ask(
        self, method: str, path: str, headers: Headers = (), body: bytes | None = None
    ) -> None:
        self.note(await self.house.web.request(method, path, headers, body))

    async def send(self, headers: dict[str, str] | None = None, **members: Any) -> None:
        envelope = {"messageId": MESSAGE_ID, "roomId": ROOM, "ciphertext": "QUJD"} | members
        await self.ask("POST", MESSAGE, JSON | (headers or {}), json.dumps(envelope).encode())

    async def append(self, inbox: str, message_id: str, ciphertext: str = "QUJD") -> None:
        body = json.dumps({"messageId": message_id, "ciphertext": ciphertext}).encode()
        await self.ask("POST", APPEND, JSON | {"X-Inbox-ID": inbox}, body)

    async def knock(self, path: str, headers: Headers = ()) -> None:
        try:
            guest = await self.house.enter(path, headers)
        except TurnedAway as refusal:
            self.note(refusal.answer)
        else:
            self.statuses.add(101)
            guest.abort()

    async def use_well(self) -> None:
        """Everything that is meant to be, with names of all kinds."""
        for _ in range(2):
            await self.send(pseudonymId=SPEAKER)
        await self.send(messageId=f"{MESSAGE_ID}-t", tenantId=TENANT, pseudonymId=SPEAKER)
        await self.send({"X-Inbox-ID": INBOX}, roomId=BOUND)
        about = {"mls_proposal": GOVERNOR, "mls_approval": APPROVER, "mls_commit": COMMITTER}
        for type, who in about.items():
            message_id = f"{MESSAGE_ID}-{type}"
            await self.send(messageId=message_id, type=type, proposalId=PROPOSAL, pseudonymId=who)
        await self.append(INBOX, f"{MESSAGE_ID}-appended")
        await self.knock(BY_PATH)
        await self.knock("/room", offer(room=BOUND, pseudonym=SPEAKER, inbox=INBOX))
        for path in (METADATA, PROPOSALS, f"{PROPOSALS}/{PROPOSAL}"):
            await self.ask("GET", path, NAMED)
        await self.ask("PUT", METADATA, NAMED, b"blob")
        for inbox in (INBOX, default_inbox(ROOM), f"{TENANT}:{ROOM}"):
            await self.ask("GET", MESSAGES, {"X-Inbox-ID": inbox})

    async def misuse(self) -> None:
        """Every refusal there is over HTTP."""
        bad = f"{ROOM}/.."
        bad_members: list[dict[str, Any]] = [
            *({"roomId": bad}, {"messageId": f"{MESSAGE_ID}/.."}, {"pseudonymId": f"{SPEAKER}/"}),
            *({"tenantId": f"{TENANT}/"}, {"type": ROOM}, {"ciphertext": f"{ROOM}!"}),
            *({"type": "mls_commit", "proposalId": f"{PROPOSAL}/"}, {"ciphertext": "A" * 90_000}),
        ]
        for members in bad_members:
            await self.send(**{"messageId": "x"} | members)
        await self.send({"X-Room-ID": f"x{ROOM}"}, messageId="x")
        await self.send({"X-Pseudonym-ID": f"{SPEAKER} x"}, messageId="x")
        await self.send({"X-Inbox-ID": OTHER_INBOX}, messageId="x", roomId=BOUND)
        await self.send({"X-Inbox-ID": INBOX}, messageId="x", roomId=f"x{ROOM}")
        inbox = {"X-Inbox-ID": INBOX}
        asked: list[tuple[str, str, dict[str, str], bytes | None]] = [
            ("POST", MESSAGE, JSON, f'{{"roomId":"{ROOM}"'.encode()),
            ("POST", MESSAGE, {"Content-Type": f"text/{ROOM}"}, ROOM.encode()),
            ("DELETE", f"{MESSAGE}?room={ROOM}", NAMED, None),
            ("GET", f"/nowhere/{ROOM}", NAMED, None),
            ("GET", f"{PROPOSALS}/{PROPOSAL}-unknown", NAMED, None),
            ("GET", METADATA, {"X-Room-ID": bad}, None),
            ("PUT", METADATA, NAMED | {"If-Match": f'"{ROOM}"'}, b"x"),
            ("PUT", METADATA, NAMED | {"If-Match": ROOM}, b"x"),
            ("PUT", METADATA, NAMED, b"x" * 70_000),
            ("GET", f"{MESSAGES}?fromSeq={ROOM}", inbox, None),
            ("GET", MESSAGES, {"X-Inbox-ID": f"{INBOX}/.."}, None),
            ("GET", BY_PATH, NAMED, None),
            ("GET", f"/room?{ROOM}", NAMED, None),
        ]
        for method, path, headers, body in asked:
            await self.ask(method, path, headers, body)
        await self.append(f"{INBOX}/..", "x")
        await self.append(INBOX, f"{MESSAGE_ID}/..")
        await self.append(INBOX, "x", f"{INBOX}!")
        for rest in ("", "%20?pseudonym=x", f"?pseudonym={SPEAKER}%20", f"/{SPEAKER}"):
            await self.knock(f"/ws/{TENANT}/{ROOM}{rest}")
        for headers in (
            NAMED,
            offer(room=bad, pseudonym=SPEAKER),
            offer(room=BOUND, pseudonym=SPEAKER, inbox=OTHER_INBOX),
            offer(room=ROOM, pseudonym=SPEAKER) | {"Origin": f"http://{ROOM}"},
            NAMED | offer(room=BOUND, pseudonym=SPEAKER),
        ):
            await self.knock("/room", headers)

    async def exceed(self) -> None:
        """Every limit there is."""
        for number in range(RATE + 1):
            await self.send(messageId=f"{MESSAGE_ID}-x-{number}", pseudonymId=SPEAKER)
            await self.append(INBOX, f"{MESSAGE_ID}-y-{number}")
            await self.ask("GET", MESSAGES, {"X-Inbox-ID": INBOX})

    async def misuse_sockets(self) -> None:
        """Every error there is on a socket, and every way it can end."""
        headers = NAMED | {"X-Pseudonym-ID": SPEAKER}
        guest = await self.house.enter("/room", headers)
        guest.say({"action": ROOM})
        guest.say(f'{{"{ROOM}')
        for members in (
            *({"ciphertext": f"{ROOM}!"}, {"messageId": f"{MESSAGE_ID}/.."}, {"type": ROOM}),
            *({"roomId": BOUND}, {"ciphertext": "A" * 90_000}, {}),
        ):
            guest.say(send_frame(f"{MESSAGE_ID}-socket") | members)
        for _ in range(8):
            told = await guest.reply()
            self.codes.add(told["errorCode"])
            told.pop("messageId", None)
            self.heard.append(json.dumps(told, ensure_ascii=False).encode())
        for frame in ("nonsense", send_frame(MESSAGE_ID, "A" * 2**20)):
            guest = await self.house.enter("/room", headers)
            guest.say(frame)
            guest.say(f"{ROOM}" * 10)
            guest.abort()
        guest = await self.house.enter("/room", headers)
        guest.send(MESSAGE_ID, "A" * 2**20)
        assert await guest.until_closed() == 1009

    async def disturb(self) -> None:
        """What is not even HTTP, or ends in the middle."""
        for data in (b"x" * 3 * 2**20, b""):
            try:
                await self.ask("POST", MESSAGE, JSON | NAMED, data)
                await self.ask("POST", f"/{ROOM} HTTP/9.9 {INBOX}", {"X-Inbox-ID": INBOX}, data)
            except HungUp:
                pass


async def test_no_id_is_in_logs_metrics_and_errors_and_no_name_on_disk() -> None:
    rooms: dict[str, Any] = {"rate": RATE, "append_rate": RATE, "fetch_rate": RATE}
    async with spawn_house(hub={"log_level": "debug"}, **rooms) as house:
        witness = Witness(house)
        await witness.use_well()
        await witness.misuse()
        await witness.exceed()
        await witness.misuse_sockets()
        await witness.disturb()
        pages = [(await house.web.get(path)).body for path in ("/metrics", "/health")]
        await house.crash()
        await witness.use_well()
        pages += [(await house.web.get(path)).body for path in ("/metrics", "/health")]
        await house.join(ROOM, SPEAKER)
        process, stdout = house.hub.process, house.hub.process.stdout
        assert stdout is not None
        process.send_signal(signal.SIGTERM)
        said = await stdout.read()
        assert await process.wait() == 0

        expected = {101, 200, 202, 204, 400, 403, 404, 405, 409, 412, 413, 415, 426, 429}
        assert expected <= witness.statuses
        assert {"BAD_FRAME", "BAD_ENVELOPE", "TOO_LARGE", "RATE_LIMIT_EXCEEDED"} <= witness.codes
        log = house.hub.log()
        assert "ready" in log
        assert "Traceback" not in log
        for told in (*witness.heard, *pages, said, log.encode()):
            assert not given_away(told), told
        for name, data in files_in(house.hub.data).items():
            assert not given_away(name.encode())
            assert not given_away(data, UNKEPT), name
        # The search is worth something: what may be kept is found.
        assert any(given_away(data, [MESSAGE_ID]) for data in files_in(house.hub.data).values())


async def test_running_hub_keeps_no_names_and_no_id_leads_out_of_its_folder(tmp_path: Path) -> None:
    unsafe = ["../../escaped", "..", "a/../b", "/etc/escaped", "a\\..\\b", "a\x00b", "%2e%2e%2f"]
    async with open_house(hub={"data": str(tmp_path / "a" / "data")}) as house:
        await house.sent(MESSAGE_ID, ROOM, pseudonymId=SPEAKER, tenantId=TENANT)
        await house.sent(MESSAGE_ID, BOUND, inbox=INBOX)
        await house.appended(OTHER_INBOX, MESSAGE_ID)
        for one in unsafe:
            refused(await house.send(one), 400)
            refused(await house.append(INBOX, one), 400)
            refused(await house.send("a", type="mls_commit", proposalId=one), 400)
        answer = await house.web.get(f"{PROPOSALS}/..%2f..%2fescaped", NAMED)
        assert answer.status in (400, 404)

        files = files_in(tmp_path)

        assert any(given_away(data, [MESSAGE_ID]) for data in files.values())
        for name, data in files.items():
            assert "escaped" not in name
            assert not given_away(data, UNKEPT), name
