"""`signalhub token`: create and inspect tokens for a hub with authentication."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from signalhub.cli.hub.settings import Config, loaded_settings
from signalhub.cli.terminal.arguments import STDIN, Address, address, standard_input
from signalhub.cli.terminal.failures import Exit, Failure, usage
from signalhub.cli.terminal.output import AsJson, Output, OutputColumn, shown
from signalhub.operate.token import contents
from signalhub.wire.errors import SettingsError

if TYPE_CHECKING:
    from signalhub.settings.model import AuthSettings, Key


def _patterns(help: str) -> Parameter:
    return Parameter(help=help, negative=(), show_default=False)


@Parameter(name="*", group="Permissions")
@dataclass(frozen=True, kw_only=True)
class PermissionOptions:
    """Patterns by action, with `*` for anything; what is not granted is denied."""

    send: Annotated[tuple[str, ...], _patterns("Addresses it may send to.")] = ()
    broadcast: Annotated[tuple[str, ...], _patterns("Capabilities it may broadcast to.")] = ()
    publish: Annotated[tuple[str, ...], _patterns("Topics it may publish to.")] = ()
    subscribe: Annotated[tuple[str, ...], _patterns("Topics it may subscribe to.")] = ()
    register: Annotated[tuple[str, ...], _patterns("Addresses it may register.")] = ()
    create: Annotated[tuple[str, ...], _patterns("Durable topics it may create and change.")] = ()
    consume: Annotated[
        tuple[str, ...] | None, _patterns("Subscriptions it may consume: TOPIC/NAME.")
    ] = None
    manage: Annotated[
        tuple[str, ...] | None, _patterns("Topics whose subscriptions it may change.")
    ] = None
    delete: Annotated[
        tuple[str, ...] | None, _patterns("Topics it may delete; hosts it may purge.")
    ] = None
    read: Annotated[
        tuple[str, ...] | None, _patterns("Topics and addresses whose messages it may see.")
    ] = None
    discover: Annotated[tuple[str, ...] | None, _patterns("Addresses it may find.")] = None
    host: Annotated[tuple[str, ...], _patterns("Kinds of durable actors it may run.")] = ()
    control: Annotated[tuple[str, ...], _patterns("Hosts it may control.")] = ()
    rooms: Annotated[tuple[str, ...], _patterns("Rooms it may use.")] = ()
    admin: Annotated[
        tuple[str, ...],
        _patterns("Administrative actions it may take, such as view, republish and erase."),
    ] = ()


NO_PERMISSIONS = PermissionOptions()
LIFETIME_S_MAX = 10 * 365 * 86_400.0


def mint(
    actor: Address,
    /,
    *,
    subject: Annotated[
        str | None, Parameter(help="Subject of the token; default: the address.")
    ] = None,
    lifetime_s: Annotated[
        float, Parameter(name="--lifetime", help="Seconds until it expires.")
    ] = 3600.0,
    kid: Annotated[str | None, Parameter(help="Id of the key in auth.keys to sign with.")] = None,
    private_key: Annotated[
        Path | None, Parameter(help="PEM file with the private key, for EdDSA.")
    ] = None,
    out: Annotated[
        Path | None, Parameter(help="Write it to this file, readable only by its owner.")
    ] = None,
    role: Annotated[
        Literal["viewer", "operator", "admin"] | None,
        Parameter(help="Permissions to begin with; those given are added."),
    ] = None,
    permissions: PermissionOptions = NO_PERMISSIONS,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Create a token, signed with a key from the settings, and print it.

    A permission is a pattern with * for anything, and may be repeated:
    signalhub token mint demo/alice --send 'demo/*' --publish '*'
    """
    auth = loaded_settings(config).settings.auth
    kid, key = _signing_key(auth, kid)
    if key.algorithm == "EdDSA" and private_key is None:
        raise usage(
            f"the settings contain only the public half of the EdDSA key {kid}",
            "give the private key with --private-key FILE",
        )
    if not 0 < lifetime_s <= LIFETIME_S_MAX:
        raise usage("--lifetime must be above 0 and at most ten years", "give it in seconds")
    full = address(actor)
    now_s = time.time()
    token = _signed(
        key,
        kid=kid,
        subject=subject or full[2:-1],
        actor=full,
        permissions=_granted(role, permissions),
        lifetime_s=lifetime_s,
        issuer=auth.issuer,
        now_s=now_s,
        private_key=_text_of(private_key),
    )
    facts = {"token": token, "actor": full, "expires_at": int(now_s + lifetime_s)}
    if out is None:
        Output(as_json).fact(facts, token)
        return
    _write_private(out, token)
    written = {"file": str(out), "actor": full, "expires_at": facts["expires_at"]}
    Output(as_json).fact(written, f"the token is in {out}")


def inspect(
    token: Annotated[
        str,
        Parameter(
            name="TOKEN",
            allow_leading_hyphen=True,
            show_default=False,
            help="The token; - reads standard input.",
        ),
    ] = "",
    /,
    *,
    config: Config = None,
    as_json: AsJson = False,
) -> int:
    """Show the claims of a token and whether the hub accepts it.

    The default is the token in SIGNALHUB_TOKEN. Exit code 1 means that the hub
    would reject it.
    """
    auth = loaded_settings(config).settings.auth
    token = standard_input() if token == STDIN else token or os.environ.get("SIGNALHUB_TOKEN", "")
    if not token:
        raise usage("no token given", "give one, or - to read standard input")
    header, claims = _unverified(token)
    refusal = _refusal(auth, token)
    output = Output(as_json)
    if as_json:
        facts = {"header": header, "claims": claims, "valid": refusal is None, "reason": refusal}
        output.fact(facts, "")
    else:
        rows = [
            {"claim": name, "value": _readable(name, value)}
            for name, value in (header | claims).items()
        ]
        output.table((OutputColumn("claim", style="bold"), OutputColumn("value")), rows)
        output.line({}, [("verdict", "bold"), (refusal or "valid", "red" if refusal else "green")])
    return Exit.DONE if refusal is None else Exit.FAILED


def _write_private(path: Path, token: str) -> None:
    """Replace the file as a whole, so that a wider mode of an earlier one is not kept."""
    from signalhub.privacy import opener

    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        draft.unlink(missing_ok=True)
        with open(draft, "x", opener=opener) as file:
            file.write(f"{token}\n")
        draft.replace(path)
    except OSError as error:
        raise usage(f"cannot write {path}: {error.strerror}", "choose another --out") from None


def _granted(role: str | None, given: PermissionOptions) -> dict[str, tuple[str, ...] | None]:
    """The patterns of a role and those given, by verb; `None` leaves a verb out."""
    from signalhub.auth.permissions import ROLES

    granted: dict[str, tuple[str, ...] | None] = dict(ROLES[role]) if role else {}
    for field in fields(given):
        patterns = getattr(given, field.name)
        if patterns:
            granted[field.name] = (*(granted.get(field.name) or ()), *patterns)
    return granted


def _signed(key: Key, **facts: Any) -> str:
    from signalhub.auth import tokens

    try:
        return tokens.mint(key, **facts)
    except SettingsError as error:
        raise usage(str(error), "correct --private-key or --kid") from None


def _signing_key(auth: AuthSettings, kid: str | None) -> tuple[str | None, Key]:
    from signalhub.settings.model import Key

    if kid is not None:
        if kid not in auth.keys:
            raise usage(
                f"unknown key {kid}", f"choose one of {_listed(auth)}, or add it to auth.keys"
            )
        return kid, auth.keys[kid]
    if auth.secret:
        return None, Key(secret=auth.secret)
    if len(auth.keys) == 1:
        ((only, key),) = auth.keys.items()
        return only, key
    if auth.keys:
        raise usage("there are several keys", f"choose one with --kid: {_listed(auth)}")
    raise usage(
        "there is no signing key in the settings",
        "set auth.secret or add one to auth.keys, and give the file with --config",
    )


def _listed(auth: AuthSettings) -> str:
    return ", ".join(sorted(auth.keys)) or "auth.keys (which is empty)"


def _text_of(path: Path | None) -> str:
    if path is None:
        return ""
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise usage(
            f"cannot read the private key {path}: {error}", "choose another with --private-key"
        ) from None


def _unverified(token: str) -> tuple[dict[str, Any], dict[str, Any]]:
    try:
        return contents(token)
    except ValueError:
        raise Failure(
            Exit.FAILED,
            "malformed_token",
            "invalid token: not a JWT",
            "a token has three parts separated by dots",
        ) from None


def _refusal(auth: AuthSettings, token: str) -> str | None:
    """Why a hub with these keys rejects the token; `None` if it accepts it."""
    from signalhub.auth import tokens
    from signalhub.wire.errors import Refusal

    if not auth.secret and not auth.keys:
        return "cannot be checked: no key in the settings; give the file with --config"
    try:
        tokens.Authenticator(auth).verify(token, time.time())
    except Refusal as refusal:
        return refusal.message
    return None


def _readable(name: str, value: Any) -> str:
    if name in ("iat", "exp", "nbf") and isinstance(value, int | float):
        try:
            moment = time.strftime("%Y-%m-%d %H:%M:%S %z", time.localtime(value))
        except (ValueError, OverflowError, OSError):
            # Anything may be in a token that is not verified.
            return str(value)
        return f"{value} ({moment})"
    return shown(value)
