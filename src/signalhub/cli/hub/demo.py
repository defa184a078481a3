"""`signalhub demo`: a shop under load, with buttons that kill its parts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

import signalhub
from signalhub.cli.hub.serve import start_failure
from signalhub.cli.terminal.failures import Exit, Failure, usage
from signalhub.cli.terminal.output import AsJson, Output
from signalhub.pipeline import packages

if TYPE_CHECKING:
    from signalhub.operate.demo.supervisor import Demo

RATE_MAX_S = 200.0


def demo(
    *,
    port: Annotated[int, Parameter(help="Port of the hub and its page.")] = 8787,
    rate: Annotated[float, Parameter(help="Orders per second.")] = 20.0,
    browser: Annotated[
        bool, Parameter(negative="--no-browser", show_default=False, help="Open the page.")
    ] = True,
    keep: Annotated[bool, Parameter(negative=(), help="Keep the folder with all data.")] = False,
    for_: Annotated[
        float | None, Parameter(name="--for", help="Stop after this many seconds.")
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Run a shop under load on this machine, and show that nothing is lost.

    A hub behind a network that can be cut, two hosts of durable actors, customers
    who order, and consumers of their orders. The page has buttons to kill any of
    them. Ctrl-C ends everything and removes the folder, and prints the books.
    """
    import asyncio
    import shutil
    import tempfile

    output = Output(as_json)
    if not 0 < rate <= RATE_MAX_S:
        raise usage(f"invalid rate {rate:g}", f"give orders per second, up to {RATE_MAX_S:g}")
    folder = Path(tempfile.mkdtemp(prefix="signalhub-demo-"))
    try:
        return asyncio.run(_run(folder, port, rate, browser, for_, output))
    except OSError as error:
        raise start_failure(error, "127.0.0.1", port) from error
    finally:
        if keep:
            output.fact({"folder": str(folder)}, f"everything is in {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)


async def _run(
    folder: Path, port: int, rate: float, browser: bool, for_s: float | None, output: Output
) -> int:
    import asyncio
    import contextlib
    import signal
    import webbrowser

    from signalhub.operate.demo.supervisor import Demo

    shop = _shop_folder()
    running = Demo(folder, port=port, rate_s=rate, shop=shop, has_pipeline=_has_pipeline())

    def ready() -> None:
        facts = {"page": running.page, "url": running.url, "folder": str(folder)}
        output.fact(facts, f"the shop is open: {running.page} (Ctrl-C ends it)")
        if browser:
            with contextlib.suppress(webbrowser.Error):
                webbrowser.open(running.page)

    task = asyncio.create_task(running.run(ready))
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, task.cancel)
    if for_s is not None:
        loop.call_later(for_s, task.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await task
    _close_books(running, output)
    return Exit.DONE


def _close_books(running: Demo, output: Output) -> None:
    """Say how it ended."""
    board = running.show()
    lines = [
        f"{one['text']}: {_exact(one['left'])} and {_exact(one['right'])}"
        for one in board["ledger"]
    ]
    if board["proof"] is not None:
        lines.append(f"proof: {board['proof']['text']}")
    kills = sum(one["kills"] for one in board["programs"])
    placed, lost, doubled = board["placed"], board["lost"], board["doubled"]
    facts = {
        name: board[name]
        for name in ("placed", "open", "confirmed", "cancelled", "ledger", "proof")
    }
    facts |= {"kills": kills, "lost": lost, "doubled": doubled, "unverified": board["unverified"]}
    output.fact(
        facts,
        f"{placed} orders placed, {kills} programs killed, {lost} lost, {doubled} doubled\n"
        + "\n".join(lines),
    )


def _exact(number: float) -> str:
    """Every digit, and cents if there are any."""
    return f"{number:.2f}" if isinstance(number, float) else str(number)


def _shop_folder() -> Path:
    """The folder of the example's module: in the package, or beside it in a checkout."""
    package = Path(signalhub.__file__).parent
    for folder in (package / "examples", package.parent.parent / "examples"):
        if (folder / "shop.py").is_file():
            return folder
    raise Failure(
        Exit.FAILED, "no_example", "the example shop.py is missing", "install signalhub again"
    )


def _has_pipeline() -> bool:
    """Is there all that the pipeline needs, Java included?"""
    if not packages.are_installed():
        return False
    from signalhub.pipeline.run import java

    return java.problem() is None
