"""What commands print: a table for people, one JSON object per line for programs."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping
from typing import Any

import click

_WIDTH_WITHOUT_TERMINAL = 200

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
    click.echo(json.dumps(row, ensure_ascii=False))


def _print_table(rows: list[Mapping[str, Any]], title: str | None) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    if not console.is_terminal:
        console.width = _WIDTH_WITHOUT_TERMINAL
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    for name, value in rows[0].items():
        table.add_column(name.replace("_", " "), justify="right" if isinstance(value, int) else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(_cell(value)) for value in row.values()))
    console.print(table)


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else ""
    if isinstance(value, list | tuple):
        return ",".join(str(item) for item in value)
    return str(value)


def put_bytes(row: dict[str, Any], name: str, data: bytes | None) -> None:
    """As text, or as `<name>_base64` where it is not UTF-8."""
    if data is None:
        row[name] = None
        return
    try:
        row[name] = data.decode("utf-8")
    except UnicodeDecodeError:
        row[f"{name}_base64"] = base64.b64encode(data).decode("ascii")
