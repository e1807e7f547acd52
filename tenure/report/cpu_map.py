"""The CPUs of nodes with their holders: sockets, NUMA nodes, cores and threads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from string import ascii_letters, digits
from textwrap import wrap
from typing import Any, Final

from rich.text import Text

from agent.decide.cpus_now import CpusNow
from agent.decide.pools import Pools, joined
from ledger.domain.cpuset import EMPTY, CpuSet, format_cpuset
from tenure.kernel import KernelWord
from tenure.output import one_line

WIDTH_MIN: Final = 80
_NAMES: Final = ascii_letters + digits
_FREE: Final = "."
_SHARED: Final = "+"
_KEPT: Final = "#"
_UNNAMED: Final = "*"
"""A holder beyond those that have a letter of their own."""
_STYLES: Final = {_FREE: "green", _SHARED: "bold magenta", _KEPT: "dim", _UNNAMED: "cyan"}
_HELD_STYLE: Final = "bold blue"
_LABEL: Final = 18


def draw_cpus(
    nodes: Sequence[CpusNow], kernel: Sequence[KernelWord] = (), *, width: int = WIDTH_MIN
) -> Text:
    """
    Return the map of CPUs: a column a core, a line a thread, a letter a holder.

    No line is longer than `width`, or than 80 in a narrower terminal.

    Args:
        kernel: what the kernel has otherwise.
    """
    width = max(WIDTH_MIN, width)
    text = Text(no_wrap=True, overflow="crop")
    if not nodes:
        text.append("no node reports its CPUs: a NodeResourceTopology would\n")
        return text
    for node in nodes:
        words = [one.line for one in kernel if one.row.node_name == node.node]
        _draw_node(text, node, words, width)
    text.append(f"{_FREE} free, {_SHARED} several holders, {_KEPT} kept back\n", "dim")
    return text


def cpu_records(
    nodes: Iterable[CpusNow], kernel: Sequence[KernelWord] = ()
) -> list[dict[str, Any]]:
    """Return the nodes as documents, each with sockets > NUMA nodes > cores > CPUs."""
    return [
        {
            "node": node.node,
            "cpus": len(node.topology),
            "held": format_cpuset(node.held),
            "reserved": None if node.reserved is None else format_cpuset(node.reserved),
            "free": format_cpuset(node.free),
            "free_whole_cores": {
                str(numa): len(_free_cores(node, numa)) for numa in node.topology.numa_nodes
            },
            "holders": [
                {
                    "pod": holder.pod,
                    "cpuset": format_cpuset(holder.cpus),
                    "observed": holder.observed,
                }
                for holder in node.holders
            ],
            "pools": None if node.pools is None else _pool_record(node.pools),
            "sockets": [_socket(node, socket) for socket in node.topology.sockets],
            **({"kernel": words} if words else {}),
        }
        for node in nodes
        for words in ([one.record for one in kernel if one.row.node_name == node.node],)
    ]


def _pool_record(pools: Pools) -> dict[str, Any]:
    return {
        **{
            name: [
                {"socket": pool.socket, "node": pool.node, "cpuset": format_cpuset(pool.cpus)}
                for pool in some
            ]
            for name, some in (("shared", pools.shared), ("best_effort", pools.best_effort))
        },
        "best_effort_first": format_cpuset(pools.best_effort_first),
        "exclusive": format_cpuset(pools.exclusive),
    }


def cpu_rows(nodes: Iterable[CpusNow]) -> Iterator[dict[str, Any]]:
    """Yield a row per CPU, for CSV."""
    for node in nodes:
        by_cpu = _holders_by_cpu(node)
        for cpu in node.topology.cpus:
            yield {
                "node": node.node,
                "socket": cpu.socket,
                "numa": cpu.numa,
                "core": cpu.core,
                "cpu": cpu.id,
                "reserved": None if node.reserved is None else cpu.id in node.reserved,
                "holders": " ".join(by_cpu.get(cpu.id, ())),
            }


def _socket(node: CpusNow, socket: int) -> dict[str, Any]:
    topology, by_cpu = node.topology, _holders_by_cpu(node)
    own = topology.cpus_in_socket(socket)
    return {
        "socket": socket,
        "numa_nodes": [
            {
                "numa": numa,
                "cores": [
                    {
                        "core": core.core,
                        "cpus": {
                            str(cpu): by_cpu.get(cpu, []) for cpu in topology.cpus_in_core(core)
                        },
                    }
                    for core in topology.cores
                    if topology.cpus_in_core(core) & topology.cpus_in_numa(numa) & own
                ],
            }
            for numa in topology.numa_nodes
            if topology.cpus_in_numa(numa) & own
        ],
    }


def _draw_node(text: Text, node: CpusNow, kernel: Sequence[str], width: int) -> None:
    topology = node.topology
    names = dict(zip((holder.pod for holder in node.holders), _NAMES, strict=False))
    signs = _signs(node, names)
    name = one_line(node.node)
    about = (
        f"{_plural(len(topology.sockets), 'socket')},"
        f" {_plural(len(topology.numa_nodes), 'NUMA node')},"
        f" {_plural(len(topology.cores), 'core')}, {_plural(len(topology), 'CPU')}:"
        f" {len(node.held)} held, {len(node.free)} {_rest(node)}"
    )
    text.append(name, "bold")
    beside = " " * (len(name) + 2)
    lines = wrap(about, width, initial_indent=beside, subsequent_indent="  ")
    text.append("\n".join(lines).removeprefix(beside[2:]) + "\n")
    for socket in topology.sockets:
        for numa in topology.numa_nodes:
            cpus = topology.cpus_in_numa(numa) & topology.cpus_in_socket(socket)
            if cpus:
                _draw_numa(text, node, (socket, numa), signs, width)
    _draw_holders(text, node, names, width)
    if node.pools is not None:
        _draw_pools(text, node.pools, width)
    for word in kernel:
        lines = wrap(one_line(word), width - 4, subsequent_indent="  ", break_on_hyphens=False)
        text.append("  ! ", "bold red")
        text.append("\n    ".join(lines) + "\n")
    text.append("\n")


def _draw_numa(
    text: Text, node: CpusNow, place: tuple[int, int], signs: Mapping[int, str], width: int
) -> None:
    """Draw one NUMA node: a line per thread, cores side by side."""
    topology, (socket, numa) = node.topology, place
    cpus = topology.cpus_in_numa(numa) & topology.cpus_in_socket(socket)
    cores = [list(topology.cpus_in_core(core) & cpus) for core in topology.cores]
    cores = [core for core in cores if core]
    room = width - _LABEL - len("  99 cores free")
    free = len(_free_cores(node, numa))
    for start in range(0, len(cores), room):
        shown = cores[start : start + room]
        for thread in range(max(map(len, shown))):
            first = start == 0 and thread == 0
            label = f"  socket {socket} numa {numa}" if first else ""
            text.append(f"{label:{_LABEL}}")
            for core in shown:
                sign = signs[core[thread]] if thread < len(core) else " "
                text.append(sign, _STYLES.get(sign, _HELD_STYLE))
            text.append(f"  {free} cores free\n" if first else "\n")


def _draw_holders(text: Text, node: CpusNow, names: Mapping[str, str], width: int) -> None:
    for holder in node.holders:
        sign = names.get(holder.pod, _UNNAMED)
        by = " (not by Tenure)" if holder.observed else ""
        line = f"{one_line(holder.pod)}: {len(holder.cpus)} CPUs, {format_cpuset(holder.cpus)}{by}"
        lines = wrap(line, width - 4, subsequent_indent="  ", break_on_hyphens=False)
        text.append(f"  {sign} ", _HELD_STYLE)
        text.append("\n    ".join(lines) + "\n")


def _draw_pools(text: Text, pools: Pools, width: int) -> None:
    lines = [
        f"shared pool, socket {pool.socket} numa {pool.node}: {format_cpuset(pool.cpus) or '-'}"
        for pool in pools.shared
    ]
    best_effort = format_cpuset(joined(pools.best_effort)) or "-"
    first = format_cpuset(pools.best_effort_first)
    lines.append(f"best effort: {best_effort}" + (f", first {first}" if first else ""))
    lines.append(f"exclusive: {format_cpuset(pools.exclusive) or '-'}")
    for line in lines:
        parts = wrap(line, width - 2, subsequent_indent="  ", break_on_hyphens=False)
        text.append("  " + "\n  ".join(parts) + "\n")


def _rest(node: CpusNow) -> str:
    if node.reserved is None:
        return "not (nobody said here what the node keeps back)"
    return f"free, {len(node.reserved)} kept back"


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _signs(node: CpusNow, names: Mapping[str, str]) -> dict[int, str]:
    by_cpu = _holders_by_cpu(node)
    signs = {}
    for cpu in node.topology.cpuset:
        pods = by_cpu.get(cpu, [])
        if len(pods) > 1:
            signs[cpu] = _SHARED
        elif pods:
            signs[cpu] = names.get(pods[0], _UNNAMED)
        else:
            signs[cpu] = _KEPT if cpu in (node.reserved or EMPTY) else _FREE
    return signs


def _free_cores(node: CpusNow, numa: int) -> list[CpuSet]:
    topology, free = node.topology, node.free
    cores = (topology.cpus_in_core(core) for core in topology.cores)
    own = topology.cpus_in_numa(numa)
    return [core for core in cores if core & own and core <= free]


def _holders_by_cpu(node: CpusNow) -> dict[int, list[str]]:
    by_cpu: dict[int, list[str]] = {}
    for holder in node.holders:
        for cpu in holder.cpus:
            by_cpu.setdefault(cpu, []).append(holder.pod)
    return by_cpu
