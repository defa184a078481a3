"""Print a software bill of materials (CycloneDX 1.6): the locked packages, crates and JARs.

    python -m tools.sbom > dist/sbom.json

A package has one hash per file of its release, so they are listed as properties.
"""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any, Final

from signalhub import __version__
from signalhub.pipeline.run.java import expected_jars
from tools.native import pinned

ROOT: Final = Path(__file__).resolve().parent.parent
_PINNED: Final = re.compile(r"^([\w.-]+)(?:\[[\w,-]+\])?==(\S+)")
_HASH: Final = re.compile(r"--hash=sha256:([0-9a-f]{64})")


def locked(path: Path) -> dict[tuple[str, str], list[str]]:
    """Return the hashes in a file of requirements by name and version."""
    found: dict[tuple[str, str], list[str]] = {}
    hashes: list[str] = []
    for line in path.read_text().splitlines():
        if pinned := _PINNED.match(line):
            hashes = found.setdefault((pinned[1], pinned[2]), [])
        hashes += _HASH.findall(line)
    return found


def bill() -> dict[str, Any]:
    """Return what an installation with the pipeline and the native part consists of."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    packages = locked(ROOT / "requirements" / "pipeline.txt")
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "component": {
                "type": "application",
                "name": project["name"],
                "version": __version__,
                "licenses": [{"license": {"id": project["license"]}}],
            }
        },
        "components": [
            *(_package(*key, hashes) for key, hashes in sorted(packages.items())),
            *(_crate(name, *pin) for name, pin in sorted(pinned().items())),
            *(_jar(name, digest) for name, digest in sorted(expected_jars().items())),
        ],
    }


def _package(name: str, version: str, hashes: list[str]) -> dict[str, Any]:
    address = f"pkg:pypi/{name}@{version}"
    properties = [{"name": "signalhub:file-sha256", "value": one} for one in hashes]
    return {
        "type": "library",
        "bom-ref": address,
        "name": name,
        "version": version,
        "purl": address,
        "properties": properties,
    }


def _crate(name: str, version: str, digest: str) -> dict[str, Any]:
    address = f"pkg:cargo/{name}@{version}"
    return {
        "type": "library",
        "bom-ref": address,
        "name": name,
        "version": version,
        "purl": address,
        "hashes": [{"alg": "SHA-256", "content": digest}],
    }


def jar_of(file_name: str) -> tuple[str, str, str]:
    """Return group, artifact and version of a JAR."""
    group, _, rest = file_name.removesuffix(".jar").partition("_")
    # A version starts with a digit and may contain dashes; an artifact's parts start with letters.
    artifact, version = re.split(r"-(?=\d)", rest, maxsplit=1)
    return group, artifact, version


def _jar(file_name: str, digest: str) -> dict[str, Any]:
    group, artifact, version = jar_of(file_name)
    address = f"pkg:maven/{group}/{artifact}@{version}"
    return {
        "type": "library",
        "bom-ref": address,
        "group": group,
        "name": artifact,
        "version": version,
        "purl": address,
        "hashes": [{"alg": "SHA-256", "content": digest}],
    }


if __name__ == "__main__":
    print(json.dumps(bill(), indent=2))
