from __future__ import annotations

import json
from dataclasses import replace

import pytest

from ledger.domain.request.normalise import decode_pod
from ledger.domain.vocabulary import Vocabulary
from tests.support.mutation import mutate
from tests.support.objects import Object, container, gpu_pod, pod, sidecar
from tests.support.requests_to_admit import creation
from webhook.decide.facts import NamespaceFacts
from webhook.decide.settings import AdmissionSettings, DomainSetting
from webhook.decide.validating.validate import validate

GPU = "koordinator.sh/gpu"
CORE = "koordinator.sh/gpu-core"
MEMORY = "koordinator.sh/gpu-memory"
RATIO = "koordinator.sh/gpu-memory-ratio"
SHARED = "koordinator.sh/gpu.shared"
RDMA = "koordinator.sh/rdma"
NVIDIA = "nvidia.com/gpu"
OLD_GPU = "kubernetes.io/gpu"
OLD_CORE = "kubernetes.io/gpu-core"
OLD_MEMORY = "kubernetes.io/gpu-memory"
OLD_RATIO = "kubernetes.io/gpu-memory-ratio"
OLD_RDMA = "kubernetes.io/rdma"
ORIGINAL = "tenure.sh/original-request"
BY_PLUGIN = AdmissionSettings(vocabulary=Vocabulary(whole_cards="nvidia"))

EXAMPLES: dict[str, tuple[Object, Object]] = {
    # Koordinator contract 5.1, the table
    "gpu 400": ({GPU: "400"}, {CORE: "400", RATIO: "400", SHARED: "4"}),
    "core 30 and memory": ({CORE: "30", MEMORY: "6Gi"}, {CORE: "30", MEMORY: "6Gi", SHARED: "1"}),
    "ratio 500": ({RATIO: "500"}, {RATIO: "500", SHARED: "5"}),
    "core 300 and memory": (
        {CORE: "300", MEMORY: "90Gi"},
        {CORE: "300", MEMORY: "90Gi", SHARED: "3"},
    ),
    "nvidia 2, ours": ({NVIDIA: "2"}, {CORE: "200", RATIO: "200", SHARED: "2"}),
    # Koordinator contract 4.3 and 4.4
    "nvidia 3": ({NVIDIA: "3"}, {CORE: "300", RATIO: "300", SHARED: "3"}),
    "gpu 35": ({GPU: "35"}, {CORE: "35", RATIO: "35", SHARED: "1"}),
    "gpu 100": ({GPU: "100"}, {CORE: "100", RATIO: "100", SHARED: "1"}),
    "memory alone": ({MEMORY: "10Gi"}, {MEMORY: "10Gi", SHARED: "1"}),
    "core 200 and memory": (
        {CORE: "200", MEMORY: "40Gi"},
        {CORE: "200", MEMORY: "40Gi", SHARED: "2"},
    ),
    # Fine-grained device scheduling proposal, the request examples
    "proposal, gpu 50": ({OLD_GPU: "50"}, {OLD_CORE: "50", OLD_RATIO: "50", SHARED: "1"}),
    "proposal, core and ratio": (
        {OLD_CORE: "50", OLD_RATIO: "60"},
        {OLD_CORE: "50", OLD_RATIO: "60", SHARED: "1"},
    ),
    "proposal, core and memory": (
        {OLD_CORE: "60", OLD_MEMORY: "4Gi"},
        {OLD_CORE: "60", OLD_MEMORY: "4Gi", SHARED: "1"},
    ),
    "proposal, gpu-mem misspelt": (
        {OLD_CORE: "60", "kubernetes.io/gpu-mem": "4Gi"},
        {OLD_CORE: "60", "kubernetes.io/gpu-mem": "4Gi", SHARED: "1"},
    ),
}

UNCHANGED: dict[str, Object] = {
    "shares of several cards": {SHARED: "4", CORE: "200", RATIO: "240"},
    "shared and memory": {SHARED: "2", MEMORY: "8Gi"},
    "rdma": {RDMA: "100"},
    "proposal, rdma": {OLD_RDMA: "100"},
    "mgpu": {"vke.volcengine.com/mgpu-core": "30", "vke.volcengine.com/mgpu-memory": "1000"},
    "gpu share": {"aliyun.com/gpu-mem": "8138"},
    "cards of amd": {"amd.com/gpu": "1"},
    "cards of hygon": {"dcu.com/gpu": "1"},
}

BROKEN: dict[str, Object] = {
    "gpu 150": {GPU: "150"},
    "core alone": {CORE: "50"},
    "memory and ratio": {MEMORY: "8Gi", RATIO: "50"},
    "two dialects": {NVIDIA: "1", GPU: "50"},
    "a third of a card too many": {SHARED: "3", CORE: "100", RATIO: "100"},
}


def resources(body: Object, number: int = 0) -> Object:
    """Return one container's resources."""
    result: Object = body["spec"]["containers"][number]["resources"]
    return result


@pytest.mark.parametrize("example", EXAMPLES.values(), ids=EXAMPLES)
def test_a_request_is_written_as_cores_memory_and_cards(example: tuple[Object, Object]) -> None:
    """Requests and limits both, other resources untouched, whichever of the two the user wrote."""
    asked, expected = example
    cpu = {"cpu": "4", "memory": "8Gi"}

    for before in (
        {"limits": {**cpu, **asked}},
        {"requests": {**cpu, **asked}},
        {"limits": {**cpu, **asked}, "requests": {**cpu, **asked}},
    ):
        after = resources(mutate(pod(container(**before))))

        for section in ("requests", "limits"):
            own = cpu if section in before else {}
            assert after[section] == {**own, **expected}


@pytest.mark.parametrize("example", EXAMPLES.values(), ids=EXAMPLES)
def test_what_the_user_wrote_is_kept(example: tuple[Object, Object]) -> None:
    """The original stands in an annotation, exactly, and the request decodes to the same cards."""
    asked, _ = example
    before = gpu_pod({"cpu": "4", **asked})

    after = mutate(before)

    kept = json.loads(after["metadata"]["annotations"][ORIGINAL])
    assert kept == {"containers": {"main": {"limits": asked}}}
    was, now = decode_pod(before), decode_pod(after)
    assert (now.devices, now.containers, now.dialect) == (was.devices, was.containers, was.dialect)
    assert now.snapshot.original == was.snapshot.original


@pytest.mark.parametrize("asked", UNCHANGED.values(), ids=UNCHANGED)
def test_other_requests_stay_as_they_are(asked: Object) -> None:
    """They are complete, or words of another dialect; limits and requests fill one another."""
    after = mutate(gpu_pod(asked))

    assert resources(after) == {"limits": asked, "requests": asked}
    assert ORIGINAL not in after["metadata"]["annotations"]


@pytest.mark.parametrize("asked", BROKEN.values(), ids=BROKEN)
def test_a_request_that_breaks_a_rule_is_not_rewritten(asked: Object) -> None:
    """Validation names the field and the value in the user's own words; both sections have them."""
    assert resources(mutate(gpu_pod(asked))) == {"limits": asked, "requests": asked}


def test_init_containers_and_sidecars_are_rewritten_too() -> None:
    """Koordinator's webhook forgets them (contract 12, Q7)."""
    asked = {"limits": {NVIDIA: "1"}, "requests": {NVIDIA: "1"}}
    expected = {CORE: "100", RATIO: "100", SHARED: "1"}

    after = mutate(pod(container(**asked), init=[container("i", **asked), sidecar("s", **asked)]))

    for one in (*after["spec"]["initContainers"], *after["spec"]["containers"]):
        assert one["resources"] == {"limits": expected, "requests": expected}
    assert set(json.loads(after["metadata"]["annotations"][ORIGINAL])["containers"]) == {
        "main",
        "i",
        "s",
    }


DOMAINS = {
    "koordinator.sh": (
        DomainSetting.KOORDINATOR,
        {OLD_CORE: "50", OLD_RATIO: "60", OLD_RDMA: "1"},
        {CORE: "50", RATIO: "60", RDMA: "1", SHARED: "1"},
    ),
    "kubernetes.io": (
        DomainSetting.KUBERNETES,
        {CORE: "50", RATIO: "60", RDMA: "1"},
        {OLD_CORE: "50", OLD_RATIO: "60", OLD_RDMA: "1", SHARED: "1"},
    ),
    "kubernetes.io, from nvidia": (
        DomainSetting.KUBERNETES,
        {NVIDIA: "1"},
        {OLD_CORE: "100", OLD_RATIO: "100", SHARED: "1"},
    ),
    "koordinator.sh, from the proposal's gpu": (
        DomainSetting.KOORDINATOR,
        {OLD_GPU: "50"},
        {CORE: "50", RATIO: "50", SHARED: "1"},
    ),
    "koordinator.sh, a misspelt name": (
        DomainSetting.KOORDINATOR,
        {"kubernetes.io/gpu-mem": "4Gi"},
        {MEMORY: "4Gi", SHARED: "1"},
    ),
    "koordinator.sh, both spellings": (
        DomainSetting.KOORDINATOR,
        {CORE: "50", OLD_CORE: "70", RATIO: "50"},
        {CORE: "50", RATIO: "50", SHARED: "1"},
    ),
}


@pytest.mark.parametrize("case", DOMAINS.values(), ids=DOMAINS)
def test_names_are_written_under_the_domain_that_nodes_advertise(
    case: tuple[DomainSetting, Object, Object],
) -> None:
    """Koordinator contract 1.1: a node advertises one domain only; the request stays the same."""
    domain, asked, expected = case
    settings = AdmissionSettings(domain=domain)
    before = gpu_pod(asked)

    after = mutate(before, settings)

    assert resources(after) == {"limits": expected, "requests": expected}
    assert decode_pod(after).devices == decode_pod(before).devices
    assert mutate(after, settings) == after


def test_whole_cards_stay_where_the_setting_says_so() -> None:
    """Then only Koordinator's own keys are completed."""
    after = mutate(gpu_pod({NVIDIA: "2"}), BY_PLUGIN)

    assert resources(after)["limits"] == {NVIDIA: "2"}


@pytest.mark.parametrize("mode", ["env", "plugin", "gpushare"])
def test_cards_that_the_plugin_gives_are_shown_by_the_plugin_alone(mode: str) -> None:
    """A variable of ours would count over the plugin's, and be empty; others see no card."""
    before = pod(container("main", limits={NVIDIA: "1"}), container("log"))
    settings = AdmissionSettings(vocabulary=replace(BY_PLUGIN.vocabulary, slot_mode=mode))
    after = mutate(before, settings)

    main, log = after["spec"]["containers"]
    assert "env" not in main
    assert resources(after)["limits"] == {NVIDIA: "1"}
    assert log["env"] == [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}]
    assert after["spec"]["schedulerName"] == "tenure"
    assert after["metadata"]["annotations"] == {
        "tenure.sh/admitted": "true",
        "tenure.sh/whole-cards": "nvidia",
    }
    assert mutate(after, settings) == after


@pytest.mark.parametrize(
    ("settings", "label", "kept"),
    [
        pytest.param(AdmissionSettings(), "nvidia", True, id="the plugin's, by its label"),
        pytest.param(BY_PLUGIN, "ours", False, id="ours, by its label"),
        pytest.param(BY_PLUGIN, None, True, id="as the setting says"),
    ],
)
def test_a_namespaces_word_on_whole_cards_counts_before_the_setting(
    settings: AdmissionSettings, label: str | None, *, kept: bool
) -> None:
    """Whatever its Pods' users wrote there."""
    labels = {} if label is None else {"tenure.sh/whole-cards": label}
    facts = NamespaceFacts(managed=True, labels=labels)
    before = gpu_pod({NVIDIA: "2"}, annotations={"tenure.sh/whole-cards": "amd"})
    after = mutate(before, settings, facts)

    assert (NVIDIA in resources(after)["limits"]) is kept
    assert decode_pod(after, settings.vocabulary).by_plugin is kept


def test_an_unknown_word_of_a_namespace_is_refused_with_its_field() -> None:
    """The Pod is not rewritten by guess, and validation says both words."""
    facts = NamespaceFacts(managed=True, labels={"tenure.sh/whole-cards": "amd"})
    after = mutate(gpu_pod({NVIDIA: "2"}), facts=facts)
    assert resources(after)["limits"] == {NVIDIA: "2"}

    [cause] = validate(creation(after), facts=facts).causes

    assert cause.field == "metadata.annotations[tenure.sh/whole-cards]"
    assert "must be ours or nvidia" in cause.message


def test_more_cards_than_any_node_has_are_not_multiplied() -> None:
    """The request stays readable: such a Pod waits for ever, in its own words."""
    after = mutate(gpu_pod({NVIDIA: "9" * 18}))

    assert resources(after)["limits"] == {NVIDIA: "9" * 18}


def test_zero_asks_for_nothing_and_changes_nothing() -> None:
    """A template that sets every resource to 0 is no device Pod."""
    before = gpu_pod({NVIDIA: "0"})

    assert mutate(before) == before


def test_a_zero_in_our_words_beside_whole_cards_is_left_out() -> None:
    """It asks for nothing as written; beside what whole cards become it would break a rule."""
    before = pod(container(limits={NVIDIA: "1"}), init=[container("i", limits={GPU: "0"})])
    after = mutate(before)

    assert after["spec"]["initContainers"][0]["resources"] == {"limits": {}, "requests": {}}
    assert decode_pod(after).snapshot == decode_pod(before).snapshot
    assert mutate(after) == after
    after["metadata"]["annotations"].pop(ORIGINAL)
    assert decode_pod(after).devices == decode_pod(before).devices
