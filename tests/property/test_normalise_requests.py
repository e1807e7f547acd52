from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from hypothesis import assume, given
from hypothesis import strategies as st

from ledger.domain.dialects.koordinator.reader import inject
from ledger.domain.dialects.mgpu.rules import MgpuAsk, check_multi, check_normal
from ledger.domain.errors import FieldError, RefusedError
from ledger.domain.request.normalise import decode_pod
from ledger.domain.request.requests import PodRequest
from ledger.domain.vocabulary import DEFAULT_VOCABULARY
from tests.support.objects import Object, container, pod, sidecar

GPU = "koordinator.sh/gpu"
SHARED = "koordinator.sh/gpu.shared"
CORE = "koordinator.sh/gpu-core"
MEMORY = "koordinator.sh/gpu-memory"
RATIO = "koordinator.sh/gpu-memory-ratio"
NVIDIA = "nvidia.com/gpu"
MEMORY_MAX_MIB = 1048576

parts = st.integers(1, 100)
cards = st.integers(1, 16)
sizes = st.integers(1, 80 * 2**30)


@st.composite
def shares(draw: st.DrawFn) -> Object:
    """Draw a legal Koordinator request of one container, over one card or several."""
    count = draw(cards)
    core, ratio, memory = draw(parts) * count, draw(parts) * count, draw(sizes) * count
    return draw(
        st.sampled_from(
            [
                {GPU: draw(parts)},
                {GPU: 100 * count},
                {RATIO: draw(parts)},
                {RATIO: 100 * count},
                {MEMORY: memory},
                {CORE: draw(parts), MEMORY: memory},
                {CORE: 100 * count, MEMORY: memory},
                {CORE: draw(parts), RATIO: draw(parts)},
                {SHARED: count, MEMORY: memory},
                {SHARED: count, RATIO: ratio},
                {SHARED: count, CORE: core, MEMORY: memory},
                {SHARED: count, CORE: core, RATIO: ratio},
            ]
        )
    )


def devices(body: Object) -> object:
    """Return what a request comes to, whatever words it was written in."""
    request = decode_pod(body)
    return request.devices, request.containers


def totals(request: PodRequest) -> dict[str, int]:
    """Return the amounts of all cards together."""
    (demand,) = request.devices
    return {
        CORE: demand.count * demand.core_percent,
        MEMORY: demand.count * demand.memory_bytes,
        RATIO: demand.count * demand.memory_ratio_percent,
    }


@given(limits=shares())
def test_nothing_is_lost_and_nothing_is_invented_by_the_split(limits: Object) -> None:
    """Koordinator contract 4.4: count times each card is the request, to the last byte."""
    asked = inject(limits)

    request = decode_pod(pod(container(limits=limits)))

    assert totals(request) == {name: asked.get(name, 0) for name in (CORE, MEMORY, RATIO)}
    (demand,) = request.devices
    assert demand.count == asked[SHARED]
    assert demand.exclusive is (demand.memory_ratio_percent == 100)


@given(limits=shares())
def test_decoding_what_the_webhook_left_gives_the_same(limits: Object) -> None:
    """Design section 3: decode(mutate(p)) == decode(p), and mutating twice changes nothing."""
    once = inject(limits)

    assert inject(once) == once
    assert devices(pod(container(limits=once))) == devices(pod(container(limits=limits)))


@given(count=cards)
def test_rewritten_nvidia_cards_are_the_same_cards(count: int) -> None:
    """Design section 3: `nvidia.com/gpu: n` becomes core 100 n, ratio 100 n, shared n."""
    rewritten = {CORE: 100 * count, RATIO: 100 * count, SHARED: count}

    assert devices(pod(container(limits={NVIDIA: count}))) == devices(
        pod(container(limits=rewritten))
    )


@given(limits=shares(), data=st.data())
def test_neither_side_domain_nor_order_changes_the_request(
    limits: Object, data: st.DataObject
) -> None:
    """cli.md, Defaults; Koordinator contract 1.1."""
    expected = devices(pod(container(limits=limits)))
    keys = data.draw(st.permutations(list(limits)))
    shuffled = {key: limits[key] for key in keys}
    old = {DEFAULT_VOCABULARY.proposal_name(key): str(amount) for key, amount in limits.items()}

    assert devices(pod(container(requests=shuffled))) == expected
    assert devices(pod(container(requests=shuffled, limits=limits))) == expected
    assert devices(pod(container(limits=old))) == expected


@given(limits=shares(), count=st.integers(2, 4))
def test_equal_containers_have_cards_of_their_own(limits: Object, count: int) -> None:
    """Koordinator contract 4.1: the same share, so many times as many cards."""
    alone = decode_pod(pod(container(limits=limits))).devices[0]

    together = decode_pod(
        pod(*(container(f"c{number}", limits=limits) for number in range(count)))
    ).devices[0]

    assert together.count == alone.count * count
    assert (together.core_percent, together.memory_bytes, together.memory_ratio_percent) == (
        alone.core_percent,
        alone.memory_bytes,
        alone.memory_ratio_percent,
    )


@given(first=shares(), second=shares(), third=shares())
def test_every_container_of_an_accepted_pod_gets_what_it_asks(
    first: Object, second: Object, third: Object
) -> None:
    """Whatever mix is accepted, each card gives every container at least its own number."""
    body = pod(
        container("a", limits=first),
        container("b", limits=second),
        init=[container("i", limits=third)],
    )
    try:
        request = decode_pod(body)
    except RefusedError:
        assume(False)  # noqa: FBT003 - hypothesis' own signature
        return

    (demand,) = request.devices
    running = [dict(need.device_counts)["gpu"] for need in request.containers if need.kind == "app"]
    assert demand.count >= sum(running)
    for limits in (first, second, third):
        asked = inject(limits)
        own = asked[SHARED]
        assert demand.count >= own
        assert demand.core_percent >= asked.get(CORE, 0) // own
        assert demand.memory_ratio_percent >= asked.get(RATIO, 0) // own
        if MEMORY in asked:
            assert demand.memory_bytes >= asked[MEMORY] // own


counts = st.lists(st.integers(0, 4), min_size=1, max_size=4)


@given(apps=counts, starts=st.lists(st.tuples(st.booleans(), st.integers(0, 4)), max_size=4))
def test_whole_cards_are_those_of_the_largest_moment(
    apps: list[int], starts: list[tuple[bool, int]]
) -> None:
    """Design section 3, against a walk through the Pod's life."""
    body = pod(
        *(container(f"a{number}", limits={NVIDIA: count}) for number, count in enumerate(apps)),
        init=[
            (sidecar if stays else container)(f"i{number}", limits={NVIDIA: count})
            for number, (stays, count) in enumerate(starts)
        ],
    )
    staying, most = 0, 0
    for stays, count in starts:
        most = max(most, staying + count)
        staying += count if stays else 0
    most = max(most, staying + sum(apps))

    request = decode_pod(body)

    assert sum(demand.count for demand in request.devices) == most


amounts = st.one_of(st.none(), st.integers(-5, 450))
memories = st.one_of(st.none(), st.integers(-5, 4096))


def ask(core: int | None, memory: int | None) -> MgpuAsk:
    """Return what a container asks."""
    return MgpuAsk(
        container="c",
        core=core,
        memory_mib=memory,
        core_field="c",
        memory_field="m",
        name_field="n",
    )


@given(core=amounts, memory=memories)
def test_normal_mgpu_shapes_are_exactly_two(core: int | None, memory: int | None) -> None:
    """GPU-sharing contract A.3: 1..99 with at least 256 MiB, or whole cards without memory."""
    part = core in range(1, 100) and memory is not None and memory >= 256
    whole = core is not None and core >= 100 and core % 100 == 0 and memory is None
    assume(core is not None or memory is not None)

    errors = list(check_normal(ask(core, memory), memory_max_mib=MEMORY_MAX_MIB))

    assert (not errors) is (part or whole)
    assert len(errors) <= 1


@given(core=amounts, memory=memories, count=st.integers(0, 4))
def test_multi_mgpu_shapes_are_exactly_three(
    core: int | None, memory: int | None, count: int
) -> None:
    """GPU-sharing contract A.3: nothing, whole cards without memory, or equal parts of cards."""
    nothing = count == 0 and core is None and not memory
    whole = count > 0 and core == 100 * count and memory is None
    part = (
        count > 0
        and core is not None
        and memory is not None
        and 0 < core < 100 * count
        and core % count == 0
        and memory % count == 0
        and memory // count >= 256
    )

    errors = list(
        check_multi(ask(core, memory), count, memory_min_mib=256, memory_max_mib=MEMORY_MAX_MIB)
    )

    assert (not errors) is (nothing or whole or part)
    assert len(errors) <= 1


def said(message: str, asked: MgpuAsk) -> list[MgpuAsk]:
    """Return what the container would ask for with each hint of a refusal."""
    hints = message.partition(", nearest ")[2]
    found = []
    for hint in hints.split(" or ") if hints else ():
        core, memory = re.search(r"core (\d+)", hint), re.search(r"memory (\d+)", hint)
        keeps = "memory" not in hint and hint != "nothing"
        found.append(
            replace(
                asked,
                core=int(core[1]) if core else None if hint == "nothing" else asked.core,
                memory_mib=int(memory[1]) if memory else asked.memory_mib if keeps else None,
            )
        )
    return found


@given(core=amounts, memory=memories, count=st.none() | st.integers(0, 4))
def test_no_mgpu_hint_is_refused_itself(
    core: int | None, memory: int | None, count: int | None
) -> None:
    """GPU-sharing contract A.3: denials carry the nearest legal value, which is legal."""
    assume(core is not None or memory is not None)

    def refused(asked: MgpuAsk) -> list[FieldError]:
        if count is None:
            return list(check_normal(asked, memory_max_mib=2048))
        return list(check_multi(asked, count, memory_min_mib=256, memory_max_mib=2048))

    asked = ask(core, memory)
    for error in refused(asked):
        hinted = said(error.message, asked)
        silent = ("rule N2", "rule N4", "rule M4", "rule M6", "rule A.6")
        assert hinted or any(rule in error.message for rule in silent)
        assert [refused(other) for other in hinted] == [[]] * len(hinted)


@given(
    limits=st.dictionaries(st.sampled_from([GPU, SHARED, CORE, MEMORY, RATIO]), st.integers(0, 400))
)
def test_what_is_accepted_can_be_given(limits: Mapping[str, int]) -> None:
    """Whatever keys are mixed: an accepted request has cards and at most 100 percent of each."""
    try:
        request = decode_pod(pod(container(limits=limits)))
    except RefusedError:
        return

    for demand in request.devices:
        assert demand.count >= 1
        assert 0 <= demand.core_percent <= 100
        assert 0 <= demand.memory_ratio_percent <= 100
        assert bool(demand.memory_bytes) is not bool(demand.memory_ratio_percent)
