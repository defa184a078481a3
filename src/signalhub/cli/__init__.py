"""The `signalhub` command: one module per noun, heavy imports only inside commands."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line and leave the process with its exit code."""
    from signalhub.cli.app import run

    sys.exit(run(sys.argv[1:]))
