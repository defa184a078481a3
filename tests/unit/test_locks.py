"""The data folder belongs to one hub at a time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from signalhub.locks import LockedFolder
from signalhub.wire.errors import SettingsError


def test_a_second_hub_is_refused_until_the_first_has_gone_even_if_it_was_killed(
    tmp_path: Path,
) -> None:
    data = str(tmp_path / "data")
    code = (
        "import os, sys; from signalhub.locks import LockedFolder as L; L(sys.argv[1]); os.abort()"
    )
    subprocess.run([sys.executable, "-c", code, data], check=False)
    first = LockedFolder(data)

    with pytest.raises(SettingsError, match="in use by another hub"):
        LockedFolder(data)
    first.close()

    LockedFolder(data).close()


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(SettingsError, match="file/data"):
        LockedFolder(str(tmp_path / "file" / "data"))
