"""`signalhub doctor`: what is wrong with a hub, its machine or the way to it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from cyclopts import Parameter

from signalhub.cli.hub.settings import Config
from signalhub.cli.terminal.connection import LOCAL, HubConnection, quiet_client_log
from signalhub.cli.terminal.failures import Yes, confirm, usage

if TYPE_CHECKING:
    from signalhub.operate.doctor.finding import Finding
    from signalhub.settings.load import Survey

_STYLES = {"ok": "green", "warn": "yellow", "fail": "red"}
_CODES = {"ok": 0, "warn": 1, "fail": 2}


def doctor(
    *,
    full: Annotated[
        bool,
        Parameter(negative=(), show_default=False, help="Verify all of the log, not its end only."),
    ] = False,
    quick: Annotated[
        bool,
        Parameter(negative=(), show_default=False, help="Check the hub only, as health checks do."),
    ] = False,
    bundle: Annotated[
        Path | None, Parameter(help="Write the report and what belongs to it to this .tar.gz.")
    ] = None,
    with_names: Annotated[
        bool,
        Parameter(
            negative=(),
            show_default=False,
            help="Leave names of topics and actors in the bundle as they are.",
        ),
    ] = False,
    log: Annotated[
        Path | None, Parameter(help="The log file of the hub, whose end goes into the bundle.")
    ] = None,
    data: Annotated[str | None, Parameter(help="The hub's data folder.")] = None,
    config: Config = None,
    yes: Yes = False,
    connection: HubConnection = LOCAL,
) -> int:
    """Check settings, port, authentication, clocks, disk, log, lake, Java and the connection.

    Every line says ok, warn or fail, and what to do. Nothing is changed. The
    exit code is 0, 1 if there are warnings, 2 if something has failed.
    """
    from signalhub.operate.doctor.finding import fail, ok, worst
    from signalhub.operate.doctor.machine import machine_findings
    from signalhub.settings.load import load, survey

    overrides = {"data": data}
    found = survey(config, os.environ, overrides)
    findings: list[Finding] = []

    def tell(finding: Finding) -> None:
        findings.append(finding)
        text = finding.text + (f" — {finding.advice}" if finding.advice else "")
        style = _STYLES[finding.level]
        parts = [(finding.level.ljust(4), style), (finding.check.ljust(8), "bold"), (text, "")]
        connection.output.line(msgspec.to_builtins(finding), parts)

    for mistake in found.mistakes if not quick else ():
        tell(fail("settings", mistake, "see `signalhub settings show`"))
    if not found.mistakes and not quick:
        settings = load(config, os.environ, overrides).settings
        tell(ok("settings", f"valid, from {config or 'defaults and variables'}"))
        for finding in machine_findings(settings, is_full=full):
            tell(finding)
    for finding in _of_hub(connection):
        tell(finding)
    if bundle is not None:
        _write(bundle, findings, found, connection, log=log, with_names=with_names, yes=yes)
    return _CODES[worst(findings)]


def _of_hub(connection: HubConnection) -> list[Finding]:
    import asyncio

    from signalhub.operate.doctor.connection import connection_findings
    from signalhub.operate.session import HubAccess

    access = HubAccess(**connection.hub_options())

    async def collect() -> list[Finding]:
        return [finding async for finding in connection_findings(access)]

    with quiet_client_log():
        return asyncio.run(collect())


def _write(
    path: Path,
    findings: list[Finding],
    found: Survey,
    connection: HubConnection,
    *,
    log: Path | None,
    with_names: bool,
    yes: bool,
) -> None:
    import asyncio

    from signalhub.operate.doctor.bundle import contents_of, write_bundle
    from signalhub.operate.doctor.connection import measured
    from signalhub.operate.doctor.mask import NameMask
    from signalhub.operate.session import HubAccess
    from signalhub.wire.errors import SignalHubError

    try:
        found_there = asyncio.run(measured(HubAccess(**connection.hub_options())))
    except SignalHubError as error:
        found_there = {"metrics.txt": f"# not available: {error}\n".encode()}
    try:
        files = contents_of(
            findings,
            _shown(found),
            data=Path(str(found.values["data"])),
            measured=found_there,
            log=log,
            mask=NameMask(
                with_names=with_names, known=[*_secrets(found), connection.token() or ""]
            ),
        )
    except OSError as error:
        raise usage(f"cannot read {error.filename}: {error.strerror}", "see --log") from None
    for name, content in files.items():
        connection.note(f"{name}: {len(content)} bytes")
    confirm(f"write these {len(files)} files to {path}", yes=yes)
    try:
        write_bundle(path, files)
    except OSError as error:
        raise usage(f"cannot write {path}: {error.strerror}", "choose another --bundle") from None
    connection.remark({"bundle": str(path)}, f"{path} is written; look into it before you send it")


def _shown(found: Survey) -> dict[str, Any]:
    """Every setting with its source; secrets are hidden."""
    from signalhub.settings.load import leaves
    from signalhub.settings.model import HIDDEN

    shown = {}
    for name, value in found.values.items():
        is_hidden = leaves()[name].is_secret and value
        known = HIDDEN if is_hidden else msgspec.to_builtins(value, enc_hook=str)
        shown[name] = {"value": known, "source": found.sources[name]}
    return shown


def _secrets(found: Survey) -> list[str]:
    """What the settings hold and nobody else may see."""
    from signalhub.settings.load import leaves
    from signalhub.settings.model import Key

    secrets: list[object] = []
    for path, value in found.values.items():
        if path == "auth.keys":
            keys = value.values() if isinstance(value, dict) else ()
            secrets += [one.secret for one in keys if isinstance(one, Key)]
        elif leaves()[path].is_secret:
            secrets.append(value)
    # `str` of a secret does not show it.
    return [str.__str__(one) for one in secrets if isinstance(one, str)]
