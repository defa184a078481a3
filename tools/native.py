"""Build and install the native part, if this machine can.

    python -m tools.native            build it and say in one line whether it is there
    python -m tools.native --lock     write native/crates.txt again, from what cargo resolves
    python -m tools.native --audit    check licenses, sources and known vulnerabilities

`native/crates.txt` pins every crate with the hash of its file. Cargo's own lock file is made from
it, because that one records where crates were downloaded.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
CRATE: Final = ROOT / "native"
PINNED: Final = CRATE / "crates.txt"
_LOCK: Final = CRATE / "Cargo.lock"
_HEADER: Final = "# Written by `python -m tools.native --lock`.\n"
_OFFLINE: Final = ("licenses", "bans", "sources")
_WITHOUT: Final = "everything works without it, only slower"


class NotBuilt(Exception):
    """The native part cannot be built here, and why."""


def resolved() -> dict[str, tuple[str, str]]:
    """The version and the hash of every crate in cargo's lock file."""
    packages = tomllib.loads(_LOCK.read_text())["package"]
    return {one["name"]: (one["version"], one["checksum"]) for one in packages if "checksum" in one}


def pinned() -> dict[str, tuple[str, str]]:
    """The version and the hash of every crate in `crates.txt`."""
    found = {}
    for line in PINNED.read_text().splitlines():
        if not line.startswith("#"):
            crate, checksum = line.split(" sha256:")
            name, version = crate.split("==")
            found[name] = (version, checksum)
    return found


def lock() -> None:
    """Make cargo's lock file; raise `NotBuilt` if a crate is not the pinned one."""
    wanted = pinned()
    if _LOCK.exists() and resolved() == wanted:
        return
    _LOCK.unlink(missing_ok=True)
    run("cargo", "generate-lockfile")
    for name, (version, _) in resolved().items():
        if name in wanted and wanted[name][0] != version:
            run("cargo", "update", "--package", name, "--precise", wanted[name][0])
    if resolved() != wanted:
        raise NotBuilt("the crates differ from native/crates.txt")


def run(*command: str) -> None:
    """Run a command in the crate's folder; raise `NotBuilt` with its last line if it fails."""
    try:
        done = subprocess.run(
            command, cwd=CRATE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
    except FileNotFoundError:
        raise NotBuilt(f"{command[0]} was not found") from None
    if done.returncode:
        lines = [line for line in done.stdout.splitlines() if line.strip()]
        raise NotBuilt(f"{' '.join(command[:2])} failed: {lines[-1] if lines else 'no output'}")


def build() -> None:
    """Build the wheel and install it beside the package."""
    if shutil.which("cargo") is None:
        raise NotBuilt("cargo was not found")
    pip = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")
    requirements = str(ROOT / "requirements" / "native.txt")
    run(*pip, "install", "--require-hashes", "--requirement", requirements)
    lock()
    with tempfile.TemporaryDirectory() as folder:
        maturin = (sys.executable, "-m", "maturin", "build", "--release", "--locked")
        run(*maturin, "--interpreter", sys.executable, "--out", folder)
        (wheel,) = Path(folder).glob("*.whl")
        run(*pip, "install", "--no-deps", "--no-index", "--force-reinstall", str(wheel))


def audit() -> int:
    """Check the pinned crates with `cargo-deny` and `cargo-audit`, a line for each.

    Returns 0 if all is well, 1 if something was found, 2 if something could not be checked: nobody
    should take what was not looked at for what is safe.
    """
    try:
        lock()
    except NotBuilt as why:
        print(f"native: not checked ({why})")
        return 2
    found = 0
    if _is_there("deny"):
        found |= _checked(", ".join(_OFFLINE), "cargo", "deny", "--offline", "check", *_OFFLINE)
    if not _is_there("deny") or not _is_there("audit"):
        tools = " and ".join(f"cargo-{one}" for one in ("deny", "audit") if not _is_there(one))
        print(f"native: not all checked ({tools} not found: cargo install --locked)")
        return found or 2
    if not _succeeds("cargo", "deny", "fetch", "db"):
        print("native: vulnerabilities not checked (the advisory database cannot be reached)")
        return found or 2
    found |= _checked("advisories", "cargo", "deny", "check", "advisories")
    return found | _checked("vulnerabilities", "cargo", "audit", "--deny", "warnings")


def _is_there(tool: str) -> bool:
    return shutil.which(f"cargo-{tool}") is not None


def _succeeds(*command: str) -> bool:
    return subprocess.run(command, cwd=CRATE, capture_output=True).returncode == 0


def _checked(what: str, *command: str) -> int:
    """Run a check, and show its output if it found something; return 0 or 1."""
    done = subprocess.run(
        command, cwd=CRATE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if done.returncode:
        print(done.stdout.rstrip())
    print(f"native: {what} {'failed' if done.returncode else 'ok'}")
    return int(done.returncode != 0)


def main(arguments: list[str]) -> int:
    if arguments == ["--audit"]:
        return audit()
    if arguments == ["--lock"]:
        _LOCK.unlink(missing_ok=True)
        run("cargo", "generate-lockfile")
        lines = [f"{name}=={version} sha256:{sum}" for name, (version, sum) in resolved().items()]
        PINNED.write_text(_HEADER + "\n".join(sorted(lines)) + "\n")
        return 0
    try:
        build()
    except NotBuilt as why:
        print(f"native: not built ({why}); {_WITHOUT}")
    else:
        print("native: built")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
