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
    "body",
    [
        "connection.queue = []",
        "connection.queue += [1]",
        "connection.queue[0] = 1",
        "connection.queue.append(1)",
        "del connection.marks",
        "self.connection.marks = None",
        "found = link_of(1); found.marks = None",
        "one: Connection = g(); one.marks = None",
    ],
)
def test_a_write_is_seen(body: str) -> None:
    assert count(body) == 1


@pytest.mark.parametrize(
    "body",
    [
        "print(connection.queue)",
        "connection.unknown = 1",
        "connection.queue.index(1)",
        "other.queue = []",
        "queue = []",
    ],
)
def test_what_is_not_a_write_is_not_counted(body: str) -> None:
    assert count(body) == 0


def test_annotations_name_a_class_alone_or_with_nothing() -> None:
    def annotation(text: str) -> ast.expr:
        return ast.parse(text, mode="eval").body

    assert is_named(annotation("Connection"), "Connection")
    assert is_named(annotation("Connection[Session] | None"), "Connection")
    assert not is_named(annotation("set[Connection]"), "Connection")
    assert not is_named(None, "Connection")


def test_functions_that_give_a_subscription_are_known() -> None:
    assert givers_of(Tree(ROOT).core, "Subscription")
