import csv
import io
import json

import yaml

from tenure.output import Column, OutputFormat, one_line, write_answer

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
