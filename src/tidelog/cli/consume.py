"""`tidelog consume`: topics to standard output."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING

import click

from tidelog.cli.commands import INT32, OFFSET
from tidelog.cli.completion import group_names, topic_names
from tidelog.cli.on_cluster import bootstrap_option, on_cluster, timeout_option
from tidelog.cli.since import parse_since
from tidelog.cli.waiting import Ends

if TYPE_CHECKING:
    from tidelog.cli.reading import Start
    from tidelog.cli.records import Show
    from tidelog.client.addresses import Address
    from tidelog.client.cluster import Cluster

_ISOLATION = ("read_uncommitted", "read_committed")


def _parse_offset(ctx: click.Context, parameter: click.Parameter, text: str | None) -> str | int | None:
    if text is None or text in ("earliest", "latest"):
        return text
    try:
        number = int(text)
    except ValueError as failure:
        raise click.BadParameter(f"{text!r} is neither a number nor earliest nor latest") from failure
    if abs(number) >= 1 << 63:
        raise click.BadParameter(f"{text} is larger than any offset")
    return number


def _parse_regex(ctx: click.Context, parameter: click.Parameter, text: str | None) -> re.Pattern[str] | None:
    try:
        return None if text is None else re.compile(text)
    except (re.error, RecursionError, OverflowError) as failure:
        raise click.BadParameter(f"{text!r} is not a regular expression: {failure}") from failure


@click.command("consume")
@click.argument("topics", nargs=-1, metavar="TOPIC...", shell_complete=topic_names)
@click.option("--regex", callback=_parse_regex, metavar="PATTERN", help="Topics whose whole names match, as of now.")
@click.option("--partition", "partitions", multiple=True, type=INT32, help="Only this; may be repeated.")
@click.option(
    "--group",
    metavar="NAME",
    shell_complete=group_names,
    help="Read as a member of this group, and commit what was printed.",
)
@click.option("--from-beginning", is_flag=True, help="From the start of the log; the default.")
@click.option("--offset", callback=_parse_offset, metavar="N|earliest|latest|-N", help="-N: the last N of a partition.")
@click.option("--since", metavar="TIME", help="From this time on: 2026-01-31T12:00, 1767182400000 (ms), or 10m ago.")
@click.option("--until", metavar="TIME", help="Up to this time, and without what is at or after it.")
@click.option("--until-offset", type=OFFSET, metavar="N", help="Up to this offset, without it.")
@click.option("--max-messages", "-n", type=click.IntRange(min=1), help="End after so many.")
@click.option("--follow/--no-follow", "-f", help="Go on with what comes; else end with what is there.")
@click.option("--keys", is_flag=True, help="Show keys, with a tab after them.")
@click.option("--headers", is_flag=True, help="Show headers, with a tab after them.")
@click.option("--offsets", is_flag=True, help="Show partition:offset, with a tab after it.")
@click.option("--times", is_flag=True, help="Show the time of each record, in ISO 8601 with its zone.")
@click.option("--json", "as_json", is_flag=True, help="One object per line; what is not UTF-8 as key_base64 and so on.")
@click.option(
    "--format",
    "template",
    metavar="TEXT",
    help="Like '{topic} {partition}:{offset} {time} {timestamp} {key} {value} {headers}'.",
)
@click.option("--raw", is_flag=True, help="Send all bytes to a terminal as they are; else control bytes are escaped.")
@click.option("--isolation", type=click.Choice(_ISOLATION), default="read_uncommitted", show_default=True)
@timeout_option(
    "Give up after waiting so long for a broker or a leader, not for records. By default --follow never does."
)
@bootstrap_option
def command(
    topics: tuple[str, ...],
    regex: re.Pattern[str] | None,
    partitions: tuple[int, ...],
    group: str | None,
    from_beginning: bool,
    offset: str | int | None,
    since: str | None,
    until: str | None,
    until_offset: int | None,
    max_messages: int | None,
    follow: bool,
    keys: bool,
    headers: bool,
    offsets: bool,
    times: bool,
    as_json: bool,
    template: str | None,
    raw: bool,
    isolation: str,
    bootstrap: list[Address],
) -> None:
    """Print the records of topics: what is there, or with --follow also what comes.

    A null key or value is shown as nothing; --json tells the two apart.
    """
    from tidelog.cli.reading import Limits, Reading
    from tidelog.client.offsets import EARLIEST

    if bool(topics) == (regex is not None):
        raise click.UsageError("name topics, or pass --regex")
    if from_beginning + (offset is not None) + (since is not None) > 1:
        raise click.UsageError("pass one of --from-beginning, --offset and --since")
    if until is not None and until_offset is not None:
        raise click.UsageError("pass --until or --until-offset, not both")
    if as_json + (template is not None) + (keys or headers or offsets or times) > 1:
        raise click.UsageError("pass one of --json, --format, and --keys with --headers, --offsets and --times")
    if group is not None:
        _check_group(group, bool(partitions), offset, since, until is not None or until_offset is not None)
    escape = sys.stdout.isatty() and not raw
    show = _show(as_json, template, (keys, headers, offsets, times), len(topics) != 1, escape)
    start, limits = _start(offset, since), Limits(_time(until, "--until"), until_offset, max_messages, follow)

    async def work(cluster: Cluster) -> None:
        reading = Reading(cluster, show, limits, isolation)
        names = list(dict.fromkeys(topics)) if regex is None else await _matching(cluster, regex)
        if group is not None:
            await reading.run_in_group(group, names, start)
        else:
            await reading.run(names, partitions, start)
        if not reading.printed:
            is_part = start.time_ms != EARLIEST or limits.time_ms is not None or until_offset is not None
            click.echo(_nothing(names, partitions, group, is_part), err=True)

    on_cluster(bootstrap, work, Ends.AFTER_A_WAIT)


def _nothing(topics: list[str], partitions: tuple[int, ...], group: str | None, is_part: bool) -> str:
    """What is said when nothing was printed."""
    from tidelog.client.errors import named
    from tidelog.types import TopicPartition

    chosen = [TopicPartition(topic, number) for topic in topics for number in partitions]
    where = named(chosen) if chosen else ", ".join(topics)
    if group is not None:
        return f"no records in {where} that group {group} has not read"
    return f"no records in that part of {where}" if is_part else f"no records in {where}"


def _check_group(group: str, has_partitions: bool, offset: str | int | None, since: str | None, has_end: bool) -> None:
    if not group:
        raise click.UsageError("the name of the group is empty")
    if has_partitions:
        raise click.UsageError("the group decides who reads which partition; leave out --partition")
    if since is not None or isinstance(offset, int):
        raise click.UsageError(
            "a group goes on where it has committed; --offset earliest or latest says where it begins without that, "
            "and `tidelog groups reset-offsets` sends it elsewhere"
        )
    if has_end:
        raise click.UsageError("a group has no --until and no --until-offset; --max-messages ends it")


def _show(
    as_json: bool, template: str | None, shown: tuple[bool, bool, bool, bool], is_several: bool, escape: bool
) -> Show:
    from tidelog.cli.records import as_json_line, as_text, from_template

    if as_json:
        return as_json_line(escape=escape)
    if template is not None:
        return from_template(template, escape=escape)
    keys, headers, offsets, times = shown
    return as_text(keys=keys, headers=headers, offsets=offsets, times=times, topics=is_several, escape=escape)


async def _matching(cluster: Cluster, regex: re.Pattern[str]) -> list[str]:
    topics = await cluster.all_topics()
    found = [name for name, topic in topics.items() if not topic.is_internal and regex.fullmatch(name)]
    if not found:
        raise click.ClickException(f"no topic matches {regex.pattern!r}; see `tidelog topics list`")
    return found


def _time(text: str | None, option: str) -> int | None:
    from tidelog.host.clock import SystemClock

    return None if text is None else parse_since(text, SystemClock().wall_ms(), option)


def _start(offset: str | int | None, since: str | None) -> Start:
    from tidelog.cli.reading import Start
    from tidelog.client.offsets import EARLIEST, LATEST

    if since is not None:
        return Start(time_ms=_time(since, "--since"))
    if isinstance(offset, int):
        return Start(last=-offset) if offset < 0 else Start(offset=offset)
    return Start(time_ms=LATEST if offset == "latest" else EARLIEST)
