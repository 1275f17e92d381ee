"""`tidelog log`: looking into a log's files, without a broker."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from tidelog.cli.output import json_option, print_rows
from tidelog.errors import TidelogError
from tidelog.records.batch import decode_batch
from tidelog.records.control import control_type
from tidelog.records.header import BatchHeader
from tidelog.records.scan import scan

_WIDTH_WITHOUT_TERMINAL = 200


@click.group("log")
def command() -> None:
    """Look into the files of a log."""


@command.command()
@click.argument("path", type=click.Path(exists=True, path_type=Path))
@click.option("--records", "show_records", is_flag=True, help="Show the records, not only their batches.")
@click.option(
    "--from", "from_offset", type=int, default=0, metavar="OFFSET", help="Begin with the batch that holds it."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line; keys and values in base 64.")
def dump(path: Path, show_records: bool, from_offset: int, as_json: bool) -> None:
    """Show what is in a segment file, or in all segments of a partition's directory.

    Exits with 1 if a batch is damaged.
    """
    files = [path] if path.is_file() else sorted(path.glob("*.log"))
    if not files:
        raise click.ClickException(f"{path} holds no .log files")
    damaged = False
    for file in files:
        rows = _rows(file, show_records, from_offset)
        damaged = (_print_json(rows) if as_json else _print_table(file, rows)) or damaged
    if damaged:
        raise SystemExit(1)


@command.command()
@click.argument("directory", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--delete", "names", multiple=True, metavar="NAME", help="Delete this stray for good; may be repeated.")
@json_option
def strays(directory: Path, names: tuple[str, ...], as_json: bool) -> None:
    """Show the strays in a log directory (one of log.dirs), or delete some.

    A stray is a replica that the controller did not name when it told its broker of all partitions: the partition was
    moved away while the broker was down, or a node in the coordination store cannot be read. The broker keeps it, and
    takes it back if the controller names it again with the same topic id. The broker may run meanwhile.
    """
    from tidelog.host.disk import RealDisk
    from tidelog.log.strays import discard, find_strays
    from tidelog.wire.uuids import uuid_text

    disk = RealDisk()
    try:
        found = {stray.name: stray for stray in find_strays(disk, str(directory)).values()}
        unknown = [name for name in names if name not in found]
        if unknown:
            raise click.ClickException(f"{directory} holds no stray {unknown[0]}; nothing is deleted")
        for name in names:
            if discard(disk, found[name]):
                click.echo(f"deleted {name}, {found[name].size_bytes} bytes")
    except TidelogError as failure:
        raise click.ClickException(str(failure)) from failure
    finally:
        disk.close()
    if not names:
        rows = [
            {
                "stray": stray.name,
                "topic": stray.partition.topic,
                "partition": stray.partition.partition,
                "topic_id": uuid_text(stray.topic_id) if stray.topic_id else None,
                "bytes": stray.size_bytes,
            }
            for stray in found.values()
        ]
        print_rows(rows, as_json=as_json, empty=f"{directory} holds no strays")


def _rows(file: Path, show_records: bool, from_offset: int) -> Iterator[dict[str, Any]]:
    data = file.read_bytes()
    found = scan(data)
    for position, header in found.batches:
        if header.last_offset < from_offset:
            continue
        if show_records:
            yield from _record_rows(data, header, position)
        else:
            yield _batch_row(data, header, position)
    if found.reason is not None:
        yield {"position": found.end, "damaged": found.reason}


def _batch_row(data: bytes, header: BatchHeader, position: int) -> dict[str, Any]:
    kind = control_type(data, header, position).name.lower() if header.is_control else "data"
    return {
        "position": position,
        "offsets": f"{header.base_offset}..{header.last_offset}",
        "records": header.record_count,
        "bytes": header.size_bytes,
        "epoch": header.partition_leader_epoch,
        "codec": header.codec.name.lower(),
        "max timestamp": header.max_timestamp,
        "producer": f"{header.producer_id}/{header.producer_epoch}@{header.base_sequence}"
        if header.producer_id >= 0
        else "",
        "kind": ("transactional " if header.is_transactional and not header.is_control else "") + kind,
    }


def _record_rows(data: bytes, header: BatchHeader, position: int) -> Iterator[dict[str, Any]]:
    for record in decode_batch(data, header, position):
        yield {
            "offset": record.offset,
            "timestamp": record.timestamp,
            "key": record.key,
            "value": record.value,
            "headers": [[name, value] for name, value in record.headers],
        }


def _print_json(rows: Iterator[dict[str, Any]]) -> bool:
    damaged = False
    for row in rows:
        damaged = damaged or "damaged" in row
        click.echo(json.dumps(row, default=_base64))
    return damaged


def _base64(value: object) -> str:
    if isinstance(value, bytes | bytearray | memoryview):
        return base64.b64encode(value).decode()
    raise TypeError(f"{type(value).__name__} is not JSON")


def _print_table(file: Path, rows: Iterator[dict[str, Any]]) -> bool:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    if not console.is_terminal:
        console.width = _WIDTH_WITHOUT_TERMINAL
    table: Table | None = None
    damage: dict[str, Any] | None = None
    try:
        for row in rows:
            if "damaged" in row:
                damage = row
                break
            if table is None:
                table = Table(*row, title=str(file), title_justify="left")
            table.add_row(*(_cell(value) for value in row.values()))
    except TidelogError as failure:
        damage = {"position": "?", "damaged": str(failure)}
    console.print(table if table is not None else f"{file}: empty")
    if damage is not None:
        console.print(f"[red]damaged at byte {damage['position']}: {damage['damaged']}[/red]", highlight=False)
    return damage is not None


def _cell(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    return str(value)
