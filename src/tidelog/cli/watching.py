"""Tables that are shown anew in place, until Ctrl-C."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import click

from tidelog.cli.on_cluster import on_cluster
from tidelog.cli.output import printable, table

if TYPE_CHECKING:
    from tidelog.client.addresses import Address
    from tidelog.client.cluster import Cluster

    Part: TypeAlias = tuple[str, Sequence[Mapping[str, Any]]]
    """A title, and rows."""

_EVERY_S = 2.0


def watch(bootstrap: list[Address], look: Callable[[Cluster], Awaitable[Sequence[Part]]]) -> None:
    """Show what `look` finds, every two seconds. UsageError where there is no terminal to show it on."""
    from rich.console import Console, Group
    from rich.live import Live
    from rich.text import Text

    console = Console(highlight=False)
    if not console.is_terminal:
        raise click.UsageError("--watch needs a terminal; without one, run the command again and again with --json")

    async def work(cluster: Cluster) -> None:
        found = await look(cluster)  # before there is a picture, which would leave an empty line above an error
        with Live(drawn(found), console=console, auto_refresh=False) as live:
            while True:
                live.update(drawn(found), refresh=True)
                await asyncio.sleep(_EVERY_S)
                found = await look(cluster)

    def drawn(parts: Sequence[Part]) -> Group:
        shown: list[Any] = []
        for title, rows in parts:
            shown.append(Text(printable(title)))
            shown.append(table(list(rows), console.width) if rows else Text(""))
        return Group(*shown)

    on_cluster(bootstrap, work)
