"""What a bundle of `signalhub doctor` keeps, and that it hides everything else."""

from __future__ import annotations

import json
from typing import Any

import pytest

from signalhub.operate.doctor.mask import HIDDEN, NameMask
from signalhub.settings.load import leaves


def test_names_are_the_same_within_one_bundle_only() -> None:
    mask, other = NameMask(with_names=False), NameMask(with_names=False)
    log = (
        '{"time":"2026-01-02T03:04:05.678Z","level":"warning","logger":"signalhub.server",'
        '"message":"a slow consumer was closed","topic":"order events","source":"127.0.0.1"}\n'
        "03:04:05.678 warning a slow consumer was closed topic='order events' pid=17 facts={}\n"
    )
    page = 'signal_hub_subscription_lag{topic="order events",mode="shared"} 3.0'

    masked = mask.lines(log) + mask.metrics(page)

    assert masked.count(mask.of("order events")) == 3
    assert masked.count("a slow consumer was closed") == 2
    assert all(kept in masked for kept in ("127.0.0.1", "pid=17", 'mode="shared"} 3.0', "05.678Z"))
    assert masked != other.lines(log) + other.metrics(page)
    told = NameMask(with_names=True)
    assert told.lines(log).count("order events") == 2
    assert told.text("key " + "A" * 43) == f"key {HIDDEN}"


SPY = "zebra"
"""Stands in every hostile example where a name, a credential or a payload could be."""

HOSTILE_LINES = [
    '{{"message":"idle pattern subscriptions were deleted","pattern":"{spy}/#"}}',
    '{{"message":"{spy}","level":"{spy}","logger":"{spy}","time":"{spy}"}}',
    '{{"message":"a file could not be used: what was read before still holds {spy}"}}',
    '{{"{spy}":1,"over":"{spy}","door":["{spy}",{{"x":"{spy} events"}}]}}',
    '{{"topic":"{spy} \\"events\\" {spy}","key":"{spy}","file":"00000000000000000000.{spy}"}}',
    "{{\"reason\":\"The topic '{spy}' has a {spy} and '{spy}'\"}}",
    '{{"reason":"{spy} answers in {spy} ms","error":"{spy}: 17 entries in {spy} segments"}}',
    '{{"exception":"Traceback (most recent call last):\\n  File \\"/{spy}/a.py\\", line 1, in {spy}'
    "\\n    raise {spy}\\nKeyError: '{spy}'\\n{spy}.Error: {spy}\"}}",
    '{spy}-host signalhub[7]: {{"message":"{spy}"}}',
    '{{"message":"{spy}',
    "03:04:05.678 info    {spy} topic={spy} pid={spy} a='{spy} b=\"{spy}' {spy}=1",
    '03:04:05.678 info    a slow consumer was closed c="{spy}" d=\'{spy}',
    "\x1b[31m03:04:05.678 error   a slow consumer was closed\x1b[0m {spy} session=s {spy}",
    '  File "/x/signalhub/core/hub.py", line 4, in {spy}',
    '  File "/{spy}/signalhub/{spy}.py", line 4, in main',
    "{spy}.Failure: {spy}",
    "ValueError: {spy} is {spy} days",
    "{spy}",
]
HOSTILE_METRICS = [
    'signal_hub_lag{{topic="{spy} events",subscription="a\\"b,{spy}=\\"",mode="{spy}"}} 1',
    'signal_hub_errors_total{{code="{spy}"}} 1.0',
    'signal_hub_lag{{{spy}="1"}} 1',
    "signal_hub_lag {spy}",
    "# HELP signal_hub_lag {spy}",
    "# TYPE signal_hub_lag {spy}",
    "# not available: {spy} refused, {spy}",
    "<html>{spy}</html>",
    "{spy}_total 17",
]
HOSTILE_SETTINGS: dict[str, object] = {
    "auth.jwks_url": "https://user:{spy}@idp.example/jwks",
    "pipeline.lake": "s3://AK{spy}:a/b+c@{spy}@bucket/{spy}",
    "auth.keys": {"{spy}": {"secret": "{spy}"}},
    "auth.secret": "{spy}",
    "trusted_proxies": ["2001:db8:{spy}::/32", "{spy}"],
    "hosts": ["hub.{spy}.example", "{spy}.localhost", "127.0.0.1.{spy}"],
    "host": "localhost:80/{spy}",
    "log_level": "{spy}",
    "ui.label": "{spy} PRODUCTION",
    "port": "{spy}",
    "rooms.retention": {"{spy}": 3.0, "x": ["{spy}"]},
}


def filled(value: object) -> Any:
    return json.loads(json.dumps(value).replace("{spy}", SPY))


@pytest.mark.parametrize("line", HOSTILE_LINES)
def test_no_line_of_a_log_shows_what_is_unknown(line: str) -> None:
    masked = NameMask(with_names=False).lines(line.format(spy=SPY))

    assert masked
    assert SPY not in masked


@pytest.mark.parametrize("line", HOSTILE_METRICS)
def test_no_metric_shows_a_name(line: str) -> None:
    assert SPY not in NameMask(with_names=False).metrics(line.format(spy=SPY))


def test_no_setting_shows_a_name_or_a_credential() -> None:
    known = {name: {"value": one, "source": "/etc/{spy}"} for name, one in HOSTILE_SETTINGS.items()}
    known = {name: one for name, one in known.items() if name in leaves()}
    kept = {"port": {"value": 8787, "source": "--port"}, "data": {"value": "data", "source": "x"}}

    masked = NameMask(with_names=False).settings({**filled(known), **kept})

    assert SPY not in json.dumps(masked)
    assert len(known) > len(HOSTILE_SETTINGS) - 2
    assert (masked["port"]["value"], masked["data"]["value"]) == (8787, "data")
    assert masked["port"]["source"] == "--port"
    assert masked["pipeline.lake"]["value"].startswith("s3://n-")


def test_no_finding_shows_what_it_is_about() -> None:
    mask = NameMask(with_names=False)
    url, tilde = f"wss://{SPY}.example:8443/ws", f"/{SPY}/data dir"
    texts = {
        f"{url} answers in 1.5 ms": " answers in 1.5 ms",
        f"{url}: the hub at {SPY} refused: {SPY}": "",
        f"cannot read {tilde}: Permission denied": "Permission denied",
        f"listens on {SPY} with authentication, as {SPY}, hub.{SPY}": " with authentication, as ",
        f"17 entries in 2 segments are as they were written {SPY}": "",
        "17 entries in 2 segments are as they were written": "17 entries in 2 segments are",
        f"anyone who reaches {SPY} sees the names of topics and subscriptions": "sees the names",
    }
    for text, kept in texts.items():
        assert SPY not in mask.text(text)
        assert kept in mask.text(text)


@pytest.mark.parametrize(
    "text",
    [
        "https://user:{spy}@idp/jwks",
        "s3://AKIA:a/{spy}@b@bucket/x",
        "wss://hub/ws?token={spy}",
        '"password": "{spy} {spy}"',
        "Authorization: Bearer {spy}.x",
        "-----BEGIN PRIVATE KEY-----\n{spy}\n-----END PRIVATE KEY-----",
        "eyJ{spy}.{spy}.{spy}",
        "4a{spy}bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb",
        "the {spy} of the settings",
    ],
)
def test_credentials_are_hidden_even_with_names(text: str) -> None:
    mask = NameMask(with_names=True, known=(f"the {SPY}",))

    assert SPY not in mask.text(text.format(spy=SPY))
    assert SPY not in mask.lines(text.format(spy=SPY))
    shown = mask.lines(json.dumps({"topic": "orders", "reason": text.format(spy=SPY)}))
    assert "orders" in shown
    assert SPY not in shown


def test_members_are_kept_if_the_program_has_them_and_names_as_members_are_not() -> None:
    document = {"orders": 1, "state": "running", "tables": {"messages": 3, SPY: 2}, "pid": "7"}

    masked = json.loads(NameMask(with_names=False).json(json.dumps(document)))

    assert masked["state"] == "running"
    assert masked["tables"].keys() > {"messages"}
    assert masked["pid"] != "7"
    assert not {"orders", SPY} & {*masked, *masked["tables"]}


def test_a_traceback_keeps_frames_of_the_program_and_kinds_of_errors_only() -> None:
    trace = (
        "Traceback (most recent call last):\n"
        f'  File "/{SPY}/signalhub/server/admin/jobs.py", line 187, in _run\n'
        f'    raise ValueError("{SPY}")\n'
        f'  File "/{SPY}/app.py", line 3, in {SPY}\n'
        f"signalhub.wire.errors.Refused: {SPY} is bad\n"
    )
    for with_names in (False, True):
        kept = NameMask(with_names=with_names).lines(trace).splitlines()
        assert kept[1] == '  File "signalhub/server/admin/jobs.py", line 187, in _run'
        assert kept[4].startswith("Refused: ")
        assert SPY not in kept[2] + kept[4]
    assert SPY not in NameMask(with_names=False).lines(trace)
