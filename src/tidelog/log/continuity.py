"""What a log directory has kept since when: the note by which a broker tells a killed process from a lost machine.

A killed process leaves its writes in the page cache, and its successor on the same boot of the machine finds all of
them. A machine that lost power kept only what was synced. So each log directory holds a note with the boot in which
it was last used and the broker epochs over which nothing was lost; the broker tells these with its registration, and
the controller decides by them who may lead (S6.2, edge case 9).

A copy of a log directory that was taken while a broker used it holds the note too, but it is not whole, and the broker
whose epoch it names may be alive. So the note also tells which directory it was written in.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable
from typing import NamedTuple

from tidelog.errors import StorageError
from tidelog.log import names
from tidelog.ports import Disk
from tidelog.types import NO_EPOCH, Epoch

_VERSION = 0


class Continuity(NamedTuple):
    """The broker epochs over which a directory has lost nothing, the first and the last of them included."""

    intact_since: Epoch = NO_EPOCH
    """NO_EPOCH: what was there before this process may be lost, in part or as a whole."""
    last_epoch: Epoch = NO_EPOCH
    """The broker epoch that the directory noted last. A directory that was put back from a copy has missed the
    epochs since then, and the last one that the store knows of shows it."""


BROKEN = Continuity()


class BootNote(NamedTuple):
    """The content of the note."""

    boot_id: str
    continuity: Continuity
    directories: int = 1
    """How many log directories the broker had. If fewer of its directories have been in use, one was taken away or
    replaced by an empty one, and the broker does not know which replicas are missing."""
    is_original: bool = True
    """It was written in the directory that it was found in; else this is a copy."""
    cluster_id: str = ""
    """The cluster that the broker epochs belong to; empty in a note of an older version."""


def read_boot_note(disk: Disk, log_directory: str) -> BootNote | None:
    """None if there is none, or none that can be read: then nothing is known of what was lost."""
    try:
        fields = json.loads(disk.read_file(os.path.join(log_directory, names.BOOT_NOTE)))
        continuity = Continuity(fields["intactSince"], fields["lastEpoch"])
        is_original = fields.get("directory") == disk.identity(log_directory)
        note = BootNote(fields["bootId"], continuity, fields["directories"], is_original, fields.get("clusterId", ""))
    except (FileNotFoundError, StorageError, ValueError, KeyError, TypeError):
        return None
    is_whole = all(type(each) is int for each in (*note.continuity, note.directories))
    return note if is_whole and isinstance(note.boot_id, str) and isinstance(note.cluster_id, str) else None


def write_boot_note(disk: Disk, log_directory: str, note: BootNote) -> None:
    fields = {
        "version": _VERSION,
        "bootId": note.boot_id,
        "intactSince": note.continuity.intact_since,
        "lastEpoch": note.continuity.last_epoch,
        "directories": note.directories,
        "directory": disk.identity(log_directory),
        "clusterId": note.cluster_id,
    }
    path = os.path.join(log_directory, names.BOOT_NOTE)
    disk.write_file(path, json.dumps(fields, separators=(",", ":")).encode())


def carry_boot_note(disk: Disk, log_directory: str, boot_id: str) -> None:
    """Into this boot, before the mark of a clean shutdown goes: a process that is killed from then on leaves the note
    alone, and the directory was whole when this boot began to use it."""
    note = read_boot_note(disk, log_directory)
    if note is not None and boot_id != "":
        write_boot_note(disk, log_directory, note._replace(boot_id=boot_id))


def remove_boot_note(disk: Disk, log_directory: str) -> None:
    """The directory has lost something, whatever the boot."""
    with contextlib.suppress(FileNotFoundError):
        disk.remove(os.path.join(log_directory, names.BOOT_NOTE))
        disk.sync_directory(log_directory)


def continued(
    note: BootNote | None, boot_id: str, was_clean: bool, directories: int = 1, cluster_id: str = ""
) -> Continuity:
    """What this process may say of a directory that it has found: its past is whole after a clean shutdown, or if no
    power was lost since the process before it and this is no copy. `directories`: how many of those that log.dirs names
    now have been in use before; new ones that are empty do not count.

    A directory of another cluster holds nothing of this one, whatever meta.properties says by now."""
    if note is None or directories < note.directories or note.cluster_id not in ("", cluster_id):
        return BROKEN
    is_of_this_boot = boot_id != "" and note.boot_id == boot_id
    if not (was_clean or (is_of_this_boot and note.is_original)):
        return BROKEN
    return note.continuity if note.continuity.intact_since >= 0 else BROKEN


def of_all(directories: Iterable[Continuity]) -> Continuity:
    """What holds for every one of a broker's directories: it does not know which partitions a lost one had.

    A directory that has never been in use has lost nothing and is not among them. `continued` finds out whether an
    empty directory stands in the place of another one: then fewer directories have been in use than the notes say."""
    every = list(directories)
    if not every or BROKEN in every:
        return BROKEN
    return Continuity(max(each.intact_since for each in every), min(each.last_epoch for each in every))
