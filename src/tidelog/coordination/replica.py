"""One process's copy of what the journal says. Pure: entries in, what came of each out.

Equal lines make equal replicas, so no process has to ask another who won: the order of the lines has decided.
"""

from __future__ import annotations

from typing import NamedTuple

from tidelog.coordination.entries import Changed, Ended, Entry, Opened, Snapshot
from tidelog.coordination.port import Event
from tidelog.coordination.tree import Outcome, Tree
from tidelog.errors import StorageError


class DivergedError(StorageError):
    """The lines that this process read are not those of the process that made the next generation."""


class Member(NamedTuple):
    """An open session, as all processes know it."""

    id: int
    name: str
    timeout_ms: int


class Applied(NamedTuple):
    """What an entry did: to the tree, and to whom it belongs."""

    events: list[Event]
    opened: Member | None = None
    ended: Member | None = None
    outcome: Outcome | None = None
    """Of a Changed, whether or not it changed anything."""


class Replica:
    """The tree and the members. Always: the sessions of both are the same."""

    def __init__(self) -> None:
        self.tree = Tree()
        self.members: dict[int, Member] = {}
        self._is_new = True

    def apply(self, entry: Entry) -> Applied:
        if isinstance(entry, Changed):
            outcome = self.tree.transact(entry.session, entry.ops)
            return Applied(outcome.events, outcome=outcome)
        if isinstance(entry, Opened):
            session = self.tree.open_session()
            member = self.members[session] = Member(session, entry.name, entry.timeout_ms)
            return Applied([], opened=member)
        if isinstance(entry, Ended):
            events = self.tree.end_session(entry.session)
            return Applied(events, ended=self.members.pop(entry.session, None))
        if isinstance(entry, Snapshot):
            self._restore(entry)
        return Applied([])

    def snapshot(self) -> Snapshot:
        return Snapshot(
            self.tree.snapshot(), [(member.id, member.name, member.timeout_ms) for member in self.members.values()]
        )

    def _restore(self, snapshot: Snapshot) -> None:
        """Nothing changes for a replica that has seen all before it. One that has seen other lines cannot go on."""
        if self._is_new:
            self.tree = Tree.restored(snapshot.tree)
            self.members = {values[0]: Member(*values) for values in snapshot.sessions}
        elif snapshot.tree["change"] != self.tree.change_id:
            raise DivergedError(
                f"the journal's next generation begins with change {snapshot.tree['change']}, but this process has "
                f"read changes up to {self.tree.change_id}: the disk gave it other lines"
            )
        self._is_new = False
