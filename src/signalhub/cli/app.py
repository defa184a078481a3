"""The tree of commands, and the place where a failure becomes an exit code."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Sequence

from cyclopts import (
    App,
    CoercionError,
    CycloptsError,
    Group,
    MissingArgumentError,
    UnusedCliTokensError,
)

from signalhub.cli.actors import call, changes, host, views
from signalhub.cli.hub import backup, jobs, limits, log, serve, session, settings, token
from signalhub.cli.lake import audit, erase, lake, pipeline, replay
from signalhub.cli.messages import discovery, messages
from signalhub.cli.rooms import inbox, room
from signalhub.cli.terminal.arguments import options_of
from signalhub.cli.terminal.failures import (
    EXIT_CODES,
    Exit,
    Failure,
    report,
    split_advice,
    usage,
)
from signalhub.cli.topics import dlq, publish, sub, subscribe, topic
from signalhub.pipeline import packages
from signalhub.wire.errors import SettingsError
from signalhub.wire.release import __version__

Command = Callable[..., object]

_EPILOGUE = "Exit codes: " + ", ".join(f"{int(code)} {text}" for code, text in EXIT_CODES.items())

_HUB = Group.create_ordered("Hub")
_MESSAGES = Group.create_ordered("Messages")
_TOPICS = Group.create_ordered("Topics")
_ROOMS = Group.create_ordered("Rooms")
_ACTORS = Group.create_ordered("Actors")
_LAKE = Group.create_ordered("Lake")
_OPTIONS = Group.create_ordered("Options")

_NOUNS: dict[Group, dict[str, tuple[str, tuple[Command, ...]]]] = {
    _HUB: {
        "settings": (
            "Check, show and document the settings.",
            (settings.check, settings.show, settings.reference),
        ),
        "token": (
            "Create, inspect and revoke authentication tokens.",
            (token.mint, token.inspect, token.revoke, token.denied, token.jwks),
        ),
        "session": ("List and close the sessions of a hub.", (session.ls, session.close)),
        "log": (
            "Inspect the log on disk; the hub may be running or stopped.",
            (log.ls, log.info, log.verify, log.view, log.acknowledge),
        ),
    },
    _TOPICS: {
        "topic": (
            "Create, read and delete durable topics.",
            (topic.create, topic.ls, topic.info, topic.set, topic.read, topic.delete),
        ),
        "sub": (
            "Show, pause and seek durable subscriptions.",
            (sub.ls, sub.info, sub.pause, sub.resume, sub.seek, sub.set, sub.delete),
        ),
        "dlq": (
            "Show, redrive and purge dead letters.",
            (dlq.ls, dlq.show, dlq.redrive, dlq.purge),
        ),
    },
    _ROOMS: {
        "room": (
            "Send and receive messages in encrypted rooms.",
            (room.send, room.listen, room.key),
        ),
        "inbox": ("Read and write the inboxes of rooms.", (inbox.fetch, inbox.append)),
    },
    _ACTORS: {
        "actors": (
            "Run, call and inspect durable actors.",
            (
                *(host.run, call.call, views.ls, views.show, views.calls),
                *(views.alarms, views.dead),
                *(changes.redrive, changes.purge, changes.move, changes.forget),
            ),
        ),
    },
    _LAKE: {
        "pipeline": (
            "Land the log in the lake, and show the progress.",
            (pipeline.up, pipeline.once, pipeline.status, pipeline.redrive, pipeline.maintain),
        ),
    },
}
_VERBS: dict[Group, tuple[Command, ...]] = {
    _HUB: (serve.serve, limits.limits, jobs.jobs, backup.backup, backup.restore),
    _MESSAGES: (messages.tell, messages.ask, messages.broadcast, messages.listen),
    _TOPICS: (publish.publish, subscribe.subscribe),
    _ACTORS: (discovery.discover, discovery.ls, discovery.ping),
    _LAKE: (lake.sql, audit.audit, replay.replay, erase.erase),
}
_WITH_DATA = {
    *(("tell",), ("ask",), ("broadcast",), ("publish",)),
    *(("room", "send"), ("inbox", "append")),
}


def build() -> App:
    """The whole command line."""
    app = App(
        name="signalhub",
        help="A message hub for actors, and tools to use it.",
        help_epilogue=_EPILOGUE,
        help_format="plaintext",  # The Markdown renderer takes as long as everything else.
        version=_version,
        suppress_keyboard_interrupt=False,
    )
    for group, nouns in _NOUNS.items():
        for name, (help, commands) in nouns.items():
            noun = App(name=name, help=help, group=group)
            for command in commands:
                noun.command(command)
            app.command(noun)
    for group, commands in _VERBS.items():
        for command in commands:
            app.command(command, group=group)
    app["--help"].group = app["--version"].group = _OPTIONS
    return app


def _version() -> str:
    return f"Signal Hub {__version__}"


def run(argv: Sequence[str]) -> int:
    """Run one command line and return its exit code."""
    options = options_of(argv)
    try:
        code = build()(
            argv,
            exit_on_error=False,
            print_error=False,
            result_action="return_int_as_exit_code_else_zero",
        )
        sys.stdout.flush()
    except KeyboardInterrupt:
        return Exit.INTERRUPTED
    except BrokenPipeError:
        # The reader has closed our output, as in `signalhub listen … | head -1`. What is still
        # buffered must not fail again when the interpreter flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Exit.DONE
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        print("signalhub: cannot write output: no space left", file=sys.stderr)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Exit.FAILED
    except Exception as error:
        failure = _failure(error)
        if failure is None:
            raise
        report(failure, as_json="--json" in options)
        return failure.exit
    return int(code)


def _misuse(error: CycloptsError) -> Failure:
    # Some messages end with a shortened list of commands; --help has all of them.
    message, _, _ = str(error).partition(" Available commands:")
    command = error.command_chain or ()
    advice = f"see `{' '.join(['signalhub', *command, '--help'])}`"
    if isinstance(error, UnusedCliTokensError) and command in _WITH_DATA:
        rest = " ".join(error.unused_tokens or ())
        return usage(f"unexpected arguments: {rest}", f"quote the text, or {advice}")
    if isinstance(error, MissingArgumentError) and error.argument:
        is_given = error.keyword is not None
        missing = (
            f"{error.keyword} needs a value" if is_given else f"{error.argument.name} is missing"
        )
        return usage(missing, advice)
    if isinstance(error, CoercionError) and error.target_type in (int, float) and error.token:
        given = f"invalid {error.token.keyword or 'value'} {error.token.value!r}"
        return usage(f"{given}: not a number", advice)
    return usage(message, advice)


def _failure(error: Exception) -> Failure | None:
    """The failure for an expected error; `None` for a bug."""
    match error:
        case Failure():
            return error
        case CycloptsError():
            return _misuse(error)
        case SettingsError():
            return Failure(Exit.USAGE, error.code, *split_advice(error))
        case ModuleNotFoundError() if packages.is_missing(error):
            return Failure(
                Exit.USAGE,
                "extra_missing",
                "this needs the packages of the extra `pipeline`, which are not installed",
                f"install them: `{packages.INSTALL}`",
            )
        case _:
            return None
