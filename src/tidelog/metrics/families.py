"""The series of one name. They differ in the values of their labels."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import ClassVar, TypeAlias

from tidelog.metrics.text import check_names, number, series

COUNTER, GAUGE = "counter", "gauge"

Values: TypeAlias = tuple[str, ...]
"""Of the labels, in the order in which the family names them."""
Found: TypeAlias = tuple[Values, float]


class Family:
    """All series of one name."""

    kind: ClassVar[str]

    def __init__(self, name: str, help_text: str, labels: Values) -> None:
        check_names(name, help_text, labels)
        self.name = name
        self.help = help_text
        self.labels = labels

    @property
    def shown_kind(self) -> str:
        """As Prometheus calls it."""
        return self.kind

    def head(self) -> list[str]:
        return [f"# HELP {self.name} {self.help}", f"# TYPE {self.name} {self.shown_kind}"]

    def lines(self) -> Iterator[str]:
        """Series that come or go while the page is made may be in it or not. An empty line is none: something was
        looked at and is not shown."""
        raise NotImplementedError

    def series(self, values: Values) -> str:
        return series(self.name, zip(self.labels, values, strict=True))


class Counter:
    """Only grows."""

    __slots__ = ("_series", "value")

    def __init__(self, series: str) -> None:
        self.value = 0
        self._series = series

    def add(self, amount: int = 1) -> None:
        self.value += amount

    @property
    def line(self) -> str:
        return f"{self._series} {self.value}"


class Counters(Family):
    """Counters that their owners add to."""

    kind = COUNTER

    def __init__(self, name: str, help_text: str, labels: Values) -> None:
        super().__init__(name, help_text, labels)
        self._counters: dict[Values, Counter] = {}

    def of(self, *values: str) -> Counter:
        """The counter with these labels; it is made at the first call."""
        found = self._counters.get(values)
        if found is None:
            found = self._counters[values] = Counter(self.series(values))
        return found

    def lines(self) -> Iterator[str]:
        for counter in list(self._counters.values()):
            yield counter.line


class Gauges(Family):
    """Gauges are asked for their values when the page is made, so that keeping them costs nothing."""

    kind = GAUGE

    def __init__(self, name: str, help_text: str, labels: Values) -> None:
        super().__init__(name, help_text, labels)
        self._reads: dict[Values, Callable[[], float]] = {}

    def add(self, read: Callable[[], float], *values: str) -> None:
        """A gauge that is there already is read through `read` from now on."""
        self._reads[values] = read

    def lines(self) -> Iterator[str]:
        for values, read in list(self._reads.items()):
            yield f"{self.series(values)} {number(read())}"


class Totals(Gauges):
    """Counters whose values are kept elsewhere and are asked for when the page is made."""

    kind = COUNTER


class FoundSeries(Family):
    """Series that are found when the page is made, with their labels and values; None for what is not shown."""

    def __init__(
        self, name: str, help_text: str, labels: Values, find: Callable[[], Iterable[Found | None]], kind: str
    ) -> None:
        super().__init__(name, help_text, labels)
        self._find = find
        self._kind = kind

    @property
    def shown_kind(self) -> str:
        return self._kind

    def lines(self) -> Iterator[str]:
        for found in self._find():
            yield "" if found is None else f"{self.series(found[0])} {number(found[1])}"
