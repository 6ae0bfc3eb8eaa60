"""Limits of control groups, read from made-up trees."""

from __future__ import annotations

from pathlib import Path

import pytest

from octavo.kernels.cgroup import cpu_quota, memory_limits
from octavo.runner.memory import Machine

GIB = 1 << 30
UNLIMITED = "9223372036854771712\n"


class Tree:
    """A folder of groups and the file that says which of them are the process's."""

    def __init__(self, folder: Path) -> None:
        self.root, self.own = folder / "cgroup", folder / "own"
        self.root.mkdir()

    def put(self, group: str, **files: str) -> None:
        """Files of a group: `cpu_max` is cpu.max, with one point."""
        (self.root / group).mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (self.root / group / name.replace("_", ".", 1)).write_text(text)

    @property
    def quota(self) -> float | None:
        return cpu_quota(root=self.root, own=self.own)

    @property
    def memory(self) -> list[tuple[int, int]]:
        return memory_limits(root=self.root, own=self.own)


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def test_cached_files_that_nobody_uses_are_no_use(tree: Tree) -> None:
    """The working set, as Kubernetes counts it: a model that was just fetched does not keep its own weights out."""
    tree.own.write_text("0::/box\n")
    stat = f"anon 5\nfile {3 * GIB}\ninactive_file {2 * GIB}\nactive_file {GIB}\n"
    tree.put("box", memory_max=f"{4 * GIB}\n", memory_current=f"{3 * GIB + 5}\n", memory_stat=stat)
    assert tree.memory == [(4 * GIB, GIB + 5)]
    tree.put("box", memory_stat=f"inactive_file 1\ntotal_inactive_file {GIB}\n")  # version 1 counts children apart
    assert tree.memory == [(4 * GIB, 2 * GIB + 5)]
    tree.put("box", memory_stat="rubbish\n")
    assert tree.memory == [(4 * GIB, 3 * GIB + 5)]


def test_the_smallest_limit_of_nested_groups_binds(tree: Tree) -> None:
    tree.own.write_text("0::/system.slice/octavo.service/worker\n")
    tree.put("", memory_stat="anon 1\n")
    tree.put("system.slice", cpu_max="150000 100000\n", memory_max=f"{4 * GIB}\n", memory_current=f"{3 * GIB}\n")
    tree.put("system.slice/octavo.service", cpu_max="400000 100000\n", memory_max="max\n", memory_current="5\n")
    tree.put(
        "system.slice/octavo.service/worker", cpu_max="max 100000\n", memory_max=f"{2 * GIB}\n", memory_current="7"
    )
    tree.put("user.slice", cpu_max="50000 100000\n", memory_max="1\n", memory_current="0\n")  # another's
    assert tree.quota == 1.5
    assert sorted(tree.memory) == [(2 * GIB, 7), (4 * GIB, 3 * GIB)]
    tree.own.write_text("0::/system.slice/octavo.service/worker:with:colons\n")  # a group that is gone has parents
    assert tree.quota == 1.5


def test_limits_at_the_root(tree: Tree) -> None:
    tree.own.write_text("0::/\n")
    tree.put("", cpu_max="250000 100000\n", memory_max=f"{GIB}\n", memory_current="9\n")
    assert tree.quota == 2.5
    assert tree.memory == [(GIB, 9)]
    # A container's view: its group is the root, its path is that outside.
    tree.own.write_text("0::/docker/0123\n")
    assert tree.quota == 2.5
    assert tree.memory == [(GIB, 9)]
    tree.put("cpu", cpu_max="50000 100000\n")  # a group of version 2, another's, that has a controller's name
    assert tree.quota == 2.5


def test_version_1_and_both_at_once(tree: Tree) -> None:
    tree.own.write_text("9:name=systemd:/a\n4:memory:/a/b\n2:cpu,cpuacct:/a\n1:cpuset:/z\n0::/u\n")
    tree.put("cpu,cpuacct", cpu_cfs_quota_us="-1\n", cpu_cfs_period_us="100000\n")
    tree.put("cpu,cpuacct/a", cpu_cfs_quota_us="300000\n", cpu_cfs_period_us="100000\n")
    tree.put("memory", memory_limit_in_bytes=UNLIMITED, memory_usage_in_bytes="1\n")
    tree.put("memory/a", memory_limit_in_bytes=f"{GIB}\n", memory_usage_in_bytes="2\n")
    tree.put("memory/a/b", memory_limit_in_bytes=f"{2 * GIB}\n", memory_usage_in_bytes="3\n")
    assert tree.quota == 3.0
    assert sorted(tree.memory)[:2] == [(GIB, 2), (2 * GIB, 3)]
    (tree.root / "cpu").symlink_to("cpu,cpuacct")
    assert tree.quota == 3.0
    tree.put("unified/u", cpu_max="200000 100000\n")
    assert tree.quota == 2.0


def test_no_limit(tree: Tree) -> None:
    assert tree.quota is None
    assert tree.memory == []
    tree.own.write_text("0::/a\n2:cpu:/a\n")
    tree.put("a", cpu_max="max 100000\n", memory_max="max\n", memory_current="5\n")
    tree.put("cpu/a", cpu_cfs_quota_us="-1\n", cpu_cfs_period_us="100000\n")
    assert tree.quota is None
    assert tree.memory == []


@pytest.mark.parametrize(
    "own", ["", "\n::\n0::\n", "garbage", "0::relative\n", "0::/../../elsewhere\n", "\x00\xff:::/\n"]
)
def test_garbage_counts_as_no_limit_and_hides_no_other(tree: Tree, own: str) -> None:
    tree.own.write_bytes(own.encode("latin-1"))
    (tree.root.parent / "elsewhere").mkdir()
    (tree.root.parent / "elsewhere" / "cpu.max").write_text("1 100000\n")
    for text in ("", "ten 100000\n", "100000\n", "100000 0\n", "-5 100000\n", "1 2 3\n", "\xff"):
        tree.put("", cpu_max=text, memory_max=text, memory_current="5\n")
        assert tree.quota is None
        assert tree.memory in ([], [(100000, 5)])
    tree.put("cpu", cpu_cfs_quota_us="50000\n", cpu_cfs_period_us="100000\n")
    assert tree.quota == 0.5


def test_memory_is_what_every_group_leaves(tmp_path: Path, tree: Tree) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 8388608 kB\nMemFree: 1 kB\nMemAvailable: 4194304 kB\n")
    tree.own.write_text("0::/a/b\n")
    read = {"root": tree.root, "own": tree.own, "meminfo": meminfo}
    assert Machine.read(**read) == Machine(total=8 * GIB, available=4 * GIB)
    tree.put("a", memory_max=f"{6 * GIB}\n", memory_current=f"{5 * GIB}\n")
    assert Machine.read(**read) == Machine(total=6 * GIB, available=GIB)
    tree.put("a/b", memory_max=f"{3 * GIB}\n", memory_current=f"{4 * GIB}\n")
    assert Machine.read(**read) == Machine(total=3 * GIB, available=0)
    tree.put("a/b", memory_max=UNLIMITED)
    assert Machine.read(**read) == Machine(total=6 * GIB, available=GIB)
