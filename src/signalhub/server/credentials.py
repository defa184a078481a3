"""Keys and denials that change while the hub runs.

Files are looked at once a second and read again when they have changed; the denial list, which may
be long, in a thread. A key set behind a URL is fetched in a thread: at intervals, and soon after a
token named a key that is not in it. The last one is kept in the data folder, so that a hub can
start while its issuer is away. What cannot be read leaves everything as it was, is logged, and
degrades the health: a broken list must neither admit those it denied nor lock everybody out.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import stat
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final, TypeVar
from urllib.parse import urlsplit

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from signalhub.auth import denials, key_sets
from signalhub.auth.denials import Denial, Denials
from signalhub.auth.tokens import Authenticator
from signalhub.core.limits.degradations import Degraded
from signalhub.privacy import opener
from signalhub.server.startup import KEPT_KEY_SET
from signalhub.settings.model import AuthSettings
from signalhub.wire.authority import is_loopback
from signalhub.wire.errors import SettingsError

log = logging.getLogger("signalhub.server")

_FETCH_S: Final = 5.0
# Between two attempts, so that tokens with invented keys do not flood the issuer.
_PAUSE_MS: Final = 10_000
# A key set that is older than this many intervals is a degradation.
_STALE_INTERVALS: Final = 3

# After so many entries of the denial list its thread lets others run.
_ENTRIES: Final = 128
_PAUSE_S: Final = 0.0005

T = TypeVar("T")
KeySet = dict[str, Ed25519PublicKey]


class _WatchedFile:
    """A file that is read again when it has changed."""

    def __init__(self, path: Path, bytes_max: int) -> None:
        self.path = path
        self._bytes_max = bytes_max
        self._signature: tuple[int, int, int] | None = None
        self.error: str | None = None

    def changed(self) -> bytes | None:
        """Return the content if it is new; raises `OSError` if there is no file."""
        known, self._signature = self._signature, None
        found = self.path.stat()
        signature = (found.st_mtime_ns, found.st_size, found.st_ino)
        content = None
        if signature != known:
            with self.path.open("rb") as file:
                content = file.read(self._bytes_max + 1)
        self._signature = signature
        return content

    def forget(self) -> None:
        """Read it again next time."""
        self._signature = None

    def failed(self, error: str) -> None:
        """Note that it cannot be used; log it once."""
        if error != self.error:
            facts = {"file": str(self.path), "error": error}
            log.error("a file could not be used: what was read before still holds", extra=facts)
        self.error = error


class Credentials:
    """Keeps the authenticator's denial list and key set up to date."""

    def __init__(
        self,
        auth: AuthSettings,
        denied: Path,
        authenticator: Authenticator,
        deny: Callable[[Denials], None],
        data: Path,
    ) -> None:
        """`denied` is the denial list; `deny` hands a new one to the hub, which ends sessions."""
        self._authenticator = authenticator
        self._deny = deny
        self._denied = _WatchedFile(denied, denials.LIST_BYTES_MAX)
        self._has_list = False
        self.is_reading = False
        # The default one is made with its first entry, but whoever names a file has it.
        self._is_list_expected = bool(auth.denied_file)
        self._key_file = (
            _WatchedFile(Path(auth.jwks_file), key_sets.SET_BYTES_MAX) if auth.jwks_file else None
        )
        self._key_url = None
        if auth.jwks_url:
            kept = _KeptKeySet(data / KEPT_KEY_SET, auth.jwks_url)
            self._key_url = _FetchedKeySet(auth, authenticator, kept)

    def read_files(self) -> None:
        """Read the files for the first time; raises `SettingsError` if one is broken."""
        try:
            content = self._denied.changed()
            self._authenticator.use_denials(Denials(denials.read(content or b"")))
            self._has_list = True
        except FileNotFoundError as error:
            if self._is_list_expected:
                self._denied.error = _reason(error)
                facts = {"file": str(self._denied.path)}
                log.error("the denial list is missing: nobody is denied", extra=facts)
        except (OSError, SettingsError) as error:
            raise SettingsError(f"the denial list {self._denied.path}: {_reason(error)}") from None
        if self._key_file is not None:
            try:
                content = self._key_file.changed()
                self._authenticator.use_key_set(key_sets.read(content or b""))
            except (OSError, SettingsError) as error:
                place = self._key_file.path.absolute()
                raise SettingsError(f"auth.jwks_file {place}: {_reason(error)}") from None

    async def start(self, now: int) -> None:
        """Fetch what is behind a URL for the first time, after `read_files`."""
        if self._key_url is not None:
            await self._key_url.start(now)

    def tick(self, now: int) -> None:
        """Once a second: look for changes."""
        self._look_at_list()
        if self._key_file is not None:
            self._look_at_keys(self._key_file)
        if self._key_url is not None:
            self._key_url.tick(now)

    def degradations(self, now: int) -> list[Degraded]:
        """The names of what could not be read."""
        found = []
        if self._denied.error is not None:
            found.append(Degraded.DENIAL_LIST_UNREADABLE)
        is_stale = self._key_url is not None and self._key_url.is_stale(now)
        if is_stale or (self._key_file is not None and self._key_file.error is not None):
            found.append(Degraded.KEY_SET_UNAVAILABLE)
        return found

    def _look_at_list(self) -> None:
        if self.is_reading:
            return
        try:
            content = self._denied.changed()
        except FileNotFoundError as error:
            if self._has_list:
                self._denied.failed(_reason(error))
        except OSError as error:
            self._denied.failed(_reason(error))
        else:
            # Otherwise it is as it was when it was read, or when it could not be.
            if content is not None:
                self._read_list(content)

    def _read_list(self, content: bytes) -> None:
        self.is_reading = True

        def read() -> Denials | str:
            try:
                return Denials(_unhurried(denials.entries_of(content)))
            except Exception as error:
                # Whatever it is, the list must be looked at again.
                return _reason(error)

        try:
            _in_thread("denial-list", read, self._list_read)
        except RuntimeError as error:
            # No thread could be started.
            self.is_reading = False
            self._denied.forget()
            self._denied.failed(_reason(error))

    def _list_read(self, listed: Denials | str) -> None:
        self.is_reading = False
        if isinstance(listed, str):
            self._denied.failed(listed)
            return
        self._has_list = True
        self._denied.error = None
        log.info("the denial list was read", extra={"entries": len(listed)})
        self._deny(listed)

    def _look_at_keys(self, watched: _WatchedFile) -> None:
        try:
            content = watched.changed()
            if content is None:
                return
            keys = key_sets.read(content)
        except (OSError, SettingsError) as error:
            watched.failed(_reason(error))
        else:
            watched.error = None
            log.info("the key set was read", extra={"keys": sorted(keys)})
            self._authenticator.use_key_set(keys)


class _FetchedKeySet:
    """A key set behind a URL."""

    def __init__(self, auth: AuthSettings, authenticator: Authenticator, kept: _KeptKeySet) -> None:
        self._url = auth.jwks_url
        self._kept = kept
        self._interval_ms = int(auth.jwks_refresh_s * 1000)
        self._authenticator = authenticator
        self._is_wanted = False
        self._is_fetching = False
        self._tried_at_ms = 0
        self._fetched_at_ms: int | None = None
        self._known: KeySet = {}
        self._error: str | None = None

    async def start(self, now: int) -> None:
        """Fetch it, and go on with the one that was kept if that fails or takes too long."""
        done = asyncio.Event()
        self._fetch(now, done)
        try:
            await asyncio.wait_for(done.wait(), _FETCH_S)
        except TimeoutError:
            log.warning("the key set has not arrived yet", extra={"url": self._url})
        if self._fetched_at_ms is None and (kept := self._kept.load()) is not None:
            keys, age_ms = kept
            self._fetched_at_ms = now - age_ms
            facts = {"keys": sorted(keys), "age_s": age_ms // 1000}
            log.warning("the key set of an earlier start is used", extra=facts)
            self._known = keys
            self._authenticator.use_key_set(keys)

    def tick(self, now: int) -> None:
        self._is_wanted |= self._authenticator.take_missed_key()
        since_ms = abs(now - self._tried_at_ms)
        is_due = since_ms >= self._interval_ms or self._is_wanted or self._error is not None
        if is_due and since_ms >= _PAUSE_MS and not self._is_fetching:
            self._fetch(now)

    def is_stale(self, now: int) -> bool:
        """Has it never been fetched, or not for a while?"""
        if self._fetched_at_ms is None:
            return self._error is not None
        return now - self._fetched_at_ms > _STALE_INTERVALS * self._interval_ms

    def _fetch(self, now: int, done: asyncio.Event | None = None) -> None:
        self._is_fetching, self._is_wanted = True, False
        self._tried_at_ms = now

        def finish(found: KeySet | str) -> None:
            self._finish(found, now)
            if done is not None:
                done.set()

        def fetch() -> KeySet | str:
            return _fetched(self._url, self._kept.save)

        try:
            _in_thread("key-set", fetch, finish)
        except RuntimeError as error:
            # No thread could be started.
            finish(_reason(error))

    def _finish(self, found: KeySet | str, now: int) -> None:
        self._is_fetching = False
        if isinstance(found, str):
            if found != self._error:
                facts = {"url": self._url, "error": found}
                log.warning("the key set could not be fetched: known keys still hold", extra=facts)
            self._error = found
            return
        self._error, self._fetched_at_ms = None, now
        if found.keys() != self._known.keys():
            log.info("the key set was fetched", extra={"keys": sorted(found)})
        self._known = found
        self._authenticator.use_key_set(found)


class _Kept(msgspec.Struct):
    """The content of the file: which URL the set was fetched from, and when."""

    url: str
    fetched_at_ms: int
    set: str


class _KeptKeySet:
    """The last key set of an issuer, in a file of the data folder.

    Whoever can write the file can sign tokens, so one that others may write is not used.
    """

    def __init__(self, path: Path, url: str) -> None:
        self._path = path
        self._url = url
        self._is_told = False

    def save(self, content: bytes) -> None:
        """Keep a set that was just fetched, whole or not at all; called on a thread."""
        kept = _Kept(self._url, time.time_ns() // 1_000_000, content.decode())
        draft = self._path.with_name(f".{self._path.name}.tmp")
        try:
            draft.unlink(missing_ok=True)
            with open(draft, "xb", opener=opener) as file:
                file.write(msgspec.json.encode(kept))
                file.flush()
                os.fsync(file.fileno())
            draft.replace(self._path)
        except OSError as error:
            if not self._is_told:
                self._is_told = True
                facts = {"file": str(self._path), "error": _reason(error)}
                log.warning("the key set could not be kept for the next start", extra=facts)

    def load(self) -> tuple[KeySet, int] | None:
        """The set and its age in milliseconds; `None` if there is none of this URL."""
        try:
            with self._path.open("rb") as file:
                found = os.fstat(file.fileno())
                if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                    raise SettingsError("others may write it")
                kept = msgspec.json.decode(file.read(2 * key_sets.SET_BYTES_MAX), type=_Kept)
            if kept.url != self._url:
                return None
            age_ms = time.time_ns() // 1_000_000 - kept.fetched_at_ms
            return key_sets.read(kept.set.encode()), max(0, age_ms)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, SettingsError) as error:
            facts = {"file": str(self._path), "error": _reason(error)}
            log.warning("the key set of an earlier start cannot be used", extra=facts)
            return None


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Whoever answers for the URL of the settings must not be able to name another one."""

    def redirect_request(self, *_: object) -> None:
        return None


def _in_thread(name: str, work: Callable[[], T], done: Callable[[T], object]) -> None:
    """Do something without holding up the loop, which gets the result."""
    loop = asyncio.get_running_loop()

    def run() -> None:
        found = work()
        # The hub may have stopped meanwhile.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(done, found)

    # A daemon, so that a slow issuer does not delay the end of the process.
    threading.Thread(target=run, name=name, daemon=True).start()


def _unhurried(entries: Iterable[Denial]) -> Iterator[Denial]:
    """Let the loop run in between; a thread that only computes keeps it waiting."""
    for number, one in enumerate(entries):
        if number % _ENTRIES == 0:
            time.sleep(_PAUSE_S)
        yield one


def _fetched(url: str, keep: Callable[[bytes], None]) -> KeySet | str:
    """Return the keys behind a URL, or why there are none."""
    is_near = is_loopback(urlsplit(url).hostname or "")
    proxies = urllib.request.ProxyHandler({} if is_near else None)
    opener = urllib.request.build_opener(_NoRedirect, proxies)
    # The settings allow https, and http on loopback only.
    request = urllib.request.Request(  # noqa: S310
        url, headers={"Accept": "application/jwk-set+json, application/json"}
    )
    ends_s = time.monotonic() + 2 * _FETCH_S
    content = b""
    try:
        with opener.open(request, timeout=_FETCH_S) as response:
            while piece := response.read1(2**16):
                content += piece
                if len(content) > key_sets.SET_BYTES_MAX:
                    break
                if time.monotonic() > ends_s:
                    return "the answer takes too long"
        found = key_sets.read(content)
        keep(content)
        return found
    except Exception as error:
        # Whatever an issuer answers, the known keys hold.
        return _reason(error)


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__
