"""The watches of a session with ZooKeeper, which must outlive a connection.

The server forgets a connection's watches with it, and kazoo does not leave them again. So after each reconnection every
watched node is read again, and what happened in the meantime is told from its numbers, as ZooKeeper's own client does.
"""

from __future__ import annotations

from kazoo.protocol.states import ZnodeStat

from tidelog.coordination.port import Event, EventKind, Watch
from tidelog.coordination.watches import Watches


class LastingWatches(Watches):
    """Watches that remember whether their node was there when they were left."""

    def __init__(self) -> None:
        super().__init__()
        self._absent: dict[str, None] = {}

    def add_seen(self, path: str, watch: Watch, *, is_there: bool) -> None:
        self.add(path, watch)
        if is_there:
            self._absent.pop(path, None)
        else:
            self._absent[path] = None

    def take(self, event: Event) -> list[Watch]:
        if event.kind is not EventKind.CHILDREN:
            self._absent.pop(event.path, None)
        return super().take(event)

    def node_paths(self) -> list[str]:
        return list(self._of_node)

    def children_paths(self) -> list[str]:
        return list(self._of_children)

    def missed_by_node(self, path: str, stat: ZnodeStat | None, seen_id: int) -> EventKind | None:
        """What its watches would have heard since change `seen_id`, if the node is now like this."""
        if path in self._absent:
            return None if stat is None else EventKind.CREATED
        if stat is None or stat.czxid > seen_id:
            return EventKind.DELETED  # and made anew, but that came second
        return EventKind.CHANGED if stat.mzxid > seen_id else None


def missed_by_children(stat: ZnodeStat | None, seen_id: int) -> EventKind | None:
    if stat is None or stat.czxid > seen_id:
        return EventKind.DELETED
    return EventKind.CHILDREN if stat.pzxid > seen_id else None
