"""The data folder belongs to one hub at a time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from signalhub.locks import LockedFolder
from signalhub.wire.errors import SettingsError


def test_a_second_hub_is_refused_until_the_first_has_gone(tmp_path: Path) -> None:
    first = LockedFolder(str(tmp_path / "data"))

    with pytest.raises(SettingsError, match="in use by another hub"):
        LockedFolder(str(tmp_path / "data"))
    first.close()

    LockedFolder(str(tmp_path / "data")).close()


def test_a_killed_hub_leaves_no_lock_behind(tmp_path: Path) -> None:
    code = (
        "import os, sys; from signalhub.locks import LockedFolder;"
        " LockedFolder(sys.argv[1]); os.abort()"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False)

    LockedFolder(str(tmp_path)).close()


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(SettingsError, match="file/data"):
        LockedFolder(str(tmp_path / "file" / "data"))
