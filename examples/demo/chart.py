"""The picture of the demo: throughput and lag over time, as a PNG."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

from examples.demo.load import Sample

_INK, _WRITTEN, _PROCESSED, _KILL = "#22303c", "#1f77b4", "#2a9d5c", "#c0392b"
_WINDOW_S = 2.0


def rates(samples: Sequence[Sample]) -> list[tuple[float, float, float]]:
    """Time, records written a second, records processed a second; over the last two seconds or so."""
    found: list[tuple[float, float, float]] = []
    first = 0
    for last, sample in enumerate(samples):
        while samples[first].at_s < sample.at_s - _WINDOW_S and first < last - 1:
            first += 1
        past_s = sample.at_s - samples[first].at_s
        if past_s > 0:
            written = (sample.written - samples[first].written) / past_s
            found.append((sample.at_s, written, max(0.0, (sample.processed - samples[first].processed) / past_s)))
    return found


def draw(samples: Sequence[Sample], killed_s: float | None, path: Path, title: str) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.ticker import FuncFormatter

    figure, (upper, lower) = pyplot.subplots(2, 1, figsize=(10, 6.2), sharex=True, layout="constrained")
    figure.suptitle(title, color=_INK, fontsize=13, x=0.01, ha="left")
    times = [at_s for at_s, _, _ in rates(samples)]
    upper.plot(times, [written for _, written, _ in rates(samples)], color=_WRITTEN, label="written to the topic")
    upper.plot(times, [done for _, _, done in rates(samples)], color=_PROCESSED, label="processed by the pipeline")
    upper.set_ylabel("records per second")
    lags = [max(0, sample.written - sample.processed) for sample in samples]
    lower.fill_between([sample.at_s for sample in samples], lags, color=_WRITTEN, alpha=0.25, linewidth=0)
    lower.plot([sample.at_s for sample in samples], lags, color=_WRITTEN)
    lower.set_ylabel("lag of the pipeline, records")
    lower.set_xlabel("seconds since the first order")
    for axes in (upper, lower):
        axes.set_ylim(bottom=0)
        axes.set_xlim(left=0)
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
        axes.grid(axis="y", color="#dddddd", linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
        if killed_s is not None:
            axes.axvline(killed_s, color=_KILL, linestyle="--", linewidth=1)
    if killed_s is not None:
        upper.annotate(
            " kill -9 of a leader", (killed_s, 1), xycoords=("data", "axes fraction"), color=_KILL, va="top", fontsize=9
        )
    upper.legend(frameon=False, loc="upper right")
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def longest_pause_s(samples: Sequence[Sample]) -> float:
    """How long the topic did not grow, at most, before it was full."""
    last = samples[-1].written if samples else 0
    growing = [sample for sample in samples if sample.written < last]
    pause = longest = 0.0
    for before, after in itertools.pairwise(growing):
        pause = pause + after.at_s - before.at_s if after.written == before.written else 0.0
        longest = max(longest, pause)
    return longest
