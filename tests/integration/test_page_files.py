"""The files of the page, over real sockets, from a folder of the test."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from signalhub.server import web
from tests.support.socket.stage import run_stage

INDEX = "<!doctype html>" + "<p>page</p>" * 50
SCRIPT = "export const n = 1;\n" * 50
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
HARD = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
YEAR = "public, max-age=31536000, immutable"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "index.html").write_text(INDEX)
    (tmp_path / "app.0a1b2c3d.js").write_text(SCRIPT)
    (tmp_path / "signalhub.9f8e7d6c.js").write_text("export {}")
    (tmp_path / "LICENSES.txt").write_text("MIT")
    (tmp_path / "secret.py").write_text("no")
    monkeypatch.setattr(web, "STATIC", tmp_path)
    return tmp_path


async def test_the_page_and_its_files_come_compressed_and_hardened(folder: Path) -> None:
    async with run_stage() as stage:
        page = await stage.get("/ui/", headers={"Accept-Encoding": "br, gzip"})
        assert (page.status, gzip.decompress(page.body).decode()) == (200, INDEX)
        assert page.headers["content-type"] == "text/html; charset=utf-8"
        assert page.headers["cache-control"] == "no-cache"
        script = await stage.get("/ui/assets/app.0a1b2c3d.js")
        assert (script.status, script.body.decode()) == (200, SCRIPT)
        assert (script.headers["cache-control"], script.headers["vary"]) == (
            YEAR,
            "Accept-Encoding",
        )
        plain = await stage.get("/ui/assets/LICENSES.txt")
        assert plain.headers["cache-control"] == "no-cache"
        for path in ("/ui/", "/ui", "/ui/assets/app.0a1b2c3d.js", "/ui/assets/none.js", "/sdk.js"):
            answer = await stage.get(path)
            for name, value in HARD.items():
                assert answer.headers[name.lower()] == value, path


async def test_what_a_browser_has_is_not_sent_again(folder: Path) -> None:
    async with run_stage() as stage:
        for encoding in ("gzip", "identity", "gzip;q=0"):
            given = {"Accept-Encoding": encoding}
            first = await stage.get("/ui/", headers=given)
            known = given | {"If-None-Match": f'"other", {first.headers["etag"]}'}
            again = await stage.get("/ui/", headers=known)
            assert (again.status, again.body) == (304, b"")
            assert again.headers["etag"] == first.headers["etag"]
            assert ("content-encoding" in first.headers) == (encoding == "gzip")
            assert (await stage.get("/ui/", headers={"If-None-Match": '"x"'})).status == 200


async def test_short_addresses_lead_to_the_page_and_the_client(folder: Path) -> None:
    async with run_stage() as stage:
        for path, accept, status, to in (
            ("/ui", "*/*", 308, "/ui/"),
            ("/", "text/html,*/*", 302, "/ui/"),
            ("/sdk.js", "*/*", 302, "/ui/assets/signalhub.9f8e7d6c.js"),
        ):
            answer = await stage.get(path, headers={"Accept": accept})
            assert (answer.status, answer.headers["location"]) == (status, to)
        assert (await stage.get("/")).status == 426, "a program is told what the path is for"
        await stage.dial("/")


async def test_nothing_else_of_the_folder_is_served(folder: Path) -> None:
    (folder.parent / "outside.js").write_text("no")
    async with run_stage() as stage:
        for path in ("secret.py", "index.html", "..%2foutside.js", "%2e%2e/outside.js", "none.js"):
            assert (await stage.get(f"/ui/assets/{path}")).status == 404, path
        assert (await stage.get("/ui/", "POST")).status == 405


async def test_without_the_page_and_when_it_is_off_the_hub_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(web, "STATIC", tmp_path / "none")
    async with run_stage() as stage:
        answer = await stage.get("/ui/")
        assert (answer.status, b"without the page" in answer.body) == (404, True)
    async with run_stage(ui={"enabled": False}) as stage:
        for path in ("/ui/", "/api/admin/v1/me", "/sdk.js"):
            assert (await stage.get(path)).status == 404
        assert (await stage.get("/", headers={"Accept": "text/html"})).status == 426
