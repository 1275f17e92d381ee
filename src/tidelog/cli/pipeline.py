"""`tidelog pipeline`: projects of Spark Declarative Pipelines whose tables read topics and whose sinks write them."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tidelog.cli.commands import interruptible
from tidelog.cli.on_cluster import (
    DEFAULT_BOOTSTRAP,
    checked_bootstrap,
    given_timeout_s,
    on_cluster,
    run_until_interrupted,
    timeout_option,
)
from tidelog.cli.output import json_option, print_json, print_rows
from tidelog.client.addresses import Address, parse_bootstrap
from tidelog.errors import TidelogError
from tidelog.pipeline.errors import PipelineError

if TYPE_CHECKING:
    from tidelog.client.cluster import Cluster
    from tidelog.pipeline.checkpoints import FlowCheckpoint
    from tidelog.pipeline.project import Project
    from tidelog.types import Offset, TopicPartition

_PER_SECOND = 4
_INTERRUPTED = 130
_PATIENCE_S = 10
"""For brokers, where they are not what it is about: what the journal and the checkpoints know is shown without them."""


@click.group("pipeline")
def command() -> None:
    """Make and run data pipelines over topics, on Spark."""


def _servers(ctx: click.Context, parameter: click.Parameter, text: str | None) -> str | None:
    if text is not None:
        try:
            checked_bootstrap(text)
        except ValueError as failure:
            raise click.BadParameter(str(failure)) from failure
    return text


def bootstrap_option(**attributes: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    return click.option(
        "--bootstrap",
        "--bootstrap-server",
        "-b",
        "bootstrap",
        metavar="HOST:PORT",
        envvar="TIDELOG_BOOTSTRAP",
        show_envvar=True,
        callback=_servers,
        **attributes,
    )


spec_option = click.option(
    "--spec",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="The project's spark-pipeline.yml; by default the one of this directory, or of one above it.",
)
master_option = click.option(
    "--master",
    default="local[*]",
    show_default=True,
    metavar="URL",
    help="Where Spark runs: local[N] on this machine, spark://HOST:PORT on a cluster.",
)
end_option = timeout_option("End it after so long. What it has processed until then stays processed.")
here_option = bootstrap_option(help="A broker; by default what the project's spec says.")


@command.command()
@click.argument("name")
@bootstrap_option(default=DEFAULT_BOOTSTRAP, show_default=True, help="A broker of the cluster that it will read.")
def init(name: str, bootstrap: str) -> None:
    """Make a project in a new directory NAME: a topic of orders, counted by the minute, to be changed at will."""
    from tidelog.pipeline.project import create
    from tidelog.pipeline.templates import TOPICS

    with _told():
        for file in create(Path.cwd(), name, bootstrap):
            click.echo(f"made {file.relative_to(Path.cwd().resolve())}")
    click.echo(f"\nIt reads and writes the topics {', '.join(TOPICS)}; make those that are not there:")
    for topic in TOPICS:
        click.echo(f"  tidelog topics create {topic} --if-not-exists --bootstrap {bootstrap}")
    click.echo(f"then:\n  cd {name}\n  tidelog pipeline run")


@command.command()
@spec_option
@master_option
@here_option
@end_option
@click.option("--full-refresh", multiple=True, metavar="TABLE", help="Compute this table anew; repeatable.")
@click.option("--full-refresh-all", is_flag=True, help="Compute all tables anew.")
def run(
    spec: Path | None, master: str, bootstrap: str | None, full_refresh: tuple[str, ...], full_refresh_all: bool
) -> None:
    """Process all that is in the topics now, then end. The next run goes on from there."""
    if full_refresh and full_refresh_all:
        raise click.UsageError("pass --full-refresh or --full-refresh-all, not both")
    _run(spec, master, bootstrap, full_refresh=full_refresh, full_refresh_all=full_refresh_all)


@command.command("dry-run")
@spec_option
@master_option
@here_option
@end_option
def dry_run(spec: Path | None, master: str, bootstrap: str | None) -> None:
    """Let Spark check the project, its tables, columns and options, without reading or writing anything."""
    _run(spec, master, bootstrap, dry=True)
    click.echo("the pipeline is valid")


@command.command()
@spec_option
@here_option
@timeout_option("How long a broker may take to answer when it is asked for the lag. Without it 10 s.")
@json_option
def status(spec: Path | None, bootstrap: str | None, as_json: bool) -> None:
    """Show what the last run did, or the present one does, and how far its streams are behind the topics now."""
    from tidelog.pipeline.checkpoints import read_checkpoints
    from tidelog.pipeline.journal import read_journal
    from tidelog.pipeline.run import replayed
    from tidelog.pipeline.status import positions, state_of, status_row

    with _told():
        project = _project(spec, bootstrap)
    last = replayed(read_journal(project.journal))
    found = positions(last, [] if project.checkpoints is None else read_checkpoints(project.checkpoints))
    try:
        ends, unknown = _ends(project, found), None
    except TidelogError as failure:
        ends, unknown = {}, f"the lag is not known: {failure}"
    rows = [status_row(last, position, ends) for position in found]
    problems = [f"flow {position.flow}: {position.problem}" for position in found if position.problem is not None]
    state = state_of(last)
    if as_json:
        known = {"pipeline": project.name, "state": state, "failure": last.failure, "flows": rows}
        extra = {"lag_unknown": unknown, "problems": problems}
        print_json({**known, **{name: told for name, told in extra.items() if told}})
        return
    title = f"pipeline {project.name}  {state}"
    if rows:
        print_rows(rows, as_json=False, title=title)
    else:
        click.echo(f"{title}\nno flow has run yet")
    for told in (last.failure, unknown, *problems):
        if told is not None:
            click.echo(told)


# What they share


@contextlib.contextmanager
def _told() -> Iterator[None]:
    """What fails is said in one line, and the command exits with 1; Ctrl-C says nothing."""
    interruptible()
    try:
        yield
    except TidelogError as failure:
        raise click.ClickException(str(failure)) from failure
    except _TimeIsOverError as over:
        raise click.ClickException(f"not done after {over.after_s:g} s") from None
    except KeyboardInterrupt:
        raise SystemExit(_INTERRUPTED) from None


class _TimeIsOverError(BaseException):
    """Like KeyboardInterrupt no Exception: what Spark's client catches goes on."""

    def __init__(self, after_s: float) -> None:
        super().__init__(after_s)
        self.after_s = after_s


class _Alarm:
    """Interrupts what takes longer than so many seconds, as Ctrl-C would, until it is disarmed."""

    def __init__(self, timeout_s: float | None, begun_s: float) -> None:
        self._timeout_s = timeout_s
        if timeout_s is not None:
            signal.signal(signal.SIGALRM, self._interrupt)
            signal.setitimer(signal.ITIMER_REAL, max(timeout_s - (time.monotonic() - begun_s), 0.001))

    def _interrupt(self, number: int, frame: object) -> None:
        assert self._timeout_s is not None
        raise _TimeIsOverError(self._timeout_s)

    def disarm(self) -> None:
        if self._timeout_s is not None:
            signal.setitimer(signal.ITIMER_REAL, 0)


def _project(spec: Path | None, bootstrap: str | None) -> Project:
    from tidelog.pipeline.project import BOOTSTRAP, find_spec, read_project

    try:
        project = read_project(spec if spec is not None else find_spec(Path.cwd()))
    except RecursionError as failure:
        raise PipelineError(f"{spec} is nested too deeply") from failure
    except ModuleNotFoundError as failure:
        raise PipelineError(f"{failure.name} is missing: pip install 'tidelog[spark]'") from failure
    if bootstrap is None:
        return project
    return project._replace(configuration={**project.configuration, BOOTSTRAP: bootstrap})


def _run(spec: Path | None, master: str, bootstrap: str | None, *, dry: bool = False, **refresh: Any) -> None:
    from rich.console import Console
    from rich.live import Live

    from tidelog.pipeline.display import WIDTH_WITHOUT_TERMINAL, run_table
    from tidelog.pipeline.lock import locked
    from tidelog.pipeline.needs import check_needs
    from tidelog.pipeline.running import run_pipeline
    from tidelog.pipeline.starting import spark_connect

    begun_s = time.monotonic()
    with _told():
        check_needs()
        project = _project(spec, bootstrap)
        console = Console()
        if not console.is_terminal:
            console.width = WIDTH_WITHOUT_TERMINAL
        with contextlib.ExitStack() as stack:
            with console.status(f"locking pipeline {project.name}"):
                held = [stack.enter_context(locked(path, project.name)) for path in project.locks]
            if not dry:
                _meet_brokers(project)
            alarm = _Alarm(given_timeout_s(), begun_s)  # the brokers were asked with a time of their own
            with console.status(f"starting Spark on {master}; its log is {project.spark_log}"):
                session = stack.enter_context(spark_connect(project, master, held))
            stack.callback(alarm.disarm)  # before Spark is ended, which takes its time
            if dry:
                run_pipeline(project, session, master, dry=True)
                return
            with Live(console=console, refresh_per_second=_PER_SECOND) as live:
                run_pipeline(project, session, master, on_change=lambda seen: live.update(run_table(seen)), **refresh)


def _bootstrap_of(project: Project) -> list[Address]:
    from tidelog.pipeline.project import BOOTSTRAP

    try:
        return parse_bootstrap(project.configuration.get(BOOTSTRAP, DEFAULT_BOOTSTRAP))
    except ValueError as failure:
        raise PipelineError(f"{BOOTSTRAP} in {project.spec}: {failure}") from failure


def _meet_brokers(project: Project) -> None:
    """Brokers that are away are told here, and at once; Spark would wait a minute and say less."""
    from tidelog.pipeline.project import BOOTSTRAP

    async def met(cluster: Cluster) -> None:
        pass

    if BOOTSTRAP in project.configuration:
        on_cluster(_bootstrap_of(project), met)


def _ends(project: Project, positions: list[FlowCheckpoint]) -> dict[TopicPartition, Offset]:
    """Of the partitions that still exist; TidelogError, soon, if the brokers do not tell."""
    from tidelog.client.cluster import Cluster
    from tidelog.client.errors import UnknownTopicError
    from tidelog.client.offsets import LATEST, list_offsets
    from tidelog.client.settings import ClientSettings
    from tidelog.host.clock import system_random

    wanted = sorted({partition for position in positions for partition in position.offsets})
    if not wanted:
        return {}
    patience_ms = max(round((given_timeout_s() or _PATIENCE_S) * 1000), 1)
    patience = ClientSettings(
        request_timeout_ms=patience_ms,
        default_api_timeout_ms=patience_ms,
        socket_connection_setup_timeout_ms=patience_ms,
    )
    bootstrap = _bootstrap_of(project)

    async def ask() -> dict[TopicPartition, Offset]:
        async with await Cluster.open(bootstrap, random=system_random(), settings=patience) as cluster:
            for topic in dict.fromkeys(partition.topic for partition in wanted):
                with contextlib.suppress(UnknownTopicError):
                    await cluster.topic(topic)
            there = [partition for partition in wanted if cluster.metadata.partition(partition) is not None]
            found = await list_offsets(cluster, dict.fromkeys(there, LATEST)) if there else {}
            return {partition: end.offset for partition, end in found.items()}

    try:
        return run_until_interrupted(ask())
    except KeyboardInterrupt:
        raise SystemExit(_INTERRUPTED) from None
