"""HAMi at admission: its own webhook must be kept off the Pods that we place."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from ledger.domain.annotations.wire import label_path
from ledger.domain.dialects.hami.words import LABEL_WEBHOOK, MEMORY, WEBHOOK_IGNORE
from ledger.domain.dialects.names import Dialect
from ledger.domain.errors import FieldError
from ledger.domain.kube.pod_spec import ContainerSpec
from ledger.domain.request.requests import PodRequest
from ledger.domain.request.rule_names import Rule
from ledger.domain.request.rules import of_rule, required
from ledger.domain.vocabulary import Vocabulary
from webhook.decide.dialects.protocol import DialectAdmission
from webhook.decide.facts import NamespaceFacts
from webhook.decide.validating.findings import Advice, Said, say

_GIB_AT_MOST: Final = 96


@of_rule(Rule.HAMI_WEBHOOK)
def _violations(
    _request: PodRequest, labels: Mapping[str, str], facts: NamespaceFacts
) -> Iterator[FieldError]:
    """
    Yield the violation where HAMi's webhook may rewrite a Pod that we place.

    Rule: docs/contracts/hami.md 5, ours.
    """
    if WEBHOOK_IGNORE not in {labels.get(LABEL_WEBHOOK), facts.labels.get(LABEL_WEBHOOK)}:
        fact = f'"{WEBHOOK_IGNORE}", here or on the namespace: else HAMi may rewrite the pod, too'
        yield required(label_path(LABEL_WEBHOOK), fact)


def _units(container: ContainerSpec, _vocabulary: Vocabulary) -> Iterator[Said]:
    mib = container.units(MEMORY)
    if 0 < mib <= _GIB_AT_MOST:
        text = f"{container.field(MEMORY)}: counts MiB of each card, so {mib} is {mib} MiB"
        yield say(Advice.SUSPICIOUS_UNIT, f"{text}; for {mib} GiB write {mib * 1024}")


ADMISSION: Final = DialectAdmission(
    dialect=Dialect.HAMI,
    placing_rules=frozenset({Rule.HAMI_SHARE}),
    violations=_violations,
    units=_units,
)
