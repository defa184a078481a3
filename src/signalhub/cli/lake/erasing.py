"""The hub's part of an erasure: the one that runs is asked, or one is started for just that."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from signalhub.cli.terminal.connection import Connection, failure_of, run
from signalhub.cli.terminal.failures import Exit, Failure
from signalhub.wire.errors import ClientError

if TYPE_CHECKING:
    from signalhub.client import Client, Erased
    from signalhub.pipeline.erase.certificate import LogRemoval
    from signalhub.pipeline.erase.subject import Subject
    from signalhub.settings.model import Settings

_NAME: Final = "cli/erase"


def ask_hub(
    settings: Settings, subject: Subject, pseudonym: str, connection: Connection
) -> LogRemoval:
    """Have it erased from the log; what that came to.

    The name that stands for it is chosen before, so that however often this is repeated log and
    lake have the same.
    """
    from signalhub.locks import is_hub_running
    from signalhub.pipeline.erase.certificate import LogRemoval

    async def work(me: Client) -> Erased:
        return await connection.in_time(_request(me, subject, pseudonym))

    if is_hub_running(settings.data):
        try:
            done = run(connection, work)
        except Failure as failure:
            if failure.exit != Exit.UNREACHABLE:
                raise
            raise Failure(
                failure.exit,
                failure.code,
                f"a hub is at work on {settings.data}, but not at {connection.url}",
                "say where with --url",
            ) from failure
    else:
        done = _without_hub(settings, subject, pseudonym)
    return LogRemoval(
        entries=done.entries,
        settled=done.settled,
        mailbox=done.mailbox,
        segments=done.segments,
        torn=done.torn,
        epoch=done.epoch,
        through=done.through,
    )


async def _request(me: Client, subject: Subject, pseudonym: str) -> Erased:
    if subject.kind == "actor":
        return await me.erase(actor=subject.name, pseudonym=pseudonym)
    return await me.erase(inbox=subject.name)


def _without_hub(settings: Settings, subject: Subject, pseudonym: str) -> Erased:
    """Start a hub on the folder for this alone: only who knows a key made here is let in."""
    import asyncio
    import logging
    import secrets
    import time

    from msgspec.structs import replace

    from signalhub.auth.tokens import mint
    from signalhub.settings.model import Auth, Key

    secret = secrets.token_urlsafe(32)
    auth = Auth(enabled=True, secret=secret)
    token = mint(
        Key(secret=secret),
        kid=None,
        subject=_NAME,
        actor=_NAME,
        permissions={"admin": ["erase"]},
        lifetime_s=auth.token_age_max_s,
        issuer=auth.issuer,
        now_s=time.time(),
    )
    run_as = "elsewhere" if settings.pipeline.run == "beside" else settings.pipeline.run
    private = replace(
        settings,
        host="127.0.0.1",
        port=0,
        auth=auth,
        pipeline=replace(settings.pipeline, run=run_as),
    )
    logging.getLogger("signalhub").setLevel(logging.WARNING)

    async def work() -> Erased:
        from signalhub.client import connect
        from signalhub.server.app import App

        app = App(private)
        await app.start()
        try:
            url = f"ws://127.0.0.1:{app.port}/ws"
            async with await connect(url, f"@({_NAME})", register=False, token=token) as me:
                return await _request(me, subject, pseudonym)
        finally:
            await app.stop()

    try:
        return asyncio.run(work())
    except ClientError as error:
        raise failure_of(error) from error
