"""Whole frames: size, header and message, as they cross a connection.

Encoding yields the size too, ready to be sent. Decoding takes the frame without its size, which the reader of the
connection has used up to cut it.
"""

from __future__ import annotations

import struct
import sys
from typing import Any, NamedTuple

from tidelog.errors import UnsupportedVersionError, WireError
from tidelog.types import Buffer
from tidelog.wire import decoder, encoder
from tidelog.wire.api import API, Api
from tidelog.wire.messages.headers import RequestHeader, ResponseHeader
from tidelog.wire.plan import decoder_of, encoder_of
from tidelog.wire.schema import Message

_KEY_AND_VERSION = struct.Struct(">hh")
_REQUEST_PLANS: dict[tuple[int, ...], tuple[decoder.Struct, decoder.Struct]] = {}
_RESPONSE_PLANS: dict[tuple[type[Message], int], tuple[encoder.Struct, encoder.Struct]] = {}
"""As they were used: by API key and version, and by message and version."""


STEP_ELEMENTS = 5_000
STEP_BYTES = 2 * 1024 * 1024
"""Of a message that is decoded or encoded in steps: a step takes a few milliseconds at most."""
FIRST_STEP_ELEMENTS = 1_000
FIRST_STEP_BYTES = 256 * 1024
"""Of the first step, which many messages may take at the same time. Most need no other."""


class RequestFrame(NamedTuple):
    header: RequestHeader
    request: Message


class ResponseFrame(NamedTuple):
    correlation_id: int
    response: Message


def encode_request(request: Message, version: int, correlation_id: int, client_id: str | None) -> list[Any]:
    """The frame in parts, as `encode_parts` gives them."""
    plan = encoder_of(type(request), version)
    api = API[request.__schema__.api_key]
    header = RequestHeader(
        request_api_key=api.key,
        request_api_version=version,
        correlation_id=correlation_id,
        client_id=client_id,
    )
    header_plan = encoder_of(RequestHeader, api.request_header_version(version))
    return encoder.encode_frame(header_plan, header, plan, request)


def encode_response(response: Message, version: int, correlation_id: int) -> list[Any]:
    """The frame in parts, as `encode_parts` gives them."""
    plans = _RESPONSE_PLANS.get((type(response), version)) or _response_plans(type(response), version)
    return encoder.encode_frame(plans[0], ResponseHeader(correlation_id=correlation_id), plans[1], response)


def _response_plans(response: type[Message], version: int) -> tuple[encoder.Struct, encoder.Struct]:
    """Of its header and of the response, which are kept: most responses are of a few kinds."""
    header_version = API[response.__schema__.api_key].response_header_version(version)
    plans = encoder_of(ResponseHeader, header_version), encoder_of(response, version)
    _RESPONSE_PLANS[response, version] = plans
    return plans


class ResponseEncoding:
    """`encode_response` in steps."""

    def __init__(self, response: Message, version: int, correlation_id: int) -> None:
        header_plan, plan = _response_plans(type(response), version)
        header = ResponseHeader(correlation_id=correlation_id)
        self._encoding = encoder.Encoding(header_plan, header, plan, response)

    def first_step(self) -> list[Any] | None:
        """The parts of the frame if they are complete."""
        return self._encoding.step(FIRST_STEP_ELEMENTS, FIRST_STEP_BYTES)

    def step(self) -> list[Any] | None:
        """The same after more work."""
        return self._encoding.step(STEP_ELEMENTS, STEP_BYTES)


def decode_request(frame: Buffer, max_elements: int = sys.maxsize) -> RequestFrame:
    """UnsupportedVersionError for an API or version that is not in the table; `decode_request_header` can still read
    to whom to say so. Bytes behind the request are ignored, as Kafka does: librdkafka sends some.
    TooManyElementsError if its arrays and tagged fields have more elements in all than are allowed.
    """
    header_plan, plan = _request_plans(frame)
    header, position = decoder.decode(header_plan, frame, 0)
    request, _ = decoder.decode(plan, frame, position, max_elements)
    return RequestFrame(header, request)


def _request_plans(frame: Buffer) -> tuple[decoder.Struct, decoder.Struct]:
    """Of its header and of the request."""
    if len(frame) >= _KEY_AND_VERSION.size:
        known = _REQUEST_PLANS.get(_KEY_AND_VERSION.unpack_from(frame))
        if known is not None:
            return known
    api, version = _addressed(frame)
    if version not in api.versions:
        raise _unknown_version(api, version)
    plans = decoder_of(RequestHeader, api.request_header_version(version)), decoder_of(api.request, version)
    _REQUEST_PLANS[api.key, version] = plans
    return plans


class RequestDecoding:
    """`decode_request` in steps."""

    def __init__(self, frame: Buffer, max_elements: int) -> None:
        header_plan, plan = _request_plans(frame)
        self._header, position = decoder.decode(header_plan, frame, 0)
        self._decoding = decoder.Decoding(plan, frame, position, max_elements)

    def first_step(self) -> RequestFrame | None:
        """The request if it is complete."""
        return self._step(FIRST_STEP_ELEMENTS, STEP_BYTES)

    def step(self) -> RequestFrame | None:
        """The same after more work."""
        return self._step(STEP_ELEMENTS, STEP_BYTES)

    def _step(self, elements: int, size: int) -> RequestFrame | None:
        request: Message | None = self._decoding.step(elements, size)
        return None if request is None else RequestFrame(self._header, request)


def decode_request_header(frame: Buffer) -> RequestHeader:
    """The header alone, for the version too that the API does not have: an ApiVersions request must be answered."""
    api, version = _addressed(frame)
    header_plan = decoder_of(RequestHeader, api.request_header_version(version))
    header, _ = decoder.decode(header_plan, frame, 0)
    assert isinstance(header, RequestHeader)
    return header


def request_body(frame: Buffer) -> memoryview:
    """What follows the header of a request."""
    api, version = _addressed(frame)
    _, position = decoder.decode(decoder_of(RequestHeader, api.request_header_version(version)), frame, 0)
    return memoryview(frame).cast("B")[position:]


def decode_response(api_key: int, version: int, frame: Buffer) -> ResponseFrame:
    """The response to a request of that API and version."""
    api = API[api_key]
    header_plan = decoder_of(ResponseHeader, api.response_header_version(version))
    header, response = decoder.decode_frame(header_plan, decoder_of(api.response, version), frame)
    return ResponseFrame(header.correlation_id, response)


def _unknown_version(api: Api, version: int) -> UnsupportedVersionError:
    return UnsupportedVersionError(f"{api.name} has versions {api.versions}, not {version}")


def _addressed(frame: Buffer) -> tuple[Api, int]:
    if len(frame) < _KEY_AND_VERSION.size:
        raise WireError(f"a request of {len(frame)} bytes has no header")
    key, version = _KEY_AND_VERSION.unpack_from(frame)
    api = API.get(key)
    if api is None:
        raise UnsupportedVersionError(f"there is no API {key}")
    return api, version
