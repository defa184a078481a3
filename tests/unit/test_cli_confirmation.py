"""What cannot be undone is asked for, and never done without an answer."""

from __future__ import annotations

import io
import sys

import pytest

from signalhub.cli.terminal.failures import Exit, Failure, confirm


class Typist(io.StringIO):
    """Somebody at a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("answer", ["y\n", "YES\n", " y \n"])
def test_yes_at_the_terminal_goes_on(
    answer: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", Typist(answer))

    confirm("delete orders", yes=False)

    captured = capsys.readouterr()
    assert "About to delete orders. Continue? [y/N]" in captured.err
    assert captured.out == ""


@pytest.mark.parametrize("answer", ["", "\n", "n\n", "yesterday\n"])
def test_any_other_answer_changes_nothing(answer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", Typist(answer))

    with pytest.raises(Failure, match="nothing was changed") as caught:
        confirm("delete orders", yes=False)

    assert caught.value.exit is Exit.FAILED


def test_where_nobody_can_be_asked_yes_must_be_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))

    with pytest.raises(Failure, match="--yes") as caught:
        confirm("delete orders", yes=False)

    assert caught.value.exit is Exit.USAGE
    confirm("delete orders", yes=True)
