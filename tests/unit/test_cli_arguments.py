"""What users type, and what it means."""

from __future__ import annotations

import io
import sys
from typing import Any

import pytest

from signalhub.cli.terminal import arguments
from signalhub.cli.terminal.failures import Exit, Failure


@pytest.fixture(autouse=True)
def nothing_after_two_dashes() -> None:
    arguments.options_of([])


def pipe_in(monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))


@pytest.mark.parametrize("text", ["demo/alice", "@(demo/alice)"])
def test_an_address_may_be_given_with_or_without_its_brackets(text: str) -> None:
    assert arguments.address(text) == "@(demo/alice)"


@pytest.mark.parametrize(
    "text", ["", "@()", "a\nb", "x" * 300, "@(demo", "demo)", "demo alice", "@(@(demo)", "@(a b)"]
)
def test_what_is_no_address_is_wrong_usage_and_shows_one(text: str) -> None:
    with pytest.raises(Failure, match="demo/alice") as caught:
        arguments.address(text)

    assert caught.value.exit is Exit.USAGE


@pytest.mark.parametrize("topic", ["prices/+", "#", "prices/#"])
def test_a_wildcard_cannot_be_published_to(topic: str) -> None:
    with pytest.raises(Failure, match="wildcard") as caught:
        arguments.checked_topic(topic)

    assert caught.value.exit is Exit.USAGE
    assert arguments.checked_topic("pri#") == "pri#"


@pytest.mark.parametrize(
    ("topic", "level"),
    [("pri#", "pri#"), ("a/b+/c", "b+"), ("prices/#", None), ("+/x", None), ("plain", None)],
)
def test_a_level_that_only_looks_like_a_wildcard_is_found(topic: str, level: str | None) -> None:
    assert arguments.half_wildcard(topic) == level


@pytest.mark.parametrize("url", ["http://h/ws", "nope", "ws://127.0.0.1:99999/ws", "ws://[::1/ws"])
def test_a_bad_url_is_repeated_with_where_it_came_from(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SIGNALHUB_URL", url)
    with pytest.raises(Failure) as variable:
        arguments.checked_url(url)
    monkeypatch.delenv("SIGNALHUB_URL")
    with pytest.raises(Failure) as option:
        arguments.checked_url(url)

    assert url in str(variable.value)
    assert "correct SIGNALHUB_URL" in str(variable.value)
    assert "correct --url" in str(option.value)


@pytest.mark.parametrize("url", ["ws://ann:s3cret@h/ws", "ws://h/ws?token=s3cret"])
def test_a_url_with_a_secret_in_it_is_not_repeated(url: str) -> None:
    with pytest.raises(Failure) as caught:
        arguments.checked_url(url)

    assert "s3cret" not in str(caught.value)
    assert "--token-file" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("hello", "hello"),
        ("hello world", "hello world"),
        ('{"a": [1, null]}', {"a": [1, None]}),
        ("5", 5),
        ("-5", -5),
        ("true", True),
        ('"quoted"', "quoted"),
        ("{broken", "{broken"),
        ("", ""),
    ],
)
def test_data_is_json_if_it_reads_as_json_and_text_otherwise(text: str, value: Any) -> None:
    assert arguments.data(text, as_text=False) == value


def test_text_can_be_forced() -> None:
    assert arguments.data('{"a": 1}', as_text=True) == '{"a": 1}'


def test_a_dash_reads_standard_input_without_its_last_newline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pipe_in(monkeypatch, '[1, "é"]\n'.encode())
    assert arguments.data("-", as_text=False) == [1, "é"]

    pipe_in(monkeypatch, b"two\nlines\n")
    assert arguments.data("-", as_text=True) == "two\nlines"


def test_standard_input_that_is_no_text_is_wrong_usage(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe_in(monkeypatch, b"\xff\xfe")

    with pytest.raises(Failure, match="UTF-8"):
        arguments.data("-", as_text=False)


def test_a_mistyped_option_is_not_sent_as_data_and_the_way_to_send_it_is_shown() -> None:
    with pytest.raises(Failure, match="unknown option --tmeout") as caught:
        arguments.data("--tmeout", as_text=False)

    assert "-- --tmeout" in caught.value.resolution


@pytest.mark.parametrize("text", ["--tmeout", "--", "-"])
def test_what_follows_two_dashes_is_data_as_it_stands(text: str) -> None:
    assert arguments.options_of(["tell", "demo/bob", "--", text]) == ["tell", "demo/bob"]

    assert arguments.data(text, as_text=False) == text


def test_two_dashes_hold_for_one_command_line_only() -> None:
    arguments.options_of(["tell", "demo/bob", "--", "--tmeout"])
    assert arguments.options_of(["tell", "demo/bob"]) == ["tell", "demo/bob"]

    with pytest.raises(Failure, match="unknown option --tmeout"):
        arguments.data("--tmeout", as_text=False)
