"""How a bench measures, and how it tells."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """One line of the table. `ratio` is ours against the peer's or against the bar's figure; larger is better, unless
    the bar is what it may be `at_most`. In another `unit` than times, it is our own figure, and the bar is too."""

    what: str
    ours: str
    peer: str
    ratio: float
    bar: float
    at_most: bool = False
    unit: str = "x"

    @property
    def met(self) -> bool:
        return self.ratio <= self.bar if self.at_most else self.ratio >= self.bar


def seconds(work: Callable[[], object]) -> float:
    """One timed call, the garbage collector kept out of it."""
    gc.collect()
    gc.disable()
    try:
        start = time.perf_counter()
        work()
        return time.perf_counter() - start
    finally:
        gc.enable()


def alternate(ours: Callable[[], object], peer: Callable[[], object], rounds: int = 7) -> tuple[float, float]:
    """Median seconds of each, taken in turns so that both meet the same noise; one unmeasured turn first."""
    ours(), peer()
    pairs = [(seconds(ours), seconds(peer)) for _ in range(rounds)]
    return statistics.median(a for a, _ in pairs), statistics.median(b for _, b in pairs)


def markdown(rows: list[Row]) -> str:
    lines = ["| what | tidelog | peer | ratio | bar | |", "|---|---|---|---|---|---|"]
    lines += [
        f"| {r.what} | {r.ours} | {r.peer} | {r.ratio:.2f} {r.unit} | {'<=' if r.at_most else '>='} {r.bar:g} {r.unit} "
        f"| {'met' if r.met else 'MISSED'} |"
        for r in rows
    ]
    return "\n".join(lines)
