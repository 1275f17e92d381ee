"""The simulated machine under the embedded coordination store: one disk, one clock, and threads that timers stand for.

Brokers of the lab live on hosts of their own; with the embedded store they share this machine beside that. Its
processes are those of the hosts: a kill or a freeze of a host stops its threads here and, if it is a kill, frees its
locks. The page cache and the leases stay, until the machine itself loses power.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import random
import sys
from collections.abc import Callable
from contextvars import Context, copy_context

from tidelog.coordination.machine import Steps, Worker
from tidelog.lab.inode import Inode
from tidelog.lab.process import PROCESS, SimProcess, current_process
from tidelog.lab.shared_disk import SharedDisk, SharedFile
from tidelog.lab.world import World

_TIME_BYTES = 8
_LONGEST_STEP_S = 0.001
_LONGEST_NOTICE_S = 0.003
_LOST_NOTICES = 0.02


class SimWorker:
    """A thread of a process: its steps are done one by one, each after a delay, so that others act in between."""

    def __init__(self, machine: SimMachine, run: Callable[[Worker], Steps]) -> None:
        self.watched: Inode | None = None
        self.process = current_process()
        self._machine = machine
        self._context: Context = copy_context()
        self._steps = run(self)
        self._timer: asyncio.TimerHandle | None = None
        self._is_asleep = False
        self._is_rung = False
        self._schedule(machine.chance.random() * _LONGEST_STEP_S)

    def ring(self) -> None:
        self.wake(self._machine.chance.random() * _LONGEST_STEP_S)

    def wake(self, delay_s: float) -> None:
        self._is_rung = True
        if self._is_asleep:
            self._schedule(delay_s)

    def watch(self, path: str) -> None:
        self.watched = self._machine.disk.shared(path).inode

    def _schedule(self, delay_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._is_asleep = False
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(delay_s, self._step, context=self._context)

    def _step(self) -> None:
        self._timer = None
        try:
            patience_s = next(self._steps)
        except StopIteration:
            return
        if patience_s and not self._is_rung:
            self._schedule(patience_s)
            self._is_asleep = True
            return
        if patience_s:
            self._is_rung = False
        self._schedule(self._machine.chance.random() * _LONGEST_STEP_S)


class SimSessionFile:
    """A session's file, locked while its process lives. The lock belongs to the file, whatever becomes of its name."""

    def __init__(self, disk: SharedDisk, file: SharedFile, locks: dict[Inode, SimProcess]) -> None:
        self.path = file.path
        self._disk = disk
        self._file = file
        self._locks = locks
        locks[file.inode] = current_process()

    def write_time(self, time_ns: int) -> None:
        data = time_ns.to_bytes(_TIME_BYTES, sys.byteorder)
        if self._file.size():
            self._file.write_again(0, data)
        elif self._file.append(data) != _TIME_BYTES:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def has_name(self) -> bool:
        return self._disk.has_name(self.path, self._file.inode)

    def release(self) -> None:
        self._locks.pop(self._file.inode, None)


class SimSessionView:
    """Another process's look at it."""

    def __init__(self, file: SharedFile, locks: dict[Inode, SimProcess]) -> None:
        self._file = file
        self._locks = locks

    def is_locked(self) -> bool:
        owner = self._locks.get(self._file.inode)
        return owner is not None and not owner.dead

    def time_ns(self) -> int | None:
        data = self._file.read(0, _TIME_BYTES)
        return int.from_bytes(data, sys.byteorder) if len(data) == _TIME_BYTES else None

    def close(self) -> None:
        """Nothing is kept for it."""


class SimMachine:
    """A home of tidelog.coordination.machine.Machine, and what can happen to it."""

    def __init__(self, world: World, name: str = "machine") -> None:
        self.chance: random.Random = world.chance_for(f"threads of {name}")
        self.clock = world.host(name).clock
        self.seal_bytes: int = world.chance_for(f"seals of {name}").choice([2_000, 6_000, 50_000])
        self.disk = SharedDisk(self.clock, world.chance_for(f"disk of {name}"))
        self.disk.notify = self._notify  # type: ignore[method-assign]
        self._name = name
        self._world = world
        self._workers: list[SimWorker] = []
        """Those of the dead stay: if their steps were collected, Python would run their `finally` blocks."""
        self._locks: dict[Inode, SimProcess] = {}
        self.power_losses = 0

    # What can happen to it

    def power_loss(self) -> None:
        """Every process that has threads here dies, and what was not synced to this disk may be lost or torn.

        The disks of the processes' own hosts keep their page cache.
        """
        self.power_losses += 1
        for process in dict.fromkeys(worker.process for worker in self._workers):
            if not process.dead:
                self._world.hosts[process.host].kill()
        self._world.loop.note("power loss", self._name)
        self.disk.power_loss(self._world.chance_for(f"power loss {self._name} {self.power_losses}"))

    def die_at(self, change: int, *, power_loss: bool = False) -> None:
        """Kill the process that makes a change to this disk in the midst of it, or the whole machine. The next is 1."""
        self.disk.doom.set(change, self.chance, self.power_loss if power_loss else self._kill_current)

    def _kill_current(self) -> None:
        self._world.hosts[current_process().host].kill()

    def fill(self, room: int = 0) -> None:
        """No more than that many bytes can be added from now on."""
        self.disk.capacity_bytes = self.disk.used_bytes + room

    # The Machine port

    def make_directory(self, path: str) -> None:
        self.disk.make_directory(path)
        while (parent := os.path.dirname(path)) != path:
            self.disk.sync_names(parent)
            path = parent

    def list(self, directory: str) -> list[str]:
        return self.disk.list(directory)

    def open(self, path: str) -> SharedFile:
        return self.disk.shared(path)

    def create(self, directory: str, prefix: str) -> SharedFile:
        return self.disk.create(directory, prefix)

    def link(self, path: str, name: str) -> None:
        self.disk.link(path, name)

    def remove(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self.disk.unlink(path)

    def sync_directory(self, path: str) -> None:
        self.disk.sync_names(path)

    def claim(self, directory: str, prefix: str) -> SimSessionFile:
        return SimSessionFile(self.disk, self.disk.create(directory, prefix), self._locks)

    def view(self, path: str) -> SimSessionView:
        return SimSessionView(self.disk.shared(path), self._locks)

    def start(self, name: str, run: Callable[[Worker], Steps]) -> SimWorker:
        worker = SimWorker(self, run)
        self._workers.append(worker)
        return worker

    def _notify(self, inode: Inode) -> None:
        """Some notices come late, and a few never come."""
        writer = PROCESS.get()
        for worker in self._workers:
            is_reader = worker.watched is inode and not worker.process.dead and worker.process is not writer
            if is_reader and self.chance.random() >= _LOST_NOTICES:
                worker.wake(self.chance.random() * _LONGEST_NOTICE_S)
