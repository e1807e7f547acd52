"""
The words in which SQLite and Postgres differ, each with what both write for it.

Rules and views are SQL that both databases read alike. What they do not is a word with a dollar in
front, `$says(e.body, reason, NEW.reason)`, which is written out for each of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Final, Literal, NamedTuple

from ledger.domain.proofs.canonical import INTEGER_MAX

Database = Literal["sqlite", "postgresql"]
_WORD: Final = re.compile(r"\$(\w+)\(")


class Word(NamedTuple):
    """What each database writes for a word, given its arguments."""

    sqlite: Callable[..., str]
    postgresql: Callable[..., str]


Words = Mapping[str, Word]


def written(text: str, words: Words, database: Database) -> str:
    """Return a text with the words of one database in the place of the common ones."""
    found = _WORD.search(text)
    if found is None:
        return text
    *given, rest = _arguments(text[found.end() :])
    write: Callable[..., str] = getattr(words[found[1]], database)
    word = write(*(written(each, words, database) for each in given))
    return text[: found.start()] + word + written(rest, words, database)


def _arguments(text: str) -> Iterator[str]:
    """Yield what stands between commas up to the closing parenthesis, then what is behind it."""
    depth = start = 0
    for place, letter in enumerate(text):
        if depth == 0 and letter in ",)":
            yield text[start:place].strip()
            start = place + 1
            if letter == ")":
                yield text[start:]
                return
        depth += {"(": 1, ")": -1}.get(letter, 0)
    raise AssertionError(text)


def _body(value: str) -> str:
    """Return what Postgres reads a value from: the body of the event `e` is `j.b`, parsed once."""
    return "j.b" if value == "e.body" else value


def _field(value: str, field: str) -> str:
    return _body(value) + "".join(f"->'{each}'" for each in field.split("."))


def _extract(value: str, field: str) -> str:
    return f"json_extract({value}, '$.{field}')"


def _says(value: str, field: str, column: str) -> str:
    """Compare as JSON, so that another kind is no error."""
    return f"{_field(value, field)} = to_jsonb({column})"


def _sqlite_unclear(text: str, arrays: str) -> str:
    named = ", ".join(f"'{name}'" for name in arrays.split())
    inexact = f"max(type = 'real' OR type = 'integer' AND abs(value) > {INTEGER_MAX})"
    return f"""((
        SELECT count(*) > count(DISTINCT key) OR {inexact} FROM json_each({text})
      ) OR EXISTS (
        SELECT 1 FROM json_each({text}) AS a, json_each(
          CASE WHEN a.type = 'array' AND a.key IN ({named}) THEN a.value ELSE '[]' END
        ) AS e
        WHERE e.type = 'object'
          AND (SELECT count(*) > count(DISTINCT key) FROM json_each(e.value))
      ))"""


def _postgres_unclear(text: str, arrays: str) -> str:
    inner = " UNION ALL ".join(
        f"SELECT e.place, f.name FROM json_array_elements({text}::json->'{name}')"
        " WITH ORDINALITY AS e (value, place), json_object_keys("
        "CASE json_typeof(e.value) WHEN 'object' THEN e.value ELSE '{}' END) AS f (name)"
        f" WHERE json_typeof({text}::json->'{name}') = 'array'"
        for name in arrays.split()
    )
    return f"""(EXISTS (
      SELECT 1 FROM json_each({text}::json) AS f GROUP BY f.key HAVING count(*) > 1
        OR bool_or(json_typeof(f.value) = 'number' AND (f.value::text ~ '[.eE]'
          OR abs(f.value::text::numeric) > {INTEGER_MAX}))
    ) OR EXISTS (SELECT 1 FROM ({inner}) AS i GROUP BY i.place, i.name HAVING count(*) > 1))"""


OF_RULES: Final[Words] = {
    # Two values or rows are the same, NULL for NULL; or they are not.
    "same": Word(
        lambda a, b: f"{a} IS {b}",
        lambda a, b: f"({a} IS NOT DISTINCT FROM {b})",
    ),
    "differ": Word(
        lambda a, b: f"{a} IS NOT {b}",
        lambda a, b: f"({a} IS DISTINCT FROM {b})",
    ),
    # The greater number.
    "max": Word(
        lambda a, b: f"max({a}, {b})",
        lambda a, b: f"greatest({a}, {b})",
    ),
    # Where the part begins in the text, from 1; 0 if nowhere.
    "find": Word(
        lambda text, part: f"instr({text}, {part})",
        lambda text, part: f"strpos({text}, {part})",
    ),
    # The text begins so.
    "begins": Word(
        lambda text, start: f"instr({text}, {start}) = 1",
        lambda text, start: f"starts_with({text}, {start})",
    ),
    # Bytes as small hexadecimal digits.
    "hex": Word(
        lambda column: f"lower(hex({column}))",
        lambda column: f"encode({column}, 'hex')",
    ),
    # What stands behind an event in FROM, so that its body is parsed once: SQLite keeps what it
    # parsed. In the words below `value` is `e.body`, or `r.value` of an array.
    "body": Word(
        lambda _event: "",
        lambda event: f"CROSS JOIN LATERAL (SELECT {event}.body::jsonb AS b OFFSET 0) AS j",
    ),
    # The elements of an array, `alias.value`, to select from.
    "each": Word(
        lambda value, field, alias: f"json_each({value}, '$.{field}') AS {alias}",
        lambda value, field, alias: (
            f"jsonb_array_elements({_body(value)}->'{field}') AS {alias}(value)"
        ),
    ),
    # The field has the value of the column: one of the same kind.
    "says": Word(
        lambda value, field, column: f"{_extract(value, field)} = {column}",
        _says,
    ),
    # A truth in the field is what the column has as 1 or 0.
    "tells": Word(
        lambda value, field, column: f"{_extract(value, field)} = {column}",
        lambda value, field, column: (
            f"{column} IN (0, 1) AND {_says(value, field, f'{column} = 1')}"
        ),
    ),
    # The array in the field has the number of the column in it.
    "has": Word(
        lambda value, field, column: (
            f"EXISTS (SELECT 1 FROM json_each({value}, '$.{field}') AS w WHERE w.value = {column})"
        ),
        lambda value, field, column: f"{_field(value, field)} @> to_jsonb({column})",
    ),
    # The field's text.
    "text": Word(
        _extract,
        lambda value, field: f"({_body(value)}->>'{field}')",
    ),
    # A truth in the field as 1 or 0.
    "flag": Word(
        _extract,
        lambda value, field: f"({_field(value, field)} = 'true'::jsonb)::int",
    ),
    # The field's JSON as it was written.
    "json": Word(
        _extract,
        lambda value, field: f"({value}::json->>'{field}')",
    ),
    # The ranges of a CPU list, from `alias.first` to `alias.last`, to select from.
    "ranges": Word(
        lambda text, alias: (
            f"""(
          SELECT json_extract(value, '$[0]') AS first, json_extract(value, '$[#-1]') AS last
          FROM json_each('[[' || replace(replace({text}, ',', '],['), '-', ',') || ']]')
        ) AS {alias}"""
        ),
        lambda text, alias: (
            f"""(
          SELECT split_part(w, '-', 1)::bigint AS first, split_part(w, '-', -1)::bigint AS last
          FROM unnest(string_to_array({text}, ',')) AS w
        ) AS {alias}"""
        ),
    ),
    # The text is no JSON object; what is no JSON at all, Postgres names itself.
    "no_object": Word(
        lambda text: f"(instr({text}, '{{') <> 1 OR NOT json_valid({text}))",
        lambda text: f"(NOT starts_with({text}, '{{') OR json_typeof({text}::json) <> 'object')",
    ),
    # JSON functions could read this object differently: a name is there twice, in it or in an
    # object of these `arrays`, or a number is not exact.
    "unclear": Word(_sqlite_unclear, _postgres_unclear),
}
"""The words of the rules (`ledger/store/ddl/rules`)."""


def _select(body: str, name: str) -> str:
    return f"(SELECT f.value FROM json_each({body}, '$.{name}') AS f)"


def _number(body: str, name: str) -> str:
    value = f"(CAST({body} AS json) ->> '{name}')"
    number = f"CASE {value} WHEN 'true' THEN '1' WHEN 'false' THEN '0' ELSE {value} END"
    return f"CAST({number} AS bigint)"


def _steps(name: str) -> str:
    return "".join(f" -> '{each}'" for each in name.split("."))


def _iso(us: str) -> str:
    moment = f"to_timestamp({us} / 1000000) AT TIME ZONE 'UTC'"
    return f"""to_char({moment}, 'YYYY-MM-DD"T"HH24:MI:SS"Z"')"""


OF_VIEWS: Final[Words] = {
    # The moment as text, `2026-03-02T14:05:00Z`; NULL stays NULL.
    "iso": Word(
        lambda us: f"strftime('%Y-%m-%dT%H:%M:%SZ', {us} / 1000000, 'unixepoch')",
        _iso,
    ),
    # The day that is the expression's number since 1970 as `YYYY-MM-DD`.
    "date": Word(
        lambda day: f"date({day} * 86400, 'unixepoch')",
        lambda day: f"to_char(to_timestamp({day} * 86400) AT TIME ZONE 'UTC', 'YYYY-MM-DD')",
    ),
    # The smaller, the greater of two numbers.
    "least": Word(
        lambda a, b: f"min({a}, {b})",
        lambda a, b: f"least({a}, {b})",
    ),
    "greatest": Word(
        lambda a, b: f"max({a}, {b})",
        lambda a, b: f"greatest({a}, {b})",
    ),
    # A field of an object as text; as an integer, true is 1; as JSON text.
    "text": Word(
        _select,
        lambda body, name: f"(CAST({body} AS json) ->> '{name}')",
    ),
    "number": Word(_select, _number),
    "json": Word(
        lambda body, name: f"(SELECT f.value FROM json_each({body}) AS f WHERE f.key = '{name}')",
        lambda body, name: f"CAST(CAST({body} AS json) -> '{name}' AS text)",
    ),
    # What to select the elements of an array from: `alias.value`; of one in an object, by dots.
    "elements": Word(
        lambda body, name, alias: f"json_each({body}, '$.{name}') AS {alias}",
        lambda body, name, alias: (
            f"json_array_elements(CAST({body} AS json){_steps(name)}) AS {alias} (value)"
        ),
    ),
    # An element of an array as text, by its place.
    "item": Word(
        lambda array, place: f"(SELECT f.value FROM json_each({array}) AS f WHERE f.key = {place})",
        lambda array, place: f"(CAST({array} AS json) ->> {place})",
    ),
    # What to select the fields of an object from: `alias.key`, `alias.value`.
    "pairs": Word(
        lambda body, alias: f"json_each({body}) AS {alias}",
        lambda body, alias: f"json_each_text(CAST({body} AS json)) AS {alias} (key, value)",
    ),
}
"""
The words of the audit views.

Fields are read with `json_each` on SQLite, which any reader may call: SQLite 3.40 keeps the JSON
functions from views wherever the schema is not trusted, as it is for every reader of ours.
"""
