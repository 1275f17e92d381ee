"""The language messages are declared in.

A message is a class whose attributes are fields; a field is a Kafka type called with the versions that have it:

    class FetchTopic(Message):
        topic: str = string("0-12", ignorable=True)
        topic_id: bytes = uuid("13+", ignorable=True)
        partitions: list[FetchPartition] = array(FetchPartition, "0+")

    class FetchRequest(Message, kind="request", api_key=1, versions="0-18", flexible="12+"):
        cluster_id: str | None = string("12+", nullable="12+", tagged="12+", tag=0, default=None, ignorable=True)
        max_wait_ms: int = int32("0+")
        topics: list[FetchTopic] = array(FetchTopic, "0+")

One class serves all versions. Fields are keyword arguments, each with Kafka's default. The fields are written in the
order of their declaration; what a version lacks is skipped on encode and has its default after decode.

- `versions`: the versions that carry the field. On encode, a value other than the default in a version without the
  field is an UnsupportedVersionError, unless the field is `ignorable`.
- `nullable`: the versions in which None may be written.
- `tagged`, `tag`: the versions in which the field is optional and stands, with its tag, at the end of its struct.
- `flexible` of a message: the versions with compact lengths and tagged fields; of a field: an exception to that.
- `json_name`: what Kafka's JSON calls the field, where that is not the name in camel case.
"""

from __future__ import annotations

from typing import Any, ClassVar, TypeAlias, dataclass_transform

from tidelog.types import Buffer
from tidelog.wire.uuids import ZERO_UUID
from tidelog.wire.versions import NO_VERSIONS, Versions, versions

_TYPE_DEFAULT: Any = object()
"""Stands for "what the type has": 0, the empty string, an empty list, a struct of defaults."""


class Field:
    """One field of a message: what it is called, what it holds, and which versions have it."""

    __slots__ = (
        "default",
        "flexible",
        "ignorable",
        "json_name",
        "name",
        "nullable",
        "tag",
        "tagged",
        "type",
        "versions",
    )

    def __init__(
        self,
        field_type: FieldType,
        in_versions: str,
        nullable: str,
        tagged: str,
        tag: int,
        default: Any,
        ignorable: bool,
        flexible: str | None,
        json_name: str,
    ) -> None:
        self.name = ""
        self.json_name = json_name
        self.type = field_type
        self.versions = versions(in_versions)
        self.nullable = versions(nullable)
        self.tagged = versions(tagged)
        self.tag = tag
        self.default = field_type.default if default is _TYPE_DEFAULT else default
        self.ignorable = ignorable
        self.flexible = None if flexible is None else versions(flexible)

    def default_value(self) -> Any:
        """The default, made anew where it could be changed."""
        if self.default is EMPTY_LIST:
            return []
        if self.default is EMPTY_STRUCT:
            assert isinstance(self.type, StructType)
            return self.type.message()
        return self.default

    def __repr__(self) -> str:
        return f"<{self.name}: {self.type} {self.versions}>"


class FieldType:
    """What a field holds. Called, it declares a field of that type."""

    __slots__ = ("default",)

    def __init__(self, default: Any) -> None:
        self.default = default

    def __call__(
        self,
        in_versions: str,
        *,
        nullable: str = "none",
        tagged: str = "none",
        tag: int = -1,
        default: Any = _TYPE_DEFAULT,
        ignorable: bool = False,
        flexible: str | None = None,
        json_name: str = "",
    ) -> Any:
        return Field(self, in_versions, nullable, tagged, tag, default, ignorable, flexible, json_name)


class Scalar(FieldType):
    """A type without parts; `name` is Kafka's name for it."""

    __slots__ = ("name",)

    def __init__(self, name: str, default: Any) -> None:
        super().__init__(default)
        self.name = name

    def __repr__(self) -> str:
        return self.name


class StructType(FieldType):
    """One message inside another."""

    __slots__ = ("message",)

    def __init__(self, message: type[Message]) -> None:
        super().__init__(EMPTY_STRUCT)
        self.message = message

    def __repr__(self) -> str:
        return self.message.__name__


class ArrayType(FieldType):
    """A list of scalars or of structs."""

    __slots__ = ("element",)

    def __init__(self, element: Scalar | StructType) -> None:
        super().__init__(EMPTY_LIST)
        self.element = element

    def __repr__(self) -> str:
        return f"[]{self.element}"


EMPTY_LIST: Any = ()
EMPTY_STRUCT: Any = object()
"""Stand in `Field.default` for a new list and a new struct of defaults."""

bool_ = Scalar("bool", False)
int8 = Scalar("int8", 0)
int16 = Scalar("int16", 0)
uint16 = Scalar("uint16", 0)
int32 = Scalar("int32", 0)
uint32 = Scalar("uint32", 0)
int64 = Scalar("int64", 0)
float64 = Scalar("float64", 0.0)
string = Scalar("string", "")
bytes_ = Scalar("bytes", b"")
uuid = Scalar("uuid", ZERO_UUID)
records = Scalar("records", None)

Records: TypeAlias = Buffer | None
"""Record batches. Decoded, a view of the bytes that were decoded; encoded, never copied by `encode_parts`."""


def struct(message: type[Message], in_versions: str, **options: Any) -> Any:
    """Declares a field that holds one struct."""
    return StructType(message)(in_versions, **options)


def array(element: Scalar | type[Message], in_versions: str, **options: Any) -> Any:
    """Declares a field that holds a list."""
    return ArrayType(element if isinstance(element, Scalar) else StructType(element))(in_versions, **options)


class Schema:
    """What a message class declares. Structs have neither versions nor kind of their own: their message has them."""

    __slots__ = ("api_key", "fields", "flexible", "kind", "name", "versions")

    def __init__(
        self, name: str, fields: tuple[Field, ...], kind: str, api_key: int, valid: str, flexible: str
    ) -> None:
        self.name = name
        self.fields = fields
        self.kind = kind
        self.api_key = api_key
        self.versions: Versions = versions(valid) if valid else NO_VERSIONS
        self.flexible: Versions = versions(flexible)


@dataclass_transform(kw_only_default=True)
class MessageType(type):
    """Turns the declared fields into slots, and keeps the declaration as `__schema__`."""

    def __new__(
        mcs,
        name: str,
        bases: tuple[type, ...],
        namespace: dict[str, Any],
        *,
        kind: str = "struct",
        api_key: int = -1,
        versions: str = "",
        flexible: str = "none",
    ) -> MessageType:
        fields = []
        for attribute, field in list(namespace.items()):
            if isinstance(field, Field):
                field.name = attribute
                field.json_name = field.json_name or camel_case(attribute)
                fields.append(field)
                del namespace[attribute]
        namespace["__slots__"] = (*(field.name for field in fields), "_unknown") if bases else ()
        namespace["__schema__"] = Schema(name, tuple(fields), kind, api_key, versions, flexible)
        namespace["__decoders__"] = {}
        namespace["__encoders__"] = {}
        cls = super().__new__(mcs, name, bases, namespace)
        for field in fields:
            if field.default is EMPTY_STRUCT:
                setattr(cls, field.name, StructMember(getattr(cls, field.name), field))
        return cls


class StructMember:
    """A slot for a struct that is made when it is first asked for.

    Most tagged structs are never set and never looked at, and a response holds them in each of its partitions.
    """

    __slots__ = ("field", "slot")

    def __init__(self, slot: Any, field: Field) -> None:
        self.slot = slot
        self.field = field

    def __get__(self, message: Message | None, owner: type) -> Any:
        if message is None:
            return self
        try:
            return self.slot.__get__(message, owner)
        except AttributeError:
            value = self.field.default_value()
            self.slot.__set__(message, value)
            return value

    def __set__(self, message: Message, value: Any) -> None:
        self.slot.__set__(message, value)


def slot_descriptor(message: type[Message], field: str) -> Any:
    """What reaches the slot itself."""
    member = message.__dict__[field]
    return member.slot if isinstance(member, StructMember) else member


class Message(metaclass=MessageType):
    """What all messages and their structs have in common: fields by keyword, equality and a readable repr.

    Unknown tagged fields that were decoded are kept, and written again by encode.
    """

    __schema__: ClassVar[Schema]
    __decoders__: ClassVar[dict[int, Any]]
    __encoders__: ClassVar[dict[int, Any]]
    _unknown: ClassVar[Any]
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, **values: Any) -> None:
        # The first construction makes the class its own __init__: importing declarations should cost nothing more.
        cls = type(self)
        cls.__init__ = compile_init(cls.__schema__)  # type: ignore[method-assign]
        cls.__init__(self, **values)

    @property
    def unknown_tagged_fields(self) -> tuple[tuple[int, bytes], ...]:
        """Tags that the declaration does not know, with their bytes, ascending."""
        return getattr(self, "_unknown", ())

    def set_unknown_tagged_field(self, tag: int, content: bytes) -> None:
        """Add a tag that the declaration does not know: a receiver that does not know it either skips it (KIP-482)."""
        fields = {**dict(self.unknown_tagged_fields), tag: content}
        self._unknown = tuple(sorted(fields.items()))  # type: ignore[misc]

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        assert isinstance(other, Message)
        mine = (getattr(self, field.name) == getattr(other, field.name) for field in self.__schema__.fields)
        return all(mine) and self.unknown_tagged_fields == other.unknown_tagged_fields

    def __repr__(self) -> str:
        shown = [f"{field.name}={getattr(self, field.name, '<unset>')!r}" for field in self.__schema__.fields]
        if self.unknown_tagged_fields:
            shown.append(f"unknown_tagged_fields={self.unknown_tagged_fields!r}")
        return f"{type(self).__name__}({', '.join(shown)})"


def compile_init(schema: Schema) -> Any:
    """An __init__ with one keyword argument per field, as fast as if it had been written by hand."""
    scope: dict[str, Any] = {"MISSING": _TYPE_DEFAULT}
    parameters, lines = [], []
    for field in schema.fields:
        name = field.name
        if field.default is EMPTY_LIST:
            parameters.append(f"{name}=MISSING")
            lines.append(f"    self.{name} = [] if {name} is MISSING else {name}")
        elif field.default is EMPTY_STRUCT:
            parameters.append(f"{name}=MISSING")
            lines.append(f"    if {name} is not MISSING: self.{name} = {name}")
        else:
            scope[f"default_{name}"] = field.default
            parameters.append(f"{name}=default_{name}")
            lines.append(f"    self.{name} = {name}")
    head = f"def __init__(self, *, {', '.join(parameters)}):" if parameters else "def __init__(self):"
    exec("\n".join([head, *(lines or ["    pass"])]), scope)
    return scope["__init__"]


def camel_case(name: str) -> str:
    """What Kafka's JSON calls a field, where nothing else is declared."""
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)
