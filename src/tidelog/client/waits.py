"""What a client waits for at this moment, and why. Pure: the client prints nothing, a command looks here.

The parts of the client core note here what keeps them: an attempt that failed and will be made again (`failed`, until
`over`), and a request or a connection that a broker has not answered yet (`unanswered`).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import NamedTuple

_LAST_ANSWER_MS = 1_000.0
"""A request that is sent just before the deadline gets this long. Else its timeout would hide the cause before it."""


class Wait(NamedTuple):
    """One thing that a client waits for."""

    what: str
    """As error messages begin: `topic orders`. Empty if the cause says it all."""
    cause: BaseException | str
    """The last failure, or what has not happened yet. Empty while the first attempt is under way."""
    since_s: float
    """On the loop's clock: when the first attempt began."""


class Waits:
    """All waits of one client. Times are those of the event loop that the client runs on.

    Always: what has succeeded, failed for good or was cancelled is not in it.
    """

    def __init__(self) -> None:
        self.deadline_s: float | None = None
        """When all calls of the client end at the latest; None: each call has only a time of its own."""
        self._timeout_ms = 0.0
        self._begun: dict[Hashable, Wait] = {}
        self._unanswered: dict[int, Wait] = {}
        self._numbers = count()

    # What the client core notes

    def begins(self, key: Hashable, what: str, now_s: float) -> None:
        """The first attempt begins."""
        self._begun[key] = Wait(what, "", now_s)

    def failed(self, key: Hashable, what: str, cause: BaseException | str, since_s: float) -> None:
        """It failed, or has not happened, and is tried again. The first call for a key says since when."""
        before = self._begun.get(key)
        self._begun[key] = Wait(what, cause, since_s if before is None else before.since_s)

    def over(self, key: Hashable) -> None:
        """It succeeded, or is not tried again. The key need not be known."""
        self._begun.pop(key, None)

    @contextmanager
    def unanswered(self, cause: str, now_s: float) -> Iterator[None]:
        """While this is entered, something was asked of a broker; `cause` says who does not answer what."""
        number = self.asked(cause, now_s)
        try:
            yield
        finally:
            self.answered(number)

    def asked(self, cause: str, now_s: float) -> int:
        """As `unanswered`, for an answer that comes as a callback; the number is what `answered` takes."""
        number = next(self._numbers)
        self._unanswered[number] = Wait("", cause, now_s)
        return number

    def answered(self, number: int) -> None:
        self._unanswered.pop(number, None)

    # The deadline of all calls

    def end_all(self, timeout_ms: float, now_s: float) -> None:
        """All calls of the client end so long from now."""
        self.deadline_s = now_s + timeout_ms / 1000
        self._timeout_ms = timeout_ms

    def bounds(self, timeout_ms: float, now_s: float) -> tuple[float, float]:
        """When a call ends that begins now and may take so long; and how long, in ms, whoever set the limit said."""
        deadline_s = now_s + timeout_ms / 1000
        if self.deadline_s is None or deadline_s <= self.deadline_s:
            return deadline_s, timeout_ms
        return self.deadline_s, self._timeout_ms

    def patience_ms(self, timeout_ms: float, now_s: float) -> float:
        """How long to wait for one answer, which would be `timeout_ms` without the deadline of all calls."""
        if self.deadline_s is None:
            return timeout_ms
        return min(timeout_ms, max((self.deadline_s - now_s) * 1000, _LAST_ANSWER_MS))

    # What is told

    def longest(self, now_s: float, at_least_s: float) -> Wait | None:
        """What has been waited for longest, if that is so long.

        A broker that has not answered for so long is a newer cause than the failure before it.
        """
        began_by_s = now_s - at_least_s
        begun = _oldest(self._begun.values(), began_by_s)
        unanswered = _oldest(self._unanswered.values(), began_by_s)
        if begun is None or unanswered is None:
            return unanswered or _oldest((wait for wait in self._begun.values() if wait.cause), began_by_s)
        return Wait(begun.what, unanswered.cause, min(begun.since_s, unanswered.since_s))


class OwnWaits:
    """The waits of one producer or one reader, under keys of its own. All of them end with it."""

    def __init__(self, waits: Waits) -> None:
        self._waits = waits
        self._causes: dict[Hashable, BaseException | str] = {}

    def failed(self, key: Hashable, what: str, cause: BaseException | str, since_s: float) -> None:
        self._causes[key] = cause
        self._waits.failed((self, key), what, cause, since_s)

    def over(self, key: Hashable) -> None:
        if self._causes.pop(key, None) is not None:
            self._waits.over((self, key))

    def all_over(self, keys: Iterable[Hashable]) -> None:
        """For each of many, most of which do not wait."""
        if self._causes:
            for key in keys:
                self.over(key)

    def last(self, key: Hashable) -> BaseException | None:
        """The failure that was noted last, unless it is over."""
        cause = self._causes.get(key)
        return None if isinstance(cause, str) else cause

    def clear(self) -> None:
        self.all_over(list(self._causes))


def _oldest(waits: Iterable[Wait], began_by_s: float) -> Wait | None:
    oldest = min(waits, key=lambda wait: wait.since_s, default=None)
    return oldest if oldest is not None and oldest.since_s <= began_by_s else None
