import csv
import io
import json
from collections.abc import Iterator

import pytest
import yaml

from tenure.output import (
    LINE_WIDTH,
    Column,
    OutputFormat,
    fitted,
    one_line,
    write_answer,
    write_table,
)

COLUMNS = (
    Column(key="pod", title="POD"),
    Column(key="core_percent", title="CORE", right=True, show="{}%".format),
    Column(key="uid", title="UID", wide=True),
)
ROWS = (
    {"pod": "ml/nb-7", "core_percent": 25, "uid": "1f0c", "exclusive": True},
    {"pod": "ml/etl-2", "core_percent": 100, "uid": "", "exclusive": False},
)


def written(output: OutputFormat) -> str:
    """The answer over ROWS and COLUMNS as text."""
    out = io.StringIO()
    write_answer(output, ROWS, COLUMNS, out=out)
    return out.getvalue()


def test_a_table_is_aligned_and_never_cut() -> None:
    """Headings first, numbers to the right, no blanks at the end of a line."""
    assert written(OutputFormat.TABLE) == "POD       CORE\nml/nb-7    25%\nml/etl-2  100%\n"


def test_wide_adds_columns_at_their_place() -> None:
    """What is not known is a dash."""
    assert written(OutputFormat.WIDE).splitlines() == [
        "POD       CORE  UID",
        "ml/nb-7    25%  1f0c",
        "ml/etl-2  100%  -",
    ]


def test_json_and_yaml_carry_the_whole_records() -> None:
    """Programs get base units and every key, columns or not."""
    assert json.loads(written(OutputFormat.JSON)) == list(ROWS)
    assert yaml.safe_load(written(OutputFormat.YAML)) == list(ROWS)


def test_csv_has_the_keys_as_its_heading() -> None:
    """One line per record, unformatted values."""
    rows = list(csv.DictReader(io.StringIO(written(OutputFormat.CSV))))

    assert rows[0] == {"pod": "ml/nb-7", "core_percent": "25", "uid": "1f0c"}
    assert len(rows) == len(ROWS)


def test_a_document_replaces_the_list_for_programs() -> None:
    """JSON may say more than the rows; the table stays the table."""
    out = io.StringIO()

    write_answer(OutputFormat.JSON, ROWS, COLUMNS, document={"holders": list(ROWS)}, out=out)

    assert json.loads(out.getvalue()) == {"holders": list(ROWS)}


def test_a_name_cannot_command_the_terminal() -> None:
    """Escape sequences are shown, not sent; other scripts stay readable."""
    assert one_line("a\x1b[2Jb\nc") == r"a\x1b[2Jb\nc"
    assert one_line("größe-机器") == "größe-机器"


NARROW = 40


@pytest.fixture
def narrow() -> Iterator[None]:
    """A terminal of so many columns."""
    token = LINE_WIDTH.set(NARROW)
    yield
    LINE_WIDTH.reset(token)


def table(*rows: tuple[str, ...], titles: tuple[str, ...], wide: bool = False) -> list[str]:
    """The lines of a table of these values."""
    out = io.StringIO()
    columns = [Column(key=title, title=title.upper()) for title in titles]
    records = [dict(zip(titles, row, strict=True)) for row in rows]
    write_table(records, columns, out, wide=wide)
    return out.getvalue().splitlines()


@pytest.mark.usefixtures("narrow")
def test_a_column_without_room_stands_below_its_row() -> None:
    """By its title; short ones after it that have room stay where they are."""
    assert table(
        ("ml/a", "n1", "gpu:0,1,2,3 rdma:0,1 fpga:0,1", "2h"),
        ("ml/b", "-", "", "3d"),
        titles=("pod", "node", "devices of each type", "for"),
    ) == [
        "POD   NODE  FOR",
        "ml/a  n1    2h",
        "    devices of each type: gpu:0,1,2,3",
        "    rdma:0,1 fpga:0,1",
        "ml/b  -     3d",
    ]


@pytest.mark.usefixtures("narrow")
def test_of_the_last_column_long_values_alone_stand_below() -> None:
    """Where most of them have room."""
    assert table(
        ("head", "2146"), ("chain", "f" * 36), ("epoch", "1"), titles=("what", "value")
    ) == [
        "WHAT   VALUE",
        "head   2146",
        "chain",
        "    value:",
        f"    {'f' * 36}",
        "epoch  1",
    ]


@pytest.mark.usefixtures("narrow")
def test_short_values_below_share_a_line() -> None:
    """While there is room."""
    assert table(("p" * 36, "n1", "gpu:0", "yes"), titles=("pod", "node name", "devices", "alone"))[
        1:
    ] == ["p" * 36, "    node name: n1  devices: gpu:0", "    alone: yes"]


@pytest.mark.usefixtures("narrow")
def test_a_long_sentence_is_whole_in_wide_alone() -> None:
    """A table has three lines for it, and says so."""
    note = " ".join(["word"] * 40)

    lines = table(("ml/a", note), titles=("pod", "why"))

    assert max(map(len, lines)) <= NARROW
    assert lines[-1] == "    ... (-o wide has all of it)"
    assert table(("ml/a", note), titles=("pod", "why"), wide=True)[1] == f"ml/a  {note}"


@pytest.mark.usefixtures("narrow")
def test_lines_are_broken_between_words_and_go_on_further_in() -> None:
    """A word that is too long stays whole, and so does what a program draws in colours."""
    assert fitted("  warning: nothing enforces this share of a card\n") == (
        "  warning: nothing enforces this share\n    of a card\n"
    )
    assert fitted("x" * 50 + "\n") == "x" * 50 + "\n"
    path = f"annotations[{'k' * 20}].types[1]: no\n"
    assert fitted(path) == f"annotations[{'k' * 20}]\n  .types[1]: no\n"
    coloured = "\x1b[31m" + "a b " * 20 + "\n"
    assert fitted(coloured) == coloured


def test_without_a_width_nothing_is_broken() -> None:
    """A pipe gets each row on one line."""
    assert fitted("a b " * 100) == "a b " * 100
    assert table(("a " * 60, "b " * 60), titles=("x", "y"))[1].endswith("b")
