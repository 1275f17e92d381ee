"""`tidelog produce` and `tidelog consume`: what goes in comes out, in every form; exits and interruptions."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tests.kits.fake_admin import FakeAdminBroker, served_broker
from tidelog.cli.lines import Input, JsonLines, LineError, TextLines, read_lines
from tidelog.cli.main import main
from tidelog.cli.on_cluster import run_until_interrupted
from tidelog.cli.since import parse_since
from tidelog.errors import ErrorCode
from tidelog.records.batch import decode
from tidelog.records.header import Codec, read_header
from tidelog.types import TopicPartition
from tidelog.wire.messages.produce import PartitionProduceResponse, ProduceResponse, TopicProduceResponse

P0, P1 = (TopicPartition("orders", number) for number in range(2))


@pytest.fixture
def broker() -> Iterator[FakeAdminBroker]:
    with served_broker() as broker:
        broker.add_topic("orders", 2)
        yield broker


def run(broker: FakeAdminBroker, *arguments: str, input: str | bytes = b"") -> Result:
    return CliRunner().invoke(main, arguments, input=input, env={"TIDELOG_BOOTSTRAP": broker.bootstrap})


def done(broker: FakeAdminBroker, *arguments: str, input: str | bytes = b"") -> bytes:
    result = run(broker, *arguments, input=input)
    assert result.exit_code == 0, result.output
    return result.stdout_bytes


def test_lines_go_in_and_come_out(broker: FakeAdminBroker) -> None:
    result = run(broker, "produce", "orders", "--partition", "0", input="one\n\ntwo\r\nthree")
    assert result.exit_code == 0
    assert result.stdout == ""
    assert (
        result.stderr
        == "3 records written to orders:\n  partition 0: 3 records, offsets 0 to 2\n1 blank line left out\n"
    )
    assert done(broker, "consume", "orders") == b"one\ntwo\nthree\n"
    assert done(broker, "consume", "orders", "--offsets", "--keys") == b"0:0\t\tone\n0:1\t\ttwo\n0:2\t\tthree\n"


def test_keys_nulls_headers_and_compression(broker: FakeAdminBroker) -> None:
    arguments = ("--key-separator", r"\t", "--null-marker", "NULL", "--header", "h=1", "--compression", "zstd")
    done(broker, "produce", "orders", "--partition", "0", *arguments, input=b"a\tx\ty\nb\tNULL\nNULL\t\xff\n")
    (batch,) = broker.cluster.logs[P0]
    assert read_header(batch).codec is Codec.ZSTD
    assert [(record.key, record.value) for record in decode(batch)] == [
        (b"a", b"x\ty"),
        (b"b", None),
        (None, b"\xff"),
    ]
    assert done(broker, "consume", "orders", "--keys", "--headers").splitlines()[0] == b"h=1\ta\tx\ty"
    template = "{topic}-{partition}@{offset} {key}={value} {headers}"
    assert done(broker, "consume", "orders", "--format", template).splitlines()[2] == b"orders-0@2 =\xff h=1"


def test_json_out_is_json_in(broker: FakeAdminBroker) -> None:
    lines: list[dict[str, Any]] = [
        {
            "key": "k",
            "value": "ü",
            "headers": [{"key": "a", "value": "1"}, {"key": "a", "value": None}],
            "timestamp": 5,
        },
        {"key_base64": base64.b64encode(b"\xff").decode(), "value": None, "headers": [], "timestamp": 6},
    ]
    text = "".join(json.dumps({**line, "partition": 1}) + "\n" for line in lines)
    done(broker, "produce", "orders", "--json", input=text)
    out = [json.loads(line) for line in done(broker, "consume", "orders", "--json").splitlines()]
    assert out == [{"topic": "orders", "partition": 1, "offset": n, **line} for n, line in enumerate(lines)]


def test_where_to_begin_and_when_to_end(broker: FakeAdminBroker) -> None:
    done(broker, "produce", "orders", "--partition", "0", input="".join(f"{number}\n" for number in range(10)))

    def shown(*arguments: str) -> list[int]:
        return [int(line) for line in done(broker, "consume", "orders", *arguments).splitlines()]

    assert shown("--from-beginning") == list(range(10))
    assert shown("--offset", "7") == [7, 8, 9]
    assert shown("--offset=-2") == [8, 9]
    assert shown("--offset", "latest") == []
    assert shown("--offset", "earliest", "--max-messages", "3") == [0, 1, 2]
    assert shown("--partition", "1") == []
    assert shown("--follow", "--max-messages", "10") == list(range(10))
    beyond = run(broker, "consume", "orders", "--offset", "99")
    assert beyond.exit_code == 1
    assert "orders-0 0 to 10" in beyond.stderr
    missing = run(broker, "consume", "orders", "--partition", "5")
    assert missing.exit_code == 1
    assert "has no partition 5; it has 0 to 1" in missing.stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("quiet",), "no records in quiet"),
        (("quiet", "--json"), "no records in quiet"),
        (("orders", "--partition", "1"), "no records in orders-1"),
        (("orders", "quiet", "--offset", "latest"), "no records in that part of orders, quiet"),
        (("orders", "--until-offset", "0"), "no records in that part of orders"),
    ],
)
def test_who_reads_nothing_is_told_so(broker: FakeAdminBroker, arguments: tuple[str, ...], says: str) -> None:
    broker.add_topic("quiet", 1)
    done(broker, "produce", "orders", "--partition", "0", input="1\n")
    result = run(broker, "consume", *arguments)
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", f"{says}\n")
    assert run(broker, "consume", "orders", "--partition", "0").stderr == ""


def test_what_is_refused_is_told_and_exits_with_1(broker: FakeAdminBroker) -> None:
    refused = PartitionProduceResponse(index=0, error_code=ErrorCode.MESSAGE_TOO_LARGE, error_message="so large")
    topic = TopicProduceResponse(topic_id=broker.cluster.topic_id("orders"), partition_responses=[refused])
    broker.script[0] = [lambda request: ProduceResponse(responses=[topic])]
    result = run(broker, "produce", "orders", "--partition", "0", input="one\n")
    assert result.exit_code == 1
    assert "1 record not written" in result.stderr
    assert "produce to orders-0: MESSAGE_TOO_LARGE (one record makes a batch of 71 bytes" in result.stderr
    assert "max.message.bytes of topic orders is less; so large)" in result.stderr


def test_a_line_that_is_too_large_is_told_and_the_others_are_written(broker: FakeAdminBroker) -> None:
    broker.cluster.max_message_bytes["orders"] = 1000
    lines = [b"a" * 100] * 20 + [b"b" * 2000] + [b"c" * 100] * 20
    result = run(broker, "produce", "orders", "--partition", "0", input=b"\n".join(lines))
    assert result.exit_code == 1
    assert result.stderr.startswith(
        "40 records written to orders:\n  partition 0: 40 records, offsets 0 to 39\n1 record not written"
    )
    assert "max.message.bytes of topic orders is less" in result.stderr
    values = [record.value for batch in broker.cluster.logs[P0] for record in decode(batch)]
    assert values == [line for line in lines if len(line) == 100]


def test_a_bad_line_is_named_and_what_stood_before_it_is_written(broker: FakeAdminBroker) -> None:
    result = run(broker, "produce", "orders", "--partition", "0", "--key-separator", ":", input="a:1\nb\n")
    assert result.exit_code == 1
    assert "line 2: no key separator ':' in it" in result.stderr
    assert "partition 0: 1 record, offsets 0 to 0" in result.stderr
    assert "not 7" in run(broker, "produce", "orders", "--partition", "7", input="a\n").stderr


def test_acks_0_knows_no_offsets(broker: FakeAdminBroker) -> None:
    result = run(broker, "produce", "orders", "--partition", "0", "--acks", "0", input="one\n")
    assert result.stderr == "1 record written to orders:\n  partition 0: 1 record\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ("produce", "t", "--json", "--key-separator", ":"),
        ("produce", "t", "--acks", "2"),
        ("consume", "t", "--offset", "x"),
        ("consume", "t", "--offset", "1", "--since", "1h"),
        ("consume", "t", "--json", "--keys"),
        ("consume", "t", "--since", "yesterday"),
    ],
)
def test_wrong_usage_exits_with_2(arguments: tuple[str, ...]) -> None:
    assert CliRunner().invoke(main, arguments).exit_code == 2


def test_ctrl_c_ends_a_command_quietly(broker: FakeAdminBroker) -> None:
    command = [sys.executable, "-m", "tidelog", "produce", "orders", "--partition", "0"]
    environment = {**os.environ, "TIDELOG_BOOTSTRAP": broker.bootstrap}
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        process.stdin.write(b"one\n")
        process.stdin.flush()
        deadline = time.monotonic() + 20
        while not broker.cluster.logs[P0] and time.monotonic() < deadline:
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 130
        assert process.stderr is not None
        assert process.stderr.read() == b"1 record written to orders:\n  partition 0: 1 record, offsets 0 to 0\n"


def test_ctrl_c_wakes_a_command_that_sleeps() -> None:
    """The signal goes to another thread here, so no system call of the main thread is interrupted by it."""
    main_thread = Path(f"/proc/self/task/{os.getpid()}/stat")

    async def sleep() -> None:
        loop = asyncio.get_running_loop()
        loop.call_soon(threading.Thread(target=interrupt_this_thread).start)
        await asyncio.wait_for(asyncio.Event().wait(), 20)

    def interrupt_this_thread() -> None:
        state = ""
        while state != "S":  # while this thread sleeps, the main thread has the interpreter: then it sleeps in the loop
            time.sleep(0.01)
            state = main_thread.read_text().split()[2]
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)

    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        run_until_interrupted(sleep())
    assert time.monotonic() - started < 10, "not only when the loop wakes up by itself"


def test_a_command_runs_in_another_thread_too() -> None:
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(run_until_interrupted, asyncio.sleep(0, "done")).result(10) == "done"


def test_text_lines() -> None:
    lines = TextLines(None, None, [], None)
    assert lines.parse(1, b"a:b") == Input(None, b"a:b", [])
    keyed = TextLines(b"::", b"-", [("h", b"1")], 3)
    assert keyed.parse(1, b"k::v::w") == Input(b"k", b"v::w", [("h", b"1")], 3)
    assert keyed.parse(1, b"-::-") == Input(None, None, [("h", b"1")], 3)


def test_json_lines() -> None:
    lines = JsonLines([("all", b"1")], None)
    assert lines.parse(
        1, b'{"value": {"a": [1, "\xc3\xbc"]}, "headers": {"x": "y", "n": null}, "timestamp": 7}'
    ) == Input(None, b'{"a":[1,"\xc3\xbc"]}', [("all", b"1"), ("x", b"y"), ("n", None)], None, 7)
    assert lines.parse(1, b'{"value_base64": "/w==", "partition": 2}').value == b"\xff"


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (b"[1]", "not a JSON object"),
        (b"{", "line 4"),
        (b'{"value_base64": "?"}', "value_base64 is not base 64"),
        (b'{"value": 1, "headers": 1}', "headers are"),
        (b'{"value": 1, "partition": "a"}', "partition is not a whole number"),
        (b'{"value": 1, "timestamp": true}', "timestamp is not a whole number"),
        (b'{"value": 1, "timestamp": 9223372036854775808}', "timestamp 9223372036854775808 is not between"),
        (b'{"value": 1, "partition": -1}', "partition -1 is not between"),
        (b'{"vlaue": 1}', "unknown field 'vlaue'; did you mean 'value'"),
        (b'{"key": "a"}', "it has no value"),
        (b'{"value": 1, "value_base64": "AA=="}', "both value and value_base64"),
        (b"[" * 100_000, "nested too deeply"),
    ],
)
def test_bad_json_lines(line: bytes, says: str) -> None:
    with pytest.raises(LineError, match=says):
        JsonLines([], None).parse(4, line)


def lines_of(data: bytes, longest_bytes: int) -> list[bytes]:
    async def read() -> list[bytes]:
        return [line async for some in read_lines(io.BytesIO(data), longest_bytes) for line in some]

    return asyncio.run(read())


def test_lines_are_cut_wherever_a_chunk_ends() -> None:
    lines = [b"x" * size for size in (0, 1, 262_143, 262_144, 262_145, 1_000_000, 0, 7)]
    assert lines_of(b"\n".join(lines), 1_000_000) == lines
    assert lines_of(b"a\r\nb\n", 10) == [b"a", b"b"]
    assert lines_of(b"", 10) == []


def test_a_line_that_is_too_long_is_refused_before_all_of_it_is_read() -> None:
    class Endless(io.RawIOBase):
        given = 0

        def read1(self, size: int) -> bytes:
            self.given += size
            return b"short\n" + b"x" * (size - 6) if self.given == size else b"x" * size

    endless = Endless()

    async def read() -> None:
        async for _ in read_lines(endless, 3_000_000):  # type: ignore[arg-type]
            pass

    with pytest.raises(LineError, match="line 2: it is longer than 3000000 bytes"):
        asyncio.run(read())
    assert endless.given < 6_000_000


def test_a_long_line_takes_time_in_proportion_to_its_length() -> None:
    def cpu_s(size: int) -> float:
        start = time.process_time()
        assert len(lines_of(b"x" * size, size)[0]) == size
        return time.process_time() - start

    short, long = (min(cpu_s(size) for _ in range(3)) for size in (8_000_000, 64_000_000))
    assert long < 24 * max(short, 0.001), "eight times as long; it was 64 times as slow"


def test_empty_input_is_told(broker: FakeAdminBroker) -> None:
    result = run(broker, "produce", "orders", input="")
    assert result.exit_code == 0
    assert result.stderr == "no records written to orders: the input had none\n"


def test_who_names_a_partition_does_not_wait_for_the_leader_of_another(broker: FakeAdminBroker) -> None:
    broker.cluster.leaders[P1] = -1
    done(broker, "produce", "orders", "--partition", "0", "--timeout", "20", input="1\n")
    assert done(broker, "consume", "orders", "--partition", "0", "--timeout", "20") == b"1\n"
    for command in (("produce", "orders", "--partition", "1"), ("consume", "orders")):
        waited = run(broker, *command, "--timeout", "0.5", input="1\n")
        assert waited.exit_code == 1
        assert "orders-1" in waited.stderr
    missing = run(broker, "consume", "orders", "--partition", "7", "--timeout", "20")
    assert "topic orders has no partition 7; it has 0 to 1" in missing.stderr


@pytest.mark.parametrize("line", ['{"value": 1', '{"vale": "1"}', '{"value": "1", "partition": 7}'])
def test_input_that_is_refused_is_not_called_empty(broker: FakeAdminBroker, line: str) -> None:
    result = run(broker, "produce", "orders", "--json", input=f"\n{line}\n")
    assert result.exit_code == 1
    said = result.stderr.splitlines()
    assert said[:2] == ["no records written to orders", "1 blank line left out"]
    assert said[2].startswith("Error: ")
    assert len(said) == 3


@pytest.mark.parametrize(
    ("template", "says"),
    [
        ("%k=%s", "has no field in it"),
        ("", "has no field in it"),
        ("{{key}}", "has no field in it"),
        ("{key", "is not well formed"),
        ("{keys}", "not 'keys'"),
    ],
)
def test_a_format_that_shows_nothing_is_refused(broker: FakeAdminBroker, template: str, says: str) -> None:
    run(broker, "produce", "orders", input="1\n")
    result = run(broker, "consume", "orders", "--format", template)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert says in result.stderr
    assert "{key} {value}" in result.stderr or "{{" in result.stderr


def test_times() -> None:
    assert parse_since("1767182400000", 0) == 1767182400000
    assert parse_since("10m", 1_000_000) == 400_000
    assert parse_since("2026-01-31T12:00:00+00:00", 0) == 1769860800000
