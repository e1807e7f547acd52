from __future__ import annotations

from typing import Final

import pytest

from ledger.domain.errors import InputError
from tests.support.objects import Object, container, gpu_pod, pod
from tests.support.requests_to_admit import MANAGED, UNMANAGED, judged, quota_fact, rules_of
from webhook.decide.facts import NamespaceFacts
from webhook.decide.settings import AdmissionSettings, DomainSetting
from webhook.decide.validating.quota import translate_quota

CARDS = "requests.nvidia.com/gpu"
ADDED: Final = {
    "requests.koordinator.sh/gpu-core": "400",
    "requests.koordinator.sh/gpu-memory-ratio": "400",
    "requests.koordinator.sh/gpu.shared": "4",
}


def quota(hard: Object) -> Object:
    """Return a ResourceQuota."""
    return {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "gpus", "namespace": "ml"},
        "spec": {"hard": hard, "scopes": ["NotTerminating"]},
    }


def counting(**hard: int) -> NamespaceFacts:
    """Return a managed namespace with one quota."""
    return NamespaceFacts(managed=True, quotas=(quota_fact(**hard),))


def test_whole_cards_under_such_a_quota_are_refused_with_the_quota_to_set() -> None:
    """Design section 8: the rewrite would slip past it, so it is refused."""
    answer = judged(gpu_pod({"nvidia.com/gpu": 2}), facts=counting(nvidia=4))

    field = "spec.containers[0].resources.requests[nvidia.com/gpu]"
    assert rules_of(answer) == {field: "QuotaEvaded"}
    (cause,) = answer.causes
    assert cause.message == (
        'Forbidden: ResourceQuota "gpus" counts nvidia.com/gpu but none of the names it is '
        "rewritten to; add to its spec.hard: requests.koordinator.sh/gpu-core: 400, "
        "requests.koordinator.sh/gpu-memory-ratio: 400, requests.koordinator.sh/gpu.shared: 4 "
        "(`tenure quota translate` writes it)"
    )


def test_every_container_and_every_quota_is_named() -> None:
    """All violations at once."""
    facts = NamespaceFacts(
        managed=True, quotas=(quota_fact("a", nvidia=4), quota_fact("b", nvidia=8))
    )
    cards = {"nvidia.com/gpu": 1}
    body = pod(container("x", limits=cards), init=[container("i", limits=cards)])

    assert len(judged(body, facts=facts).causes) == 4


@pytest.mark.parametrize(
    "facts",
    [
        pytest.param(counting(nvidia=4, core=400), id="a quota that counts ours too"),
        pytest.param(counting(cpu=4), id="a quota on something else"),
        pytest.param(MANAGED, id="no quota"),
        pytest.param(UNMANAGED, id="a namespace that is not managed"),
    ],
)
def test_other_namespaces_take_whole_cards(facts: NamespaceFacts) -> None:
    """Only a quota that the rewrite would slip past stands in the way."""
    assert judged(gpu_pod({"nvidia.com/gpu": 2}), facts=facts).allowed


def test_without_the_rewrite_the_quota_counts() -> None:
    """Where whole cards are left as they are, nothing slips past."""
    settings = AdmissionSettings(rewrite_whole_cards=False)

    assert judged(gpu_pod({"nvidia.com/gpu": 2}), settings, counting(nvidia=4)).allowed


def test_koordinators_names_under_such_a_quota_are_said() -> None:
    """They were outside of it before we came, so nothing is refused."""
    answer = judged(gpu_pod({"koordinator.sh/gpu": 200}), facts=counting(nvidia=4))

    assert answer.allowed
    assert any("this pod is outside of it" in text for text in answer.warnings)


def test_a_quota_is_translated_and_kept() -> None:
    """Four cards are core and ratio 400 on four cards; everything else stays."""
    before = quota({CARDS: "4", "cpu": "40", "count/pods": "10"})
    after = translate_quota(before)

    assert after == {
        **before,
        "spec": {**before["spec"], "hard": {**before["spec"]["hard"], **ADDED}},
    }
    assert before["spec"]["hard"] == {CARDS: "4", "cpu": "40", "count/pods": "10"}


TRANSLATED: Final = {
    "no cards": ({"cpu": "4"}, DomainSetting.KEPT, {}),
    "zero cards": (
        {CARDS: "0"},
        DomainSetting.KEPT,
        dict.fromkeys(ADDED, "0"),
    ),
    "a number": ({CARDS: 4}, DomainSetting.KOORDINATOR, ADDED),
    "thousands": (
        {CARDS: "1k"},
        DomainSetting.KEPT,
        {
            "requests.koordinator.sh/gpu-core": "100000",
            "requests.koordinator.sh/gpu-memory-ratio": "100000",
            "requests.koordinator.sh/gpu.shared": "1000",
        },
    ),
    "what is counted already": (
        {CARDS: "4", "requests.koordinator.sh/gpu-core": "100"},
        DomainSetting.KEPT,
        {name: amount for name, amount in ADDED.items() if "core" not in name},
    ),
    "the proposal's domain": (
        {CARDS: "4"},
        DomainSetting.KUBERNETES,
        {
            "requests.kubernetes.io/gpu-core": "400",
            "requests.kubernetes.io/gpu-memory-ratio": "400",
            "requests.koordinator.sh/gpu.shared": "4",
        },
    ),
}


@pytest.mark.parametrize(("hard", "domain", "added"), TRANSLATED.values(), ids=TRANSLATED)
def test_what_a_quota_has_to_count_beside(
    hard: Object, domain: DomainSetting, added: Object
) -> None:
    """Design section 3: n cards are core and memory ratio 100 n, shared n."""
    assert translate_quota(quota(hard), domain) == quota({**hard, **added})


def test_translating_twice_changes_nothing() -> None:
    """What was added is counted already."""
    once = translate_quota(quota({CARDS: "4"}))

    assert translate_quota(once) == once


@pytest.mark.parametrize(
    ("hard", "field"),
    [
        pytest.param({CARDS: "many"}, f"spec.hard[{CARDS}]", id="no quantity"),
        pytest.param({CARDS: "500m"}, f"spec.hard[{CARDS}]", id="half a card"),
        pytest.param({CARDS: "-1"}, f"spec.hard[{CARDS}]", id="a negative number"),
        pytest.param({"cpu": []}, "spec.hard[cpu]", id="a list"),
        pytest.param([], "spec.hard", id="no mapping"),
    ],
)
def test_a_quota_that_cannot_be_read_is_an_error_with_its_field(hard: object, field: str) -> None:
    """The command line shows file, line and field."""
    with pytest.raises(InputError) as caught:
        translate_quota({"spec": {"hard": hard}})
    assert caught.value.field == field
