from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Final

import pytest

from ledger.domain.device_types import DeviceType, Unit
from ledger.domain.errors import InputError
from ledger.domain.vocabulary import DEFAULT_VOCABULARY, Vocabulary
from tenure.check.settings import (
    SettingDifference,
    compare_command,
    differences,
    told_by,
    vocabulary_of_file,
)
from tenure.exits import AnswerIsNo
from tenure.output import OutputFormat
from tenure.settings import ADMISSION, BOTH, SCHEDULER, read_admission, read_settings
from tenure.sources.text import read_source

NPU: Final = DeviceType(name="npu", resource="example.com/npu", unit=Unit.COUNT)
WORDS: Final = Vocabulary(device_types=(NPU,), gpushare_unit="GiB")
SHARED: Final = """
gpushare: {unit: GiB}
deviceTypes: {npu: {resource: example.com/npu, unit: count}}
"""


@pytest.fixture(name="folder")
def _folder(tmp_path: Path) -> Path:
    for kind, more in {
        SCHEDULER: "node: {policy: fgd}",
        ADMISSION: "domain: koordinator.sh",
        BOTH: "node: {policy: fgd}\ndomain: koordinator.sh",
    }.items():
        text = f"apiVersion: tenure.sh/v1alpha1\nkind: {kind}\n{more}{SHARED}"
        (tmp_path / f"{kind}.yaml").write_text(text, encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize("kind", [SCHEDULER, ADMISSION, BOTH])
def test_every_kind_of_file_says_what_requests_mean_in_one_schema(folder: Path, kind: str) -> None:
    """The shared part of a file of one service, and that of a file of both."""
    assert vocabulary_of_file(folder / f"{kind}.yaml") == WORDS


def test_each_service_reads_its_part_of_a_file_of_both(folder: Path) -> None:
    """And the same vocabulary."""
    path = folder / f"{BOTH}.yaml"
    scheduling = read_settings(path)
    admission = read_admission(read_source(path).documents[0])

    assert (scheduling.node_policy, str(admission.domain)) == ("fgd", "koordinator.sh")
    assert scheduling.vocabulary == admission.vocabulary == WORDS


@pytest.mark.parametrize(
    ("kind", "more", "message"),
    [
        (SCHEDULER, "domain: kept", "4: domain: unknown setting"),
        (ADMISSION, "node: {}", "4: node: unknown setting"),
        (ADMISSION, "mgpu: {enabled: true}", "4: mgpu.enabled: unknown setting"),
        (BOTH, "nodes: {}", "4: nodes: unknown setting"),
        (BOTH, "gpushare: {unit: KiB}", "4: gpushare.unit: must be 'MiB' or 'GiB': value='KiB'"),
        (ADMISSION, "mgpu: {maxMemoryMiB: '9'}", "4: mgpu.maxMemoryMiB: input should be a valid"),
    ],
)
def test_what_a_kind_does_not_know_is_refused_with_its_place(
    tmp_path: Path, kind: str, more: str, message: str
) -> None:
    """File, line and key, whichever service reads it."""
    path = tmp_path / "s.yaml"
    path.write_text(f"apiVersion: tenure.sh/v1alpha1\nkind: {kind}\n\n{more}\n", encoding="utf-8")

    with pytest.raises(InputError) as caught:
        vocabulary_of_file(path)

    assert str(caught.value).startswith(f"{path}:{message}")


def test_a_difference_is_said_by_its_key_before_and_after() -> None:
    """A type that only one knows differs in all that it says."""
    found = differences(told_by("a", DEFAULT_VOCABULARY), told_by("b", WORDS))

    assert SettingDifference(key="gpushare.unit", first="MiB", second="GiB") in found
    assert SettingDifference(key="deviceTypes.npu.unit", first="", second="count") in found
    assert [one.key for one in found] == sorted(one.key for one in found)
    assert differences(told_by("a", WORDS), told_by("b", WORDS)) == []


def compared(
    *files: Path, digest: str | None = None, output: OutputFormat = OutputFormat.TABLE
) -> str:
    """Return what the comparison prints."""
    out = io.StringIO()
    try:
        compare_command(files, objects=(), ledger=None, digest=digest, output=output, out=out)
    except AnswerIsNo:
        return f"no\n{out.getvalue()}"
    return out.getvalue()


def test_two_files_that_agree_are_one_and_those_that_do_not_are_told_apart(folder: Path) -> None:
    """Exit 1 where they differ, with both values."""
    scheduler, admission = folder / f"{SCHEDULER}.yaml", folder / f"{ADMISSION}.yaml"
    assert "say the same of requests" in compared(scheduler, admission)
    admission.write_text(admission.read_text().replace("GiB", "MiB"))

    answer = compared(scheduler, admission, output=OutputFormat.JSON)

    assert answer.startswith("no\n")
    assert json.loads(answer.removeprefix("no\n")) == [
        {"key": "gpushare.unit", "first": "GiB", "second": "MiB"}
    ]


def test_a_file_heads_its_column_by_its_path_as_it_is_written(folder: Path) -> None:
    """A path in capitals names another file, or none."""
    scheduler, admission = folder / f"{SCHEDULER}.yaml", folder / f"{ADMISSION}.yaml"
    admission.write_text(admission.read_text().replace("GiB", "MiB"))

    head = compared(scheduler, admission).splitlines()[1]

    assert head.split() == ["KEY", str(scheduler), str(admission)]
    assert "THE WEBHOOK" in compared(scheduler, digest="0" * 64)


def test_a_file_is_compared_with_what_a_webhook_reports(folder: Path) -> None:
    """By the digest alone: which key differs nobody can tell then."""
    path = folder / f"{SCHEDULER}.yaml"

    assert "say the same" in compared(path, digest=WORDS.digest)
    assert DEFAULT_VOCABULARY.digest in compared(path, digest=DEFAULT_VOCABULARY.digest)
    with pytest.raises(InputError, match="--vocabulary"):
        compared(path, digest="latest")
    with pytest.raises(InputError, match="two settings are compared: given=1"):
        compared(path)
