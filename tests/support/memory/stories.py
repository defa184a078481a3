"""Stories: steps such as `ask x; lose; connect; wrote x`, each a method with its arguments."""

from __future__ import annotations


class Stage:
    """Whose methods are the steps."""

    def play(self, story: str) -> None:
        """Take the steps of a story, one after another."""
        for step in filter(None, map(str.strip, story.replace("\n", ";").split(";"))):
            verb, *words = step.split()
            try:
                getattr(self, verb)(*(int(word) if word.isdecimal() else word for word in words))
            except AssertionError as error:
                raise AssertionError(f"at `{step}`: {error}") from error
