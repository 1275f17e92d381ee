"""Data that was to be read and is gone: told to the user, or tolerated and logged. Pure but for the log."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import NamedTuple

from tidelog.spark.errors import DataLossError
from tidelog.types import Offset, TopicPartition

log = logging.getLogger(__name__)


class Loss(NamedTuple):
    """Offsets of one partition that nobody can read any more; `end`, not among them, is None where it is not known."""

    partition: TopicPartition
    start: Offset
    end: Offset | None
    why: str

    def __str__(self) -> str:
        topic, number = self.partition
        until = "on" if self.end is None else f"up to {self.end}"
        return f"topic {topic}, partition {number}, from offset {self.start} {until}: {self.why}"


def check_losses(losses: Iterable[Loss], fail: bool) -> None:
    """DataLossError if a loss ends the query (failOnDataLoss). Otherwise each is logged: it must not be silent."""
    found = list(losses)
    if found and fail:
        raise DataLossError("; ".join(map(str, found)))
    for loss in found:
        log.warning("data loss, tolerated by failOnDataLoss=false: %s", loss)
