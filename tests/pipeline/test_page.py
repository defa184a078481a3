"""The page about the lake says what the declarations say."""

from __future__ import annotations

from pathlib import Path

from signalhub.pipeline.tables import reference
from signalhub.pipeline.tables.tables import TABLES
from signalhub.wire.entry import Kind, Outcome

PAGE = Path(__file__).resolve().parents[2] / "docs" / "lake.md"


def test_the_page_is_up_to_date() -> None:
    """If it is not: python -m signalhub.pipeline.tables.reference > docs/lake.md"""
    assert PAGE.read_text() == reference.page()


def test_every_kind_and_outcome_is_explained() -> None:
    text = reference.page()

    assert all(f"| `{kind.name.lower()}` | {kind.value} |" in text for kind in Kind)
    assert all(f"| `{outcome.name.lower()}` |" in text for outcome in Outcome)
    assert all(f"## `{name}`" in text for name in TABLES)
