import csv
import io
import json
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from tests.support.cli import CommandLine
from tests.support.forked import forked
from tests.support.objects import container, device, gpu_device, node, pod

pytestmark = pytest.mark.integration

NOW: Final = ("--now", "2026-03-02T09:00:00Z")
PLACEMENT_KEYS: Final = {
    "namespace",
    "name",
    "uid",
    "node",
    "devices",
    "counted",
    "cpuset",
    "cpuSharedPools",
    "annotations",
    "unschedulable",
}
SUMMARY_KEYS: Final = {
    "nodes",
    "pods",
    "placed",
    "unschedulable",
    "adopted",
    "policy",
    "seed",
    "gpu",
    "ledger",
    "conflicts",
    "warnings",
}


@pytest.fixture
def line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> CommandLine:
    """The command line in a folder with a cluster of two nodes and six Pods."""
    monkeypatch.chdir(tmp_path)
    big = {"cpu": "32", "memory": "64Gi"}
    half = {"koordinator.sh/gpu-core": "50", "koordinator.sh/gpu-memory-ratio": "50"}
    held = {"gpu": [{"minor": 0, "resources": half}]}
    objects = [
        node("n1", allocatable=big),
        device(gpu_device(0), gpu_device(1), name="n1"),
        node("n2", allocatable={**big, "nvidia.com/gpu": "2"}),
        pod(container(limits={"koordinator.sh/gpu": "50"}), name="half"),
        pod(container(limits={"nvidia.com/gpu": "2"}), name="two"),
        pod(container(limits={"nvidia.com/gpu": "3"}), name="three"),
        pod(container(limits={"nvidia.com/gpu": "1", "koordinator.sh/gpu": "50"}), name="mixed"),
        pod(container(requests={"cpu": "1"}), name="plain"),
        pod(
            container(limits={"koordinator.sh/gpu": "50"}),
            name="running",
            nodeName="n1",
            annotations={"scheduling.koordinator.sh/device-allocated": held},
        ),
    ]
    text = json.dumps({"kind": "List", "items": objects})
    (tmp_path / "in.json").write_text(text, encoding="utf-8")
    return CommandLine(tmp_path / "run.db", capsys)


def answer(line: CommandLine, *options: str) -> dict[str, Any]:
    """Return the JSON answer about the cluster."""
    done = line.run("simulate", "in.json", *NOW, "-o", "json", *options)
    assert done.code == 0, done.err
    document: dict[str, Any] = json.loads(done.out)
    return document


def test_the_answer_has_every_key_always(line: CommandLine) -> None:
    """Programs index into it without looking first (cli.md, Output)."""
    document = answer(line)

    assert list(document) == ["placements", "adopted", "summary"]
    assert all(entry.keys() == PLACEMENT_KEYS for entry in document["placements"])
    assert document["summary"].keys() == SUMMARY_KEYS
    assert [entry["name"] for entry in document["placements"]] == [
        "half",
        "two",
        "three",
        "mixed",
        "plain",
    ]


def test_pods_get_places_and_reasons(line: CommandLine) -> None:
    """Adopted Pods count, refusals name every node, broken rules name fields."""
    document = answer(line)
    half, two, three, mixed, plain = document["placements"]

    assert half["node"] == "n1"
    assert [card["minor"] for card in half["devices"]["gpu"]] == [0]  # beside the running one
    assert half["devices"]["gpu"][0]["resources"]["koordinator.sh/gpu-core"] == "50"
    assert two["node"] == "n2"
    assert set(three["unschedulable"]["nodes"]) == {"n1", "n2"}
    assert three["unschedulable"]["message"].startswith("0/2 nodes are available: ")
    assert mixed["unschedulable"]["nodes"] == {}
    assert "spec.containers[0].resources" in mixed["unschedulable"]["message"]
    assert (plain["devices"], plain["unschedulable"]) == ({}, None)
    assert [(pod["name"], pod["source"]) for pod in document["adopted"]] == [
        ("running", "device-allocated")
    ]
    summary = document["summary"]
    assert (summary["pods"], summary["placed"], summary["unschedulable"]) == (5, 3, 2)
    assert summary["gpu"] == {
        "cards": 4,
        "core_percent_capacity": 400,
        "core_percent_allocated": 300,
    }


def test_annotations_are_the_bindings(line: CommandLine) -> None:
    """JSON inside, sorted and without blanks; the same for the same --now."""
    half = answer(line)["placements"][0]

    text = half["annotations"]["scheduling.koordinator.sh/device-allocated"]
    assert text == json.dumps(json.loads(text), sort_keys=True, separators=(",", ":"))
    assert json.loads(text)["gpu"][0]["resources"] == half["devices"]["gpu"][0]["resources"]
    assert answer(line) == answer(line)


def test_every_form_says_the_same(line: CommandLine) -> None:
    """YAML is the JSON document, CSV has one line per Pod, tables name each."""
    document = answer(line)

    assert yaml.safe_load(line.run("simulate", "in.json", *NOW, "-o", "yaml").out) == document
    rows = list(csv.DictReader(io.StringIO(line.run("simulate", "in.json", "-o", "csv").out)))
    assert [(row["name"], row["node"] or None) for row in rows] == [
        (entry["name"], entry["node"]) for entry in document["placements"]
    ]
    for form in ("table", "wide"):
        out = line.run("simulate", "in.json", "-o", form).out
        assert all(entry["name"] in out for entry in document["placements"])
        assert "5 Pods decided: 3 placed, 2 unschedulable" in out


def test_stdout_carries_the_answer_alone(line: CommandLine) -> None:
    """The ledger used and warnings go to stderr; there is no progress bar off a terminal."""
    done = line.run("simulate", "in.json", "-o", "json")

    json.loads(done.out)
    assert done.err == "ledger: temporary, deleted (--ledger FILE keeps it), positions 1 to 17\n"


def test_strict_says_no_when_a_pod_has_no_place(line: CommandLine) -> None:
    """The answer is printed all the same; without --strict it is exit code 0."""
    done = line.run("simulate", "in.json", *NOW, "-o", "json", "--strict")

    assert done.code == 1
    assert json.loads(done.out) == answer(line)


def test_a_kept_ledger_is_named_and_can_be_asked(line: CommandLine) -> None:
    """Every placement went through it: who holds a card is in it, and the proof holds."""
    document = answer(line, "--ledger", str(line.ledger))

    assert document["summary"]["ledger"] == {
        "url": f"sqlite:///{line.ledger}",
        "from": 1,
        "to": 17,
    }
    assert "half" in line.ask("who", "n1/0").out
    assert line.ask("verify").code == 0


def test_settings_choose_the_policy_and_the_option_wins(line: CommandLine, tmp_path: Path) -> None:
    """--policy over --config over the default."""
    (tmp_path / "s.yaml").write_text(
        "apiVersion: tenure.sh/v1alpha1\nkind: SchedulerConfiguration\nnode: {policy: spread}\n",
        encoding="utf-8",
    )

    assert answer(line)["summary"]["policy"] == "scarcity"
    assert answer(line, "--config", "s.yaml")["summary"]["policy"] == "spread"
    chosen = answer(line, "--config", "s.yaml", "--policy", "fgd")
    assert chosen["summary"]["policy"] == "fgd"


def test_policies_are_compared_over_the_same_arrivals(line: CommandLine) -> None:
    """One line per policy, in the order asked for; each has a ledger of its own."""
    done = line.run("simulate", "in.json", "--compare", "spread,fgd,random", "-o", "json")

    rows = json.loads(done.out)
    assert [row["policy"] for row in rows] == ["spread", "fgd", "random"]
    assert all(row["placed"] + row["failed"] == 5 for row in rows)
    assert rows[0].keys() == {
        "policy",
        "placed",
        "failed",
        "allocated_percent",
        "fragmentation_percent",
        "nodes_untouched",
        "cards_untouched",
        "seconds",
        "decisions_per_second",
    }
    table = line.run("simulate", "in.json", "--compare", "spread,fgd").out.splitlines()
    assert table[0].startswith("POLICY")
    assert len(table) == 3


def test_the_order_of_equal_nodes_does_not_mix_up_reasons(tmp_path: Path) -> None:
    """With a rank the reasons still stand beside the node they are about."""
    (tmp_path / "n.csv").write_text(
        "sn,cpu_milli,memory_mib,gpu,model\nsmall,1000,1024,2,T4\nbig,64000,262144,1,T4\n",
        encoding="utf-8",
    )
    (tmp_path / "p.csv").write_text(
        "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec\np0,2000,1024,2,1000,\n",
        encoding="utf-8",
    )
    (tmp_path / "r.csv").write_text("sn,rank\nsmall,1\nbig,0\n", encoding="utf-8")
    files = ("--openb-nodes", "n.csv", "--openb-pods", "p.csv", "--openb-node-rank", "r.csv")

    done = forked("simulate", *files, "-o", "json", cwd=tmp_path)

    document = json.loads(done.stdout)
    assert document["placements"][0]["unschedulable"]["nodes"] == {
        "small": ["Insufficient cpu"],
        "big": ["Insufficient gpu devices"],
    }
    assert document["summary"].keys() == SUMMARY_KEYS | {
        "arrived_percent",
        "allocated_percent",
        "fragmentation_percent",
    }


def test_a_pipe_feeds_it(line: CommandLine, tmp_path: Path) -> None:
    """`kubectl get ... -o json | tenure simulate -` gives the answer of the file."""
    text = (tmp_path / "in.json").read_text(encoding="utf-8")

    done = forked("simulate", "-", *NOW, "-o", "json", cwd=tmp_path, stdin=text)

    assert json.loads(done.stdout) == answer(line)


def test_a_generated_week_runs_on_its_own_time(line: CommandLine, tmp_path: Path) -> None:
    """Pods leave, so more are placed than would fit at once, and the cards end as they should."""
    generated = line.run(
        "trace", "generate", "--like", "week", "--nodes", "10", "--pods", "200", "-o", "week"
    )
    assert generated.code == 0, generated.err

    done = line.run("simulate", "--trace", "week", "-o", "json", "--ledger", str(line.ledger))

    summary = json.loads(done.out)["summary"]
    assert summary["pods"] == 200
    assert summary["placed"] > 100
    assert line.ask("verify").code == 0
    assert (tmp_path / "week").is_dir()
