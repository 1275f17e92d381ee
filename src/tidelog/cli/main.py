"""The `tidelog` command."""

import click

from tidelog import __version__


@click.group()
@click.version_option(__version__, prog_name="tidelog")
def main() -> None:
    """A partitioned, replicated commit log that Kafka clients take for Kafka."""
