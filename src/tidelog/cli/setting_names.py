"""Which settings a topic or a broker has, so that a mistyped name is refused instead of being kept without effect.

Kafka's brokers keep settings that they do not know: a plugin could read them. tidelog has no plugins.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

from tidelog.cli.commands import did_you_mean

if TYPE_CHECKING:
    from tidelog.client.admin import Resource
    from tidelog.client.cluster import Cluster

_OF_A_LISTENER = "listener.name."


async def known_names(cluster: Cluster, resource: Resource) -> set[str]:
    """What the resource can have, and what was set for it, as its broker tells."""
    from tidelog.client.admin import Admin, Resource, ResourceType
    from tidelog.config.settings import BROKER, THROTTLES

    names = {entry.name for entry in await Admin(cluster).describe_configs(resource)}
    if resource.type is not ResourceType.BROKER:
        return names
    if resource.broker is None:
        # What all brokers share lists only what was set; any broker tells what there could be.
        some_broker = Resource(ResourceType.BROKER, str(min(cluster.metadata.brokers)))
        names |= {entry.name for entry in await Admin(cluster).describe_configs(some_broker)}
    return names | set(BROKER) | set(THROTTLES)


def refuse_unknown(wanted: Iterable[str], known: set[str], resource: Resource) -> None:
    """ClickException that names the first setting that the resource does not have, and the nearest one."""
    for name in wanted:
        if name not in known and not name.startswith(_OF_A_LISTENER):
            kind = resource.type.name.lower()
            lack = f"{kind}s have no setting" if "_" not in kind else f"{resource} have no logger"
            raise click.ClickException(f"{lack} {name!r}.{did_you_mean(name, known)}")
