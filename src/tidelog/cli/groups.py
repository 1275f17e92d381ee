"""`tidelog groups`: consumer groups, how far they are behind, and what they have committed."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import click

from tidelog.cli.group_reset import group_options, one_group, reset_offsets, topic_options
from tidelog.cli.on_cluster import bootstrap_option, call_timeout_option, on_cluster
from tidelog.cli.output import json_option, print_rows
from tidelog.cli.waiting import error_text
from tidelog.wording import counted

if TYPE_CHECKING:
    from tidelog.client.addresses import Address
    from tidelog.client.cluster import Cluster
    from tidelog.client.errors import DeadlineError
    from tidelog.client.group_lag import PartitionLag
    from tidelog.client.groups import GroupDescription, GroupListing, GroupMember
    from tidelog.client.reset_plan import Chosen

    Described = list[tuple[GroupDescription, list[PartitionLag]]]

STATES = ("PreparingRebalance", "CompletingRebalance", "Stable", "Empty", "Dead", "Assigning", "Reconciling")
TYPES = ("classic", "consumer", "share", "streams")
_NONE = "-"
_NO_OFFSET = "no offset"


@click.group("groups")
def command() -> None:
    """Look at consumer groups, and change what they have committed."""


command.add_command(reset_offsets)


def _some_of(known: tuple[str, ...]) -> Callable[[click.Context, click.Parameter, str | None], list[str]]:
    """A callback for names with commas between them, in upper or lower case."""
    by_lower = {name.lower(): name for name in known}

    def parse(ctx: click.Context, parameter: click.Parameter, text: str | None) -> list[str]:
        names = [] if text is None else [name.strip().lower() for name in text.split(",")]
        strange = next((name for name in names if name not in by_lower), None)
        if strange is not None:
            raise click.BadParameter(f"{strange!r} is none of {', '.join(known)}")
        return [by_lower[name] for name in names]

    return parse


@command.command("list")
@click.option("--state", "states", metavar="STATE,...", callback=_some_of(STATES), help="Only groups in these states.")
@click.option("--type", "types", metavar="TYPE,...", callback=_some_of(TYPES), help="Only groups of these types.")
@json_option
@call_timeout_option
@bootstrap_option
def list_(states: list[str], types: list[str], as_json: bool, bootstrap: list[Address]) -> None:
    """List all groups, with members or without."""
    listed, failure = on_cluster(bootstrap, lambda cluster: _listed(cluster, states, types))
    rows = [
        {
            "group": one.group,
            "state": one.state or None,
            "type": one.type or None,
            "protocol_type": one.protocol_type or None,
            "coordinator": one.coordinator,
        }
        for one in listed
    ]
    if rows or failure is None:
        print_rows(rows, as_json=as_json, empty="there are no such groups")
    if failure is not None:
        raise click.ClickException(error_text(failure))


async def _listed(
    cluster: Cluster, states: list[str], types: list[str]
) -> tuple[list[GroupListing], DeadlineError | None]:
    """The groups, and the error if some have no coordinator: then the others are shown before it."""
    from tidelog.client.errors import DeadlineError, last_cause
    from tidelog.client.groups import GroupsOfflineError, list_groups

    try:
        return await list_groups(cluster, states=states, types=types), None
    except DeadlineError as failure:
        cause = last_cause(failure)
        if not isinstance(cause, GroupsOfflineError):
            raise
        return cause.listed, failure


@command.command()
@group_options
@click.option("--all-groups", is_flag=True, help="All groups that there are.")
@click.option("--members", "of_members", is_flag=True, help="A row for each member instead of each partition.")
@click.option("--state", "of_state", is_flag=True, help="A row for each group instead of each partition.")
@click.option(
    "--isolation",
    type=click.Choice(["read_uncommitted", "read_committed"]),
    default="read_uncommitted",
    show_default=True,
    help="Where the log ends for lag: at the high watermark, or at the last stable offset.",
)
@click.option("--watch", "is_watch", is_flag=True, help="Show it anew every 2 seconds, until Ctrl-C.")
@json_option
@call_timeout_option
@bootstrap_option
def describe(
    names: tuple[str, ...],
    all_groups: bool,
    of_members: bool,
    of_state: bool,
    isolation: str,
    is_watch: bool,
    as_json: bool,
    bootstrap: list[Address],
) -> None:
    """Show who is in a group, what it has committed and how far it is behind.

    A partition that the group has read to its end has lag 0; one that it has never committed has no offset and no lag.
    """
    if bool(names) == all_groups:
        raise click.UsageError("name groups, or pass --all-groups")
    if of_members and of_state:
        raise click.UsageError("pass --members or --state, not both")
    if is_watch:
        if as_json:
            raise click.UsageError("pass --watch or --json, not both")
        _watch(bootstrap, names, isolation, of_members, of_state)
        return
    described = on_cluster(bootstrap, lambda cluster: _described(cluster, names, isolation))
    if as_json:
        print_rows((_whole(group, lags) for group, lags in described), as_json=True)
    elif of_state:
        print_rows((_summary(group) for group, _ in described), as_json=False)
    else:
        for title, rows in _parts(described, of_members):
            print_rows(rows, as_json=False, title=title, empty=f"{title}\nit has no members and no committed offsets\n")


def _parts(described: Described, of_members: bool) -> list[tuple[str, list[dict[str, Any]]]]:
    """Title and rows of each group."""
    return [
        (_title(group), list(member_rows(group) if of_members else offset_rows(group, lags)))
        for group, lags in described
    ]


def _watch(bootstrap: list[Address], names: tuple[str, ...], isolation: str, of_members: bool, of_state: bool) -> None:
    from tidelog.cli.watching import watch

    async def look(cluster: Cluster) -> list[tuple[str, list[dict[str, Any]]]]:
        described = await _described(cluster, names, isolation)
        if of_state:
            return [(counted(len(described), "group"), [_summary(group) for group, _ in described])]
        return _parts(described, of_members)

    watch(bootstrap, look)


async def _described(cluster: Cluster, names: tuple[str, ...], isolation: str) -> Described:
    from tidelog.client.group_lag import group_lags
    from tidelog.client.groups import DEAD, describe_groups, list_groups
    from tidelog.client.offsets import Isolation

    listed = [] if names else await list_groups(cluster)
    others = [one.group for one in listed if one.type not in ("", "classic")]
    if others:
        click.echo(f"not shown, for they are not classic groups: {', '.join(others)}", err=True)
    groups = await describe_groups(cluster, names or [one.group for one in listed if one.group not in others])
    if names:
        _refuse_unknown(groups.values())
    return [
        (group, await group_lags(cluster, group, isolation=Isolation[isolation.upper()]))
        for group in groups.values()
        if group.state != DEAD
    ]


def _refuse_unknown(groups: Iterable[GroupDescription]) -> None:
    from tidelog.client.errors import BrokerError
    from tidelog.client.groups import DEAD
    from tidelog.errors import ErrorCode

    gone = [group.group for group in groups if group.state == DEAD]
    if gone:
        hint = "there is no such classic group; see `tidelog groups list`"
        raise BrokerError(ErrorCode.GROUP_ID_NOT_FOUND, f"group {gone[0]}", hint)


@command.command()
@group_options
@click.option("--yes", is_flag=True, help="Do not ask.")
@call_timeout_option
@bootstrap_option
def delete(names: tuple[str, ...], yes: bool, bootstrap: list[Address]) -> None:
    """Remove groups without members and all they have committed."""
    from tidelog.client.groups import delete_groups

    if not names:
        raise click.UsageError("name groups")
    wanted = list(dict.fromkeys(names))
    if not yes:
        found = ", ".join(on_cluster(bootstrap, lambda cluster: _found(cluster, wanted)))
        have = "it has" if len(wanted) == 1 else "they have"
        click.confirm(f"Delete {found} and all that {have} committed?", abort=True)
    results = on_cluster(bootstrap, lambda cluster: delete_groups(cluster, wanted))
    for group, failure in results.items():
        click.echo(f"deleted group {group}" if failure is None else f"Error: {failure}", err=failure is not None)
    if any(failure is not None for failure in results.values()):
        sys.exit(1)


async def _found(cluster: Cluster, names: Iterable[str]) -> list[str]:
    """Who would be deleted. A group that does not exist, or has members, is refused before anything is asked."""
    from tidelog.client.errors import BrokerError
    from tidelog.client.groups import describe_groups
    from tidelog.errors import ErrorCode

    groups = (await describe_groups(cluster, names)).values()
    _refuse_unknown(groups)
    for group in groups:
        if group.members:
            message = f"it has {counted(len(group.members), 'member')}; stop them first"
            raise BrokerError(ErrorCode.NON_EMPTY_GROUP, f"group {group.group}", message)
    return [f"group {group.group}" for group in groups]


@command.command()
@group_options
@topic_options
@call_timeout_option
@bootstrap_option
def export(names: tuple[str, ...], chosen: list[Chosen] | None, bootstrap: list[Address]) -> None:
    """Print what a group has committed as CSV: topic,partition,offset, for `reset-offsets --from-file`."""
    from tidelog.client.coordinators import learn_group_partitions
    from tidelog.client.group_offsets import committed_offsets
    from tidelog.client.group_reset import chosen_partitions

    group = one_group(names)

    async def work(cluster: Cluster) -> list[tuple[str, int, int]]:
        await learn_group_partitions(cluster)
        committed = await committed_offsets(cluster, group)
        partitions = await chosen_partitions(cluster, chosen, committed)
        return [(*partition, committed[partition].offset) for partition in partitions if partition in committed]

    for topic, partition, offset in on_cluster(bootstrap, work):
        click.echo(f"{topic},{partition},{offset}")


# What is shown


def _title(group: GroupDescription) -> str:
    members = counted(len(group.members), "member") if group.members else "no members"
    assignor = f"  assignor {group.protocol}" if group.protocol else ""
    return f"{group.group}  {group.state}  {members}{assignor}  coordinator {group.coordinator}"


def _summary(group: GroupDescription) -> dict[str, Any]:
    return {
        "group": group.group,
        "coordinator": group.coordinator,
        "assignment_strategy": group.protocol or None,
        "state": group.state,
        "members": len(group.members),
    }


def _whole(group: GroupDescription, lags: Iterable[PartitionLag]) -> dict[str, Any]:
    """All of a group in one object, for programs; what is not known is null."""
    return {
        **_summary(group),
        "protocol_type": group.protocol_type or None,
        "members": [
            {
                **_member(member),
                "group_instance_id": member.instance_id,
                "assignment": [list(p) for p in member.assignment],
            }
            for member in group.members
        ],
        "offsets": [
            {
                "topic": lag.partition.topic,
                "partition": lag.partition.partition,
                "current_offset": lag.current,
                "log_end_offset": lag.log_end,
                "lag": lag.lag,
                **_member(lag.member),
            }
            for lag in lags
        ],
    }


def _member(member: GroupMember | None) -> dict[str, str | None]:
    if member is None:
        return {"consumer_id": None, "host": None, "client_id": None}
    return {"consumer_id": member.member_id, "host": member.host, "client_id": member.client_id}


def offset_rows(group: GroupDescription, lags: Iterable[PartitionLag]) -> list[dict[str, Any]]:
    """The columns of Kafka's tool: a row per partition, and one for each member that has none."""
    rows = [
        {
            "group": group.group,
            "topic": lag.partition.topic,
            "partition": lag.partition.partition,
            "current_offset": _NO_OFFSET if lag.current is None else lag.current,
            "log_end_offset": _shown(lag.log_end),
            "lag": _shown(lag.lag),
            **{name: _shown(value) for name, value in _member(lag.member).items()},
        }
        for lag in lags
    ]
    nothing = dict.fromkeys(("topic", "partition", "current_offset", "log_end_offset", "lag"), _NONE)
    idle = [member for member in group.members if not member.assignment]
    return rows + [{"group": group.group, **nothing, **_member(member)} for member in idle]


def member_rows(group: GroupDescription) -> list[dict[str, Any]]:
    return [
        {
            "group": group.group,
            **_member(member),
            "group_instance_id": _shown(member.instance_id),
            "partitions": len(member.assignment),
            "assignment": _assignment(member) or _NONE,
        }
        for member in group.members
    ]


def _assignment(member: GroupMember) -> str:
    from tidelog.client.leaders import by_topic

    return " ".join(f"{topic}:{','.join(map(str, numbers))}" for topic, numbers in by_topic(member.assignment).items())


def _shown(value: Any) -> Any:
    return _NONE if value is None else value
