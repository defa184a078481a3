"""For whom the hub answers, and who may read its own pages, over real sockets."""

from __future__ import annotations

import json
from typing import Any

import pytest

from signalhub.server.port.hosts import Hosts
from signalhub.server.port.http import HttpRequest
from signalhub.settings.model import Settings
from signalhub.wire.errors import SettingsError
from tests.support.socket.peer import Rejected
from tests.support.socket.stage import InProcess, run_stage
from tests.support.socket.tokens import AUTH, token_for

FOREIGN = [
    "rebound.example",
    "rebound.example:8787",
    "localhost.rebound.example",
    "127.0.0.1.rebound.example",
    "localhost@rebound.example",
    "[::2]",
    "127.0.0.2x",
    "10.0.0.1",
    "a b",
    "[::1",
    "",
]
OURS = [
    *("localhost", "LOCALHOST:80", "localhost.", "127.0.0.1", "127.0.0.1:1", "127.9.9.9"),
    *("[::1]", "[::1]:8787", "[0:0:0:0:0:0:0:1]", "[::ffff:127.0.0.1]"),
]


async def status(stage: InProcess, path: str, **headers: str) -> int:
    return (
        await stage.get(path, headers={k.replace("_", "-"): v for k, v in headers.items()})
    ).status


async def raw(stage: InProcess, text: str) -> int:
    peer = await stage.call()
    peer.write(text.encode())
    return (await peer.response()).status


@pytest.mark.parametrize("auth", [{}, AUTH], ids=["open", "guarded"])
async def test_a_foreign_name_is_answered_421_on_every_path_and_upgrade(
    auth: dict[str, Any],
) -> None:
    async with run_stage(auth=auth) as stage:
        for host in FOREIGN:
            for path in ("/metrics", "/ws", "/nothing", "/api/v1/message", "/room"):
                assert await status(stage, path, Host=host) == 421, (path, host)
            with pytest.raises(Rejected, match="421"):
                await stage.dial(headers={"Host": host})
            answer = await stage.get("/health", headers={"Host": host})
            assert json.loads(answer.body) == {"status": "ok", "degradations": []}
        for host in OURS:
            assert await status(stage, "/nothing", Host=host) == 404, host
            await stage.dial(headers={"Host": host})


async def test_the_host_of_an_absolute_url_counts_and_http_1_0_needs_none() -> None:
    async with run_stage() as stage:
        foreign = "GET http://rebound.example/metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"
        ours = "GET http://[::1]:80/metrics HTTP/1.1\r\nHost: rebound.example\r\n\r\n"
        assert await raw(stage, foreign) == 421
        assert await raw(stage, ours) == 200
        assert await raw(stage, "GET /metrics HTTP/1.0\r\n\r\n") == 200
        assert await raw(stage, "GET /metrics HTTP/1.0\r\nHost: rebound.example\r\n\r\n") == 421
        twice = "GET /metrics HTTP/1.1\r\nHost: localhost\r\nHost: rebound.example\r\n\r\n"
        assert await raw(stage, twice) == 400


async def test_listed_names_are_served_with_any_port_or_with_theirs() -> None:
    async with run_stage(hosts=["Hub.Example.org", "other.example:444"]) as stage:
        served = ["hub.example.org", "hub.example.org:8443", "HUB.EXAMPLE.ORG.", "localhost"]
        for host in (*served, "other.example:444"):
            assert await status(stage, "/nothing", Host=host) == 404, host
        for host in ("other.example", "other.example:445", "sub.hub.example.org"):
            assert await status(stage, "/nothing", Host=host) == 421, host


def test_a_hub_on_all_addresses_serves_the_one_that_was_called() -> None:
    hosts = Hosts(Settings(host="0.0.0.0"))

    def serves(host: str, local: str) -> bool:
        return hosts.serves(HttpRequest("GET", "/", "", {}, authority=host, local=local))

    assert serves("192.0.2.7:8787", "192.0.2.7")
    assert serves("192.0.2.7", "::ffff:192.0.2.7")
    assert serves("[fe80::1]", "fe80::1%eth0")
    assert serves("0.0.0.0:8787", "127.0.0.1")
    assert not serves("192.0.2.8", "192.0.2.7")
    assert not serves("hub.example", "192.0.2.7")


async def test_metrics_without_authentication_are_for_this_machine_only() -> None:
    async with run_stage() as stage:
        assert await status(stage, "/metrics") == 200
        # A proxy beside the hub that is not trusted speaks for somebody else.
        assert await status(stage, "/metrics", X_Forwarded_For="192.0.2.1") == 403
        assert await status(stage, "/metrics", X_Forwarded_For="127.0.0.1") == 403
        assert await status(stage, "/metrics", Forwarded="for=192.0.2.1") == 403
    async with run_stage(trusted_proxies=["127.0.0.0/8", "10.0.0.0/8"]) as stage:
        for chain, expected in {
            "192.0.2.1": 403,
            "127.0.0.1": 200,
            "127.0.0.1, 192.0.2.1": 403,
            "192.0.2.1, 10.1.2.3": 403,
            "127.0.0.1:5000": 200,
            "[::1]:5000": 200,
            "192.0.2.1:5000": 403,
            # A proxy that does not say who it is knows of somebody all the same.
            "unknown": 403,
            "127.0.0.1, unknown": 403,
            "unix:": 403,
            "192.0.2.1, 2001:db8::g": 403,
        }.items():
            assert await status(stage, "/metrics", X_Forwarded_For=chain) == expected, chain
        assert await status(stage, "/metrics", Forwarded="for=192.0.2.1") == 403
        assert await status(stage, "/metrics") == 200
    async with run_stage(metrics={"access": "open"}) as stage:
        assert await status(stage, "/metrics", X_Forwarded_For="192.0.2.1") == 200


async def test_metrics_with_authentication_need_a_token_for_them() -> None:
    async with run_stage(auth=AUTH) as stage:
        for operations, expected in (([], 403), (["metrics"], 200), (["view"], 200), (["x"], 403)):
            token = token_for("@(ops/p)", stage.clock, permissions={"admin": operations})
            given = await status(stage, "/metrics", Authorization=f"Bearer {token}")
            assert given == expected, operations
        refused = await stage.get("/metrics", headers={"Authorization": "Bearer a.b.c"})
        missing = await stage.get("/metrics")
        assert (refused.status, missing.status) == (401, 401)
        assert missing.headers["www-authenticate"] == "Bearer"


async def test_health_tells_details_with_view_only_and_refused_tokens_are_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with run_stage(auth=AUTH) as stage:
        viewer = token_for("@(ops/v)", stage.clock, permissions={"admin": ["view"]})
        scraper = token_for("@(ops/p)", stage.clock, permissions={"admin": ["metrics"]})
        bodies = [
            json.loads((await stage.get("/health", headers=headers)).body)
            for headers in (
                {"Authorization": f"Bearer {viewer}"},
                {"Authorization": f"Bearer {scraper}"},
                {"Authorization": "Bearer a.b.c"},
                {"Authorization": f"Bearer {viewer}", "Host": "rebound.example"},
                {},
            )
        ]
        page = await stage.get("/metrics", headers={"Authorization": f"Bearer {scraper}"})

        known = {"status", "service", "version", "release", "native", "timestamp", "degradations"}
        assert bodies[0].keys() == known
        assert bodies[1:] == [{"status": "ok", "degradations": []}] * 4
        assert b"signal_hub_logins_refused_total 1.0\n" in page.body
        (line,) = [one for one in caplog.records if one.getMessage() == "a login was refused"]
        assert (line.source, line.door) == ("127.0.0.1", "/health")  # type: ignore[attr-defined]


async def test_the_source_of_a_session_is_told_to_operators_through_proxies() -> None:
    async with run_stage(trusted_proxies=["127.0.0.1"]) as stage:
        peer = await stage.dial(headers={"X-Forwarded-For": "198.51.100.7, 192.0.2.9"})
        await peer.connect()

        page = (await peer.ask("hub:list_sessions"))["payload"]

        assert [row["source"] for row in page["sessions"]] == ["192.0.2.9"]


async def test_metrics_by_token_need_authentication() -> None:
    from signalhub.settings.load import load

    with pytest.raises(SettingsError, match=r"metrics\.access is token but auth\.enabled is false"):
        load(None, {"SIGNALHUB_METRICS_ACCESS": "token"}, {})
    for variable, value in {
        "SIGNALHUB_HOSTS": "https://hub.example",
        "SIGNALHUB_TRUSTED_PROXIES": "proxy.example",
        "SIGNALHUB_AUTH_JWKS_URL": "http://issuer.example/keys",
    }.items():
        with pytest.raises(SettingsError, match=value.replace(".", r"\.")):
            load(None, {variable: value}, {})
    found = load(None, {"SIGNALHUB_AUTH_AUDIENCE": "hub-1"}, {}).settings.auth
    several = load(None, {"SIGNALHUB_AUTH_AUDIENCE": '["a", "b"]'}, {}).settings.auth
    assert (found.audiences, several.audiences) == (("hub-1",), ("a", "b"))


async def test_the_hubs_own_page_may_connect_whatever_origins_are_listed() -> None:
    async with run_stage(origins=["https://app.example"]) as stage:
        own = f"localhost:{stage.port}"
        for origin in (f"http://{own}", "https://app.example"):
            await stage.dial(headers={"Host": own, "Origin": origin})
        for origin in (f"https://{own}", "http://localhost", "http://evil.example"):
            with pytest.raises(Rejected, match="403"):
                await stage.dial(headers={"Host": own, "Origin": origin})
