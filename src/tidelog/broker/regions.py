"""A stretch of a log that a fetch answer announces and that is read as the client takes it."""

from __future__ import annotations

from tidelog.log.log import Log
from tidelog.log.reading import Region
from tidelog.net.outbox import RegionGoneError
from tidelog.types import Buffer


class LogRegion:
    """The bytes may be gone when their turn comes: retention or truncation does not wait for slow readers.

    After a truncation other batches may stand in their place, which were never part of this answer: then the rest of
    it is not sent either, and the connection ends (edge case 29).
    """

    __slots__ = ("_log", "_region")

    def __init__(self, log: Log, region: Region) -> None:
        self._log = log
        self._region = region

    def __len__(self) -> int:
        return self._region.size

    def read_now(self, start: int, size: int) -> Buffer | None:
        self._check()
        try:
            data = self._region.file.read_cached(self._region.position + start, size)
        except ValueError:
            raise self._gone() from None
        return None if data is None else self._whole(data, size)

    def send_now(self, socket: int, start: int, size: int) -> int | None:
        self._check()
        try:
            return self._region.file.send_cached(socket, self._region.position + start, size)
        except ValueError:
            raise self._gone() from None

    async def read(self, start: int, size: int) -> Buffer:
        self._check()
        file, position = self._region.file, self._region.position + start
        try:
            data = await self._log.work.beside(lambda: file.read_at(position, size))
        except ValueError:
            raise self._gone() from None
        self._check()  # a disk thread may have cut the file while another one was reading it
        return self._whole(data, size)

    def _check(self) -> None:
        if self._region.is_void:
            raise self._gone()

    def _whole(self, data: Buffer, size: int) -> Buffer:
        if len(data) != size:
            raise self._gone()
        return data

    def _gone(self) -> RegionGoneError:
        return RegionGoneError(f"{self._log.partition} was cut while an answer with its records was being sent")
