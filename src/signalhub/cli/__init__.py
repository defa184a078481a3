"""The `signalhub` command: a folder per group of commands; heavy imports only inside them."""

from __future__ import annotations

import gc
import os
import sys


def main() -> None:
    """Run the command line and exit with its exit code; the files it writes are for its owner."""
    # What is imported stays, so looking for garbage often, or once more at the end, finds none.
    gc.set_threshold(50_000, 20, 50)
    if sys.argv[1:2] == ["__complete"]:
        from signalhub.cli.terminal import names

        names.main(sys.argv[2:])
        return
    try:
        from signalhub.cli.app import run
        from signalhub.privacy import UMASK

        os.umask(UMASK)
        code = run(sys.argv[1:])
    except KeyboardInterrupt:
        # It came while modules were imported; `run` returns the same code.
        code = 130
    gc.freeze()
    sys.exit(code)
