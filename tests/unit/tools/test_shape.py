"""The figures of the code: writes to what belongs to others are seen, and only those."""

from __future__ import annotations

import ast

import pytest

from tools.shape import ROOT, Tree, givers_of, is_named, writes_in

FIELDS = {"queue", "marks"}


def count(body: str) -> int:
    source = f"def f(connection: Connection[Session], other: Door) -> None:\n    {body}\n"
    return writes_in(ast.parse(source), "Connection", FIELDS, {"link_of"})


@pytest.mark.parametrize(
    ("body", "writes"),
    [
        ("connection.queue = []", 1),
        ("connection.queue += [1]", 1),
        ("connection.queue[0] = 1", 1),
        ("connection.queue.append(1)", 1),
        ("del connection.marks", 1),
        ("self.connection.marks = None", 1),
        ("found = link_of(1); found.marks = None", 1),
        ("one: Connection = g(); one.marks = None", 1),
        ("print(connection.queue)", 0),
        ("connection.unknown = 1", 0),
        ("connection.queue.index(1)", 0),
        ("other.queue = []", 0),
        ("queue = []", 0),
    ],
)
def test_writes_are_counted_and_nothing_else(body: str, writes: int) -> None:
    assert count(body) == writes


def test_annotations_name_a_class_alone_or_with_nothing() -> None:
    for text in ("Connection", "Connection[Session] | None", "set[Connection]"):
        annotation = ast.parse(text, mode="eval").body
        assert is_named(annotation, "Connection") is not text.startswith("set")
    assert not is_named(None, "Connection")
    assert givers_of(Tree(ROOT).core, "Subscription")
