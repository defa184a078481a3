"""Who asks, and with which permissions: a token, or a role for everybody without authentication."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

import msgspec

from signalhub.auth.permissions import ROLES, Allowance, Permissions
from signalhub.server.callers import Answer, Caller, Callers, Principal
from signalhub.server.port.hosts import Proxies
from signalhub.server.port.http import HttpRequest
from signalhub.wire.errors import Refusal
from signalhub.wire.names import NOBODY

if TYPE_CHECKING:
    from signalhub.auth.tokens import Authenticator
    from signalhub.settings.model import Settings

Role = Literal["viewer", "operator", "admin", "custom"]

# Who is on record for actions without authentication.
ANYBODY: Final = "@(ui/page)"
# Without authentication nobody is refused what every client of the hub may do.
_MESSAGING: Final = ("send", "broadcast", "publish", "subscribe", "register")
_ROLES: Final[tuple[Literal["admin", "operator", "viewer"], ...]] = ("admin", "operator", "viewer")
_OPERATIONS: Final = (
    *("view", "sessions", "settings", "limits", "audit", "try", "republish", "erase", "cluster"),
    "metrics",
)


class Visitor(msgspec.Struct, frozen=True):
    """Who sends a request."""

    principal: Principal
    allowance: Allowance
    permissions: Permissions
    role: Role
    expires_ms: float | None

    @property
    def name(self) -> str:
        """Tells visitors apart: of one token, or from one address without authentication."""
        return self.principal.token or self.principal.source

    def may(self, verb: str, over: str = "", owner: str = "") -> bool:
        """Is a verb permitted? `admin` is about an operation, others about a name."""
        allowance = self.allowance
        match verb:
            case "admin":
                return allowance.may_administer(over)
            case "manage":
                return allowance.may_manage(over, owner)
            case "delete":
                return allowance.may_delete(over, owner)
            case "read":
                return allowance.may_read(over)
            case "create":
                return allowance.may_create(over)
            case "control":
                return allowance.may_control(over)
            case "publish":
                return allowance.may_publish(over)
            case "discover":
                return allowance.may_discover(over)
            case _:
                return allowance.may_administer(verb)

    def may_name(self, address: str) -> bool:
        """May it learn that somebody is called so?"""
        return self.may("discover", address) or self.may("admin", "sessions")

    @property
    def may_name_all(self) -> bool:
        """May it learn the names of all actors?"""
        return self.allowance.discovers_all or self.may("admin", "sessions")

    @property
    def operations(self) -> list[str]:
        """What the page may offer: operations of `admin`, and patterns of other verbs."""
        found = [one for one in _OPERATIONS if self.allowance.may_administer(one)]
        given = self.permissions
        older = {
            "manage": given.create,
            "delete": given.create,
            "read": given.subscribe,
            "discover": given.send,
        }
        for verb in Permissions.__struct_fields__:
            patterns = getattr(given, verb)
            if patterns is None:
                patterns = older.get(verb, ())
            if verb != "admin":
                found += [f"{verb}:{pattern}" for pattern in patterns]
        return found


class Visitors:
    """Identifies those who send requests, and sends theirs to the hub."""

    def __init__(
        self, callers: Callers, settings: Settings, authenticator: Authenticator | None
    ) -> None:
        self._callers = callers
        self._authenticator = authenticator
        self.proxies = Proxies(settings)
        role = settings.ui.role_without_auth
        given = ROLES[role] | {verb: ("*",) for verb in _MESSAGING}
        if role == "admin":
            given = {verb: ("*",) for verb in Permissions.__struct_fields__}
        self._role: Role = role
        self._permissions = Permissions(**given)
        self._allowance = Allowance(NOBODY, self._permissions)

    def identify(self, request: HttpRequest, token: str | None = None) -> Visitor:
        """Who sends a request, perhaps with the token beside it; raises `CallRefused` (401)."""
        if token is not None:
            headers = request.headers | {"authorization": f"Bearer {token}"}
            request = msgspec.structs.replace(request, headers=headers)
        principal = self._callers.principal(request)
        if self._authenticator is None:
            principal = msgspec.structs.replace(principal, address=ANYBODY)
            return Visitor(principal, self._allowance, self._permissions, self._role, None)
        wall_s = self._callers.wall_ms() / 1000
        claims = self._authenticator.verify(principal.token, wall_s)
        role = role_of(claims.permissions)
        expires_ms = claims.expires_at_s * 1000
        return Visitor(principal, principal.allowance, claims.permissions, role, expires_ms)

    def is_welcome(self, visitor: Visitor) -> bool:
        """Is the token of a visitor still good, neither expired nor revoked?"""
        if self._authenticator is None:
            return True
        try:
            self._authenticator.verify(visitor.principal.token, self._callers.wall_ms() / 1000)
        except Refusal:
            return False
        return True

    def caller(self, visitor: Visitor, address: str = "") -> Caller:
        """Who sends requests for a visitor; with an internal `address` a session of its own."""
        return self._callers.caller(visitor.principal, address=address)

    async def call(self, visitor: Visitor, type: str, payload: object) -> Answer:
        """Send a request of the wire protocol for a visitor; raises `CallRefused`."""
        return await self.caller(visitor).call(type, payload)


def role_of(permissions: Permissions) -> Role:
    """The role whose administrative verbs a token has all of; `custom` without even `view`."""
    for role in _ROLES:
        if all(_has(permissions, verb, wanted) for verb, wanted in ROLES[role].items()):
            return role
    return "custom"


def _has(permissions: Permissions, verb: str, wanted: tuple[str, ...]) -> bool:
    given = getattr(permissions, verb) or ()
    return "*" in given or set(wanted) <= set(given)
