"""How tables and numbers of every report look."""

from __future__ import annotations

from rich.box import SIMPLE_HEAD
from rich.table import Table


def table(title: str) -> Table:
    return Table(title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD)


def number(value: float, digits: int | None = None) -> str:
    """Thousands apart; two digits after the point for small numbers unless told otherwise."""
    if digits is None:
        digits = 0 if value >= 100 else 2
    return f"{value:,.{digits}f}"
