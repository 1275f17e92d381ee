"""How much memory this process may use: that of the machine, or of its control group."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidelog.host.limits import memory_bytes

MIB = 1 << 20


def machine(root: Path, groups: str | None, **limits: str) -> str:
    """A root directory with these control groups; limits by path under /sys/fs/cgroup, `__` for a slash."""
    if groups is not None:
        (root / "proc/self").mkdir(parents=True)
        (root / "proc/self/cgroup").write_text(groups)
    for name, limit in limits.items():
        *directories, file = name.split("__")
        directory = root.joinpath("sys/fs/cgroup", *directories)
        directory.mkdir(parents=True, exist_ok=True)
        file = file.replace("memory_max", "memory.max").replace("memory_limit_in_bytes", "memory.limit_in_bytes")
        (directory / file).write_text(limit + "\n")
    return str(root)


@pytest.mark.parametrize(
    ("groups", "limits", "expected"),
    [
        ("0::/slice/unit\n", {"slice__unit__memory_max": str(9 * MIB)}, 9 * MIB),
        ("0::/slice/unit\n", {"slice__unit__memory_max": "max", "slice__memory_max": str(8 * MIB)}, 8 * MIB),
        (
            "0::/slice/unit\n",
            {"slice__unit__memory_max": str(7 * MIB), "slice__memory_max": str(8 * MIB), "other__memory_max": "1"},
            7 * MIB,
        ),
        ("0::/\n", {"memory_max": str(6 * MIB)}, 6 * MIB),
        ("0::/not/mounted/here\n", {"memory_max": str(6 * MIB)}, 6 * MIB),
        ("0::/../../a\n", {"a__memory_max": str(5 * MIB)}, 5 * MIB),
        ("0::/a:b\n", {"a:b__memory_max": str(5 * MIB)}, 5 * MIB),
        (
            "12:cpu,cpuacct:/x\n5:memory:/docker/c\n0::/docker/c\n",
            {"memory__docker__c__memory_limit_in_bytes": str(4 * MIB), "x__memory_max": "1"},
            4 * MIB,
        ),
        (
            "5:hugetlb,memory:/c\n",
            {"memory__memory_limit_in_bytes": str(3 * MIB), "memory__c__memory_limit_in_bytes": str(1 << 63)},
            3 * MIB,
        ),
        (None, {"memory_max": str(2 * MIB)}, 2 * MIB),
        (None, {"memory__memory_limit_in_bytes": str(2 * MIB)}, 2 * MIB),
    ],
)
def test_the_smallest_limit_on_the_way_from_the_own_group_to_the_root_holds(
    tmp_path: Path, groups: str | None, limits: dict[str, str], expected: int
) -> None:
    assert memory_bytes(machine(tmp_path, groups, **limits)) == expected


@pytest.mark.parametrize("groups", ["0::/slice\n", "nonsense\n", "", None])
def test_without_a_limit_it_is_the_memory_of_the_machine(tmp_path: Path, groups: str | None) -> None:
    whole = memory_bytes(str(tmp_path / "nothing"))
    assert whole > 100 * MIB
    assert memory_bytes(machine(tmp_path, groups, slice__memory_max="max", memory_max="max")) == whole
