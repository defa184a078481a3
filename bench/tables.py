"""The format of tables and numbers in all reports."""

from __future__ import annotations

from rich.box import SIMPLE_HEAD
from rich.table import Table


def table(title: str) -> Table:
    return Table(title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD)


def number(value: float, digits: int | None = None) -> str:
    """Format a number with separated thousands; small ones get two decimals by default."""
    if digits is None:
        digits = 0 if value >= 100 else 2
    return f"{value:,.{digits}f}"
