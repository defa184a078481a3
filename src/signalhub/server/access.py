"""Who may read `/metrics` and the details of `/health`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from signalhub.auth.permissions import Allowance
from signalhub.clock import SteadyClock
from signalhub.core.sessions.logins import RefusedLogins
from signalhub.server.port.hosts import Hosts, Proxies
from signalhub.server.port.http import HttpRequest, Response, text
from signalhub.server.runner import HubRunner
from signalhub.settings.model import Settings
from signalhub.wire.errors import Refusal

if TYPE_CHECKING:
    from signalhub.auth.tokens import Authenticator

_NO_TOKEN = text(
    401,
    "Reading this needs a token: send it as Authorization: Bearer.",
    {"WWW-Authenticate": "Bearer"},
)
_BAD_TOKEN = text(
    401,
    "The token was refused; see the hub's log.",
    {"WWW-Authenticate": 'Bearer error="invalid_token"'},
)
_NOT_ALLOWED = text(403, "The token has no permission for this (admin: metrics or view).")
_NOT_LOCAL = text(
    403, "This is served to the machine of the hub only; the setting is metrics.access."
)


class Access:
    """Decides about requests to the hub's own pages."""

    def __init__(
        self,
        settings: Settings,
        authenticator: Authenticator | None,
        logins: RefusedLogins,
        runner: HubRunner,
        clock: SteadyClock,
    ) -> None:
        self._authenticator = authenticator
        self._logins = logins
        self._runner = runner
        self._clock = clock
        self._hosts = Hosts(settings)
        self._proxies = Proxies(settings)
        self._metrics = settings.metrics.access
        if self._metrics == "auto":
            self._metrics = "loopback" if authenticator is None else "token"

    def metrics_refusal(self, request: HttpRequest) -> Response | None:
        """Return `None` if the client may read the metrics, or the response that refuses it."""
        if self._metrics == "loopback":
            return None if self._proxies.is_local(request) else _NOT_LOCAL
        if self._metrics == "open":
            return None
        if "authorization" not in request.headers:
            return _NO_TOKEN
        allowance = self._allowance(request)
        if allowance is None:
            return _BAD_TOKEN
        may_read = allowance.may_administer("metrics") or allowance.may_administer("view")
        return None if may_read else _NOT_ALLOWED

    def sees_details(self, request: HttpRequest) -> bool:
        """May the client see more of `/health` than the status and its codes?"""
        if not self._hosts.serves(request):
            return False
        if self._authenticator is None:
            return True
        if "authorization" not in request.headers:
            return False
        allowance = self._allowance(request)
        return allowance is not None and allowance.may_administer("view")

    def _allowance(self, request: HttpRequest) -> Allowance | None:
        """What the token of a request permits; `None` if it is refused."""
        if self._authenticator is None:
            return None
        now = self._clock.now_ms()
        wall_s = self._clock.wall_ms() / 1000
        try:
            claims = self._authenticator.verify(request.headers["authorization"], wall_s)
        except Refusal as refusal:
            source = self._proxies.client_of(request)
            noted = self._logins.refused(source, request.path, refusal.message, now)
            self._runner.perform(noted, now)
            return None
        return Allowance(claims.actor, claims.permissions, claims.subject)
