"""Checks of the way to a hub: whether it answers, clocks, tokens, certificates, open metrics."""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections.abc import AsyncIterator
from typing import Final
from urllib.parse import quote, urlsplit

import msgspec

from signalhub.client.transport.http import HttpAnswer, HttpClient, Origin
from signalhub.operate.doctor.finding import Finding, fail, ok, warn
from signalhub.operate.session import HubAccess
from signalhub.operate.tokens.token import contents
from signalhub.wire.authority import is_loopback
from signalhub.wire.errors import ClientError, SignalHubError

SKEW_S_MAX: Final = 5.0
CERTIFICATE_DAYS_MIN: Final = 14
TOKEN_S_MIN: Final = 3_600
_DAY_S: Final = 86_400
_SERIES: Final = "/api/admin/v1/series"


async def connection_findings(access: HubAccess) -> AsyncIterator[Finding]:
    """All checks of one hub; without a hub, the first one says so."""
    for finding in _token(access.token, time.time()):
        yield finding
    parts = urlsplit(access.url)
    if parts.scheme in ("wss", "https"):
        yield await asyncio.to_thread(
            _certificate, parts.hostname or "", parts.port or 443, access.timeout_s
        )
    try:
        async with access.session() as me:
            took_s = await access.in_time(me.ping())
            yield ok("hub", f"{access.url} answers in {took_s * 1000:.1f} ms")
    except ClientError as error:
        advice = f"see `signalhub error {error.code}`"
        yield fail("hub", f"{access.url}: {error}", advice)
        return
    http = HttpClient(Origin.of(access.url))
    try:
        yield await _health(http, access.timeout_s)
        yield await _metrics(http, parts.hostname or "", access.timeout_s)
        yield await _pages(http, access.timeout_s)
    except (SignalHubError, msgspec.MsgspecError) as error:
        yield warn("http", f"{http.origin.http_url}: {error}", "check the proxy before the hub")
    finally:
        await http.close()


async def measured(access: HubAccess) -> dict[str, bytes]:
    """The page of metrics and the rates of the last minutes, as the token may see them."""
    http = HttpClient(Origin.of(access.url), token=access.token)

    async def get(path: str) -> bytes:
        return (await http.request("GET", path, timeout_s=access.timeout_s)).body

    try:
        metrics, listed = await get("/metrics"), await get(_SERIES)
        try:
            names = msgspec.json.decode(listed)["names"]
        except (msgspec.MsgspecError, LookupError, TypeError):
            # It says why not.
            return {"metrics.txt": metrics, "series.json": listed}
        series = await get(f"{_SERIES}?names={','.join(map(quote, names))}")
        return {"metrics.txt": metrics, "series.json": series}
    finally:
        await http.close()


def _token(token: str | None, now_s: float) -> list[Finding]:
    if token is None:
        return []
    try:
        _, claims = contents(token)
    except ValueError:
        return [fail("token", "it is no token", "pass one with --token-file or SIGNALHUB_TOKEN")]
    begins, ends = claims.get("iat"), claims.get("exp")
    renew = "create a new one with `signalhub token mint`"
    if isinstance(ends, int | float) and ends <= now_s:
        return [fail("token", f"it expired {_days(now_s - ends)} ago", renew)]
    if isinstance(begins, int | float) and begins > now_s + SKEW_S_MAX:
        text = f"it begins in {begins - now_s:.0f} s: the clocks differ"
        return [fail("token", text, "set the clocks of this machine and of the issuer")]
    if isinstance(ends, int | float):
        if ends - now_s < TOKEN_S_MIN:
            return [warn("token", f"it expires in {(ends - now_s) / 60:.0f} minutes", renew)]
        return [ok("token", f"it is valid for {_days(ends - now_s)}")]
    return [ok("token", "it does not expire")]


def _certificate(host: str, port: int, timeout_s: float) -> Finding:
    """Whether the chain is trusted, and for how long."""
    context = ssl.create_default_context()
    try:
        with (
            socket.create_connection((host, port), timeout_s) as plain,
            context.wrap_socket(plain, server_hostname=host) as secured,
        ):
            found = secured.getpeercert()
            version = secured.version()
    except ssl.SSLCertVerificationError as error:
        advice = "renew it, or name the file of your authority in SSL_CERT_FILE"
        return fail(
            "tls", f"the certificate of {host} is not trusted: {error.verify_message}", advice
        )
    except OSError as error:
        return fail("tls", f"{host}:{port}: {error}", "check the proxy before the hub")
    ends_s = ssl.cert_time_to_seconds(str((found or {}).get("notAfter")))
    left_s = ends_s - time.time()
    text = f"the certificate of {host} is trusted for {_days(left_s)}, {version}"
    if left_s < CERTIFICATE_DAYS_MIN * _DAY_S:
        return warn("tls", text, "renew it")
    return ok("tls", text)


async def _health(http: HttpClient, timeout_s: float) -> Finding:
    answer = await http.request("GET", "/health", timeout_s=timeout_s)
    skew_s = _skew_s(answer, time.time())
    facts = msgspec.json.decode(answer.body)
    if abs(skew_s) > SKEW_S_MAX:
        text = f"the clock of the hub is {skew_s:+.0f} s off this one"
        return warn("clock", text, "set both clocks by NTP: tokens and expiry depend on them")
    if answer.status != 200 or facts.get("status") != "ok":
        reasons = ", ".join(map(str, facts.get("degradations") or ())) or f"HTTP {answer.status}"
        level = fail if answer.status != 200 else warn
        return level("health", f"degraded: {reasons}", "see docs/operate/metrics.md, Health")
    return ok("health", f"ok, clocks differ by {abs(skew_s):.1f} s")


def _skew_s(answer: HttpAnswer, now_s: float) -> float:
    """How far the hub's clock is ahead of ours, by its answer."""
    facts = msgspec.json.decode(answer.body)
    at = facts.get("timestamp") if isinstance(facts, dict) else None
    if isinstance(at, int | float):
        return at / 1000 - now_s
    return 0.0


async def _metrics(http: HttpClient, host: str, timeout_s: float) -> Finding:
    answer = await http.request("GET", "/metrics", timeout_s=timeout_s)
    if answer.status != 200:
        return ok("metrics", "not shown without a token")
    if is_loopback(host):
        return ok("metrics", "shown to this machine")
    return warn(
        "metrics",
        f"anyone who reaches {host} sees the names of topics and subscriptions",
        "set metrics.access to token",
    )


async def _pages(http: HttpClient, timeout_s: float) -> Finding:
    """Whether browsers get the dashboard and the client for JavaScript."""
    answer = await http.request("GET", "/sdk.js", timeout_s=timeout_s)
    if answer.status in (200, 302):
        return ok("sdk", f"{http.origin.http_url}/sdk.js is served")
    return ok("sdk", "the dashboard and /sdk.js are not served (ui.enabled)")


def _days(seconds: float) -> str:
    return f"{seconds / _DAY_S:.0f} days" if seconds >= 2 * _DAY_S else f"{seconds / 3600:.1f} h"
