"""One broker process under supervision: its settings, its files, and what it tells its supervisor."""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tidelog.cli.data_directory import RunningBroker

_LONGEST_TAIL = 64 * 1024


class BrokerProcess:
    """Its process comes and goes; its number, its ports and its files stay."""

    def __init__(self, number: int, data: Path, settings: Mapping[str, str], host: str, log_level: str) -> None:
        self.number = number
        self.log_file = data / f"broker-{number}.log"
        self.process: subprocess.Popen[bytes] | None = None
        self.restart_at: float | None = None
        self.ready_fd = self.warnings_fd = -1
        """What the process tells: that it is ready, and its warnings. Closed when it has ended."""
        self.ports: dict[str, int] = {}
        """Those on which it listens, by listener, since it was ready."""
        self.is_ready = False
        """Whether this process of it has been."""
        self._settings = dict(settings)
        self._host = host
        self._log_level = log_level
        self._properties = data / f"broker-{number}.properties"
        self._log_start = 0
        self._reason = ""
        self._is_critical = False

    def start(self) -> None:
        self._write_properties()
        self._reason, self._is_critical = "", False
        self.is_ready = False
        self.ready_fd, told = os.pipe()
        self.warnings_fd, warned = os.pipe()
        with open(self.log_file, "ab") as log:
            self._log_start = log.tell()
            self.process = subprocess.Popen(
                (
                    *(sys.executable, "-m", "tidelog", "broker", "--config", str(self._properties)),
                    *("--log-level", self._log_level, "--log-file", str(self.log_file)),
                    *("--supervised-by", str(os.getpid()), "--ready-fd", str(told), "--warnings-fd", str(warned)),
                ),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(told, warned),
                start_new_session=True,
            )
        os.close(told)
        os.close(warned)
        os.set_blocking(self.warnings_fd, False)

    def _write_properties(self) -> None:
        lines = [f"{name}={_escaped(text)}\n" for name, text in self._settings.items()]
        self._properties.write_text("".join(lines), encoding="utf-8")

    def listens(self, ports: dict[str, int]) -> None:
        """It is ready. From now on it has these ports, also if it had asked for any that are free."""
        self.is_ready = True
        self.ports = ports
        listener, metrics = f"PLAINTEXT://{self._host}:{self.port}", ports.get("metrics")
        changed = {"listeners": listener} if self._settings["listeners"].endswith(":0") else {}
        advertised = self._settings.get("advertised.listeners", "")
        if advertised.endswith(":0"):
            changed["advertised.listeners"] = advertised[:-1] + str(self.port)
        if metrics is not None:
            changed["tidelog.metrics.port"] = str(metrics)
        if changed:
            self._settings.update(changed)
            self._write_properties()

    @property
    def port(self) -> int:
        return self.ports["PLAINTEXT"]

    def described(self, shown_host: str) -> RunningBroker:
        assert self.process is not None
        metrics = self.ports.get("metrics")
        return RunningBroker(
            self.number,
            f"{shown_host}:{self.port}",
            None if metrics is None else f"http://127.0.0.1:{metrics}/metrics",
            self.process.pid,
        )

    @property
    def command_by_hand(self) -> str:
        """What starts this broker without its supervisor, with the same settings and the same log file."""
        words = ("tidelog", "broker", "--config", str(self._properties), "--log-file", str(self.log_file))
        return shlex.join(words)

    def warnings(self) -> list[str]:
        """What it has warned of since the last call. If it ends, its first critical or else its last error is why."""
        try:
            lines = os.read(self.warnings_fd, _LONGEST_TAIL).decode("utf-8", "replace").splitlines()
        except BlockingIOError:
            return []
        for line in lines:
            level, _, message = line.partition(": ")
            if level == "critical" and not self._is_critical:
                self._is_critical, self._reason = True, message
            elif level == "error" and not self._is_critical:
                self._reason = message
        return lines

    def reason(self) -> str:
        """Why it ended: what `warnings` found, or else the last line that this start wrote to the log."""
        if self._reason:
            return self._reason
        with contextlib.suppress(OSError), open(self.log_file, "rb") as log:
            size = log.seek(0, os.SEEK_END)
            log.seek(max(min(self._log_start, size), size - _LONGEST_TAIL))
            lines = log.read().decode("utf-8", "replace").split("\n")
            return next((line.strip() for line in reversed(lines) if line.strip()), "")
        return ""

    def ended(self) -> int:
        """Its process is over; returns its status."""
        assert self.process is not None
        status, self.process = self.process.wait(), None
        return status


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\")
