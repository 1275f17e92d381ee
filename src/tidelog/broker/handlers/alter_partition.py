"""AlterPartition (56) and ControlledShutdown (7): what brokers ask of the controller.

| API                | versions | what they added                                                       |
|--------------------|----------|-----------------------------------------------------------------------|
| AlterPartition     | 0 - 3    | 1 recovery state; 2 topic ids; 3 broker epochs of the ISR (KIP-903)   |
| ControlledShutdown | 2 - 3    | 2 broker epoch, without which it is not known who asks; 3 flexible    |

On any other broker the answer is NOT_CONTROLLER, and nothing has changed that the sender could count on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.net.channel import Call
from tidelog.wire.messages.controller import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    ControlledShutdownRequest,
    ControlledShutdownResponse,
)

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker


async def alter_partition(broker: Broker, request: AlterPartitionRequest, call: Call) -> AlterPartitionResponse:
    return await broker.controller.alter_partition(request, call.version)


async def controlled_shutdown(
    broker: Broker, request: ControlledShutdownRequest, call: Call
) -> ControlledShutdownResponse:
    return await broker.controller.controlled_shutdown(request)
