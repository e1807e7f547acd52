"""Our webhook down, slow, or not ours at all: what the API server does then."""

from __future__ import annotations

import base64
import signal
import time
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tests.support.kube.control_plane import ControlPlane
from tests.support.kube.pods import HALF, binding, pod, pods_in
from tests.support.kube.webhooks import serving

Namespace = Callable[..., str]
CPU = {"cpu": "1"}
QOS = "koordinator.sh/qosClass"
ORDINARY: tuple[dict[str, Any], ...] = (
    {"amounts": CPU, "labels": {QOS: "LS"}},
    {"amounts": {**CPU, "nvidia.com/gpu": "0"}},
    {"amounts": CPU, "labels": {"pod-group.scheduling.sigs.k8s.io": "crowd"}},
)
OURS: tuple[dict[str, Any], ...] = (
    {"amounts": CPU, "labels": {QOS: "LSR"}},
    {"amounts": CPU, "schedulerName": "tenure"},
    {"amounts": {"vke.volcengine.com/mgpu-core": "100"}},
)


def test_with_nobody_there_only_pods_of_ours_wait(
    plane: ControlPlane, namespace: Namespace
) -> None:
    """Creation of matching Pods fails closed; everything else, and every update, goes on."""
    where = pods_in(namespace())
    with serving(plane) as hooks:
        assert plane.api().create(where, pod("before", HALF)).ok
        hooks.stop(hooks.replicas[0])
        refused = plane.api().create(where, pod("train", HALF))
        assert refused.status == 500, refused.message
        assert "pods.mutate.tenure.sh" in refused.message
        assert plane.api().create(where, pod("plain", {"cpu": "1"})).ok
        for number, ordinary in enumerate(ORDINARY):
            made = plane.api().create(where, pod(f"ordinary-{number}", **ordinary))
            assert made.ok, made.message
        for number, asked in enumerate(OURS):
            refused = plane.api().create(where, pod(f"ours-{number}", **asked))
            assert refused.status == 500, refused.message
        labelled = plane.api().patch(f"{where}/before", {"metadata": {"labels": {"a": "b"}}})
        assert labelled.ok, labelled.message
        assert plane.api().delete(f"{where}/before").ok
        hooks.add()
        assert plane.api().create(where, pod("train", HALF)).ok


def test_a_burst_in_a_new_namespace_is_refused_to_nobody(
    plane: ControlPlane, namespace: Namespace
) -> None:
    """300 Pods at once: each waits for its turn, and the look-ups are a watch's."""
    with serving(plane) as hooks:
        where = pods_in(namespace())

        def create(number: int) -> str:
            reply = plane.api().create(where, pod(f"p-{number}", HALF))
            return "" if reply.ok else reply.message

        with ThreadPoolExecutor(max_workers=100) as callers:
            assert set(callers.map(create, range(300))) == {""}
        url = f"http://127.0.0.1:{hooks.replicas[0].backend.probes}/metrics"
        with urllib.request.urlopen(url) as answer:
            shown = answer.read().decode()
        assert 'background_failures_total{what="namespaces"}' not in shown
        assert 'background_failures_total{what="resourcequotas"}' not in shown


def test_a_wrong_certificate_is_refused_by_the_api_server(
    plane: ControlPlane, namespace: Namespace
) -> None:
    """Whoever sits at our address without our authority's certificate decides nothing."""
    where = pods_in(namespace())
    with serving(plane) as hooks:
        path = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/tenure"
        strange = plane.api().get(path).body
        certificate = plane.ca_file.read_bytes()  # the API server's own, which is no authority
        for hook in strange["webhooks"]:
            hook["clientConfig"]["caBundle"] = base64.b64encode(certificate).decode()
        assert hooks.replicas
        assert plane.api().replace(path, strange).ok
        refused = ""
        until = time.monotonic() + 120
        while time.monotonic() < until and "x509" not in refused:
            refused = plane.api().create(where, pod("train", HALF), dry_run=True).message
        assert "x509" in refused
        until = time.monotonic() + 120  # the rotation puts back what was there
        while time.monotonic() < until:
            if plane.api().create(where, pod("train", HALF), dry_run=True).ok:
                return
            time.sleep(0.2)
        raise AssertionError("the bundle was not mended")


def test_a_server_that_hangs_is_given_up_after_its_timeout(
    plane: ControlPlane, namespace: Namespace
) -> None:
    """Five seconds, then the failurePolicy; an update goes on, a creation of ours does not."""
    where = pods_in(namespace())
    with serving(plane) as hooks:
        assert plane.api().create(where, pod("before", HALF)).ok
        process = hooks.replicas[0].process
        process.send_signal(signal.SIGSTOP)
        try:
            refused = plane.api().create(where, pod("train", HALF))
            assert plane.api().create("/api/v1/nodes", {"metadata": {"name": "n"}}).status < 500
            ordinary = plane.api().create(where, pod("ordinary", **ORDINARY[0]))
            bound = plane.api().create(f"{where}/ordinary/binding", binding("ordinary", "n"))
            changed = plane.api().patch(f"{where}/before", {"metadata": {"labels": {"a": "b"}}})
        finally:
            process.send_signal(signal.SIGCONT)
        assert refused.status == 500, refused.message
        assert "deadline exceeded" in refused.message
        assert "?timeout=5s" in refused.message
        assert (ordinary.ok, bound.ok) == (True, True), bound.message
        assert changed.ok, changed.message
        hooks.balancer.wait_for(hooks.backends[0])  # it had no backend that was ready meanwhile
        answer = plane.api().create(where, pod("train", HALF))
        assert answer.ok, answer.message
