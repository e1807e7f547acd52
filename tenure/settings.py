"""
Settings files: bytes in, the frozen values that decisions use out.

`kind: SchedulerConfiguration` and `kind: AdmissionConfiguration` are files of one service,
`kind: TenureConfiguration` has the keys of both. The settings classes declare the keys
(`ledger/domain/setting.py`); pydantic checks a file by a model that is made of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeVar, get_type_hints

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictInt,
    ValidationError,
    create_model,
)
from pydantic.alias_generators import to_camel

from ledger.domain.errors import InputError
from ledger.domain.request.rule_names import Rule
from ledger.domain.setting import Setting
from ledger.domain.vocabulary import Vocabulary
from tenure.exits import with_next
from tenure.sources.text import InputFile, content_of, parse_source, read_source
from webhook.decide.settings import DEFAULT_ADMISSION, SERVICE_ACCOUNTS, AdmissionSettings, Profile
from webhook.decide.validating.findings import Advice

if TYPE_CHECKING:
    from _typeshed import DataclassInstance
    from pydantic_core import ErrorDetails

    from scheduler.decide.settings import SchedulingSettings

T = TypeVar("T")
Settings = TypeVar("Settings", bound="DataclassInstance")
Values = Mapping[str, Any]
"""The path of a key -> its value, for the keys that a file has."""

SCHEDULER: Final = "SchedulerConfiguration"
ADMISSION: Final = "AdmissionConfiguration"
BOTH: Final = "TenureConfiguration"
_ACCOUNTS: Final = "serviceAccounts"
_KNOWN_RULES: Final = frozenset(map(str, (*Rule, *Advice)))
_LAX: Final = frozenset({"", "takeover", "defaults"})
"""Sections where text is read as an enum and an array as a set; elsewhere types are exact."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """A key of settings files: its path from the top, and the field that it sets from a class."""

    path: str
    fields: tuple[str, ...]
    kind: Any
    setting: Setting
    is_required: bool = False


def keys_of(
    settings: type[DataclassInstance], within: str = "", below: tuple[str, ...] = ()
) -> Iterator[Key]:
    """Yield the keys that a settings class declares, with a section for each class inside."""
    kinds, declared = get_type_hints(settings), get_type_hints(settings, include_extras=True)
    for field in fields(settings):
        kind, place = kinds[field.name], (*below, field.name)
        setting = next(iter(getattr(declared[field.name], "__metadata__", ())), Setting())
        key = f"{within}{setting.key or to_camel(field.name)}"
        if isinstance(kind, type) and is_dataclass(kind):
            yield from keys_of(kind, within if kind is Vocabulary else f"{key}.", place)
            continue
        if setting.unless:
            yield Key(path=setting.unless, fields=(), kind=bool, setting=Setting())
        is_required = field.default is MISSING and field.default_factory is MISSING
        yield Key(path=key, fields=place, kind=kind, setting=setting, is_required=is_required)


class _Exact(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class _Lax(BaseModel):
    model_config = ConfigDict(extra="forbid")


@cache
def _model(kind: str) -> type[BaseModel]:
    """Return what a file of a kind may say; what kinds share comes first."""
    top: dict[str, Any] = {"apiVersion": (Literal["tenure.sh/v1alpha1"], ...)}
    sections: dict[str, dict[str, Any]] = {"": top}

    def put(keys: Iterable[Key]) -> None:
        for key in keys:
            section, _, name = key.path.rpartition(".")
            if section:
                top.setdefault(section, None)
            sections.setdefault(section, {}).setdefault(name, _declared(key))

    put(keys_of(Vocabulary))
    put(key for key in keys_of(AdmissionSettings) if key.path == _ACCOUNTS)
    top["kind"] = (Literal[kind], ...)
    for settings in _classes(kind):
        put(keys_of(settings))
    for name, section in sections.items():
        if name:
            base = _Lax if name in _LAX else _Exact
            top[name] = (create_model(name, __base__=base, **section), None)
    return create_model(kind, __base__=_Lax, **top)


def _classes(kind: str) -> Iterator[type[DataclassInstance]]:
    if kind != SCHEDULER:
        yield AdmissionSettings
    if kind != ADMISSION:
        from scheduler.decide.settings import SchedulingSettings

        yield SchedulingSettings


def _declared(key: Key) -> tuple[Any, Any]:
    """Return a key's type for pydantic, and its default: none is needed, for none is read."""
    setting, kind = key.setting, key.kind if key.setting.given is None else key.setting.given
    if setting.words:
        kind = Literal[setting.words]
    elif kind == int | None:
        kind = StrictInt | None
    elif kind == tuple[Profile, ...]:
        inside: dict[str, Any] = {one.path: _declared(one) for one in keys_of(Profile)}
        model: Any = create_model("Profile", __base__=_Lax, **inside)
        kind = tuple[Annotated[model, AfterValidator(_profile)], ...]
    if setting.any_case:
        kind = Annotated[kind, BeforeValidator(_lower)]
    if setting.most is not None:
        kind = Annotated[kind, Field(ge=setting.least, le=setting.most)]
    elif setting.least is not None:
        kind = Annotated[kind, Field(min_length=setting.least)]
    return kind | None if setting.unless else kind, ... if key.is_required else None


def _lower(text: object) -> object:
    return text.lower() if isinstance(text, str) else text


def _profile(read: BaseModel) -> Profile:
    keys = (key for key in keys_of(Profile) if key.path in read.model_fields_set)
    return Profile(**{key.fields[0]: getattr(read, key.path) for key in keys})


def read_settings(path: Path) -> SchedulingSettings:
    """
    Read a settings file. A setting that is absent has its default.

    Rule: cli.md, Settings of scheduling.

    Raises:
        InputError: another kind or version, an unknown key, or a value that is not allowed; with
            file, line and field.
    """
    return read_one(read_source(path), SCHEDULER, read_scheduling)


def read_service_accounts(path: Path) -> frozenset[str]:
    """Return the users that admission takes for Tenure's. Raises InputError as `read_settings`."""
    values = read_one(read_source(path), SCHEDULER, partial(_values, SCHEDULER))
    accounts: frozenset[str] = values.get(_ACCOUNTS, SERVICE_ACCOUNTS)
    return accounts


def read_admission_file(path: Path, content: bytes) -> AdmissionSettings:
    """Return the settings of a file's bytes. Raises InputError: with file, line and field."""
    return read_one(parse_source(str(path), content), ADMISSION, read_admission)


def admission_settings(path: Path | None) -> AdmissionSettings:
    """Return a file's settings, or defaults without one. Raises InputError: with file and field."""
    return DEFAULT_ADMISSION if path is None else read_admission_file(path, content_of(path))


def read_scheduling(document: object) -> SchedulingSettings:
    """Return the settings of scheduling that a document says. Raises InputError, with the field."""
    from scheduler.decide.settings import DEFAULT_SCHEDULING  # no webhook decides

    return _with(DEFAULT_SCHEDULING, _values(SCHEDULER, document))


def read_admission(document: object) -> AdmissionSettings:
    """
    Return the settings that a document says; what it leaves out has its default.

    Raises:
        InputError: another kind or version, an unknown key, or a value that is not allowed; with
            the field.
    """
    return _with(DEFAULT_ADMISSION, _values(ADMISSION, document))


def read_one(source: InputFile, kind: str, read: Callable[[object], T]) -> T:
    """Return what `read` makes of a file's one document. Raises InputError: with line and field."""
    documents = [document for document in source.documents if document is not None]
    if len(documents) != 1:
        raise InputError(f"one {kind} is needed: documents={len(documents)}", place=source.name)
    number = source.documents.index(documents[0])
    try:
        return read(documents[0])
    except InputError as error:
        found = error.at(source.place_of(number, error.field))
        raise with_next(found, "correct that setting and run it again") from error


def _with(settings: Settings, values: Values) -> Settings:
    for key in keys_of(type(settings)):
        value = values.get(key.path)
        if value is None:
            value = values.get(key.setting.unless)
        if value is None or not key.fields:
            continue
        if key.setting.read is not None:
            try:
                value = key.setting.read(value)
            except InputError as error:
                raise error.within(key.path) from None
        settings = _replaced(settings, key.fields, value)
    return settings


def _replaced(settings: Settings, names: Sequence[str], value: object) -> Settings:
    first, *rest = names
    inner = _replaced(getattr(settings, first), rest, value) if rest else value
    return replace(settings, **{first: inner})


def _values(meant: str, document: object) -> Values:
    """
    Return what a document says, of the kind that is meant or of both services.

    Raises:
        InputError: another kind or version, or every unknown key and value that is not allowed;
            with the field of the first.
    """
    if not isinstance(document, dict):
        raise InputError(f"not a {meant} but another kind of value")
    sections = {key: {} if value is None else value for key, value in document.items()}
    kind = BOTH if sections.get("kind") == BOTH else meant
    try:
        found = _model(kind).model_validate(sections)
    except ValidationError as error:
        raise _every_error(error) from None
    values: dict[str, Any] = {}
    for key in found.model_fields_set:
        value = getattr(found, key)
        within = value.model_fields_set if isinstance(value, BaseModel) else ()
        values |= {f"{key}.{one}": getattr(value, one) for one in within} or {key: value}
    _check(values)
    return values


def _check(values: Values) -> None:
    unknown = sorted(set(values.get("modes", ())) - _KNOWN_RULES)
    if unknown:
        raise InputError(f"no such rule in modes: {', '.join(unknown)}")
    names = [profile.name for profile in values.get("profiles", ())]
    if len(set(names)) != len(names):
        raise InputError("a profile's name is there twice")


def _every_error(error: ValidationError) -> InputError:
    found = error.errors()
    # a wrong kind or version explains every other error
    whole = [one for one in found if one["loc"][:1] in {("apiVersion",), ("kind",)}]
    first, *others = whole[:1] or found
    facts = [_fact(first), *(f"{_field(one)}: {_fact(one)}" for one in others)]
    return InputError("; ".join(facts), field=_field(first))


def _field(error: ErrorDetails) -> str:
    return ".".join(str(step) for step in error["loc"])


def _fact(error: ErrorDetails) -> str:
    context = error.get("ctx", {})
    match error["type"]:
        case "missing":
            return "required"
        case "extra_forbidden":
            return "unknown setting"
        case "literal_error" | "enum":
            return f"must be {context['expected']}: value={error['input']!r}"
        case "value_error":
            return str(context["error"])
        case _:
            text = error["msg"]
            return f"{text[:1].lower()}{text[1:]}: value={error['input']!r}"
