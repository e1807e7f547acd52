from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import pytest
import typer
import yaml

from tenure.cli import app
from tenure.exits import run
from tenure.serving.agent_options import AgentOptions
from tenure.serving.cpus_options import CpusOptions
from tenure.serving.options import Declared, Option, declared
from tenure.serving.scheduling.options import SchedulerOptions
from tenure.serving.serve import serve_command
from tenure.serving.webhook_options import WebhookOptions
from tests.support.process import ROOT
from tests.support.proofs import KEY

PROCESSES: Final = {
    "webhook": WebhookOptions,
    "scheduler": SchedulerOptions,
    "agent": AgentOptions,
    "cpus": CpusOptions,
}
EACH: Final = [
    pytest.param(process, each, id=f"{process} {each.flag}")
    for process, options in PROCESSES.items()
    for each in declared(options)
]
REQUIRED: Final = {"scheduler": {"--certificates": "a", "--proof-key": "b", "--ledger-key": "c"}}
TOGETHER: Final = {
    "--gate": {"--driver": "d", "--gate-client-ca": "f"},
    "--driver": {"--gate": "127.0.0.1:2", "--gate-client-ca": "f"},
    "--scheduler-api": {"--client-ca": "f"},
}
OTHERS: Final = {
    "--mode": "plugin",
    "--gpushare-unit": "GiB",
    "--isolation": "hami-core",
    "--untold-devices": "record",
    "--preemption": "dry-run",
    **dict.fromkeys(("--listen", "--extender", "--probes", "--api", "--gate"), "127.0.0.1:1"),
}
"""Values that are no default, of options that take no other text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GrownOptions(SchedulerOptions):
    """The scheduler's, with one more."""

    colour: Annotated[str, Option("Which one.")] = "red"


def started(options: type[Any], given: dict[str, str], *words: str) -> Any:  # noqa: ANN401
    """Return the options that a process is started with by a command line."""
    taken: list[Any] = []
    group = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False)
    group.callback()(lambda: None)
    group.command("it")(serve_command(options, taken.append))
    flags = [word for flag, value in given.items() for word in (flag, value)]
    assert run(group, ["it", *flags, *words]) == 0
    [found] = taken
    return found


def other(each: Declared) -> str:
    """Return the text of a value that is no default."""
    return OTHERS.get(each.flag, "7")


def given_by(process: str, each: Declared) -> dict[str, str]:
    """Return what a command line has to have, and what goes with the option."""
    return REQUIRED.get(process, {}) | TOGETHER.get(each.flag, {})


@pytest.mark.parametrize(("process", "each"), EACH)
def test_an_option_reaches_its_process(
    process: str, each: Declared, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its flag, and by its variable."""
    options, beside = PROCESSES[process], given_by(process, each)
    if each.kind is bool:
        found = started(options, beside, each.flag)
    else:
        found = started(options, beside | {each.flag: other(each)})
    assert getattr(found, each.field.name) != each.default()

    if each.variable:
        monkeypatch.setenv(each.variable, "1" if each.kind is bool else other(each))
        beside.pop(each.flag, None)
        name = each.field.name
        assert getattr(started(options, beside), name) == getattr(found, name)


@pytest.mark.parametrize("process", PROCESSES)
def test_every_option_is_in_the_help(process: str, capsys: pytest.CaptureFixture[str]) -> None:
    """With its words and its variable, wherever lines break."""
    assert run(app, ["serve", process, "--help"]) == 0
    text = "".join(capsys.readouterr().out.split())
    for each in declared(PROCESSES[process]):
        variable = f"[env var: {each.variable}" if each.variable else ""
        for words in (each.flag, each.option.help, variable):
            assert "".join(words.split()) in text, each.flag


def test_every_option_is_used() -> None:
    """Where it is declared and where it is used are the two files that it takes."""
    sources = [path.read_text() for path in (ROOT / "tenure" / "serving").rglob("*.py")]
    used = {name for source in sources for name in re.findall(r"\b(?:options|self)\.(\w+)", source)}
    for options in PROCESSES.values():
        assert {each.field.name for each in declared(options)} <= used


def test_one_more_field_is_one_more_option(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the command line and in the environment."""
    required = REQUIRED["scheduler"]
    assert started(GrownOptions, required).colour == "red"
    assert started(GrownOptions, required | {"--colour": "blue"}).colour == "blue"
    monkeypatch.setenv("TENURE_GROWN_COLOUR", "green")
    assert started(GrownOptions, required).colour == "green"


@pytest.mark.parametrize(
    "text", ["nowhere", ":80", "a:", "a:65536", "a:b", "[::]:x"], ids=lambda text: text
)
def test_what_is_no_address_is_refused_with_its_flag(
    text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A port that nobody can listen on too."""
    assert run(app, ["serve", "webhook", "--listen", text]) == 2
    assert f"--listen: expected HOST:PORT: value={text!r}" in capsys.readouterr().err


@pytest.mark.parametrize("words", [[], ["--gate-client-ca", "f", "--gate-open"]])
def test_who_may_ask_a_gate_has_to_be_given(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """An authority of callers, or that it is open: neither by default, nor both."""
    given = {**REQUIRED["scheduler"], "--gate": "127.0.0.1:2", "--driver": "d"}
    flags = [word for pair in given.items() for word in pair]
    assert run(app, ["serve", "scheduler", *flags, *words]) == 2
    assert "--gate-client-ca" in capsys.readouterr().err


def test_a_webhook_that_answers_anybody_has_no_refusal_recorded(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Namespace and name of what it refuses are the caller's words."""
    assert run(app, ["serve", "webhook", "--scheduler-api", "https://api"]) == 2
    assert "--client-ca" in capsys.readouterr().err


@pytest.mark.parametrize("flag", ["--gate", "--api"])
def test_an_empty_address_is_none(flag: str) -> None:
    """As of a variable of a shell that is not set."""
    options = PROCESSES["scheduler"]
    found = started(options, REQUIRED["scheduler"] | {flag: ""})
    assert getattr(found, flag.removeprefix("--")) is None


def test_an_address_of_ipv6_is_read_without_its_brackets() -> None:
    """Nobody listens on them; written, it has them again."""
    found = started(WebhookOptions, {"--probes": "[::1]:80"})
    assert found.probes == ("::1", 80)
    assert str(found.probes) == "[::1]:80"


def containers(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> Iterator[tuple[str, list[str], list[str]]]:
    """Yield the process, the arguments and the variables of each container of ours."""
    assert run(app, ["manifests", *words]) == 0
    for thing in yaml.safe_load_all(capsys.readouterr().out):
        template = (thing.get("spec") or {}).get("template") or {}
        for one in template.get("spec", {}).get("containers", ()):
            if one.get("command", [])[:2] == ["tenure", "serve"]:
                yield one["command"][2], one["args"], [each["name"] for each in one.get("env", ())]


def test_manifests_start_a_process_with_options_that_it_has(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every one that manifests can print; an unknown one would keep its Pods from starting."""
    authority = tmp_path / "ca.crt"
    authority.write_text("ca")
    key = str(KEY.public)
    scheduler = ["scheduler", "--kube-version", "v1.36.3", "--image", "i", "--api"]
    scheduler += ["--driver", "d", "--gate-client-ca", "s", "--untold-devices", "record"]
    scheduler += ["--control-plane", "10.0.0.0/28"]
    scheduler += ["--evict-partial-gangs", "--config-map", "c", "--preemption", "dry-run"]
    agent = ["agent", "--image", "i", "--api-ca", str(authority), "--proof-key", key]
    lines = [scheduler, [*agent, "--claims", "--ledger-key", key], [*agent, "--env"]]
    lines += [[*agent, "--gpushare", "--isolation", "hami-core"]]
    lines += [["cpus", *agent[1:], "--bind", "--kubepods-cpu", "/sys/fs/cgroup/cpu/kubepods.slice"]]
    for words in lines:
        [(process, args, variables)] = containers(words, capsys)
        options = PROCESSES[process]
        assert started(options, {}, *args) != started(options, REQUIRED.get(process, {}))
        known = {each.variable for each in declared(options)}
        assert {name for name in variables if name.startswith("TENURE_")} <= known | {
            "TENURE_LEDGER"
        }
