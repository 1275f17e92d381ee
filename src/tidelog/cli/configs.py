"""`tidelog configs`: settings of topics and brokers, read and changed while they run."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from tidelog.cli.commands import INT32
from tidelog.cli.completion import resource_settings, topic_names
from tidelog.cli.on_cluster import bootstrap_option, call_timeout_option, key_values, on_cluster
from tidelog.cli.output import json_option, print_rows
from tidelog.cli.setting_names import known_names, refuse_unknown
from tidelog.cli.setting_values import as_value

if TYPE_CHECKING:
    from tidelog.client.addresses import Address
    from tidelog.client.admin import Resource
    from tidelog.client.cluster import Cluster
    from tidelog.wire.messages.configs import DescribeConfigsResourceResult

_OWN_SOURCES = {
    "topic": ("DYNAMIC_TOPIC",),
    "broker": ("DYNAMIC_BROKER", "DYNAMIC_DEFAULT_BROKER"),
    "broker_logger": ("DYNAMIC_BROKER_LOGGER",),
}
"""Of each kind of resource: where a value comes from that was set for it."""


def _resource_options(function: Callable[..., None]) -> Callable[..., None]:
    """--topic, --broker, --broker-default or --broker-logger, exactly one."""
    for option in (
        click.option("--broker-logger", type=INT32, metavar="ID", help="The levels of this broker's loggers."),
        click.option("--broker-default", is_flag=True, help="What all brokers share, unless one has its own."),
        click.option("--broker", type=INT32, metavar="ID", help="The settings of this broker."),
        click.option("--topic", metavar="NAME", help="The settings of this topic.", shell_complete=topic_names),
    ):
        function = option(function)
    return function


def _resource(topic: str | None, broker: int | None, broker_default: bool, broker_logger: int | None) -> Resource:
    from tidelog.client.admin import Resource, ResourceType

    if (topic is not None) + (broker is not None) + broker_default + (broker_logger is not None) != 1:
        raise click.UsageError("pass exactly one of --topic NAME, --broker ID, --broker-default and --broker-logger ID")
    if broker_logger is not None:
        return Resource(ResourceType.BROKER_LOGGER, str(broker_logger))
    if topic is not None:
        return Resource(ResourceType.TOPIC, topic)
    return Resource(ResourceType.BROKER, "" if broker is None else str(broker))


@click.group("configs")
def command() -> None:
    """Show and change settings of topics and brokers."""


@command.command()
@click.argument("names", nargs=-1, shell_complete=resource_settings)
@_resource_options
@click.option("--all", "show_all", is_flag=True, help="Also what was not set here but comes from below.")
@json_option
@call_timeout_option
@bootstrap_option
def describe(
    names: tuple[str, ...],
    topic: str | None,
    broker: int | None,
    broker_default: bool,
    broker_logger: int | None,
    show_all: bool,
    as_json: bool,
    bootstrap: list[Address],
) -> None:
    """Show settings: those named, or those that were set; with --all every one."""
    from tidelog.client.admin import Admin, ConfigSource

    resource = _resource(topic, broker, broker_default, broker_logger)

    async def work(cluster: Cluster) -> list[DescribeConfigsResourceResult]:
        found = await Admin(cluster).describe_configs(resource, names or None)
        missing = [name for name in names if name not in {entry.name for entry in found}]
        if missing:
            refuse_unknown(missing, await known_names(cluster, resource), resource)
        return found

    entries = on_cluster(bootstrap, work)
    own = _OWN_SOURCES[resource.type.name.lower()]
    rows: list[dict[str, Any]] = []
    for entry in sorted(entries, key=lambda entry: entry.name):
        source = ConfigSource(entry.config_source).name if entry.config_source in set(ConfigSource) else "UNKNOWN"
        if names or show_all or source in own:
            rows.append(
                {
                    "name": entry.name,
                    "value": as_value(entry) if as_json else "(hidden)" if entry.is_sensitive else entry.value,
                    "source": source,
                    "read_only": entry.read_only,
                }
            )
    print_rows(rows, as_json=as_json, empty=f"nothing is set for {resource}; --all shows what applies to it")


@command.command()
@click.argument(
    "changes",
    nargs=-1,
    required=True,
    metavar="NAME=VALUE...",
    callback=key_values,
    shell_complete=resource_settings,
)
@_resource_options
@call_timeout_option
@bootstrap_option
def alter(
    changes: dict[str, str],
    topic: str | None,
    broker: int | None,
    broker_default: bool,
    broker_logger: int | None,
    bootstrap: list[Address],
) -> None:
    """Set settings."""
    _change(bootstrap, _resource(topic, broker, broker_default, broker_logger), changes, ())


@command.command()
@click.argument("names", nargs=-1, required=True, shell_complete=resource_settings)
@_resource_options
@call_timeout_option
@bootstrap_option
def delete(
    names: tuple[str, ...],
    topic: str | None,
    broker: int | None,
    broker_default: bool,
    broker_logger: int | None,
    bootstrap: list[Address],
) -> None:
    """Take settings back, so that what lies below applies again."""
    _change(bootstrap, _resource(topic, broker, broker_default, broker_logger), {}, names)


def _change(bootstrap: list[Address], resource: Resource, changed: dict[str, str], deleted: tuple[str, ...]) -> None:
    from tidelog.client.admin import Admin

    async def work(cluster: Cluster) -> None:
        refuse_unknown([*changed, *deleted], await known_names(cluster, resource), resource)
        await Admin(cluster).alter_configs(resource, changed=changed, deleted=deleted)

    on_cluster(bootstrap, work)
    click.echo(f"changed {', '.join([*changed, *deleted])} of {resource}")
