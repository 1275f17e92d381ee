"""Which process a piece of code belongs to, so that it can be killed or frozen and knows its host.

Production code asks nobody where it runs. The simulator keeps it in a context variable, which asyncio
hands from every task and callback to those it starts: all that descends from `SimHost.start` is that process.
"""

from __future__ import annotations

import asyncio
from contextvars import Context, ContextVar


class SimProcess:
    """One life of a program on a host: from its start to its end, its kill, or the loss of power.

    Once dead none of its code runs again, not even a `finally`, as after SIGKILL.
    """

    def __init__(self, host: str, number: int) -> None:
        self.host = host
        self.name = f"{host}#{number}"
        self.dead = False
        self.frozen = False
        self.held: list[asyncio.Handle] = []
        """Callbacks that came due while it was frozen, in their order."""

    def __repr__(self) -> str:
        return f"<SimProcess {self.name}>"


PROCESS: ContextVar[SimProcess | None] = ContextVar("tidelog.lab.process", default=None)

KERNEL = Context()
"""Where the simulator's own callbacks run: in no process, so that neither a kill nor a freeze stops them."""


def current_process() -> SimProcess:
    process = PROCESS.get()
    if process is None:
        raise RuntimeError("this code runs on no simulated host; start it with world.host(NAME).start(...)")
    return process
