"""The settings file of admission: what it says, and what it may not say."""

from __future__ import annotations

from pathlib import Path

import pytest

from ledger.domain.errors import InputError
from tenure.settings import keys_of, read_admission
from webhook.decide.settings import (
    DEFAULT_ADMISSION,
    AdmissionSettings,
    DomainSetting,
    Profile,
    RuleMode,
    TakeoverRule,
)

DOCUMENT = Path(__file__).parents[3] / "docs" / "admission.md"
KIND = {"apiVersion": "tenure.sh/v1alpha1", "kind": "AdmissionConfiguration"}


def test_a_file_that_says_nothing_means_the_defaults() -> None:
    """So a field that is added later works when it is absent."""
    assert read_admission(KIND) == DEFAULT_ADMISSION
    assert read_admission({**KIND, "takeover": None, "mgpu": {}}) == DEFAULT_ADMISSION


def test_every_setting_reaches_the_decision() -> None:
    """Each one with a value that is not its default."""
    profile = {
        "name": "batch",
        "podLabels": {"a": "b"},
        "qos": "BE",
        "priorityClassName": "koord-batch",
        "priority": 5500,
        "labels": {"c": "d"},
    }
    found = read_admission(
        {
            **KIND,
            "domain": "koordinator.sh",
            "wholeCards": "nvidia",
            "takeover": {"rule": "labelled", "foreignSchedulers": ["volcano"]},
            "schedulerName": "other",
            "mode": "warn",
            "modes": {"GpuCombination": "off"},
            "defaults": {"qos": "LS", "priorityClassByQos": {"LS": "koord-prod"}},
            "profiles": [profile],
            "serviceAccounts": ["system:serviceaccount:x:y"],
            "isolationProviders": ["MPS"],
            "slotMode": "plugin",
            "gpushare": {"unit": "GiB"},
            "mgpu": {"multiMinMemoryMiB": 512, "maxMemoryMiB": 81920},
            "cpu": {"defaultBindPolicy": "SpreadByPCPUs", "defaultExclusivePolicy": "PCPULevel"},
        }
    )
    assert found.domain is DomainSetting.KOORDINATOR
    assert found.vocabulary.whole_cards == "nvidia"
    assert found.takeover.rule is TakeoverRule.LABELLED
    assert found.takeover.foreign_schedulers == {"volcano", "hami-scheduler"}
    assert found.scheduler_name == "other"
    assert (found.mode_of("Gang"), found.mode_of("GpuCombination")) == (
        RuleMode.WARN,
        RuleMode.OFF,
    )
    assert found.defaults.priority_class_by_qos == {"LS": "koord-prod"}
    assert found.profiles == (
        Profile(
            name="batch",
            pod_labels={"a": "b"},
            qos="BE",
            priority_class_name="koord-batch",
            priority=5500,
            labels={"c": "d"},
        ),
    )
    assert found.service_accounts == {"system:serviceaccount:x:y"}
    assert found.isolation_providers == {"MPS"}
    assert found.vocabulary.slot_mode == "plugin"
    assert found.vocabulary.gpushare_unit == "GiB"
    assert found.vocabulary.mgpu_multi_min_memory_mib == 512
    assert found.vocabulary.mgpu_max_memory_mib == 81920
    assert found.vocabulary.default_bind_policy == "SpreadByPCPUs"
    assert found.vocabulary.default_exclusive_policy == "PCPULevel"


@pytest.mark.parametrize(
    ("document", "error"),
    [
        pytest.param([], "not a AdmissionConfiguration", id="a list"),
        pytest.param({"kind": KIND["kind"]}, "apiVersion: required", id="no version"),
        pytest.param(
            {**KIND, "apiVersion": "v2", "junk": 1}, "apiVersion: must be", id="another version"
        ),
        pytest.param({**KIND, "kind": "Pod"}, "kind: must be", id="another kind"),
        pytest.param({**KIND, "domains": "x"}, "domains: unknown setting", id="an unknown key"),
        pytest.param(
            {**KIND, "takeover": {"rules": "x"}},
            "takeover.rules: unknown setting",
            id="an unknown key inside a section",
        ),
        pytest.param({**KIND, "mode": "on"}, "mode: must be", id="no mode"),
        pytest.param(
            {**KIND, "modes": {"Foo": "warn"}}, "no such rule in modes: Foo", id="no such rule"
        ),
        pytest.param({**KIND, "wholeCards": "amd"}, "wholeCards: must be", id="cards of nobody"),
        pytest.param({**KIND, "serviceAccounts": []}, "serviceAccounts: ", id="nobody is ours"),
        pytest.param(
            {**KIND, "profiles": [{"name": "a"}, {"name": "a"}]}, "there twice", id="a name twice"
        ),
        pytest.param(
            {**KIND, "profiles": [{"name": "a", "priority": 1}]},
            "go together",
            id="a number without its class",
        ),
        pytest.param(
            {**KIND, "mgpu": {"multiMinMemoryMiB": 0}}, "mgpu.multiMinMemoryMiB: ", id="too small"
        ),
    ],
)
def test_what_means_nothing_is_refused_with_its_field(document: object, error: str) -> None:
    """A silent default would admit what the operator meant to refuse."""
    with pytest.raises(InputError) as caught:
        read_admission(document)
    assert error in str(caught.value)


def test_every_setting_is_documented() -> None:
    """A key of a profile in the words about profiles, every other one in the table."""
    text = DOCUMENT.read_text()
    for key in keys_of(AdmissionSettings):
        if key.path != "profiles":
            assert f"\n| `{key.path}` |" in text, key
    for key in keys_of(Profile):
        if key.path != "name":
            assert f"`{key.path}`" in text, key
