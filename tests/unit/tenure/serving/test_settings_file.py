"""The settings file while it changes: what is wrong never replaces what is right."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from ledger.domain.errors import InputError
from tenure.serving.webhook import SettingsFile
from tenure.settings import admission_settings
from webhook.decide.settings import DEFAULT_ADMISSION
from webhook.server.metrics import Metrics

HEAD = "apiVersion: tenure.sh/v1alpha1\nkind: AdmissionConfiguration\n"


def reloads(metrics: Metrics, outcome: str) -> float:
    """Return how many readings of the changed file ended so."""
    name = "tenure_admission_settings_reloads_total"
    return metrics.registry.get_sample_value(name, {"outcome": outcome}) or 0.0


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file with one setting."""
    file = tmp_path / "admission.yaml"
    file.write_text(f"{HEAD}schedulerName: ours\n")
    return file


def test_without_a_file_the_defaults_hold() -> None:
    """And looking again costs nothing."""
    metrics = Metrics()
    settings = SettingsFile(None, metrics)
    settings.look()
    assert settings.current == admission_settings(None) == DEFAULT_ADMISSION
    assert reloads(metrics, "read") == 0.0


def test_a_change_is_read_and_the_same_again_is_not(path: Path) -> None:
    """A new time on the file is no change."""
    metrics = Metrics()
    settings = SettingsFile(path, metrics)
    path.write_text(f"{HEAD}schedulerName: ours\n")
    settings.look()
    assert (settings.current.scheduler_name, reloads(metrics, "read")) == ("ours", 0.0)
    path.write_text(f"{HEAD}schedulerName: theirs\n")
    settings.look()
    settings.look()
    assert (settings.current.scheduler_name, reloads(metrics, "read")) == ("theirs", 1.0)


def test_a_file_through_a_symbolic_link_is_read_when_the_link_is_swapped(
    path: Path, tmp_path: Path
) -> None:
    """So kubelet replaces a mounted ConfigMap."""
    link = tmp_path / "link.yaml"
    link.symlink_to(path)
    settings = SettingsFile(link, Metrics())
    other = tmp_path / "other.yaml"
    other.write_text(f"{HEAD}schedulerName: theirs\n")
    swapped = tmp_path / "swapped"
    swapped.symlink_to(other)
    swapped.rename(link)
    settings.look()
    assert settings.current.scheduler_name == "theirs"


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(f"{HEAD}scheduler: x\n", id="an unknown key"),
        pytest.param(f"{HEAD}mode: strict\n", id="a value that is not allowed"),
        pytest.param("}{", id="no YAML"),
        pytest.param("", id="nothing"),
        pytest.param(f"{HEAD}---\n{HEAD}", id="two documents"),
        pytest.param(None, id="the file is gone"),
    ],
)
def test_what_is_wrong_is_said_once_and_changes_nothing(
    path: Path, content: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    """It is looked at every two seconds; and what is mended is read."""
    metrics = Metrics()
    settings = SettingsFile(path, metrics)
    if content is None:
        path.unlink()
    else:
        path.write_text(content)
    with caplog.at_level(logging.ERROR, logger="tenure.settings"):
        for _ in range(3):
            settings.look()
    assert settings.current.scheduler_name == "ours"
    assert reloads(metrics, "refused") == 1.0
    (record,) = caplog.records
    assert str(path) in record.__dict__["reason"]
    path.write_text(f"{HEAD}schedulerName: mended\n")
    settings.look()
    assert settings.current.scheduler_name == "mended"


def test_a_process_does_not_start_with_a_file_that_is_wrong(path: Path) -> None:
    """Running without the settings that somebody wrote would be a silent default."""
    path.write_text(f"{HEAD}mode: strict\n")
    with pytest.raises(InputError, match=r"admission\.yaml.*mode"):
        SettingsFile(path, Metrics())


def test_device_types_are_those_of_the_file_and_a_wrong_file_changes_none(path: Path) -> None:
    """A type that the file describes is known from then on, and gone when the file drops it."""
    settings = SettingsFile(path, Metrics())
    before = settings.current.vocabulary
    path.write_text(f"{HEAD}deviceTypes: {{npu: {{resource: example.com/npu, unit: count}}}}\n")
    settings.look()
    assert settings.current.vocabulary.device_type_of("example.com/npu") == "npu"
    path.write_text(f"{HEAD}deviceTypes: {{npu: {{resource: nvidia.com/gpu}}}}\n")
    settings.look()
    assert settings.current.vocabulary.device_type_of("example.com/npu") == "npu"
    path.write_text(HEAD)
    settings.look()
    assert settings.current.vocabulary == before
    assert before.device_type_of("example.com/npu") is None
