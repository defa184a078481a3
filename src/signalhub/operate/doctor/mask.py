"""Hides what belongs to users in files of the hub: only what is known to be safe is kept.

These are numbers, words and sentences of the program itself, and the values of a few listed keys.
Everything else becomes a short hash with a salt that is not kept, so that the same name is the same
hash within one archive only.
"""

from __future__ import annotations

import ast
import builtins
import re
import secrets
from collections.abc import Callable, Iterable, Mapping
from hashlib import blake2b
from itertools import islice
from typing import Any, Final

import msgspec

from signalhub.core.limits.degradations import Degraded
from signalhub.operate.doctor.phrases import ROOT, phrases
from signalhub.wire.errors import Code

HIDDEN: Final = "hidden"
LINE_CHARS_MAX: Final = 16_384
_DEPTH_MAX: Final = 4
# A message that has more words with an equals sign is not one of the hub's.
_BEGINS_MAX: Final = 16

# Members whose text is a sentence of the program, and those that are one of its words.
_SENTENCES: Final = frozenset(
    {"advice", "detail", "do", "error", "loss", "message", "reason", "resolution", "text"}
)
_WORDS: Final = frozenset(
    {
        *(
            "by",
            "check",
            "code",
            "degradations",
            "door",
            "file",
            "kind",
            "level",
            "logger",
            "mode",
            "state",
        ),
        *("status", "table", "tables"),
    }
)
_STATES: Final = frozenset(
    {
        "btrfs",
        "ext4",
        "never started",
        "off",
        "ok",
        "on",
        "overlay",
        "stopping",
        "xfs",
        *Degraded,
        *Code,
    }
)
_LABELS: Final = frozenset({"code", "mode", "reason", "state"})
_FILES: Final = frozenset({"file", "saved_as", "segment", "segments"})
_MEASURES: Final = re.compile(
    r"(?:.*_)?(?:again_in_s|applied|bytes|count|entries|epoch|failures|files|from|head|limit|before|ms|offset"
    r"|pause_s|pid|port|s|sockets|to|unsettled)|sockets_max"
)

_NUMBER: Final = re.compile(
    r"[+-]?\d{1,19}(?:\.\d+)?(?:e[+-]?\d+)?(?: ?(?:days|h|minutes|ms|s|%|[KMGT]iB|bytes))?"
)
_VALUE: Final = re.compile(r"[+-]?(?:\d[\d.]*(?:e[+-]?\d+)?|Inf|NaN)")
_RELEASE: Final = re.compile(r"\d{1,4}(?:\.\d{1,6}){1,2}(?:(?:a|b|rc|\.post|\.dev)\d{1,6})?")
_MOMENT: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,9})?(?:Z|[+-]\d\d:\d\d)?")
_FILE: Final = re.compile(r"\d{20}(?:\.\d{1,20})?\.(?:log|tmp|torn)")
_PLACE: Final = re.compile(
    r"(?:(?P<scheme>abfss?|file|gs|https?|s3a?|wss?)://)?(?P<rest>.*)", re.DOTALL
)
_LOCAL: Final = re.compile(
    r"(?:localhost|127(?:\.\d{1,3}){3}|\[::1\]|::1)(?::\d{1,5})?(?:/|/ws|/ui/?)?"
)

_QUOTED: Final = r"""(?>'(?:[^'\\]|\\.)*+'(?!\S)|"(?:[^"\\]|\\.)*+"(?!\S)|\S++)"""
_FACTS: Final = re.compile(rf"(?: \w++={_QUOTED})++")
_FACT: Final = re.compile(rf" (\w++)=({_QUOTED})")
_FACTS_BEGIN: Final = re.compile(r" (?=\w+=)")
_COLOUR: Final = re.compile(r"\x1b\[[\d;]*m")
_HUMAN: Final = re.compile(
    r"(?P<head>\d\d:\d\d:\d\d\.\d{3} (?:debug|info|warning|error|critical) +)(?P<rest>.+)"
)
_FRAME: Final = re.compile(r'\s*File "(?P<file>[^"]*)", line (?P<line>\d+), in (?P<name>\S+)')
_RAISED: Final = re.compile(r"(?P<name>[A-Za-z_][\w.]*)(?:: (?P<text>.*))?")
_TRACE: Final = frozenset(
    {
        "Traceback (most recent call last):",
        "During handling of the above exception, another exception occurred:",
        "The above exception was the direct cause of the following exception:",
    }
)
_SAMPLE: Final = re.compile(
    r"(?P<name>signal_hub_[a-z0-9_]+)(?:\{(?P<labels>.*)\})? (?P<value>\S+)"
)
_LABEL: Final = re.compile(r'(?:^|,)(?P<key>[a-z_]+)="(?P<value>(?:[^"\\]|\\.)*)"')
_TYPE: Final = re.compile(r"# TYPE signal_hub_[a-z0-9_]+ (?:counter|gauge|histogram)")
_SERIES_END: Final = re.compile(r"(?:_p\d+(?:\.\d+)?)?(?:\.max)?$")

# For those who want to send names: what may be a credential nevertheless.
_CREDENTIALS: Final = re.compile(
    r"-----BEGIN [^-]+-----.*?(?:-----END [^-]+-----|$)"
    r"|(?<=://)[^\s\"']*(?=@)"
    r"|(?<=\?)[^\s\"'?]*=[^\s\"']*"
    r"|(?i:\b(?:bearer|basic) +)[^\s\"',]+"
    r"|(?i:(?:secret|passw(?:or)?d|pwd|token|credential|signature|api_?key)[\w-]*"
    r"[\"']?\s*[=:]\s*)(?:\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*'|[^\s,;}\]]+)"
    r"|\beyJ[\w-]+\.[\w-]+\.[\w-]*"
    r"|(?<![\w+=-])(?=[\w+=-]*\d)(?=[\w+=-]*[A-Za-z])[\w+=-]{32,}"
    r"|(?<![\w-])[\w-]{43}=?(?![\w-])",
    re.DOTALL,
)


class NameMask:
    """Hides names, or leaves them if the user wants to send them; `known` secrets always go."""

    def __init__(self, *, with_names: bool, known: Iterable[str] = ()) -> None:
        self._with_names = with_names
        self._known = sorted({one for one in known if one}, key=len, reverse=True)
        self._salt = secrets.token_bytes(16)
        self._texts: dict[str, str] = {}

    def of(self, name: str) -> str:
        """What stands for a name."""
        if not name:
            return name
        if self._with_names:
            return self._without_credentials(name)
        return "n-" + blake2b(name.encode(), key=self._salt, digest_size=4).hexdigest()

    def text(self, text: str) -> str:
        """A sentence of the program, without what it is about."""
        if self._with_names:
            return self._without_credentials(text)
        if text not in self._texts:
            self._texts[text] = self._sentence(text, _DEPTH_MAX)
        return self._texts[text]

    def json(self, content: bytes | str) -> bytes:
        """A document, or nothing of it if it is none."""
        try:
            found = msgspec.json.decode(content)
        except msgspec.MsgspecError:
            return b'"hidden: this is no JSON"\n'
        return msgspec.json.format(msgspec.json.encode(self.value("", found)), indent=2)

    def lines(self, text: str) -> str:
        """A log in either of the hub's formats."""
        return self._each(text, self._log_line)

    def metrics(self, text: str) -> str:
        """A page of metrics; what is said about them is in the reference."""
        kept = [line for line in text.splitlines() if not line.startswith("# HELP ")]
        return self._each("\n".join(kept), self._metric)

    def settings(self, shown: Mapping[str, Any]) -> dict[str, Any]:
        """Settings by path, each with its value and its source."""
        from signalhub.settings.load import DEFAULT, leaves

        known = leaves()
        sources = {DEFAULT, *(one.variable for one in known.values()), *(f"--{k}" for k in known)}
        masked: dict[str, Any] = {}
        for path, one in shown.items():
            leaf, value, source = known[path], one["value"], str(one["source"])
            choices = getattr(leaf.shape, "values", ())
            is_known = value in choices if isinstance(value, str) else False
            if leaf.is_secret:
                value = HIDDEN if value else value
            elif not is_known and value != msgspec.to_builtins(leaf.default, enc_hook=str):
                value = self._setting(value)
            is_plain = source in sources
            masked[path] = {"value": value, "source": source if is_plain else self.of(source)}
        return masked

    def value(self, key: str, value: object) -> object:
        """A member of a document."""
        if isinstance(value, Mapping):
            return {self._key(str(name)): self.value(str(name), one) for name, one in value.items()}
        if isinstance(value, list | tuple):
            return [self.value(key, one) for one in value]
        if value is None or isinstance(value, bool | int | float):
            return value
        text = str(value)
        if key == "exception":
            return self.lines(text).rstrip("\n")
        if key == "time" and _MOMENT.fullmatch(text):
            return text
        return self._fact(key, text)

    def _fact(self, key: str, text: str) -> str:
        if self._with_names:
            return self._without_credentials(text)
        if key in _SENTENCES:
            return self.text(text)
        if key in _WORDS and text in phrases().words:
            return text
        if key in _FILES and _FILE.fullmatch(text):
            return text
        return self._place(text)

    def _key(self, name: str) -> str:
        words = phrases().words
        if self._with_names:
            return self._without_credentials(name)
        return name if name in words or _SERIES_END.sub("", name) in words else self.of(name)

    def _setting(self, value: object) -> object:
        if isinstance(value, Mapping):
            return {self.of(str(name)): self._setting(one) for name, one in value.items()}
        if isinstance(value, list | tuple):
            return [self._setting(one) for one in value]
        if value is None or isinstance(value, bool | int | float):
            return value
        return self._place(str(value))

    def _place(self, text: str) -> str:
        """The kind of a URL stays, and this machine; hosts and paths do not."""
        if self._with_names:
            return self._without_credentials(text)
        found = _PLACE.fullmatch(text)
        assert found is not None
        if _LOCAL.fullmatch(found["rest"]):
            return text
        return f"{found['scheme']}://{self.of(found['rest'])}" if found["scheme"] else self.of(text)

    def _sentence(self, text: str, depth: int) -> str:
        text = text[:LINE_CHARS_MAX]
        if text in _STATES or text in phrases().sentences:
            return text
        found = phrases().template_of(text) if depth else None
        if found is None:
            # Errors of the system come with a file in front of them.
            about, colon, problem = text.rpartition(": ")
            is_known = problem in phrases().sentences
            return f"{self._place(about)}{colon}{problem}" if is_known else self._place(text)
        template, holes = found
        parts = [template.literals[0]]
        for hole, is_numeric, literal in zip(
            holes, template.numeric, template.literals[1:], strict=True
        ):
            is_number = is_numeric and (_NUMBER.fullmatch(hole) or _RELEASE.fullmatch(hole))
            parts += [hole if is_number else self._sentence(hole, depth - 1), literal]
        return "".join(parts)

    def _each(self, text: str, line: Callable[[str], str]) -> str:
        return "".join(f"{self._without_known(line(one))}\n" for one in text.splitlines() if one)

    def _log_line(self, line: str) -> str:
        line = _COLOUR.sub("", line[:LINE_CHARS_MAX])
        at, human = line.find("{"), _HUMAN.search(line)
        if human and (at < 0 or human.start() < at):
            return human["head"] + self._told(human["rest"])
        try:
            found = msgspec.json.decode(line[at:]) if at >= 0 else None
        except msgspec.MsgspecError:
            found = None
        if isinstance(found, dict):
            return msgspec.json.encode(self.value("", found)).decode()
        return self._trace(line)

    def _told(self, rest: str) -> str:
        """The message of a line for people, and its facts."""
        for begin in islice(_FACTS_BEGIN.finditer(rest), _BEGINS_MAX):
            if _FACTS.fullmatch(rest, begin.start()):
                facts = _FACT.findall(rest, begin.start())
                told = "".join(f" {self._key(key)}={self._shown(key, one)}" for key, one in facts)
                return self.text(rest[: begin.start()]) + told
        return self.text(rest)

    def _shown(self, key: str, shown: str) -> str:
        if shown in ("True", "False", "None") or (
            _MEASURES.fullmatch(key) and _NUMBER.fullmatch(shown)
        ):
            return shown
        if shown[0] in "'\"":
            try:
                value = ast.literal_eval(shown)
            except (ValueError, SyntaxError):
                value = shown
            masked = self._fact(key, str(value))
            return repr(masked) if " " in masked else masked
        return self._fact(key, shown)

    def _trace(self, line: str) -> str:
        """A line of a traceback; frames of the program stay."""
        if line in _TRACE:
            return line
        if frame := _FRAME.fullmatch(line):
            _, _, inner = frame["file"].rpartition("/signalhub/")
            is_ours = bool(re.fullmatch(r"[a-z_/]+\.py", inner)) and (ROOT / inner).is_file()
            name = frame["name"] if is_ours and frame["name"] in phrases().words else "…"
            file = f"signalhub/{inner}" if is_ours else self.of(frame["file"])
            return f'  File "{file}", line {frame["line"]}, in {name}'
        raised = _RAISED.fullmatch(line)
        if raised is not None:
            name = raised["name"].rpartition(".")[2]
            if name in phrases().words or isinstance(getattr(builtins, name, None), type):
                # Even with names: what it says may be about contents.
                return f"{name}: {self._quoted(raised['text'])}" if raised["text"] else name
        return HIDDEN

    def _quoted(self, text: str) -> str:
        return HIDDEN if self._with_names else self._sentence(text, _DEPTH_MAX)

    def _metric(self, line: str) -> str:
        if _TYPE.fullmatch(line):
            return line
        sample = _SAMPLE.fullmatch(line)
        if sample is None or not _VALUE.fullmatch(sample["value"]):
            return f"# {self.text(line.removeprefix('# '))}"
        labels = [
            f'{self._key(one["key"])}="{self._label(one["key"], one["value"])}"'
            for one in _LABEL.finditer(sample["labels"] or "")
        ]
        inner = f"{{{','.join(labels)}}}" if labels else ""
        return f"{sample['name']}{inner} {sample['value']}"

    def _label(self, key: str, value: str) -> str:
        is_word = key in _LABELS and value in phrases().words
        if is_word or (key == "le" and _VALUE.fullmatch(value)):
            return value
        plain = re.sub(r"\\(.)", lambda found: {"n": "\n"}.get(found[1], found[1]), value)
        masked = self.of(plain)
        return masked.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")

    def _without_known(self, text: str) -> str:
        for secret in self._known:
            text = text.replace(secret, HIDDEN)
        return text

    def _without_credentials(self, text: str) -> str:
        return _CREDENTIALS.sub(HIDDEN, self._without_known(text))
