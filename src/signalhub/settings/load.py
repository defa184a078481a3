"""Reading the settings: defaults, a TOML file, `SIGNALHUB_*` variables, command-line options.

Every value has a source. Unknown keys and variables are errors, and all errors are reported
together, each with the file, variable or option to correct. Secrets appear in no message.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import msgspec
from msgspec import inspect

from signalhub.settings.model import HIDDEN, Group, Key, Secret, Settings, problems
from signalhub.wire.errors import SettingsError

PREFIX = "SIGNALHUB_"
DEFAULT = "default"

# The client, Spark and `signalhub.native` read these from the same environment.
_CLIENT_VARIABLES = frozenset(
    {
        *(
            "SIGNALHUB_CONTEXT",
            "SIGNALHUB_INBOX",
            "SIGNALHUB_JARS",
            "SIGNALHUB_TOKEN",
            "SIGNALHUB_URL",
        ),
        "SIGNALHUB_NATIVE",
    }
)
_SHOWN_CHARS_MAX = 80
_TRUE = frozenset({"true", "1", "on"})
_FALSE = frozenset({"false", "0", "off"})


@dataclass(frozen=True, slots=True)
class Loaded:
    """The settings, and the source of each value: file, variable or option."""

    settings: Settings
    sources: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Survey:
    """All values by dotted path, valid or not; an invalid value is kept as given, unless it is a
    secret."""

    values: Mapping[str, Any]
    sources: Mapping[str, str]
    mistakes: Sequence[str]


@dataclass(frozen=True, slots=True)
class Leaf:
    """One value of the settings tree; its annotation is evaluated when it is needed."""

    path: str
    default: Any
    group: type[Group]

    @property
    def annotation(self) -> Any:
        return _annotations(self.group)[self.path.rpartition(".")[2]]

    @property
    def shape(self) -> inspect.Type:
        """What a value is, without what describes it, and without the `None` of an unset one."""
        shape = inspect.type_info(self.annotation)
        if isinstance(shape, inspect.Metadata):
            shape = shape.type
        if isinstance(shape, inspect.UnionType):
            some = [one for one in shape.types if not isinstance(one, inspect.NoneType)]
            if len(some) == 1:
                (shape,) = some
        return shape

    @property
    def about(self) -> str:
        """The description, as the reference has it."""
        shape = inspect.type_info(self.annotation)
        if not isinstance(shape, inspect.Metadata):
            return ""
        about: str = (shape.extra_json_schema or {}).get("description", "")
        return about

    @property
    def variable(self) -> str:
        return PREFIX + self.path.replace(".", "_").upper()

    @property
    def is_secret(self) -> bool:
        return self.path == "auth.keys" or self.path.endswith(".secret")

    @property
    def expected(self) -> str:
        return _expected(self.shape)

    def shown(self, value: object) -> str:
        """A given value, valid or not, for use in a message."""
        if self.is_secret and value:
            return HIDDEN
        is_json = not isinstance(value, float) or math.isfinite(value)
        text = msgspec.json.encode(value).decode() if is_json else str(value)
        return text if len(text) <= _SHOWN_CHARS_MAX else f"{text[: _SHOWN_CHARS_MAX - 1]}…"


@dataclass(frozen=True, slots=True)
class _Given:
    value: object
    source: str


def load(path: str | None, environ: Mapping[str, str], overrides: Mapping[str, object]) -> Loaded:
    """Read the settings, or raise `SettingsError` with one line per mistake.

    `overrides` are command-line options by dotted path; `None` stands for an option not given.
    """
    found = survey(path, environ, overrides)
    if found.mistakes:
        raise SettingsError("\n".join(found.mistakes))
    return Loaded(_build(Settings(), "", found.values), found.sources)


def survey(path: str | None, environ: Mapping[str, str], overrides: Mapping[str, object]) -> Survey:
    """Read the settings, including invalid ones."""
    mistakes: list[str] = []
    given: dict[str, _Given] = {}
    if path is not None:
        given |= _from_file(path, mistakes)
    given |= _from_environment(environ, mistakes)
    given |= _from_options(overrides)

    values = {leaf.path: leaf.default for leaf in leaves().values()}
    sources = dict.fromkeys(values, DEFAULT)
    for key, item in given.items():
        leaf = leaves()[key]
        try:
            values[key] = _checked(leaf, item)
        except ValueError as error:
            values[key] = HIDDEN if leaf.is_secret else item.value
            mistakes.append(str(error))
        sources[key] = item.source
    if not mistakes:
        settings = _build(Settings(), "", values)
        mistakes.extend(_with_sources(problem, sources) for problem in problems(settings))
    return Survey(values, sources, mistakes)


def _with_sources(problem: str, sources: Mapping[str, str]) -> str:
    """A problem, prefixed with the sources of the settings it names."""
    named = [
        source
        for path, source in sources.items()
        if source != DEFAULT and re.search(rf"(?<![\w.]){re.escape(path)}(?!\w)", problem)
    ]
    return f"{', '.join(dict.fromkeys(named))}: {problem}" if named else problem


@cache
def leaves() -> Mapping[str, Leaf]:
    """Every leaf by its dotted path, in the order of the struct."""
    return {leaf.path: leaf for leaf in leaves_of(Settings, "")}


def leaves_of(group: type[Group], prefix: str) -> Iterator[Leaf]:
    """The leaves of one table and its subtables."""
    defaults = group()
    for name in group.__struct_fields__:
        default = getattr(defaults, name)
        if isinstance(default, Group):
            yield from leaves_of(type(default), f"{prefix}{name}.")
        else:
            yield Leaf(prefix + name, default, group)


@cache
def _annotations(group: type[Group]) -> Mapping[str, Any]:
    return {field.name: field.type for field in msgspec.structs.fields(group)}


def _build(defaults: Group, prefix: str, values: Mapping[str, Any]) -> Any:
    """A table like `defaults`, with the values of its leaves."""
    parts = {}
    for name in defaults.__struct_fields__:
        default = getattr(defaults, name)
        path = prefix + name
        is_table = isinstance(default, Group)
        parts[name] = _build(default, f"{path}.", values) if is_table else values[path]
    return type(defaults)(**parts)


def _from_file(path: str, mistakes: list[str]) -> dict[str, _Given]:
    import tomllib

    try:
        with open(path, "rb") as file:
            tree = tomllib.load(file)
    except FileNotFoundError:
        mistakes.append(f"settings file {path} does not exist: create it, or omit --config")
        return {}
    except OSError as error:
        mistakes.append(f"cannot read {path}: {error.strerror}: choose another with --config")
        return {}
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        mistakes.append(f"invalid TOML in {path}: {error}: correct it; strings need quotes")
        return {}
    found: dict[str, _Given] = {}
    _collect(tree, "", path, found, mistakes)
    return found


def _collect(
    table: Mapping[str, object],
    prefix: str,
    file: str,
    found: dict[str, _Given],
    mistakes: list[str],
) -> None:
    groups = {path[: path.rindex(".")] for path in leaves() if "." in path}
    for key, value in table.items():
        path = prefix + key
        if path in leaves():
            found[path] = _Given(value, file)
        elif path not in groups:
            known = [*leaves(), *groups]
            mistakes.append(f"{file}: unknown key {path}{_suggestion(path, known)}")
        elif isinstance(value, dict):
            _collect(value, f"{path}.", file, found, mistakes)
        else:
            mistakes.append(f"{file}: {path} must be a table: write its keys under [{path}]")


def _from_environment(environ: Mapping[str, str], mistakes: list[str]) -> dict[str, _Given]:
    by_variable = {leaf.variable: leaf for leaf in leaves().values()}
    found: dict[str, _Given] = {}
    for name, text in environ.items():
        if not name.startswith(PREFIX) or name in _CLIENT_VARIABLES:
            continue
        leaf = by_variable.get(name)
        if leaf is None:
            suggestion = _suggestion(name, by_variable) or ": unset it"
            mistakes.append(f"unknown variable {name}{suggestion}")
            continue
        found[leaf.path] = _Given(_from_text(leaf, text), name)
    return found


def _from_options(overrides: Mapping[str, object]) -> dict[str, _Given]:
    unknown = overrides.keys() - leaves().keys()
    assert not unknown, f"no such settings: {unknown}"
    return {
        path: _Given(value, f"--{path}") for path, value in overrides.items() if value is not None
    }


def _suggestion(name: str, known: Iterable[str]) -> str:
    """The nearest known name, compared without the prefix of variables."""
    by_rest = {other.removeprefix(PREFIX): other for other in known}
    near = difflib.get_close_matches(name.removeprefix(PREFIX), by_rest, n=1, cutoff=0.7)
    return f": did you mean {by_rest[near[0]]}?" if near else ""


def _from_text(leaf: Leaf, text: str) -> object:
    """The value of a variable; text that cannot be converted stays text."""
    try:
        match leaf.shape:
            case inspect.IntType():
                return int(text)
            case inspect.FloatType():
                return float(text)
            case inspect.BoolType():
                return _boolean(text)
            case inspect.VarTupleType() if not text.lstrip().startswith("["):
                return [part.strip() for part in text.split(",") if part.strip()]
            case inspect.VarTupleType() | inspect.DictType():
                return msgspec.json.decode(text)
            case inspect.UnionType() if text.lstrip().startswith("["):
                return msgspec.json.decode(text)
            case _:
                return text
    except ValueError:
        return text


def _boolean(text: str) -> bool:
    word = text.strip().lower()
    if word not in _TRUE | _FALSE:
        raise ValueError(text)
    return word in _TRUE


def _checked(leaf: Leaf, given: _Given) -> Any:
    value = given.value
    if leaf.path == "auth.keys" and isinstance(value, dict):
        return {name: _key(f"{leaf.path}.{name}", value[name], given.source) for name in value}
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(_mismatch(leaf, given))
    try:
        checked = msgspec.convert(value, leaf.annotation)
    except msgspec.ValidationError:
        raise ValueError(_mismatch(leaf, given)) from None
    return Secret(checked) if leaf.is_secret else checked


def _key(path: str, table: object, source: str) -> Key:
    """One table of `auth.keys`, checked key by key so that errors name the path."""
    members = {leaf.path.rpartition(".")[2]: leaf for leaf in leaves_of(Key, f"{path}.")}
    if not isinstance(table, dict):
        raise ValueError(
            f"{source}: {path} must be a table: write {', '.join(members)} under [{path}]"
        )
    for name in table.keys() - members.keys():
        raise ValueError(f"{source}: unknown key {path}.{name}{_suggestion(name, members)}")
    return Key(**{name: _checked(members[name], _Given(table[name], source)) for name in table})


def _mismatch(leaf: Leaf, given: _Given) -> str:
    return f"{given.source}: {leaf.path} is {leaf.shown(given.value)}, expected {leaf.expected}"


def _expected(shape: inspect.Type) -> str:
    match shape:
        case inspect.BoolType():
            return "true or false"
        case inspect.IntType():
            return "a whole number" + _bounds(shape)
        case inspect.FloatType():
            return "a number" + _bounds(shape)
        case inspect.LiteralType(values):
            return "one of " + ", ".join(str(value) for value in values)
        case inspect.VarTupleType():
            return "a list of strings"
        case inspect.UnionType():
            return "a string or a list of strings"
        case inspect.DictType(value_type=inspect.FloatType()):
            return "a table from prefix to seconds, each above 0"
        case inspect.DictType():
            return "a table of keys, each with algorithm and secret or public_key"
        case _:
            return "a string"


def _bounds(shape: inspect.IntType | inspect.FloatType) -> str:
    if shape.ge is not None and shape.le is not None:
        return f" from {_number(shape.ge)} to {_number(shape.le)}"
    parts = [
        f"{words} {_number(bound)}"
        for words, bound in (
            ("of at least", shape.ge),
            ("above", shape.gt),
            ("of at most", shape.le),
        )
        if bound is not None
    ]
    return " " + " and ".join(parts) if parts else ""


def _number(bound: float) -> str:
    """Whole numbers with all digits, others in short form."""
    return str(int(bound)) if bound == int(bound) else f"{bound:g}"
