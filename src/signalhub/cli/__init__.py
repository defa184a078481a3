"""The `signalhub` command: a folder per group of commands; heavy imports only inside them."""

from __future__ import annotations

import os
import sys


def main() -> None:
    """Run the command line and exit with its exit code; the files it writes are for its owner."""
    from signalhub.cli.app import run
    from signalhub.privacy import UMASK

    os.umask(UMASK)
    sys.exit(run(sys.argv[1:]))
