"""What commands say while they wait for the cluster, and when they give up.

The client core notes what keeps it in `client.waits.Waits`. Beside each command that talks to a cluster runs `Watch`.
It says on standard error what the command has waited for longest and why: after 2 s, and again when that has changed.
"""

from __future__ import annotations

import asyncio
from enum import Enum, auto
from typing import TYPE_CHECKING

import click

from tidelog.errors import ErrorCode, TidelogError

if TYPE_CHECKING:
    from tidelog.client.waits import Wait, Waits

TELL_AFTER_S = 2.0
_OVER_AFTER_S = 2.5
"""By then the next wait would have been told, if one had begun when the last one ended."""
_AGAIN_AFTER_S = 10.0
"""Two causes may take turns; each is told again only so long after it was told."""
_LOOK_S = 0.2
_GRACE_S = 1.5
"""Calls end by themselves at the deadline, with a better message. Only what does not is ended so much later."""

_MEANINGS = {
    ErrorCode.NOT_ENOUGH_REPLICAS: "fewer replicas are in sync than the topic's min.insync.replicas",
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: "fewer replicas are in sync than the topic's min.insync.replicas",
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: "the coordinator is reading its partition of __consumer_offsets",
    ErrorCode.REBALANCE_IN_PROGRESS: "the members of the group are joining again",
    ErrorCode.INVALID_TOPIC_EXCEPTION: "a topic's name has up to 249 ASCII letters, digits, '.', '_' and '-'",
    ErrorCode.KAFKA_STORAGE_ERROR: "a log directory of the broker has failed",
}
_ALIVE = "`tidelog cluster describe` shows which brokers are alive and which partitions have no leader"
_IN_SYNC = (
    "`tidelog topics describe` shows which replicas are in sync; start their brokers, or lower min.insync.replicas"
)
_COORDINATORS = "`tidelog topics describe __consumer_offsets` shows its leaders and replicas; start their brokers"
_HINTS = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "see `tidelog topics list`, or make it with `tidelog topics create`",
    ErrorCode.TOPIC_ALREADY_EXISTS: "with --if-not-exists that is no error",
    ErrorCode.BROKER_NOT_AVAILABLE: "`tidelog cluster describe` shows the brokers and which of them are alive",
    ErrorCode.OFFSET_OUT_OF_RANGE: "--offset earliest starts with what is still there",
    ErrorCode.LEADER_NOT_AVAILABLE: _ALIVE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: _ALIVE,
    ErrorCode.NETWORK_EXCEPTION: _ALIVE,
    ErrorCode.REQUEST_TIMED_OUT: _ALIVE,
    ErrorCode.NOT_CONTROLLER: _ALIVE,
    ErrorCode.NOT_ENOUGH_REPLICAS: _IN_SYNC,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: _IN_SYNC,
    ErrorCode.COORDINATOR_NOT_AVAILABLE: _COORDINATORS,
    ErrorCode.NOT_COORDINATOR: _COORDINATORS,
}


class Ends(Enum):
    """What --timeout means for a command."""

    AS_A_WHOLE = auto()
    """The command ends when so much time has passed."""
    AFTER_A_WAIT = auto()
    """It may run for as long as it gets on, and ends when it has waited for one thing for so long."""
    BY_ITSELF = auto()
    """It has its own rule; each call ends after so long."""


def error_text(failure: BaseException) -> str:
    """A failure in one line: what it was, what its last cause means, and what to do."""
    from tidelog.client.errors import last_cause

    cause = last_cause(failure)
    parts = (_with_meaning(str(failure), cause), _hint(cause))
    return "; ".join(part for part in parts if part)


def wait_text(wait: Wait) -> str:
    """What is waited for, and why."""
    cause = _cause_text(wait)
    return cause if wait.what in cause else f"{wait.what}: {cause}"


def _cause_text(wait: Wait) -> str:
    """Why. If calls before have given up, what that had to do with time is left out."""
    from tidelog.client.errors import last_cause

    if isinstance(wait.cause, str):
        return wait.cause
    cause = last_cause(wait.cause)
    return _with_meaning(str(cause), cause)


def _hint(cause: BaseException | str) -> str | None:
    """What to do about it. A cause in words is that a broker does not answer."""
    from tidelog.client.errors import last_cause

    if isinstance(cause, str):
        return _ALIVE
    cause = last_cause(cause)
    return _HINTS.get(cause.code) if isinstance(cause, TidelogError) else None


def _with_meaning(told: str, cause: BaseException) -> str:
    """Where the broker itself says no more than a code, what that means is added."""
    meaning = _MEANINGS.get(cause.code) if isinstance(cause, TidelogError) else None
    return told if meaning is None or getattr(cause, "message", None) else f"{told}: {meaning}"


class Teller:
    """Decides what is said: a line after 2 s, another when the cause has changed, one when the wait is over. Pure."""

    def __init__(self) -> None:
        self._shown: str | None = None
        """The cause that was told last; None while nothing is waited for."""
        self._shown_s = 0.0
        self._began_s = 0.0
        self._ended_s: float | None = None
        self._told_s: dict[str, float] = {}

    def line(self, wait: Wait | None, now_s: float) -> str | None:
        """`wait` is what has kept the command for at least 2 s; None if nothing has."""
        if wait is None:
            return None if self._shown is None else self._over(now_s)
        self._ended_s = None
        if self._shown is None:
            self._began_s = wait.since_s
        cause = _cause_text(wait)
        if cause == self._shown or (self._shown is not None and not self._may_tell(cause, now_s)):
            return None
        self._shown, self._shown_s = cause, now_s
        self._told_s[cause] = now_s
        return f"waiting: {wait_text(wait)}"

    def _over(self, now_s: float) -> str | None:
        if self._ended_s is None:
            self._ended_s = now_s
        if now_s - self._ended_s < _OVER_AFTER_S:
            return None
        self._shown = None
        return f"the wait is over, after {self._ended_s - self._began_s:.0f} s"

    def _may_tell(self, cause: str, now_s: float) -> bool:
        told_s = self._told_s.get(cause)
        is_new = told_s is None or now_s - told_s >= _AGAIN_AFTER_S
        return is_new and now_s - self._shown_s >= TELL_AFTER_S


class Watch:
    """Runs beside a command: tells of its waits, and ends it when its time is over."""

    def __init__(self, waits: Waits, timeout_s: float | None, ends: Ends) -> None:
        self._waits = waits
        self._timeout_s = timeout_s
        self._ends = ends
        self._gave_up: str | None = None

    async def run(self, limit: asyncio.Timeout) -> None:
        """`limit` is what the command runs in; it is over at once when this gives up."""
        loop, teller = asyncio.get_running_loop(), Teller()
        while self._gave_up is None:
            await asyncio.sleep(_LOOK_S)
            now_s = loop.time()
            line = teller.line(self._waits.longest(now_s, TELL_AFTER_S), now_s)
            if line is not None:
                click.echo(line, err=True)
            self._gave_up = self._over(now_s)
        limit.reschedule(loop.time())

    def _over(self, now_s: float) -> str | None:
        """What is said at the end, if the time is over."""
        if self._timeout_s is None or self._ends is Ends.BY_ITSELF:
            return None
        deadline_s = self._waits.deadline_s
        if self._ends is Ends.AS_A_WHOLE:
            is_over = deadline_s is not None and now_s >= deadline_s + _GRACE_S
            wait = self._waits.longest(now_s, 0.0) if is_over else None
        else:
            wait = self._waits.longest(now_s, self._timeout_s)
            is_over = wait is not None
        if not is_over:
            return None
        told = f"gave up after {self._timeout_s:g} s (--timeout)"
        if wait is None:
            return told
        return "; ".join(part for part in (f"{told}: {wait_text(wait)}", _hint(wait.cause)) if part)

    @property
    def gave_up(self) -> str | None:
        """Why the command was ended; None if it was not."""
        return self._gave_up
