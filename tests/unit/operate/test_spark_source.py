"""Which Python Spark uses to look for `format("signalhub")`."""

from __future__ import annotations

import os
import subprocess
import sys

_IMPORT = "import os, pyspark_signalhub; print(os.environ['PYSPARK_PYTHON'])"


def chosen(**environment: str) -> str:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYSPARK_")}
    command = [sys.executable, "-c", _IMPORT]
    return subprocess.check_output(command, env=kept | environment, text=True).strip()


def test_importing_the_source_chooses_the_interpreter_that_has_it_unless_one_is_chosen() -> None:
    assert chosen(PATH="/nowhere") == sys.executable
    assert chosen(PYSPARK_PYTHON="/opt/python") == "/opt/python"
