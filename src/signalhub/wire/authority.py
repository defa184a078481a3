"""The host and port of a URL or a `Host` header, in one spelling, and where a socket comes from."""

from __future__ import annotations

import ipaddress
import re
from functools import lru_cache

_PREFIX_BITS = 64
_AUTHORITY = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9_](?:[a-z0-9._-]*))(?::([0-9]{0,5}))?")


def parse(text: str) -> tuple[str, int | None] | None:
    """Return host and port of `host:port`; `None` if it is something else."""
    match = _AUTHORITY.fullmatch(text.lower())
    if match is None:
        return None
    host, port = match.groups()
    if host.startswith("["):
        host = host[1:-1]
        try:
            ipaddress.IPv6Address(host)
        except ValueError:
            return None
    return spelt(host), int(port) if port else None


def spelt(host: str) -> str:
    """Return one spelling for a host; an address without brackets and zone."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host.lower().removesuffix(".")
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)


def is_loopback(host: str) -> bool:
    """Is it a name or address of the machine itself?"""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(spelt(host)).is_loopback
    except ValueError:
        return False


@lru_cache(maxsize=4_096)
def source_of(address: str) -> str:
    """The source of a socket: the IPv4 address of its peer, or the /64 network of an IPv6 address.

    A client gets a whole network. Text that is no address is its own source.
    """
    host = spelt(address)
    try:
        given = ipaddress.ip_address(host)
    except ValueError:
        return address
    if isinstance(given, ipaddress.IPv4Address) or given.is_loopback:
        return host
    return str(ipaddress.ip_network((given, _PREFIX_BITS), strict=False))
