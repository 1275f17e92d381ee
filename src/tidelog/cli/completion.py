"""Names of topics and groups for the shell, asked of the cluster that the command line names.

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
    from tidelog.cli.cluster import DEFAULT_BOOTSTRAP
    from tidelog.client.addresses import parse_bootstrap

    given = ctx.params.get("bootstrap")
    if isinstance(given, list):
        return given
    return parse_bootstrap(given or os.environ.get("TIDELOG_BOOTSTRAP") or DEFAULT_BOOTSTRAP)
