"""`tidelog lab`: whole clusters in a simulator, where a seed decides what happens and what goes wrong."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tidelog.cli.lab_stories import list_stories, show

if TYPE_CHECKING:
    from tidelog.lab.search import Outcome

_LAST_EVENTS = 30


@click.group()
def command() -> None:
    """Simulate whole clusters: search for what breaks them, or watch how they hold."""


command.add_command(list_stories)
command.add_command(show)


def _range(ctx: click.Context, option: click.Parameter, text: str | None) -> range | None:
    """A-B, both of them included."""
    if text is None:
        return None
    first, dash, last = text.partition("-")
    if not (dash and first.isdecimal() and last.isdecimal() and int(first) <= int(last)):
        raise click.BadParameter(f"{text!r} is no range of seeds, as 0-999 is", ctx, option)
    return range(int(first), int(last) + 1)


@command.command()
@click.option(
    "--seed", type=click.IntRange(min=0), metavar="N", help="Run this one, and print the digest of its trace."
)
@click.option("--seeds", callback=_range, metavar="A-B", help="Run all of these, until one fails.")
@click.option("--keep-going", is_flag=True, help="With --seeds: do not stop at the first failure.")
@click.option(
    "--trace",
    "directory",
    default=".",
    show_default=True,
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Where the trace of a failed run is written.",
)
def sim(seed: int | None, seeds: range | None, keep_going: bool, directory: Path) -> None:
    """Run real brokers and clients in a simulated world of faults, and check what is always true.

    A run is a seed: the same seed is the same run, event for event, on any machine.
    """
    if (seed is None) == (seeds is None):
        raise click.UsageError("either --seed N or --seeds A-B")
    silence_brokers()
    if seed is not None:
        sys.exit(_one(seed, directory))
    assert seeds is not None
    sys.exit(_many(seeds, keep_going, directory))


def silence_brokers() -> None:
    """Under faults they have much to complain of; what happened stands in the trace."""
    import logging

    logging.getLogger("tidelog").addHandler(logging.NullHandler())


def _one(seed: int, directory: Path) -> int:
    from tidelog.lab.search import run

    outcome = run(seed)
    if outcome.broken is not None:
        _report(outcome, directory)
        return 1
    click.echo(
        f"seed {seed}: all rules held for {outcome.virtual_s:.1f} s of simulated time; "
        f"{len(outcome.trace)} events, digest {outcome.digest}"
    )
    return 0


def _many(seeds: Sequence[int], keep_going: bool, directory: Path) -> int:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from tidelog.lab.search import run

    failed: list[int] = []
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        bar = progress.add_task("seeds", total=len(seeds))
        for seed in seeds:
            outcome = run(seed)
            progress.advance(bar)
            if outcome.broken is not None:
                failed.append(seed)
                _report(outcome, directory)
                progress.update(bar, description=f"seeds, {len(failed)} failed")
                if not keep_going:
                    break
    if not failed:
        click.echo(f"seeds {seeds[0]}-{seeds[-1]}: all rules held")
    elif keep_going:
        click.echo(f"failed: {', '.join(map(str, failed))}")
    return 1 if failed else 0


def _report(outcome: Outcome, directory: Path) -> None:
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
    click.echo("\n".join(lines))
