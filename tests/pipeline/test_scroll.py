"""One scroll over log and lake shows every entry once, both ways, and whatever is wanted.

The log has lost its oldest segments to retention and its end to a disk, so it continues in another
epoch; one entry was erased, one has expired. The lake holds what had landed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from shutil import copytree
from typing import Any, NoReturn

import msgspec
import pyarrow as pa
import pytest

from signalhub.log.disk import SystemDisk
from signalhub.pipeline.lake import lake_of
from signalhub.pipeline.run.run import Pipeline
from signalhub.pipeline.source.columns import arrow_fields
from signalhub.pipeline.tables.create import ensure_table_here
from signalhub.pipeline.tables.tables import AUDIT
from signalhub.server.history import answers
from signalhub.server.history.questions import (
    EVERYTHING,
    AnyQuestion,
    AuditQuestion,
    CountQuestion,
    EntryQuestion,
    Filter,
    Hidden,
    Reach,
    ScrollQuestion,
    TableQuestion,
)
from signalhub.server.history.reader.pace import Pace
from signalhub.server.history.reader.process import Library
from signalhub.settings.model import PipelineSettings
from signalhub.wire.entry import (
    BroadcastBody,
    Entry,
    Kind,
    MessageBody,
    OperatedBody,
    Outcome,
    SettledBody,
    Settlement,
    decode_body,
    encode_body,
)
from tests.faults.lost_end import cut_to
from tests.pipeline.scene import NOON_MS, LogScene
from tests.support.volume import volume

LANDED = volume(1_500, 1_000_000)
SEGMENT_BYTES = volume(2**15, 2**23)
LIMIT = volume(37, 500)
# More at once would need Spark.
LANDED_AT_ONCE = 3_000
TOPICS = ("orders", "payments", "größe/eu")
PEOPLE = ("@(demo/alice)", "@(demo/bob)")
MESSAGES = {Kind.MAIL, Kind.PUBLISHED, Kind.BROADCAST}
ROOM = "inbox.1.abcdefghijklmnopqrstuv"

Spot = tuple[int, int]


def no_spark() -> NoReturn:
    raise AssertionError("Spark was started")


class Past:
    """A data folder with a history, and the list of everything that can be known of it."""

    def __init__(self, data: Path) -> None:
        self.data = data
        self.dice = Random(19)
        self.scene = LogScene(data, segment_bytes=SEGMENT_BYTES)
        self.known: dict[Spot, Entry] = {}
        self.gone: dict[Spot, str] = {}
        self.number = self.unlanded = 0
        self.epoch = self.scene._log.epoch
        self.lose_the_past()

    def lose_the_past(self) -> None:
        scene = self.scene
        begun = self.epoch
        subscribed = scene.subscribed("billing")
        self.known[begun, scene.append([subscribed])] = subscribed
        self.append(LANDED)
        scene.seal()
        erased = self.offset_of(Kind.PUBLISHED, LANDED // 2 + 100)
        scene.erase(erased, erased)
        self.gone[begun, erased] = "erased"
        # A part of the last segment will have landed when the log loses it.
        self.append(1)
        while scene.head - scene._log.segments[-1].base < 80:
            self.append(1)
        scene.seal()
        self.land()
        expired = self.offset_of(Kind.PUBLISHED, 100)
        self.expire(expired)
        *sealed, _ = scene._log.segments
        scene._log.remove([one for one in sealed if one.end <= LANDED // 2])
        self.first = scene._log.first
        assert expired < self.first < erased
        landed = scene.head
        self.append(10)
        scene.close()
        cut_to(self.data, landed - 30)
        scene.reopen()
        self.epoch = scene._log.epoch
        assert self.epoch > begun
        assert landed - 40 < scene.head < landed
        self.lost = scene.head
        self.known = {at: one for at, one in self.known.items() if at[1] < max(landed, scene.head)}
        self.append(120)
        scene.close()

    def append(self, count: int) -> None:
        while count > 0:
            batch = [self.entry() for _ in range(min(count, self.dice.randint(1, 9)))]
            first = self.scene.append(batch)
            for offset, one in enumerate(batch, first):
                self.known[self.epoch, offset] = one
            count -= len(batch)
            self.unlanded += len(batch)
            if self.unlanded > LANDED_AT_ONCE:
                self.land()

    def entry(self) -> Entry:
        dice, scene = self.dice, self.scene
        self.number += 1
        at_ms = NOON_MS + 1_000 * self.number
        shape = dice.random()
        data = {"n": self.number, "text": dice.choice(["näht", "a'b", "100%", '"q"', "plain"])}
        if shape < 0.6:
            key = dice.choice(["c-1", "c-2", None])
            topic = dice.choice(TOPICS)
            return scene.published(topic, data, at_ms=at_ms, key=key, sender=dice.choice(PEOPLE))
        if shape < 0.75:
            return scene.mailed(dice.choice(PEOPLE), data, at_ms=at_ms)
        if shape < 0.8:
            return scene.said(ROOM, at_ms=at_ms)
        if shape < 0.85:
            body = BroadcastBody(f"b-{self.number}", dice.choice(PEOPLE), b'{"recipients":2}')
            return Entry(Kind.BROADCAST, "", 0, 0, at_ms, encode_body(body))
        if shape < 0.9:
            done = OperatedBody("anna", PEOPLE[0], "manage", "orders", request="hub:seek")
            return scene.about(Kind.OPERATED, "", done, at_ms=at_ms)
        end = Settlement(1, max(0, scene.head - 3), Outcome.ACKED, consumer="c")
        return scene.settled("orders", "billing", 1, end, at_ms=at_ms)

    def offset_of(self, kind: Kind, least: int) -> int:
        return next(
            offset
            for (_, offset), one in sorted(self.known.items())
            if offset >= least and one.kind == kind
        )

    def land(self) -> None:
        Pipeline(no_spark, lake_of(self.data), self.data, PipelineSettings()).once()
        self.unlanded = 0

    def expire(self, offset: int) -> None:
        """What upkeep does to a message whose time is over."""
        lake = lake_of(self.data)
        entries, messages = lake.open("entries"), lake.open("messages")
        assert entries is not None
        assert messages is not None
        where = f'"offset" = {offset}'
        entries.update({"body": "NULL", "removed_reason": "'expired'"}, predicate=where)
        columns = ("id", "type", "sender", "key", "payload_json", "bytes")
        messages.update(dict.fromkeys(columns, "NULL"), predicate=where)
        self.gone[self.epoch, offset] = "expired"

    def wanted(self, fits: Callable[[Entry, MessageBody | None], bool]) -> list[Spot]:
        """The reference: what fits, the newest first."""
        found = []
        for at, one in sorted(self.known.items(), reverse=True):
            message = None
            if one.kind in (Kind.MAIL, Kind.PUBLISHED) and at not in self.gone:
                message = decode_body(MessageBody, one.body)
            if fits(one, message):
                found.append(at)
        return found


@pytest.fixture(scope="module")
def past(tmp_path_factory: pytest.TempPathFactory) -> Past:
    return Past(tmp_path_factory.mktemp("past"))


@pytest.fixture(scope="module")
def library(past: Past) -> Iterator[Library]:
    found = Library(past.data, "")
    yield found
    found.close()


def pace(**options: Any) -> Pace:
    """Time for everything, unless a test says otherwise."""
    return Pace(**{"page_s": 1e9, "share": 1e9} | options)


def ask(
    library: Library, question: AnyQuestion, kind: type[Any], limits: Pace | None = None
) -> Any:
    whole = msgspec.structs.replace(question, reach=question.reach or EVERYTHING)
    return msgspec.json.decode(library.answer(whole, limits or pace()), type=kind)


def down(library: Library, wanted: Filter, limit: int = LIMIT, **options: Any) -> list[Any]:
    rows: list[Any] = []
    before: str | None = None
    while True:
        question = ScrollQuestion(
            filter=wanted, before=before, limit=limit, **{"reach": EVERYTHING} | options
        )
        page = ask(library, question, answers.History)
        assert len(page.rows) <= limit
        assert not page.gaps
        rows += page.rows
        if page.complete:
            return rows
        assert page.next != before, "a page that goes nowhere"
        before = page.next


def up(library: Library, wanted: Filter, limit: int = LIMIT, **options: Any) -> list[Any]:
    rows: list[Any] = []
    after = "0.0"
    while True:
        question = ScrollQuestion(
            filter=wanted, after=after, limit=limit, **{"reach": EVERYTHING} | options
        )
        page = ask(library, question, answers.History)
        rows = page.rows + rows
        if page.complete:
            return rows
        assert page.next != after, "a page that goes nowhere"
        after = page.next


def spots(rows: list[Any]) -> list[Spot]:
    return [(row.epoch, row.offset) for row in rows]


FILTERS: dict[str, tuple[Filter, Callable[[Entry, MessageBody | None], bool]]] = {
    "messages": (Filter(), lambda one, _: one.kind in MESSAGES),
    "everything": (Filter(kinds=("all",)), lambda one, _: True),
    "a topic": (
        Filter(stream="größe/eu"),
        lambda one, _: one.kind in MESSAGES and one.stream == "größe/eu",
    ),
    "a mailbox": (
        Filter(stream=PEOPLE[1]),
        lambda one, _: one.kind in MESSAGES and one.stream == PEOPLE[1],
    ),
    "a kind": (Filter(kinds=("settled", "operated")), lambda one, _: one.kind in (4, 21)),
    "a key": (Filter(key="c-1"), lambda _, message: bool(message and message.key == "c-1")),
    "a type": (Filter(type="ping"), lambda _, message: bool(message and message.type == "ping")),
    "text": (
        Filter(text="100%"),
        lambda _, message: bool(message and b"100%" in message.data),
    ),
    "text with quotes": (
        Filter(text="a'b"),
        lambda _, message: bool(message and b"a'b" in message.data),
    ),
    "text as it was sent": (
        Filter(text="n\\u00e4ht", stream="orders"),
        lambda one, message: bool(
            message and b"n\\u00e4ht" in message.data and one.stream == "orders"
        ),
    ),
    "all at once": (
        Filter(stream="orders", key="c-2", type="order:new", sender=PEOPLE[0], text="plain"),
        lambda one, message: bool(
            message
            and one.stream == "orders"
            and (message.key, message.sender) == ("c-2", PEOPLE[0])
            and b"plain" in message.data
        ),
    ),
    "nothing": (Filter(text="never said"), lambda one, _: False),
}


@pytest.mark.parametrize("name", FILTERS)
def test_both_ways_show_every_wanted_entry_once(past: Past, library: Library, name: str) -> None:
    wanted, fits = FILTERS[name]
    expected = past.wanted(fits)

    assert spots(down(library, wanted)) == expected
    assert spots(up(library, wanted)) == expected
    if name != "nothing":
        assert expected, "the test shows nothing"


def test_a_sender_is_found_in_broadcasts_too(past: Past, library: Library) -> None:
    def fits(one: Entry, message: MessageBody | None) -> bool:
        if one.kind == Kind.BROADCAST:
            return decode_body(BroadcastBody, one.body).sender == PEOPLE[0]
        return message is not None and message.sender == PEOPLE[0]

    assert spots(down(library, Filter(sender=PEOPLE[0]))) == past.wanted(fits)


def test_rows_say_where_they_were_read_and_why_content_is_gone(
    past: Past, library: Library
) -> None:
    rows = {(row.epoch, row.offset): row for row in down(library, Filter(), limit=500)}

    assert {row.tier for row in rows.values()} == {"log", "lake"}
    for at, row in rows.items():
        is_of_log = at[0] == past.epoch or past.first <= at[1] < past.lost
        assert row.tier == ("log" if is_of_log else "lake")
        assert row.removed == past.gone.get(at)
        if row.kind in ("mail", "published") and at not in past.gone:
            message = decode_body(MessageBody, past.known[at].body)
            assert row.payload == message.data.decode()
            assert (row.type, row.key, row.sender) == (message.type, message.key, message.sender)
            assert row.bytes == len(message.data)
    for at in past.gone:
        assert rows[at].payload is rows[at].key is rows[at].type is None


def test_rooms_are_never_named(library: Library) -> None:
    for tier in (
        down(library, Filter(kinds=("all",)), limit=500),
        down(library, Filter(kinds=("room_message",))),
    ):
        rooms = [row for row in tier if row.kind == "room_message"]
        assert {row.tier for row in rooms} == {"log", "lake"}
        assert all((row.stream, row.id, row.payload) == ("", None, None) for row in rooms)
        assert all(row.bytes for row in rooms)
    assert down(library, Filter(kinds=("all",), stream=ROOM)) == []


def test_who_may_not_read_a_topic_sees_no_contents_and_finds_nothing_by_them(
    past: Past, library: Library
) -> None:
    reach = Reach(("pay*",), ())

    rows = down(library, Filter(), limit=500, reach=reach)

    assert spots(rows) == past.wanted(lambda one, _: one.kind in MESSAGES)
    for row in rows:
        is_shown = row.stream == "payments" and row.removed is None
        assert (row.payload is not None) == is_shown
        assert row.key is None or is_shown
        assert (row.type is not None) == is_shown
        assert row.withheld == (row.removed is None and not is_shown and row.kind != "broadcast")
    expected = past.wanted(
        lambda one, message: bool(message and one.stream == "payments" and b"plain" in message.data)
    )
    for limit in (3, LIMIT):
        found = down(library, Filter(text="plain"), limit, reach=reach)
        assert spots(found) == expected
        assert spots(up(library, Filter(text="plain"), limit, reach=reach)) == expected
    assert {row.tier for row in found} == {"log", "lake"}
    of_type = past.wanted(
        lambda one, message: bool(
            message and one.stream == "payments" and message.type == "order:new"
        )
    )
    assert of_type
    assert spots(down(library, Filter(type="order:new"), reach=reach)) == of_type


def test_tables_show_types_to_readers_and_what_audits_found_to_all(
    past: Past, tmp_path: Path
) -> None:
    copytree(past.data, tmp_path, dirs_exist_ok=True)
    lake, faults = lake_of(tmp_path), ["entry 7 is missing"]
    assert ensure_table_here(lake, AUDIT.name)
    of_no_use = {one.name: 0 if "INT" in one.type else None for one in AUDIT.columns}
    found = {"run_id": "r", "shard": 0, "epoch": past.epoch, "head": 9, "verdict": "wrong"}
    at = datetime(2026, 11, 16, 12, tzinfo=UTC)
    row = of_no_use | found | {"at": at, "hour": at, "exceptions": faults}
    lake.append(AUDIT.name, pa.Table.from_pylist([row], pa.schema(arrow_fields(AUDIT.columns))))
    library = Library(tmp_path, "")

    for reach in (EVERYTHING, Reach(("pay*",), ())):
        messages = ask(library, TableQuestion(name="messages", reach=reach), answers.LakeRows)
        audits = ask(library, TableQuestion(name="audit", reach=reach), answers.LakeRows)
        shown = {one["type"] for one in messages.rows if one["kind"] == "published"} - {None}
        assert bool(shown) == reach.is_all
        assert messages.withheld == (not reach.is_all)
        assert ([one["exceptions"] for one in audits.rows], audits.withheld) == (
            [str(faults)],
            False,
        )
        (hour,) = ask(library, AuditQuestion(reach=reach), answers.Audit).hours
        assert hour.exceptions == faults
    library.close()


def test_what_is_being_erased_is_gone_already(past: Past, library: Library) -> None:
    newest = max(at for at in past.known if past.known[at].kind == Kind.PUBLISHED)
    hidden = Hidden(past.epoch, ((newest[1], newest[1]),), {PEOPLE[1]: 2.0**40})

    rows = down(library, Filter(), limit=500, hidden=hidden)

    by_place = {(row.epoch, row.offset): row for row in rows}
    assert by_place[newest].removed == "erased"
    of_bob = [row for row in rows if row.epoch == past.epoch and row.sender == PEOPLE[1]]
    assert [row for row in of_bob if row.kind != "broadcast"] == []
    assert len(rows) == len(past.wanted(lambda one, _: one.kind in MESSAGES))


def test_a_long_payload_is_cut_between_characters(library: Library) -> None:
    rows = down(library, Filter(stream="orders"), payload_bytes=12)

    assert all(row.cut and row.bytes > 12 for row in rows if row.removed is None)
    assert all(len((row.payload or "").encode()) <= 12 for row in rows)


def test_a_time_leads_to_what_was_accepted_until_then(past: Past, library: Library) -> None:
    everything = past.wanted(lambda one, _: True)
    for at in past.dice.sample(everything, 12):
        at_ms = past.known[at].at_ms
        question = ScrollQuestion(
            filter=Filter(kinds=("all",)), at=at_ms, limit=1, reach=EVERYTHING
        )

        (row,) = ask(library, question, answers.History).rows

        assert (row.epoch, row.offset) == at
    before = ScrollQuestion(at=NOON_MS - 1, reach=EVERYTHING)
    assert ask(library, before, answers.History).rows == []


def test_a_page_that_has_no_time_left_says_how_far_it_came(past: Past, library: Library) -> None:
    seconds = iter(range(1_000_000))
    limits = pace(page_s=3.0, mono_s=lambda: float(next(seconds)), cpu_s=lambda: 0.0)
    question = ScrollQuestion(filter=Filter(text="never said"), reach=EVERYTHING)

    page = ask(library, question, answers.History, limits)

    assert (page.complete, page.reason, page.rows) == (False, "time", [])
    assert page.searched_to.position == page.next
    assert 0 < page.scanned < len(past.known)
    following = msgspec.structs.replace(question, before=page.next)
    rest = ask(library, following, answers.History)
    assert rest.complete
    assert page.scanned + rest.scanned >= len(past.known)


def test_one_entry_is_shown_with_its_deliveries(past: Past, library: Library) -> None:
    ends = {
        (at[0], body.deliveries[0].offset)
        for at, one in past.known.items()
        if one.kind == Kind.SETTLED and past.first + 3 < at[1] < past.lost
        for body in (decode_body(SettledBody, one.body),)
    }
    at = next(
        one
        for one in sorted(ends)
        if past.known[one].kind == Kind.PUBLISHED
        and past.known[one].stream == "orders"
        and one not in past.gone
    )
    message = decode_body(MessageBody, past.known[at].body)
    question = EntryQuestion(shard=0, epoch=at[0], offset=at[1], reach=EVERYTHING)

    found = ask(library, question, answers.HistoryEntry)

    assert json.loads(found.payload) == json.loads(message.data)
    assert found.headers == message.headers
    (delivery,) = found.deliveries
    assert (delivery.recipient, delivery.outcome) == ("orders/billing", "acked")
    hidden = ask(library, EntryQuestion(shard=0, epoch=at[0], offset=at[1]), answers.HistoryEntry)
    assert hidden.withheld
    assert hidden.headers is hidden.payload is hidden.metadata is None


def test_the_rail_counts_every_message_once(past: Past, library: Library) -> None:
    question = CountQuestion(begin=0, end=2**42, buckets=50, reach=EVERYTHING)

    counts = ask(library, question, answers.Counts)

    assert counts.unit == "messages"
    expected = past.wanted(lambda one, _: one.kind in MESSAGES | {Kind.ROOM_MESSAGE})
    assert sum(one.count for one in counts.buckets) == len(expected)


def test_without_a_lake_history_ends_with_the_log(past: Past) -> None:
    library = Library(past.data, None)
    expected = [
        at
        for at in past.wanted(lambda one, _: one.kind in MESSAGES)
        if at[0] == past.epoch or past.first <= at[1] < past.lost
    ]

    assert spots(down(library, Filter())) == expected
    counts = ask(library, CountQuestion(begin=0, end=2**42), answers.Counts)
    assert counts.unit == "entries"
    library.close()


def test_damage_is_a_gap_and_everything_else_is_shown(past: Past, tmp_path: Path) -> None:
    copytree(past.data, tmp_path, dirs_exist_ok=True)
    disk = SystemDisk(tmp_path / "log")
    library = Library(tmp_path, "")
    sealed = [one for one in library._sources.folder.segments if one.is_sealed][1]
    file = disk.open(sealed.name)
    place = sealed.bytes // 2
    file.write(bytes([file.read(1, place)[0] ^ 1]), place)
    file.close()
    expected = past.wanted(lambda one, _: True)

    for direction in ("before", "after"):
        rows, gaps = damaged(library, direction)
        assert gaps
        lost = {(gap.epoch, offset) for gap in gaps for offset in range(gap.first, gap.last + 1)}
        assert spots(rows) == [at for at in expected if at not in lost]
        assert all(sealed.name in gap.reason for gap in gaps)
    library.close()


def damaged(library: Library, direction: str) -> tuple[list[Any], list[Any]]:
    rows: list[Any] = []
    gaps: list[Any] = []
    place: str | None = None if direction == "before" else "0.0"
    while True:
        begin: dict[str, Any] = {direction: place}
        question = ScrollQuestion(
            filter=Filter(kinds=("all",)), limit=100, reach=EVERYTHING, **begin
        )
        page = ask(library, question, answers.History)
        rows = rows + page.rows if direction == "before" else page.rows + rows
        gaps += page.gaps
        if page.complete:
            return rows, gaps
        place = page.next
