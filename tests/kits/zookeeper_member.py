"""One that wants to lead, to be stopped and killed: `python -m tests.kits.zookeeper_member CONNECT TIMEOUT_MS FILE`.

It stands for /leader and writes down, while it leads, the moments at which it was sure to, each with its session.
"""

from __future__ import annotations

import asyncio
import sys
import time
from typing import TextIO

from tidelog.coordination.port import ConnectionLostError, NodeExistsError, Session, SessionLostError
from tidelog.coordination.zookeeper import ZooKeeperCoordination
from tidelog.host.clock import SystemClock


async def live(connect: str, timeout_ms: int, sure: TextIO) -> None:
    coordination = ZooKeeperCoordination(connect, SystemClock())
    while True:
        session = await coordination.connect(timeout_ms)
        try:
            while True:
                await stand(session, sure)
        except SessionLostError:
            print("lost", session.id, file=sure)


async def stand(session: Session, sure: TextIO) -> None:
    try:
        await session.create("/leader", ephemeral=True)
        while await session.exists("/leader"):
            now_ns = time.monotonic_ns()
            if session.is_current():
                print("sure", session.id, now_ns, file=sure)
            await asyncio.sleep(0.001)
    except (ConnectionLostError, NodeExistsError):
        await asyncio.sleep(0.01)


if __name__ == "__main__":
    with open(sys.argv[3], "a", buffering=1) as file:
        asyncio.run(live(sys.argv[1], int(sys.argv[2]), file))
