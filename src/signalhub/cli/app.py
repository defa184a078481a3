"""The tree of commands, and the place where a failure becomes an exit code."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Sequence

from cyclopts import (
    App,
    CoercionError,
    CycloptsError,
    Group,
    MissingArgumentError,
    UnusedCliTokensError,
)

from signalhub.cli.terminal import contexts
from signalhub.cli.terminal.arguments import options_of
from signalhub.cli.terminal.failures import (
    EXIT_CODES,
    Exit,
    Failure,
    report,
    split_advice,
    usage,
)
from signalhub.pipeline import packages
from signalhub.wire.errors import SettingsError
from signalhub.wire.release import __version__

_EPILOGUE = "With --context NAME a command uses that context. Exit codes: " + ", ".join(
    f"{int(code)} {text}" for code, text in EXIT_CODES.items()
)

_HUB = Group.create_ordered("Hub")
_MESSAGES = Group.create_ordered("Messages")
_TOPICS = Group.create_ordered("Topics")
_ROOMS = Group.create_ordered("Rooms")
_ACTORS = Group.create_ordered("Actors")
_LAKE = Group.create_ordered("Lake")
_SETUP = Group.create_ordered("Setup")
_OPTIONS = Group.create_ordered("Options")

# The functions of the commands, each with its module below this package. A module is imported when
# one of its commands runs, or shows its help.
_NOUNS: dict[Group, dict[str, tuple[str, tuple[str, ...]]]] = {
    _HUB: {
        "settings": (
            "Check, show and document the settings.",
            ("hub.settings:check", "hub.settings:show", "hub.settings:reference"),
        ),
        "token": (
            "Create, inspect and revoke authentication tokens.",
            (
                *("hub.token:mint", "hub.token:inspect", "hub.token:revoke"),
                *("hub.token:denied", "hub.token:jwks"),
            ),
        ),
        "session": (
            "List and close the sessions of a hub.",
            ("hub.session:ls", "hub.session:close"),
        ),
        "log": (
            "Inspect the log on disk; the hub may be running or stopped.",
            (
                *("hub.log:ls", "hub.log:info", "hub.log:verify"),
                *("hub.log:view", "hub.log:acknowledge"),
            ),
        ),
    },
    _TOPICS: {
        "topic": (
            "Create, read and delete durable topics.",
            (
                *("topics.topic:create", "topics.topic:ls", "topics.topic:info"),
                *("topics.topic:set", "topics.topic:read", "topics.topic:delete"),
            ),
        ),
        "sub": (
            "Show, pause and seek durable subscriptions.",
            (
                *("topics.sub:ls", "topics.sub:info", "topics.sub:pause", "topics.sub:resume"),
                *("topics.sub:seek", "topics.sub:set", "topics.sub:delete"),
            ),
        ),
        "dlq": (
            "Show, redrive and purge dead letters.",
            ("topics.dlq:ls", "topics.dlq:show", "topics.dlq:redrive", "topics.dlq:purge"),
        ),
    },
    _ROOMS: {
        "room": (
            "Send and receive messages in encrypted rooms.",
            ("rooms.room:send", "rooms.room:listen", "rooms.room:key"),
        ),
        "inbox": (
            "Read and write the inboxes of rooms.",
            ("rooms.inbox:fetch", "rooms.inbox:append"),
        ),
    },
    _ACTORS: {
        "actors": (
            "Run, call and inspect durable actors.",
            (
                *("actors.host:run", "actors.call:call"),
                *("actors.views:ls", "actors.views:show", "actors.views:calls"),
                *("actors.views:alarms", "actors.views:dead"),
                *("actors.changes:redrive", "actors.changes:purge"),
                *("actors.changes:move", "actors.changes:forget"),
            ),
        ),
    },
    _LAKE: {
        "pipeline": (
            "Land the log in the lake, and show the progress.",
            (
                *("lake.pipeline:up", "lake.pipeline:once", "lake.pipeline:status"),
                *("lake.pipeline:redrive", "lake.pipeline:maintain"),
            ),
        ),
    },
    _SETUP: {
        "context": (
            "Give hubs names, with their URL, token, settings and data.",
            (
                *("setup.context:add", "setup.context:use", "setup.context:ls"),
                *("setup.context:show", "setup.context:rm"),
            ),
        ),
    },
}
_VERBS: dict[Group, tuple[str, ...]] = {
    _HUB: (
        *("hub.serve:serve", "hub.ui:ui", "hub.top:top"),
        *("hub.limits:limits", "hub.jobs:jobs", "hub.bench:bench"),
        *("hub.backup:backup", "hub.backup:restore", "hub.demo:demo"),
    ),
    _MESSAGES: (
        *("messages.messages:tell", "messages.messages:ask"),
        *("messages.messages:broadcast", "messages.messages:listen"),
        *("messages.requests:request", "messages.requests:answer"),
    ),
    _TOPICS: ("topics.publish:publish", "topics.subscribe:subscribe"),
    _ACTORS: (
        *("messages.discovery:discover", "messages.discovery:ls", "messages.discovery:ping"),
    ),
    _LAKE: ("lake.lake:sql", "lake.audit:audit", "lake.replay:replay", "lake.erase:erase"),
    _SETUP: ("setup.errors:error", "setup.completion:completion", "setup.doctor:doctor"),
}
# Only other parts of the project run these.
_HIDDEN = {"admin-reader": "hub.reader:admin_reader"}
_WITH_DATA = {
    *(("tell",), ("ask",), ("request",), ("broadcast",), ("publish",)),
    *(("room", "send"), ("inbox", "append")),
}


def build(argv: Sequence[str] = ()) -> App:
    """The command that is named, or all; commands that its help lists are imported."""
    app = App(
        name="signalhub",
        help="A message hub for actors, and tools to use it.",
        help_epilogue=_EPILOGUE,
        help_format="plaintext",  # The Markdown renderer takes as long as everything else.
        version=_version,
        suppress_keyboard_interrupt=False,
    )
    known = {name for nouns in _NOUNS.values() for name in nouns}
    known |= {_name_of(command) for commands in _VERBS.values() for command in commands}
    hidden = _HIDDEN.keys() & argv[:1]
    wanted = hidden or known.intersection(argv[:1]) or known
    for group, nouns in _NOUNS.items():
        for name in nouns.keys() & wanted:
            help, commands = nouns[name]
            noun = App(name=name, help=help, group=group)
            for command in commands:
                noun.command(f"{__package__}.{command}", _name_of(command))
            app.command(noun)
    for group, commands in _VERBS.items():
        for command in commands:
            if _name_of(command) in wanted:
                app.command(f"{__package__}.{command}", _name_of(command), group=group)
    for name in hidden:
        app.command(f"{__package__}.{_HIDDEN[name]}", name, show=False)
    app["--help"].group = app["--version"].group = _OPTIONS
    _import_listed(app, argv)
    return app


def _name_of(command: str) -> str:
    """The name of a command, which is that of its function."""
    return command.rpartition(":")[2]


def _import_listed(app: App, argv: Sequence[str]) -> None:
    """Import the commands next to the one that is named, unless one is named in full.

    Help shows the first line of each of them.
    """
    words = iter(argv)
    word = next(words, "")
    while word in app and not word.startswith("-"):
        app, word = app[word], next(words, "")
    if word in app.version_flags and set(app.help_flags).isdisjoint(words):
        return
    for name in app:
        app[name]


def _version() -> str:
    return f"Signal Hub {__version__}"


def run(argv: Sequence[str]) -> int:
    """Run one command line and return its exit code."""
    options = options_of(argv)
    try:
        argv, named = contexts.taken(argv, len(options))
        app, context = build(argv), contexts.choose(named, os.environ)
        if context is not None:
            app.config = (context,)
        code = app(
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
