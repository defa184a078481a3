"""Derivations in Python; `tests/vectors/client/capability.json` has their results."""

from __future__ import annotations

import pytest

from signalhub import capability

SECRET = bytes(range(32))


def test_labels_of_every_size_make_exports_of_their_own() -> None:
    labels = ["x" * (size + more) for size in (0, 55, 56, 16_375, 16_376) for more in (0, 1)]
    found = {capability.exporter(SECRET, label, b"", 16) for label in labels}

    assert len(found) == len(set(labels))


def test_an_error_says_which_lengths_are_possible() -> None:
    with pytest.raises(ValueError, match="length must be between"):
        capability.exporter(SECRET, "x", b"", 0)
    with pytest.raises(ValueError, match="32 bytes"):
        capability.inbox_id(b"short")
