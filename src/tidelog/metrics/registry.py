"""All metrics of one process, and the page that shows them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from tidelog.metrics.families import GAUGE, Counter, Counters, Family, Found, FoundSeries, Gauges, Totals
from tidelog.metrics.summary import Summaries

PIECE = 250
"""Lines of the page that are made in one go, with those that are left out."""

F = TypeVar("F", bound=Family)


class Metrics:
    """Families by name. Who declares a name again, with the same labels, gets the family that is there."""

    def __init__(self) -> None:
        self._families: dict[str, Family] = {}
        self._before_reading: list[Callable[[], Iterator[None] | None]] = []

    # Declaring

    def counter(self, name: str, help_text: str) -> Counter:
        return self.counters(name, help_text).of()

    def counters(self, name: str, help_text: str, *labels: str) -> Counters:
        return self._declare(Counters(name, help_text, labels))

    def total(self, name: str, help_text: str, read: Callable[[], float]) -> None:
        """A counter whose value is kept elsewhere."""
        self._declare(Totals(name, help_text, ())).add(read)

    def gauge(self, name: str, help_text: str, read: Callable[[], float]) -> None:
        self.gauges(name, help_text).add(read)

    def gauges(self, name: str, help_text: str, *labels: str) -> Gauges:
        return self._declare(Gauges(name, help_text, labels))

    def summaries(self, name: str, help_text: str, *labels: str, now_ns: Callable[[], int]) -> Summaries:
        return self._declare(Summaries(name, help_text, labels, now_ns))

    def series(
        self,
        name: str,
        help_text: str,
        labels: tuple[str, ...],
        find: Callable[[], Iterable[Found | None]],
        kind: str = GAUGE,
    ) -> None:
        """Series that are found when the page is made. Other work goes on while they are: what `find` walks may
        change, so it walks a copy, and where it finds nothing for long it gives None."""
        self._declare(FoundSeries(name, help_text, labels, find, kind))

    def _declare(self, family: F) -> F:
        found = self._families.setdefault(family.name, family)
        assert type(found) is type(family), f"{family.name} is a {found.shown_kind}"
        assert found.labels == family.labels, f"{family.name} has the labels {found.labels}"
        return found

    def before_reading(self, prepare: Callable[[], Iterator[None] | None]) -> None:
        """Called before a page is made: what is cheaper to count in one go is brought up to date then. An iterator is
        walked in pieces, and other work goes on in between."""
        self._before_reading.append(prepare)

    # Reading

    @property
    def families(self) -> list[Family]:
        """By name."""
        return [self._families[name] for name in sorted(self._families)]

    def text(self) -> str:
        """The whole page in one go."""
        return "".join(f"{line}\n" for piece in self.pieces() for line in piece)

    def pieces(self) -> Iterator[list[str]]:
        """The lines of the page; a family without series is left out. Some pieces are empty: work was done for them."""
        for prepare in list(self._before_reading):
            for _ in prepare() or ():
                yield []
            yield []
        for family in self.families:
            lines, is_begun = [], False
            for count, line in enumerate(family.lines(), 1):
                if line:
                    lines += [line] if is_begun else [*family.head(), line]
                    is_begun = True
                if count % PIECE == 0:
                    yield lines
                    lines = []
            if lines:
                yield lines
