"""How long something took: count, sum, and quantiles of what was recent.

Kafka keeps a sample of the last few minutes. Here the last minute is kept in six slices of ten seconds. Each slice
counts observations in buckets that are five percent wide, so a quantile is exact to a few percent, and many of them
take no more room than a few do.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence

from tidelog.metrics.families import Family, Values
from tidelog.metrics.text import number, series

SLICE_NS = 10_000_000_000
SLICES = 6
QUANTILES = ("0.50", "0.75", "0.95", "0.98", "0.99", "0.999")
"""Written as the JMX exporter's rules write Kafka's percentiles."""
_SHORTEST_MS = 0.005
_GROWTH = 1.05
_BUCKETS = 360
BOUNDS_MS = (0.0, *(_SHORTEST_MS * _GROWTH**power for power in range(_BUCKETS)))
"""The upper bounds of the buckets; the last is above three minutes."""
_DIGITS = 4
_MANY = 100
_STRIDE = 3
"""Of more observations at once every third is sorted into its bucket, and counts for three."""


class Summary:
    """Observations come in batches, in ms."""

    __slots__ = ("_now_ns", "_slices", "count", "total")

    def __init__(self, now_ns: Callable[[], int]) -> None:
        self.count = 0
        self.total = 0.0
        self._now_ns = now_ns
        self._slices: dict[int, list[int]] = {}
        """By the number of the slice: how many observations fell into each bucket."""

    def observe_all(self, values: Sequence[float]) -> None:
        if not values:
            return
        number = self._now_ns() // SLICE_NS
        tally = self._slices.get(number)
        if tally is None:
            self._forget_before(number - SLICES + 1)
            tally = self._slices[number] = [0] * (len(BOUNDS_MS) + 1)
        bounds, weight = BOUNDS_MS, 1 if len(values) < _MANY else _STRIDE
        for value in values if weight == 1 else values[::weight]:
            tally[bisect_left(bounds, value)] += weight
        self.count += len(values)
        self.total += sum(values)

    def observe(self, value: float) -> None:
        self.observe_all((value,))

    def _forget_before(self, number: int) -> None:
        for old in [known for known in self._slices if known < number]:
            del self._slices[old]

    def recent(self) -> list[list[int]]:
        """The tallies of the last minute."""
        self._forget_before(self._now_ns() // SLICE_NS - SLICES + 1)
        return list(self._slices.values())


def quantiles(summaries: Sequence[Summary]) -> list[float]:
    """Those of QUANTILES, over all that was observed within the last minute; not a number if nothing was."""
    tallies = [tally for summary in summaries for tally in summary.recent()]
    recent = [sum(counts) for counts in zip(*tallies, strict=True)]
    buckets, count = [(bucket, counted) for bucket, counted in enumerate(recent) if counted], sum(recent)
    return [_quantile(buckets, float(quantile) * count) for quantile in QUANTILES]


def _quantile(buckets: Sequence[tuple[int, int]], rank: float) -> float:
    """Where in its bucket the observation of this rank stands, if those of a bucket are spread evenly."""
    below = 0
    for bucket, count in buckets:
        if below + count >= rank:
            if bucket == 0:
                return 0.0
            low = BOUNDS_MS[bucket - 1]
            high = BOUNDS_MS[min(bucket, len(BOUNDS_MS) - 1)]
            return round(low + (high - low) * (rank - below) / count, _DIGITS)
        below += count
    return math.nan


class Summaries(Family):
    """Summaries by their labels."""

    kind = "summary"

    def __init__(self, name: str, help_text: str, labels: Values, now_ns: Callable[[], int]) -> None:
        super().__init__(name, help_text, labels)
        self._now_ns = now_ns
        self._summaries: dict[Values, list[Summary]] = {}
        """Several are shown together as one."""

    def of(self, *values: str) -> Summary:
        """The summary with these labels; it is made at the first call."""
        found = self._summaries.get(values)
        if found is None:
            found = self._summaries[values] = [Summary(self._now_ns)]
        return found[0]

    def together(self, parts: Sequence[Values], *values: str) -> None:
        """Show these summaries together under other labels too."""
        self._summaries[values] = [self.of(*part) for part in parts]

    def lines(self) -> Iterator[str]:
        for values, summaries in list(self._summaries.items()):
            labels = list(zip(self.labels, values, strict=True))
            for quantile, value in zip(QUANTILES, quantiles(summaries), strict=True):
                yield f"{series(self.name, [*labels, ('quantile', quantile)])} {number(value)}"
            yield f"{series(self.name + '_sum', labels)} {number(sum(summary.total for summary in summaries))}"
            yield f"{series(self.name + '_count', labels)} {sum(summary.count for summary in summaries)}"
