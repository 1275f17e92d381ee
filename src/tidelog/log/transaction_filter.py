"""Which transactional batches compaction may drop: those of aborted transactions, and markers that mark nothing.

An aborted record must never become visible by losing its marker or its entry in the index (edge case 24),
and must never push an older, committed record of its key out.
"""

from __future__ import annotations

from collections.abc import Iterable

from tidelog.log.transaction_index import AbortedTxn
from tidelog.records.control import ControlType
from tidelog.records.header import BatchHeader
from tidelog.types import ProducerId


class TransactionFilter:
    """Fed with the batches of the cleaned range in order."""

    def __init__(self, aborted: Iterable[AbortedTxn]) -> None:
        self._coming = sorted(aborted, key=lambda txn: txn.first_offset, reverse=True)
        self._aborting: dict[ProducerId, tuple[AbortedTxn, bool]] = {}
        """Of those that have begun: the transaction, and whether a batch of it was met."""
        self._committing: set[ProducerId] = set()
        self.still_aborted: list[AbortedTxn] = []
        """Those whose marker stays, so that their entries must stay in the index."""

    def drops_data(self, header: BatchHeader) -> bool:
        """True if the batch belongs to an aborted transaction."""
        self._advance(header)
        if not header.is_transactional:
            return False
        begun = self._aborting.get(header.producer_id)
        if begun is not None:
            self._aborting[header.producer_id] = (begun[0], True)
            return True
        self._committing.add(header.producer_id)
        return False

    def marker_is_empty(self, header: BatchHeader, control_type: ControlType) -> bool:
        """True if nothing is left of the transaction that this marker ends."""
        self._advance(header)
        if control_type is ControlType.COMMIT:
            met = header.producer_id in self._committing
            self._committing.discard(header.producer_id)
            return not met
        if control_type is ControlType.ABORT:
            begun = self._aborting.pop(header.producer_id, None)
            if begun is None or not begun[1]:
                return True
            self.still_aborted.append(begun[0])
            return False
        return False

    def _advance(self, header: BatchHeader) -> None:
        while self._coming and self._coming[-1].first_offset <= header.last_offset:
            txn = self._coming.pop()
            self._aborting[txn.producer_id] = (txn, False)
