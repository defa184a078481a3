"""Write `requirements/*.txt`: every pinned package with the hashes of all its files.

    python tools/lock.py [path of uv]

Versions come from `constraints.txt`, hashes from the package index. pip refuses a file whose hash
is not listed. The files contain no address, so any mirror can serve them.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
FOLDER: Final = ROOT / "requirements"
# What each file installs besides the packages that the hub itself needs.
EXTRAS: Final[dict[str, tuple[str, ...]]] = {
    "runtime": (),
    "pipeline": ("pipeline",),
    "dev": ("pipeline", "dev"),
    "bench": ("pipeline", "dev", "bench"),
}
# What builds the native part.
NATIVE: Final = ["maturin"]
# What drives Chromium in the tests of the dashboard, besides `dev`.
BROWSER: Final = ["playwright"]
_HEADER: Final = "# Written by tools/lock.py from constraints.txt and pyproject.toml.\n"


def build_requirements() -> list[str]:
    """Return what building needs: this package, and those that publish their source only."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    # Hatchling asks for `editables` when it installs the package from its folder.
    return [*project["build-system"]["requires"], "editables", "setuptools"]


def compiled(uv: str, sources: list[str], extras: tuple[str, ...] = ()) -> str:
    """Return the locked requirements of these sources, for every platform."""
    command = [uv, "pip", "compile", "--universal", "--python-version", "3.11", "--quiet"]
    command += [
        "--generate-hashes",
        "--no-annotate",
        "--no-header",
        "--no-strip-extras",
        "--constraint",
    ]
    command += ["constraints.txt", *(word for extra in extras for word in ("--extra", extra))]
    done = subprocess.run(
        [*command, *sources], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True
    )
    return _HEADER + done.stdout


def main(arguments: list[str]) -> None:
    uv = arguments[0] if arguments else "uv"
    FOLDER.mkdir(exist_ok=True)
    for name, extras in EXTRAS.items():
        (FOLDER / f"{name}.txt").write_text(compiled(uv, ["pyproject.toml"], extras))
    alone = (("build", build_requirements()), ("native", NATIVE), ("browser", BROWSER))
    for name, packages in alone:
        with tempfile.NamedTemporaryFile("w", suffix=".in") as listed:
            listed.write("\n".join(packages))
            listed.flush()
            (FOLDER / f"{name}.txt").write_text(compiled(uv, [listed.name]))


if __name__ == "__main__":
    main(sys.argv[1:])
