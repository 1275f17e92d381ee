"""How `tidelog lab sim --seeds` searches: a bar while it runs, and a summary by fault and by rule."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tidelog.cli.commands import interruptible

if TYPE_CHECKING:
    from rich.console import Console

    from tidelog.lab.search import Outcome
    from tidelog.lab.sweep import Summary

_LAST_EVENTS = 30
_MANY = 20
"""From so many seeds on a summary is worth its lines."""


def search(seeds: Sequence[int], *, jobs: int, keep_going: bool, resume: bool, directory: Path) -> int:
    """The exit status: 1 if a rule was broken."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from tidelog.lab.sweep import Journal, Summary, run_all

    interruptible()
    summary, journal = Summary(), Journal(directory)
    known = {result.seed: result for result in journal.results() if result.seed in seeds} if resume else {}
    for result in known.values():
        summary.add(result)
    left = [seed for seed in seeds if seed not in known]
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with (
        closing(run_all(left, jobs, directory, report)) as results,
        Progress(*columns, console=Console(stderr=True)) as progress,
    ):
        bar = progress.add_task("seeds", total=len(seeds), completed=len(known))
        for result in results:
            summary.add(result)
            if resume:
                journal.add(result)
            progress.advance(bar)
            if result.broken is not None:
                click.echo(result.report)
                progress.update(bar, description=f"seeds, {len(summary.failed)} failed")
                if not keep_going:
                    break
    if len(seeds) >= _MANY or resume:
        _print(summary, Console())
    if not summary.failed:
        click.echo(f"seeds {seeds[0]}-{seeds[-1]}: all rules held")
    elif keep_going:
        click.echo(f"failed: {', '.join(map(str, summary.failed))}")
    return 1 if summary.failed else 0


def report(outcome: Outcome, directory: Path) -> str:
    """The seed, the rule, how it was broken, what happened last; all that happened goes to a file."""
    directory.mkdir(parents=True, exist_ok=True)
    file = directory / f"seed-{outcome.seed}.trace"
    with file.open("w", encoding="utf-8") as out:
        out.writelines(f"{event}\n" for event in outcome.trace)
    lines = [
        f"seed {outcome.seed} broke a rule: {outcome.broken}",
        f"  {outcome.what}",
        f"  plan: {outcome.plan}",
        "the last events:",
        *(str(event) for event in outcome.trace.last(_LAST_EVENTS)),
        f"the whole trace: {file}",
        f"again: tidelog lab sim --seed {outcome.seed}",
    ]
    return "\n".join(lines)


def _print(summary: Summary, console: Console) -> None:
    from rich.table import Table

    faults = Table("Fault", "Seeds", "Times", "Effects seen")
    for fault in sorted(summary.faults):
        counts = (summary.runs_with[fault], summary.faults[fault], summary.effects[fault])
        faults.add_row(fault, *map(str, counts))
    console.print(faults)
    rules = Table("Rule broken", "Seeds")
    for rule, seeds in sorted(summary.broken.items()):
        rules.add_row(rule, ", ".join(map(str, sorted(seeds))))
    if summary.broken:
        console.print(rules)
    if summary.seeds:
        longest_s, seed = summary.longest
        console.print(
            f"{summary.seeds} seeds, {len(summary.failed)} failed; {summary.cpu_s / summary.seeds:.2f} s of CPU for "
            f"each, at most {longest_s:.1f} s (seed {seed}); {summary.virtual_s / 3600:.1f} h of simulated time"
        )
