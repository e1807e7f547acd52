"""`tenure certs`: what the cluster's certificates are, whom they would fail, and new ones."""

from __future__ import annotations

import asyncio
import base64
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from certs.material import issue_authority
from certs.plan import Settings
from certs.record import REQUESTED
from certs.reports import Reports
from certs.rotator import RotationObjects, Rotator
from tenure.kube.objects import connected
from tests.support.cli import CommandLine
from tests.support.kube.fake_api import Canned, FakeApi, fake_api

pytestmark = pytest.mark.integration

SECRET = "/api/v1/namespaces/tenure-system/secrets/tenure-webhook-certs"
REGISTRATION = "/apis/admissionregistration.k8s.io/v1"
KINDS = ("mutatingwebhookconfigurations", "validatingwebhookconfigurations")
HOOKS = tuple(f"{REGISTRATION}/{kind}/tenure" for kind in KINDS)
PLACE = RotationObjects(
    namespace="tenure-system", secret="tenure-webhook-certs", configurations=HOOKS
)


@dataclass(frozen=True, slots=True)
class Cluster:
    """A fake API server that runs beside the test, and our command line for it."""

    api: FakeApi
    kubeconfig: Path
    cli: CommandLine

    def run(self, *arguments: str) -> tuple[int, str, str]:
        """Run `tenure certs` and return exit code, output and errors."""
        answer = self.cli.run("certs", *arguments, "--kubeconfig", str(self.kubeconfig))
        return answer.code, answer.out, answer.err

    def rotate(self, *, after: timedelta = timedelta()) -> None:
        """Do what the leading replica does, at this time."""

        async def advance() -> None:
            async with connected(str(self.kubeconfig)) as objects:
                reports = Reports(objects, "tenure-system", "tenure-webhook-certs")
                settings = Settings(names=("tenure-webhook.tenure-system.svc",))

                def clock() -> datetime:
                    return datetime.now(UTC) + after

                await Rotator(objects, reports, PLACE, settings, clock).advance()
                await reports.say("one", "another leaf", datetime.now(UTC))

        asyncio.run(advance())


@pytest.fixture
def cluster(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Cluster]:
    """A cluster with both configurations and certificates that are published."""
    loop, stop = asyncio.new_event_loop(), asyncio.Event()
    started = threading.Event()
    found: list[FakeApi] = []

    async def serve() -> None:
        async with fake_api() as api:
            found.append(api)
            started.set()
            await stop.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    assert started.wait(10)
    api = found[0]
    for path in HOOKS:
        hooks: list[dict[str, Any]] = [{"name": n, "clientConfig": {}} for n in ("a", "b")]
        metadata = {"name": "tenure", "resourceVersion": "1"}
        api.objects[path] = {"metadata": metadata, "webhooks": hooks}
    try:
        made = Cluster(api, api.kubeconfig(tmp_path), CommandLine(tmp_path / "no.db", capsys))
        made.rotate()
        yield made
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(10)
        loop.close()


def test_everything_in_order_is_shown_and_exits_with_0(cluster: Cluster) -> None:
    """Authority, leaf, both configurations, every replica with what it serves."""
    code, out, _ = cluster.run("status")
    assert code == 0
    for words in ("authority", "stable", "tenure-webhook.tenure-system.svc", "trusts the leaf"):
        assert words in out
    code, out, _ = cluster.run("status", "-o", "json")
    answer = json.loads(out)
    rows = answer["items"] if isinstance(answer, dict) else answer
    assert {row["what"] for row in rows} == {"authority", "leaf", "configuration", "replica"}
    assert not any(row["bad"] for row in rows)
    assert "PRIVATE" not in out


def _distrust(cluster: Cluster) -> None:
    strange = issue_authority("x", now=datetime.now(UTC), lifetime=timedelta(days=1))
    told = cluster.api.objects[HOOKS[1]]["webhooks"][1]["clientConfig"]
    told["caBundle"] = base64.b64encode(strange.certificate).decode()


def _forget(cluster: Cluster) -> None:
    del cluster.api.objects[HOOKS[0]]["webhooks"][0]["clientConfig"]["caBundle"]


def _age(cluster: Cluster) -> None:
    cluster.api.objects.pop(SECRET)
    cluster.rotate(after=timedelta(days=-200))


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        pytest.param(_distrust, "REFUSES THE LEAF", id="a webhook trusts another authority"),
        pytest.param(_forget, "REFUSES THE LEAF", id="a webhook trusts nobody"),
        pytest.param(_age, "HAS ENDED", id="a leaf that has ended"),
    ],
)
def test_whom_calls_would_fail_for_is_exit_1(
    cluster: Cluster, damage: Callable[[Cluster], None], words: str
) -> None:
    """So a cron job or an alert can ask."""
    damage(cluster)
    code, out, _ = cluster.run("status")
    assert (code, words in out) == (1, True)


def test_a_configuration_that_is_not_there_is_said_and_no_error(cluster: Cluster) -> None:
    """Somebody uses one of the two only."""
    del cluster.api.objects[HOOKS[0]]
    code, out, _ = cluster.run("status")
    assert (code, "absent" in out) == (0, True)


def test_a_rotation_is_asked_for_and_carried_out(cluster: Cluster) -> None:
    """The mark is taken off when the rotation begins, and two authorities are trusted then."""
    code, out, err = cluster.run("rotate")
    assert (code, out) == (
        0,
        "asked for a new authority and leaf: secret=tenure-system/tenure-webhook-certs\n",
    )
    assert "tenure certs status" in err
    assert REQUESTED in cluster.api.objects[SECRET]["metadata"]["annotations"]
    cluster.rotate()
    assert REQUESTED not in cluster.api.objects[SECRET]["metadata"]["annotations"]
    code, out, _ = cluster.run("status")
    assert (code, "publishing" in out, "other authority" in out) == (0, True, True)


def test_a_dry_run_says_so_and_changes_nothing(cluster: Cluster) -> None:
    """Not even the version of the Secret."""
    before = cluster.api.objects[SECRET]
    code, out, _ = cluster.run("rotate", "--dry-run")
    assert (code, out.startswith("would ask for")) == (0, True)
    assert cluster.api.objects[SECRET] == before


@pytest.mark.parametrize("command", ["status", "rotate"])
def test_without_certificates_or_an_api_it_is_exit_2(cluster: Cluster, command: str) -> None:
    """One line of what is wrong and one of what to do."""
    cluster.api.objects.pop(SECRET)
    code, out, err = cluster.run(command)
    assert (code, out) == (2, "")
    assert "no certificates are there: secret=tenure-system/tenure-webhook-certs" in err
    cluster.api.canned[SECRET] = Canned(status=403)
    code, out, err = cluster.run(command)
    assert (code, out) == (2, "")
    assert "status=403" in err
    assert "Traceback" not in err


def test_a_secret_that_is_none_of_ours_is_said_to_be(cluster: Cluster) -> None:
    """Somebody gave the name of another one."""
    cluster.api.objects[SECRET]["metadata"]["annotations"] = {}
    code, _, err = cluster.run("status")
    assert code == 2
    assert "rotation can't be read" in err
