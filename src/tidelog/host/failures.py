"""How a failed system call becomes a StorageError that says what to do."""

from __future__ import annotations

import errno
import os

from tidelog.errors import NoDescriptorError, StorageError, SyncError

SYNC = "sync"
"""The action of which a failure is a SyncError."""

OUT_OF_DESCRIPTORS = frozenset({errno.EMFILE, errno.ENFILE})
"""What the kernel answers when this process, or all of them together, have too many files open."""

_ADVICE = {
    errno.ENOSPC: "free space on the device, or lower log.retention.bytes or log.retention.ms",
    errno.EDQUOT: "raise the disk quota, or lower log.retention.bytes or log.retention.ms",
    errno.EMFILE: "raise the limit of open files of this process (ulimit -n)",
    errno.ENFILE: "raise the limit of open files of this machine (fs.file-max)",
    errno.EACCES: "let the user of this process read and write log.dirs",
    errno.EPERM: "let the user of this process read and write log.dirs",
    errno.EROFS: "mount the device for writing, or choose other log.dirs",
    errno.EIO: "the device failed; replace it, or take it out of log.dirs",
}


def storage_error(action: str, path: str, cause: OSError) -> StorageError:
    """Raise it `from cause`."""
    number = cause.errno or 0
    text = f"cannot {action} {path}: {os.strerror(number)} ({errno.errorcode.get(number, number)})"
    advice = _ADVICE.get(number)
    kind = NoDescriptorError if number in OUT_OF_DESCRIPTORS else SyncError if action == SYNC else StorageError
    return kind(f"{text}; {advice}" if advice else text)
