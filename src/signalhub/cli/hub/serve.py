"""`signalhub serve`: run the hub in the foreground."""

from __future__ import annotations

import errno
import logging
import os
import shlex
import socket
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from signalhub import native
from signalhub.cli.hub.settings import Config, loaded_settings
from signalhub.cli.terminal.failures import Exit, Failure, split_advice
from signalhub.pipeline import packages
from signalhub.privacy import is_readable_by_others
from signalhub.wire.authority import is_loopback
from signalhub.wire.errors import SettingsError
from signalhub.wire.release import __version__

if TYPE_CHECKING:
    from signalhub.settings.model import Settings


def serve(
    *,
    host: Annotated[str | None, Parameter(help="Address to listen on.")] = None,
    port: Annotated[int | None, Parameter(help="Port to listen on; 0 picks a free one.")] = None,
    data: Annotated[str | None, Parameter(help="Data folder.")] = None,
    pipeline: Annotated[
        bool | None, Parameter(help="Run the pipeline into the lake as a child process.")
    ] = None,
    config: Config = None,
) -> int:
    """Run the hub until SIGTERM or Ctrl-C.

    Options override SIGNALHUB_* variables, which override the settings file,
    which overrides the defaults; see `signalhub settings show`. The first line
    on standard output says where the hub listens, once it accepts connections.
    """

    from signalhub.observe import logs

    run = None if pipeline is None else "beside" if pipeline else "off"
    overrides = {"host": host, "port": port, "data": data, "pipeline.run": run}
    loaded = loaded_settings(config, overrides)
    settings = loaded.settings
    _check_native()
    logs.configure(settings.log_level, settings.log_format)

    # Invalid settings are reported before the server's modules are imported.
    from signalhub.server import app

    def announce(bound_port: int) -> None:
        _warn_of_exposure(config, settings)
        _note_missing_pipeline(settings)
        place = address_of(settings.host, bound_port)
        release = f"{__version__} (native: {native.STATUS})"
        print(f"Signal Hub {release} listening on {place}", flush=True)
        if settings.ui.enabled:
            page = page_of(place)
            how = f" (sign in: `{_sign_in(config, page)}`)" if settings.auth.enabled else ""
            print(f"Dashboard: {page}{how}", flush=True)
        _notify("READY=1")

    try:
        return app.serve(settings, announce, config, loaded.sources)
    except OSError as error:
        raise start_failure(error, settings.host, settings.port) from error
    except SettingsError as error:
        raise data_failure(error, settings.data) from error


def _sign_in(config: str | None, page: str) -> str:
    """The command that opens the page of this hub."""
    given = "" if config is None else f" --config {shlex.quote(config)}"
    return f"signalhub ui{given} --url {page.removesuffix('/ui/')}"


def _check_native() -> None:
    try:
        native.check()
    except SettingsError as error:
        advice = f"set {native.VARIABLE} to auto, or `pip install 'signalhub[native]'`"
        raise Failure(Exit.USAGE, SettingsError.code, str(error), advice) from None


def _notify(state: str) -> None:
    """Tell the service manager that started the hub, if it wants to know (sd_notify)."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        try:
            # A leading @ stands for the zero byte of an abstract address.
            channel.sendto(state.encode(), address.replace("@", "\0", 1))
        except OSError as error:
            logging.getLogger("signalhub.server").warning(
                "the service manager could not be notified", extra={"error": str(error)}
            )


def _warn_of_exposure(config: str | None, settings: Settings) -> None:
    """Say at the start what an attacker on this machine would be glad of."""
    log = logging.getLogger("signalhub.server")
    if os.geteuid() == 0:
        log.warning("the hub runs as root: run it as a user of its own")
    if not settings.hosts and not is_loopback(settings.host):
        advice = "list the names that clients use in the setting hosts"
        log.warning("the hub is served under its address only", extra={"do": advice})
    auth = settings.auth
    has_secret = (
        auth.secret or settings.rooms.secret or any(key.secret for key in auth.keys.values())
    )
    if config is not None and has_secret and is_readable_by_others(config):
        advice = f"chmod 600 {config}"
        log.warning("the settings file with a secret can be read by others", extra={"do": advice})


def _note_missing_pipeline(settings: Settings) -> None:
    """Say what a plain installation lacks."""
    if settings.pipeline.run == "off" and not packages.are_installed():
        logging.getLogger("signalhub.server").info(
            "history in the lake, SQL, audit and replay are not installed",
            extra={"do": packages.INSTALL},
        )


def address_of(host: str, port: int) -> str:
    """The URL clients connect to."""
    return f"ws://[{host}]:{port}/ws" if ":" in host else f"ws://{host}:{port}/ws"


def page_of(url: str) -> str:
    """The address of the page for people, beside the URL of clients."""
    return f"http{url.removeprefix('ws').removesuffix('/ws')}/ui/"


def data_failure(error: SettingsError, data: str) -> Failure:
    """The failure for a data folder that cannot be used."""
    if os.path.exists(data) and not os.path.isdir(data):
        message, resolution = f"{data} is not a folder", "choose one with --data"
    elif "another hub" in str(error):
        message = f"the data folder {data} is in use, probably by a running hub"
        resolution = (
            "use that hub (check with `signalhub ping`), or stop it; a second hub needs its own"
            " --data and --port"
        )
    else:
        message, resolution = split_advice(error)
    return Failure(Exit.USAGE, error.code, message, resolution)


def start_failure(error: OSError, host: str, port: int) -> Failure:
    """The failure for a port or data folder that cannot be opened."""
    if error.errno == errno.EADDRINUSE:
        return Failure(
            Exit.FAILED,
            "port_in_use",
            f"port {port} on {host} is in use",
            "stop the program that uses it, or choose another with --port",
        )
    if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
        return Failure(
            Exit.FAILED,
            "no_such_host",
            f"{host} is not an address of this machine",
            "choose one with --host, such as 127.0.0.1",
        )
    if error.errno == errno.EACCES and error.filename is None:
        return Failure(
            Exit.FAILED,
            "port_denied",
            f"no permission to listen on port {port}",
            "choose one above 1023 with --port",
        )
    if error.filename is not None:
        return Failure(
            Exit.FAILED,
            "data_unusable",
            f"cannot use {error.filename}: {error.strerror}",
            "choose another folder with --data",
        )
    return Failure(
        Exit.FAILED,
        "cannot_start",
        f"cannot start: {error}",
        "see the log and `signalhub settings show`",
    )
