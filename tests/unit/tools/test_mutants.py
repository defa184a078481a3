"""The tool that plants faults: what it changes, and how it finds the place again."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path

from tools.mutants import Change, Mutant, choose, locate, mutated, near_first, noticed_before

SOURCE = '''"""A module."""

LIMIT = 5


def pick(numbers: list[int], limit: int = 3) -> list[int]:
    """The small ones."""
    found = []
    for number in numbers:
        if number < limit and not number == 7:
            found.append(number + 1)
    return found
'''


def changes(source: str) -> set[tuple[str, str]]:
    change = Change("m.py", source)
    change.visit(ast.parse(source))
    return {(one.before, one.after) for one in change.found}


def tree_with(folder: Path, path: str, source: str) -> Path:
    module = folder / "src" / "signalhub" / path
    module.parent.mkdir(parents=True, exist_ok=True)
    module.write_text(source)
    return folder


def test_every_kind_of_change_is_offered() -> None:
    assert changes(SOURCE) == {
        ("<", "<="),
        ("and", "or"),
        ("==", "!="),
        ("7", "8"),
        ("7", "6"),
        ("not number == 7", "number == 7"),
        ("number < limit and not number == 7", "not (number < limit and not number == 7)"),
        ("found.append(number + 1)", "pass"),
        ("+", "-"),
        ("1", "2"),
        ("1", "0"),
        ("return found", "return None"),
    }


def test_a_seed_chooses_the_same_faults_again_and_each_can_be_compiled(tmp_path: Path) -> None:
    tree = tree_with(tmp_path, "core/m.py", SOURCE)

    chosen = choose(tree, 3, seed=1)

    assert choose(tree, 3, seed=1) == chosen
    for mutant in chosen:
        place = locate(mutant, tree)
        assert place is not None
        text = mutated(SOURCE, place)
        compile(text, "m.py", "exec")
        assert text != SOURCE


def comparison(tree: Path) -> Mutant:
    return next(one for one in choose(tree, 3, seed=1) if "number < limit" in one.text)


def test_a_fault_follows_its_line_and_is_never_guessed(tmp_path: Path) -> None:
    mutant = comparison(tree_with(tmp_path / "old", "core/m.py", SOURCE))
    moved = tree_with(tmp_path / "moved", "core/numbers/small.py", "\n\n" + SOURCE)
    rewritten = SOURCE.replace("number < limit", "number <= limit")

    place = locate(mutant, moved)

    assert place is not None
    assert (place.path, place.line) == ("src/signalhub/core/numbers/small.py", mutant.line + 2)
    for name, source in (("rewritten", rewritten), ("twice", SOURCE + SOURCE)):
        assert locate(mutant, tree_with(tmp_path / name, "core/other.py", source)) is None


def test_the_list_can_say_where_a_fault_is_now(tmp_path: Path) -> None:
    mutant = comparison(tree_with(tmp_path / "old", "core/m.py", SOURCE))
    new = tree_with(tmp_path / "new", "core/n.py", "def f(a: int) -> bool:\n    return a < 3\n")
    path = "src/signalhub/core/n.py"
    moved = {"path": path, "text": "return a < 3", "before": "<", "after": "<="}

    place = locate(replace(mutant, moved=moved), new)

    assert place is not None
    assert "a <= 3" in mutated((new / path).read_text(), place)


def test_what_noticed_a_fault_before_is_tried_first(tmp_path: Path) -> None:
    results = tmp_path / "old.jsonl"
    results.write_text(
        '{"id": "m01", "stage": 0, "outcome": "survived"}\n'
        '{"id": "m01", "stage": 1, "outcome": "killed", "by": "tests/c.py::test_it[1]"}\n'
    )
    (fault,) = choose(tree_with(tmp_path, "core/m.py", SOURCE), 1, seed=1)

    targets = near_first(["tests/a.py", "tests/c.py"], fault, noticed_before(results)[fault.id])

    assert targets == ["tests/c.py", "tests/a.py"]
    assert noticed_before(None) == {}
