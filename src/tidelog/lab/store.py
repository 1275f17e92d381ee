"""The coordination store of a simulated cluster, as the lab sees it, and the embedded one on a simulated machine."""

from __future__ import annotations

from typing import Literal, Protocol, TypeAlias

from tidelog.coordination.embedded import EmbeddedCoordination, EmbeddedSession
from tidelog.coordination.entries import LineCutter, Sealed
from tidelog.coordination.journal import journal_path, latest_generation
from tidelog.coordination.port import Session
from tidelog.coordination.replica import Replica
from tidelog.coordination.tree import Tree
from tidelog.lab.machine import SimMachine
from tidelog.lab.process import SimProcess, current_process
from tidelog.lab.shared_disk import SharedFile
from tidelog.lab.world import World
from tidelog.ports import Clock

StoreKind: TypeAlias = Literal["memory", "embedded"]
DIRECTORY = "/store/coordination"


class LabStore(Protocol):
    """What brokers connect to, and what a story sees of it and does to it from outside."""

    @property
    def clock(self) -> Clock: ...

    @property
    def tree(self) -> Tree:
        """What the store has now. No process knows more."""
        ...

    @property
    def answers_all(self) -> bool:
        """It works, and every session reaches it."""
        ...

    async def connect(self, session_timeout_ms: int) -> Session: ...

    def expire(self, session: int) -> None:
        """That session is not current from this moment on, and ends soon."""
        ...

    def suspend(self, session: int | None = None) -> None:
        """The store fails for that session, or for all."""
        ...

    def resume(self, session: int | None = None) -> None: ...

    def stop(self) -> None:
        """Its server is killed, if it has one."""
        ...

    def start(self) -> None: ...


class Onlooker:
    """Follows the journal from outside, without a session and without waiting for a sync."""

    def __init__(self, machine: SimMachine, directory: str) -> None:
        self._machine = machine
        self._directory = directory
        self._generation = 0
        self._is_sealed = True
        self._file: SharedFile | None = None
        self._begin_anew()

    def look(self) -> Tree:
        """What all lines come to that are in the journal now."""
        if self._power_losses != self._machine.power_losses:
            self._begin_anew()
        self._feed()
        while self._is_sealed:  # a line that was just read may have sealed it
            following = self._generation + 1
            latest = latest_generation(self._machine, self._directory) if self._has_directory() else 0
            if latest < following:
                break
            if not self._machine.disk.exists(journal_path(self._directory, following)):
                self._replica, following = Replica(), latest
            self._follow(following)
        return self._replica.tree

    def _begin_anew(self) -> None:
        self._power_losses = self._machine.power_losses
        self._replica = Replica()
        self._generation = 0
        self._file = None
        self._is_sealed = True

    def _has_directory(self) -> bool:
        return self._machine.disk.exists(self._directory)

    def _follow(self, generation: int) -> None:
        self._generation = generation
        self._file = self._machine.open(journal_path(self._directory, generation))
        self._cutter = LineCutter(generation)
        self._is_sealed = False
        self._feed()

    def _feed(self) -> None:
        if self._file is None or self._is_sealed:
            return
        for entry in self._cutter.feed(bytes(self._file.inode.content[self._cutter.position :])):
            self._replica.apply(entry)
            self._is_sealed = isinstance(entry, Sealed)


class EmbeddedStore:
    """The embedded store of all processes of a world, each with a home of its own as in production."""

    def __init__(self, world: World, machine: SimMachine | None = None) -> None:
        self.machine = machine or SimMachine(world)
        self._homes: dict[SimProcess, EmbeddedCoordination] = {}
        self._sessions: dict[int, EmbeddedSession] = {}
        self._onlooker = Onlooker(self.machine, DIRECTORY)

    @property
    def clock(self) -> Clock:
        return self.machine.clock

    @property
    def tree(self) -> Tree:
        return self._onlooker.look()

    @property
    def answers_all(self) -> bool:
        disk = self.machine.disk
        return disk.capacity_bytes is None and not disk._faults

    async def connect(self, session_timeout_ms: int) -> EmbeddedSession:
        """For the process that calls."""
        process = current_process()
        home = self._homes.get(process)
        if home is None:
            home = self._homes[process] = EmbeddedCoordination(DIRECTORY, self.clock, self.machine)
        session = await home.connect(session_timeout_ms)
        self._sessions[session.id] = session
        return session

    def expire(self, session: int) -> None:
        """As if its lease had run out: its owner finds out when it next looks, and gives up its lock."""
        found = self._sessions.get(session)
        if found is not None:
            found._lease.renewed_ns = -found._lease.over_ns

    def suspend(self, session: int | None = None) -> None:
        """The disk is full for all, whichever session is named: changes fail, and sessions live on."""
        self.machine.fill()

    def resume(self, session: int | None = None) -> None:
        self.machine.disk.mend()

    def stop(self) -> None:
        """No server runs: that nobody can change anything is what comes nearest."""
        self.suspend()

    def start(self) -> None:
        self.resume()
