from dataclasses import replace
from pathlib import Path
from types import NoneType
from typing import get_args, get_type_hints

import pytest

from ledger.domain.device_types import DeviceType, Unit
from ledger.domain.errors import InputError
from ledger.domain.vocabulary import Vocabulary
from scheduler.cluster.settings import recorded_settings, settings_hash, settings_json
from scheduler.decide.engine import Engine
from scheduler.decide.settings import (
    DEFAULT_SCHEDULING,
    POLICIES,
    CpuSettings,
    MGPUSettings,
    PolicyName,
    SchedulingSettings,
)
from tenure.settings import read_settings
from tenure.simulate.options import Options

HEAD = "apiVersion: tenure.sh/v1alpha1\nkind: SchedulerConfiguration\n"
WHOLE = f"""{HEAD}
node:     {{policy: scarcity, bottleneckFirst: true}}
groups:   {{shareVisible: false}}
devices:  {{scoring: MostAllocated, partitionScoreOrder: highest}}
mgpu:     {{enabled: true, policy: binpack, weightOfCore: 20, scheduleMode: index,
           maxContainersPerCard: 16, searchLevels: 5, multiMinMemoryMiB: 256}}
gpushare: {{unit: MiB}}
cpu:      {{defaultBindPolicy: FullPCPUs, defaultExclusivePolicy: None,
           numaAllocateStrategy: LeastAllocated, defaultNUMATopologyPolicy: None, maxRefCount: 1}}
compat:   {{proposalDomain: false}}
"""


def settings_of(folder: Path, text: str) -> SchedulingSettings:
    """Write a settings file and read it."""
    (folder / "s.yaml").write_text(text, encoding="utf-8")
    return read_settings(folder / "s.yaml")


def refusal(folder: Path, text: str) -> str:
    """Read a settings file that must be refused; return the message without the folder."""
    with pytest.raises(InputError) as caught:
        settings_of(folder, text)
    return str(caught.value).replace(f"{folder}/", "")


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(WHOLE, id="every setting at its default"),
        pytest.param(HEAD, id="no setting at all"),
        pytest.param(f"{HEAD}mgpu:\ncpu: {{}}\n", id="empty sections"),
    ],
)
def test_an_absent_setting_has_its_default(tmp_path: Path, text: str) -> None:
    """A file of an older release works, and the defaults are the ones that cli.md prints."""
    assert settings_of(tmp_path, text) == DEFAULT_SCHEDULING


def test_a_setting_is_taken_over(tmp_path: Path) -> None:
    """Values reach the decision under its own names."""
    text = f"""{HEAD}
node: {{policy: fgd, bottleneckFirst: false, ownedOnly: true}}
groups: {{shareVisible: true}}
mgpu: {{policy: Spread, weightOfCore: 50, multiMinMemoryMiB: 1024}}
gpushare: {{unit: GiB}}
cpu: {{boundBy: koordlet, maxRefCount: 2, defaultNUMATopologyPolicy: Restricted}}
compat: {{proposalDomain: true}}
"""
    assert settings_of(tmp_path, text) == SchedulingSettings(
        node_policy="fgd",
        bottleneck_first=False,
        owned_nodes_only=True,
        share_visible=True,
        mgpu=MGPUSettings(policy="spread", weight_of_core=50),
        cpu=CpuSettings(
            bound_by="koordlet", max_ref_count=2, default_numa_topology_policy="Restricted"
        ),
        proposal_domain=True,
        vocabulary=Vocabulary(gpushare_unit="GiB", mgpu_multi_min_memory_mib=1024),
    )


AS_PROPOSED = CpuSettings(
    numa_level_downgrades=True,
    spread_over_numa_nodes=True,
    spread_avoids_whole_cores=True,
    arm_full_pcpus_only=True,
)


@pytest.mark.parametrize("kind", ["SchedulerConfiguration", "TenureConfiguration"])
@pytest.mark.parametrize(
    ("text", "cpu"),
    [
        pytest.param("{asProposed: false}", CpuSettings(), id="as released"),
        pytest.param("{asProposed: true}", AS_PROPOSED, id="as proposed"),
        pytest.param(
            "{asProposed: true, armFullPCPUsOnly: false}",
            replace(AS_PROPOSED, arm_full_pcpus_only=False),
            id="as proposed, but for ARM",
        ),
        pytest.param(
            "{asProposed: true, armFullPCPUsOnly: null, spreadOverNUMANodes: }",
            AS_PROPOSED,
            id="nulls say nothing",
        ),
        pytest.param(
            "{spreadOverNUMANodes: true}",
            CpuSettings(spread_over_numa_nodes=True),
            id="one of four",
        ),
    ],
)
def test_the_proposals_reading_is_one_setting(
    tmp_path: Path, kind: str, text: str, cpu: CpuSettings
) -> None:
    """DIVERGENCES: the four places where the release is followed; each can be said by itself."""
    head = HEAD.replace("SchedulerConfiguration", kind)

    read = settings_of(tmp_path, f"{head}cpu: {text}\n").cpu
    assert read == replace(cpu, bound_by=read.bound_by)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param(
            f"{HEAD}nodes: {{}}\n", "s.yaml:3: nodes: unknown setting", id="an unknown section"
        ),
        pytest.param(
            f"{HEAD}mgpu:\n  enabled: true\n  weight: 3\n",
            "s.yaml:5: mgpu.weight: unknown setting",
            id="an unknown key",
        ),
        pytest.param(
            f"{HEAD}mgpu: {{weight_of_core: 3}}\n",
            "s.yaml:3: mgpu.weight_of_core: unknown setting",
            id="a key in another spelling",
        ),
        pytest.param(
            f"{HEAD}node: {{policy: best}}\n",
            "s.yaml:3: node.policy: must be 'binpack', 'spread', 'bestfit', 'fgd', 'scarcity' or "
            "'random': value='best'",
            id="a value that is none of the allowed",
        ),
        pytest.param(
            f"{HEAD}mgpu: {{weightOfCore: 101}}\n",
            "s.yaml:3: mgpu.weightOfCore: input should be less than or equal to 100: value=101",
            id="a number out of range",
        ),
        pytest.param(
            f'{HEAD}cpu: {{maxRefCount: "2"}}\n',
            "s.yaml:3: cpu.maxRefCount: input should be a valid integer: value='2'",
            id="text for a number",
        ),
        pytest.param(
            f"{HEAD}compat: {{proposalDomain: 1}}\n",
            "s.yaml:3: compat.proposalDomain: input should be a valid boolean: value=1",
            id="a number for a boolean",
        ),
        pytest.param(
            f"{HEAD}node: {{polcy: fgd, policy: best}}\nmgpus: {{}}\n",
            "s.yaml:3: node.policy: must be 'binpack', 'spread', 'bestfit', 'fgd', 'scarcity' or "
            "'random': value='best'; node.polcy: unknown setting; mgpus: unknown setting",
            id="several at once, each by its field",
        ),
        pytest.param(
            "apiVersion: v1\nkind: Pod\nspec: {}\n",
            "s.yaml:1: apiVersion: must be 'tenure.sh/v1alpha1': value='v1'",
            id="another kind of object",
        ),
        pytest.param(
            "kind: SchedulerConfiguration\n", "s.yaml:1: apiVersion: required", id="no version"
        ),
        pytest.param("", "s.yaml: one SchedulerConfiguration is needed: documents=0", id="nothing"),
        pytest.param(
            f"{HEAD}---\n{HEAD}",
            "s.yaml: one SchedulerConfiguration is needed: documents=2",
            id="two of them",
        ),
        pytest.param("- a\n", "s.yaml:1: not a SchedulerConfiguration", id="an array"),
        pytest.param(f"{HEAD}node: [\n", "s.yaml:4: broken YAML", id="broken YAML"),
    ],
)
def test_a_wrong_setting_is_an_error_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    """A misspelt setting never passes for its default."""
    assert refusal(tmp_path, text).startswith(message)


def test_every_policy_can_be_set_and_asked_for(tmp_path: Path) -> None:
    """The settings file, the option and the engine know the same policies: there is one list."""
    for policy in POLICIES:
        settings = settings_of(tmp_path, f"{HEAD}node: {{policy: {policy}}}\n")
        assert (settings.node_policy, type(settings.node_policy)) == (policy, str)
        Engine((), settings)
    option = get_type_hints(Options, include_extras=True)["policy"]
    assert get_args(get_args(option)[0]) == (PolicyName, NoneType)
    assert set(POLICIES) == set(PolicyName)


def test_the_hash_tells_settings_apart() -> None:
    """Equal settings have one hash; any changed field has another."""
    base = SchedulingSettings()

    assert settings_hash(base, seed=1) == settings_hash(SchedulingSettings(), seed=1)
    assert settings_hash(base, seed=1) != settings_hash(replace(base, node_policy="fgd"), seed=1)
    assert settings_hash(base, seed=1) != settings_hash(base, seed=2)
    assert len(settings_hash(base, seed=1)) == 64


def test_what_changes_the_meaning_of_a_request_is_one_value(tmp_path: Path) -> None:
    """Device types, units, limits and policies reach whatever reads a Pod, and the hash."""
    text = f"""{HEAD}
mgpu: {{multiMinMemoryMiB: 1024, maxMemoryMiB: 81920}}
gpushare: {{unit: GiB}}
cpu: {{defaultBindPolicy: SpreadByPCPUs, defaultExclusivePolicy: PCPULevel}}
deviceTypes: {{npu: {{resource: example.com/npu, unit: count}}}}
"""
    read = settings_of(tmp_path, text)

    assert read.vocabulary == Vocabulary(
        device_types=(DeviceType(name="npu", resource="example.com/npu", unit=Unit.COUNT),),
        gpushare_unit="GiB",
        mgpu_multi_min_memory_mib=1024,
        mgpu_max_memory_mib=81920,
        default_bind_policy="SpreadByPCPUs",
        default_exclusive_policy="PCPULevel",
    )
    assert settings_hash(read, seed=1) != settings_hash(SchedulingSettings(), seed=1)


@pytest.mark.parametrize(
    ("words", "fits"),
    [
        ("weightOfCore: 0", True),
        ("weightOfCore: 100", True),
        ("weightOfCore: -1", False),
        ("policy: BINPACK", True),
        ("policy: pack", False),
        ("scheduleMode: id", True),
        ("scheduleMode: uuid", False),
        ("maxContainersPerCard: 1", True),
        ("maxContainersPerCard: 0", False),
        ("searchLevels: 0", True),
        ("searchLevels: -1", False),
        ("maxMemoryMiB: 81920", True),
        ("maxMemoryMiB: 255", False),
        ("enabled: 1", False),
    ],
)
def test_arguments_of_mgpu_have_bounds(
    tmp_path: Path,
    words: str,
    fits: bool,  # noqa: FBT001 - a column of the table
) -> None:
    """GPU-sharing contract A.2, ours: defaults for what is absent, the rest refused at start."""
    path = tmp_path / "s.yaml"
    path.write_text(f"{HEAD}mgpu: {{{words}}}\n", encoding="utf-8")

    if fits:
        assert read_settings(path) != SchedulingSettings() or "BINPACK" in words
    else:
        with pytest.raises(InputError, match="mgpu"):
            read_settings(path)


def test_settings_are_read_back_as_a_ledger_recorded_them() -> None:
    """With and without the seed; what is not there has its default."""
    words = Vocabulary(
        device_types=(DeviceType(name="npu", resource="example.com/npu"),), gpushare_unit="GiB"
    )
    settings = SchedulingSettings(node_policy="fgd", vocabulary=words)

    assert recorded_settings(settings_json(settings, seed=7)) == settings
    assert recorded_settings("") == SchedulingSettings()
