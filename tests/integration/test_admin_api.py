"""The admin API over real sockets: who is answered what, and what happens."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import pytest

from signalhub.server.admin import api as admin_api
from signalhub.server.admin import overview
from signalhub.server.admin.api import (
    ACTIONS_AT_ONCE_MAX,
    AT_ONCE_MAX,
    BURST,
    LIMIT_MAX,
    VISITOR_AT_ONCE_MAX,
    VISITOR_BURST,
)
from signalhub.server.callers import IDLE_S
from signalhub.testing import spawn_hub
from tests.support.socket.desk import ADMIN, BILLING, GUARDED, Office, Person, open_office
from tests.support.socket.http import Answer, Web
from tests.support.socket.stage import eventually
from tests.support.socket.tokens import token_for

JSON = {"Content-Type": "application/json"}
SETTLE = {"seqs": [1], "verdict": "ack"}
# Every action, and the verb and the name that its entry in the log has.
ACTIONS: list[tuple[str, str, dict[str, Any], tuple[str, str]]] = [
    ("POST", f"{BILLING}/pause", {}, ("manage", "orders/billing")),
    ("POST", f"{BILLING}/resume", {}, ("manage", "orders/billing")),
    ("POST", f"{BILLING}/set", {"window": 7}, ("manage", "orders/billing")),
    ("POST", f"{BILLING}/seek", {"to": "earliest"}, ("manage", "orders/billing")),
    ("POST", f"{BILLING}/settle", SETTLE, ("manage", "orders/billing")),
    ("DELETE", BILLING, {}, ("delete", "orders/billing")),
    ("DELETE", "/topics/orders", {}, ("delete", "orders")),
]


async def seen(office: Office) -> list[Any]:
    """What an action might have changed."""
    streams = office.stage.hub.app.hub.streams
    one = streams.topics["orders"].subscriptions["billing"]
    position = one.position
    return [
        sorted(streams.topics),
        position.is_paused,
        one.definition.window,
        position.generation,
        position.floor,
        len(office.stage.hub.app.hub.sessions),
        len(office.operated()),
    ]


@pytest.mark.parametrize(
    "clause", ["rebinding", "origin", "fetch", "no token", "bad token", "viewer"]
)
async def test_a_stranger_is_refused_every_request_and_nothing_happens(clause: str) -> None:
    async with open_office(**GUARDED) as office:
        consumer = await office.orders()
        session = next(iter(office.stage.hub.app.hub.sessions)).id
        await office.person("admin").get("/me")
        before = await seen(office)
        person = office.person("viewer" if clause == "viewer" else "admin")
        headers: dict[str, str] = {
            "rebinding": {"Host": "rebound.example"},
            "origin": {"Origin": "http://evil.example"},
            "fetch": {"Sec-Fetch-Site": "cross-site"},
        }.get(clause, {})
        if clause == "no token":
            person.token = None
        if clause == "bad token":
            person.token = f"{person.token}x"
        actions: list[tuple[str, str, Any]] = [
            (method, path, body) for method, path, body, _ in ACTIONS
        ]
        actions += [
            ("POST", f"/sessions/{session}/close", {}),
            ("PUT", "/topics/new", {}),
            ("PATCH", "/topics/orders", {"poison": "drop"}),
            ("POST", "/letters/redrive", {"topic": "orders", "all": True}),
            ("POST", "/letters/purge", {"topic": "orders", "all": True}),
        ]
        if clause != "viewer":
            actions += [("GET", path, None) for path in ("/me", "/overview", "/actors", BILLING)]
        expected = {"rebinding": 421, "no token": 401, "bad token": 401}.get(clause, 403)
        for method, path, body in actions:
            if clause == "rebinding":
                status = (await office.stage.get(ADMIN + path, method, headers=headers)).status
            else:
                status = (await person.ask(method, path, body, headers)).status
            assert status == expected, (method, path)

        assert await seen(office) == before
        assert consumer.is_open


async def test_a_page_of_the_hub_itself_is_no_stranger() -> None:
    async with open_office() as office:
        port = office.stage.port
        for origin, host in (
            (f"http://localhost:{port}", f"localhost:{port}"),
            ("http://localhost", "localhost"),
            (f"http://127.0.0.1:{port}", f"127.0.0.1:{port}"),
        ):
            answer = await office.stage.get(f"{ADMIN}/me", headers={"Host": host, "Origin": origin})
            assert answer.status == 200, origin
        for origin in (f"https://localhost:{port}", f"http://localhost:{port + 1}", "null"):
            answer = await office.stage.get(
                f"{ADMIN}/me", headers={"Host": f"localhost:{port}", "Origin": origin}
            )
            assert answer.status == 403, origin


async def test_behind_a_trusted_proxy_for_tls_the_page_has_another_origin() -> None:
    names: dict[str, Any] = {"hosts": ["hub.example"], "trusted_proxies": ["127.0.0.1"]}
    async with open_office(**names) as office:
        headers = {"Host": "hub.example", "Origin": "https://hub.example"}
        told = headers | {"X-Forwarded-Proto": "https"}
        assert (await office.stage.get(f"{ADMIN}/me", headers=told)).status == 200
        assert (await office.stage.get(f"{ADMIN}/me", headers=headers)).status == 403
        await office.stage.dial(f"{ADMIN}/live", headers=told)
    async with open_office(hosts=["hub.example"]) as office:
        # Anybody could say so.
        assert (await office.stage.get(f"{ADMIN}/me", headers=told)).status == 403


async def test_each_action_leaves_one_entry_with_who_did_it() -> None:
    async with open_office(**GUARDED) as office:
        await office.orders()
        ann = office.person("admin")
        for method, path, body, (verb, over) in ACTIONS:
            before = office.operated()
            plan = (
                path.endswith("/seek") and (await ann.post(path, body | {"dryRun": True}))["plan"]
            )
            given = {"plan": plan} if plan else body
            answer = await ann.ask(method, path, given if method == "POST" else None)
            assert answer.status == 200, (path, answer.body)

            (entry,) = office.operated()[len(before) :]
            found = (entry.by, entry.address, entry.verb, entry.over)
            assert found == ("people/ann", "@(people/ann)", verb, over), path


async def test_closing_a_session_is_recorded_and_tells_its_client() -> None:
    async with open_office(**GUARDED) as office:
        consumer = await office.consumer()
        ann = office.person("operator")
        (row,) = (await ann.get("/sessions"))["rows"]
        path = f"/sessions/{row['sessionId']}/close"
        planned = await ann.post(path, {"dryRun": True})
        assert (planned["allowed"], consumer.is_open) == (True, True)

        await ann.post(path)

        assert await consumer.until_closed() == 1001
        (entry,) = office.operated()
        assert (entry.by, entry.verb, entry.request) == ("people/ann", "admin", "hub:close_session")


async def test_a_dry_run_changes_nothing_and_says_what_it_takes() -> None:
    async with open_office(**GUARDED) as office:
        await office.orders()
        before = await seen(office)
        for role, is_allowed in (("admin", True), ("viewer", False)):
            person = office.person(role)
            for method, path, body, (verb, _) in ACTIONS:
                if path.endswith("/seek"):
                    continue
                given = body | {"dryRun": True} if method == "POST" else None
                query = "" if method == "POST" else "?dryRun=true"
                answer = (await person.ask(method, path + query, given)).json
                assert answer["dryRun"] is True
                assert answer["needs"] == f"{verb}: orders"
                assert answer["allowed"] is is_allowed

        assert await seen(office) == before


async def test_a_plan_of_a_seek_is_carried_out_only_if_nobody_sought_since() -> None:
    async with open_office() as office:
        peer = await office.orders(3)
        assert await peer.ask("hub:ack", {"topic": "orders", "subscription": "billing", "seq": 1})
        ann, bob = office.person(), office.person()
        plan = (await ann.post(f"{BILLING}/seek", {"to": {"last": 1}, "dryRun": True}))["plan"]
        assert (plan["next"], plan["willReplay"], plan["willSkip"]) == (3, 0, 1)
        # New messages are behind the plan, so nothing changes.
        await peer.ask("hub:publish", {"topic": "orders", "type": "order:new", "durable": True})
        done = await ann.post(f"{BILLING}/seek", {"plan": plan})
        assert (done["done"], done["plan"]["next"]) == (True, 3)

        again = await bob.ask("POST", f"{BILLING}/seek", {"plan": plan})

        assert (again.status, again.json["errorCode"]) == (409, "subscription_conflict")
        assert (await ann.get(BILLING))["generation"] == done["plan"]["generation"]


async def test_deliveries_are_settled_for_whoever_has_them() -> None:
    async with open_office() as office:
        await office.orders(4)
        ann = office.person()
        await eventually_in_flight(office, 4)
        answer = await ann.post(f"{BILLING}/settle", {"seqs": [1, 2, 9], "verdict": "ack"})
        assert answer["result"] == {"floor": 2, "accepted": 2, "ignored": [9]}
        answer = await ann.post(f"{BILLING}/settle", {"seqs": [3], "verdict": "nack"})
        assert answer["result"]["accepted"] == 1
        answer = await ann.post(
            f"{BILLING}/settle", {"seqs": [4], "verdict": "term", "reason": "no such order"}
        )
        assert answer["result"]["accepted"] == 1

        one = await ann.get(BILLING)
        assert [(f["seq"], f["phase"], f["failures"]) for f in one["flights"]] == [
            (3, "waiting", 1)
        ]
        assert (await ann.get("/topics/orders"))["letters"] == 1


async def eventually_in_flight(office: Office, count: int) -> None:
    one = office.stage.hub.app.hub.streams.topics["orders"].subscriptions["billing"]
    await eventually(lambda: len(one.window) == count)


async def test_keys_and_reasons_are_for_those_who_may_read_the_topic() -> None:
    async with open_office(**GUARDED) as office:
        await office.orders()
        await eventually_in_flight(office, 3)
        for person, keys in (
            (office.person("viewer"), [None, None, None]),
            (office.person("viewer", read=["orders"]), ["c-0", "c-1", "c-2"]),
            (office.person("viewer", read=["other"]), [None, None, None]),
        ):
            one = await person.get(BILLING)
            assert [flight["key"] for flight in one["flights"]] == keys
            assert [flight["consumer"] for flight in one["flights"]] == ["@(demo/alice)"] * 3


async def test_letters_are_redriven_by_a_job_that_leaves_later_ones_alone() -> None:
    async with open_office() as office:
        peer = await office.orders(3)
        await eventually_in_flight(office, 3)
        ann = office.person()
        bury = {"seqs": [1, 2], "verdict": "term", "reason": "no such order"}
        await ann.post(f"{BILLING}/settle", bury)
        chosen = {"topic": "orders.dlq", "all": True}
        preview = await ann.post("/letters/redrive", chosen | {"dryRun": True})
        assert (preview["count"], preview["through"]) == (2, 2)
        assert preview["byReason"] == [{"reason": "no such order", "count": 2}]
        await ann.post(f"{BILLING}/settle", bury | {"seqs": [3]})

        job = (await ann.post("/letters/redrive", chosen | {"through": preview["through"]}))["job"]

        row = await until_over(ann, job)
        assert (row["state"], row["done"], row["of"]) == ("done", 2, 2)
        assert (await ann.get("/topics/orders"))["letters"] == 1
        assert [one["job"] for one in (await ann.get("/jobs"))["rows"]] == [job]
        verbs = [entry.request for entry in office.operated()]
        assert verbs.count("hub:redrive") == 1
        assert peer.is_open


async def until_over(person: Person, job: str) -> Any:
    """The job once it has ended."""
    row = await person.get(f"/jobs/{job}")
    while row["state"] == "running":
        await asyncio.sleep(0)
        row = await person.get(f"/jobs/{job}")
    return row


async def test_edits_pass_on_numbers_as_they_are_written() -> None:
    async with open_office() as office:
        await office.orders(1)
        await eventually_in_flight(office, 1)
        ann = office.person()
        await ann.post(f"{BILLING}/settle", {"seqs": [1], "verdict": "term", "reason": "x"})
        edits = '{"1":{"data":{"big":9007199254759461,"exact":1.10}}}'
        body = f'{{"topic":"orders.dlq","seqs":[1],"edits":{edits}}}'.encode()

        answer = await ann.web.request("POST", f"{ADMIN}/letters/redrive", JSON, body)

        row = await until_over(ann, answer.json["job"])
        assert (row["state"], row["result"]["edited"]) == ("done", 1)
        topic = office.stage.hub.app.hub.streams.topics["orders"]
        held = topic.recent[2]
        assert held.message.data == b'{"big":9007199254759461,"exact":1.10}'


async def test_a_purge_needs_delete_and_removes_the_letters() -> None:
    async with open_office(**GUARDED) as office:
        await office.orders(2)
        await eventually_in_flight(office, 2)
        ann = office.person("admin")
        bury = {"seqs": [1, 2], "verdict": "term", "reason": "x"}
        await ann.post(f"{BILLING}/settle", bury)
        chosen = {"topic": "orders.dlq", "seqs": [1]}
        assert (await office.person("operator").ask("POST", "/letters/purge", chosen)).status == 403

        row = await until_over(ann, (await ann.post("/letters/purge", chosen))["job"])

        assert (row["state"], row["done"]) == ("done", 1)
        assert (await ann.get("/topics/orders"))["letters"] == 1


async def test_a_repeat_with_the_same_key_gets_the_first_answer() -> None:
    async with open_office() as office:
        await office.orders()
        ann, key = office.person(), {"Idempotency-Key": "once"}
        first = await ann.ask("POST", f"{BILLING}/seek", {"to": "earliest"}, key)
        again = await ann.ask("POST", f"{BILLING}/seek", {"to": "earliest"}, key)
        assert first.body == again.body
        other = await ann.ask("POST", f"{BILLING}/seek", {"to": "latest"}, key)
        assert (other.status, other.json["errorCode"]) == (409, "conflict")
        assert len(office.operated()) == 1
        office.tick(301)
        later = await ann.ask("POST", f"{BILLING}/seek", {"to": "earliest"}, key)
        assert later.status == 200
        assert len(office.operated()) == 2
        refused = await ann.ask(
            "POST", "/topics/none/subscriptions/x/pause", {}, {"Idempotency-Key": "b"}
        )
        assert refused.status == 404


async def test_without_authentication_pages_and_programs_speak_each_as_themselves() -> None:
    async with open_office() as office:
        ann, program = office.person(), Web(office.stage.port)
        body = {"topic": "orders", "type": "order", "durable": True, "id": "one"}
        assert (await ann.ask("PUT", "/topics/orders", {})).status == 200
        first = (await program.post("/api/hub/v1/publish", body)).json
        office.tick(IDLE_S + 1)
        assert len(office.stage.hub.app.callers) == 0
        again = (await program.post("/api/hub/v1/publish", body)).json
        await program.post(f"/api/hub/v1{BILLING}/pull", {})
        await ann.post(f"{BILLING}/pause")
        page = (await program.get("/api/hub/v1/topics/orders/messages", {})).json
        program.close()

        assert (first["seq"], again["seq"], again["duplicate"]) == (1, 1, True)
        assert [one["from"] for one in page["messages"]] == ["@(http/client)"]
        assert {one.address for one in office.operated()} == {"@(ui/page)"}


async def test_above_the_rate_requests_are_refused_until_time_passes() -> None:
    async with open_office(is_limited=True) as office:
        ann = office.person()
        for _ in range(VISITOR_BURST):
            await ann.get("/me")
        answer = await ann.ask("GET", "/me")
        assert (answer.status, answer.header("Retry-After")) == (429, "1")
        assert answer.json["errorCode"] == "rate_limited"
        office.stage.clock.advance(1)  # type: ignore[attr-defined]
        await ann.get("/me")


async def test_strangers_use_up_nothing_that_people_need() -> None:
    async with open_office(is_limited=True, **GUARDED) as office:
        stranger, ann = office.person(), office.person("viewer")
        for _ in range(2 * BURST):
            assert (await stranger.ask("GET", "/me")).status == 401
        await ann.get("/me")


async def test_nobody_uses_up_what_others_need() -> None:
    async with open_office(is_limited=True, **GUARDED) as office:
        await office.orders()
        service = office.person("none", "people/service")
        for _ in range(BURST):
            assert (await service.ask("GET", "/overview")).status == 403
        for _ in range(VISITOR_BURST):
            await service.get("/me")
        assert (await service.ask("GET", "/me")).status == 429
        viewer = office.person("viewer", "people/bob")
        await viewer.get("/me")
        while (await viewer.ask("GET", "/me")).status == 200:
            pass
        # People look too often, and whoever acts is still answered.
        operator = office.person("operator")
        assert (await operator.ask("GET", "/me")).status == 429
        await operator.post(f"{BILLING}/pause")


async def test_a_search_ends_the_one_before_of_the_same_visitor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(overview, "SLICE", 1)
    async with open_office() as office:
        await office.orders()
        found = await asyncio.gather(*(office.person().get("/search?q=ord") for _ in range(2)))
        assert [one["complete"] for one in found] == [False, True]


async def test_pages_of_allowed_origins_may_read_the_health() -> None:
    async with open_office(origins=["https://app.example"]) as office:
        for origin, allowed in (
            ("https://app.example", "https://app.example"),
            ("https://x", None),
        ):
            answer = await office.stage.get("/health", headers={"Origin": origin})
            assert answer.headers.get("access-control-allow-origin") == allowed


async def test_only_so_many_requests_are_answered_at_once() -> None:
    async with open_office() as office:
        api = office.desk.api
        api._running = AT_ONCE_MAX
        answer = await office.person().ask("GET", "/me")
        assert (answer.status, answer.json["errorCode"]) == (429, "rate_limited")
        assert (await office.person().ask("PUT", "/topics/orders", {})).status == 200
        api._running += ACTIONS_AT_ONCE_MAX
        assert (await office.person().ask("PUT", "/topics/orders", {})).status == 429
        api._running = 0
        await office.person().get("/me")
        assert api._running == 0
        (share,) = api._shares.values()
        share.running = VISITOR_AT_ONCE_MAX
        answer = await office.person().ask("GET", "/me")
        assert (answer.status, answer.json["errorCode"]) == (429, "rate_limited")


async def test_answers_for_repeats_are_kept_in_bounded_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with open_office() as office:
        ann = office.person()

        async def make(key: str) -> Answer:
            return await ann.ask("PUT", "/topics/orders", {}, {"Idempotency-Key": key})

        first = await make("0")
        monkeypatch.setattr(admin_api, "REPEATS_BYTES_MAX", 3 * len(first.body))
        for number in range(1, 4):
            assert (await make(str(number))).status == 200
        api = office.desk.api
        assert [key for _, key in api._repeats] == ["1", "2", "3"]
        office.tick(301)
        await make("5")
        assert [key for _, key in api._repeats] == ["5"]
        assert api._repeats_bytes == sum(one.size for one in api._repeats.values()) > 0


async def test_pages_of_actors_neither_repeat_nor_skip_while_actors_come_and_go() -> None:
    async with open_office() as office:
        hub = await office.stage.connect("@(demo/alice)")
        for number in range(40):
            await hub.register(f"@(many/{number:02})")
        ann, found, cursor = office.person(), [], ""
        gone = iter(range(0, 40, 7))
        while True:
            page = await ann.get(f"/actors?q=many&limit=7{cursor}")
            found += [row["address"] for row in page["rows"]]
            if page["next"] is None:
                break
            cursor = f"&cursor={page['next']}"
            # Before and behind the page some leave and others come.
            number = next(gone)
            await hub.ask("hub:unregister", {"actorAddress": f"@(many/{number:02})"})
            await hub.register(f"@(many/{number:02}-new)")

        assert found == sorted(set(found))
        stayed = {f"@(many/{number:02})" for number in range(40)} - {
            f"@(many/{number:02})" for number in range(0, 40, 7)
        }
        assert stayed <= set(found)


async def test_lists_are_filtered_and_bounded() -> None:
    async with open_office() as office:
        alice = await office.stage.join("@(demo/alice)", "chat")
        await office.stage.join("@(demo/bob)")
        for name in ("b", "a", "c"):
            await alice.ask("hub:topic_create", {"topic": name})
        ann = office.person()

        async def addresses(query: str) -> list[str]:
            return [row["address"] for row in (await ann.get(f"/actors?{query}"))["rows"]]

        assert await addresses("") == ["@(demo/alice)", "@(demo/bob)"]
        assert await addresses("capability=chat") == ["@(demo/alice)"]
        assert await addresses("q=BOB") == ["@(demo/bob)"]
        assert await addresses("state=away") == []
        assert (await ann.ask("GET", "/actors?state=lost")).status == 400
        topics = await ann.get(f"/topics?limit={LIMIT_MAX * 9}")
        assert [row["topic"] for row in topics["rows"]] == ["a", "b", "c"]
        page = await ann.get("/topics?limit=2")
        rest = await ann.get(f"/topics?limit=2&cursor={page['next']}")
        assert [row["topic"] for row in rest["rows"]] == ["c"]
        for path in ("/topics?cursor=nonsense", "/topics?limit=x", "/subscriptions?cursor=WyJhIl0"):
            answer = await ann.ask("GET", path)
            assert (answer.status, answer.json["errorCode"]) == (400, "bad_request"), path
        sessions = await ann.get("/sessions?limit=1")
        assert len(sessions["rows"]) == 1
        more = await ann.get(f"/sessions?cursor={sessions['next']}")
        assert [one["identity"] for one in more["rows"]] == ["@(demo/bob)"]


async def test_away_actors_have_a_mailbox_and_a_time() -> None:
    async with open_office() as office:
        alice = await office.stage.join("@(demo/alice)")
        await alice.register("@(demo/alice)", durable=True)
        alice.close()
        await alice.until_closed()
        bob = await office.stage.join("@(demo/bob)")
        await bob.ask("hub:send", {"to": "@(demo/alice)", "type": "task:assign"})
        ann = office.person()

        row = await ann.get("/actors/@(demo%2Falice)")

        assert (row["state"], row["mailbox"]["waiting"], row["session"]) == ("away", 1, None)
        assert row["awaySince"] is not None
        listed = await ann.get("/actors?state=away")
        assert [one["address"] for one in listed["rows"]] == ["@(demo/alice)"]
        assert (listed["live"], listed["away"]) == (1, 1)


async def test_subscriptions_can_be_sorted_by_what_is_worst() -> None:
    async with open_office() as office:
        peer = await office.orders(2)
        for name, count in (("x", 5), ("y", 1)):
            await peer.ask("hub:topic_create", {"topic": name})
            wanted = {"topic": name, "subscription": "s", "from": "earliest"}
            await peer.ask("hub:subscribe", wanted)
            await peer.ask("hub:sub_pause", {"topic": name, "subscription": "s"})
            for _ in range(count):
                await peer.ask("hub:publish", {"topic": name, "type": "t:t", "durable": True})
        ann, found, cursor = office.person(), [], ""
        while True:
            page = await ann.get(f"/subscriptions?sort=lag&limit=1{cursor}")
            found += [(row["topic"], row["lag"], row["state"]) for row in page["rows"]]
            if page["next"] is None:
                break
            cursor = f"&cursor={page['next']}"
        assert found == [("x", 5, "paused"), ("orders", 2, "current"), ("y", 1, "paused")]
        paused = await ann.get("/subscriptions?state=paused")
        assert [row["topic"] for row in paused["rows"]] == ["x", "y"]


async def test_bad_bodies_are_refused_with_what_is_wrong() -> None:
    async with open_office() as office:
        await office.orders()
        ann = office.person()
        web: Web = ann.web
        path = f"{ADMIN}{BILLING}/seek"
        for headers, body, status in (
            (JSON, b"{", 400),
            (JSON, b"[]", 400),
            (JSON, b'{"to":"earliest","plan":{"epoch":"1","next":1,"generation":1}}', 400),
            (JSON, b"{}", 400),
            ({"Content-Type": "text/plain"}, b'{"to":"earliest"}', 415),
            (JSON, b'{"to":{"seq":0}}', 400),
        ):
            answer = await web.request("POST", path, headers, body)
            assert answer.status == status, body
            assert answer.json["error"]
        assert (await ann.ask("POST", f"{BILLING}/set", {})).status == 400
        assert (await web.request("PATCH", f"{ADMIN}/me")).status == 405
        assert office.operated() == []


async def test_me_says_who_asks_and_what_is_permitted() -> None:
    async with open_office(**GUARDED, ui={"label": "PRODUCTION", "color": "red"}) as office:
        viewer = await office.person("viewer").get("/me")
        assert (viewer["role"], viewer["principal"]) == ("viewer", "@(people/ann)")
        assert viewer["operations"] == ["view", "discover:*"]
        assert viewer["hub"]["label"] == "PRODUCTION"
        assert viewer["features"]["tryIt"] is False
        assert viewer["expiresAt"] == office.stage.clock.now_ms() + 3_600_000
        operator = await office.person("operator").get("/me")
        assert operator["role"] == "operator"
        assert {"sessions", "manage:*", "read:*"} <= set(operator["operations"])
        nobody = await office.person("none", admin=[]).get("/me")
        assert nobody["role"] == "custom"
        assert (await office.person("none", admin=[]).ask("GET", "/overview")).status == 403
    async with open_office(ui={"role_without_auth": "viewer"}) as office:
        await office.orders()
        anybody = office.person()
        assert (await anybody.get("/me"))["role"] == "viewer"
        assert (await anybody.ask("POST", f"{BILLING}/pause", {})).status == 403
        assert (await anybody.get("/me"))["features"]["tryIt"] is True


async def test_a_token_is_refreshed_with_the_same_permissions() -> None:
    async with open_office(**GUARDED) as office:
        ann = office.person("operator")
        office.tick(1_800)
        fresh = await ann.post("/session/refresh")
        ann.token = fresh["token"]
        me = await ann.get("/me")
        assert (me["role"], me["expiresAt"]) == ("operator", fresh["expiresAt"])
    async with open_office() as office:
        assert (await office.person().ask("POST", "/session/refresh", {})).status == 409


async def test_settings_are_shown_without_secrets() -> None:
    async with open_office(**GUARDED, registry={"limit": 77}) as office:
        assert (await office.person("viewer").ask("GET", "/settings")).status == 403
        answer = await office.person("operator").ask("GET", "/settings")
        rows = {row["name"]: row for row in answer.json["rows"]}
        assert (rows["registry.limit"]["value"], rows["registry.limit"]["changed"]) == ("77", True)
        assert (rows["port"]["default"], rows["heartbeat_ms"]["changed"]) == ("8787", False)
        for secret in (GUARDED["auth"]["secret"], "another secret"):
            assert secret.encode() not in answer.body


async def test_settings_say_where_they_are_from() -> None:
    async with spawn_hub(registry={"limit": 77}) as hub:
        web = Web(hub.port)
        rows = {one["name"]: one for one in (await web.get(f"{ADMIN}/settings")).json["rows"]}
        web.close()
    assert rows["registry.limit"]["source"] == "SIGNALHUB_REGISTRY_LIMIT"
    assert rows["registry.lease_s"]["source"] == "default"


async def test_warnings_segments_and_rooms_are_shown_in_numbers() -> None:
    async with open_office() as office:
        await office.orders()
        ann = office.person()
        segments = await ann.get("/segments")
        assert segments["head"] == segments["rows"][0]["last"] + 1
        assert (await ann.get("/rooms"))["rooms"] == 0
        for room, number in (("a", 1), ("b", 1), ("b", 2)):
            names = {"X-Room-ID": f"secret-{room}", "X-Pseudonym-ID": f"p-{number}"}
            await office.stage.dial("/room", headers=names)
        answer = await ann.ask("GET", "/rooms")
        assert answer.json["sizes"] == {"one": 1, "few": 1, "many": 0, "more": 0}
        assert (answer.json["rooms"], answer.json["sockets"]) == (2, 3)
        assert b"secret" not in answer.body
        (await office.stage.call()).write(b"GET / HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n")
        logging.getLogger("signalhub.test").warning("something happened", extra={"fact": 1})
        (row, *_) = (await ann.get("/warnings"))["rows"]
        assert (row["text"], row["facts"]["fact"]) == ("something happened", "1")
        health = await ann.get("/health")
        assert (health["status"], health["degradations"]) == ("ok", [])


async def test_warnings_say_where_clients_are_to_those_who_may_see_sessions() -> None:
    async with open_office(**GUARDED) as office:
        facts = {"source": "10.1.2.3", "identity": "@(demo/alice)", "reason": "expired"}
        logging.getLogger("signalhub.test").warning("a login was refused", extra=facts)
        for role, seen in (("viewer", {"reason": "expired"}), ("operator", facts)):
            (row, *_) = (await office.person(role).get("/warnings"))["rows"]
            assert (row["text"], row["facts"]) == ("a login was refused", seen)


async def test_search_finds_by_kind_and_follows_what_may_be_discovered() -> None:
    async with open_office(**GUARDED) as office:
        await office.orders()
        found = await office.person("viewer").get("/search?q=ORD")
        assert [(hit["kind"], hit["name"]) for hit in found["hits"]] == [
            ("topic", "orders"),
            ("subscription", "orders/billing"),
        ]
        assert found["complete"] is True
        position = await office.person("viewer").get("/search?q=1.42")
        assert position["hits"][0]["kind"] == "entry"
        blind = office.person("viewer", discover=[])
        assert not [
            hit for hit in (await blind.get("/search?q=alice"))["hits"] if hit["kind"] == "actor"
        ]
        assert (await blind.ask("GET", "/search?q=")).status == 400


async def test_the_overview_says_what_needs_attention() -> None:
    async with open_office() as office:
        peer = await office.orders(3)
        await eventually_in_flight(office, 3)
        ann = office.person()
        for _ in range(3):
            office.tick()
        calm = await ann.get("/overview")
        assert (calm["status"], calm["attention"]) == ("ok", [])
        assert calm["sample"]["in_flight"] == 3
        assert calm["sample"]["sessions"] == 1
        assert {"resource": "sessions", "used": 1, "limit": 50000} in calm["limits"]

        await peer.ask(
            "hub:sub_update",
            {"topic": "orders", "subscription": "billing", "maxDeliveries": 1, "poison": "block"},
        )
        await peer.ask("hub:nack", {"topic": "orders", "subscription": "billing", "seq": 1})
        await ann.post(f"{BILLING}/settle", {"seqs": [2], "verdict": "ack"})
        office.tick(6)

        alarmed = await ann.get("/overview")
        (blocked,) = [one for one in alarmed["attention"] if one["code"] == "blocked"]
        assert (blocked["level"], blocked["link"]) == ("error", "#/subs/orders/billing")


async def test_names_of_actors_are_for_those_who_may_discover_them_or_see_sessions() -> None:
    async with open_office(**GUARDED, mailbox={"limit": 1}) as office:
        alice = await office.orders(1)
        token = token_for("demo/away", office.stage.clock, permissions={"send": ["*"]})
        away = await office.stage.connect("@(demo/away)", authToken=token)
        await away.register("@(demo/away)", durable=True)
        away.close()
        await away.until_closed()
        await alice.ask("hub:send", {"to": "@(demo/away)", "type": "t:t"})
        blind = office.person("viewer", discover=[])
        some = office.person("viewer", discover=["@(demo/alice)"])
        viewer = office.person("viewer")
        page = await office.looker(token=blind.token)
        await eventually(lambda: office.desk.sampler._round is None)
        for _ in range(3):
            office.tick()
            await alice.ask("hub:send", {"to": "@(demo/away)", "type": "t:t"})
            await eventually(lambda: office.desk.sampler._round is None)

        # Nothing that is read without knowing the names has one.
        (session,) = (await blind.get("/sessions"))["rows"]
        number = session["sessionId"]
        answers = [
            session,
            await blind.get(f"/sessions/{number}"),
            await blind.post(f"/sessions/{number}/close", {"dryRun": True}),
            (await blind.get("/search?q=demo"))["hits"],
            (await blind.get(f"/search?q={number}"))["hits"],
            await blind.get("/overview"),
            await page.watch("overview"),
        ]
        assert "demo" not in json.dumps(answers)
        assert session["identity"] is session["subject"] is None
        assert (await blind.get("/sessions?q=alice"))["rows"] == []
        (full,) = answers[5]["attention"]
        assert full["text"].endswith("are refused: 1")
        assert (full["code"], full["address"], full["link"]) == ("mailbox_full", None, "#/actors")
        assert answers[5]["busiest"]["actors"] == []

        # Whoever may discover somebody finds what is about them.
        (row,) = (await some.get("/sessions?q=alice"))["rows"]
        assert (row["identity"], row["subject"]) == ("@(demo/alice)", "demo/alice")
        for person in (viewer, office.person("viewer", discover=[], admin=["view", "sessions"])):
            (row,) = (await person.get("/sessions?q=alice"))["rows"]
            assert (row["identity"], row["subject"]) == ("@(demo/alice)", "demo/alice")
            (hit,) = (await person.get(f"/search?q={number}"))["hits"][-1:]
            assert (hit["kind"], hit["detail"]) == ("session", "@(demo/alice)")
            shown = await person.get("/overview")
            (full,) = shown["attention"]
            assert full["address"] == "@(demo/away)"
            assert [one["name"] for one in shown["busiest"]["actors"]] == ["@(demo/alice)"]

        # Clients that make senders wait are counted, too.
        live = office.desk.live
        slow = [(one, 3) for one in live._hub.sessions if one.has_socket]
        office.desk.sampler.survey.totals.pausing = slow
        office.desk.sampler.survey.totals.pausing_total = 1
        *_, paused = live._overview._attention(live.now_ms(), with_names=False)
        assert (paused.code, paused.address) == ("paused_senders", None)
        assert "demo" not in paused.text + paused.link


async def test_series_have_rates_of_what_has_happened() -> None:
    async with open_office() as office:
        peer = await office.orders(0)
        ann = office.person()
        office.tick()
        for _ in range(10):
            await peer.ask("hub:publish", {"topic": "orders", "type": "t:t", "durable": True})
        office.tick()
        office.tick()
        answer = await ann.get("/series?names=published,sessions,ask_p99")
        assert answer["step"] == 1_000
        assert answer["series"]["published"][-2:] == [10.0, 0.0]
        assert answer["series"]["sessions"][-1] == 1.0
        assert answer["marks"][0]["what"] == "started"
        assert answer["t"] == sorted(answer["t"])
        assert (await ann.ask("GET", "/series?names=nothing")).status == 400


async def test_the_description_names_every_route_and_can_be_read_by_anybody() -> None:
    async with open_office(**GUARDED) as office:
        answer = await office.person().ask("GET", "/openapi.json")
        paths = json.loads(answer.body)["paths"]
        described = {(method.upper(), path) for path, some in paths.items() for method in some}
        assert len(described) == len(office.desk.api.endpoints)


async def test_a_part_of_a_paused_pattern_is_shown_as_paused() -> None:
    async with open_office() as office:
        peer = await office.orders()
        pattern = {"pattern": "orders/#", "subscription": "audit"}
        assert (await peer.ask("hub:subscribe", pattern))["type"] == "hub:subscribed"
        assert (await peer.ask("hub:sub_pause", pattern))["type"] != "hub:error"

        shown = await office.person().get("/topics/orders/subscriptions/audit")

        assert (shown["state"], shown["paused"]) == ("paused", True)
