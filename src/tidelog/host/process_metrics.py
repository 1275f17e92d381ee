"""What the operating system says of this process, by the names that Prometheus clients use.

Only a real process has these metrics, and they are read when the page is made: nothing else depends on them.
"""

from __future__ import annotations

import os
import platform
import resource

from tidelog.metrics import Metrics

_STAT = "/proc/self/stat"
_SYSTEM_STAT = "/proc/stat"
_DESCRIPTORS = "/proc/self/fd"
_START_TIME, _VIRTUAL_BYTES, _RESIDENT_PAGES = 19, 20, 21
"""Places in the line of _STAT, counted from the state of the process on: its name before that may hold anything."""


def add_process_metrics(metrics: Metrics) -> None:
    metrics.gauges(
        "python_info", "1, with the version of Python.", "implementation", "major", "minor", "patchlevel", "version"
    ).add(
        lambda: 1,
        platform.python_implementation(),
        *platform.python_version_tuple(),
        platform.python_version(),
    )
    metrics.total("process_cpu_seconds_total", "CPU time of the process in seconds, user and system.", _cpu_seconds)
    metrics.gauge("process_max_fds", "File descriptors that the process may have open.", _most_descriptors)
    if os.path.exists(_STAT):
        _add_from_proc(metrics)


def _add_from_proc(metrics: Metrics) -> None:
    """Linux has these."""
    started = _boot_seconds() + int(_stat()[_START_TIME]) / os.sysconf("SC_CLK_TCK")
    metrics.gauge(
        "process_start_time_seconds", "When the process began, in seconds since 1970.", lambda: round(started, 2)
    )
    metrics.gauge(
        "process_virtual_memory_bytes", "Virtual memory of the process.", lambda: int(_stat()[_VIRTUAL_BYTES])
    )
    page_bytes = os.sysconf("SC_PAGE_SIZE")
    metrics.gauge(
        "process_resident_memory_bytes",
        "Memory of the process that is in RAM.",
        lambda: int(_stat()[_RESIDENT_PAGES]) * page_bytes,
    )
    metrics.gauge("process_open_fds", "File descriptors that the process has open.", _open_descriptors)


def _stat() -> list[str]:
    with open(_STAT, encoding="utf-8", errors="replace") as file:
        return file.read().rpartition(")")[2].split()


def _boot_seconds() -> int:
    with open(_SYSTEM_STAT, encoding="ascii") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("btime "))


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return round(used.ru_utime + used.ru_stime, 2)


def _most_descriptors() -> float:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return float("inf") if soft == resource.RLIM_INFINITY else soft


def _open_descriptors() -> int:
    """Newer kernels (6.2) tell their number; with older ones they are counted, which takes long if there are many."""
    told = os.stat(_DESCRIPTORS).st_size
    return told or len(os.listdir(_DESCRIPTORS)) - 1
