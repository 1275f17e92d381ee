"""The watches of one session: who waits for which change."""

from __future__ import annotations

from tidelog.coordination.port import Event, EventKind, Watch


class Watches:
    """Watches by path, each called once. One that is left twice on a node, or on it and its children, hears once."""

    def __init__(self) -> None:
        self._of_node: dict[str, dict[Watch, None]] = {}
        self._of_children: dict[str, dict[Watch, None]] = {}

    def add(self, path: str, watch: Watch) -> None:
        """For the node itself: that it comes, goes or gets other data."""
        self._of_node.setdefault(path, {})[watch] = None

    def add_for_children(self, path: str, watch: Watch) -> None:
        """For the names under the node, and that it goes."""
        self._of_children.setdefault(path, {})[watch] = None

    def take(self, event: Event) -> list[Watch]:
        """Those that are to hear of it, in the order they were left; they are no longer here."""
        found: dict[Watch, None] = {}
        if event.kind is not EventKind.CHILDREN:
            found |= self._of_node.pop(event.path, {})
        if event.kind in (EventKind.CHILDREN, EventKind.DELETED):
            found |= self._of_children.pop(event.path, {})
        return list(found)
