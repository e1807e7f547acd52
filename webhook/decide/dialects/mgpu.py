"""mGPU in admission: its rules hold in every namespace."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Final

from ledger.domain.annotations.wire import annotation_path
from ledger.domain.dialects.mgpu.annotations import MGPU_NODE_VALUES, MgpuPolicy
from ledger.domain.dialects.mgpu.words import (
    ANNOTATION_MGPU_COMPUTE_POLICY,
    LABEL_MGPU_COMPUTE_POLICY,
    LABEL_MGPU_NODE,
)
from ledger.domain.dialects.names import Dialect
from ledger.domain.request.requests import PodRequest
from ledger.domain.request.rule_names import Rule
from webhook.decide.dialects.protocol import DialectAdmission
from webhook.decide.validating.findings import Advice, Reach, Said, rule_entry, say

_rule = partial(rule_entry, reach=Reach.EVERYWHERE)


def _hopeless(request: PodRequest) -> Iterator[Said]:
    if request.mgpu_multi and request.mgpu_policy != MgpuPolicy.NATIVE_BURST_SHARE:
        yield say(
            Advice.NEVER_PLACED,
            f"{annotation_path(ANNOTATION_MGPU_COMPUTE_POLICY)}: is {request.mgpu_policy}; a pod "
            f"over several cards waits for ever unless it is {MgpuPolicy.NATIVE_BURST_SHARE}",
        )


_RULES: Final = (
    _rule(
        Rule.MGPU_NORMAL,
        "a single-card mGPU request outside `1..99` with 256 MiB or more, or whole cards without "
        "memory (N1 to N4)",
        "GPU-sharing contract A.3; mGPU proposal, Normal MGPU Pod",
    ),
    _rule(
        Rule.MGPU_MULTIPLE,
        "a list of card counts, or a request over several cards, that does not come out even "
        "(M0 to M9)",
        "GPU-sharing contract A.3; mGPU proposal, Multiple MGPU Pod",
    ),
    _rule(
        Rule.MGPU_MEMORY_UNIT,
        "more MiB on one card than any card has: `6Gi` where 6144 is meant",
        "GPU-sharing contract A.6",
    ),
    _rule(
        Rule.MGPU_CONTAINER_NAME,
        "an mGPU container whose name has more than 43 characters",
        "GPU-sharing contract A.6",
    ),
    _rule(Rule.MGPU_INIT_CONTAINER, "mGPU in an init container", "GPU-sharing contract A.3"),
    _rule(
        Rule.MGPU_POLICY, "a compute policy that is none of the three", "GPU-sharing contract A.1"
    ),
)

ADMISSION: Final = DialectAdmission(
    dialect=Dialect.MGPU,
    rules=_RULES,
    node_labels={
        LABEL_MGPU_NODE: tuple(MGPU_NODE_VALUES),
        LABEL_MGPU_COMPUTE_POLICY: tuple(map(str, MgpuPolicy)),
    },
    hopeless=_hopeless,
)
