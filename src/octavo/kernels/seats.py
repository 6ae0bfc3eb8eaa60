"""Where the kernel team's threads sit: on which CPUs, and on which NUMA node. No NumPy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Seat:
    """One thread's. `cpus` are those it may run on, () for any."""

    node: int
    cpus: tuple[int, ...] = ()


def pinned_seats(threads: int, cpus: Sequence[int], of_node: Mapping[int, int]) -> list[Seat]:
    """Each thread on one of `cpus`, in their order, again from the first where there are more threads.

    `of_node`, here and below: CPU -> node; a CPU that is not in it is of node 0.
    """
    return [Seat(of_node.get(cpu, 0), (cpu,)) for cpu in (cpus[i % len(cpus)] for i in range(threads))]


def seats(threads: int, cores: Sequence[int], allowed: Sequence[int], of_node: Mapping[int, int]) -> list[Seat]:
    """A seat for each of `threads`, the threads of a node behind each other.

    `cores`: one CPU a core, which are filled node by node, and again where there are more threads. Nobody is bound, so
    that a front end on the same cores finds room; unless the threads need several nodes, when each may run on those of
    the `allowed` CPUs that are its node's, beside the weights it reads.
    """
    near = sorted(cores, key=lambda cpu: (of_node.get(cpu, 0), cpu))
    nodes = sorted(of_node.get(near[i % len(near)], 0) for i in range(threads))
    if len(set(nodes)) < 2:
        return [Seat(node) for node in nodes]
    on_node = {node: tuple(cpu for cpu in sorted(allowed) if of_node.get(cpu, 0) == node) for node in nodes}
    return [Seat(node, on_node[node]) for node in nodes]
