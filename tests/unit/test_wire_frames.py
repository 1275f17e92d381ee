"""Headers, whole frames, the table of APIs, and what lies in Kafka's internal topics."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tidelog.errors import UnsupportedVersionError, WireError
from tidelog.wire import API, all_messages, message_class, parse_uuid, uuid_text
from tidelog.wire.frames import (
    decode_request,
    decode_request_header,
    decode_response,
    encode_request,
    encode_response,
)
from tidelog.wire.messages.consumer_protocol import ConsumerProtocolSubscription
from tidelog.wire.messages.controller import ControlledShutdownRequest
from tidelog.wire.messages.fetch import FetchResponse
from tidelog.wire.messages.group_records import (
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
)
from tidelog.wire.messages.headers import ApiVersion, ApiVersionsRequest, ApiVersionsResponse
from tidelog.wire.messages.metadata import MetadataRequest, MetadataResponse
from tidelog.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tidelog.wire.messages.transaction_records import TransactionLogKey, TransactionLogValue
from tidelog.wire.stored import (
    CONSUMER_OFFSETS,
    SHARE_GROUP_STATE,
    TRANSACTION_STATE,
    decode_versioned,
    encode_key,
    encode_versioned,
)

HEADER_VERSIONS = [
    # API, version, request header, response header
    ("Produce", 8, 1, 0),
    ("Produce", 9, 2, 1),
    ("ApiVersions", 2, 1, 0),
    ("ApiVersions", 3, 2, 0),
    ("ApiVersions", 4, 2, 0),
    ("ControlledShutdown", 0, 0, 0),
    ("ControlledShutdown", 1, 1, 0),
    ("ControlledShutdown", 3, 2, 1),
    ("SaslHandshake", 1, 1, 0),
    ("OffsetDelete", 0, 1, 0),
    ("LeaderAndIsr", 4, 2, 1),
]


@pytest.mark.parametrize(("name", "version", "request_header", "response_header"), HEADER_VERSIONS)
def test_header_versions(name: str, version: int, request_header: int, response_header: int) -> None:
    api = next(api for api in API.values() if api.name == name)
    assert api.request_header_version(version) == request_header
    assert api.response_header_version(version) == response_header


FRAMES = [
    (
        encode_request(MetadataRequest(topics=None), 1, 7, "me"),
        "00000010 0003 0001 00000007 0002 6d65 ffffffff",
    ),
    (
        # In the flexible header the client id keeps its two bytes of length.
        encode_request(ApiVersionsRequest(client_software_name="a", client_software_version="b"), 3, 7, "me"),
        "00000012 0012 0003 00000007 0002 6d65 00 02 61 02 62 00",
    ),
    (encode_request(ApiVersionsRequest(), 0, 7, None), "0000000a 0012 0000 00000007 ffff"),
    (encode_request(ControlledShutdownRequest(broker_id=5), 0, 7, "me"), "0000000c 0007 0000 00000007 00000005"),
    (
        # The body is flexible, the header is not.
        encode_response(
            ApiVersionsResponse(error_code=35, api_keys=[ApiVersion(api_key=18, min_version=0, max_version=4)]), 3, 7
        ),
        "00000013 00000007 0023 02 0012 0000 0004 00 00000000 00",
    ),
    (encode_response(MetadataResponse(), 0, 7), "0000000c 00000007 00000000 00000000"),
    (encode_response(FetchResponse(session_id=1), 12, 7), "00000011 00000007 00 00000000 0000 00000001 01 00"),
]


@pytest.mark.parametrize(("parts", "expected"), FRAMES)
def test_frames(parts: list[bytes], expected: str) -> None:
    assert b"".join(parts).hex(" ") == bytes.fromhex(expected).hex(" ")


def test_requests_and_responses_come_back() -> None:
    for api in API.values():
        for version in api.versions:
            frame = b"".join(encode_request(api.request(), version, 99, "client"))
            header, request = decode_request(frame[4:])
            assert int.from_bytes(frame[:4], "big") == len(frame) - 4
            assert request == api.request()
            assert (header.request_api_key, header.request_api_version, header.correlation_id) == (api.key, version, 99)
            assert header.client_id == ("" if api.request_header_version(version) == 0 else "client")
            frame = b"".join(encode_response(api.response(), version, 99))
            assert decode_response(api.key, version, frame[4:]) == (99, api.response())


def test_large_records_pass_through_a_frame() -> None:
    payload = bytes(5000)
    data = [TopicProduceData(name="t", partition_data=[PartitionProduceData(records=payload)])]
    parts = encode_request(ProduceRequest(topic_data=data), 9, 1, "c")
    assert any(part is payload for part in parts)
    assert int.from_bytes(parts[0][:4], "big") == sum(map(len, parts)) - 4


REFUSED = [
    ("", WireError),
    ("0003 00", WireError),
    ("0003 0001 00000007", WireError),
    ("7fff 0001 00000007 0002 6d65", UnsupportedVersionError),
    ("0003 7fff 00000007 0002 6d65 00", UnsupportedVersionError),
    ("0003 ffff 00000007 0002 6d65 00", UnsupportedVersionError),
]


@pytest.mark.parametrize(("frame", "error"), REFUSED)
def test_refused_requests(frame: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        decode_request(bytes.fromhex(frame))


def test_the_header_of_a_version_yet_to_come() -> None:
    """A broker must answer an ApiVersions request of any version, so it must read to whom."""
    header = decode_request_header(bytes.fromhex("0012 0063 00000007 0002 6d65 00 ffff"))
    assert (header.correlation_id, header.client_id, header.request_api_version) == (7, "me", 0x63)


def test_the_table_of_apis() -> None:
    assert {API[key].name for key in (0, 1, 4, 5, 6, 7, 18)} == {
        "Produce",
        "Fetch",
        "LeaderAndIsr",
        "StopReplica",
        "UpdateMetadata",
        "ControlledShutdown",
        "ApiVersions",
    }
    assert len(API) == 93
    for api in API.values():
        for message in (api.request, api.response):
            schema = message.__schema__
            assert (schema.api_key, schema.versions) == (api.key, api.versions)
            assert [version in schema.flexible for version in api.versions] == [
                version >= api.flexible_from for version in api.versions
            ]
    ranges = {api.name: str(api.versions) for api in API.values()}
    assert [ranges[name] for name in ("Produce", "Fetch", "Metadata", "LeaderAndIsr", "AlterPartition", "Vote")] == [
        "0-13",
        "0-18",
        "0-13",
        "0-7",
        "0-3",
        "0-2",
    ]


def test_every_message_is_found_by_name() -> None:
    messages = list(all_messages())
    assert len(messages) == 281
    assert all(message_class(message.__name__) is message for message in messages)


def test_keys_and_values_of_internal_topics() -> None:
    key = OffsetCommitKey(group="g", topic="t", partition=3)
    assert encode_key(key).hex(" ") == bytes.fromhex("0001 0001 67 0001 74 00000003").hex(" ")
    assert CONSUMER_OFFSETS.decode_key(encode_key(key)) == key
    value = OffsetCommitValue(offset=5, metadata="m", commit_timestamp=9)
    assert encode_versioned(value, 1)[:2] == b"\0\1"
    for version in OffsetCommitValue.__schema__.versions:
        if version != 1:
            assert CONSUMER_OFFSETS.decode_value(key, encode_versioned(value, version)) == value
    group = GroupMetadataKey(group="g")
    assert CONSUMER_OFFSETS.decode_value(group, encode_versioned(GroupMetadataValue(protocol="p"), 4)) == (
        GroupMetadataValue(protocol="p")
    )
    transaction = TransactionLogKey(transactional_id="x")
    assert encode_key(transaction) == b"\0\0\0\1x"
    assert TRANSACTION_STATE.decode_key(b"\0\0\0\1x") == transaction
    log = TransactionLogValue(producer_id=4, next_producer_id=8, client_transaction_version=2)
    assert TRANSACTION_STATE.decode_value(transaction, encode_versioned(log, 1)) == log
    for topic, kind in ((CONSUMER_OFFSETS, 999), (TRANSACTION_STATE, 1), (SHARE_GROUP_STATE, 2)):
        with pytest.raises(UnsupportedVersionError, match=str(kind)):
            topic.decode_key(kind.to_bytes(2, "big"))
    with pytest.raises(WireError):
        CONSUMER_OFFSETS.decode_key(b"\0")


def test_a_subscription_of_a_later_version() -> None:
    """Members of a group may be newer than their leader: what they add behind the known fields is skipped."""
    subscription = ConsumerProtocolSubscription(topics=["a"], rack_id="r")
    known = encode_versioned(subscription, 3)
    assert decode_versioned(ConsumerProtocolSubscription, known) == (subscription, 3)
    later = b"\0\x09" + known[2:] + b"news"
    assert decode_versioned(ConsumerProtocolSubscription, later) == (subscription, 9)
    with pytest.raises(UnsupportedVersionError):
        decode_versioned(ConsumerProtocolSubscription, b"\xff\xff" + known[2:])


def test_uuids() -> None:
    uuid = bytes(range(240, 256))
    assert uuid_text(uuid) == "8PHy8_T19vf4-fr7_P3-_w"
    assert parse_uuid(uuid_text(uuid)) == uuid
    assert uuid_text(bytes(16)) == "A" * 22
    for text in ("", "A" * 20, "A" * 23, "+" * 22, "ä" * 22):
        with pytest.raises(ValueError, match="UUID"):
            parse_uuid(text)


def test_importing_the_package_compiles_nothing_and_loads_no_family() -> None:
    probe = (
        "import sys, tidelog.wire; "
        "print([name for name in sys.modules if name.startswith('tidelog.wire.messages.') and 'index' not in name])"
    )
    printed = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True).stdout
    assert printed.strip() == "[]"


def test_bytes_behind_a_request_are_ignored_as_kafka_does():
    """librdkafka 2.16 sends three of them behind Metadata v13 for all topics."""
    parts = encode_request(MetadataRequest(topics=None), 13, 7, "librdkafka")
    frame = b"".join(bytes(part) for part in parts)[4:] + bytes(3)
    header, request = decode_request(frame)
    assert header.correlation_id == 7
    assert isinstance(request, MetadataRequest)
    assert request.topics is None
