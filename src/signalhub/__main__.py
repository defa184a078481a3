"""`python -m signalhub`: the command line."""

from __future__ import annotations

from signalhub.cli import main

main()
