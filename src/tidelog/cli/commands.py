"""What all commands share, whatever they do: -h, text that is UTF-8, examples under their help.

A noun's module declares its commands with click alone. `prepared` goes over them once, when the noun is used.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any

import click

from tidelog.cli.examples import EXAMPLES

CONTEXT = {"help_option_names": ["-h", "--help"]}

INT32 = click.IntRange(0, 2**31 - 1)
"""Ids of brokers and numbers of partitions: Kafka's protocol has 32 bits for them."""

COUNT = click.IntRange(1, 2**31 - 1)
REPLICATION_FACTOR = click.IntRange(1, 2**15 - 1)
OFFSET = click.IntRange(0, 2**63 - 1)


_SHOWN = 40
_LONGEST_TEXT = 2**15 - 1
"""Bytes of a string in Kafka's protocol."""

_LONGEST_WAIT_S = 366 * 24 * 3600


class Seconds(click.FloatRange):
    """How long to wait. `nan`, which no comparison ends, is refused, and so is more than a year."""

    def __init__(self) -> None:
        super().__init__(min=0, max=_LONGEST_WAIT_S)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        seconds = super().convert(value, param, ctx)
        if seconds != seconds:
            self.fail(f"{value!r} is no number of seconds", param, ctx)
        return seconds


SECONDS = Seconds()


class Text(click.types.StringParamType):
    """Text that can be sent to a broker. Bytes that are not UTF-8 come from the shell as lone surrogates."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        text = super().convert(value, param, ctx)
        try:
            size = len(text.encode("utf-8"))
        except UnicodeEncodeError:
            self.fail(f"{text.encode('utf-8', 'surrogateescape')!r} is not UTF-8", param, ctx)
        if size > _LONGEST_TEXT:
            self.fail(f"{shortened(text)!r} has {size} bytes, and {_LONGEST_TEXT} can be sent", param, ctx)
        if "\0" in text:
            self.fail(f"{text!r} has a zero byte in it", param, ctx)
        return text


TEXT = Text()


def prepared(command: click.Command, *path: str) -> click.Command:
    """The command and all below it, with `Text` for their text and their examples as the end of their help."""
    for parameter in command.params:
        if parameter.type is click.STRING:
            parameter.type = TEXT
    if isinstance(command, click.Group):
        for name, below in command.commands.items():
            prepared(below, *path, name)
    examples = EXAMPLES.get(" ".join(path))
    if examples is not None:
        command.epilog = "\b\nExamples:\n" + "\n".join(f"  {line}" for line in examples)
    return command


def number(text: str, largest: int = 2**31 - 1) -> int | None:
    """What is written there in digits; None if it is anything else, or larger than that."""
    text = text.strip()
    if not (text.isascii() and text.isdecimal()) or len(text) > len(str(largest)) or int(text) > largest:
        return None
    return int(text)


def shortened(text: str) -> str:
    """Enough of it to be known again in an error message."""
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A second sentence about a name that is unknown, as click has it for options. Empty if no known name is near."""
    near = get_close_matches(name, list(known), 1)
    return f" Did you mean {near[0]!r}?" if near else ""


def interruptible() -> None:
    """From now on Ctrl-C raises KeyboardInterrupt: for a command that has something to put in order when it ends."""
    is_main = threading.current_thread() is threading.main_thread()
    if is_main and signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def print_anything() -> None:
    """Let names of files that are not UTF-8 be printed: their odd bytes as escapes, instead of an error."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
