"""`signalhub ui`: open the page for people, signed in."""

from __future__ import annotations

import getpass
import html
import re
import secrets
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from signalhub.cli.hub.settings import Config, loaded_settings
from signalhub.cli.hub.token import LIFETIME_S_MAX, minted
from signalhub.cli.terminal.arguments import URL_VARIABLE
from signalhub.cli.terminal.connection import HubConnection
from signalhub.cli.terminal.failures import usage
from signalhub.cli.terminal.output import AsJson, Output
from signalhub.cli.terminal.sentences import say
from signalhub.settings.model import Settings

PAGE = "/ui/"
# A hub that listens on all addresses is on this one, too.
_EVERYWHERE = ("0.0.0.0", "::", "localhost")  # noqa: S104
_REDIRECT = '<!doctype html><meta http-equiv="refresh" content="0;url={}"><title>Signal Hub</title>'
_OPENING_S = 3.0


def ui(
    *,
    role: Annotated[
        Literal["viewer", "operator", "admin"], Parameter(help="What one may do on the page.")
    ] = "admin",
    url: Annotated[
        str | None,
        Parameter(env_var=URL_VARIABLE, help="URL of the hub; default: from the settings."),
    ] = None,
    token_file: Annotated[
        Path | None, Parameter(help="File that contains a token, instead of a new one.")
    ] = None,
    lifetime_s: Annotated[
        float, Parameter(name="--lifetime", help="Seconds until the token expires.")
    ] = 3600.0,
    browser: Annotated[bool, Parameter(help="Open a browser.")] = True,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Open the dashboard of a hub in a browser, signed in with a new token.

    The token is signed with a key from the settings, as by `signalhub token mint`,
    and is in the fragment of the address, which browsers send to nobody. The page
    renews it while it is open. A hub without authentication needs none. For a hub
    whose keys are elsewhere, give a token that was minted there, with --token-file.
    """
    settings = loaded_settings(config).settings
    page = page_of(settings, url)
    facts: dict[str, object] = {"url": page, "role": None, "expires_at": None}
    address = page
    if token_file is not None:
        token = HubConnection(token_file=token_file).token()
        address = f"{page}#t={token}"
        facts = {"url": address, "role": None, "expires_at": None}
    elif settings.auth.enabled:
        if not 0 < lifetime_s <= LIFETIME_S_MAX:
            raise usage("--lifetime must be above 0 and at most ten years", "give it in seconds")
        token = minted(
            settings.auth, actor_of(getpass.getuser()), role, lifetime_s, secrets.token_urlsafe(16)
        )
        address = f"{page}#t={token}"
        facts = {"url": address, "role": role, "expires_at": int(time.time() + lifetime_s)}
    with way_to(address) as opening:
        is_open = browser and opened(opening)
        if as_json or not is_open:
            Output(as_json).fact(facts, address)
        else:
            say(f"opened {page}", prefix="signalhub: ")
            if opening != address:
                # The browser has to read it first.
                time.sleep(_OPENING_S)


def page_of(settings: Settings, url: str | None) -> str:
    """The address of the page, of the hub that is named or that of the settings."""
    from signalhub.client.transport.http import Origin

    if url is None:
        host = "127.0.0.1" if settings.host in _EVERYWHERE else settings.host
        named = f"[{host}]" if ":" in host else host
        url = f"http://{named}:{settings.port}"
    try:
        origin = Origin.of(url)
        scheme, default = ("https", 443) if origin.is_secure else ("http", 80)
        # Browsers leave it out, too.
        host = origin.netloc.removesuffix(f":{default}")
        return f"{scheme}://{host}{origin.prefix}{PAGE}"
    except ValueError as error:
        raise usage(
            f"invalid --url {url!r}: {error}", "write it like http://127.0.0.1:8787"
        ) from None


def actor_of(user: str) -> str:
    """The address of somebody at the page: it is on record for what they do."""
    return f"@(ui/{re.sub(r'[^0-9A-Za-z._-]', '-', user) or 'somebody'})"


@contextmanager
def way_to(address: str) -> Iterator[str]:
    """An address to give to a browser.

    Everybody on the machine can see what a program was started with. So a browser gets a file that
    only its owner may read, and that leads to an address with a token.
    """
    if "#" not in address:
        yield address
        return
    with tempfile.TemporaryDirectory(prefix="signalhub-ui-") as folder:
        file = Path(folder) / "open.html"
        file.touch(mode=0o600)
        file.write_text(_REDIRECT.format(html.escape(address)))
        yield file.as_uri()


def opened(address: str) -> bool:
    """Open a browser, if there is one."""
    import webbrowser

    try:
        return webbrowser.open(address)
    except webbrowser.Error:
        return False
