"""Weights on several threads: the bytes that one gives, errors that end the work, progress from the caller alone."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import pytest

pytest.importorskip("octavo._native")

from octavo.kernels import native
from octavo.program.executable import PlacedWeight
from octavo.program.ir import Part, Weight
from octavo.runner import matrices
from octavo.weights.tensors import Tensor

K = 64


def tensor(name: str, rows: int, source: str = "q8_0") -> Tensor:
    """Random bytes; a scale may be anything, since packing only moves it."""
    size = rows * K // 32 * 34
    data = np.random.default_rng(rows).integers(0, 256, size, np.uint8).tobytes()
    return Tensor(name, source, (rows, K), lambda: data)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("piece", [1, 2000, 1 << 30])
def test_pieces_give_the_bytes_of_the_whole(threads: int, piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two experts of two parts each; a part ends inside a panel, the last panel has padding."""
    monkeypatch.setattr(matrices, "PIECE", piece)
    sizes = {"a": 53, "b": 20, "c": 53, "d": 20}
    tensors = {name: tensor(name, rows) for name, rows in sizes.items()}
    weight = Weight("w", "linear", 73, K, tuple(Part(*item) for item in sizes.items()), experts=2)
    placed = PlacedWeight(weight, "int8", 73, K)
    got, want = (native.Arena(placed.bytes).view(0, placed.bytes) for _ in range(2))
    got[:] = 0xAA
    told: list[int] = []
    matrices.fill(placed, tensors, got, threads=threads, progress=told.append)
    for at, (name, rows) in zip((0, 53, 73, 126), sizes.items(), strict=True):
        expert, column = divmod(at, 73)
        panels = want[expert * placed.stride : (expert + 1) * placed.stride]
        native.pack("int8", "q8_0", rows, K, tensors[name].read(), panels, col0=column, n_total=73, threads=1)
    np.testing.assert_array_equal(got, want)
    assert sum(told) == sum(t.nbytes for t in tensors.values())


def test_packed_bytes_are_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matrices, "PIECE", 1000)
    placed = PlacedWeight(Weight("w", "linear", 40, K, (Part("w", 40),)), "int8", 40, K)
    data = np.random.default_rng(0).integers(0, 256, placed.bytes, np.uint8)
    stored = Tensor("w", "packed.int8", (40, K), data.tobytes, stored=placed.bytes)
    got = native.Arena(placed.bytes).view(0, placed.bytes)
    matrices.fill(placed, {"w": stored}, got, threads=2, progress=lambda done: None)
    np.testing.assert_array_equal(got, data)


@pytest.mark.parametrize("threads", [1, 4])
def test_progress_comes_from_the_caller(threads: int) -> None:
    here, told, callers = threading.get_ident(), [0], set()
    ran: set[int] = set()

    def progress(done: int) -> None:
        callers.add(threading.get_ident())
        told[0] += done

    matrices.work_off(((i, partial(ran.add, i)) for i in range(100)), threads=threads, progress=progress)
    assert ran == set(range(100)) and told == [sum(range(100))] and callers == {here}


@pytest.mark.parametrize("where", ["reading", "packing"])
@pytest.mark.parametrize("threads", [1, 3])
def test_the_first_error_ends_the_work(threads: int, where: str) -> None:
    begun: list[int] = []

    def fail() -> None:
        raise OSError("torn")

    def work() -> Iterator[tuple[int, Callable[[], None]]]:
        for i in range(1000):
            if i == 5:
                if where == "reading":
                    fail()
                yield 1, fail
            begun.append(i)
            yield 1, lambda: None

    with pytest.raises(OSError, match="torn"):
        matrices.work_off(work(), threads=threads, progress=lambda done: None)
    assert len(begun) < 1000
