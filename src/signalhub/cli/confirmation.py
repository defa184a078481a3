"""Asking before something is done that cannot be undone."""

from __future__ import annotations

import sys
from typing import Annotated

from cyclopts import Parameter

from signalhub.cli.failures import Exit, Failure, usage

Yes = Annotated[
    bool,
    Parameter(name="--yes", negative=(), show_default=False, help="Do it without asking."),
]


def confirm(deed: str, *, yes: bool) -> None:
    """Go on only if the user wants it; `deed` says what would happen."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise usage(f"this would {deed}, and there is nobody to ask", "add --yes if you mean it")
    print(f"This will {deed}. Go on? [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise Failure(Exit.FAILED, "not_confirmed", "nothing was changed", "answer y to go on")
