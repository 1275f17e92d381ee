"""What a broker counts and measures, and its text for Prometheus.

Names are Kafka's in snake case: kafka.network:type=RequestMetrics,name=LocalTimeMs,request=Produce is
kafka_network_request_metrics_local_time_ms{request="Produce"}.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol, TypeVar

TIME_BOUNDS_MS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0, 1000.0, 5000.0, 30000.0)

Labels = tuple[tuple[str, str], ...]


class Counter:
    """Only grows."""

    __slots__ = ("value",)
    kind = "counter"

    def __init__(self) -> None:
        self.value = 0

    def add(self, amount: int = 1) -> None:
        self.value += amount

    def lines(self, name: str, labels: Labels) -> list[str]:
        return [f"{name}{_braces(labels)} {self.value}"]


class Gauge:
    """Asked for its value when somebody looks, so that keeping it costs nothing."""

    __slots__ = ("read",)
    kind = "gauge"

    def __init__(self, read: Callable[[], float]) -> None:
        self.read = read

    def lines(self, name: str, labels: Labels) -> list[str]:
        return [f"{name}{_braces(labels)} {_number(self.read())}"]


class Histogram:
    """How often what is measured fell below each of some bounds."""

    __slots__ = ("_bounds", "counts", "total")
    kind = "histogram"

    def __init__(self, bounds: tuple[float, ...] = TIME_BOUNDS_MS) -> None:
        self._bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self._bounds, value)] += 1
        self.total += value

    def observe_all(self, values: Sequence[float]) -> None:
        counts, bounds = self.counts, self._bounds
        for value in values:
            counts[bisect_left(bounds, value)] += 1
        self.total += sum(values)

    @property
    def count(self) -> int:
        return sum(self.counts)

    def lines(self, name: str, labels: Labels) -> list[str]:
        found, below = [], 0
        for bound, count in zip((*self._bounds, float("inf")), self.counts, strict=True):
            below += count
            limit = "+Inf" if bound == float("inf") else f"{bound:g}"
            found.append(f"{name}_bucket{_braces((*labels, ('le', limit)))} {below}")
        found.append(f"{name}_sum{_braces(labels)} {_number(self.total)}")
        found.append(f"{name}_count{_braces(labels)} {below}")
        return found


class Metric(Protocol):
    kind: str

    def lines(self, name: str, labels: Labels) -> list[str]: ...


M = TypeVar("M", bound=Metric)


class Metrics:
    """All metrics of one process, by name and labels."""

    def __init__(self) -> None:
        self._families: dict[str, dict[Labels, Metric]] = {}
        self._before_reading: list[Callable[[], None]] = []

    def counter(self, name: str, **labels: str) -> Counter:
        return self._add(name, labels, Counter())

    def histogram(self, name: str, **labels: str) -> Histogram:
        return self._add(name, labels, Histogram())

    def gauge(self, name: str, read: Callable[[], float], **labels: str) -> Gauge:
        return self._add(name, labels, Gauge(read))

    def _add(self, name: str, labels: Mapping[str, str], metric: M) -> M:
        """The one that is there already, if it is; a gauge is read anew through the later function."""
        family = self._families.setdefault(name, {})
        key = tuple(sorted(labels.items()))
        found = family.get(key)
        if found is None or isinstance(metric, Gauge):
            family[key] = metric
            return metric
        assert type(found) is type(metric), f"{name} is a {found.kind}"
        return found

    def before_reading(self, prepare: Callable[[], None]) -> None:
        """Called before each `text`: what is cheaper to count in one go is brought up to date then."""
        self._before_reading.append(prepare)

    def remove(self, name: str, **labels: str) -> None:
        family = self._families.get(name, {})
        family.pop(tuple(sorted(labels.items())), None)
        if not family:
            self._families.pop(name, None)

    def text(self) -> str:
        """In the format that Prometheus reads."""
        return "".join(f"{line}\n" for lines in self.families() for line in lines)

    def families(self) -> Iterator[list[str]]:
        """The lines of one name after the other; what comes or goes meanwhile may be there or not."""
        for prepare in self._before_reading:
            prepare()
            yield []
        for name in sorted(self._families):
            family = dict(self._families.get(name, {}))
            if family:
                lines = [f"# TYPE {name} {next(iter(family.values())).kind}"]
                for labels, metric in family.items():
                    lines += metric.lines(name, labels)
                yield lines


def _number(value: float) -> str:
    """With all its digits: a large sum that is rounded seems to stand still."""
    return str(int(value)) if float(value).is_integer() else repr(float(value))


def _braces(labels: Labels) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
