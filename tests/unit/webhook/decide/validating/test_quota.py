from __future__ import annotations

import re
from typing import Final

import pytest

from ledger.domain.errors import InputError
from ledger.domain.kube.pod_spec import read_pod
from ledger.domain.quantity import quantity_from_int
from ledger.domain.request.rule_names import Rule
from ledger.domain.vocabulary import Vocabulary
from tests.support.objects import Object, container, gpu_pod, pod
from tests.support.requests_to_admit import MANAGED, UNMANAGED, judged, quota_fact, rules_of
from webhook.decide.answers import AdmissionAnswer
from webhook.decide.facts import NamespaceFacts, QuotaFact
from webhook.decide.mutating.pod import mutated
from webhook.decide.settings import (
    DEFAULT_ADMISSION,
    AdmissionSettings,
    DomainSetting,
    RuleMode,
)
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
        'Forbidden: ResourceQuota "gpus" limits nvidia.com/gpu but does not count '
        "koordinator.sh/gpu-core, "
        "koordinator.sh/gpu-memory-ratio, koordinator.sh/gpu.shared, which it is rewritten to; "
        "add to its spec.hard: requests.koordinator.sh/gpu-core: 400, "
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
    settings = AdmissionSettings(vocabulary=Vocabulary(whole_cards="nvidia"))

    assert judged(gpu_pod({"nvidia.com/gpu": 2}), settings, counting(nvidia=4)).allowed


NAMES: Final = {
    "whole cards": {"nvidia.com/gpu": 2},
    "percent of both": {"koordinator.sh/gpu": 200},
    "core and memory": {"koordinator.sh/gpu-core": 50, "koordinator.sh/gpu-memory": "8Gi"},
    "memory alone": {"koordinator.sh/gpu-memory-ratio": 50},
    "the proposal's names": {"kubernetes.io/gpu": 100},
    "mGPU": {"vke.volcengine.com/mgpu-core": 50, "vke.volcengine.com/mgpu-memory": 8192},
    "whole mGPU cards": {"vke.volcengine.com/mgpu-core": 200},
    "GPU share": {"aliyun.com/gpu-mem": 8138},
}
LEFT_ALONE: Final = {"tenure.sh/takeover": "false"}


@pytest.mark.parametrize("asked", NAMES.values(), ids=NAMES)
@pytest.mark.parametrize(
    "named",
    [
        "requests.nvidia.com/gpu",
        "limits.nvidia.com/gpu",
        "nvidia.com/gpu",
        "requests.koordinator.sh/gpu-memory",
        "requests.kubernetes.io/gpu",
        "requests.vke.volcengine.com/mgpu-memory",
        "requests.aliyun.com/gpu-count",
    ],
)
def test_a_quota_on_cards_is_evaded_in_no_dialect(asked: Object, named: str) -> None:
    """Whatever it limits under names that the Pod is not stored with is refused, or said."""
    quotas = (QuotaFact(name="gpus", hard={named: quantity_from_int(1)}),)
    facts = NamespaceFacts(managed=True, quotas=quotas)
    body = mutated(gpu_pod(asked), AdmissionSettings(), facts, namespace="ml")

    answer = judged(body, facts=facts)
    if named.endswith("memory") and named.removeprefix("requests.") in asked:
        assert answer.allowed  # the name that is limited is the Pod's own
        return
    assert list(rules_of(answer).values()) == ["QuotaEvaded"], answer
    watched = AdmissionSettings(modes={Rule.QUOTA_EVADED: RuleMode.WARN})
    said = judged(body, watched, facts)
    assert said.allowed
    assert any('ResourceQuota "gpus" limits ' in text for text in said.warnings)


@pytest.mark.parametrize("asked", NAMES.values(), ids=NAMES)
def test_what_the_refusal_says_is_enough(asked: Object) -> None:
    """With the names it shows in the quota, the same Pod is allowed, and rewritten as ever."""
    hard = {"requests.nvidia.com/gpu": quantity_from_int(4)}
    for _ in range(2):
        facts = NamespaceFacts(managed=True, quotas=(QuotaFact(name="gpus", hard=hard),))
        body = mutated(gpu_pod(asked), AdmissionSettings(), facts, namespace="ml")
        answer = judged(body, facts=facts)
        for cause in answer.causes:
            added = re.findall(r"(requests\.[^:]+): (\d+|as much)", cause.message)
            assert added, cause.message
            hard |= {key: quantity_from_int(400 if "a" in n else int(n)) for key, n in added}

    assert answer.allowed, answer.causes
    assert "nvidia.com/gpu" not in read_pod(body).containers[0].requests


CORE: Final = "requests.koordinator.sh/gpu-core"
BYTES: Final = "requests.koordinator.sh/gpu-memory"
RATIO: Final = "requests.koordinator.sh/gpu-memory-ratio"
SHARED: Final = "requests.koordinator.sh/gpu.shared"
MIB: Final = 2**20
HAMI: Final = {"requests.nvidia.com/gpumem": 40000, BYTES: 40000 * MIB}
PART: Final = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 3000, "nvidia.com/gpucores": 30}
COUNTED: Final = {
    "MiB and cores, where MiB are limited": (HAMI, PART),
    "MiB and cores, where both are": (
        {**HAMI, "requests.nvidia.com/gpucores": 200, CORE: 200},
        PART,
    ),
    "bytes, where bytes are limited": (
        {BYTES: 80 * 2**30},
        {"koordinator.sh/gpu-core": 50, "koordinator.sh/gpu-memory": "8Gi"},
    ),
    "memory alone, where cores are limited": ({CORE: 200}, {"koordinator.sh/gpu-memory-ratio": 50}),
    "whole cards, where percents are limited": ({CORE: 400, RATIO: 400}, {"nvidia.com/gpu": 2}),
    "bytes, where as many cards as percents are counted": (
        {CARDS: 4, CORE: 400, RATIO: 400, SHARED: 4},
        {"koordinator.sh/gpu-core": 50, "koordinator.sh/gpu-memory": "8Gi"},
    ),
    "whole mGPU cards, where percents are limited": (
        {"requests.vke.volcengine.com/mgpu-core": 400, RATIO: 400},
        {"vke.volcengine.com/mgpu-core": 200},
    ),
}


def limited(hard: dict[str, int]) -> NamespaceFacts:
    """Return a managed namespace with a quota of these amounts."""
    amounts = {key: quantity_from_int(amount) for key, amount in hard.items()}
    return NamespaceFacts(managed=True, quotas=(QuotaFact(name="gpus", hard=amounts),))


def asking(
    asked: Object, facts: NamespaceFacts, settings: AdmissionSettings = DEFAULT_ADMISSION
) -> AdmissionAnswer:
    """Return the answer to a new Pod that the mutating webhook has completed."""
    labels = {"hami.io/webhook": "ignore"}
    body = mutated(gpu_pod(asked, labels=labels), settings, facts, namespace="ml")
    return judged(body, settings, facts)


@pytest.mark.parametrize(("hard", "asked"), COUNTED.values(), ids=COUNTED)
def test_a_pod_whose_limited_dimensions_are_counted_passes(
    hard: dict[str, int], asked: Object
) -> None:
    """What the quota does not limit need not be counted."""
    answer = asking(asked, limited(hard))

    assert answer.allowed, answer.causes


UNCOUNTED: Final = {
    "whole cards, where bytes are limited": (
        {BYTES: 80 * 2**30, SHARED: 4},
        {"nvidia.com/gpu": 2},
        (
            "limits koordinator.sh/gpu-memory but does not count "
            "koordinator.sh/gpu-memory-ratio, which it is "
            "rewritten to; add to its spec.hard: requests.koordinator.sh/gpu-memory-ratio: 400 "
            "(`tenure quota translate` writes it)"
        ),
    ),
    "a percentage, where HAMi's MiB are limited": (
        {**HAMI, SHARED: 9},
        {"nvidia.com/gpu": 1, "nvidia.com/gpumem-percentage": 50},
        (
            "limits koordinator.sh/gpu-memory but does not count "
            "koordinator.sh/gpu-memory-ratio, which it is "
            "rewritten to; add to its spec.hard: requests.koordinator.sh/gpu-memory-ratio: 900 "
            "(`tenure quota translate` writes it)"
        ),
    ),
    "all memory beside cores, where MiB are limited": (
        {**HAMI, CORE: 200},
        {"nvidia.com/gpu": 1, "nvidia.com/gpucores": 50},
        (
            "but does not count "
            "koordinator.sh/gpu-memory-ratio, which it is rewritten to; add to its "
            "spec.hard: requests.koordinator.sh/gpu-memory-ratio: 200 "
            "(`tenure quota translate` writes it)"
        ),
    ),
    "bytes, where fewer percents than cards are limited": (
        {SHARED: 4, RATIO: 100},
        {"koordinator.sh/gpu-core": 50, "koordinator.sh/gpu-memory": "8Gi"},
        (
            "limits koordinator.sh/gpu-memory-ratio but does not count "
            "koordinator.sh/gpu-memory; add to its "
            "spec.hard: requests.koordinator.sh/gpu-memory: as much as you choose"
        ),
    ),
    "a percentage, where a key that the API server does not count limits it": (
        {"limits.koordinator.sh/gpu-memory-ratio": 200},
        {"koordinator.sh/gpu-core": 50, "koordinator.sh/gpu-memory-ratio": 50},
        (
            "limits koordinator.sh/gpu-memory-ratio but does not count "
            "koordinator.sh/gpu-memory-ratio; add to its spec.hard: "
            "requests.koordinator.sh/gpu-memory-ratio: 200"
        ),
    ),
    "whole mGPU cards, where MiB are limited": (
        {
            "requests.vke.volcengine.com/mgpu-core": 400,
            "requests.vke.volcengine.com/mgpu-memory": 1,
        },
        {"vke.volcengine.com/mgpu-core": 200},
        (
            "limits vke.volcengine.com/mgpu-memory, and vke.volcengine.com/mgpu-core says no "
            "amount of that; ask for koordinator.sh/gpu"
        ),
    ),
}


@pytest.mark.parametrize(("hard", "asked", "fact"), UNCOUNTED.values(), ids=UNCOUNTED)
def test_what_a_quota_limits_and_would_not_count_is_refused_in_true_words(
    hard: dict[str, int], asked: Object, fact: str
) -> None:
    """The number of cards bounds no memory in bytes, and only what is missing is named."""
    (cause,) = asking(asked, limited(hard)).causes

    assert cause.message.endswith(fact), cause.message
    added = re.findall(r"(requests\.[^:]+): (?:(\d+)|as much)", cause.message)
    if added:
        more = {key: int(number or 400) for key, number in added}
        assert asking(asked, limited({**hard, **more})).allowed


def test_whole_cards_under_their_own_name_pass_no_quota_on_memory() -> None:
    """`nvidia.com/gpu` counts cards, which are all percent of memory and no number of bytes."""
    settings = AdmissionSettings(vocabulary=Vocabulary(whole_cards="nvidia"))
    whole = {"nvidia.com/gpu": 2}

    assert asking(whole, limited({CARDS: 4, CORE: 400, RATIO: 400}), settings).allowed
    assert not asking(whole, limited({CARDS: 4, RATIO: 100}), settings).allowed
    (cause,) = asking(whole, limited({CARDS: 4, BYTES: 2**30}), settings).causes
    assert "nvidia.com/gpu says no amount of that; ask for koordinator.sh/gpu" in cause.message


def test_whole_cards_beside_a_share_are_counted_as_they_are_stored() -> None:
    """Only a Pod of whole cards alone keeps their name, so no other is judged by it."""
    settings = AdmissionSettings(vocabulary=Vocabulary(whole_cards="nvidia"))
    facts = limited({CORE: 400, RATIO: 400})
    share = container("share", limits={"nvidia.com/gpu": 1, "nvidia.com/gpucores": 30})
    labels = {"hami.io/webhook": "ignore"}
    asked = pod(container(limits={"nvidia.com/gpu": 1}), share, labels=labels)
    body = mutated(asked, settings, facts, namespace="ml")

    assert judged(body, settings, facts).allowed


def test_whole_cards_with_hamis_wishes_do_not_pass_by_a_name_that_is_not_stored() -> None:
    """HAMi's annotation makes it HAMi's dialect, which is rewritten under `nvidia` too."""
    settings = AdmissionSettings(vocabulary=Vocabulary(whole_cards="nvidia"))
    wishes = {"nvidia.com/use-gputype": "A100"}
    labels = {"hami.io/webhook": "ignore"}
    asked = gpu_pod({"nvidia.com/gpu": 4}, labels=labels, annotations=wishes)
    body = mutated(asked, settings, limited({CARDS: 1}), namespace="ml")

    (cause,) = judged(body, settings, limited({CARDS: 1})).causes
    assert "but does not count koordinator.sh/gpu-core" in cause.message


def test_a_percentage_that_is_counted_bounds_no_larger_one() -> None:
    """One percent of the cores with all of the memory is a card that cores do not count."""
    facts = counting(nvidia=4, core=400)
    ratio = "koordinator.sh/gpu-memory-ratio"
    share = gpu_pod({"koordinator.sh/gpu-core": 1, ratio: 100})

    assert "QuotaEvaded" in rules_of(judged(share, facts=facts)).values()
    assert judged(gpu_pod({"koordinator.sh/gpu-core": 30, ratio: 30}), facts=facts).allowed


def test_cards_that_nobody_rewrites_are_counted_as_they_are_written() -> None:
    """A Pod that stays with another scheduler is within a quota on `nvidia.com/gpu`."""
    body = gpu_pod({"nvidia.com/gpu": 2}, labels=LEFT_ALONE)
    core = QuotaFact(name="q", hard={"requests.koordinator.sh/gpu.shared": quantity_from_int(4)})

    assert judged(body, facts=counting(nvidia=4)).allowed
    refused = judged(body, facts=NamespaceFacts(managed=True, quotas=(core,)))
    assert "requests.nvidia.com/gpu: 4 (`tenure quota" in refused.causes[0].message


def test_cards_of_another_vendor_are_another_matter() -> None:
    """No dialect but their own asks for them."""
    amd = QuotaFact(name="q", hard={"requests.amd.com/gpu": quantity_from_int(1)})

    assert judged(gpu_pod({"amd.com/gpu": 2}), facts=counting(nvidia=4)).allowed
    assert judged(
        gpu_pod({"nvidia.com/gpu": 2}), facts=NamespaceFacts(managed=True, quotas=(amd,))
    ).allowed


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
    "percents of cards": (
        {"requests.koordinator.sh/gpu-core": "450", "requests.koordinator.sh/gpu.shared": "9"},
        DomainSetting.KEPT,
        {"requests.koordinator.sh/gpu-memory-ratio": "450", CARDS: "4"},
    ),
    "mGPU": (
        {"requests.vke.volcengine.com/mgpu-core": "400"},
        DomainSetting.KEPT,
        {**ADDED, CARDS: "4"},
    ),
    "memory, which says no number of cards": (
        {"requests.koordinator.sh/gpu-memory": "80Gi"},
        DomainSetting.KEPT,
        {},
    ),
    "sums of HAMi's, whatever they are counted by": (
        {
            "requests.nvidia.com/gpumem": "40000",
            "limits.nvidia.com/gpucores": "200",
            "requests.nvidia.com/gpumem-percentage": "300",
        },
        DomainSetting.KEPT,
        {
            "requests.koordinator.sh/gpu-core": "200",
            "requests.koordinator.sh/gpu-memory": str(40000 * 2**20),
            "requests.koordinator.sh/gpu-memory-ratio": "300",
        },
    ),
    "the least of cards and sums": (
        {CARDS: "4", "requests.nvidia.com/gpucores": "200"},
        DomainSetting.KEPT,
        {**ADDED, "requests.koordinator.sh/gpu-core": "200"},
    ),
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


def test_claims_are_counted_by_the_class_that_is_named() -> None:
    """As many devices as cards; what is counted already, or in no cards, stays."""
    name, key = "gpu.example.com", "gpu.example.com.deviceclass.resource.k8s.io/devices"
    once = translate_quota(quota({CARDS: "4"}), device_class=name)
    lower = translate_quota(quota({CARDS: "4", key: "2"}), device_class=name)

    assert f"'{key}': '4'" in str(once)
    assert f"'{key}': '2'" in str(lower)
    assert translate_quota(once, device_class=name) == once
    assert translate_quota(quota({"cpu": "4"}), device_class=name) == quota({"cpu": "4"})


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
