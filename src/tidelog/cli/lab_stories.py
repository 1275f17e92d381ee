"""`tidelog lab list` and `tidelog lab show`: failure stories that a person can watch."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from tidelog.lab.frames import Strip

_PACE_S = 3.0


@click.command("list")
def list_stories() -> None:
    """The stories that `show` can tell."""
    from tidelog.lab.telling import STORIES

    width = max(map(len, STORIES))
    for story in STORIES.values():
        also = "  (--truncation hw|epoch)" if story.has_old_rule else ""
        click.echo(f"{story.name:{width}}  {story.title}{also}")


@click.command()
@click.argument("name")
@click.option(
    "--truncation",
    type=click.Choice(["hw", "epoch"]),
    help="The rule by which a follower cuts its log: the one of before leader epochs, or the one that brokers have.",
)
@click.option("--step", is_flag=True, help="Wait for Enter after each step.")
@click.option("--fast", is_flag=True, help="Do not wait between steps. So it is anyway where no terminal is.")
@click.option(
    "--svg",
    "picture_file",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write one picture of all steps instead.",
)
def show(name: str, truncation: str | None, step: bool, fast: bool, picture_file: Path | None) -> None:
    """Tell a story: real brokers in a simulated world, drawn step by step.

    Boxes are records, solid below the high watermark and dashed above it; or partitions, solid where a member of a
    group reads them. Each step says what happened, and by which rule.
    """
    strip = _told(name, truncation, step, fast)
    if picture_file is not None:
        from tidelog.lab.picture import svg

        picture_file.write_text(svg(strip), encoding="utf-8")
        click.echo(f"{len(strip.frames)} steps of {name} are in {picture_file}")
        return
    is_seen = sys.stdout.isatty() and sys.stdin.isatty()
    _draw(strip, waits_for_key=step and is_seen, pace_s=_PACE_S if is_seen and not fast else 0.0)


def _told(name: str, truncation: str | None, step: bool, fast: bool) -> Strip:
    from tidelog.cli.lab import silence_brokers
    from tidelog.lab.telling import STORIES, tell

    if step and fast:
        raise click.UsageError("either --step or --fast")
    story = STORIES.get(name)
    if story is None:
        raise click.UsageError(f"there is no story {name!r}; the stories are {', '.join(STORIES)}")
    if truncation is not None and not story.has_old_rule:
        raise click.UsageError(
            f"{name} does not depend on how logs are truncated; only these do: {_about_truncation()}"
        )
    silence_brokers()
    return tell(story, by_epoch=truncation != "hw")


def _about_truncation() -> str:
    from tidelog.lab.telling import STORIES

    return ", ".join(story.name for story in STORIES.values() if story.has_old_rule)


def _draw(strip: Strip, *, waits_for_key: bool, pace_s: float) -> None:
    import time

    from rich.console import Console
    from rich.text import Text

    from tidelog.lab.terminal import LegendDrawing, StepDrawing

    console = Console(highlight=False)
    console.print(Text(f"{strip.title}{', with ' if strip.variant else ''}{strip.variant}", "bold"))
    console.print(LegendDrawing(strip))
    for index in range(len(strip.frames)):
        if index and waits_for_key:
            console.input("[dim]Enter[/dim]")
        elif index and pace_s:
            time.sleep(pace_s)
        console.print(StepDrawing(strip, index))
