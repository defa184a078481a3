"""The version of this release; the protocol has one of its own."""

from __future__ import annotations

__version__ = "0.2.0.dev0"
