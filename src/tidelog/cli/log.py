"""`tidelog log`: looking into a log's files, without a broker."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tidelog.cli.commands import OFFSET
from tidelog.cli.output import Parts, json_option, print_rows
from tidelog.cli.records import as_object
from tidelog.cli.since import iso_time
from tidelog.errors import TidelogError
from tidelog.records.batch import decode_batch
from tidelog.records.control import control_type
from tidelog.records.header import BatchHeader
from tidelog.records.scan import TORN, scan

if TYPE_CHECKING:
    from tidelog.records.kernel import Record

_SEGMENT = re.compile(r"[0-9]{20}\.log")
"""Its first offset. The log of a broker process, which may lie beside it, has another name."""

_CLOCK = re.compile("^[^+-]+|[+-].*")
"""The time of day, and its zone."""


@click.group("log")
def command() -> None:
    """Look into the files of a log."""


@command.command()
@click.argument("path", type=click.Path(exists=True, path_type=Path))
@click.option("--records", "show_records", is_flag=True, help="Show the records, not only their batches.")
@click.option(
    "--from", "from_offset", type=OFFSET, default=0, metavar="OFFSET", help="Begin with the batch that has it."
)
@click.option(
    "--json", "as_json", is_flag=True, help="One JSON object per line; what is not UTF-8 as key_base64 and so on."
)
def dump(path: Path, show_records: bool, from_offset: int, as_json: bool) -> None:
    """Show what is in a segment file, or in all segments of a partition's directory.

    Exits with 1 if a batch is damaged.
    """
    files = sorted(filter(_is_segment, path.iterdir())) if path.is_dir() else [path]
    if not files:
        raise click.ClickException(f"{path} holds no segments, such as 00000000000000000000.log: is it a partition's?")
    if not all(file.is_file() for file in files):
        raise click.ClickException(f"{path} is neither a file nor a directory")
    found = [_dump(file, show_records, from_offset, as_json) for file in files]
    if not all(found):
        raise SystemExit(1)


def _is_segment(file: Path) -> bool:
    return _SEGMENT.fullmatch(file.name) is not None and file.is_file()


def _dump(file: Path, show_records: bool, from_offset: int, as_json: bool) -> bool:
    """Print what is in one file; False if it is damaged."""
    try:
        data = file.read_bytes()
    except OSError as failure:
        raise click.ClickException(f"{file} cannot be read: {failure.strerror}") from failure
    rows: list[dict[str, Any]] = []
    damage: dict[str, Any] | None = None
    try:
        for row in _rows(data, show_records, from_offset, as_json):
            if "damaged" in row:
                damage = row
            else:
                rows.append(row)
    except TidelogError as failure:
        damage = {"position": None, "damaged": str(failure)}
    if as_json:
        print_rows([*rows, *([damage] if damage else [])], as_json=True)
        return damage is None
    if rows or damage is None:
        print_rows(rows, as_json=False, title=str(file), empty=f"{file}: empty")
    if damage is not None:
        click.echo(f"{file} {_damage(rows, damage)}")
    return damage is None


def _damage(rows: list[dict[str, Any]], damage: dict[str, Any]) -> str:
    """A file that begins with something else is not called damaged: it may never have been a log."""
    if not rows and damage["position"] == 0:
        return f"does not begin with a whole batch of records, so it is no segment of a log: {damage['damaged']}"
    where = "" if damage["position"] is None else f" at byte {damage['position']}"
    return f"is damaged{where}: {damage['damaged']}"


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


def _rows(data: bytes, show_records: bool, from_offset: int, as_json: bool) -> Iterator[dict[str, Any]]:
    found = scan(data)
    for position, header in found.batches:
        if header.last_offset < from_offset:
            continue
        if show_records:
            for record in decode_batch(data, header, position):
                yield as_object(record) if as_json else _record_row(record)
        else:
            yield _batch_object(data, header, position) if as_json else _batch_row(data, header, position)
    if found.reason is not None:
        reason = "it ends within a batch" if found.reason == TORN else found.reason
        yield {"position": found.end, "damaged": reason}


def _control(data: bytes, header: BatchHeader, position: int) -> str | None:
    return control_type(data, header, position).name.lower() if header.is_control else None


def _batch_row(data: bytes, header: BatchHeader, position: int) -> dict[str, Any]:
    """For people, with empty cells where there is nothing to say."""
    sequence = Parts((f"{header.producer_id}/{header.producer_epoch}", f"@{header.base_sequence}"))
    kind = _control(data, header, position) or ("transactional data" if header.is_transactional else "data")
    return {
        "position": position,
        "offsets": Parts((f"{header.base_offset}..", str(header.last_offset))),
        "records": header.record_count,
        "bytes": header.size_bytes,
        "epoch": header.partition_leader_epoch,
        "codec": header.codec.name.lower(),
        "max_timestamp": _time(header.max_timestamp),
        "producer": sequence if header.producer_id >= 0 else "",
        "kind": kind,
    }


def _batch_object(data: bytes, header: BatchHeader, position: int) -> dict[str, Any]:
    """For programs: numbers as numbers, null where there is none."""
    has_producer = header.producer_id >= 0
    return {
        "position": position,
        "base_offset": header.base_offset,
        "last_offset": header.last_offset,
        "records": header.record_count,
        "bytes": header.size_bytes,
        "leader_epoch": header.partition_leader_epoch,
        "codec": header.codec.name.lower(),
        "max_timestamp": header.max_timestamp,
        "producer_id": header.producer_id if has_producer else None,
        "producer_epoch": header.producer_epoch if has_producer else None,
        "base_sequence": header.base_sequence if has_producer else None,
        "transactional": header.is_transactional,
        "control": _control(data, header, position),
    }


def _record_row(record: Record) -> dict[str, Any]:
    return {
        "offset": record.offset,
        "timestamp": _time(record.timestamp),
        "key": _text(record.key),
        "value": _text(record.value),
        "headers": [f"{name}={_text(value)}" for name, value in record.headers],
    }


def _time(timestamp: int) -> Parts:
    """As `consume --times` shows it; nothing where there is none."""
    day, t, time = iso_time(timestamp).partition("T") if timestamp >= 0 else ("", "", "")
    return Parts((f"{day}{t}", *_CLOCK.findall(time)))


def _text(data: bytes | None) -> str:
    return "null" if data is None else data.decode("utf-8", "backslashreplace")
