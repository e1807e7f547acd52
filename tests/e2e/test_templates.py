"""The ConfigMap of shared templates followed by the live scheduler."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest

from tests.e2e.test_scheduler import few_cards, is_refused, node_of
from tests.support.kube.bursts import eventually, remove_pods
from tests.support.kube.control_plane import ControlPlane
from tests.support.kube.inventory import DEVICES
from tests.support.kube.pods import pod, pods_in
from tests.support.kube.schedulers import Identities, asking, extender

PART = {"huawei.com/npu-core": "1", "huawei.com/npu-cpu": "1", "koordinator.sh/gpu-memory": "3Gi"}
CONFIG_MAPS = "/api/v1/namespaces/koordinator-system/configmaps"
NAME = "gpu-shared-resource-templates"


@pytest.fixture
def ascend(plane: ControlPlane) -> Iterator[str]:
    """A node with a card that is cut by templates."""
    for name in few_cards(plane, "ascend", 1):
        api, more = plane.api(), {"huawei.com/npu-core": "8", "huawei.com/npu-cpu": "7"}
        of_node = {**more, "koordinator.sh/gpu.shared": "10"}
        status = {"status": {"capacity": of_node, "allocatable": of_node}}
        assert api.patch(f"/api/v1/nodes/{name}/status", status).ok
        path = f"{DEVICES}/{name}"
        [card] = api.get(path).body["spec"]["devices"]
        of_card = {key: card["resources"][key] for key in ("koordinator.sh/gpu-memory",)}
        of_card |= {**more, "koordinator.sh/gpu-memory-ratio": "100"}
        labels = {"gpu-vendor": "huawei", "gpu-model": "Ascend-310P3"}
        said = {f"node.koordinator.sh/{key}": value for key, value in labels.items()}
        body = {"metadata": {"labels": said}, "spec": {"devices": [{**card, "resources": of_card}]}}
        assert api.patch(path, body).ok
        yield name


@pytest.mark.parametrize("ledger", ["sqlite"], indirect=True)
def test_a_template_that_comes_binds_who_waited_for_it_and_a_broken_one_changes_nothing(
    plane: ControlPlane,
    namespace: Callable[..., str],
    ledger: str,
    ascend: str,
    identities: Identities,
) -> None:
    """Without a restart, by the rights of the manifests; what can't be read is in the metrics."""
    where, api = pods_in(namespace(managed=False)), plane.api()

    def ask(name: str) -> None:
        amounts = {"koordinator.sh/gpu.shared": "1", **PART}
        made = api.create(where, pod(name, amounts, schedulerName="tenure"))
        assert made.ok, made.message

    api.create("/api/v1/namespaces", {"metadata": {"name": "koordinator-system"}})
    with (
        extender(plane, ledger, identities, forked=True) as served,
        plane.scheduler(asking(plane, served, identities)),
    ):
        ask("first")
        eventually(lambda: is_refused(plane, f"{where}/first"))
        text = json.dumps({"huawei-Ascend-310P3": {"vir01": PART}})
        made = api.create(CONFIG_MAPS, {"metadata": {"name": NAME}, "data": {"data.yaml": text}})
        assert made.ok, made.message
        eventually(lambda: node_of(plane, f"{where}/first") == ascend)
        assert api.patch(f"{CONFIG_MAPS}/{NAME}", {"data": {"data.yaml": "[1]"}}).ok
        broken = 'tenure_scheduler_view{what="broken_templates"} 1.0'
        eventually(lambda: broken in served.probe("metrics"))
        ask("second")
        eventually(lambda: node_of(plane, f"{where}/second") == ascend)
    annotations = api.get(f"{where}/second").body["metadata"]["annotations"]
    assert "vir01" in annotations["scheduling.koordinator.sh/device-allocated"]
    api.delete(f"{CONFIG_MAPS}/{NAME}")
    remove_pods(plane, where, ["first", "second"])
