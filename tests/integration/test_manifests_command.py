"""`tenure manifests`: YAML to apply, for the settings and the release that were given."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from ledger.domain.vocabulary import DEFAULT_VOCABULARY
from tests.support.cli import CommandLine

pytestmark = pytest.mark.integration


@pytest.fixture
def cli(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    """Our command line; these commands open no ledger."""
    return CommandLine(tmp_path / "none.db", capsys)


def printed(cli: CommandLine, *arguments: str) -> list[dict[str, Any]]:
    """Return what `tenure manifests` prints as objects."""
    answer = cli.run("manifests", *arguments)
    assert (answer.code, answer.err) == (0, "")
    return list(yaml.safe_load_all(answer.out))


def test_the_webhook_is_registered_without_a_bundle(cli: CommandLine) -> None:
    """Rotation writes it; applying the manifest again must not take it away."""
    made = printed(cli, "webhook")
    assert [one["kind"] for one in made] == [
        "MutatingWebhookConfiguration",
        "ValidatingWebhookConfiguration",
    ]
    assert "caBundle" not in str(made)


def test_cert_manager_is_told_which_certificate(cli: CommandLine) -> None:
    """By the annotation that its injector looks for."""
    for one in printed(cli, "webhook", "--cert-manager", "tenure-system/webhook"):
        assert one["metadata"]["annotations"] == {
            "cert-manager.io/inject-ca-from": "tenure-system/webhook",
            "tenure.sh/vocabulary": DEFAULT_VOCABULARY.digest,
        }


def test_check_tells_what_was_made_for_another_vocabulary(cli: CommandLine, tmp_path: Path) -> None:
    """An installed policy goes on reading requests by the words that it was made with."""
    config = tmp_path / "admission.yaml"
    config.write_text(
        "apiVersion: tenure.sh/v1alpha1\nkind: AdmissionConfiguration\n"
        "mgpu: {multiMinMemoryMiB: 1024}\n"
    )
    for command, count in (("policies", None), ("webhook", 2)):
        made = printed(cli, command)
        installed = tmp_path / f"{command}.yaml"
        installed.write_text(yaml.safe_dump_all(made))

        alike = cli.run("check", str(installed), "-o", "json")
        other = cli.run("check", str(installed), "--config", str(config), "-o", "json")

        assert (alike.code, other.code) == (0, 0)
        assert "another vocabulary" not in alike.out + alike.err
        said = (other.out + other.err).count("made for another vocabulary than --config says")
        assert said == (count or len(made))


def test_the_settings_decide_which_pods_reach_us(cli: CommandLine, tmp_path: Path) -> None:
    """The scheduler's name and the accounts are in the conditions."""
    config = tmp_path / "admission.yaml"
    config.write_text(
        "apiVersion: tenure.sh/v1alpha1\nkind: AdmissionConfiguration\nschedulerName: ours\n"
    )
    for command in ("webhook", "policies"):
        made = printed(cli, command, "--config", str(config))
        assert 'schedulerName == "ours"' in str(made).replace("\\'", "'")


def test_a_second_release_has_names_of_its_own(cli: CommandLine) -> None:
    """Nothing that is cluster-wide is shared."""
    for command in ("webhook", "policies", "rbac"):
        first = {(one["kind"], one["metadata"]["name"]) for one in printed(cli, command)}
        options = ("--name", "b", "--namespace", "b-system")
        second = {(one["kind"], one["metadata"]["name"]) for one in printed(cli, command, *options)}
        assert not first & second


def test_policies_can_start_with_warnings(cli: CommandLine) -> None:
    """First install warns, then enforces."""
    made = printed(cli, "policies", "--action", "warn")
    bound = [one for one in made if one["kind"].endswith("Binding")]
    assert {tuple(one["spec"]["validationActions"]) for one in bound} == {("Warn", "Audit")}


@pytest.mark.parametrize(
    ("arguments", "fact"),
    [
        pytest.param(["webhook", "--url", "http://x"], "by https alone", id="plain HTTP"),
        pytest.param(["webhook", "--cert-manager", "x"], "NAMESPACE/NAME", id="no namespace"),
        pytest.param(["webhook", "--cert-manager", "a/b/c"], "NAMESPACE/NAME", id="too much"),
        pytest.param(["policies", "--config", "absent"], "can't read it", id="no settings"),
        pytest.param(["policies", "--action", "maybe"], "maybe", id="another action"),
    ],
)
def test_what_is_wrong_is_one_clear_error(
    cli: CommandLine, arguments: list[str], fact: str
) -> None:
    """Exit 2, and nothing that somebody could apply."""
    answer = cli.run("manifests", *arguments)
    assert (answer.code, answer.out) == (2, "")
    assert fact in answer.err


def test_the_second_kube_scheduler_has_the_version_of_the_cluster(cli: CommandLine) -> None:
    """Its image, and the Service that its extender's URL names."""
    made = printed(cli, "scheduler", "--kube-version", "v1.36.3", "--namespace", "ours")
    by_kind = {one["kind"]: one for one in made}
    [container] = by_kind["Deployment"]["spec"]["template"]["spec"]["containers"]
    assert container["image"].endswith(":v1.36.3")
    service = by_kind["Service"]["metadata"]
    assert f"https://{service['name']}.ours.svc" in by_kind["ConfigMap"]["data"]["config.yaml"]


def test_a_version_that_is_none_is_refused_with_what_to_give(cli: CommandLine) -> None:
    """kube-scheduler has the cluster's minor version, so it is asked for."""
    answer = cli.run("manifests", "scheduler", "--kube-version", "latest")
    assert answer.code == 2
    assert "--kube-version" in answer.err
    assert "v1.36.3" in answer.err


def test_an_api_service_needs_the_authority_that_the_api_server_believes(
    cli: CommandLine, tmp_path: Path
) -> None:
    """And an authority alone registers nothing."""
    (tmp_path / "ca.crt").write_bytes(b"PEM")
    version = ("scheduler", "--kube-version", "v1.36.3")
    for options in (("--api-service",), ("--api-ca", str(tmp_path / "ca.crt"))):
        answer = cli.run("manifests", *version, *options)
        assert (answer.code, answer.out) == (2, "")
        assert "an APIService goes with the authority" in answer.err
    kinds = [thing["kind"] for thing in printed(cli, *version, "--api")]
    assert "APIService" not in kinds
    registered = printed(cli, *version, "--api-service", "--api-ca", str(tmp_path / "ca.crt"))
    assert [thing["kind"] for thing in registered].count("APIService") == 1


def test_with_an_image_the_replicas_are_printed_too(cli: CommandLine) -> None:
    """Several of them on Postgres alone, and none without an image."""
    common = ("scheduler", "--kube-version", "v1.36.3")
    several = ("--image", "tenure:1", "--replicas", "2", "--ledger-secret", "ledger")
    names = [
        one["metadata"]["name"]
        for one in printed(cli, *common, *several)
        if one["kind"] == "Deployment"
    ]
    assert names == ["tenure-scheduler", "tenure-kube-scheduler"]
    reach = ("--control-plane", "10.0.0.0/28", "--host-network")
    of_nodes = ("--driver", "d", "--image", "i", "--gate-open", *reach)
    for wrong, option in (
        (("--image", "tenure:1", "--replicas", "2"), "--replicas"),
        (("--ledger-secret", "ledger"), "--ledger-secret"),
        (("--gate-client-ca", "authority"), "--gate-client-ca"),
        (("--image", "tenure:1", "--gate-client-ca", "authority"), "--gate-client-ca"),
        (("--image", "tenure:1", "--gate-open"), "--gate-open"),
        (("--control-plane", "10.0.0.0/28"), "--control-plane"),
        (("--driver", "d"), "--control-plane"),
        (("--driver", "d", "--control-plane", "10.0.0.1/28"), "--control-plane"),
        (("--driver", "d", "--image", "i", "--control-plane", "10.0.0.0/28"), "--gate-client-ca"),
        (("--untold-devices", "record"), "--untold-devices"),
        (of_nodes, "--host-network"),
    ):
        answer = cli.run("manifests", *common, *wrong)
        assert (answer.code, answer.out) == (2, "")
        assert option in answer.err


def test_the_kinds_have_what_is_read_and_written(cli: CommandLine) -> None:
    """Each whole, without a reference to another part of the text."""
    out = cli.run("manifests", "crds").out
    made = {one["metadata"]["name"]: one for one in yaml.safe_load_all(out)}

    assert made.keys() == {
        "devices.scheduling.koordinator.sh",
        "noderesourcetopologies.topology.node.k8s.io",
    }
    assert "&id" not in out
    (version,) = made["devices.scheduling.koordinator.sh"]["spec"]["versions"]
    schema = version["schema"]["openAPIV3Schema"]["properties"]
    assert schema["spec"]["properties"].keys() == {"devices", "topologies"}
    assert schema["status"]["properties"].keys() == {"allocations"}
    assert version["subresources"] == {"status": {}}


def test_what_is_printed_for_a_gate_is_one_installation(cli: CommandLine, tmp_path: Path) -> None:
    """The API server asks where the printed replicas listen, for the drivers that they guard."""
    (tmp_path / "ca.crt").write_bytes(b"PEM")
    drivers = ("--driver", "gpu.nvidia.com", "--driver", "hami.example.com")
    gate = ("--image", "tenure:1", "--gate-port", "9443", "--gate-client-ca", "authority")
    reach = ("--control-plane", "10.0.0.0/28", "--untold-devices", "record")
    made = printed(cli, "scheduler", "--kube-version", "v1.36.3", *drivers, *gate, *reach)
    asked = printed(cli, "dra", *drivers, "--ca", str(tmp_path / "ca.crt"), "--port", "9443")
    things = {(one["kind"], one["metadata"]["name"]): one for one in made}

    [hook] = asked[0]["webhooks"]
    place = hook["clientConfig"]["service"]
    service = things["Service", place["name"]]
    assert service["metadata"]["namespace"] == place["namespace"]
    [port] = [one for one in service["spec"]["ports"] if one["port"] == place["port"]]
    pod = things["Deployment", "tenure-scheduler"]["spec"]["template"]["spec"]
    [container] = pod["containers"]
    args = container["args"]
    given = [(args[at], args[at + 1]) for at in range(len(args) - 1) if args[at].startswith("--")]
    assert ("--gate", f"0.0.0.0:{port['targetPort']}") in given
    assert ("--gate-name", f"{place['name']}.{place['namespace']}.svc") in given
    assert [value for key, value in given if key == "--driver"] == [*drivers[1::2]]
    assert all(name in hook["matchConditions"][1]["expression"] for name in drivers[1::2])
    assert ("--untold-devices", "record") in given
    [path] = [value for key, value in given if key == "--gate-client-ca"]
    mounts = {one["mountPath"]: one["name"] for one in container["volumeMounts"]}
    volumes = {one["name"]: one for one in pod["volumes"]}
    secret = volumes[mounts[path.removesuffix("/ca.crt")]]["secret"]
    assert secret == {"secretName": "authority", "items": [{"key": "ca.crt", "path": "ca.crt"}]}
