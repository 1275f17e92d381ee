"""How a bench measures, and how it tells."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Row:
    """One line of the table. `ratio` is ours against the peer's or against the bar's figure; larger is better, unless
    the bar is what it may be `at_most`. In another `unit` than times, it is our own figure, and the bar is too.
    A row without a bar is not judged. Its `columns` stand behind those that all tables have."""

    what: str
    ours: str
    peer: str
    ratio: float
    bar: float | None
    at_most: bool = False
    unit: str = "x"
    columns: Mapping[str, str] = field(default_factory=dict)

    @property
    def met(self) -> bool:
        if self.bar is None:
            return True
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
    further = list(dict.fromkeys(name for row in rows for name in row.columns))
    names = ["what", "tidelog", "peer", "ratio", "bar", "", *further]
    cells = [
        names,
        ["---"] * len(names),
        *([*_judged(row), *(row.columns.get(name, "") for name in further)] for row in rows),
    ]
    return "\n".join("|" + "|".join(_cell(text) for text in line) + "|" for line in cells)


def _judged(row: Row) -> list[str]:
    told = [row.what, row.ours, row.peer, f"{row.ratio:.2f} {row.unit}"]
    if row.bar is None:
        return [*told, "", ""]
    bar = f"{'<=' if row.at_most else '>='} {row.bar:g} {row.unit}"
    return [*told, bar, "met" if row.met else "MISSED"]


def _cell(text: str) -> str:
    return text if text == "---" else f" {text} " if text else " "
