"""Lists of a hub that are longer than a page."""

from __future__ import annotations

from signalhub.cli.terminal.connection import LOCAL
from signalhub.cli.terminal.paging import every
from signalhub.client import ActorPage, ListedActor, SessionInfo, SessionPage


def actor(name: str) -> ListedActor:
    return ListedActor(address=f"@(demo/{name})", capabilities=())


async def test_rows_that_shift_between_pages_are_listed_once() -> None:
    pages = {
        0: ActorPage(actors=(actor("a"), actor("b")), has_more=True),
        2: ActorPage(actors=(actor("b"), actor("c")), has_more=True),
        4: ActorPage(actors=(actor("d"),)),
    }

    async def fetch(offset: int) -> ActorPage:
        return pages[offset]

    found = await every(LOCAL, fetch, lambda one: one.address)

    assert [one.address[7:-1] for one in found] == ["a", "b", "c", "d"]


async def test_an_empty_page_is_the_last_one_whatever_it_says() -> None:
    async def fetch(offset: int) -> ActorPage:
        assert offset == 0
        return ActorPage(has_more=True)

    assert await every(LOCAL, fetch, lambda one: one.address) == []


async def test_a_page_may_say_itself_where_the_next_one_begins() -> None:
    pages = {
        0: SessionPage(sessions=(SessionInfo(id="session-1"),), next=17),
        17: SessionPage(sessions=(SessionInfo(id="session-9"),)),
    }

    async def fetch(after: int) -> SessionPage:
        return pages[after]

    assert [one.id for one in await every(LOCAL, fetch, lambda one: one.id)] == [
        "session-1",
        "session-9",
    ]
