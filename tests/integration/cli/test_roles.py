"""What the roles of `token mint` may do on the command line."""

from __future__ import annotations

import time
from pathlib import Path

import signalhub
from signalhub.actors import Actor, ActorHub, Host, op, remote
from signalhub.auth.matrix import VERBS
from signalhub.auth.permissions import ROLES
from signalhub.auth.tokens import mint
from signalhub.settings.model import Key
from signalhub.testing import run_hub
from tests.support.process.command import Done, command

SECRET = "correct horse battery staple, and some more of it"


def token(permissions: dict[str, tuple[str, ...]], actor: str = "ops/olga") -> str:
    return mint(
        Key(secret=SECRET),
        kid=None,
        subject=actor,
        actor=f"@({actor})",
        permissions=permissions,
        lifetime_s=600,
        issuer="signal-hub",
        now_s=time.time(),
    )


async def test_an_operator_reads_and_redrives_letters_without_being_a_subscriber() -> None:
    async with run_hub(auth={"enabled": True, "secret": SECRET}) as hub:

        async def run(role: str, *words: str) -> Done:
            variables = {"SIGNALHUB_TOKEN": token(ROLES[role])}
            return await command(hub.url, *words, variables=variables)

        everything = token(dict.fromkeys(VERBS, ("*",)), "shop/worker")
        async with signalhub.connect(hub.url, "@(shop/worker)", token=everything) as worker:
            await worker.create_topic("orders", poison="dead_letter")
            await worker.publish("orders", "order:new", 7, durable=True)
            async with worker.consume("orders", "billing") as orders:
                await (await anext(orders)).term(reason="no such customer", wait=True)
                listed = await run("operator", "dlq", "ls", "orders", "--json")
                plan = await run("operator", "dlq", "redrive", "orders", "--all", "--dry-run")
                seen = await run("viewer", "dlq", "ls", "orders")
                back = await run("operator", "dlq", "redrive", "orders", "--all")
                assert (back.code, back.out) == (0, "1 dead letter redriven\n"), back.err
                again = (await anext(orders)).payload
        jobs = await run("viewer", "jobs")

    (letter,) = listed.rows()
    assert (letter["payload"], letter["reason"]) == (7, "no such customer")
    assert plan.out == "1 dead letter up to 1 would be redriven\n1\tno such customer\n"
    assert (seen.code, "unauthorized" in seen.err or "permission" in seen.err) == (1, True)
    assert again == 7
    assert (jobs.code, jobs.out) == (0, "")


class Note(Actor):
    @remote
    def remind(self, text: str) -> None:
        self.alarms.schedule(3_600, self.show, text)

    @remote
    def show(self, text: str) -> None:
        pass


async def test_a_host_shows_no_contents_to_an_operator_who_may_not_read(tmp_path: Path) -> None:
    async with run_hub(auth={"enabled": True, "secret": SECRET}) as hub:

        async def alarms(**more: tuple[str, ...]) -> Done:
            basic = {one: ("*",) for one in ("send", "register", "discover", "control")}
            variables = {"SIGNALHUB_TOKEN": token(basic | more)}
            return await command(hub.url, "actors", "alarms", "--json", variables=variables)

        everything = token(dict.fromkeys(VERBS, ("*",)), "shop/worker")
        async with (
            Host(Note, data=tmp_path, url=hub.url, name="a", token=everything),
            ActorHub(hub.url, token=everything) as outside,
        ):
            await outside.ask("note/1", op(Note.remind, "secret"))
            reader = await alarms(read=("actors/*",))
            other = await alarms(read=("shop/*",))

    (shown,), (row,) = reader.rows(), other.rows()
    assert shown["continuation"]["a"] == ["secret"]
    assert (row["actor"], row["continuation"]) == ("note/1", {"m": "show"})
    assert "secret" not in other.out
    assert "withheld" in other.err
