"""Templates of shares that change under the live scheduler, on either database."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

import pytest

from ledger.domain.log.events import PodReserved, SettingsChanged
from ledger.store.proving.verify import verify
from scheduler.cluster.settings import recorded_settings, settings_hash
from scheduler.decide.engine import Engine
from tests.support import fake_api
from tests.support.objects import Json, container, device, gpu_device, node, pod
from tests.support.reconciled import Cluster, StoreLedger
from tests.support.replays import differing
from tests.support.stores import Store

PATH: Final = "/api/v1/namespaces/koordinator-system/configmaps/gpu-shared-resource-templates"
ALLOCATED: Final = "scheduling.koordinator.sh/device-allocated"
CORE: Final = "huawei.com/npu-core"
CPU: Final = "huawei.com/npu-cpu"
MEMORY: Final = "koordinator.sh/gpu-memory"
LABELS: Final = {
    "node.koordinator.sh/gpu-vendor": "huawei",
    "node.koordinator.sh/gpu-model": "Ascend-310P3",
}
SMALL, LARGE = (1, 1, 3), (4, 4, 12)
NO_TEMPLATE: Final = "no matched GPU shared resource template"
UNREADABLE: Final = {
    "broken YAML": ("a: {", "data[data.yaml]: data.yaml:2: broken YAML"),
    "a bad quantity": ("huawei-x: {v: {huawei.com/npu-core: 1X}}", "huawei-x.v[huawei.com/npu-c"),
    "two documents": ("a: {}\n---\nb: {}", "one document is needed"),
}


class Scene(Cluster):
    """A cluster with a node of Huawei cards and one of others."""

    def __init__(self, store: StoreLedger | None = None) -> None:
        super().__init__(nodes=1, ledger=store)
        body = node("h", allocatable={"cpu": "64", "memory": "256Gi", "pods": "110"})
        body["kind"], body["metadata"]["uid"] = "Node", "uid-h"
        amounts = {CORE: 8, CPU: 7, "huawei.com/npu-dvpp": 100, MEMORY: "24Gi"}
        amounts["koordinator.sh/gpu-memory-ratio"] = 100
        cards = [gpu_device(minor, id=f"GPU-h-{minor}", resources=amounts) for minor in range(2)]
        about = device(*cards, name="h", labels=LABELS)
        about["kind"], about["metadata"]["uid"] = "Device", "device-h"
        self.server.put("/devices/h", about)
        self.server.put("/api/v1/nodes/h", body)
        self.settle()

    def tell(self, text: str) -> None:
        """Let the ConfigMap be this."""
        name, namespace = "gpu-shared-resource-templates", "koordinator-system"
        metadata = {"name": name, "namespace": namespace, "uid": "uid-templates"}
        body = {"kind": "ConfigMap", "metadata": metadata, "data": {"data.yaml": text}}
        self.server.put(PATH, body)
        self.settle()

    def cut(self, **templates: tuple[int, int, int]) -> None:
        """Let the ConfigMap have these templates."""
        named = {name: _amounts(*amounts) for name, amounts in templates.items()}
        self.tell(json.dumps({"huawei-Ascend-310P3": named}))

    def ask(self, amounts: tuple[int, int, int]) -> str:
        """Return the node that a Pod of these amounts passes, or why none takes it."""
        body = _asking(amounts, f"q{amounts[0]}")
        body["metadata"]["resourceVersion"] = "1"
        call = json.dumps({"Pod": body, "NodeNames": ["h"]}).encode()
        answer = json.loads(self.live.extender.filter(call))
        passing: list[str] = answer["NodeNames"]
        why = {**answer["FailedNodes"], **answer["FailedAndUnresolvableNodes"]}
        return passing[0] if passing else str(why["h"])

    def place(self, amounts: tuple[int, int, int], name: str) -> str:
        """Bind a Pod of these amounts; return the template that it says."""
        body = _asking(amounts, name)
        self.server.put(fake_api.path_of(body), body)
        self.bind(name, "h")
        [entry] = json.loads(self.words(name)[ALLOCATED])["gpu"]
        template: str = entry["extension"]["gpuSharedResourceTemplate"]
        return template

    def settings(self) -> list[str]:
        """Return the templates' names of every settings event, in order."""
        return [
            " ".join(
                each.name for each in recorded_settings(event.settings).devices.shared_templates
            )
            for event in self.ledger.log
            if isinstance(event, SettingsChanged)
        ]


def _amounts(core: int, cpu: int, gib: int) -> Mapping[str, object]:
    return {CORE: core, CPU: cpu, MEMORY: f"{gib}Gi"}


def _asking(amounts: tuple[int, int, int], name: str) -> Json:
    limits = {"koordinator.sh/gpu.shared": 1, **_amounts(*amounts)}
    body = pod(container(limits=limits), name=name, uid=f"uid-{name}", schedulerName="tenure")
    body["metadata"]["annotations"] = {"tenure.sh/admitted": "true"}
    return body | {"status": {"phase": "Pending"}}


def test_another_template_is_another_decision_without_a_restart(store: Store) -> None:
    """Recorded before anything is decided by it, and decided again from the events alone."""
    with store.open() as ledger:
        scene = Scene(StoreLedger(ledger))
        assert NO_TEMPLATE in scene.ask(SMALL)
        scene.cut(vir01=SMALL)
        assert (scene.ask(SMALL), scene.place(SMALL, "a")) == ("h", "vir01")
        assert NO_TEMPLATE in scene.ask(LARGE)
        scene.cut(vir04=LARGE)
        assert NO_TEMPLATE in scene.ask(SMALL)
        assert (scene.ask(LARGE), scene.place(LARGE, "b")) == ("h", "vir04")
        scene.cut(vir01=SMALL)  # as they were before
        assert scene.place(SMALL, "c") == "vir01"
        scene.server.delete(PATH)
        scene.settle()
        assert NO_TEMPLATE in scene.ask(SMALL)
        assert scene.settings() == ["", "vir01", "vir04", "vir01", ""]
        recorded = list(ledger.read_events())
        quoted = [one.event.settings_hash for one in recorded if isinstance(one.event, PodReserved)]
        assert len(set(quoted)) == 2
        assert differing(recorded, whole=False) == []
        assert verify(ledger).findings == ()


@pytest.mark.parametrize(("text", "fact"), UNREADABLE.values(), ids=UNREADABLE)
def test_the_last_that_could_be_read_counts_on(text: str, fact: str) -> None:
    """What is wrong is named with its place, and over once it is mended."""
    scene = Scene()
    scene.cut(vir01=SMALL)
    scene.tell(text)
    assert fact in scene.live.templates.fault
    assert (
        "ConfigMap koordinator-system/gpu-shared-resource-templates" in scene.live.templates.fault
    )
    assert (scene.ask(SMALL), scene.settings()) == ("h", ["", "vir01"])
    scene.cut(vir04=LARGE)
    assert scene.live.templates.fault == ""
    assert scene.ask(LARGE) == "h"


def test_a_start_with_a_broken_one_goes_on_with_the_ledgers(store: Store) -> None:
    """The last good one is what decisions were made by, whichever process read it."""
    with store.open() as ledger:
        scene = Scene(StoreLedger(ledger))
        scene.cut(vir01=SMALL)
        scene.tell("[1]")
        scene.start()
        assert scene.live.templates.fault
        assert scene.ask(SMALL) == "h"
        scene.server.delete(PATH)
        scene.start()
        assert NO_TEMPLATE in scene.ask(SMALL)
        assert scene.settings() == ["", "vir01", ""]


def test_pods_that_wait_are_woken_where_other_shares_can_be_cut_and_nowhere_else() -> None:
    """kube-scheduler does not ask again about what we refused until a Node changes."""
    scene = Scene()
    scene.put_pod("waits")
    scene.cut(vir01=SMALL)
    scene.wait(4)
    woken = "tenure.sh/released-at"
    words = {
        name: scene.server.read(f"/api/v1/nodes/{name}")["metadata"].get("annotations") or {}  # type: ignore[index]
        for name in ("h", "n0")
    }
    assert woken in words["h"]
    assert woken not in words["n0"]


def test_an_engine_told_of_other_templates_answers_as_one_made_with_them() -> None:
    """Whatever it remembers of who was asked about before."""
    scene = Scene()
    view = scene.live.view
    asked = [
        view.requests.read(_asking(amounts, f"p{cpu}"))
        for cpu, amounts in enumerate((SMALL, LARGE))
    ]
    for templates in ({"vir01": SMALL}, {"vir04": LARGE}, {}, {"vir01": SMALL, "vir04": LARGE}):
        for request in asked:
            view.engine.filter(request, [0, 1])  # type: ignore[arg-type]
        scene.cut(**templates)
        facts = [view.facts(name) for name in ("n0", "h")]
        fresh = Engine([one for one in facts if one is not None], view.settings)
        for request in asked:
            got, wanted = (each.filter(request, [0, 1]) for each in (view.engine, fresh))  # type: ignore[arg-type]
            assert got.passing.tolist() == wanted.passing.tolist()
            assert [got.reasons[code] for code in got.codes.tolist()] == [
                wanted.reasons[code] for code in wanted.codes.tolist()
            ]
    assert settings_hash(view.settings, seed=0) == scene.live.books.words.settings_hash
