"""mGPU in admission: its rules hold in every namespace."""

from __future__ import annotations

from collections.abc import Iterator
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
from webhook.decide.validating.findings import Advice, Said, say


def _hopeless(request: PodRequest) -> Iterator[Said]:
    if request.mgpu_multi and request.mgpu_policy != MgpuPolicy.NATIVE_BURST_SHARE:
        yield say(
            Advice.NEVER_PLACED,
            f"{annotation_path(ANNOTATION_MGPU_COMPUTE_POLICY)}: is {request.mgpu_policy}; a pod "
            f"over several cards waits for ever unless it is {MgpuPolicy.NATIVE_BURST_SHARE}",
        )


ADMISSION: Final = DialectAdmission(
    dialect=Dialect.MGPU,
    everywhere=frozenset(
        {
            Rule.MGPU_NORMAL,
            Rule.MGPU_MULTIPLE,
            Rule.MGPU_MEMORY_UNIT,
            Rule.MGPU_CONTAINER_NAME,
            Rule.MGPU_INIT_CONTAINER,
            Rule.MGPU_POLICY,
        }
    ),
    node_labels={
        LABEL_MGPU_NODE: tuple(MGPU_NODE_VALUES),
        LABEL_MGPU_COMPUTE_POLICY: tuple(map(str, MgpuPolicy)),
    },
    hopeless=_hopeless,
)
