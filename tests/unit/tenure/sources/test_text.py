import gzip
import io
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.domain.errors import InputError
from tenure.sources.text import parse_source, read_source, read_stream

POD = b"""kind: Pod
metadata:
  annotations:
    a.b/c: x
spec:
  containers:
  - name: x
    resources:
      limits:
        cpu: 1
"""
LIMITS = "spec.containers[0].resources.limits"


def parsed(text: str, name: str = "f.yaml") -> tuple[Any, ...]:
    """Parse a text as a file of that name."""
    return parse_source(name, text.encode()).documents


def refusal(text: bytes, name: str = "f.yaml") -> str:
    """Parse a text that must be refused; return the message."""
    with pytest.raises(InputError) as caught:
        parse_source(name, text)
    return str(caught.value)


JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda children: st.lists(children) | st.dictionaries(st.text(), children),
)


@given(value=JSON_VALUES)
def test_json_comes_out_as_the_json_module_reads_it(value: object) -> None:
    """A file of JSON is JSON, not YAML: every value comes back as it was."""
    assert parsed(json.dumps([value]), "f.json") == ([value],)


@given(
    value=st.dictionaries(
        st.text(st.characters(codec="ascii", exclude_categories=["Cc"])), st.integers()
    )
)
def test_yaml_agrees_with_json_on_json(value: dict[str, int]) -> None:
    """JSON is YAML: below a comment the YAML reader reads the same value."""
    assert parsed("# yaml\n" + json.dumps(value)) == (value,)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        pytest.param("a: 2024-01-01T00:00:00Z", "2024-01-01T00:00:00Z", id="a date is text"),
        pytest.param("a: 0644", 420, id="an octal number"),
        pytest.param("a: 0x1F", 31, id="a hexadecimal number"),
        pytest.param("a: 1:30", "1:30", id="no numbers to the base 60"),
        pytest.param("a: 1_000", 1000, id="underscores in a number"),
        pytest.param("a: 1_000.5", 1000.5, id="underscores in a fraction"),
        pytest.param("a: 1__0_", 10, id="underscores anywhere"),
        pytest.param("a: .5_0", 0.5, id="underscores behind a point"),
        pytest.param("a: ._5", "._5", id="a point and an underscore are text"),
        pytest.param("a: _1", "_1", id="what begins with an underscore is text"),
        pytest.param("a: -_1", -1, id="behind a sign it is a number"),
        pytest.param("a: 1_000Mi", "1_000Mi", id="with a unit it is text"),
        pytest.param("a: 0o_7", 7, id="an octal number as YAML 1.2 writes it"),
        pytest.param("a: 0X_1F", 31, id="a hexadecimal number in capitals"),
        pytest.param("a: 0B1_0", 2, id="a binary number"),
        pytest.param("a: 08", 8, id="no octal number is a decimal one"),
        pytest.param("a: 0b2", "0b2", id="no binary number is text"),
        pytest.param("a: 2.", 2, id="a whole fraction is an integer in JSON"),
        pytest.param("a: 1e21", 1e21, id="but not from 1e21 on"),
        pytest.param("a: 1e400", "1e400", id="beyond a float is text"),
        pytest.param("a: 1e3", 1000, id="an exponent"),
        pytest.param("a: 1.5Gi", "1.5Gi", id="a quantity is text"),
        pytest.param("a: n", False, id="n is a boolean"),
        pytest.param("a: !!bool Y", True, id="Y is a boolean"),
        pytest.param("a: <<", "<<", id="a merge without a mapping is text"),
        pytest.param("a: no", False, id="no is a boolean"),
        pytest.param("a: 'no'", "no", id="no in quotes is text"),
        pytest.param("a: None", "None", id="None is text"),
        pytest.param("a: ~", None, id="null"),
        pytest.param("a:", None, id="nothing is null"),
        pytest.param("a: !!str 12", "12", id="a tag of a JSON type"),
    ],
)
def test_yaml_scalars_are_what_kubernetes_takes_them_for(text: str, value: object) -> None:
    """As kubectl reads them: YAML 1.1's booleans stay, its dates and base 60 do not."""
    (document,) = parsed(text)
    assert document == {"a": value}
    assert type(document["a"]) is type(value)


@pytest.mark.parametrize(("key", "name"), [("010", "8"), ("1_5", "15"), ("1.5", "1.5")])
def test_a_number_as_a_key_is_the_text_that_kubernetes_makes_of_it(key: str, name: str) -> None:
    """A key of JSON is text."""
    assert parsed(f"{key}: x") == ({name: "x"},)


def test_anchors_and_merges_are_written_out() -> None:
    """Two places never share one object, so that filling in one leaves the other."""
    (document,) = parsed("a: &a {x: 1}\nb: *a\nc: {<<: *a, z: 2}")

    assert document == {"a": {"x": 1}, "b": {"x": 1}, "c": {"x": 1, "z": 2}}
    assert document["a"] is not document["b"]


def test_documents_of_yaml_may_each_be_json() -> None:
    """`kubectl get -o json` several times into one file, with `---` between."""
    assert parsed('{"kind": "Node"}\n---\n{"kind": "Pod"}\n') == ({"kind": "Node"}, {"kind": "Pod"})


def test_a_stream_holds_several_documents() -> None:
    """YAML parts them with dashes, JSON values may follow one another."""
    assert parsed("a: 1\n---\n---\nb: 2\n") == ({"a": 1}, None, {"b": 2})
    assert parsed('{"a": 1}\n{"b": 2}\n') == ({"a": 1}, {"b": 2})
    assert parsed("") == ()
    assert parsed("{kind: Pod}") == ({"kind": "Pod"},)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param(b"a: [1, 2\nb: 3", "f.yaml:2: broken YAML", id="broken YAML"),
        pytest.param(b"a:\n\t- b", "f.yaml:2: broken YAML: a tab in column 1", id="a tab"),
        pytest.param(
            b"a: 1\n  \tb: 2",
            "f.yaml:2: broken YAML: mapping values are not allowed in this context,"
            " behind a tab in column 3",
            id="behind spaces",
        ),
        pytest.param(b"a: |\n\tb", "f.yaml:2: broken YAML: a tab in column 1", id="in a text"),
        pytest.param(
            b"a:\n\t- b: [" + b"[" * 200, "f.yaml:2: broken YAML: a tab in column 1", id="deep, too"
        ),
        pytest.param(b"a: 1\na: 2", "f.yaml:2: broken YAML: the key 'a' stands twice", id="twice"),
        pytest.param(
            b'{"a": {"b": 1,\n"b": 2}}',
            "f.yaml:2: broken JSON: the key 'b' stands",
            id="JSON, twice",
        ),
        pytest.param(b'{"a": 1,\n  x}', "f.yaml:2:3: broken JSON", id="broken JSON"),
        pytest.param(b'{\n    "a": 1,\n    "b', "f.yaml:3:5: broken JSON", id="cut off"),
        pytest.param(b'{"a": NaN}', "f.yaml:1: broken JSON: NaN is not JSON", id="NaN"),
        pytest.param(
            b'{"a": ' + b"9" * 5000 + b"}", "f.yaml:1: broken JSON: a number of more", id="digits"
        ),
        pytest.param(
            b'{"a": 1,\n"b\\ud800": 1}',
            "f.yaml:2: not valid text: half a",
            id="half a pair in JSON",
        ),
        pytest.param(
            b'b: "\\U0000DC00"',
            "f.yaml:1: broken YAML: found invalid Unicode",
            id="half a pair in YAML",
        ),
        pytest.param(b"{{ .Values.x }}: 1", "a template is not a manifest", id="a template"),
        pytest.param(b"on: 1", "f.yaml:1: broken YAML: the key on is not text", id="a boolean key"),
        pytest.param(b"y: 1", "f.yaml:1: broken YAML: the key y is not text", id="y as a key"),
        pytest.param(b"1.50: 1", "the key 1.50 is not text", id="a fraction that is another text"),
        pytest.param(b"a: .inf", "not a number of JSON", id="infinity"),
        pytest.param(b"a: -.INF", "not a number of JSON", id="less than everything"),
        pytest.param(b"a: .nan", "not a number of JSON", id="no number"),
        pytest.param(b"a: !!python/name:os.system", "a type that JSON does not have", id="a tag"),
        pytest.param(b"a: !!binary aGk=", "a type that JSON does not have", id="bytes"),
        pytest.param(b"ok: 1\n\xff", "f.yaml:2: not UTF-8 text", id="not UTF-8"),
        pytest.param(b"a\x00: 1", "control characters are not allowed", id="a NUL"),
        pytest.param(b"[" * 200_000, "nested deeper", id="a nest of JSON"),
        pytest.param(b"a: " + b"[" * 200_000, "nested deeper", id="a nest of flow YAML"),
        pytest.param(b"- " * 200_000, "nested deeper", id="a nest of block YAML"),
        pytest.param(b"a: &a [*a]", "an alias contains itself", id="a circle"),
    ],
)
def test_a_trap_is_an_error_with_its_line(text: bytes, message: str) -> None:
    """Nothing is guessed and nothing crashes: the message says what and where."""
    assert message in refusal(text)


def test_a_whole_pair_is_one_character() -> None:
    """And what only looks like an escape is text."""
    assert parsed('{"a": "\\ud83d\\ude00"}') == ({"a": "\U0001f600"},)
    assert parsed('{"a": "\\\\ud800"}') == ({"a": "\\ud800"},)


def test_what_is_packed_is_unpacked() -> None:
    """A file and a stream, whatever it is called; a broken one and a bomb are refused."""
    packed = gzip.compress(b'{"a": 1}')
    assert read_stream(io.BytesIO(packed), "stdin").documents == ({"a": 1},)
    for broken in (packed[:-9], packed[:12] + b"\xff" + packed[13:], b"\x1f\x8b"):
        with pytest.raises(InputError, match="broken gzip"):
            read_stream(io.BytesIO(broken), "stdin")


def test_a_packed_bomb_is_as_large_as_what_it_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    """No more is unpacked than may be read."""
    monkeypatch.setattr("tenure.sources.text.BYTES_MAX", 1 << 20)
    with pytest.raises(InputError, match="larger than 1 MiB"):
        read_stream(io.BytesIO(gzip.compress(b" " * (1 << 24))), "stdin")


def test_an_alias_bomb_is_refused_before_it_goes_off() -> None:
    """Nine lines that write out to 10^9 values cost no more than nine lines."""
    lines = ["a0: &a0 [" + "x," * 10 + "]"]
    lines += [f"a{i}: &a{i} [" + f"*a{i - 1}," * 10 + "]" for i in range(1, 9)]

    assert "aliases write out to more than" in refusal("\n".join(lines).encode())


def test_many_brackets_in_quotes_are_no_nest() -> None:
    """Only the parser's own view of the nest counts."""
    assert parsed(f'a: "{"[" * 500}"') == ({"a": "[" * 500},)


@pytest.mark.parametrize(
    ("field", "yaml_line", "json_line"),
    [
        pytest.param("", 1, 2, id="the document"),
        pytest.param("kind", 1, 3, id="a key"),
        pytest.param("metadata.annotations[a.b/c]", 4, 6, id="a key with dots, in brackets"),
        pytest.param("metadata.annotations.a.b/c", 4, 6, id="a key with dots"),
        pytest.param("metadata.annotations[a.b/c].gpu[0].minor", 4, 6, id="inside an annotation"),
        pytest.param(f"{LIMITS}[cpu]", 10, 15, id="deep down"),
        pytest.param("spec.containers[0].resources.requests[cpu]", 8, 13, id="a missing parent"),
        pytest.param("spec.containers[7].name", 6, 10, id="a missing item"),
    ],
)
def test_a_field_has_a_line(field: str, yaml_line: int, json_line: int) -> None:
    """The line of the field, else of its nearest parent that exists; in YAML and in JSON."""
    yaml = parse_source("f", POD)
    text = "{}\n" + json.dumps(yaml.documents[0], indent=1)

    assert yaml.place_of(0, field) == f"f:{yaml_line}"
    assert parse_source("f", text.encode()).place_of(1, field) == f"f:{json_line}"


def test_a_missing_file_is_named() -> None:
    """The path as typed, so that a wrong directory is seen."""
    with pytest.raises(InputError, match=r"^no/such\.yaml: no such file or directory"):
        read_source(Path("no/such.yaml"))
