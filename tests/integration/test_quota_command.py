from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from tests.support.cli import CommandLine

pytestmark = pytest.mark.integration

QUOTA = """\
apiVersion: v1
kind: ResourceQuota
metadata:
  name: gpus
  namespace: ml
  uid: 9d1c1c5e-0000-4000-8000-000000000000
  resourceVersion: "7"
spec:
  hard: {requests.nvidia.com/gpu: "4", cpu: "40"}
status:
  used: {cpu: "1"}
---
apiVersion: v1
kind: ResourceQuota
metadata: {name: cpus, namespace: ml}
spec:
  hard: {cpu: "40"}
---
apiVersion: v1
kind: Namespace
metadata: {name: ml}
"""


@pytest.fixture
def cli(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    """Our command line; these commands open no ledger."""
    return CommandLine(tmp_path / "none.db", capsys)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file with two quotas, one of them on cards."""
    path = tmp_path / "quota.yaml"
    path.write_text(QUOTA)
    return path


def test_quotas_are_translated_to_be_applied(cli: CommandLine, file: Path) -> None:
    """What the API server wrote is left out; the answer is a manifest and nothing else."""
    answer = cli.run("quota", "translate", str(file))

    assert answer.code == 0
    cards, cpus = yaml.safe_load_all(answer.out)
    assert cards == {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "gpus", "namespace": "ml"},
        "spec": {
            "hard": {
                "requests.nvidia.com/gpu": "4",
                "cpu": "40",
                "requests.koordinator.sh/gpu-core": "400",
                "requests.koordinator.sh/gpu-memory-ratio": "400",
                "requests.koordinator.sh/gpu.shared": "4",
            }
        },
    }
    assert cpus["spec"] == {"hard": {"cpu": "40"}}
    assert "nothing to add: ResourceQuota ml/cpus" in answer.err
    assert "objects of other kinds left out: 1" in answer.err


def test_json_is_a_list_to_be_applied(cli: CommandLine, file: Path) -> None:
    """`kubectl apply -f -` takes either form; the domain is the setting's."""
    answer = cli.run("quota", "translate", str(file), "-o", "json", "--domain", "kubernetes.io")

    document = json.loads(answer.out)
    assert (document["kind"], len(document["items"])) == ("List", 2)
    assert document["items"][0]["spec"]["hard"]["requests.kubernetes.io/gpu-core"] == "400"


def test_a_bad_quantity_names_file_line_and_field(cli: CommandLine, file: Path) -> None:
    """Unreadable input is exit 2 with one message and one next step."""
    file.write_text(QUOTA.replace('gpu: "4"', 'gpu: "four"'))

    answer = cli.run("quota", "translate", str(file))

    assert (answer.code, answer.out) == (2, "")
    assert "quota.yaml:9" in answer.err
    assert "ResourceQuota ml/gpus: spec.hard[requests.nvidia.com/gpu]" in answer.err
    assert "next:" in answer.err


def test_no_quota_at_all_says_where_to_get_one(cli: CommandLine, tmp_path: Path) -> None:
    """The next step can be pasted."""
    file = tmp_path / "other.yaml"
    file.write_text("apiVersion: v1\nkind: Namespace\nmetadata: {name: ml}\n")

    answer = cli.run("quota", "translate", str(file))

    assert answer.code == 2
    assert "no ResourceQuota in the input" in answer.err
    assert "kubectl get resourcequota" in answer.err
