"""The packages of the extra `pipeline`, which a plain installation does not have."""

from __future__ import annotations

import importlib.util
from typing import Final

PACKAGES: Final = frozenset({"delta", "deltalake", "numpy", "pandas", "pyarrow", "pyspark"})
INSTALL: Final = "pip install 'signalhub[pipeline]'"


def are_installed() -> bool:
    """Can commands on the lake run, as far as Python is concerned? Nothing is imported."""
    return all(importlib.util.find_spec(name) is not None for name in PACKAGES)


def is_missing(error: ModuleNotFoundError) -> bool:
    """Was it raised because the extra is not installed?"""
    return error.name is not None and error.name.partition(".")[0] in PACKAGES
