import pytest

from ledger.domain.cpuset import parse_cpuset
from ledger.domain.errors import InputError
from tenure.names import (
    AnyPodName,
    CardName,
    CpuName,
    DeviceName,
    NodeName,
    OwnerName,
    PodName,
    Reading,
    card_text,
    parse_name,
)


@pytest.mark.parametrize(
    ("text", "readings"),
    [
        pytest.param(
            "gpu-a",
            (NodeName(node="gpu-a"), AnyPodName(name="gpu-a"), DeviceName(device_id="gpu-a")),
            id="one part is a node, perhaps a Pod or the id of a card",
        ),
        pytest.param(
            "n1/GPU-5a5c",
            (
                PodName(namespace="n1", name="GPU-5a5c"),
                DeviceName(node="n1", device_id="GPU-5a5c"),
            ),
            id="a UUID of a node's card",
        ),
        pytest.param(
            "n1/PCI:0000:3B:00",
            (DeviceName(node="n1", device_id="0000:3b:00.0"),),
            id="a PCI address as an Xid message spells it",
        ),
        pytest.param(
            "00000000:3b:00.1",
            (DeviceName(device_id="0000:3b:00.1"),),
            id="a PCI address as nvidia-smi spells it",
        ),
        pytest.param(
            "gpu-a/3",
            (
                CardName(node="gpu-a", device_type="gpu", minor=3),
                PodName(namespace="gpu-a", name="3"),
            ),
            id="a number after a slash is a card, perhaps a Pod",
        ),
        pytest.param(
            "gpu-a/rdma/0",
            (CardName(node="gpu-a", device_type="rdma", minor=0),),
            id="another device type is named",
        ),
        pytest.param(
            "gpu-a/cpu/17",
            (CpuName(node="gpu-a", cpus=parse_cpuset("17")),),
            id="cpu is a CPU, not a card",
        ),
        pytest.param(
            "gpu-a/cpu/0-3,8",
            (CpuName(node="gpu-a", cpus=parse_cpuset("0-3,8")),),
            id="a list of CPUs",
        ),
        pytest.param("ml/big-1", (PodName(namespace="ml", name="big-1"),), id="a Pod"),
        pytest.param(
            "job/train-7",
            (OwnerName(kind="job", name="train-7"), PodName(namespace="job", name="train-7")),
            id="job is a kind, perhaps a namespace",
        ),
        pytest.param(
            "deploy/web",
            (OwnerName(kind="deployment", name="web"), PodName(namespace="deploy", name="web")),
            id="kubectl's short names are known",
        ),
        pytest.param(
            "ml/job/train-7",
            (OwnerName(kind="job", name="train-7", namespace="ml"),),
            id="an owner in one namespace",
        ),
        pytest.param(
            " ip-10-0-1-2.eu.compute.internal ",
            (
                NodeName(node="ip-10-0-1-2.eu.compute.internal"),
                AnyPodName(name="ip-10-0-1-2.eu.compute.internal"),
                DeviceName(device_id="ip-10-0-1-2.eu.compute.internal"),
            ),
            id="dots are part of a node's name and blanks around it are not",
        ),
    ],
)
def test_a_name_has_the_readings_that_its_form_allows(
    text: str, readings: tuple[Reading, ...]
) -> None:
    """Every reading is offered, the likelier first."""
    assert parse_name(text) == readings


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("", id="nothing"),
        pytest.param("/3", id="no node"),
        pytest.param("a/", id="no card"),
        pytest.param("a/b/c", id="an unknown middle"),
        pytest.param("a/gpu/x", id="a card that is no number"),
        pytest.param("a/b/c/d", id="too many parts"),
        pytest.param("a b", id="a blank inside"),
        pytest.param("a b/cpu/1", id="a blank before CPUs"),
        pytest.param("a/0000:3b:00.9", id="a PCI function that none has"),
        pytest.param("a/cpu/3-1,", id="no list of CPUs"),
        pytest.param("a/-1", id="a negative card"),
        pytest.param("a/\N{ARABIC-INDIC DIGIT THREE}", id="a digit of another script"),
        pytest.param("a/'; drop table x", id="SQL"),
    ],
)
def test_anything_else_is_refused_with_the_forms(text: str) -> None:
    """The message quotes the text and lists what would have been a name."""
    with pytest.raises(InputError) as caught:
        parse_name(text)

    assert repr(text) in str(caught.value)
    assert "NODE/CARD" in str(caught.value)


@pytest.mark.parametrize(
    ("cpus", "words"),
    [
        pytest.param("12345", "a CPU id is above 4096", id="five digits"),
        pytest.param("3-1", "a CPU range runs backwards", id="backwards"),
    ],
)
def test_cpus_that_no_machine_has_are_no_card_of_a_type_cpu(cpus: str, words: str) -> None:
    """The list is refused with its own reason."""
    with pytest.raises(InputError, match=words):
        parse_name(f"a/cpu/{cpus}")


@pytest.mark.parametrize("text", ["gpu-a", "gpu-a/3", "gpu-a/rdma/0", "gpu-a/cpu/17", "ml/job/x"])
def test_a_name_reads_back_as_it_was_written(text: str) -> None:
    """What the output calls a thing is what the next command takes."""
    assert str(parse_name(text)[0]) == text


def test_gpus_go_without_saying() -> None:
    """`n/3` is GPU 3; other types are written out."""
    assert card_text("n", "gpu", 3) == "n/3"
    assert card_text("n", "fpga", 1) == "n/fpga/1"
