"""Where the kernel team's threads sit: on which CPUs, and on which NUMA node. No NumPy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Seat:
    """One thread's. `cpus` are those it may run on, () for any."""

    node: int
    cpus: tuple[int, ...] = ()


def seats(threads: int, cores: Sequence[int], *, pinned: bool, of_node: Mapping[int, int]) -> list[Seat]:
    """A seat for each of `threads`, the threads of a node behind each other.

    `cores`: CPUs to sit on, one each, again from the first where there are more threads. `pinned`: each thread to its
    own, in the order given. Otherwise nobody is bound, so that a front end on the same cores finds room; unless the
    threads need several nodes, when each stays on its node, beside the weights it reads. `of_node`: CPU -> node; a CPU
    that is not in it is of node 0.
    """
    if pinned:
        chosen = [cores[i % len(cores)] for i in range(threads)]
        return [Seat(of_node.get(cpu, 0), (cpu,)) for cpu in chosen]
    near = sorted(cores, key=lambda cpu: (of_node.get(cpu, 0), cpu))
    nodes = sorted(of_node.get(near[i % len(near)], 0) for i in range(threads))
    if len(set(nodes)) < 2:
        return [Seat(node) for node in nodes]
    on_node = {node: tuple(cpu for cpu in near if of_node.get(cpu, 0) == node) for node in nodes}
    return [Seat(node, on_node[node]) for node in nodes]
