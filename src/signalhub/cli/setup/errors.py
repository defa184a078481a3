"""`signalhub error`: what an error code means, and what to do."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from signalhub.cli.terminal.failures import Exit, Failure, usage
from signalhub.cli.terminal.output import AsJson, Output

_ANSWERS = {True: "repeating it may help", False: "repeating it unchanged does not help"}
_SIMILAR = 3


def error(
    code: Annotated[
        str | None, Parameter(name="CODE", help="The code, such as queue_full.")
    ] = None,
    /,
    *,
    reference: Annotated[
        bool, Parameter(negative=(), show_default=False, help="Print all codes as Markdown.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Explain an error code: when it occurs and what to do."""
    from signalhub.wire.error_reference import SECTIONS, errors_of, page

    if reference:
        print(page(), end="")
        return
    if code is None:
        raise usage("CODE is missing", "give one, such as queue_full, or --reference for all")
    entries = errors_of(code) or errors_of(code.lower()) or errors_of(code.upper())
    if not entries:
        raise Failure(Exit.FAILED, "unknown_error", f"no error has the code {code}", _similar(code))
    output = Output(as_json)
    for entry in entries:
        title, _ = SECTIONS[entry.source]
        facts = {
            "code": entry.code,
            "source": entry.source,
            "when": entry.when,
            "advice": entry.advice,
            "retryable": entry.is_retryable,
        }
        repeat = "" if entry.is_retryable is None else f" ({_ANSWERS[entry.is_retryable]})"
        output.fact(facts, f"{entry.code} — {title.lower()}: {entry.when} {entry.advice}{repeat}")


def _similar(code: str) -> str:
    from difflib import get_close_matches

    from signalhub.wire.error_reference import ERRORS

    by_name = {one.code.lower(): one.code for one in ERRORS}
    found = get_close_matches(code.lower(), by_name, _SIMILAR, cutoff=0.0)
    return f"did you mean {', '.join(by_name[one] for one in found)}?"
