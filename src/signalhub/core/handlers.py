"""Every request the hub serves, and what serves it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from signalhub.core import (
    catalog,
    control,
    directory,
    erasing,
    history,
    letters,
    placing,
    republishing,
    router,
    settling,
    subscriptions,
)
from signalhub.core.effects import Effect
from signalhub.core.session import Session
from signalhub.envelope import Envelope

if TYPE_CHECKING:
    from signalhub.core.hub import Hub

Handler = Callable[["Hub", Session, Envelope, int], list[Effect]]

HANDLERS: Final[dict[str, Handler]] = {
    "hub:connect": control.connect,
    "hub:heartbeat": control.heartbeat,
    "hub:disconnect": control.disconnect,
    "hub:refresh_token": control.refresh_token,
    "hub:queue_stats": control.queue_stats,
    "hub:metrics": control.metrics,
    "hub:register": directory.register,
    "hub:unregister": directory.unregister,
    "hub:renew": directory.renew,
    "hub:discover": directory.discover,
    "hub:list_actors": directory.list_actors,
    "hub:place": placing.place,
    "hub:move": placing.move,
    "hub:send": router.send,
    "hub:broadcast": router.broadcast,
    "hub:publish": router.publish,
    "hub:subscribe": router.subscribe,
    "hub:unsubscribe": router.unsubscribe,
    "hub:topic_create": catalog.create,
    "hub:topic_update": catalog.update,
    "hub:topic_info": catalog.info,
    "hub:topic_delete": catalog.delete,
    "hub:list_topics": catalog.list_topics,
    "hub:sub_info": subscriptions.info,
    "hub:sub_update": subscriptions.update,
    "hub:sub_pause": subscriptions.pause,
    "hub:sub_resume": subscriptions.resume,
    "hub:sub_delete": subscriptions.delete,
    "hub:list_subs": subscriptions.list_subscriptions,
    "hub:seek": subscriptions.seek,
    "hub:ack": settling.ack,
    "hub:nack": settling.nack,
    "hub:extend": settling.extend,
    "hub:term": settling.term,
    "hub:credit": settling.credit,
    "hub:replay": history.replay,
    "hub:redrive": letters.redrive,
    "hub:purge": letters.purge,
    "hub:republish": republishing.republish,
    "hub:erase": erasing.erase,
}
# Liveness and settling must not depend on how much else a session sends.
UNLIMITED: Final = frozenset(
    {
        "hub:connect",
        "hub:heartbeat",
        "hub:renew",
        "hub:disconnect",
        "hub:ack",
        "hub:nack",
        "hub:extend",
        "hub:term",
        "hub:credit",
    }
)
