"""What the hub gives away: nothing in logs, metrics and errors, and no names on its disk."""

from __future__ import annotations

import json
import signal
from base64 import b64encode
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.support.socket.guest import TurnedAway, encoded, offer, send_frame
from tests.support.socket.http import JSON, Headers, HungUp
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
W2 = f"/ws/{TENANT}/{ROOM}?pseudonym={SPEAKER}"

UNKEPT = (
    *(ROOM, TENANT, BOUND, INBOX, OTHER_INBOX, SPEAKER, APPROVER, COMMITTER),
    *(f"{TENANT}:{ROOM}", f"x{ROOM}"),
)
NAMES = (*UNKEPT, GOVERNOR, MESSAGE_ID, PROPOSAL)
# Enough for everything that is meant to succeed, and then the limit.
RATE = 12


def traces(names: Iterable[str]) -> set[bytes]:
    """Every form in which somebody might have written a name down."""
    found = set()
    for name in names:
        raw = name.encode()
        found |= {raw, raw[3:], encoded(name).encode(), b64encode(raw).rstrip(b"=")}
        found |= {raw.hex().encode(), raw.hex().upper().encode()}
    return found


def given_away(data: bytes, names: Iterable[str] = NAMES) -> list[bytes]:
    """Which names can be read in what the hub has written."""
    return [trace for trace in traces(names) if trace in data]


def files_in(folder: Path) -> dict[str, bytes]:
    """Everything the hub keeps."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


class Witness:
    """Uses a hub in good and bad ways and writes down all it was told in errors."""

    def __init__(self, house: SpawnedHouse) -> None:
        self.house = house
        self.statuses: set[int] = set()
        self.codes: set[str] = set()
        self.heard: list[bytes] = []

    async def ask(
        self, method: str, path: str, headers: Headers = (), body: bytes | None = None
    ) -> None:
        answer = await self.house.web.request(method, path, headers, body)
        self.statuses.add(answer.status)
        if answer.status >= 400:
            self.heard += [repr(answer.headers).encode(), answer.body]

    async def send(self, message_id: str, room: str = ROOM, **members: Any) -> None:
        headers: dict[str, str] = JSON | members.pop("headers", {})
        envelope = {"messageId": message_id, "roomId": room, "ciphertext": "QUJD"} | members
        await self.ask("POST", MESSAGE, headers, json.dumps(envelope).encode())

    async def append(self, inbox: str, message_id: str, ciphertext: str = "QUJD") -> None:
        body = json.dumps({"messageId": message_id, "ciphertext": ciphertext}).encode()
        await self.ask("POST", APPEND, JSON | {"X-Inbox-ID": inbox}, body)

    async def knock(self, path: str, headers: Headers = ()) -> None:
        try:
            guest = await self.house.enter(path, headers)
        except TurnedAway as refusal:
            self.statuses.add(refusal.answer.status)
            self.heard += [repr(refusal.answer.headers).encode(), refusal.answer.body]
        else:
            self.statuses.add(101)
            guest.abort()

    async def use_well(self) -> None:
        """Everything that is meant to be, with names of all kinds."""
        bound = {"X-Inbox-ID": INBOX}
        await self.send(MESSAGE_ID, pseudonymId=SPEAKER)
        await self.send(MESSAGE_ID, pseudonymId=SPEAKER)
        await self.send(f"{MESSAGE_ID}-t", tenantId=TENANT, pseudonymId=SPEAKER)
        await self.send(MESSAGE_ID, BOUND, headers=bound)
        about = (("mls_proposal", GOVERNOR), ("mls_approval", APPROVER), ("mls_commit", COMMITTER))
        for number, (type, who) in enumerate(about):
            names = {"proposalId": PROPOSAL, "pseudonymId": who}
            await self.send(f"{MESSAGE_ID}-{number}", type=type, **names)
        await self.append(INBOX, f"{MESSAGE_ID}-appended")
        await self.knock(W2)
        await self.knock("/room", offer(room=BOUND, pseudonym=SPEAKER, inbox=INBOX))
        for path in (METADATA, PROPOSALS, f"{PROPOSALS}/{PROPOSAL}"):
            await self.ask("GET", path, {"X-Room-ID": ROOM})
        await self.ask("PUT", METADATA, {"X-Room-ID": ROOM}, b"blob")
        for inbox in (INBOX, default_inbox(ROOM), f"{TENANT}:{ROOM}"):
            await self.ask("GET", MESSAGES, {"X-Inbox-ID": inbox})

    async def misuse(self) -> None:
        """Every refusal there is over HTTP."""
        room = {"X-Room-ID": ROOM}
        bad = f"{ROOM}/.."
        for members in (
            {"roomId": bad},
            {"messageId": f"{MESSAGE_ID}/.."},
            {"pseudonymId": f"{SPEAKER}/"},
            {"tenantId": f"{TENANT}/"},
            {"type": ROOM},
            {"ciphertext": f"{ROOM}!"},
            {"type": "mls_commit", "proposalId": f"{PROPOSAL}/"},
            {"ciphertext": "A" * 90_000},
        ):
            await self.send(**{"message_id": "x", "room": ROOM} | renamed(members))
        await self.send("x", headers={"X-Room-ID": f"x{ROOM}"})
        await self.send("x", headers={"X-Pseudonym-ID": f"{SPEAKER} x"})
        await self.send("x", BOUND, headers={"X-Inbox-ID": OTHER_INBOX})
        await self.send("x", f"x{ROOM}", headers={"X-Inbox-ID": INBOX})
        await self.ask("POST", MESSAGE, JSON, f'{{"roomId":"{ROOM}"'.encode())
        await self.ask("POST", MESSAGE, {"Content-Type": f"text/{ROOM}"}, ROOM.encode())
        await self.ask("DELETE", f"{MESSAGE}?room={ROOM}", room)
        await self.ask("GET", f"/nowhere/{ROOM}", room)
        await self.ask("GET", f"{PROPOSALS}/{PROPOSAL}-unknown", room)
        await self.ask("GET", METADATA, {"X-Room-ID": bad})
        await self.ask("PUT", METADATA, room | {"If-Match": f'"{ROOM}"'}, b"x")
        await self.ask("PUT", METADATA, room | {"If-Match": ROOM}, b"x")
        await self.ask("PUT", METADATA, room, b"x" * 70_000)
        await self.ask("GET", f"{MESSAGES}?fromSeq={ROOM}", {"X-Inbox-ID": INBOX})
        await self.ask("GET", MESSAGES, {"X-Inbox-ID": f"{INBOX}/.."})
        await self.append(f"{INBOX}/..", "x")
        await self.append(INBOX, f"{MESSAGE_ID}/..")
        await self.append(INBOX, "x", f"{INBOX}!")
        for path in (W2, f"/room?{ROOM}"):
            await self.ask("GET", path, room)
        for path in (f"/ws/{TENANT}/{ROOM}", f"/ws/{TENANT}/{ROOM}%20?pseudonym=x", f"{W2}%20"):
            await self.knock(path)
        await self.knock(f"/ws/{TENANT}/{ROOM}/{SPEAKER}")
        await self.knock("/room", room)
        await self.knock("/room", offer(room=bad, pseudonym=SPEAKER))
        await self.knock("/room", offer(room=BOUND, pseudonym=SPEAKER, inbox=OTHER_INBOX))
        await self.knock(
            "/room", offer(room=ROOM, pseudonym=SPEAKER) | {"Origin": f"http://{ROOM}"}
        )
        await self.knock("/room", room | offer(room=BOUND, pseudonym=SPEAKER))

    async def exceed(self) -> None:
        """Every limit there is."""
        for number in range(RATE + 1):
            await self.send(f"{MESSAGE_ID}-x-{number}", pseudonymId=SPEAKER)
            await self.append(INBOX, f"{MESSAGE_ID}-y-{number}")
            await self.ask("GET", MESSAGES, {"X-Inbox-ID": INBOX})

    async def mumble(self) -> None:
        """Every error there is on a socket, and every way it can end."""
        headers = {"X-Room-ID": ROOM, "X-Pseudonym-ID": SPEAKER}
        guest = await self.house.enter("/room", headers)
        guest.say({"action": ROOM})
        guest.say(f'{{"{ROOM}')
        for members in (
            {"ciphertext": f"{ROOM}!"},
            {"messageId": f"{MESSAGE_ID}/.."},
            {"type": ROOM},
            {"roomId": BOUND},
            {"ciphertext": "A" * 90_000},
            {},
        ):
            guest.say(send_frame(f"{MESSAGE_ID}-socket") | members)
        for _ in range(8):
            told = await guest.reply()
            self.codes.add(told["errorCode"])
            told.pop("messageId", None)
            self.heard.append(json.dumps(told, ensure_ascii=False).encode())
        for frame in (*(["nonsense"] * 10), send_frame(MESSAGE_ID, "A" * 2**20)):
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
                await self.ask("POST", MESSAGE, JSON | {"X-Room-ID": ROOM}, data)
                await self.ask("POST", f"/{ROOM} HTTP/9.9 {INBOX}", {"X-Inbox-ID": INBOX}, data)
            except HungUp:
                pass


def renamed(members: dict[str, str]) -> dict[str, str]:
    """Members by the names of parameters where they have some."""
    names = {"roomId": "room", "messageId": "message_id"}
    return {names.get(name, name): value for name, value in members.items()}


async def test_no_id_is_in_logs_metrics_and_errors_and_no_name_on_disk() -> None:
    rooms: dict[str, Any] = {"rate": RATE, "append_rate": RATE, "fetch_rate": RATE}
    async with spawn_house(hub={"log_level": "debug"}, **rooms) as house:
        witness = Witness(house)
        await witness.use_well()
        await witness.misuse()
        await witness.exceed()
        await witness.mumble()
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
        for told in (*witness.heard, *pages, said):
            assert given_away(told) == [], told
        log = house.hub.log()
        assert "ready" in log
        assert "Traceback" not in log
        assert given_away(log.encode()) == []
        files = files_in(house.hub.data)
        assert sum(map(len, files.values())) > 0
        for name, data in files.items():
            assert given_away(name.encode()) == []
            assert given_away(data, UNKEPT) == [], name
        # The search is worth something: what may be kept is found.
        assert any(given_away(data, [MESSAGE_ID]) for data in files.values())


async def test_running_hub_keeps_no_names_either() -> None:
    async with open_house() as house:
        await house.sent(MESSAGE_ID, ROOM, pseudonymId=SPEAKER, tenantId=TENANT)
        await house.sent(MESSAGE_ID, BOUND, inbox=INBOX)
        await house.appended(OTHER_INBOX, MESSAGE_ID)

        files = files_in(Path(house.hub.settings.data))

        assert any(given_away(data, [MESSAGE_ID]) for data in files.values())
        for name, data in files.items():
            assert given_away(data, UNKEPT) == [], name


async def test_id_that_could_lead_out_of_a_folder_is_refused(tmp_path: Path) -> None:
    unsafe = ["../../escaped", "..", "a/../b", "/etc/escaped", "a\\..\\b", "a\x00b", "%2e%2e%2f"]
    async with open_house(hub={"data": str(tmp_path / "a" / "data")}) as house:
        for one in unsafe:
            refused(await house.send(one), 400)
            refused(await house.append(INBOX, one), 400)
            refused(await house.send("a", type="mls_commit", proposalId=one), 400)
        answer = await house.web.get(f"{PROPOSALS}/..%2f..%2fescaped", {"X-Room-ID": ROOM})

        assert answer.status in (400, 404)
        assert not [name for name in files_in(tmp_path) if "escaped" in name]
