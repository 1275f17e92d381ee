"""ApiVersions (18).

1 throttle time; 3 flexible, names the client's software; 4 features from version 0. A version above these is answered
in version 0 with UNSUPPORTED_VERSION and the list, so that the client can come again (KIP-511).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from tidelog.broker.dispatch import Served
from tidelog.errors import ErrorCode
from tidelog.net.channel import Call
from tidelog.wire.messages.headers import ApiVersion, ApiVersionsRequest, ApiVersionsResponse

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker

_PRODUCE = 0
_SOFTWARE = 3
_SOFTWARE_NAME = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


def api_versions(broker: Broker, request: ApiVersionsRequest, call: Call) -> ApiVersionsResponse:
    names = (request.client_software_name, request.client_software_version)
    if call.version >= _SOFTWARE and not all(_SOFTWARE_NAME.fullmatch(name) for name in names):
        return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST)
    return ApiVersionsResponse(api_keys=listed(broker.served))


def unsupported(served: Mapping[int, Served]) -> ApiVersionsResponse:
    return ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=listed(served))


def listed(served: Mapping[int, Served]) -> list[ApiVersion]:
    """Exactly what is served, but for Produce: librdkafka stops compressing unless it is listed from 0 (S7.5)."""
    return [
        ApiVersion(
            api_key=key,
            min_version=0 if key == _PRODUCE else one.versions.first,
            max_version=one.versions.last,
        )
        for key, one in sorted(served.items())
    ]
