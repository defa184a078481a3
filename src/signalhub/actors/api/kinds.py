"""The kinds of actors a host serves, and the foreign kinds it may call."""

from __future__ import annotations

from collections.abc import Iterable

from signalhub.actors.api.actor import Actor, remote_method
from signalhub.actors.api.config import DurableConfig, for_host, in_host
from signalhub.actors.api.operation import Operation


class Kinds:
    """Classes by kind, each with its configuration in this host."""

    def __init__(
        self,
        classes: Iterable[type[Actor]],
        base: DurableConfig,
        foreign: Iterable[str] = (),
    ) -> None:
        self._classes: dict[str, type[Actor]] = {}
        self._foreign = frozenset(foreign)
        for cls in classes:
            if not (isinstance(cls, type) and issubclass(cls, Actor)) or cls is Actor:
                raise TypeError(f"{cls!r} is not a subclass of Actor")
            other = self._classes.get(cls.kind)
            if other is not None and other is not cls:
                raise TypeError(
                    f"{other.__qualname__} and {cls.__qualname__} have the same kind {cls.kind}; "
                    "give one of them another `kind`"
                )
            self._classes[cls.kind] = cls
        # The configuration of the host as a whole.
        self.host_config = for_host(base, self._classes.values())
        self._configs = {
            kind: in_host(cls, base, self.host_config) for kind, cls in self._classes.items()
        }

    @property
    def names(self) -> list[str]:
        return sorted(self._classes)

    def find(self, kind: str) -> type[Actor] | None:
        return self._classes.get(kind)

    def config(self, kind: str) -> DurableConfig:
        return self._configs[kind]

    def check(self, kind: str, wanted: Operation) -> None:
        """Raise `ValueError` or `TypeError` if this cannot be called."""
        cls = self._classes.get(kind)
        if cls is None and wanted.owner is not None and issubclass(wanted.owner, Actor):
            if wanted.owner.kind != kind:
                raise ValueError(
                    f"{wanted.owner.__name__}.{wanted.method} belongs to the kind "
                    f"{wanted.owner.kind}, but the target is a {kind}"
                )
            cls = wanted.owner
        if cls is None:
            if kind in self._foreign:
                return
            raise ValueError(
                f"unknown kind {kind}; known kinds: {', '.join(self.names) or 'none'}. "
                "Use op(Class.method, …), or list kinds of other hosts in `foreign`"
            )
        self._check_method(cls, wanted)

    def _check_method(self, cls: type[Actor], wanted: Operation) -> None:
        owner = wanted.owner
        if owner is not None and not (issubclass(cls, owner) or issubclass(owner, cls)):
            raise ValueError(
                f"{owner.__name__}.{wanted.method} is not a method of the target {cls.__name__}"
            )
        if remote_method(cls, wanted.method) is None:
            if hasattr(cls, wanted.method):
                raise ValueError(f"{cls.__name__}.{wanted.method} is not marked with @remote")
            raise ValueError(f"{cls.__name__} has no method {wanted.method}")
