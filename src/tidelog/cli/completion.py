"""Names for the shell: of settings, and of topics and groups, which the cluster is asked for that the line names.

Completion must not disturb: it waits for a second at most, and shows nothing if it does not succeed.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from tidelog.client.addresses import Address
    from tidelog.client.cluster import Cluster

_PATIENCE_S = 1.0


def topic_names(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Topics that begin so; internal ones only if they are asked for by their underscores."""

    async def topics(cluster: Cluster) -> list[str]:
        found = await cluster.all_topics()
        return [name for name, topic in found.items() if not topic.is_internal or incomplete.startswith("_")]

    return _matching(ctx, incomplete, topics)


def group_names(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    async def groups(cluster: Cluster) -> list[str]:
        from tidelog.client.groups import list_groups

        return [listed.group for listed in await list_groups(cluster)]

    return _matching(ctx, incomplete, groups)


def topic_settings(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """As NAME=, for a value to follow."""
    return _settings("topic", "=", incomplete)


def broker_settings(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    return _settings("broker", "=", incomplete)


def names_of_topic_settings(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    return _settings("topic", "", incomplete)


def resource_settings(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Of a topic, or of brokers if the line names those; with = where the parameter takes values."""
    given = ctx.params
    if given.get("broker_logger") is not None:
        return []
    kind = "broker" if given.get("broker") is not None or given.get("broker_default") else "topic"
    return _settings(kind, "=" if parameter.name == "changes" else "", incomplete)


def _settings(kind: str, end: str, incomplete: str) -> list[str]:
    """Those that have an effect."""
    from tidelog.config.settings import BROKER, TOPIC
    from tidelog.config.support import is_served

    table = BROKER if kind == "broker" else TOPIC
    return [name + end for name, setting in table.items() if name.startswith(incomplete) and is_served(setting)]


def _matching(ctx: click.Context, incomplete: str, ask: Callable[[Cluster], Awaitable[list[str]]]) -> list[str]:
    try:
        names = asyncio.run(asyncio.wait_for(_asked(_bootstrap(ctx), ask), _PATIENCE_S))
    except Exception:  # whatever it is, the user is in the middle of a line
        return []
    return [name for name in names if name.startswith(incomplete)]


async def _asked(bootstrap: list[Address], ask: Callable[[Cluster], Awaitable[list[str]]]) -> list[str]:
    from tidelog.client.cluster import Cluster
    from tidelog.host.clock import system_random

    async with await Cluster.open(bootstrap, random=system_random()) as cluster:
        return await ask(cluster)


def _bootstrap(ctx: click.Context) -> list[Address]:
    """What stands on the line already, or in the environment, or the default."""
    from tidelog.cli.on_cluster import DEFAULT_BOOTSTRAP
    from tidelog.client.addresses import parse_bootstrap

    given = ctx.params.get("bootstrap")
    if isinstance(given, list):
        return given
    return parse_bootstrap(given or os.environ.get("TIDELOG_BOOTSTRAP") or DEFAULT_BOOTSTRAP)
