"""The `tidelog` command. A noun's module is imported only when it is used, so that every command starts fast."""

from __future__ import annotations

import errno
import importlib
from typing import Any

import click

from tidelog import __version__
from tidelog.cli.commands import CONTEXT, did_you_mean, prepared, print_anything
from tidelog.cli.examples import EXAMPLES

NOUNS = {
    "broker": "tidelog.cli.broker",
    "cluster": "tidelog.cli.cluster",
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


_INTERRUPTED = 130


class Nouns(click.Group):
    """Finds `tidelog NOUN` in the module of that name, which calls its command `command`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(NOUNS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in NOUNS:
            return None
        command: click.Command = importlib.import_module(NOUNS[cmd_name]).command
        return prepared(command, cmd_name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """click looks for names that were meant among the commands that are loaded, and here none is."""
        name = args[0]
        if name not in NOUNS and not name.startswith("-") and not ctx.resilient_parsing:
            raise click.UsageError(f"No such command {name!r}.{did_you_mean(name, NOUNS)}", ctx)
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Ctrl-C ends a command with the status that shells give it, and says nothing.

        If the system refuses a file or a directory, one sentence says so, whichever command meets it. click handles a
        pipe whose reader has gone.
        """
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise SystemExit(_INTERRUPTED) from None
        except OSError as failure:
            if failure.errno == errno.EPIPE or failure.strerror is None:
                raise
            where = "" if failure.filename is None else f"{failure.filename}: "
            raise click.ClickException(f"{where}{failure.strerror}") from failure


@click.group(
    cls=Nouns,
    context_settings=CONTEXT,
    epilog="\b\nExamples:\n" + "\n".join(f"  {line}" for line in EXAMPLES[""]),
)
@click.version_option(__version__, prog_name="tidelog")
def main() -> None:
    """A partitioned, replicated commit log that Kafka clients take for Kafka.

    A shell completes commands, options, settings, topics and groups after one of these lines, which belong in its
    start file:

    \b
      eval "$(_TIDELOG_COMPLETE=bash_source tidelog)"     ~/.bashrc
      eval "$(_TIDELOG_COMPLETE=zsh_source tidelog)"      ~/.zshrc
      _TIDELOG_COMPLETE=fish_source tidelog | source      ~/.config/fish/config.fish
    """
    print_anything()
