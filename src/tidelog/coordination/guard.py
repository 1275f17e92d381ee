"""The thread that keeps the leases of this process and watches over the sessions of all others.

It is a thread of its own because it must go on while the journal's thread waits for the device.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

from tidelog.coordination.lease import Lease, Probe
from tidelog.coordination.machine import Machine, Steps, Worker
from tidelog.coordination.replica import Member
from tidelog.ports import Clock

_POLL_S = 0.02


class Guard:
    """Renews, asks, reports. Orders come by a deque and a tuple that is replaced as a whole, so no lock is needed."""

    def __init__(
        self,
        machine: Machine,
        directory: str,
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
        report: Callable[[list[Member]], None],
    ) -> None:
        self._machine = machine
        self._directory = directory
        self._clock = clock
        self._loop = loop
        self._report = report
        self._orders: deque[tuple[Lease, bool]] = deque()
        self._others: tuple[Member, ...] = ()
        self._probes: dict[int, Probe] = {}
        self._leases: list[Lease] = []
        self._stopping = False
        self._worker = machine.start("coordination-guard", self._run)

    def keep(self, lease: Lease) -> None:
        self._orders.append((lease, True))

    def drop(self, lease: Lease) -> None:
        """It is released, soon, and only by this thread: no renewal can come in between."""
        self._orders.append((lease, False))
        self._worker.ring()

    def watch(self, others: Sequence[Member]) -> None:
        self._others = tuple(others)

    def stop(self) -> None:
        self._stopping = True
        self._worker.ring()

    def _run(self, worker: Worker) -> Steps:
        while not self._stopping and not self._loop.is_closed():
            self._keep_leases()
            dead = [member for member in self._others if self._is_dead(member)]
            self._forget_probes()
            if dead:
                _tell(self._loop, self._report, dead)
            yield _POLL_S
        self._keep_leases()
        for lease in self._leases:
            lease.release()
        self._others = ()
        self._forget_probes()

    def _keep_leases(self) -> None:
        while self._orders:
            lease, is_wanted = self._orders.popleft()
            if is_wanted:
                self._leases.append(lease)
            else:
                self._leases.remove(lease)
                lease.release()
        for lease in self._leases:
            lease.renew()

    def _is_dead(self, member: Member) -> bool:
        """What cannot be asked just now, for lack of descriptors say, is taken to live: others ask too."""
        try:
            now_ns = self._clock.monotonic_ns()
            probe = self._probes.get(member.id)
            if probe is None:
                probe = self._probes[member.id] = Probe(
                    self._machine, self._directory, member.name, member.timeout_ms, now_ns
                )
            return probe.is_dead(now_ns)
        except OSError:
            return False

    def _forget_probes(self) -> None:
        if len(self._probes) > len(self._others):
            living = {member.id for member in self._others}
            for session in [session for session in self._probes if session not in living]:
                self._probes.pop(session).close()


def _tell(loop: asyncio.AbstractEventLoop, report: Callable[[list[Member]], None], dead: list[Member]) -> None:
    try:
        loop.call_soon_threadsafe(report, dead)
    except RuntimeError:
        if not loop.is_closed():
            raise
