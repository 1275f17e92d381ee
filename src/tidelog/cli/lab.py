"""`tidelog lab`: whole clusters in a simulator, where a seed decides what happens and what goes wrong."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from tidelog.cli.commands import number, shortened
from tidelog.cli.lab_search import report, search
from tidelog.cli.lab_stories import list_stories, show

_LARGEST_SEED = 2**63 - 1
_MOST_SEEDS = 10_000_000
_MOST_JOBS = 256


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
    start, end = number(first, _LARGEST_SEED), number(last, _LARGEST_SEED)
    if not dash or start is None or end is None or end < start:
        raise click.BadParameter(f"{shortened(text)!r} is no range of seeds, as 0-999 is", ctx, option)
    if end - start >= _MOST_SEEDS:
        raise click.BadParameter(f"{text!r} are more than {_MOST_SEEDS} seeds; search them in parts", ctx, option)
    return range(start, end + 1)


@command.command()
@click.option(
    "--seed",
    type=click.IntRange(0, _LARGEST_SEED),
    metavar="N",
    help="Run this one, and print its digest.",
)
@click.option("--seeds", callback=_range, metavar="A-B", help="Run all of these, until one fails.")
@click.option("--keep-going", is_flag=True, help="With --seeds: do not stop at the first failure.")
@click.option(
    "--jobs", type=click.IntRange(1, _MOST_JOBS), default=1, show_default=True, help="With --seeds: so many processes."
)
@click.option(
    "--resume",
    is_flag=True,
    help="With --seeds: keep the results beside the traces, and leave out seeds that ran with the same code before.",
)
@click.option(
    "--trace",
    "directory",
    default=".",
    show_default=True,
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Where the trace of a failed run is written.",
)
def sim(seed: int | None, seeds: range | None, keep_going: bool, jobs: int, resume: bool, directory: Path) -> None:
    """Run real brokers and clients in a simulated world of faults, and check what is always true.

    A run is a seed: the same seed is the same run, event for event, on any machine and on Python 3.11 to 3.13.
    """
    if (seed is None) == (seeds is None):
        raise click.UsageError("either --seed N or --seeds A-B")
    silence_brokers()
    if seed is not None:
        sys.exit(_one(seed, directory))
    assert seeds is not None
    sys.exit(search(seeds, jobs=jobs, keep_going=keep_going, resume=resume, directory=directory))


def silence_brokers() -> None:
    """Under faults they have much to complain of; what happened stands in the trace."""
    from tidelog.lab.sweep import silence

    silence()


def _one(seed: int, directory: Path) -> int:
    from tidelog.lab.search import run

    outcome = run(seed)
    if outcome.broken is not None:
        click.echo(report(outcome, directory))
        return 1
    click.echo(
        f"seed {seed}: all rules held for {outcome.virtual_s:.1f} s of simulated time; "
        f"{len(outcome.trace)} events, digest {outcome.digest}"
    )
    return 0
