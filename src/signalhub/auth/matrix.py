"""Which request needs which permission: every request and route, each with its uses.

The table decides nothing, it says what the code decides. `docs/operate/permissions.md` is generated
from it, and tests (`test_matrix.py`, `test_route_permissions.py`) try every cell of it on a hub.
Every request of the hub and every route must be here.

A need is one verb or several joined by `+`; `admin:erase` names the operation it is needed for. Of
several needs any one is enough. A row without needs is for every session, which with authentication
means for every valid token.
"""

from __future__ import annotations

from typing import Final

import msgspec

from signalhub.auth.permissions import ROLES, Permissions

VERBS: Final = Permissions.__struct_fields__


class VerbRow(msgspec.Struct, frozen=True):
    """What the patterns of a verb match, and what a token without the verb may do."""

    verb: str
    over: str
    absent: str = "denied"
    # The older verb that stands for it in tokens that do not mention it.
    fallback: str = ""


VERB_ROWS: Final = (
    VerbRow("send", "addresses"),
    VerbRow("broadcast", "capabilities"),
    VerbRow("publish", "topics"),
    VerbRow("subscribe", "topics"),
    VerbRow("register", "addresses", "own address"),
    VerbRow("create", "topics"),
    VerbRow(
        "consume",
        "`topic/subscription`",
        "own subscriptions, and those without owner with `subscribe`",
        "subscribe",
    ),
    VerbRow("manage", "topics", "`create`", "create"),
    VerbRow("delete", "topics, hosts", "`create` for topics", "create"),
    VerbRow("read", "topics, addresses", "`subscribe` for topics", "subscribe"),
    VerbRow("discover", "addresses", "`send`, and own address", "send"),
    VerbRow("host", "kinds of actors"),
    VerbRow("control", "hosts"),
    VerbRow("rooms", "names of rooms", "by capability only"),
    VerbRow("admin", "operations"),
)
_FALLBACKS: Final = {row.verb: row.fallback for row in VERB_ROWS if row.fallback}


class Access(msgspec.Struct, frozen=True):
    """One use of a request or route, and what it needs."""

    request: str
    when: str = ""
    needs: tuple[str, ...] = ()
    # Verbs for which no older one stands in this use.
    explicit: frozenset[str] = frozenset()
    # Is it served without any token?
    is_open: bool = False

    @property
    def alternatives(self) -> list[frozenset[str]]:
        """The sets of verbs of which one is needed."""
        return [frozenset(verbs_of(need)) for need in self.needs]

    def is_allowed(self, given: frozenset[str], *, are_others_denied: bool) -> bool:
        """Is it allowed with these verbs, each for everything?

        The token either denies all other verbs or does not mention them.
        """
        if not are_others_denied:
            older = {
                verb
                for verb, fallback in _FALLBACKS.items()
                if fallback in given and verb not in self.explicit
            }
            given = given | older
        return not self.needs or any(need <= given for need in self.alternatives)


def verbs_of(need: str) -> list[str]:
    """The verbs of a need, without operations."""
    return [one.partition(":")[0] for one in need.split(" + ")]


_OTHERS: Final = "what somebody else made"
_OWN: Final = "what one made oneself"
_CONSUME: Final = frozenset({"consume"})
_DELETE: Final = frozenset({"delete"})
_READ: Final = frozenset({"read"})

REQUESTS: Final = (
    # The session itself.
    Access("hub:connect"),
    Access("hub:heartbeat"),
    Access("hub:disconnect"),
    Access("hub:refresh_token"),
    Access("hub:queue_stats"),
    Access("hub:metrics"),
    Access("hub:limits", "", ("admin:limits",)),
    Access("hub:list_sessions", "", ("admin:sessions",)),
    Access("hub:close_session", "", ("admin:sessions",)),
    Access("hub:list_jobs", "", ("admin:view",)),
    # Addresses.
    Access("hub:register", "the address of the token"),
    Access("hub:register", "another address", ("register",)),
    Access("hub:register", "as a host, or where actors are placed", ("host",)),
    Access("hub:unregister"),
    Access("hub:renew"),
    Access("hub:discover", "others", ("discover",)),
    Access("hub:list_actors", "others", ("discover",)),
    # Durable actors.
    Access("hub:place", "actors that have a place, on that host", ("send",)),
    Access("hub:place", "actors without a place, on that host", ("send",)),
    Access("hub:place", "a claim", ("host",)),
    Access("hub:move", "to a host whose token has `host`", ("host",)),
    Access("hub:forget_place", "over the host where it lives", ("control",)),
    # Messages.
    Access("hub:send", "", ("send",)),
    Access("hub:send", "in the name of another address", ("send + register",)),
    Access("hub:send", "`actors:batch`, `actors:move`, `actors:mark`", ("send + host",)),
    Access("hub:send", "`actors:control` to a host", ("send + control",)),
    Access("hub:send", "`actors:control`: purge", ("send + control + delete",), explicit=_DELETE),
    Access(
        "hub:send",
        "`actors:control` that shows contents",
        ("send + control + read",),
        explicit=_READ,
    ),
    Access("hub:broadcast", "", ("broadcast",)),
    Access("hub:publish", "", ("publish",)),
    Access("hub:publish", "durable, to a topic that does not exist", ("publish + create",)),
    Access("hub:subscribe", "plain", ("subscribe",)),
    Access("hub:subscribe", "named, new or without owner", ("consume", "manage")),
    Access("hub:subscribe", f"named, {_OTHERS}", ("consume", "manage"), explicit=_CONSUME),
    Access("hub:subscribe", f"named, {_OWN}"),
    Access("hub:subscribe", f"with other options than {_OTHERS}", ("manage",)),
    Access("hub:subscribe", "changing options of what nobody owns", ("manage",)),
    Access("hub:subscribe", "in the place of somebody else's consumer", ("manage",)),
    Access(
        "hub:subscribe",
        "with a dead-letter topic",
        ("consume + create + publish", "manage + create + publish"),
    ),
    Access(
        "hub:subscribe",
        "with `backlogPolicy` `refuse`",
        ("consume + create", "manage + create"),
    ),
    Access("hub:unsubscribe"),
    # Topics.
    Access("hub:topic_create", "", ("create",)),
    Access("hub:topic_create", "with a dead-letter topic", ("create + publish",)),
    Access("hub:topic_update", "", ("create",)),
    Access("hub:topic_update", "with a dead-letter topic", ("create + publish",)),
    Access("hub:topic_info", "", ("subscribe",)),
    Access("hub:list_topics", "the topics shown", ("subscribe",)),
    Access("hub:topic_delete", _OTHERS, ("delete",)),
    Access("hub:topic_delete", _OWN),
    # Subscriptions.
    Access("hub:sub_info", "", ("subscribe",)),
    Access("hub:list_subs", "the subscriptions shown", ("subscribe",)),
    *(
        access
        for request in (
            *("hub:sub_update", "hub:sub_pause", "hub:sub_resume", "hub:sub_settle"),
            "hub:seek",
        )
        for access in (Access(request, _OTHERS, ("manage",)), Access(request, _OWN))
    ),
    Access("hub:sub_delete", _OTHERS, ("delete",)),
    Access("hub:sub_delete", _OWN),
    *(
        Access(request, "as a consumer, by name", ("consume", "manage"), explicit=_CONSUME)
        for request in ("hub:ack", "hub:nack", "hub:extend", "hub:term")
    ),
    Access("hub:credit", "as a consumer", ("consume", "manage"), explicit=_CONSUME),
    # What is stored.
    Access("hub:replay", "messages", ("subscribe",)),
    Access("hub:replay", "dead letters", ("read",)),
    Access("hub:redrive", _OTHERS, ("manage", "subscribe + publish")),
    Access("hub:redrive", "with `edits`", ("manage + read + publish",)),
    Access(
        "hub:redrive",
        "`dryRun` that shows reasons, types and keys",
        ("manage + read", "subscribe + publish + read"),
    ),
    Access("hub:purge", _OTHERS, ("delete",)),
    Access("hub:purge", _OWN),
    Access("hub:republish", "to a topic", ("admin:republish + publish",)),
    Access("hub:republish", "to an actor", ("admin:republish + send",)),
    Access("hub:erase", "", ("admin:erase",)),
)

_ADMIN: Final = "/api/admin/v1"
_VIEW: Final = ("admin:view",)
_BY_NAME: Final = "by the name of the room"
_BY_CAPABILITY: Final = "with the capability of the room"

ROUTES: Final = (
    Access("/ws", "connecting; requests need a token", is_open=True),
    Access("/", "connecting; requests need a token", is_open=True),
    Access("/health", is_open=True),
    Access("/healthz", is_open=True),
    Access("/readyz", is_open=True),
    Access("/metrics", "", ("admin:metrics", "admin:view")),
    *(
        access
        for path in (
            "/room",
            "/ws/{}/{}",
            "/api/v1/message",
            "/v1/inbox/messages",
            "/v1/inbox/append",
            "/v1/room/metadata",
            "/v1/room/quorum",
            "/v1/room/proposals",
            "/v1/room/proposals/{}",
        )
        for access in (
            Access(path, _BY_NAME, ("rooms",)),
            Access(path, _BY_CAPABILITY, is_open=True),
        )
    ),
    Access("/openapi.json", is_open=True),
    # The page for people, and its API. Every answer of the API needs a token.
    Access("/ui", is_open=True),
    Access("/ui/", is_open=True),
    Access("/ui/assets/{}", is_open=True),
    Access("/sdk.js", is_open=True),
    Access(f"{_ADMIN}/live", "connecting; the first frame needs `admin: view`", is_open=True),
    Access(f"{_ADMIN}/openapi.json", is_open=True),
    Access(f"{_ADMIN}/me"),
    Access(f"{_ADMIN}/session/refresh"),
    Access(f"{_ADMIN}/settings", "", ("admin:settings",)),
    *(
        Access(f"{_ADMIN}{path}", "", _VIEW)
        for path in ("/overview", "/series", "/search", "/health", "/segments", "/warnings")
    ),
    *(
        Access(f"{_ADMIN}{path}", "", _VIEW)
        for path in ("/rooms", "/actors", "/actors/{}", "/sessions", "/sessions/{}")
    ),
    Access(f"{_ADMIN}/sessions/{{}}/close", "", ("admin:view + admin:sessions",)),
    *(
        Access(f"{_ADMIN}{path}", "", _VIEW)
        for path in ("/topics", "/subscriptions", "/jobs", "/jobs/{}")
    ),
    Access(f"{_ADMIN}/jobs/{{}}/cancel", "one's own", _VIEW),
    Access(f"{_ADMIN}/topics/{{}}", "GET", _VIEW),
    Access(f"{_ADMIN}/topics/{{}}", "PUT", ("admin:view + create",)),
    Access(f"{_ADMIN}/topics/{{}}", "PATCH", ("admin:view + create",)),
    Access(f"{_ADMIN}/topics/{{}}", f"DELETE {_OTHERS}", ("admin:view + delete",)),
    Access(f"{_ADMIN}/topics/{{}}/subscriptions/{{}}", "GET", _VIEW),
    Access(
        f"{_ADMIN}/topics/{{}}/subscriptions/{{}}",
        f"DELETE {_OTHERS}",
        ("admin:view + delete",),
    ),
    *(
        Access(f"{_ADMIN}/topics/{{}}/subscriptions/{{}}/{what}", _OTHERS, ("admin:view + manage",))
        for what in ("pause", "resume", "set", "seek", "settle")
    ),
    Access(f"{_ADMIN}/letters/redrive", _OTHERS, ("admin:view + manage",)),
    Access(f"{_ADMIN}/letters/purge", _OTHERS, ("admin:view + delete",)),
    # What the requests of the wire protocol need that these become.
    Access("/api/hub/v1/publish", "", ("publish",)),
    Access("/api/hub/v1/publish/batch", "each message for itself, as `/publish`"),
    Access("/api/hub/v1/tell", "", ("send",)),
    Access("/api/hub/v1/ask", "", ("send",)),
    Access("/api/hub/v1/request", "", ("send",)),
    Access("/api/hub/v1/topics/{}/messages", "messages", ("subscribe",)),
    *(
        Access(f"/api/hub/v1/topics/{{}}/subscriptions/{{}}/{name}", when, ("consume", "manage"))
        for name, when in (
            ("pull", "a subscription that is new or without owner"),
            ("ack", ""),
            ("nack", ""),
            ("extend", ""),
            ("term", ""),
        )
    ),
    Access("/api/hub/v1/actors", "the actors shown: `discover`"),
    # The past; contents are shown to those who may read them.
    *(
        Access(f"{_ADMIN}{path}", "", _VIEW)
        for path in (
            *("/history", "/history/counts", "/history/series", "/history/{}/{}"),
            *("/history/{}/{}/{}", "/letters", "/letters/topics", "/actions"),
            *("/lake", "/lake/tables/{}", "/lake/proof.json"),
        )
    ),
    Access(f"{_ADMIN}/lake/audit", "GET", _VIEW),
    Access(f"{_ADMIN}/lake/audit", "POST", ("admin:audit",)),
    Access(f"{_ADMIN}/replay", "", ("admin:republish + read",)),
    # Hosts of durable actors; of several, those are asked that one may control.
    *(
        Access(f"{_ADMIN}{path}", "", _VIEW)
        for path in ("/hosts", "/calls", "/calls/{}", "/alarms", "/host-letters")
    ),
    *(
        Access(f"{_ADMIN}{path}", "", ("admin:view + control",))
        for path in (
            *("/hosts/{}/actors", "/hosts/{}/actors/{}", "/host-letters/{}/{}"),
            *("/hosts/{}/redrive", "/hosts/{}/move"),
        )
    ),
    Access(f"{_ADMIN}/hosts/{{}}/purge", "", ("admin:view + control + delete",), explicit=_DELETE),
)

_ENOUGH, _OLDER, _TOGETHER = "●", "○", "+"


def _cell(access: Access, verb: str) -> str:
    given = frozenset({verb})
    if not access.needs:
        return ""
    if access.is_allowed(given, are_others_denied=True):
        return _ENOUGH
    if access.is_allowed(given, are_others_denied=False):
        return _OLDER
    return _TOGETHER if any(verb in need for need in access.alternatives) else ""


def _needed(access: Access) -> str:
    if access.needs:
        return ", or ".join(
            " and ".join(f"`{_spelled(one)}`" for one in need.split(" + ")) for need in access.needs
        )
    return "open" if access.is_open else "any token"


def _spelled(need: str) -> str:
    return need.replace(":", ": ")


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |".replace("|  |", "| |").replace("|  |", "| |")


def page() -> str:
    """The reference of permissions as a Markdown page."""
    heads = [f"`{verb}`" for verb in VERBS]
    matrix = [
        _row("Request", "Of what, or how", "Needs", *heads),
        "|" + "---|" * (3 + len(VERBS)),
        *(
            _row(
                f"`{access.request}`",
                access.when,
                _needed(access),
                *(_cell(access, verb) for verb in VERBS),
            )
            for access in (*REQUESTS, *ROUTES)
        ),
    ]
    verbs = [
        _row("Verb", "Over", "If a token does not mention it"),
        "|---|---|---|",
        *(_row(f"`{row.verb}`", row.over, row.absent) for row in VERB_ROWS),
    ]
    roles = [
        _row("Role", "Grants"),
        "|---|---|",
        *(_row(f"`{role}`", _granted(grants)) for role, grants in ROLES.items()),
    ]
    return _PAGE.format(
        verbs="\n".join(verbs),
        matrix="\n".join(matrix),
        roles="\n".join(roles),
        enough=_ENOUGH,
        older=_OLDER,
        together=_TOGETHER,
    )


def _granted(grants: dict[str, tuple[str, ...]]) -> str:
    return "; ".join(f"`{verb}: {', '.join(given)}`" for verb, given in grants.items() if given)


_PAGE: Final = """\
# Permissions

A token names what its holder may do: patterns by verb, in which `*` matches anything. A verb
that a token does not mention takes the fallback of this table; an empty list denies.

{verbs}

What was created with a token of the same `sub` is one's own, and needs neither `manage` nor
`delete`. Subscriptions and topics from before owners were recorded have none: consuming them
needs `subscribe`, changing them `manage`.

## Every request and every verb

The page is generated from the code, and a test tries every cell on a hub. {enough}: the verb
alone is enough. {older}: it is enough in a token that does not mention a younger verb.
{together}: it is needed together with others. Without authentication everything is allowed.

{matrix}

Requests and routes that only show things show what the verb covers. An address that a token
names is its own.

A request that names a pattern of topics (`orders/#`) needs its verbs over everything that the
pattern can match, and joining a pattern needs `subscribe` in any case, too. Its owner needs no
more for what it made.

`read` is about contents: payloads, types, keys and headers, reasons and errors, arguments of
calls. In a replay, messages need `subscribe` and dead letters `read`; what is not permitted is
left out and counted. Somebody with `control` and without `read` over a host gets its rows of
calls, alarms and dead letters without contents. `/api/admin/v1/replay` needs `read: *`, its
previews as well: a condition is about all of the lake, and the count of what it finds tells about
contents.

Consuming a topic of dead letters delivers them as messages, so grant `subscribe` and `consume`
over it only to those who may read them. Edits of a redrive need `manage` and `read` over the dead
letters and `publish` (for a mailbox `send`) over where each goes; a letter for another place
stays. A letter whose subscription is gone would go to all of its topic: putting it back needs
`publish` or `manage` over that, too. Options of a subscription that nobody owns are changed by
those who may manage it; others join it with the options it has.

## What is recorded

Whatever uses `manage`, `delete`, `control` or `admin` (`view` and `metrics` excepted) is
recorded in the log, in the same batch as the change itself, as an entry of the kind `operated`:
the subject of the token, the address of the session, the verb, what it was used on, and the
request. `signalhub log view --kind operated` shows them. Erasing an actor erases the entries that
name it; nothing else erases one.

- What one made oneself needs none of these verbs and is not recorded. Nor is what another verb
  permits, too, such as joining a subscription that is named in `consume`.
- Without authentication nobody owns anything, and the subject is empty. Recorded are
  `hub:sub_update`, `hub:sub_pause`, `hub:sub_resume`, `hub:sub_settle`, `hub:seek`,
  `hub:sub_delete`, `hub:topic_delete`, `hub:purge`, `hub:redrive`, `hub:republish`, `hub:erase`,
  `hub:list_sessions`, `hub:close_session`, `hub:limits`, `hub:forget_place` and every
  `actors:control` that may change something.
- What the permission `view` shows (`hub:list_jobs`) and a `dryRun` are not recorded. Nor are
  commands that only show what is on a host (`stats`, `actors`, `actor`, `calls`, `call`,
  `finished`, `alarms`, `dead`, `letter`), although they need `control`: the dashboard asks every
  few seconds. All others are, unknown ones included.
- An edited dead letter has an entry of its own, with the SHA-256 of its data before and after.
- If the log takes nothing, `hub:close_session` is logged by the hub as a warning instead, and
  `hub:limits` is not recorded; everything else is refused.
- A purge on a host uses two verbs and leaves two entries. Looking at sessions and limits uses
  `admin` and is recorded.
- Redrives and purges of many letters are written in several batches; the entry is in the first.
- `hub:republish` and `hub:erase` leave an entry when they begin and one when they end, with the
  name of the job, or the phase `failed`. One without an end was interrupted, as `signalhub jobs`
  shows. A replay that is continued does not begin again.
- An actor that erases itself is not named by these entries.

## Roles

Roles are sets of verbs, chosen with `signalhub token mint --role`. None can send or publish
unless that is granted, too. They deny the younger verbs that they do not grant.

{roles}
"""


if __name__ == "__main__":
    print(page(), end="")
