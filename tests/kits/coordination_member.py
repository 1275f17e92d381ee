"""A cluster member, to be killed and stopped: `python -m tests.kits.coordination_member DIRECTORY NAME TIMEOUT_MS`.

It keeps an ephemeral node under /ids, counts up /counter by compare-and-set, stands for /leader, and starts over when
its session is lost. It reports on its output: `ready SESSION`; `lost ACKED UNKNOWN` with the increments that were
acknowledged and those of which it does not know. While it leads, it writes down when it was sure to.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
import time
from typing import Any

from tidelog.coordination import journal, lease
from tidelog.coordination.embedded import EmbeddedCoordination
from tidelog.coordination.local_machine import LocalMachine
from tidelog.coordination.port import BadVersionError, NodeExistsError, Session, SessionLostError, SessionState
from tidelog.host.clock import SystemClock

STOPS: dict[str, tuple[Any, str]] = {
    "append": (journal.Journal, "append"),
    "sync": (os, "fdatasync"),
    "next generation": (journal, "make_generation"),
    "link": (os, "link"),
    "removal": (journal, "_remove_before"),
    "renewal": (lease.Lease, "renew"),
}
"""Where in its work it can be told to stop itself."""


def stop_itself(where: str, after: bool, count: int) -> None:
    """As SIGSTOP from outside would, at the call with that number."""
    owner, name = STOPS[where]
    original = getattr(owner, name)
    calls = 0

    def wrapped(*arguments: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == count and not after:
            os.kill(os.getpid(), signal.SIGSTOP)
        result = original(*arguments, **named)
        if calls == count and after:
            os.kill(os.getpid(), signal.SIGSTOP)
        return result

    setattr(owner, name, wrapped)


class Member:
    def __init__(self, directory: str, name: str, timeout_ms: int) -> None:
        self.coordination = EmbeddedCoordination(directory, SystemClock())
        self.name = name
        self.timeout_ms = timeout_ms
        self.acked = 0
        self.unknown = 0
        self.leading = open(f"{directory}.leading-{name}", "a", buffering=1)  # noqa: SIM115

    async def live(self) -> None:
        while True:
            try:
                session = await self.coordination.connect(self.timeout_ms)
            except SessionLostError:
                continue  # it was stopped meanwhile
            heard: list[SessionState] = []
            session.listen(heard.append)
            self.acked = self.unknown = 0
            with contextlib.suppress(SessionLostError):
                await session.ensure("/ids")
                await session.create(f"/ids/{self.name}", ephemeral=True)
                print("ready", session.id, flush=True)
                await asyncio.gather(self.count(session), self.lead(session))
            await asyncio.sleep(0)
            await self.check_lost(session, heard)
            print("lost", self.acked, self.unknown, flush=True)

    async def count(self, session: Session) -> None:
        await session.ensure("/counter")
        while True:
            data, stat = await session.get("/counter")
            try:
                await session.set("/counter", b"%d" % (int(data or b"0") + 1), stat.version)
                self.acked += 1
            except BadVersionError:
                pass
            except SessionLostError:
                self.unknown += 1
                raise
            await asyncio.sleep(0.001)

    async def lead(self, session: Session) -> None:
        while True:
            try:
                await session.create("/leader", self.name.encode(), ephemeral=True)
                while await session.exists("/leader"):
                    now_ns = time.monotonic_ns()
                    if session.is_current():
                        print(now_ns, session.id, file=self.leading)
                    await asyncio.sleep(0.001)
            except NodeExistsError:
                await asyncio.sleep(0.01)

    async def check_lost(self, session: Session, heard: list[SessionState]) -> None:
        assert heard == [SessionState.LOST], heard
        assert session.state is SessionState.LOST
        assert not session.is_current()
        with contextlib.suppress(SessionLostError):
            await session.create("/harm")
            raise AssertionError("a lost session made a node")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("directory")
    parser.add_argument("name")
    parser.add_argument("timeout_ms", type=int)
    parser.add_argument("--seal-bytes", type=int)
    parser.add_argument("--stop-before", choices=list(STOPS))
    parser.add_argument("--stop-after", choices=list(STOPS))
    parser.add_argument("--stop-count", type=int, default=1)
    arguments = parser.parse_args()
    if arguments.seal_bytes:
        LocalMachine.seal_bytes = arguments.seal_bytes
    where = arguments.stop_before or arguments.stop_after
    if where:
        stop_itself(where, bool(arguments.stop_after), arguments.stop_count)
    asyncio.run(Member(arguments.directory, arguments.name, arguments.timeout_ms).live())


if __name__ == "__main__":
    main()
