"""The `tidelog` command. A noun's module is imported only when it is used, so that every command starts fast."""

from __future__ import annotations

import importlib

import click

from tidelog import __version__

NOUNS = {
    "broker": "tidelog.cli.broker",
    "cluster": "tidelog.cli.clusters",
    "configs": "tidelog.cli.configs",
    "consume": "tidelog.cli.consume",
    "down": "tidelog.cli.down",
    "elect": "tidelog.cli.elect",
    "groups": "tidelog.cli.groups",
    "lab": "tidelog.cli.lab",
    "log": "tidelog.cli.log",
    "pipeline": "tidelog.cli.pipeline",
    "produce": "tidelog.cli.produce",
    "reassign": "tidelog.cli.reassign",
    "status": "tidelog.cli.status",
    "topics": "tidelog.cli.topics",
    "up": "tidelog.cli.up",
    "zookeeper": "tidelog.cli.zookeeper",
}


class Nouns(click.Group):
    """Finds `tidelog NOUN` in the module of that name, which calls its command `command`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(NOUNS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in NOUNS:
            return None
        command: click.Command = importlib.import_module(NOUNS[cmd_name]).command
        return command


@click.group(cls=Nouns)
@click.version_option(__version__, prog_name="tidelog")
def main() -> None:
    """A partitioned, replicated commit log that Kafka clients take for Kafka."""
