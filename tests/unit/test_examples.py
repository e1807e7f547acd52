from pathlib import Path

import pytest

from tests.support.examples import ALL, VARIABLE, examples


@pytest.mark.parametrize(("whole", "part"), [(400, 133), (60, 20), (40, 15), (6, 6)])
def test_few_examples_in_tests_and_all_in_campaigns(
    monkeypatch: pytest.MonkeyPatch, whole: int, part: int
) -> None:
    """A third, no fewer than what shows anything; every one where the variable says so."""
    monkeypatch.delenv(VARIABLE, raising=False)
    assert examples(whole) == part
    monkeypatch.setenv(VARIABLE, ALL)
    assert examples(whole) == whole


def test_make_slow_tries_all_examples() -> None:
    """Of the campaigns, and of every property that `make test` tries in part."""
    makefile = (Path(__file__).parents[2] / "Makefile").read_text("utf-8")
    lines = [line for line in makefile.splitlines() if f"{VARIABLE}={ALL}" in line]
    assert ["-m slow tests" in line for line in lines] == [True, False]
    assert '-m "not slow and not e2e and not node"' in lines[1]
