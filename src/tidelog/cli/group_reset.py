"""`tidelog groups reset-offsets`: the seven ways and a file, seen before it is done (S9.3)."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from tidelog.cli.commands import OFFSET, number
from tidelog.cli.completion import group_names, topic_names
from tidelog.cli.on_cluster import bootstrap_option, call_timeout_option, on_cluster
from tidelog.cli.output import json_option, print_rows
from tidelog.client.reset_plan import Chosen, Planned, Reset, Way
from tidelog.types import Offset, TopicPartition

if TYPE_CHECKING:
    from tidelog.client.addresses import Address
    from tidelog.client.cluster import Cluster

F = TypeVar("F", bound=Callable[..., Any])

_RESETS = "tidelog.cli.group_reset.resets"
_DURATION = re.compile(
    r"P(?=.)(?:(?P<days>\d+)D)?(?:T(?=.)(?:(?P<hours>\d+)H)?(?:(?P<minutes>\d+)M)?(?:(?P<seconds>\d+(?:\.\d+)?)S)?)?"
)
_UNIT_MS = {"days": 86_400_000, "hours": 3_600_000, "minutes": 60_000, "seconds": 1000}
_COLUMNS = 3
_LARGEST_OFFSET = 2**63 - 1
_LATEST_MS = 2**63 - 1
_SHIFT = click.IntRange(-_LARGEST_OFFSET, _LARGEST_OFFSET)


# What people write


def parse_datetime(text: str) -> int:
    """ISO 8601 to ms since 1970; UTC, as in Kafka's tool, where it does not say otherwise."""
    try:
        time = datetime.fromisoformat(text)
        found = round((time if time.tzinfo is not None else time.replace(tzinfo=UTC)).timestamp() * 1000)
    except (ValueError, OverflowError) as failure:
        raise click.BadParameter(f"{text!r} is no time: write 2026-01-31T12:00:00.000, in UTC") from failure
    if found < 0:
        raise click.BadParameter(f"{text!r} is before 1970, and no record is that old")
    return found


def parse_duration(text: str) -> int:
    """ISO 8601's PnDTnHnMnS to ms."""
    match = _DURATION.fullmatch(text.upper())
    if match is None:
        raise click.BadParameter(f"{text!r} is no duration: write PnDTnHnMnS, such as P1DT12H or PT30M")
    found = sum(float(count) * _UNIT_MS[unit] for unit, count in match.groupdict(default="0").items())
    if found > _LATEST_MS:
        raise click.BadParameter(f"{text!r} is longer than any log can be old")
    return round(found)


def parse_chosen(text: str) -> Chosen:
    """`orders`, or `orders:0,2` for some of its partitions."""
    topic, colon, listed = text.partition(":")
    parts = listed.split(",") if colon else []
    numbers = tuple(found for found in map(number, parts) if found is not None)
    if not topic or len(numbers) < len(parts):
        raise click.BadParameter(f"{text!r} is not TOPIC or TOPIC:0,1,2")
    return Chosen(topic, numbers)


def read_offsets(file: str) -> dict[TopicPartition, Offset]:
    """Lines of topic,partition,offset, as `export` and Kafka's --export write them."""
    offsets: dict[TopicPartition, Offset] = {}
    try:
        rows = list(csv.reader(Path(file).read_text(encoding="utf-8").splitlines()))
    except UnicodeDecodeError as failure:
        raise click.BadParameter(f"{file} is not UTF-8 (byte {failure.start})") from failure
    except (csv.Error, OSError) as failure:
        raise click.BadParameter(f"{file} cannot be read: {failure}") from failure
    for line, row in enumerate(rows, 1):
        if not row:
            continue
        index, offset = (number(row[1]), number(row[2], _LARGEST_OFFSET)) if len(row) == _COLUMNS else (None, None)
        if not row[0] or index is None or offset is None:
            raise click.BadParameter(f"{file}: line {line} is not topic,partition,offset")
        partition = TopicPartition(row[0], index)
        if partition in offsets:
            raise click.BadParameter(f"{file}: line {line}: {partition} stands there before")
        offsets[partition] = offset
    if not offsets:
        raise click.BadParameter(f"{file} names no partition")
    return offsets


def _ago(text: str) -> Reset:
    from tidelog.host.clock import SystemClock

    return Reset(Way.DURATION, SystemClock().wall_ms() - parse_duration(text))


# Options


def group_options(function: F) -> F:
    """Groups as arguments, or with --group as Kafka's tool has it."""

    def merge(ctx: click.Context, parameter: click.Parameter, more: tuple[str, ...]) -> None:
        ctx.params["names"] = tuple(dict.fromkeys((*ctx.params.get("names", ()), *more)))

    option = click.option(
        "--group",
        multiple=True,
        metavar="GROUP",
        callback=merge,
        expose_value=False,
        help="The same as GROUPS.",
        shell_complete=group_names,
    )
    argument = click.argument("names", nargs=-1, metavar="[GROUPS]...", is_eager=True, shell_complete=group_names)
    return argument(option(function))


def one_group(names: tuple[str, ...]) -> str:
    if len(names) != 1:
        raise click.UsageError("name one group")
    return names[0]


def _chosen(ctx: click.Context, parameter: click.Parameter, texts: tuple[str, ...]) -> list[Chosen] | None:
    return [parse_chosen(text) for text in texts] or None


def topic_options(function: F) -> F:
    return click.option(
        "--topic",
        "chosen",
        multiple=True,
        metavar="TOPIC[:N,N,...]",
        callback=_chosen,
        shell_complete=topic_names,
        help="Only this topic, or these partitions of it; may be given again.",
    )(function)


def _way(way: Way, parse: Callable[[Any], Reset], help: str, **attributes: Any) -> Callable[[F], F]:
    """An option that is one of the ways; all that were given are kept together."""

    def keep(ctx: click.Context, parameter: click.Parameter, value: Any) -> None:
        if value is not None and value is not False:
            ctx.meta.setdefault(_RESETS, []).append(parse(value))

    return click.option(f"--{way.value}", callback=keep, expose_value=False, help=help, **attributes)


@click.command("reset-offsets")
@group_options
@topic_options
@click.option("--all-topics", is_flag=True, help="All partitions that the group has committed.")
@_way(Way.EARLIEST, lambda _: Reset(Way.EARLIEST), "To the start of the log.", is_flag=True)
@_way(Way.LATEST, lambda _: Reset(Way.LATEST), "To the end of the log.", is_flag=True)
@_way(Way.CURRENT, lambda _: Reset(Way.CURRENT), "To what is committed; else to the end.", is_flag=True)
@_way(Way.OFFSET, lambda n: Reset(Way.OFFSET, n), "To this offset.", type=OFFSET)
@_way(Way.SHIFT, lambda n: Reset(Way.SHIFT, n), "By so many, back if it is negative.", type=_SHIFT)
@_way(
    Way.TIME,
    lambda text: Reset(Way.TIME, parse_datetime(text)),
    "To the first record at or after this time, in UTC unless it says otherwise.",
    metavar="YYYY-MM-DDThh:mm:ss.sss",
)
@_way(Way.DURATION, _ago, "To the first record at or after so long ago.", metavar="PnDTnHnMnS")
@_way(
    Way.FILE,
    lambda file: Reset(Way.FILE, offsets=read_offsets(file)),
    "To the offsets in a CSV file as `tidelog groups export` writes it.",
    type=click.Path(exists=True, dir_okay=False),
)
@click.option("--new-group", "may_be_new", is_flag=True, help="The group need not exist: it begins with these offsets.")
@click.option("--execute", is_flag=True, help="Do it; without this the plan is only shown.")
@click.option("--dry-run", is_flag=True, help="Only show the plan, which is the default.")
@json_option
@call_timeout_option
@bootstrap_option
@click.pass_context
def reset_offsets(
    ctx: click.Context,
    names: tuple[str, ...],
    chosen: list[Chosen] | None,
    all_topics: bool,
    may_be_new: bool,
    execute: bool,
    dry_run: bool,
    as_json: bool,
    bootstrap: list[Address],
) -> None:
    """Change where a group without members goes on reading.

    The plan is shown first. An offset outside of the log becomes the nearest one inside, with a warning.
    """
    group = one_group(names)
    resets: list[Reset] = ctx.meta.get(_RESETS, [])
    if len(resets) != 1:
        raise click.UsageError(f"pass one of {', '.join(f'--{way.value}' for way in Way)}")
    if execute and dry_run:
        raise click.UsageError("pass --execute or --dry-run, not both")
    reset = resets[0]
    if [chosen is not None, all_topics, reset.way is Way.FILE].count(True) != 1:
        raise click.UsageError("name the partitions: either --topic, or --all-topics; --from-file names them itself")
    if reset.way is Way.FILE:
        chosen = [Chosen(partition.topic, (partition.partition,)) for partition in reset.offsets]
    _reset(group, reset, chosen, may_be_new=may_be_new, execute=execute, as_json=as_json, bootstrap=bootstrap)


def _reset(
    group: str,
    reset: Reset,
    chosen: list[Chosen] | None,
    *,
    may_be_new: bool,
    execute: bool,
    as_json: bool,
    bootstrap: list[Address],
) -> None:
    from tidelog.client.group_offsets import commit_offsets
    from tidelog.client.group_reset import plan_reset

    async def work(cluster: Cluster) -> int:
        if not may_be_new:
            await _must_exist(cluster, group)
        planned = await plan_reset(cluster, group, reset, chosen)
        _show(group, planned, as_json)
        new = {partition: one.new for partition, one in planned.items() if one.new is not None}
        if len(new) < len(planned):
            refused = "; ".join(f"{partition}: {one.refusal}" for partition, one in planned.items() if one.refusal)
            raise click.ClickException(f"nothing was changed: {refused}")
        if execute and new:
            await commit_offsets(cluster, group, new)
        return len(new)

    count = on_cluster(bootstrap, work)
    if execute:
        click.echo(f"reset {count} offsets of group {group}", err=True)
    else:
        click.echo("this is the plan, nothing was changed; --execute carries it out", err=True)


async def _must_exist(cluster: Cluster, group: str) -> None:
    """A mistyped name would otherwise make a new group, and the right one would stay where it is."""
    from tidelog.client.errors import BrokerError
    from tidelog.client.groups import DEAD, describe_groups
    from tidelog.errors import ErrorCode

    if (await describe_groups(cluster, [group]))[group].state == DEAD:
        hint = "there is no such classic group; see `tidelog groups list`, or pass --new-group"
        raise BrokerError(ErrorCode.GROUP_ID_NOT_FOUND, f"group {group}", hint)


def _show(group: str, planned: dict[TopicPartition, Planned], as_json: bool) -> None:
    rows = [
        {
            "group": group,
            "topic": partition.topic,
            "partition": partition.partition,
            "current_offset": one.current if as_json or one.current is not None else "no offset",
            "new_offset": one.new,
            **({"warning": one.warning} if as_json else {}),
        }
        for partition, one in planned.items()
    ]
    print_rows(rows, as_json=as_json, empty=f"group {group} has committed nothing")
    for partition, one in planned.items():
        if one.warning is not None and not as_json:
            click.echo(f"warning: {partition}: {one.warning}", err=True)
