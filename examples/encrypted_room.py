"""A room whose messages the hub cannot read: one member sends, one was away, an outsider listens.

The members share the exporter secret of a group, as MLS provides it. From it they derive the id of
the room's inbox, which others cannot guess, and the key that seals their messages.
Start a hub with `signalhub serve`, then run

    python examples/encrypted_room.py --url http://127.0.0.1:8787

Without `--url` it uses SIGNALHUB_URL.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import secrets
import sys
from base64 import urlsafe_b64encode

import signalhub
from signalhub import Hub, Room, RoomMessage, capability
from signalhub.client.sealing import Sealing, Unsealable

HUB = "http://127.0.0.1:8787"
SEALING_LABEL = "signalhub-room-sealing"


class Member:
    """A participant with a secret: the group's, or one that was only guessed."""

    def __init__(self, exporter_secret: bytes, room: str) -> None:
        self.inbox_id = capability.inbox_id(capability.inbox_key(exporter_secret, room))
        key = capability.exporter(exporter_secret, SEALING_LABEL, room.encode(), 32)
        self._sealing = Sealing(key, room)

    async def say(self, room: Room, words: str) -> None:
        # The id is authenticated with the text, so it must be known before.
        message_id = signalhub.new_message_id()
        sealed = self._sealing.seal(message_id, words.encode())
        sent = await room.send(sealed, message_id=message_id)
        print(f"a member says   {sent.seq}  {words}")

    def read(self, message: RoomMessage) -> str:
        return self._sealing.open(message.message_id, message.ciphertext).decode()


async def main(url: str) -> None:
    # A room is bound to its inbox permanently, so every run uses a new room.
    name = f"reading-circle-{secrets.token_hex(4)}"
    exporter_secret = secrets.token_bytes(32)
    talker, reader = Member(exporter_secret, name), Member(exporter_secret, name)

    async with (
        signalhub.hub(url) as hub,
        hub.room(name, pseudonym="p1", inbox=talker.inbox_id) as table,
        hub.room(name, pseudonym="p9") as window,
    ):
        for words in ("we meet on Friday", "bring the second chapter", "and tea"):
            await talker.say(table, words)

        await show_what_the_hub_has(hub, talker.inbox_id)
        position = await catch_up(hub, reader)
        async with hub.room(name, inbox=reader.inbox_id, since=position) as chair:
            await reader.say(chair, "I will be there")
        await listen_from_outside(window, Member(secrets.token_bytes(32), name))


async def show_what_the_hub_has(hub: Hub, inbox_id: str) -> None:
    for message in await hub.inbox(inbox_id).fetch():
        print(f"the hub has     {message.seq}  {shown(message)}")


async def catch_up(hub: Hub, reader: Member) -> int:
    """Read everything that was missed; return the position to continue after."""
    inbox = hub.inbox(reader.inbox_id).messages()
    async for message in inbox:
        print(f"who was away    {message.seq}  {reader.read(message)}")
    return inbox.next_seq - 1


async def listen_from_outside(window: Room, outsider: Member) -> None:
    """The id of a room is not secret: anyone may listen, and receives this."""
    async for message in window:
        try:
            print(f"an outsider     {message.seq}  {outsider.read(message)}")
        except Unsealable:
            print(f"an outsider     {message.seq}  {shown(message)}  cannot be opened")
        if message.seq == 4:
            return


def shown(message: RoomMessage) -> str:
    """The beginning of a ciphertext."""
    return f"{urlsafe_b64encode(message.ciphertext[:24]).decode()}…"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="A room whose messages its hub cannot read.")
    parser.add_argument("--url", default=os.environ.get("SIGNALHUB_URL") or HUB, help="the hub")
    try:
        asyncio.run(main(parser.parse_args().url))
    except signalhub.ClientError as error:
        sys.exit(str(error))
