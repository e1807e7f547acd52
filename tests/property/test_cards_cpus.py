from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ledger.domain.cpuset import CpuSet, cpuset_of
from ledger.domain.nodes import NodeFacts
from ledger.domain.request.requests import CpuSetDemand
from ledger.domain.topology import Cpu, CpuTopology, cpu_topology_of
from scheduler.decide.cpusets.choose import choose_cpus
from scheduler.decide.cpusets.pinned import CpuHolding, pinned_of
from scheduler.decide.outcome import Unfit


@st.composite
def machines(draw: st.DrawFn) -> CpuTopology:
    """Up to two sockets of two NUMA nodes; core ids repeat per socket, CPUs may be offline."""
    sockets, numas = draw(st.integers(1, 2)), draw(st.integers(1, 2))
    cores, threads = draw(st.integers(1, 4)), draw(st.sampled_from([1, 2, 4]))
    cpus = [
        Cpu(id=0, core=numa * cores + core, socket=socket, numa=socket * numas + numa)
        for _ in range(threads)
        for socket in range(sockets)
        for numa in range(numas)
        for core in range(cores)
    ]
    numbered = [
        Cpu(id=place, core=cpu.core, socket=cpu.socket, numa=cpu.numa)
        for place, cpu in enumerate(cpus)
    ]
    offline = draw(st.sets(st.sampled_from(range(len(numbered))), max_size=len(numbered) // 3))
    return cpu_topology_of(cpu for cpu in numbered if cpu.id not in offline)


@given(data=st.data())
def test_what_is_picked_is_available_and_what_is_refused_is_not(data: st.DataObject) -> None:
    """Exactly n available CPUs under the required policy, or really no such set."""
    machine = data.draw(machines(), label="machine")
    ids = list(machine.cpuset)
    limit = data.draw(st.integers(1, 2), label="reference limit")
    refs = data.draw(st.dictionaries(st.sampled_from(ids), st.integers(0, 2)), label="holders")
    reserved = cpuset_of(data.draw(st.sets(st.sampled_from(ids), max_size=3), label="reserved"))
    demand = CpuSetDemand(
        cpus=data.draw(st.integers(1, len(ids)), label="cpus"),
        bind_policy=data.draw(st.sampled_from(["FullPCPUs", "SpreadByPCPUs"]), label="policy"),
        required=data.draw(st.booleans(), label="required"),
        exclusive_policy="None",
    )
    free = cpuset_of(cpu for cpu in machine.cpuset - reserved if refs.get(cpu, 0) < limit)

    node = NodeFacts(
        uid="n-0",
        name="n-0",
        cpu_topology=machine,
        reserved_cpus=reserved,
        cpu_ref_count_max=limit,
    )
    holdings = [CpuHolding(cpus=1 << cpu) for cpu, count in refs.items() for _ in range(count)]

    answer = choose_cpus(demand, node, pinned_of(node, holdings))

    cores = [machine.cpus_in_core(core) for core in machine.cores]
    whole = [len(core) for core in cores if core <= free]
    if isinstance(answer, CpuSet):
        assert len(answer) == demand.cpus
        assert answer <= free
        if demand.required and demand.bind_policy == "FullPCPUs":
            assert all(not core & answer or core <= answer for core in cores)
        elif demand.required:
            assert all(len(core & answer) <= 1 for core in cores)
        return
    assert isinstance(answer, Unfit)
    if not demand.required:
        assert demand.cpus > len(free)
    elif demand.bind_policy == "SpreadByPCPUs":
        assert demand.cpus > sum(bool(core & free) for core in cores)
    elif "multiple" in answer.reason:
        assert demand.cpus % machine.threads_per_core
    elif len(set(map(len, cores))) == 1:
        assert demand.cpus > sum(whole)
