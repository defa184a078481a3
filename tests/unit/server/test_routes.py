"""Which handler answers which path and method, and answers that come later."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from signalhub.server.port.http import HttpRequest, Later, Response, Routes, Upgrade
from signalhub.wire.errors import unworded


def handler(request: HttpRequest, *parts: str) -> Response:
    return Response(200, "|".join(parts).encode())


def exact(request: HttpRequest) -> Response:
    return Response(200, b"exact")


def opener(request: HttpRequest, *_: object) -> Response | Upgrade:
    return Response(400)


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


def refused(routes: Routes, path: str, method: str) -> Response:
    found = routes.find(path)
    assert found is not None
    assert method not in found[0].methods
    return routes.refuse_method(found[0], HttpRequest(method, path, "", {}))


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
    ],
)
def test_open_segment_takes_one_that_is_not_empty_and_decodes_it(
    path: str, parts: str | None
) -> None:
    routes = Routes()
    routes.add("/v1/proposals/{}", handler)

    assert asked(routes, path) == parts


def test_exact_path_wins_over_a_pattern_whichever_came_first() -> None:
    routes = Routes()
    routes.add("/a/{}", handler)
    routes.add("/a/b", exact)

    assert asked(routes, "/a/b") == "exact"
    assert asked(routes, "/a/c") == "c"


def test_patterns_may_have_several_open_segments_and_differ_in_the_others() -> None:
    routes = Routes()
    routes.add("/ws/{}/{}", handler)
    routes.add("/{}/rooms/{}", handler)

    assert asked(routes, "/ws/t/r") == "t|r"
    assert asked(routes, "/t/rooms/r") == "t|r"
    assert asked(routes, "/t/r/rooms") is None


@given(st.lists(st.text("abé/%{} ", min_size=1), min_size=1, max_size=3))
def test_whatever_a_path_holds_a_pattern_matches_only_as_many_segments(parts: list[str]) -> None:
    routes = Routes()
    routes.add("/x/{}/{}", handler)
    path = "/x/" + "/".join(parts)
    segments = path.split("/")

    assert (routes.find(path) is not None) == (len(segments) == 4 and all(segments[2:]))


def test_two_handlers_for_one_path_are_a_mistake() -> None:
    routes = Routes()
    for path in ("/a", "/a/{}"):
        routes.add(path, handler)
        with pytest.raises(AssertionError, match="two handlers"):
            routes.add(path, handler)
        with pytest.raises(AssertionError, match="two handlers"):
            routes.add_socket(path, opener)


def test_route_without_methods_leaves_them_to_its_handler() -> None:
    routes = Routes()
    routes.add("/a", handler)
    found = routes.find("/a")

    assert found is not None
    assert found[0].methods == ()


def test_other_method_is_refused_with_those_that_are_allowed() -> None:
    routes = Routes()
    routes.add("/blob", handler, "GET", "PUT")

    answer = refused(routes, "/blob", "DELETE")

    assert answer.status == 405
    assert answer.headers == {"Allow": "GET, PUT, HEAD"}
    assert answer.content_type == "application/json"
    assert json.loads(answer.body)["errorCode"] == "METHOD_NOT_ALLOWED"
    assert refused(routes, "/blob", "OPTIONS").status == 405


def test_head_is_allowed_where_get_is_and_only_there() -> None:
    routes = Routes()
    routes.add("/read", handler, "GET")
    routes.add("/write", handler, "POST")
    read, write = routes.find("/read"), routes.find("/write")

    assert read is not None
    assert write is not None
    assert "HEAD" in read[0].methods
    assert "HEAD" not in write[0].methods


def test_options_goes_to_its_hook_and_is_allowed_then() -> None:
    routes = Routes()
    routes.add("/write", handler, "POST")
    routes.add_options(lambda request: Response(204))

    assert refused(routes, "/write", "OPTIONS").status == 204
    assert refused(routes, "/write", "GET").headers == {"Allow": "POST, OPTIONS"}


def test_answer_that_comes_later_is_delivered_once_it_is_there() -> None:
    later, delivered = Later(), list[Response]()

    assert later.wait(delivered.append) is None
    later.respond(Response(200))

    assert delivered == [Response(200)]


def test_answer_that_was_there_before_is_taken_at_once() -> None:
    later, delivered = Later(), list[Response]()
    later.respond(Response(200))

    assert later.wait(delivered.append) == Response(200)
    assert delivered == []


def test_second_answer_is_a_mistake() -> None:
    later = Later()
    later.respond(Response(200))

    with pytest.raises(AssertionError, match="once"):
        later.respond(Response(200))


def test_fault_is_shown_with_its_kind_and_place_but_without_its_words() -> None:
    try:
        raise KeyError("room-of-somebody")
    except KeyError as error:
        shown = unworded(error)

    assert str(shown) == "KeyError"
    assert shown.__traceback__ is not None
    assert shown.__context__ is None
