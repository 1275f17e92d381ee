"""What commands print: a table for people, one JSON object per line for programs."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rich.table import Table

_WIDTH_WITHOUT_TERMINAL = 1000
"""Lines in a pipe are not folded: the next program would see one row as several."""

_BETWEEN_COLUMNS = 2
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f]")

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_PATH_PIECE = 26


class Parts(tuple[str, ...]):
    """A text for a table that is broken between these parts, and nowhere else, where it does not fit."""


class Size(int):
    """Bytes, for a table."""

    def __str__(self) -> str:
        size, unit = float(self), 0
        while size >= 1024 and unit < len(_UNITS) - 1:
            size, unit = size / 1024, unit + 1
        return f"{size:.1f} {_UNITS[unit]}" if unit else f"{int(self)} B"


def path_parts(path: str) -> Parts:
    """Broken before slashes, into as few pieces as fit a column."""
    pieces: list[str] = []
    for name in re.findall("/?[^/]*", path):
        if pieces and len(pieces[-1]) + len(name) <= _PATH_PIECE:
            pieces[-1] += name
        elif name:
            pieces.append(name)
    return Parts(pieces)


json_option = click.option("--json", "as_json", is_flag=True, help="One JSON object per line, for programs.")


def print_rows(rows: Iterable[Mapping[str, Any]], *, as_json: bool, title: str | None = None, empty: str = "") -> None:
    """The rows in the form that was asked for; they share their keys, which become the columns."""
    listed = list(rows)
    if as_json:
        for row in listed:
            print_json(row)
    elif listed:
        _print_table(listed, title)
    elif empty:
        click.echo(empty)


def print_json(row: Mapping[str, Any]) -> None:
    """A line that a terminal cannot take for commands either: JSON itself escapes only the first 32 characters."""
    text = json.dumps(row, ensure_ascii=False)
    click.echo(_CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text))


def printable(text: str) -> str:
    r"""Control characters as \x1b and the like: names that clients chose must not command a terminal."""
    return _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


def _print_table(rows: list[Mapping[str, Any]], title: str | None) -> None:
    from rich.console import Console

    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = _WIDTH_WITHOUT_TERMINAL
    if title is not None:
        click.echo(_printable_lines(title))
    console.print(table(rows, console.width))


def table(rows: list[Mapping[str, Any]], width: int) -> Table:
    """A table that fits the width: numbers stay whole, headings break at spaces, and long text is folded.

    Columns without a value in any row are left out.
    """
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    shown = {name: [_cell(row[name]) for row in rows] for name in rows[0]}
    shown = {name: cells for name, cells in shown.items() if any(cells)}
    is_tight = _natural_width(shown) > width
    if is_tight:
        shown = {name: [_cell(row[name], "\n") for row in rows] for name in shown}
    made = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, _BETWEEN_COLUMNS - 1, 0, 0))
    for name in shown:
        is_number = all(value is None or isinstance(value, int) for value in (row[name] for row in rows))
        is_whole = is_number or any(isinstance(row[name], Parts) for row in rows)
        heading = name.replace("_", "\n" if is_tight else " ")
        made.add_column(heading, justify="right" if is_number else "left", overflow="fold", no_wrap=is_whole)
    for cells in zip(*shown.values(), strict=True):
        made.add_row(*map(Text, cells))
    return made


def _printable_lines(text: str) -> str:
    return "\n".join(map(printable, text.split("\n")))


def _natural_width(shown: Mapping[str, list[str]]) -> int:
    widths = (max(len(name), *map(len, cells)) for name, cells in shown.items())
    return sum(width + _BETWEEN_COLUMNS for width in widths)


def _cell(value: object, between_parts: str = "") -> str:
    if isinstance(value, Parts):
        return between_parts.join(map(printable, value))
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ",".join(_cell(item) for item in value)
    return printable(str(value))


def put_bytes(row: dict[str, Any], name: str, data: bytes | None) -> None:
    """As text, or as `<name>_base64` where it is not UTF-8."""
    if data is None:
        row[name] = None
        return
    try:
        row[name] = data.decode("utf-8")
    except UnicodeDecodeError:
        row[f"{name}_base64"] = base64.b64encode(data).decode("ascii")
