"""Which handler answers which path and method, and answers that come later."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from signalhub.server.port.http import HttpRequest, Later, Response, Route, Routes, Upgrade
from signalhub.wire.errors import unworded


def handler(request: HttpRequest, *parts: str) -> Response:
    return Response(200, "|".join(parts).encode())


def exact(request: HttpRequest) -> Response:
    return Response(200, b"exact")


def opener(request: HttpRequest, *_: object) -> Response | Upgrade:
    return Response(400)


@pytest.fixture
def routes() -> Routes:
    return Routes()


def asked(routes: Routes, path: str) -> str | None:
    """The open segments of the route that a path leads to, joined; `None` if it leads nowhere."""
    found = routes.find(path)
    if found is None:
        return None
    route, parts = found
    assert route.handler is not None
    answer = route.handler(HttpRequest("GET", path, "", {}), *parts)
    assert isinstance(answer, Response)
    return answer.body.decode()


def route_of(routes: Routes, path: str) -> Route:
    found = routes.find(path)
    assert found is not None
    return found[0]


def refused(routes: Routes, path: str, method: str) -> Response:
    route = route_of(routes, path)
    assert method not in route.methods
    return routes.refuse_method(route, HttpRequest(method, path, "", {}))


@pytest.mark.parametrize(
    ("path", "parts"),
    [
        ("/v1/proposals/one", "one"),
        ("/v1/proposals/one%20two", "one two"),
        ("/v1/proposals/%C3%A9", "é"),
        ("/v1/proposals/a%2Fb", "a/b"),
        ("/v1/proposals/{}", "{}"),
        ("/v1/proposals/%ff", "\ufffd"),
        ("/v1/proposals/100%", "100%"),
        ("/v1/proposals/", None),
        ("/v1/proposals", None),
        ("/v1/proposals/one/", None),
        ("/v1/proposals/one/two", None),
        ("/v2/proposals/one", None),
        ("//v1/proposals/one", None),
        ("/v1/%70roposals/one", None),
        ("/V1/proposals/one", None),
        # An exact path wins over a pattern, whichever came first.
        ("/v1/proposals/exact", "exact"),
        ("/ws/t/r", "t|r"),
        ("/t/rooms/r", "t|r"),
        ("/t/r/rooms", None),
    ],
)
def test_an_open_segment_takes_one_that_is_not_empty_and_decodes_it(
    routes: Routes, path: str, parts: str | None
) -> None:
    for pattern in ("/v1/proposals/{}", "/ws/{}/{}", "/{}/rooms/{}"):
        routes.add(pattern, handler)
    routes.add("/v1/proposals/exact", exact)

    assert asked(routes, path) == parts


@given(st.lists(st.text("abé/%{} ", min_size=1), min_size=1, max_size=3))
def test_whatever_a_path_holds_a_pattern_matches_only_as_many_segments(parts: list[str]) -> None:
    routes = Routes()
    routes.add("/x/{}/{}", handler)
    path = "/x/" + "/".join(parts)
    segments = path.split("/")

    assert (routes.find(path) is not None) == (len(segments) == 4 and all(segments[2:]))


def test_two_handlers_for_one_path_are_a_mistake(routes: Routes) -> None:
    for path in ("/a", "/a/{}"):
        routes.add(path, handler)
        with pytest.raises(AssertionError, match="two handlers"):
            routes.add(path, handler)
        with pytest.raises(AssertionError, match="two handlers"):
            routes.add_socket(path, opener)


def test_another_method_is_refused_with_those_that_are_allowed(routes: Routes) -> None:
    routes.add("/any", handler)
    routes.add("/blob", handler, "GET", "PUT")
    routes.add("/write", handler, "POST")

    assert route_of(routes, "/any").methods == ()
    answer = refused(routes, "/blob", "DELETE")
    assert (answer.status, answer.content_type) == (405, "application/json")
    assert answer.headers == {"Allow": "GET, PUT, HEAD"}
    assert json.loads(answer.body)["errorCode"] == "METHOD_NOT_ALLOWED"
    assert refused(routes, "/blob", "OPTIONS").status == 405
    assert refused(routes, "/write", "HEAD").headers == {"Allow": "POST"}
    routes.add_options(lambda request: Response(204))
    assert refused(routes, "/write", "OPTIONS").status == 204
    assert refused(routes, "/write", "GET").headers == {"Allow": "POST, OPTIONS"}


def test_an_answer_that_comes_later_is_delivered_once() -> None:
    later, delivered = Later(), list[Response]()
    assert later.wait(delivered.append) is None
    later.respond(Response(200))
    assert delivered == [Response(200)]

    early = Later()
    early.respond(Response(200))
    assert early.wait(delivered.append) == Response(200)
    assert len(delivered) == 1
    with pytest.raises(AssertionError, match="once"):
        early.respond(Response(200))


def test_a_fault_is_shown_with_its_kind_and_place_but_without_its_words() -> None:
    try:
        raise KeyError("room-of-somebody")
    except KeyError as error:
        shown = unworded(error)

    assert str(shown) == "KeyError"
    assert shown.__traceback__ is not None
    assert shown.__context__ is None
