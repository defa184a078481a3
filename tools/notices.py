"""Write `THIRD-PARTY-NOTICES.md`: all that Signal Hub runs with and is built from, and its license.

    python tools/notices.py

Licenses of packages are what the installed packages say about themselves, so run it after
`make setup`. JARs do not all say it; theirs are listed here by group, as their projects state them.
Crates do, but only cargo can tell, which need not be there; a test compares both.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.metadata import PackageMetadata, files, metadata
from pathlib import Path
from typing import Final

from signalhub.pipeline.run.java import expected_jars
from tools.native import pinned
from tools.sbom import jar_of, locked

ROOT: Final = Path(__file__).resolve().parent.parent
TARGET: Final = ROOT / "THIRD-PARTY-NOTICES.md"

_INTRODUCTION: Final = """\
# Third-party notices

Signal Hub is licensed under the Apache License 2.0 ([LICENSE](LICENSE)). It contains no code of
others, but runs with the packages below, which are installed beside it and keep their own licenses.
Each brings the text of its license and its copyright notices in the folder `*.dist-info` of its
installation, each JAR in its `META-INF`. Only the optional native part (`signalhub-native`) is
compiled together with code of others, that of the crates below.

Written by `make notices`.
"""
_PACKAGES: Final = """
## Python packages

The hub needs those marked `hub`; the others belong to the pipeline (`signalhub[pipeline]`). PySpark
contains JARs of its own, listed in the files `LICENSE` and `NOTICE` of its installation.

| package | version | license | for |
|---|---|---|---|
"""
_CRATES: Final = """
## Crates

The native part is built from them, where cargo is installed.

| crate | version | license |
|---|---|---|
"""
_JARS: Final = """
## JARs

`make setup` fetches them for the pipeline.

| JAR | version | license |
|---|---|---|
"""
_APACHE: Final = "Apache-2.0"
_OF_GROUPS: Final = {
    "com.fasterxml.jackson.core": _APACHE,
    "com.fasterxml.jackson.datatype": _APACHE,
    "com.github.luben": "BSD-2-Clause",
    "com.google.code.findbugs": _APACHE,
    "commons-logging": _APACHE,
    "commons-pool": _APACHE,
    "io.airlift": _APACHE,
    "io.delta": _APACHE,
    "io.unitycatalog": _APACHE,
    "javax.annotation": "CDDL-1.0 OR GPL-2.0-only WITH Classpath-exception-2.0",
    "org.apache.hadoop": _APACHE,
    "org.apache.logging.log4j": _APACHE,
    "org.apache.parquet": _APACHE,
    "org.locationtech.jts": "EPL-2.0 OR BSD-3-Clause",
    "org.roaringbitmap": _APACHE,
    "org.slf4j": "MIT",
    "org.xerial.snappy": _APACHE,
}
_EITHER: Final = "MIT OR Apache-2.0"
OF_CRATES: Final = {
    **dict.fromkeys(("heck", "libc", "once_cell", "proc-macro2", "quote", "syn"), _EITHER),
    **dict.fromkeys(("pyo3", "pyo3-build-config", "pyo3-ffi", "pyo3-macros"), _EITHER),
    "pyo3-macros-backend": _EITHER,
    **dict.fromkeys(("bitflags", "cfg-if"), _EITHER),
    "autocfg": "Apache-2.0 OR MIT",
    **dict.fromkeys(("cfg_aliases", "memoffset", "nix"), "MIT"),
    "memchr": "Unlicense OR MIT",
    "portable-atomic": "Apache-2.0 OR MIT",
    "target-lexicon": "Apache-2.0 WITH LLVM-exception",
    "unicode-ident": "(MIT OR Apache-2.0) AND Unicode-3.0",
}
# What some packages write instead of an SPDX expression.
_SPOKEN: Final = {
    "Apache Software License": _APACHE,
    "BSD 3-Clause License": "BSD-3-Clause",
    "MIT License": "MIT",
    "any-OSI": "any license approved by the OSI",
    "The MIT License": "MIT",
}
_CLASSIFIER: Final = "License :: OSI Approved :: "
_NAME_CHARS_MAX: Final = 60


def page() -> str:
    """The page, ending with a newline."""
    hub = set(locked(ROOT / "requirements" / "runtime.txt"))
    packages = sorted(locked(ROOT / "requirements" / "pipeline.txt"))
    rows = [
        f"| {name} | {version} | {license_of(name)} | {'hub' if key in hub else 'pipeline'} |\n"
        for key in packages
        for name, version in [key]
    ]
    crates = [
        f"| {name} | {version} | {OF_CRATES[name]} |\n"
        for name, (version, _) in sorted(pinned().items())
    ]
    return "".join([_INTRODUCTION, _PACKAGES, *rows, _CRATES, *crates, _JARS, *_jar_rows()])


def license_of(name: str) -> str:
    """The license of an installed package, as an SPDX expression where it can be told."""
    found = metadata(name)
    short = "".join(found.get_all("License") or []).strip()
    candidates = (
        "".join(found.get_all("License-Expression") or []),
        # Some put the whole text there.
        short if len(short) <= _NAME_CHARS_MAX and "\n" not in short else None,
        " OR ".join(_spoken(one) for one in _classified(found)),
        _title(name),
    )
    return _spoken(next(filter(None, candidates), "unknown"))


def _classified(found: PackageMetadata) -> list[str]:
    every = found.get_all("Classifier") or []
    return [one.removeprefix(_CLASSIFIER) for one in every if one.startswith(_CLASSIFIER)]


def _title(name: str) -> str | None:
    """The first line of the file with the license."""
    for one in files(name) or []:
        if re.match(r"LICEN[SC]E", one.name):
            return next(filter(None, map(str.strip, one.read_text().splitlines())), None)
    return None


def _spoken(text: str) -> str:
    return _SPOKEN.get(text, text)


def _jar_rows() -> Iterator[str]:
    for file_name in sorted(expected_jars()):
        group, artifact, version = jar_of(file_name)
        yield f"| {group}:{artifact} | {version} | {_OF_GROUPS[group]} |\n"


if __name__ == "__main__":
    TARGET.write_text(page())
