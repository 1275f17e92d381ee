"""The mark of a log directory in which a sync failed.

After a failed fdatasync the kernel may take the pages that it could not write for clean: the page cache shows them, a
later sync succeeds, and they are not on the device. Every process that opens a directory which was not closed writes
what lies above the recovery points anew, so that a later sync is worth something (`recovery`). But until then the
kernel may have dropped such pages, and then they are lost although the machine has not lost power. So a directory in
which a sync failed is marked, and the broker that opens it next counts as one that may have lost records.

The mark has to live as long as the page cache does: a power loss takes both. So a mark that cannot be synced is worth
having too, and if the directory takes none at all, another log directory of the same broker holds it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Sequence

from tidelog.errors import StorageError
from tidelog.ports import Disk

_MARK = ".tidelog-suspect"
_TEXT = b"a sync failed in %s: what is not below a recovery point may be lost\n"
_REFUSALS = (StorageError, FileNotFoundError)


def mark_suspect(disk: Disk, directory: str, others: Sequence[str]) -> bool:
    """As durably as possible; False if the mark could be left nowhere."""
    own, text = _own(directory), _TEXT % directory.encode()
    with contextlib.suppress(*_REFUSALS):
        disk.write_file(own, text)
        return True
    is_marked = False
    with contextlib.suppress(*_REFUSALS):
        file = disk.open(own, create=True)
        try:
            file.write_at(0, [text])
            is_marked = True
        finally:
            file.close()
    for other in others:
        with contextlib.suppress(*_REFUSALS):
            disk.write_file(_elsewhere(other, directory), text)
            return True
    return is_marked


def is_suspect(disk: Disk, directory: str, others: Sequence[str]) -> bool:
    """That a mark is there is what counts, whatever it says."""
    return any(map(disk.exists, _places(directory, others))) or bool(_marks_of_unknown(disk, directory, others))


def clear_suspect(disk: Disk, directory: str, others: Sequence[str]) -> None:
    """The directory's logs have been written anew, and the cluster knows that they may have lost something."""
    for path in [*_places(directory, others), *_marks_of_unknown(disk, directory, others)]:
        if disk.exists(path):
            disk.remove(path)
            disk.sync_directory(os.path.dirname(path))


def _marks_of_unknown(disk: Disk, directory: str, others: Sequence[str]) -> list[str]:
    """Marks in this directory that mean one which log.dirs does not name. It may be among them under another path, so
    its mark counts against the directory that holds it."""
    known = {_MARK, *(os.path.basename(_elsewhere(directory, other)) for other in others)}
    marks = [name for name in disk.list(directory) if name.startswith(_MARK)]
    return [os.path.join(directory, name) for name in marks if name not in known]


def _places(directory: str, others: Sequence[str]) -> list[str]:
    return [_own(directory), *(_elsewhere(other, directory) for other in others)]


def _own(directory: str) -> str:
    return os.path.join(directory, _MARK)


def _elsewhere(other: str, directory: str) -> str:
    """The name tells which directory is meant; each has its own, so that two that fail at once do not meet."""
    return os.path.join(other, f"{_MARK}.{hashlib.sha256(directory.encode()).hexdigest()[:16]}")
