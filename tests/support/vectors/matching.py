"""What a case expects against what happened: subsets, kept values, files."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[2] / "vectors" / "client"

_MEMBERS = {
    "client": {"name", "needs", "given", "steps"},
    "room": {"name", "given", "steps"},
    "function": {"name", "function", "args", "result", "error"},
}
_GIVEN = {
    *("address", "register", "capabilities", "metadata", "leaseMs", "durable", "acknowledge"),
    *("token", "inboxMax", "random", "reconnect", "pseudonym", "since"),
}
_NAME = re.compile(r"\$[a-zA-Z]\w*")


class Kept:
    """Values that a case has named."""

    def __init__(self) -> None:
        self._values: dict[str, Any] = {}

    def filled(self, value: Any) -> Any:
        """The value with names replaced by what was kept under them."""
        match value:
            case str() if value in self._values:
                return self._values[value]
            case dict():
                return {key: self.filled(each) for key, each in value.items()}
            case list():
                return [self.filled(each) for each in value]
        return value

    def keep(self, name: str, value: Any) -> None:
        self._values[name] = value

    def check(self, expected: Any, actual: Any, at: str = "", *, exactly: bool = False) -> None:
        """Compare, and keep what is named; an `AssertionError` says where they differ."""
        match expected:
            case "$any":
                return
            case {"$contains": part}:
                assert isinstance(actual, str), f"{at}: {actual!r} is no text"
                assert part in actual, f"{at}: {actual!r} does not contain {part!r}"
            case str() if _NAME.fullmatch(expected):
                if expected not in self._values:
                    self._values[expected] = actual
                assert actual == self._values[expected], f"{at}: {actual!r} is not {expected}"
            case dict():
                self._check_members(expected, actual, at, exactly=exactly)
            case list():
                assert isinstance(actual, list), f"{at}: {actual!r} is no list"
                assert len(actual) == len(expected), f"{at}: {actual!r} is not {expected!r}"
                for index, each in enumerate(expected):
                    self.check(each, actual[index], f"{at}[{index}]", exactly=exactly)
            case _:
                same = isinstance(expected, bool) is isinstance(actual, bool)
                same = same and actual == expected
                assert same, f"{at}: {actual!r} is not {expected!r}"

    def _check_members(
        self, expected: dict[str, Any], actual: Any, at: str, *, exactly: bool
    ) -> None:
        assert isinstance(actual, dict), f"{at}: {actual!r} is no object"
        for name, each in expected.items():
            if each == "$absent":
                assert name not in actual, f"{at}.{name}: {actual[name]!r} is there"
                continue
            assert name in actual, f"{at}.{name} is missing in {actual!r}"
            self.check(each, actual[name], f"{at}.{name}", exactly=exactly)
        if exactly:
            assert actual.keys() == expected.keys(), f"{at}: {actual!r} has other members"


def cases(kind: str) -> dict[str, dict[str, Any]]:
    """All cases of one kind, by the name of their file and their own."""
    found: dict[str, dict[str, Any]] = {}
    for path in sorted(FOLDER.glob("*.json")):
        file = json.loads(path.read_text())
        assert file.keys() == {"kind", "about", "cases"}, f"{path.name} has other members"
        for case in file["cases"] if file["kind"] == kind else ():
            name = f"{path.stem}: {case['name']}"
            assert case.keys() <= _MEMBERS[kind], f"{name!r} has other members"
            assert case.get("given", {}).keys() <= _GIVEN, f"{name!r} is given something else"
            assert name not in found, f"{name!r} is there twice"
            found[name] = case
    return found


def seqs(listed: Any) -> list[int]:
    """Positions, given one by one or as a range."""
    if isinstance(listed, dict):
        return [*range(listed["from"], listed["to"] + 1)]
    return [*listed]
