"""InitProducerId (22): 2 flexible; 3 a producer that lost its state asks for a new epoch; 4, 5 error codes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.coordination.port import CoordinationError
from tidelog.errors import ErrorCode
from tidelog.net.channel import Call
from tidelog.wire.messages.transactions import InitProducerIdRequest, InitProducerIdResponse

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker


async def init_producer_id(broker: Broker, request: InitProducerIdRequest, call: Call) -> InitProducerIdResponse:
    """An id for an idempotent producer (S13.1). One that lost its place gets a new id too, as from Kafka."""
    if request.transactional_id == "":
        return InitProducerIdResponse(error_code=ErrorCode.INVALID_REQUEST, producer_epoch=-1)
    if request.transactional_id is not None:
        # There is no transaction coordinator to be found, so no client that looks for one comes here.
        return InitProducerIdResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, producer_epoch=-1)
    try:
        return InitProducerIdResponse(producer_id=await broker.producer_ids.next(), producer_epoch=0)
    except CoordinationError:
        return InitProducerIdResponse(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, producer_epoch=-1)
