"""Which process a piece of code belongs to, so that it can be killed or frozen and knows its host.

Production code asks nobody where it runs. The simulator keeps it in a context variable, which asyncio
hands from every task and callback to those it starts: all that descends from `SimHost.start` is that process.
"""

from __future__ import annotations

import asyncio
from contextvars import Context, ContextVar
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tidelog.lab.tasks import SimTask

_FEWEST_TASKS_TO_SWEEP = 64


class ProcessDied(BaseException):
    """Leaves code whose process is dead: it died in the midst of this call, or its remains came to the disk again."""


class SimProcess:
    """One life of a program on a host: from its start to its end, its kill, or the loss of power.

    Once dead none of its code runs again, not even a `finally`, as after SIGKILL. The exception is what stands
    between a call in which it died (`SimHost.die_at`) and the loop: Python has to leave that by ProcessDied, so
    `finally` and `except BaseException` blocks there do run, up to their next await. They change nothing that
    outlives the process: the disk and the network answer the dead with ProcessDied, and nobody hears of a result.
    """

    def __init__(self, host: str, number: int) -> None:
        self.host = host
        self.name = f"{host}#{number}"
        self.dead = False
        self.frozen = False
        self.held: list[asyncio.Handle] = []
        """Callbacks that came due while it was frozen, in their order."""
        self._tasks: list[SimTask[Any]] = []
        self._sweep_at = _FEWEST_TASKS_TO_SWEEP

    @property
    def tasks(self) -> list[SimTask[Any]]:
        """Those that are not done, in the order in which they were made."""
        return [task for task in self._tasks if not task.done()]

    def add(self, task: SimTask[Any]) -> None:
        """Tasks that are done are forgotten when there may be as many of them as of the others."""
        self._tasks.append(task)
        if len(self._tasks) > self._sweep_at:
            self._tasks = self.tasks
            self._sweep_at = max(2 * len(self._tasks), _FEWEST_TASKS_TO_SWEEP)

    def __repr__(self) -> str:
        return f"<SimProcess {self.name}>"


PROCESS: ContextVar[SimProcess | None] = ContextVar("tidelog.lab.process", default=None)

KERNEL = Context()
"""Where the simulator's own callbacks run: in no process, so that neither a kill nor a freeze stops them."""


def current_process() -> SimProcess:
    process = PROCESS.get()
    if process is None:
        raise RuntimeError("this code runs on no simulated host; start it with world.host(NAME).start(...)")
    if process.dead:
        raise ProcessDied(process.name)
    return process


def refuse_the_dead() -> None:
    """For what a process may ask of the machine. Code of the lab itself, in no process, may always ask."""
    process = PROCESS.get()
    if process is not None and process.dead:
        raise ProcessDied(process.name)
