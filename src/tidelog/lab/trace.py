"""What happened in a run, and when: the thing two runs of one seed must agree on."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple


class Event(NamedTuple):
    """One line of a trace. `step` counts the callbacks run so far, so a run that takes another path shows at once."""

    time_ns: int
    step: int
    text: str

    def __str__(self) -> str:
        return f"{self.time_ns / 1e9:12.6f} {self.step:8d} {self.text}"


class Trace:
    """The events of one run in their order. Details are kept as they are and made into text when somebody reads."""

    def __init__(self) -> None:
        self._events: list[tuple[int, int, tuple[object, ...]]] = []

    def record(self, time_ns: int, step: int, *details: str | int) -> None:
        self._events.append((time_ns, step, details))

    def __len__(self) -> int:
        return len(self._events)

    def __iter__(self) -> Iterator[Event]:
        return map(_event, self._events)

    def last(self, count: int) -> list[Event]:
        """What a person wants to see first after a failure."""
        return [_event(raw) for raw in self._events[-count:]]

    def count(self, kind: str) -> Counter[str]:
        """How often each thing of a kind happened: the first detail is the kind, the second the thing."""
        return Counter(str(details[1]) for _, _, details in self._events if details[0] == kind)

    def digest(self) -> str:
        """Equal for equal runs, on every machine and under every PYTHONHASHSEED."""
        sha = hashlib.sha256()
        for event in self:
            sha.update(f"{event.time_ns} {event.step} {event.text}\n".encode())
        return sha.hexdigest()


def _event(raw: tuple[int, int, tuple[object, ...]]) -> Event:
    time_ns, step, details = raw
    return Event(time_ns, step, " ".join(map(str, details)))
