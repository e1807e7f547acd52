from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path

import pytest

from ledger.domain.errors import InputError
from ledger.domain.request.requests import PodRequest
from tenure.simulate.model import Run
from tenure.simulate.openb import read_openb

NODES = """\
sn,cpu_milli,memory_mib,gpu,model
openb-node-0000,64000,262144,2,P100
openb-node-0001,96000,393216,8,G2
openb-node-0002,32000,131072,0,
"""
PODS = """\
name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time
openb-pod-0000,12000,16384,1,1000,,LS,Running,0,12537496,0
openb-pod-0001,6000,12288,1,460,V100M32|V100M16,LS,Running,427061,12902960,427061
openb-pod-0002,8000,0,0,0,,BE,Pending,427060,427070,
openb-pod-0003,20000,65536,4,1000,,BE,Failed,500000,500010,500001
"""
ARRIVALS = """\
seq,pod,trace_pod
0,openb-pod-0003,openb-pod-0003
1,openb-pod-0003-tuned-0,openb-pod-0003
"""
RANK = "sn,rank\nopenb-node-0000,2\nopenb-node-0001,0\nopenb-node-0002,1\n"


def _read(tmp_path: Path, *, inflate: str | None = None, seed: int = 42, **texts: str) -> Run:
    """Read a trace from these texts; what is not given is the small trace above."""
    return _read_texts(tmp_path, texts, inflate=inflate, seed=seed)


def _read_texts(
    tmp_path: Path, texts: Mapping[str, str], *, inflate: str | None = None, seed: int = 42
) -> Run:
    paths = {name: tmp_path / f"{name}.csv" for name in ("nodes", "pods", "arrivals", "rank")}
    for name, text in {"nodes": NODES, "pods": PODS, **texts}.items():
        paths[name].write_text(text, encoding="utf-8")
    return read_openb(
        nodes_csv=paths["nodes"],
        pods_csv=paths["pods"],
        arrivals_csv=paths["arrivals"] if "arrivals" in texts else None,
        rank_csv=paths["rank"] if "rank" in texts else None,
        inflate=None if inflate is None else Decimal(inflate),
        seed=seed,
        start_us=1_000_000,
    )


def _pods(run: Run) -> list[PodRequest]:
    pods = [arrival.pod for arrival in run.arrivals]
    assert all(isinstance(pod, PodRequest) for pod in pods)
    return [pod for pod in pods if isinstance(pod, PodRequest)]


def test_nodes_have_their_cards_with_the_models_memory(tmp_path: Path) -> None:
    """A P100 has 16280 MiB; nodes without GPUs have no devices."""
    nodes = _read(tmp_path).nodes

    assert [(node.name, node.cpu_milli, len(node.devices)) for node in nodes] == [
        ("openb-node-0000", 64_000, 2),
        ("openb-node-0001", 96_000, 8),
        ("openb-node-0002", 32_000, 0),
    ]
    assert nodes[0].memory_bytes == 262_144 * 2**20
    assert [(card.minor, card.model, card.memory_bytes) for card in nodes[0].devices] == [
        (0, "P100", 16_280 * 2**20),
        (1, "P100", 16_280 * 2**20),
    ]


def test_pods_ask_percent_of_cards(tmp_path: Path) -> None:
    """Thousandths become percent; a whole card is wanted alone; models are a set."""
    whole, part, none, several = _pods(_read(tmp_path))

    assert [
        (d.count, d.core_percent, d.memory_ratio_percent, d.exclusive) for d in whole.devices
    ] == [(1, 100, 100, True)]
    assert [(d.core_percent, d.exclusive, d.model_names) for d in part.devices] == [
        (46, False, ("V100M16", "V100M32"))
    ]
    assert (none.devices, none.dialect, none.memory_bytes) == ((), None, 0)
    assert [d.count for d in several.devices] == [4]


def test_pods_of_one_shape_share_their_demands(tmp_path: Path) -> None:
    """The engine knows shapes by identity first."""
    rows = [PODS.splitlines()[1].replace("0000", f"{number:04d}") for number in range(2)]
    first, second = _pods(_read(tmp_path, pods="\n".join([PODS.splitlines()[0], *rows])))

    assert first.devices is second.devices


def test_file_order_keeps_creation_times(tmp_path: Path) -> None:
    """Virtual time never goes back, though a row may."""
    times = [arrival.at_us for arrival in _read(tmp_path).arrivals]

    assert times == [1_000_000 + at * 1_000_000 for at in (0, 427_061, 427_061, 500_000)]


def test_an_exact_order_is_taken_as_listed(tmp_path: Path) -> None:
    """A Pod may come again under a name, and so a UID, of its own."""
    run = _read(tmp_path, arrivals=ARRIVALS)
    first, again = _pods(run)

    assert [first.name, again.name] == ["openb-pod-0003", "openb-pod-0003-tuned-0"]
    assert first.uid != again.uid
    assert first.devices is again.devices
    assert [arrival.at_us for arrival in run.arrivals] == [1_000_000, 2_000_000]
    assert run.rank is None


def test_the_rank_file_breaks_ties(tmp_path: Path) -> None:
    """Per node in file order, its place when nodes are alike."""
    assert _read(tmp_path, rank=RANK).rank == (2, 0, 1)


def test_typical_pods_are_the_traces_own(tmp_path: Path) -> None:
    """Also when the arrivals are others."""
    run = _read(tmp_path, arrivals=ARRIVALS)

    assert [pod.name for pod in run.typical] == [f"openb-pod-{number:04d}" for number in range(4)]


def test_inflation_stops_before_the_ratio(tmp_path: Path) -> None:
    """All Pods once, then draws, up to but not over the ratio; the next one would be over."""
    run = _read(tmp_path, inflate="1.3")
    pods = _pods(run)
    asked = sum(d.count * d.core_percent for pod in pods for d in pod.devices)

    assert sorted(pod.name for pod in pods[:4]) == [f"openb-pod-{n:04d}" for n in range(4)]
    assert all(pod.name.endswith(f"-tuned-{n}") for n, pod in enumerate(pods[4:]))
    assert 1300 - 400 < asked <= 1300
    assert len({pod.uid for pod in pods}) == len(pods)
    assert sorted(run.rank or ()) == [0, 1, 2]


def test_a_seed_decides_the_sample(tmp_path: Path) -> None:
    """The same seed draws the same Pods in the same order, another seed others."""
    runs = [_read(tmp_path, inflate="3", seed=seed) for seed in (42, 42, 43)]
    names = [[pod.name for pod in _pods(run)] for run in runs]

    assert names[0] == names[1] != names[2]


def test_the_inputs_hash_covers_files_and_inflation(tmp_path: Path) -> None:
    """A run goes on with the same inputs only."""
    hashes = {
        _read(tmp_path).inputs_hash,
        _read(tmp_path, inflate="1.3").inputs_hash,
        _read(tmp_path, inflate="1.4").inputs_hash,
        _read(tmp_path, rank=RANK).inputs_hash,
        _read(tmp_path, nodes=NODES.replace("64000", "64001")).inputs_hash,
    }

    assert len(hashes) == 5
    assert _read(tmp_path).inputs_hash in hashes


def test_columns_behind_gpu_milli_may_be_missing(tmp_path: Path) -> None:
    """Some published traces end there."""
    pods = "name,cpu_milli,memory_mib,num_gpu,gpu_milli\na,1000,1024,1,500\n"

    assert [pod.name for pod in _pods(_read(tmp_path, pods=pods))] == ["a"]


def test_an_unknown_model_is_a_warning(tmp_path: Path) -> None:
    """Its cards count, without memory."""
    run = _read(tmp_path, nodes=NODES.replace("G2", "Z9"))

    assert [card.memory_bytes for card in run.nodes[1].devices] == [0] * 8
    (warning,) = run.warnings
    assert warning.startswith(f"{tmp_path / 'nodes.csv'}:3: model: no memory size is known")
    assert warning.endswith("value='Z9'")


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        pytest.param(
            {"pods": PODS.replace("num_gpu", "gpus")},
            "pods.csv:1: num_gpu: the column is missing",
            id="a missing column",
        ),
        pytest.param(
            {"nodes": NODES.replace("96000", "96k")},
            "nodes.csv:3: cpu_milli: not a whole number from 0 to 1000000000000: value='96k'",
            id="a number with a unit",
        ),
        pytest.param(
            {"pods": PODS.replace(",1,460,", ",-1,460,")},
            "pods.csv:3: num_gpu: not a whole number from 0 to 64: value='-1'",
            id="a negative number",
        ),
        pytest.param(
            {"pods": PODS.replace(",460,", ",465,")},
            "pods.csv:3: gpu_milli: not a share in whole percent, 10 to 1000: value=465",
            id="a share finer than a percent",
        ),
        pytest.param(
            {"pods": PODS.replace(",0,0,,BE", ",0,500,,BE")},
            "pods.csv:4: gpu_milli: a share of no GPU: num_gpu=0, value=500",
            id="a share of no GPU",
        ),
        pytest.param(
            {"pods": PODS.replace("openb-pod-0001", "openb-pod-0000")},
            "pods.csv:3: name: used twice: value='openb-pod-0000'",
            id="a name used twice",
        ),
        pytest.param(
            {"nodes": NODES.replace("openb-node-0002", "")},
            "nodes.csv:4: sn: empty",
            id="a node without a name",
        ),
        pytest.param(
            {"nodes": NODES + "openb-node-0003,1,1\n"},
            "nodes.csv:5: 3 cells below a header of 5",
            id="a short line",
        ),
        pytest.param(
            {"nodes": 'sn,cpu_milli,memory_mib,gpu,model\n"a,1,1,1,T4\n'},
            "nodes.csv:2: not CSV: unexpected end of data",
            id="a quote that never ends",
        ),
        pytest.param(
            {"nodes": NODES.splitlines()[0]}, "nodes.csv: no row below the header", id="no rows"
        ),
        pytest.param(
            {"arrivals": ARRIVALS + "2,x,openb-pod-9999\n"},
            "arrivals.csv:4: trace_pod: no such Pod in the trace: value='openb-pod-9999'",
            id="an arrival that the trace lacks",
        ),
        pytest.param(
            {"arrivals": ARRIVALS + "2,openb-pod-0003,openb-pod-0001\n"},
            "arrivals.csv:4: pod: empty or used twice: value='openb-pod-0003'",
            id="an arrival listed twice",
        ),
        pytest.param(
            {"rank": RANK.replace("0001,0", "0001,2")},
            "rank.csv:3: rank: used twice: value=2",
            id="a rank used twice",
        ),
        pytest.param(
            {"rank": RANK.replace("0001,0", "0001,3")},
            "rank.csv:3: rank: not a whole number from 0 to 2: value='3'",
            id="a rank beyond the nodes",
        ),
        pytest.param(
            {"rank": RANK.replace("openb-node-0002,1\n", "")},
            "rank.csv: sn: no rank for a node: value='openb-node-0002'",
            id="a node without a rank",
        ),
        pytest.param(
            {"rank": RANK.replace("openb-node-0002", "x")},
            "rank.csv:4: sn: no such node in the trace: value='x'",
            id="a rank for a node that is not there",
        ),
    ],
)
def test_what_cannot_be_read_is_named(tmp_path: Path, texts: dict[str, str], expected: str) -> None:
    """One message with file, line and column (cli.md, exit code 2)."""
    with pytest.raises(InputError) as caught:
        _read_texts(tmp_path, texts)

    assert str(caught.value) == f"{tmp_path}/{expected}"


def test_files_that_are_not_there_or_not_text_are_named(tmp_path: Path) -> None:
    """With the system's own words."""
    with pytest.raises(InputError, match=r"nodes\.csv: can't be read: No such file"):
        read_openb(nodes_csv=tmp_path / "nodes.csv", pods_csv=tmp_path / "pods.csv")
    (tmp_path / "nodes.csv").write_bytes(b"sn\xff")
    with pytest.raises(InputError, match=r"nodes\.csv: not UTF-8 text: byte=2"):
        read_openb(nodes_csv=tmp_path / "nodes.csv", pods_csv=tmp_path / "pods.csv")
