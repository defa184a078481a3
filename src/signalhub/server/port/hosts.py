"""For whom a request is, and from where it comes.

A page of any site can point its own name at this machine and then send requests to the hub that the
browser takes for requests to that site. They carry that name in `Host`. So only known names are
served: those of the settings, loopback names, and the address that the hub listens on or that the
connection arrived at. A request without `Host`, which only HTTP/1.0 allows, comes from no browser.

A proxy hides where a request comes from, and says so in `X-Forwarded-For`, which anybody could
send: it is believed from the proxies of the settings only. The same holds for
`X-Forwarded-Proto`, which says that the client came by TLS.
"""

from __future__ import annotations

import ipaddress
from typing import Final

from signalhub.server.port.http import HttpRequest
from signalhub.settings.model import Settings
from signalhub.wire import authority

# Spellings of `Host` known to be served, so that few have to be parsed.
_KNOWN_MAX: Final = 64
_PORTS: Final = {"http": 80, "https": 443}


class Hosts:
    """The names that are served."""

    def __init__(self, settings: Settings) -> None:
        listed = [authority.parse(one) for one in settings.hosts]
        self._listed = frozenset(one for one in listed if one is not None)
        self._bound = authority.spelt(settings.host)
        self._known: set[str] = set()

    def knows(self, host: str) -> bool:
        """Has a request for this host been served?"""
        return host in self._known

    def serves(self, request: HttpRequest) -> bool:
        """Is the request for this hub?"""
        given = request.authority
        if given is None or given in self._known:
            return True
        parts = authority.parse(given)
        if parts is None:
            return False
        host, _ = parts
        if (
            authority.is_loopback(host)
            or host == self._bound
            or parts in self._listed
            or (host, None) in self._listed
        ):
            if len(self._known) < _KNOWN_MAX:
                self._known.add(given)
            return True
        return host == authority.spelt(request.local)


class Proxies:
    """Where requests come from, seen through trusted proxies."""

    def __init__(self, settings: Settings) -> None:
        self._trusted = [ipaddress.ip_network(one) for one in settings.trusted_proxies]

    def client_of(self, request: HttpRequest) -> str:
        """Return the network address of the client, without its port."""
        source = request.peer
        if not self._trusted or not self.is_trusted(source):
            return source
        # Each proxy appends whom it heard; what stands before the first stranger is hearsay.
        for heard in reversed(request.headers.get("x-forwarded-for", "").split(",")):
            address = _address(heard.strip())
            if address is None:
                break
            source = address
            if not self.is_trusted(address):
                break
        return source

    def is_local(self, request: HttpRequest) -> bool:
        """Does it come from this machine, and not through a proxy that says otherwise?"""
        headers = request.headers
        if "x-forwarded-for" not in headers and "forwarded" not in headers:
            return authority.is_loopback(request.peer)
        if not self.is_trusted(request.peer):
            return False
        # What a proxy does not say in an address is not taken for this machine.
        nearest = _address(headers.get("x-forwarded-for", "").rpartition(",")[2].strip())
        return nearest is not None and authority.is_loopback(self.client_of(request))

    def scheme_of(self, request: HttpRequest) -> str:
        """Return the scheme that the client used: `https` only behind a trusted proxy."""
        if not self.is_trusted(request.peer):
            return "http"
        said = request.headers.get("x-forwarded-proto", "http")
        return said.rpartition(",")[2].strip().lower()

    def is_trusted(self, text: str) -> bool:
        """Is it the address of a trusted proxy?"""
        try:
            address = ipaddress.ip_address(authority.spelt(text))
        except ValueError:
            return False
        return any(address in network for network in self._trusted)


def is_same_origin(origin: str, request: HttpRequest, proxies: Proxies) -> bool:
    """Is it the origin of the hub's own pages, as the client of this request sees them?

    The host of the request is one that is served: that was checked before.
    """
    scheme, _, rest = origin.lower().partition("://")
    given, own = authority.parse(rest), authority.parse(request.authority or "")
    default = _PORTS.get(scheme)
    if given is None or own is None or default is None or scheme != proxies.scheme_of(request):
        return False
    return (given[0], given[1] or default) == (own[0], own[1] or default)


def _address(text: str) -> str | None:
    """Return the address in one entry of `X-Forwarded-For`, which some proxies add a port to."""
    try:
        return str(ipaddress.ip_address(authority.spelt(text)))
    except ValueError:
        parts = authority.parse(text)
    if parts is None:
        return None
    try:
        return str(ipaddress.ip_address(parts[0]))
    except ValueError:
        return None
