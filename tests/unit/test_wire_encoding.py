"""How each type stands in bytes, classic and flexible; what a version lacks; what is refused."""

from __future__ import annotations

import copy
import pickle
import tracemalloc
from array import array as array_of_ints
from functools import partial

import pytest

from tests.kits.wire_cases import plain
from tidelog.errors import UnsupportedVersionError, WireError
from tidelog.wire import Message, codec, decode, decode_from, encode, encode_parts, records_to_come
from tidelog.wire.messages.fetch import FetchableTopicResponse, FetchResponse, FetchResponsePartitionData
from tidelog.wire.messages.metadata import MetadataRequest, MetadataResponse
from tidelog.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tidelog.wire.plan import compile_plan
from tidelog.wire.schema import (
    Records,
    array,
    bool_,
    bytes_,
    float64,
    int8,
    int16,
    int32,
    int64,
    records,
    string,
    struct,
    uint16,
    uint32,
    uuid,
)

CLASSIC, FLEXIBLE, LATER = 0, 1, 2


@pytest.fixture(autouse=True, params=["installed", "plain"])
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything here holds for the compiled engines and for the plain ones."""
    if request.param == "plain":
        decoder, encoder = plain("decoder"), plain("encoder")
        monkeypatch.setattr(codec, "decoder", decoder)
        monkeypatch.setattr(codec, "encoder", encoder)
        monkeypatch.setattr(codec, "decoder_of", partial(compile_plan, decoder))
        monkeypatch.setattr(codec, "encoder_of", partial(compile_plan, encoder))


class Pair(Message):
    left: int = int8("0+")
    right: str = string("0+", default="r")


class Numbers(Message, kind="data", versions="0-1", flexible="1+"):
    flag: bool = bool_("0+")
    tiny: int = int8("0+")
    small: int = int16("0+")
    port: int = uint16("0+")
    medium: int = int32("0+")
    crc: int = uint32("0+")
    large: int = int64("0+")
    ratio: float = float64("0+")


class Text(Message, kind="data", versions="0-1", flexible="1+"):
    value: str | None = string("0+", nullable="0+")


class Blob(Message, kind="data", versions="0-1", flexible="1+"):
    value: bytes | None = bytes_("0+", nullable="0+")


class Labelled(Message, kind="data", versions="0-1", flexible="1+"):
    label: bytes = bytes_("1+", tagged="1+", tag=0)
    value: bytes = bytes_("0+")


class Batch(Message, kind="data", versions="0-1", flexible="1+"):
    value: Records = records("0+", nullable="0+")


class Ids(Message, kind="data", versions="0-1", flexible="1+"):
    one: bytes = uuid("0+")
    many: list[bytes] = array(uuid, "0+")


class Lists(Message, kind="data", versions="0-1", flexible="1+"):
    numbers: list[int] | None = array(int32, "0+", nullable="0+")
    names: list[str] = array(string, "0+")
    pairs: list[Pair] | None = array(Pair, "0+", nullable="0+")


class Nested(Message, kind="data", versions="0-1", flexible="1+"):
    pair: Pair = struct(Pair, "0+")
    perhaps: Pair | None = struct(Pair, "0+", nullable="0+", default=None)


class Evolved(Message, kind="data", versions="0-2", flexible="1+"):
    old: int = int32("0", default=-1)
    kept: int = int8("0+")
    extra: int = int16("1+", ignorable=True)
    tagged: str | None = string("1+", nullable="1+", tagged="1+", tag=0, default=None)
    pair: Pair = struct(Pair, "2+", tagged="2+", tag=3)
    numbers: list[int] = array(int32, "2+", tagged="2+", tag=1)


NUMBERS = Numbers(
    flag=True, tiny=-2, small=-3, port=0xFFFE, medium=-4, crc=0xFFFFFFFD, large=-(1 << 63) + 5, ratio=-1.5
)
NUMBERS_BYTES = "01 fe fffd fffe fffffffc fffffffd 8000000000000005 bff8000000000000"

BYTES = [
    (NUMBERS, CLASSIC, NUMBERS_BYTES),
    (NUMBERS, FLEXIBLE, NUMBERS_BYTES + "00"),
    (Text(value="aä"), CLASSIC, "0003 61c3a4"),
    (Text(value="aä"), FLEXIBLE, "04 61c3a4 00"),
    (Text(value=""), CLASSIC, "0000"),
    (Text(value=""), FLEXIBLE, "01 00"),
    (Text(value=None), CLASSIC, "ffff"),
    (Text(value=None), FLEXIBLE, "00 00"),
    (Text(value="x" * 200), FLEXIBLE, "c901" + "78" * 200 + "00"),
    (Blob(value=b"ab"), CLASSIC, "00000002 6162"),
    (Blob(value=b"ab"), FLEXIBLE, "03 6162 00"),
    (Blob(value=None), CLASSIC, "ffffffff"),
    (Blob(value=None), FLEXIBLE, "00 00"),
    (Batch(value=b"ab"), CLASSIC, "00000002 6162"),
    (Batch(value=b"ab"), FLEXIBLE, "03 6162 00"),
    (Batch(), CLASSIC, "ffffffff"),
    (Ids(one=bytes(range(16)), many=[bytes(16)]), CLASSIC, bytes(range(16)).hex() + "00000001" + "00" * 16),
    (Ids(one=bytes(range(16)), many=[bytes(16)]), FLEXIBLE, bytes(range(16)).hex() + "02" + "00" * 16 + "00"),
    (Lists(numbers=[1, -1], names=["a"], pairs=[]), CLASSIC, "00000002 00000001 ffffffff 00000001 0001 61 00000000"),
    (Lists(numbers=None, names=[], pairs=None), CLASSIC, "ffffffff 00000000 ffffffff"),
    (Lists(numbers=[1], pairs=[Pair(left=7)]), FLEXIBLE, "02 00000001 01 02 07 02 72 00 00"),
    (Lists(numbers=None, names=[], pairs=None), FLEXIBLE, "00 01 00 00"),
    (Nested(pair=Pair(left=1, right=""), perhaps=None), CLASSIC, "01 0000 ff"),
    (Nested(perhaps=Pair(left=2)), CLASSIC, "00 0001 72 01 02 0001 72"),
    (Nested(perhaps=Pair(left=2)), FLEXIBLE, "00 02 72 00 01 02 02 72 00 00"),
    (Evolved(old=5, kept=6), CLASSIC, "00000005 06"),
    (Evolved(kept=6, extra=7), FLEXIBLE, "06 0007 00"),
    (Evolved(tagged="t"), FLEXIBLE, "00 0000 01 00 02 02 74"),
    (Evolved(tagged="t", numbers=[9]), LATER, "00 0000 02 00 02 02 74 01 05 02 00000009"),
    (Evolved(pair=Pair(left=1)), LATER, "00 0000 01 03 04 01 02 72 00"),
    (Evolved(numbers=list(range(40))), LATER, "00 0000 01 01 a101 29" + "".join(f"{n:08x}" for n in range(40))),
]


EDGES = [0, -1, -2, -128, 127, -32768, 32767, -(1 << 31), (1 << 31) - 1, -(1 << 63), -(1 << 63) + 1, (1 << 63) - 1]


def test_every_edge_of_the_integers() -> None:
    """Also the values by which the compiled engines tell themselves of an error."""
    for number in EDGES:
        message = Numbers(
            tiny=max(min(number, 127), -128),
            small=max(min(number, 32767), -32768),
            medium=max(min(number, (1 << 31) - 1), -(1 << 31)),
            large=number,
        )
        assert decode(Numbers, encode(message, CLASSIC), CLASSIC) == message


@pytest.mark.parametrize(("message", "version", "expected"), BYTES)
def test_bytes(message: Message, version: int, expected: str) -> None:
    encoded = encode(message, version)
    assert encoded.hex(" ") == bytes.fromhex(expected).hex(" ")
    assert decode(type(message), encoded, version) == message
    assert decode(type(message), memoryview(bytearray(encoded)), version) == message


UNFIT = [
    (Numbers(tiny=128), "tiny"),
    (Numbers(small=-32769), "small"),
    (Numbers(port=-1), "port"),
    (Numbers(medium=1 << 31), "medium"),
    (Numbers(crc=1 << 32), "crc"),
    (Numbers(large=1 << 63), "large"),
    (Numbers(medium="7"), "medium"),  # type: ignore[arg-type]
    (Numbers(medium=None), "medium"),  # type: ignore[arg-type]
    (Text(value="x" * 32768), "value"),
    (Text(value="\ud800"), "value"),
    (Text(value=b"x"), "value"),  # type: ignore[arg-type]
    (Ids(one=b"short"), "one"),
    (Lists(names=None), "names"),  # type: ignore[arg-type]
    (Lists(numbers={1: 2}), "numbers"),  # type: ignore[arg-type]
    (Lists(pairs=[Text()]), "pairs"),  # type: ignore[list-item]
    (Lists(pairs=[Pair(left=300)]), "Pair.*left"),
    (Nested(pair=None), "pair"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("message", "field"), UNFIT)
@pytest.mark.parametrize("version", [CLASSIC, FLEXIBLE])
def test_what_a_type_cannot_hold(message: Message, field: str, version: int) -> None:
    with pytest.raises(ValueError, match=field):
        encode(message, version)


MALFORMED = [
    (Text, CLASSIC, "", "left"),
    (Text, CLASSIC, "0005 6162", "5 bytes wanted where 2"),
    (Text, CLASSIC, "fffe", "length of -2"),
    (Text, CLASSIC, "0001 ff", "utf-8"),
    (Text, FLEXIBLE, "81808002" + "78" * 10, "string of"),
    (Text, FLEXIBLE, "ffffffffff01", "varint"),
    (Text, FLEXIBLE, "ffffffff7f", "varint"),
    (Text, FLEXIBLE, "ffff", "left"),
    (Blob, CLASSIC, "7fffffff 00", "2147483647 bytes wanted where 1"),
    (Blob, FLEXIBLE, "ffffffff0f 00", "bytes wanted"),
    (Lists, CLASSIC, "7fffffff 00000000", "2147483647 elements in 4 bytes"),
    (Lists, CLASSIC, "80000000", "length of -2147483648"),
    (Lists, CLASSIC, "00000000 ffffffff 00000000", "names: null"),
    (Lists, CLASSIC, "00000000 00000003 0000 0000", "3 elements in 4 bytes"),
    (Lists, FLEXIBLE, "ffffffff0f 01 01", "4294967294 elements"),
    (Nested, CLASSIC, "00 0000 02", "1 or -1"),
    (Evolved, FLEXIBLE, "00 0000 01 00 03 02 74", "bytes wanted"),
    (Evolved, FLEXIBLE, "00 0000 01 00 03 02 74 00", "announced"),
    (Evolved, FLEXIBLE, "00 0000 ffffffff0f", "left"),
    (Evolved, FLEXIBLE, "00 0000 00 00", "1 bytes behind"),
]


@pytest.mark.parametrize(("message", "version", "data", "reason"), MALFORMED)
def test_malformed(message: type[Message], version: int, data: str, reason: str) -> None:
    encoded = bytes.fromhex(data)
    tracemalloc.start()
    try:
        with pytest.raises(WireError, match=reason):
            decode(message, encoded, version)
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


def test_what_a_tagged_field_cannot_hold() -> None:
    with pytest.raises(ValueError, match="tagged"):
        encode(Evolved(tagged=5), FLEXIBLE)  # type: ignore[arg-type]


def test_versions_that_are_not() -> None:
    with pytest.raises(UnsupportedVersionError, match="0-2"):
        encode(Evolved(), 3)
    with pytest.raises(UnsupportedVersionError, match="0-2"):
        decode(Evolved, b"", -1)


def test_a_field_the_version_lacks() -> None:
    with pytest.raises(UnsupportedVersionError, match="old"):
        encode(Evolved(old=1), FLEXIBLE)
    with pytest.raises(UnsupportedVersionError, match="tagged"):
        encode(Evolved(tagged="x"), CLASSIC)
    with pytest.raises(UnsupportedVersionError, match="pair"):
        encode(Evolved(pair=Pair(right="other")), FLEXIBLE)
    assert decode(Evolved, encode(Evolved(extra=9), CLASSIC), CLASSIC) == Evolved()
    encode(MetadataRequest(topics=[]), 0)


def test_a_position_in_more_bytes() -> None:
    data = b"__" + encode(Text(value="a"), CLASSIC) + b"rest"
    assert decode_from(Text, data, CLASSIC, 2) == (Text(value="a"), 5)
    for position in (-1, len(data) + 1):
        with pytest.raises(WireError):
            decode_from(Text, data, CLASSIC, position)


def test_messages_are_plain_values() -> None:
    first, second = FetchResponse(), FetchResponse()
    assert first == second
    first.responses.append(FetchableTopicResponse(topic="a"))
    assert second.responses == []
    assert first != second
    assert first != object()
    assert repr(Pair(left=1)) == "Pair(left=1, right='r')"
    with pytest.raises(TypeError):
        Pair(middle=1)  # type: ignore[call-arg]
    with pytest.raises(AttributeError):
        first.no_such_field = 1  # type: ignore[attr-defined]
    decoded = decode(FetchResponse, encode(first, 12), 12)
    partition = FetchResponsePartitionData()
    assert partition.current_leader is not FetchResponsePartitionData().current_leader
    assert decoded.responses[0] == FetchableTopicResponse(topic="a")


def produce(payload: bytes | memoryview) -> ProduceRequest:
    partition = PartitionProduceData(index=1, records=payload)
    return ProduceRequest(acks=-1, topic_data=[TopicProduceData(name="t", partition_data=[partition])])


def test_decoded_records_are_a_view() -> None:
    encoded = bytearray(encode(produce(b"r" * 2000), 9))
    view = decode(ProduceRequest, encoded, 9).topic_data[0].partition_data[0].records
    assert isinstance(view, memoryview)
    at = bytes(encoded).index(b"rrrr")
    encoded[at] = ord("X")
    assert view[:3] == b"Xrr"


def test_records_are_not_copied_into_parts() -> None:
    payload = memoryview(bytearray(b"r" * 2000))
    parts = encode_parts(produce(payload), 9)
    assert any(part is payload for part in parts)
    assert b"".join(parts) == encode(produce(payload), 9)
    assert len(encode_parts(produce(b"small"), 9)) == 1


def test_large_bytes_that_never_change_are_not_copied_into_parts() -> None:
    """Many answers may hold the same ones: the metadata of a group's members."""
    for version in (CLASSIC, FLEXIBLE):
        payload = b"m" * 2000
        parts = encode_parts(Blob(value=payload), version)
        assert any(part is payload for part in parts)
        assert b"".join(parts) == encode(Blob(value=payload), version)
        assert len(encode_parts(Blob(value=b"small"), version)) == 1
        assert len(encode_parts(Blob(value=bytearray(payload)), version)) == 1  # type: ignore[arg-type]


def test_bytes_in_a_tagged_field_are_copied_because_their_size_comes_first() -> None:
    payload = b"m" * 2000
    (whole,) = encode_parts(Labelled(label=payload, value=b"v"), FLEXIBLE)
    assert whole == encode(Labelled(label=payload, value=b"v"), FLEXIBLE)
    assert decode(Labelled, whole, FLEXIBLE).label == payload
    parts = encode_parts(Labelled(label=payload, value=payload), FLEXIBLE)
    assert sum(part is payload for part in parts) == 1
    assert decode(Labelled, b"".join(parts), FLEXIBLE).label == payload


def test_any_buffer_will_do() -> None:
    wide = array_of_ints("I", range(1000))
    flat = wide.tobytes()
    for buffer in (
        flat,
        bytearray(flat),
        memoryview(flat),
        wide,
        memoryview(wide),
        memoryview(flat).cast("B", (40, 100)),
    ):
        request = produce(buffer)  # type: ignore[arg-type]
        assert b"".join(encode_parts(request, 9)) == encode(request, 9) == encode(produce(flat), 9)
        assert encode(Blob(value=buffer), FLEXIBLE) == encode(Blob(value=flat), FLEXIBLE)  # type: ignore[arg-type]
    encoded = encode(produce(flat[:2000]), 9)
    shaped = memoryview(encoded + bytes(-len(encoded) % 8)).cast("B", (2, (len(encoded) + 7) // 8 * 4))
    assert decode_from(ProduceRequest, shaped, 9)[0] == produce(flat[:2000])
    for wrong in ("text", None):
        with pytest.raises((ValueError, TypeError)):
            decode(ProduceRequest, wrong, 9)  # type: ignore[arg-type]


def test_messages_can_be_copied() -> None:
    message = FetchResponse(responses=[FetchableTopicResponse(partitions=[FetchResponsePartitionData(records=b"r")])])
    for copied in (copy.copy(message), copy.deepcopy(message), pickle.loads(pickle.dumps(message))):
        assert copied == message
    copy.deepcopy(message).responses[0].partitions[0].current_leader.leader_id = 7
    assert message.responses[0].partitions[0].current_leader.leader_id == -1


def test_records_whose_bytes_come_later() -> None:
    class Region:
        def __len__(self) -> int:
            return 70_000

    region = Region()

    def response(first: bytes | memoryview | bytearray | None) -> FetchResponse:
        partitions = [
            FetchResponsePartitionData(partition_index=0, records=first),
            FetchResponsePartitionData(partition_index=1, records=b""),
        ]
        return FetchResponse(responses=[FetchableTopicResponse(topic="t", partitions=partitions)])

    parts = encode_parts(response(records_to_come(region)), 12)
    assert [part for part in parts if part is region] == [region]
    filled = b"".join(bytes(70_000) if part is region else part for part in parts)
    assert filled == encode(response(bytes(70_000)), 12)
    with pytest.raises(ValueError, match=r"records.*Region"):
        encode(response(records_to_come(region)), 12)


def test_defaults_of_absent_fields() -> None:
    decoded = decode(MetadataResponse, encode(MetadataResponse(), 0), 0)
    assert (decoded.controller_id, decoded.cluster_authorized_operations) == (-1, -2147483648)
