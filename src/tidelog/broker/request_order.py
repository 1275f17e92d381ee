"""The newest request of a controller that this broker has seen: an older one changes nothing (edge case 42)."""

from __future__ import annotations

from tidelog.broker.partition import RequestError
from tidelog.controller.sequence import NO_SEQUENCE, sequence_of
from tidelog.errors import ErrorCode
from tidelog.types import NO_EPOCH, Epoch
from tidelog.wire.schema import Message


class RequestOrder:
    """One order for LeaderAndIsr, UpdateMetadata and StopReplica together: a late StopReplica must not undo a
    LeaderAndIsr.

    A request with the newest number is taken again. The controller sends the next one only after this one is answered,
    so an equal number is a retry whose answer was lost, and to apply the newest request twice changes nothing.
    """

    def __init__(self) -> None:
        self._newest: tuple[Epoch, int] = NO_EPOCH, NO_SEQUENCE

    def admit(self, controller_epoch: Epoch, request: Message) -> None:
        """STALE_CONTROLLER_EPOCH if a newer request of this controller, or of a later one, came before.

        A request without a number (of a Kafka controller) is admitted; its leader epochs and partition epochs are all
        there is to compare.
        """
        sequence = sequence_of(request)
        if sequence == NO_SEQUENCE:
            return
        if (controller_epoch, sequence) < self._newest:
            raise RequestError(
                ErrorCode.STALE_CONTROLLER_EPOCH,
                f"a late {type(request).__name__} of controller epoch {controller_epoch}: it has number {sequence}, "
                f"and number {self._newest[1]} of epoch {self._newest[0]} came before",
            )
        self._newest = controller_epoch, sequence
