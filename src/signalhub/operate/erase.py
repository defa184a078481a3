"""Erase what an actor sent and received, or an inbox, from log, state and lake.

An interrupted erasure continues under the same certificate when it is called again. It blocks until
the content is unreadable; from a coroutine, call it in a thread.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from signalhub.auth.tokens import mint
from signalhub.clock import SystemClock
from signalhub.locks import is_hub_running
from signalhub.operate.arguments import InvalidArgument, full_address
from signalhub.operate.lake import OpenSpark, check_log, spark_session
from signalhub.operate.session import DEFAULT_URL, HubAccess
from signalhub.pipeline.erase import certificate
from signalhub.pipeline.erase.certificate import Certificate, LogRemoval
from signalhub.pipeline.erase.erase import WAIT_S, LakeErasure, vacuum_all, wait_for
from signalhub.pipeline.erase.erase import erase as erase_tables
from signalhub.pipeline.erase.subject import Subject
from signalhub.pipeline.lake import lake_of
from signalhub.pipeline.run import schedule
from signalhub.pipeline.run.lock import alone, table_lock
from signalhub.pipeline.source.plan import LogPosition
from signalhub.pipeline.tables.tables import ENTRIES
from signalhub.pipeline.upkeep.compact import IN_USE_S
from signalhub.settings.model import AuthSettings, Key
from signalhub.state import inbox_key
from signalhub.wire.errors import Code, Refused, Unavailable
from signalhub.wire.room_ids import Names

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from signalhub.client import Client, Erased
    from signalhub.settings.model import Settings

Progress = Callable[[str], object]
"""Called with each step before it begins, such as `searching the log`."""

ANSWER_S: Final = 600.0
"""The hub may have a long log to search."""
_TABLES_S: Final = 600.0
"""How long to wait for the table lock: upkeep may be rewriting the tables."""
_NAME: Final = "cli/erase"
_CLOCK: Final = SystemClock()
# Refusals that come before anything is done.
_BEFOREHAND: Final = frozenset({Code.UNAUTHORIZED, Code.RATE_LIMITED})


class HubElsewhere(Unavailable):
    """A hub has the data folder open, but it does not answer at the URL that was given."""

    def __init__(self, data: str, url: str) -> None:
        super().__init__(f"a hub is running on {data}, but not at {url}")


def erase(
    settings: Settings,
    *,
    actor: str | None = None,
    inbox: str | None = None,
    now: bool = False,
    url: str = DEFAULT_URL,
    token: str | None = None,
    timeout_s: float = ANSWER_S,
    progress: Progress = lambda step: None,
    open_spark: OpenSpark = spark_session,
) -> Certificate:
    """Erase an actor's messages or an inbox, and return the certificate.

    Args:
        settings: Those of the hub; `data` and `pipeline` say what is erased from.
        actor: The address of the actor. Give either this or `inbox`.
        inbox: The id of the inbox.
        now: Delete replaced files at once instead of after `pipeline.vacuum_s`.
        url: The hub, if one runs on the data folder; otherwise the folder is opened directly.
        token: A token whose permission `admin` covers `erase`, if the hub asks for one.
        timeout_s: How long to wait for the hub.
        progress: Called with each step.
        open_spark: Opens the Spark session, which is needed only if there is a lake.

    Raises:
        InvalidArgument: Not exactly one subject was given, or `settings.data` has no log.
        HubElsewhere: A hub runs on the data folder, but not at `url`.
        ClientError: The hub refused or did not answer.
        PipelineBehind: A running pipeline did not catch up in time.
        TablesBusy: Upkeep or another erasure is rewriting the tables.
    """
    subject = subject_of(settings, actor=actor, inbox=inbox)
    data = settings.data
    access = HubAccess(url=url, token=token, timeout_s=timeout_s)
    with alone(data) as is_alone:
        earlier = certificate.interrupted(data, subject.kind, subject.name)
        one = certificate.begin(data, subject.kind, subject.name, _CLOCK.now_ms())
        progress("searching the log")
        try:
            removal = _erase_log(settings, subject, one.pseudonym, access)
        except (Refused, Unavailable) as error:
            # Otherwise audits would speak of an interrupted erasure forever.
            if earlier is None and _is_untouched(error):
                certificate.withdraw(data, one)
            raise
        one.log = removal if one.log is None else one.log.and_then(removal)
        certificate.write(data, one)
        if not lake_of(data, settings.pipeline.lake).exists(ENTRIES.name):
            one.unreadable_ms = one.gone_planned_ms = _CLOCK.now_ms()
            certificate.complete(data, one, one.unreadable_ms)
            return one
        with open_spark(settings) as spark, table_lock(data, _TABLES_S):
            _LakeErasure(settings, subject, one, is_alone, progress).run(spark, now=now)
        return one


def subject_of(
    settings: Settings, *, actor: str | None = None, inbox: str | None = None
) -> Subject:
    """Return whom an erasure is about; raises `InvalidArgument` for what `erase` would refuse."""
    if (actor is None) == (inbox is None):
        raise InvalidArgument("name either an actor or an inbox", "leave the other one out")
    if actor is not None:
        address = full_address(actor)
        subject = Subject("actor", address, address)
    else:
        if not inbox:
            raise InvalidArgument("the inbox id is empty", "give the id the inbox was created with")
        key = inbox_key.read(Path(settings.data))
        subject = Subject("inbox", inbox, "" if key is None else Names(key).inbox(inbox))
    check_log(settings)
    return subject


@dataclass(frozen=True)
class _LakeErasure:
    """The part of an erasure that concerns the tables."""

    settings: Settings
    subject: Subject
    certificate: Certificate
    is_alone: bool
    progress: Progress

    def run(self, spark: SparkSession, *, now: bool) -> None:
        one, data = self.certificate, self.settings.data
        lake = lake_of(data, self.settings.pipeline.lake)
        assert one.log is not None
        through = LogPosition(one.log.epoch, one.log.through)
        if not self.is_alone:
            self.progress(f"waiting for the pipeline to catch up, {WAIT_S:g} s at most")
            wait_for(lake, through, lambda: schedule.ask(data))
        wanted = LakeErasure(
            subject=self.subject, through=through, pseudonym=one.pseudonym, now_ms=_CLOCK.now_ms()
        )
        found = erase_tables(spark, lake, wanted, self.progress)
        one.count(found.tables, found.positions)
        one.state, one.unreadable_ms = "unreadable", _CLOCK.now_ms()
        keep_s = 0.0 if now else self.settings.pipeline.vacuum_s
        one.gone_planned_ms = one.unreadable_ms + int(max(keep_s, IN_USE_S) * 1000)
        certificate.write(data, one)
        if now:
            vacuum_all(spark, lake, is_alone=self.is_alone, step=self.progress)
            if self.is_alone:
                certificate.complete(data, one, _CLOCK.now_ms())


def _erase_log(
    settings: Settings, subject: Subject, pseudonym: str, access: HubAccess
) -> LogRemoval:
    """Have the running hub erase it, or start a private hub for that.

    The pseudonym is chosen beforehand, so that repeated attempts use the same one in log and lake.
    """

    async def request(me: Client) -> Erased:
        if subject.kind == "actor":
            return await me.erase(actor=subject.name, pseudonym=pseudonym)
        return await me.erase(inbox=subject.name)

    async def ask() -> Erased:
        async with access.session() as me:
            return await access.in_time(request(me))

    if is_hub_running(settings.data):
        try:
            done = asyncio.run(ask())
        except Unavailable as error:
            raise HubElsewhere(settings.data, access.url) from error
    else:
        done = asyncio.run(_with_private_hub(settings, request))
    return LogRemoval(
        entries=done.entries,
        settled=done.settled,
        mailbox=done.mailbox,
        segments=done.segments,
        torn=done.torn,
        epoch=done.epoch,
        through=done.through,
    )


def _is_untouched(error: Refused | Unavailable) -> bool:
    """Has nothing been erased? A hub whose disk is full, say, refuses in the middle."""
    return isinstance(error, Unavailable) or error.code in _BEFOREHAND


async def _with_private_hub(
    settings: Settings, request: Callable[[Client], Awaitable[Erased]]
) -> Erased:
    """Start a hub on the folder; only the holder of a key made here can connect to it."""
    from signalhub.client import connect
    from signalhub.server.app import App

    secret = secrets.token_urlsafe(32)
    auth = AuthSettings(enabled=True, secret=secret)
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
    app = App(private)
    await app.start()
    try:
        url = f"ws://127.0.0.1:{app.port}/ws"
        async with await connect(url, f"@({_NAME})", register=False, token=token) as me:
            return await request(me)
    finally:
        await app.stop()
