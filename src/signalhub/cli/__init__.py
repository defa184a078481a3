"""The `signalhub` command: a folder per group of commands; heavy imports only inside them."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line and exit with its exit code."""
    from signalhub.cli.app import run

    sys.exit(run(sys.argv[1:]))
