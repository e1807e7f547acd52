from __future__ import annotations

import pytest

from ledger.domain.kube.object_fields import annotations_of
from ledger.domain.request.isolation import provider_of
from ledger.domain.request.normalise import decode_pod
from tests.support.objects import Json, Object, container, gpu_pod, pod
from tests.support.requests_to_admit import MANAGED, creation, rules_of
from webhook.decide.answers import AdmissionAnswer
from webhook.decide.facts import NamespaceFacts
from webhook.decide.mutating.pod import mutated
from webhook.decide.settings import AdmissionSettings
from webhook.decide.validating.validate import validate

GPU = "nvidia.com/gpu"
MEM = "nvidia.com/gpumem"
CORES = "nvidia.com/gpucores"
SETTINGS = AdmissionSettings()
SHARE = {GPU: 2, MEM: 3000, CORES: 30}
IGNORE = {"hami.io/webhook": "ignore"}
ALLOCATED = "hami.io/vgpu-devices-allocated"


def judged(body: Object, facts: NamespaceFacts = MANAGED) -> AdmissionAnswer:
    """Return what validation says of a new Pod."""
    return validate(creation(body), SETTINGS, facts)


@pytest.mark.parametrize(
    ("labels", "namespace"),
    [(IGNORE, {}), ({}, IGNORE)],
    ids=["on the Pod", "on the namespace"],
)
def test_a_share_of_ours_keeps_hamis_webhook_off(labels: Object, namespace: Object) -> None:
    """Contract 5, ours: its webhook passes over both."""
    facts = NamespaceFacts(managed=True, labels=namespace)

    assert judged(gpu_pod(SHARE, labels=labels), facts).allowed
    refused = judged(gpu_pod(SHARE))
    assert rules_of(refused) == {"metadata.labels[hami.io/webhook]": "HamiWebhook"}


WAIVES = NamespaceFacts(managed=True, labels={**IGNORE, "tenure.sh/isolation": "none"})
LIMITED = NamespaceFacts(managed=True, labels=IGNORE)


def test_a_namespaces_word_on_isolation_is_written_on_its_pods() -> None:
    """And nobody else's; a second call changes nothing."""
    mark = {"tenure.sh/isolation": "none"}
    for body in (gpu_pod(SHARE), gpu_pod(SHARE, annotations=mark)):
        waived = mutated(body, SETTINGS, WAIVES)
        assert annotations_of(waived).items() >= mark.items()
        assert mutated(waived, SETTINGS, WAIVES) == waived
        limited = mutated(body, SETTINGS, LIMITED)
        assert not annotations_of(limited).keys() & mark.keys()
        assert provider_of(decode_pod(limited).placement) == "HAMi-core"
        assert provider_of(decode_pod(waived).placement) == ""


def test_whose_limits_nobody_keeps_is_told() -> None:
    """Where the namespace does without, or the settings know no such provider."""

    def told(facts: NamespaceFacts, settings: AdmissionSettings = SETTINGS) -> bool:
        body = mutated(gpu_pod(SHARE), settings, facts)
        answer = validate(creation(body), settings, facts)
        assert answer.allowed
        return any("nothing enforces" in text for text in answer.warnings)

    nobody = AdmissionSettings(isolation_providers=frozenset())
    assert [told(WAIVES), told(LIMITED), told(LIMITED, nobody)] == [True, False, True]


@pytest.mark.parametrize(
    "more",
    [{"schedulerName": "hami-scheduler"}, {"labels": {"tenure.sh/takeover": "false"}}],
    ids=["of HAMi's scheduler", "not taken over"],
)
def test_what_hami_places_is_judged_by_hami(more: Json) -> None:
    """Contract 5: also where it means something else, or nothing, to us."""
    assert judged(gpu_pod({**SHARE, CORES: 200, "nvidia.com/priority": 1}, **more)).allowed


def test_whole_cards_need_no_label() -> None:
    """`nvidia.com/gpu` alone is not HAMi's word."""
    assert judged(gpu_pod({GPU: 1})).allowed


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(gpu_pod(SHARE, schedulerName="hami-scheduler"), id="of HAMi's scheduler"),
        pytest.param(
            gpu_pod(SHARE, annotations={ALLOCATED: "GPU-0,NVIDIA,3000,30:;"}),
            id="HAMi has given it cards",
        ),
        pytest.param(
            gpu_pod(SHARE, annotations={"hami.io/vgpu-node": "n1"}), id="HAMi has chosen its node"
        ),
    ],
)
def test_a_pod_of_hamis_stays_as_it_is(body: Object) -> None:
    """Contract 3 and 5, ours: marked as seen, and nothing else."""
    after = mutated(body, SETTINGS, MANAGED)

    assert after["spec"] == body["spec"]


@pytest.mark.parametrize(
    ("scheduler", "said"),
    [("", True), ("default-scheduler", True), ("hami-scheduler", False), ("tenure", False)],
)
def test_hamis_annotation_without_its_scheduler_is_said(scheduler: str, *, said: bool) -> None:
    """A Pod that was copied out of a cluster with HAMi would be nobody's, and wait for ever."""
    more = {"schedulerName": scheduler} if scheduler else {}
    body = gpu_pod(SHARE, annotations={"hami.io/vgpu-node": "n1"}, labels=IGNORE, **more)

    texts = [text for text in judged(body).warnings if "is left to that one" in text]
    assert bool(texts) is said
    assert not said or texts[0].startswith("metadata.annotations[hami.io/vgpu-node]: ")


def test_a_pod_that_names_our_scheduler_is_ours_whatever_it_carries() -> None:
    """Nobody gets a card of ours unseen by bringing an annotation along."""
    body = gpu_pod(SHARE, schedulerName="tenure", annotations={ALLOCATED: "x"}, labels=IGNORE)

    assert mutated(body, SETTINGS, MANAGED)["spec"] != body["spec"]


def test_a_share_is_stored_as_a_sum_over_its_cards() -> None:
    """Koordinator's words, with what the user wrote beside them; what is no card stays."""
    body = pod(
        container("a", limits={**SHARE, "cpu": "2"}), container("b", limits={GPU: 1}), labels=IGNORE
    )
    after: Json = mutated(body, SETTINGS, MANAGED)

    first, second = (one["resources"]["limits"] for one in after["spec"]["containers"])
    assert first == {
        "cpu": "2",
        "koordinator.sh/gpu-core": "60",
        "koordinator.sh/gpu-memory": str(6000 * 2**20),
        "koordinator.sh/gpu.shared": "2",
    }
    assert second == {
        "koordinator.sh/gpu-core": "100",
        "koordinator.sh/gpu-memory-ratio": "100",
        "koordinator.sh/gpu.shared": "1",
    }
    assert validate(creation(after), SETTINGS, MANAGED).allowed
    assert mutated(after, SETTINGS, MANAGED) == after


@pytest.mark.parametrize(("mib", "said"), [(16, True), (96, True), (97, False)])
def test_so_few_mib_are_hardly_meant(mib: int, *, said: bool) -> None:
    """`nvidia.com/gpumem` counts MiB, and 16 of them are no share of a card."""
    warnings = judged(gpu_pod({GPU: 1, MEM: mib}, labels=IGNORE)).warnings

    assert any(f"for {mib} GiB write {mib * 1024}" in text for text in warnings) is said


def test_pods_of_other_namespaces_use_hamis_words_as_they_like() -> None:
    """Names that HAMi's own plugin advertises are never refused by themselves."""
    facts = NamespaceFacts(managed=False)
    body = gpu_pod({**SHARE, CORES: 200}, nodeName="n1")

    assert judged(body, facts).allowed
