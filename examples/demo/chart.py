"""The picture of the demo: throughput and lag over time, as a PNG."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

from examples.demo.load import Sample

_INK, _WRITTEN, _PROCESSED, _KILL = "#22303c", "#1f77b4", "#2a9d5c", "#c0392b"
_WINDOW_S = 2.0


def written_rates(samples: Sequence[Sample]) -> list[tuple[float, float]]:
    """Time, and records written a second, over the last two seconds or so."""
    found: list[tuple[float, float]] = []
    first = 0
    for last, sample in enumerate(samples):
        while samples[first].at_s < sample.at_s - _WINDOW_S and first < last - 1:
            first += 1
        past_s = sample.at_s - samples[first].at_s
        if past_s > 0:
            found.append((sample.at_s, (sample.written - samples[first].written) / past_s))
    return found


def processed_rates(samples: Sequence[Sample]) -> list[tuple[float, float]]:
    """Time, and records processed a second since the time before.

    The group moves once per micro-batch. Its records were processed in all the time since the one before.
    """
    if not samples:
        return []
    moves = [samples[0]]
    for sample in samples[1:]:
        if sample.processed > moves[-1].processed:
            moves.append(sample)
    found = [(moves[0].at_s, 0.0)]
    for before, after in itertools.pairwise(moves):
        found.append((after.at_s, (after.processed - before.processed) / (after.at_s - before.at_s)))
    return [*found, (samples[-1].at_s, 0.0)]


def draw(samples: Sequence[Sample], killed_s: float | None, path: Path, title: str) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.ticker import FuncFormatter

    figure, (upper, lower) = pyplot.subplots(2, 1, figsize=(10, 6.2), sharex=True, layout="constrained")
    figure.suptitle(title, color=_INK, fontsize=13, x=0.01, ha="left")
    for rates, colour, name, style in (
        (written_rates(samples), _WRITTEN, "written to the topic", "default"),
        (processed_rates(samples), _PROCESSED, "processed by the pipeline", "steps-pre"),
    ):
        times, per_second = [at_s for at_s, _ in rates], [rate for _, rate in rates]
        upper.plot(times, per_second, color=colour, label=name, drawstyle=style)
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
    upper.legend(frameon=False, loc="lower right", bbox_to_anchor=(1, 1), ncols=2, borderaxespad=0)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
