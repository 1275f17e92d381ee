"""FindCoordinator (10): 1 kinds of keys; 3 flexible; 4 many keys; 5, 6 errors and kinds that are new.

It is answered, because clients judge a broker by whether it lists it (librdkafka's lz4 is one case). There are no
coordinators yet, and that is the answer: a client that needs one tries again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.errors import ErrorCode
from tidelog.net.channel import Call
from tidelog.wire.messages.metadata import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker

_MANY_KEYS = 4
_NOBODY = -1
_WHY = "groups and transactions are not served yet"


def find_coordinator(broker: Broker, request: FindCoordinatorRequest, call: Call) -> FindCoordinatorResponse:
    code = ErrorCode.COORDINATOR_NOT_AVAILABLE
    if call.version < _MANY_KEYS:
        return FindCoordinatorResponse(error_code=code, error_message=_WHY, node_id=_NOBODY, host="", port=-1)
    return FindCoordinatorResponse(
        coordinators=[
            Coordinator(key=key, node_id=_NOBODY, host="", port=-1, error_code=code, error_message=_WHY)
            for key in request.coordinator_keys
        ]
    )
