"""`signalhub token`: create, inspect and revoke tokens for a hub with authentication."""

from __future__ import annotations

import os
import secrets
import time
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from signalhub.cli.hub.settings import Config, loaded_settings
from signalhub.cli.terminal.arguments import STDIN, Address, address, standard_input
from signalhub.cli.terminal.failures import Exit, Failure, usage
from signalhub.cli.terminal.output import AsJson, Output, OutputColumn, shown
from signalhub.cli.terminal.sentences import say
from signalhub.operate.tokens.token import contents
from signalhub.wire.errors import SettingsError

if TYPE_CHECKING:
    from signalhub.auth.denials import Denial
    from signalhub.settings.model import AuthSettings, Key, Settings


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


Data = Annotated[str | None, Parameter(name="--data", help="The hub's data folder.")]


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
    audience: Annotated[
        str | None,
        Parameter(help="The hub it is for; default: the first of auth.audience."),
    ] = None,
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
            f"the hub has only the public half of the EdDSA key {kid}",
            "give the private key with --private-key FILE",
        )
    if not 0 < lifetime_s <= LIFETIME_S_MAX:
        raise usage("--lifetime must be above 0 and at most ten years", "give it in seconds")
    if lifetime_s > auth.token_age_max_s:
        limit = f"auth.token_age_max_s = {auth.token_age_max_s:g}"
        say(f"note: the hub refuses it earlier, because of {limit}", prefix="signalhub: ")
    full = address(actor)
    now_s = time.time()
    token_id = secrets.token_urlsafe(16)
    token = _signed(
        key,
        kid=kid,
        subject=subject or full[2:-1],
        actor=full,
        permissions=_granted(role, permissions),
        lifetime_s=lifetime_s,
        issuer=auth.issuer,
        now_s=now_s,
        jti=token_id,
        audience=audience or next(iter(auth.audiences), ""),
        private_key=_text_of(private_key),
    )
    facts = {
        "token": token,
        "actor": full,
        "jti": token_id,
        "expires_at": int(now_s + lifetime_s),
    }
    if out is None:
        Output(as_json).fact(facts, token)
        return
    _write_private(out, token)
    written = {name: fact for name, fact in facts.items() if name != "token"} | {"file": str(out)}
    Output(as_json).fact(written, f"the token is in {out}")


def inspect(
    token: Annotated[
        str,
        Parameter(
            name="TOKEN",
            allow_leading_hyphen=True,
            show_default=False,
            help="The token, or a file that contains it; - reads standard input.",
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
    settings = loaded_settings(config).settings
    token = _given(token or os.environ.get("SIGNALHUB_TOKEN", ""))
    if not token:
        raise usage("no token given", "give one, or - to read standard input")
    header, claims = _unverified(token)
    refusal = _refusal(settings, token)
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


def revoke(
    token: Annotated[
        str,
        Parameter(
            name="TOKEN",
            allow_leading_hyphen=True,
            show_default=False,
            help="The token, or a file that contains it; - reads standard input.",
        ),
    ] = "",
    /,
    *,
    jti: Annotated[str | None, Parameter(help="Instead: the jti of the token.")] = None,
    subject: Annotated[str | None, Parameter(help="Instead: every token of this subject.")] = None,
    actor: Annotated[str | None, Parameter(help="Instead: every token for this address.")] = None,
    lifetime_s: Annotated[
        float | None,
        Parameter(
            name="--for",
            help="Seconds until the entry ends; default: never, or as long as TOKEN could live.",
        ),
    ] = None,
    reason: Annotated[
        str, Parameter(show_default=False, help="Why, for those who read the list.")
    ] = "",
    data: Data = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Add to the hub's denial list, on the machine of the hub.

    A running hub reads the list again within a second, closes the sessions of
    those on it, and refuses their tokens. The tokens that were refreshed from a
    revoked one are revoked with it.
    """
    from signalhub.auth.denials import Denial
    from signalhub.operate.tokens import denials

    settings = loaded_settings(config, {"data": data}).settings
    path = _denial_list(settings)
    now_s = time.time()
    until = None
    given = [one for one in (token, jti, subject, actor) if one]
    if len(given) != 1:
        raise usage("give one of TOKEN, --jti, --subject and --actor", "see --help")
    if token:
        token = _given(token)
        jti, until = _identified(settings.auth, token)
    if lifetime_s is not None:
        if not 0 < lifetime_s <= LIFETIME_S_MAX:
            raise usage("--for must be above 0 and at most ten years", "give it in seconds")
        until = now_s + lifetime_s
    entry = Denial(
        jti=jti,
        sub=subject,
        actor=None if actor is None else address(actor),
        until=None if until is None else int(until),
        reason=reason,
    )
    try:
        denials.add(path, entry, now_s)
    except OSError as error:
        raise usage(f"cannot write {path}: {error.strerror}", "check auth.denied_file") from None
    name = jti or subject or entry.actor
    facts = {"file": str(path), **_facts(entry)}
    Output(as_json).fact(facts, f"{_facts(entry)['kind']} {name} is denied, in {path}")


def _denial_list(settings: Settings) -> Path:
    """The list of the hub; an entry in a list that no hub reads would deny nobody."""
    if not settings.auth.denied_file and not (Path(settings.data) / "log").is_dir():
        raise usage(
            f"there is no hub in {Path(settings.data).absolute()}",
            "give its data folder with --data, or set auth.denied_file",
        )
    return Path(settings.denial_list).absolute()


def denied(*, data: Data = None, config: Config = None, as_json: AsJson = False) -> None:
    """Show the hub's denial list, without entries that have ended."""
    from signalhub.operate.tokens import denials

    path = _denial_list(loaded_settings(config, {"data": data}).settings)
    try:
        entries = denials.listed(path)
    except OSError as error:
        raise usage(f"cannot read {path}: {error.strerror}", "check auth.denied_file") from None
    now_s = time.time()
    rows = [_facts(one) for one in entries if not one.has_ended(now_s)]
    columns = (
        OutputColumn("kind"),
        OutputColumn("name", style="bold", is_whole=True),
        OutputColumn("until"),
        OutputColumn("reason"),
    )
    if not as_json:
        rows = [row | {"until": _readable("exp", row["until"] or "")} for row in rows]
    Output(as_json).table(columns, rows, if_empty="nobody is denied")


def jwks(
    *keys: Annotated[
        Path, Parameter(name="FILE", help="PEM files with Ed25519 keys; the names are the kids.")
    ],
) -> None:
    """Print the public halves of keys as a key set, for auth.jwks_file or a web server.

    The kid of a key is the name of its file without the ending: issuer-1 for
    issuer-1.pem.
    """
    from signalhub.operate.tokens.key_set import key_set

    if not keys:
        raise usage("FILE is missing", "name the PEM files of one or more Ed25519 keys")
    found = {path.stem: _text_of(path, "choose another file") for path in keys}
    if len(found) < len(keys):
        raise usage("two keys have one name", "rename a file: its name is the kid")
    try:
        print(key_set(found))
    except ValueError as error:
        raise usage(str(error), "create one: openssl genpkey -algorithm ed25519") from None


def _facts(entry: Denial) -> dict[str, Any]:
    for kind, name in (("jti", entry.jti), ("sub", entry.sub), ("actor", entry.actor)):
        if name is not None:
            return {"kind": kind, "name": name, "until": entry.until, "reason": entry.reason}
    raise AssertionError("an entry names somebody")


def _identified(auth: AuthSettings, token: str) -> tuple[str, float | None]:
    """The `jti` of a token, and until when it or a refreshed one could be used."""
    _, claims = _unverified(token)
    jti, ends_s, issued_s = (claims.get(name) for name in ("jti", "exp", "iat"))
    if not isinstance(jti, str) or not jti:
        raise usage(
            "the token has no jti", "revoke all tokens of its subject, with --subject, instead"
        )
    begun_s = claims.get("auth_time", issued_s)
    if not isinstance(ends_s, int | float) or not isinstance(begun_s, int | float):
        return jti, None
    return jti, max(ends_s, begun_s + auth.refresh_max_s)


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


def minted(auth: AuthSettings, actor: str, role: str, lifetime_s: float, token_id: str) -> str:
    """A token with the permissions of a role, signed with the key of the settings."""
    kid, key = _signing_key(auth, None)
    if key.algorithm == "EdDSA":
        raise usage(
            f"the hub has only the public half of the EdDSA key {kid}",
            f"use `signalhub token mint --role {role} --private-key FILE`, and sign in with it",
        )
    return _signed(
        key,
        kid=kid,
        subject=actor[2:-1],
        actor=actor,
        permissions=_granted(role, NO_PERMISSIONS),
        lifetime_s=lifetime_s,
        issuer=auth.issuer,
        now_s=time.time(),
        jti=token_id,
        audience=next(iter(auth.audiences), ""),
    )


def _signed(key: Key, **facts: Any) -> str:
    from signalhub.auth import tokens

    try:
        return tokens.mint(key, **facts)
    except SettingsError as error:
        raise usage(str(error), "correct --private-key or --kid") from None


def _signing_key(auth: AuthSettings, kid: str | None) -> tuple[str | None, Key]:
    from signalhub.settings.model import Key

    if kid is not None:
        if kid not in auth.keys and (auth.jwks_file or auth.jwks_url):
            return kid, Key(algorithm="EdDSA")
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
    if auth.jwks_file or auth.jwks_url:
        raise usage(
            "the hub has only a key set, which holds no private keys",
            "give the id of a key with --kid, and its private key with --private-key FILE",
        )
    raise usage(
        "there is no signing key in the settings",
        "set auth.secret or add one to auth.keys, and give the file with --config",
    )


def _listed(auth: AuthSettings) -> str:
    return ", ".join(sorted(auth.keys)) or "auth.keys (which is empty)"


def _text_of(path: Path | None, advice: str = "choose another with --private-key") -> str:
    if path is None:
        return ""
    try:
        return path.read_text()
    except OSError as error:
        raise usage(f"cannot read the key {path}: {error.strerror}", advice) from None
    except UnicodeDecodeError:
        raise usage(f"the key {path} is not text", advice) from None


def _given(token: str) -> str:
    """The token, which may be on standard input or in a file."""
    if token == STDIN:
        return standard_input()
    if not os.path.isfile(token):
        return token
    try:
        return Path(token).read_text().strip()
    except OSError as error:
        raise usage(f"cannot read {token}: {error.strerror}", "choose another file") from None
    except UnicodeDecodeError:
        raise usage(f"{token} is not text", "choose another file") from None


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


def _refusal(settings: Settings, token: str) -> str | None:
    """Why a hub with these keys rejects the token; `None` if it accepts it."""
    from signalhub.auth import key_sets, tokens
    from signalhub.auth.denials import Denials
    from signalhub.operate.tokens import denials
    from signalhub.wire.errors import Refusal

    auth = settings.auth
    kid = _unverified(token)[0].get("kid")
    if auth.jwks_url and kid is not None and kid not in auth.keys:
        return "cannot be checked here: its key may be in the key set of auth.jwks_url"
    if not auth.secret and not auth.keys and not auth.jwks_file:
        return "cannot be checked: no key in the settings; give the file with --config"
    checker = tokens.Authenticator(auth)
    if auth.jwks_file:
        try:
            checker.use_key_set(key_sets.read(Path(auth.jwks_file).read_bytes()))
        except OSError as error:
            raise usage(
                f"cannot read {auth.jwks_file}: {error.strerror}", "correct auth.jwks_file"
            ) from None
    checker.use_denials(Denials(denials.listed(Path(settings.denial_list))))
    try:
        checker.verify(token, time.time())
    except Refusal as refusal:
        return refusal.message
    return None


def _readable(name: str, value: Any) -> str:
    if name in ("iat", "exp", "nbf", "auth_time") and isinstance(value, int | float):
        try:
            moment = time.strftime("%Y-%m-%d %H:%M:%S %z", time.localtime(value))
        except (ValueError, OverflowError, OSError):
            # Anything may be in a token that is not verified.
            return str(value)
        return f"{value} ({moment})"
    return shown(value)
