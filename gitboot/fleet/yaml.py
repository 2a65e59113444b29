"""YAML reader: parse documents without changing the text of scalars, and find where each value is.

A field's schema determines the type of the field's scalar, so the reader keeps ``no``, ``0755``, ``12:30`` and
``52:54:00:12:34:56`` as text. The reader builds values from libyaml's events, because PyYAML builds nodes by recursion
in C and crashes on 100,000 nested brackets. The reader splits a file before each ``---`` line. YAML does not allow such
a line within a document, so a fault in one document does not hide faults in later documents.
"""

from __future__ import annotations

import codecs
import re
from array import array
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property, lru_cache
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

from msgspec import Struct, structs
from yaml._yaml import CParser  # this import must fail without libyaml, because PyYAML's own parser behaves differently
from yaml.error import MarkedYAMLError
from yaml.events import (
    AliasEvent,
    DocumentStartEvent,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
)
from yaml.reader import ReaderError

from gitboot.fleet.revision import MAX_FILE_BYTES
from gitboot.model.scalars import Path, Step
from gitboot.problems import Code, Problem, Severity

MAX_FILE_DOCUMENTS: Final = 32 * 1024
MAX_DOCUMENT_BYTES: Final = 1024 * 1024
MAX_DEPTH: Final = 64  # the maximum depth of nested lists and mappings
MAX_SHOWN: Final = 100  # the maximum number of problems that gitboot shows for each file
# one more than gitboot shows; the last problem determines the location of the message about further problems
MAX_KEPT: Final = MAX_SHOWN + 1


class Quoted(str):
    """A quoted scalar or a block scalar. Such a scalar is always text, and never null, true or false."""

    __slots__ = ()


class Spot(NamedTuple):
    """The position of a value, counted in characters, and the positions of the value's items by key or index."""

    start: int
    end: int | None = None  # the end of the value; None if the value is not a scalar or is absent
    # the positions of the items; for a mapping, each entry also contains the position of the key
    items: dict[str, tuple[int, Spot]] | list[Spot] | None = None


# A scalar is None if it is plain and empty, `null` or `~`. Any other plain scalar is an exact `str`. All other scalars
# are `Quoted`.
Value: TypeAlias = "str | list[Value] | dict[str, Value] | None"


class Place(NamedTuple):
    line: int  # 1-based
    column: int  # 1-based, in characters


class Document(Struct, frozen=True, kw_only=True):
    value: dict[str, Value]
    index: int  # the 0-based index in the file, without empty documents


class Parsed(NamedTuple):
    """The valid documents of a file, and the problems of the invalid documents in the file."""

    documents: tuple[Document, ...]
    problems: tuple[Problem, ...]  # the first problems of the invalid documents, sorted
    more: int  # the number of further problems
    unread: tuple[bytes, ...] | None  # the source texts of the invalid documents; None: gitboot did not read the file


_NEXT_DOCUMENT = re.compile(rb"\n---(?![^ \t\r\n])")
# A "%" after any line break that libyaml recognizes. YAML allows this in a quoted scalar, but real files do not contain
# it.
_DIRECTIVE = re.compile(rb"(?:\A(?:\xef\xbb\xbf)?|[\r\n]|\xc2\x85|\xe2\x80[\xa8\xa9])(?=%)")
# the line breaks that libyaml recognizes and Git does not
_HIDDEN_BREAK = re.compile(rb"\r(?!\n)|\xc2\x85|\xe2\x80[\xa8\xa9]")
_LINE_FEED = re.compile("\n")
_T = TypeVar("_T")


def parse(data: bytes, path: str) -> Parsed:
    """Parse a file, and return the valid YAML documents and the problems of invalid documents. Skip empty documents."""
    if (problem := _find_file_problem(data, path)) is not None:
        return Parsed((), (problem,), 0, None)
    documents: list[Document] = []
    unread: list[bytes] = []
    problems: list[Problem] = []
    index = more = 0
    for span in _split_documents(data):
        reader = _Reader(data, span, path)
        if reader.is_empty:
            continue
        if document := reader.read(index):
            documents.append(document)
        else:
            unread.append(data[span.start : span.end])
        index += 1
        problems += reader.problems
        more += reader.more + len(problems[MAX_KEPT:])
        del problems[MAX_KEPT:]
    return Parsed(tuple(documents), tuple(sorted(problems)), more, tuple(unread))


def _find_file_problem(data: bytes, path: str) -> Problem | None:
    """Return the problem because of which gitboot does not read a file, or None if gitboot reads the file."""
    code, hint = Code.FILE_TOO_LARGE, "split the file into several files"
    if len(data) > MAX_FILE_BYTES:
        message = f"the file is {len(data):,} bytes long; the limit is {MAX_FILE_BYTES:,}"
    elif data.count(b"\n---") > MAX_FILE_DOCUMENTS:
        message = f"the file has more than {MAX_FILE_DOCUMENTS:,} documents"
    elif data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE, codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)):
        code, hint, message = Code.NOT_UTF8, "save the file as UTF-8", "the file is UTF-16 or UTF-32"
    else:
        return None
    return Problem(path=path, line=1, column=1, code=code, message=message, hint=hint)


def locate(data: bytes, index: int, path: Path, *, key: bool = False) -> Place:
    """Return the location of the value at ``path`` in the document with this index.

    If the value is absent, return the location of the key. If the path does not exist, return the location of the last
    value on the path that exists. Callers should finish all lookups in one document before they begin with the next
    document, so that gitboot reads each document only once.
    """
    layout = _read_layout(data, index)
    at, key_at = layout.root, layout.root.start
    for number, step in enumerate(path, 1):
        found = _find_item(at, step)
        if found is None:
            break
        key_at, at = found
        if key and number == len(path):
            return layout.lines.place(key_at)
    return layout.lines.place(at.start)


def list_value_lines(data: bytes, index: int) -> dict[Path, int]:
    """Return the line number of each value in a document, by path.

    If a value is absent, return the line number of the key.
    """
    layout = _read_layout(data, index)
    return {path: layout.lines.place(spot.start).line for path, spot in _list_spots((), layout.root)}


def _list_spots(path: Path, spot: Spot) -> Iterator[tuple[Path, Spot]]:
    yield path, spot
    if isinstance(spot.items, dict):
        for key, (_, below) in spot.items.items():
            yield from _list_spots((*path, key), below)
    else:
        for number, below in enumerate(spot.items or ()):
            yield from _list_spots((*path, number), below)


def get_document_text(data: bytes, index: int) -> bytes:
    """Return the bytes of the document with this index.

    The bytes begin at the `---` line of the document, and end before the next `---` line.
    """
    span = _list_spans(data)[index]
    return data[span.start : span.end]


def count_lines_above(data: bytes, index: int) -> int:
    """Return the number of lines that precede a document in its file."""
    return _list_spans(data)[index].lines_before


def replace_scalar(data: bytes, index: int, path: Path, text: str) -> bytes:
    """Replace one scalar of a document with ``text``, and return the changed file. All other bytes stay the same.

    Raises `KeyError` if there is no scalar at the path.
    """
    _, spot = _follow_path(_read_layout(data, index).root, path)[-1]
    start, end = spot.start, spot.end
    if end is None:
        raise KeyError(path)

    def replace(text_before: str) -> str:
        replaced = text_before[start:end]
        line_ends = replaced[len(replaced.rstrip("\r\n")) :]  # a block scalar ends at the start of the next line
        return f"{text_before[:start]}{text}{line_ends}{text_before[end:]}"

    return _edit_document(data, index, replace)


def insert_field(data: bytes, index: int, after: Path, name: str, value: str | Mapping[str, str]) -> bytes:
    """Insert the field ``name`` after the scalar at ``after`` in the same mapping, and return the changed file.

    The value of the new field is a plain scalar or a mapping of plain scalars. All other bytes stay the same. Raises
    KeyError if the path does not lead to a scalar in a mapping, or if the mapping has the field already.
    """
    positions = _follow_path(_read_layout(data, index).root, after)
    if len(positions) < 2:
        raise KeyError(name)
    (mapping_key_at, mapping), (_, scalar) = positions[-2:]
    end = scalar.end
    if not isinstance(mapping.items, dict) or name in mapping.items or end is None:
        raise KeyError(name)

    def insert_in_flow_mapping(text: str) -> str:
        flow = value
        if not isinstance(flow, str):
            flow = f"{{{', '.join(f'{key}: {item}' for key, item in flow.items())}}}"
        return f"{text[:end]}, {name}: {flow}{text[end:]}"

    def insert_lines(text: str) -> str:
        indent = _measure_indent(text, mapping.start)  # not that of the key, which may follow "? "
        step = max(indent - _measure_indent(text, mapping_key_at), 0) or 2
        if isinstance(value, str):
            lines = [f"{' ' * indent}{name}: {value}"]
        else:
            lines = [f"{' ' * indent}{name}:"]
            lines += [f"{' ' * (indent + step)}{key}: {item}" for key, item in value.items()]
        line_end = "\r\n" if "\r\n" in text else "\n"
        # A block scalar ends at the start of the next line. After any other scalar, there may be a comment.
        here = end if text[end - 1] == "\n" else text.find("\n", end) + 1 or len(text)
        before = text[:here] if text[:here].endswith("\n") else f"{text}{line_end}"
        return f"{before}{''.join(f'{line}{line_end}' for line in lines)}{text[here:]}"

    def insert(text: str) -> str:
        return insert_in_flow_mapping(text) if text[mapping.start] == "{" else insert_lines(text)

    return _edit_document(data, index, insert)


def _measure_indent(text: str, offset: int) -> int:
    return offset - text.rfind("\n", 0, offset) - 1


def _follow_path(root: Spot, path: Path) -> list[tuple[int, Spot]]:
    """Return the positions of the key and of the value, for the root and for each step of a path.

    Raises KeyError if a step does not exist.
    """
    positions = [(root.start, root)]
    for step in path:
        _, spot = positions[-1]
        below = _find_item(spot, step)
        if below is None:
            raise KeyError(step)
        positions.append(below)
    return positions


def _edit_document(data: bytes, index: int, edit: Callable[[str], str]) -> bytes:
    span = _list_spans(data)[index]
    source = data[span.start : span.end]
    mark = codecs.BOM_UTF8 if source.startswith(codecs.BOM_UTF8) else b""
    return data[: span.start] + mark + edit(source.decode("utf-8-sig")).encode() + data[span.end :]


# the cache has one entry for the document with a problem, and one for a document that the problem names
@lru_cache(maxsize=2)
def _read_layout(data: bytes, index: int) -> _Layout:
    try:
        span = _list_spans(data)[index]
    except IndexError:
        raise IndexError(f"no document {index}") from None
    return _Reader(data, span).layout()


class _Span(NamedTuple):
    start: int
    end: int
    lines_before: int


def _split_documents(data: bytes) -> Iterator[_Span]:
    """Yield all documents of a file in order, including empty documents."""
    start = lines = 0
    while start < len(data):
        next_document = _NEXT_DOCUMENT.search(data, start)
        end = next_document.start() + 1 if next_document else len(data)
        yield _Span(start, end, lines)
        lines += data.count(b"\n", start, end)
        start = end


@lru_cache(maxsize=2)
def _list_spans(data: bytes) -> tuple[_Span, ...]:
    return tuple(span for span in _split_documents(data) if not _Reader(data, span).is_empty)


class _UnreadableRest(Exception):
    """Raised if gitboot cannot read the rest of a document. gitboot has already added a problem that explains this."""


class _Lines:
    """A converter from positions in a text to lines and columns in the file.

    The text may start after the first line of the file.
    """

    def __init__(self, text: str, lines_before: int) -> None:
        self._ends = array("L", (found.start() for found in _LINE_FEED.finditer(text)))
        self._lines_before = lines_before

    def place(self, offset: int) -> Place:
        line = bisect_left(self._ends, offset)
        return Place(self._lines_before + line + 1, offset - (self._ends[line - 1] if line else -1))


def _find_item(spot: Spot, step: Step) -> tuple[int, Spot] | None:
    if isinstance(spot.items, dict) and isinstance(step, str):
        return spot.items.get(step)
    if isinstance(spot.items, list) and isinstance(step, int) and step < len(spot.items):
        return spot.items[step].start, spot.items[step]
    return None


class _Layout(NamedTuple):
    root: Spot
    lines: _Lines


class _Reader:
    """A reader for the events of one document. After a fault, the reader continues if libyaml can continue."""

    def __init__(self, data: bytes, span: _Span, path: str = "") -> None:
        self.problems: list[Problem] = []  # the problems to show to the author of the document
        self.more = 0  # the number of further problems
        self.source = data[span.start : span.end]
        self._path, self._lines_before = path, span.lines_before
        self._next: Callable[[], Any] = CParser(self.source).get_event
        self._may_have_properties = b"&" in self.source or b"!" in self.source
        self._root: Any = self._try_step(self._begin_document)  # the event with which the value of the document begins

    @property
    def is_empty(self) -> bool:
        return self._root is None and not self.problems

    def read(self, index: int) -> Document | None:
        value = self._try_step(self._read_document) if self._root else None
        return None if self.problems or not isinstance(value, dict) else Document(value=value, index=index)

    def layout(self) -> _Layout:
        return _Layout(_build_layout(self._next, self._root), self.lines)

    @property
    def start(self) -> Place:
        return Place(self._lines_before + 1, 1)

    @cached_property
    def lines(self) -> _Lines:
        # Lines and columns in libyaml's marks differ, because libyaml also ends lines at CR, U+0085, U+2028 and U+2029.
        return _Lines(self.source.decode("utf-8-sig", "replace"), self._lines_before)

    def place(self, mark: Any) -> Place:
        return self.lines.place(mark.index)

    def locate_byte(self, offset: int) -> Place:
        text = self.source[:offset].decode("utf-8-sig", "ignore")
        return Place(self._lines_before + text.count("\n") + 1, len(text) - text.rfind("\n"))

    def add_problem(self, place: Place, code: Code, message: str, hint: str) -> None:
        if len(self.problems) == MAX_KEPT:
            self.more += 1
            return
        line, column = place
        self.problems.append(Problem(path=self._path, line=line, column=column, code=code, message=message, hint=hint))

    def reject(self, event: Any, code: Code, message: str, hint: str) -> None:
        self.add_problem(self.place(event.start_mark), code, message, hint)

    def report_invalid_bytes(self, error: ReaderError) -> None:
        place = self.locate_byte(error.position)
        if error.reason == "control characters are not allowed":
            self.add_problem(
                place,
                Code.CONTROL_CHARACTER,
                f"the control character U+{error.character:04X} is not allowed in YAML",
                "remove the character",
            )
        else:
            self.add_problem(
                place, Code.NOT_UTF8, "the file contains bytes that are not UTF-8", "save the file as UTF-8"
            )

    def report_syntax_error(self, error: MarkedYAMLError) -> None:
        if marker := _CONFLICT.search(self.source):
            message = f"the file contains a Git conflict marker: {marker[0][:7].decode()}"
            self.add_problem(
                self.locate_byte(marker.start()),
                Code.NOT_YAML,
                message,
                "resolve the conflict, and remove the lines that begin with <<<<<<<, |||||||, ======= or >>>>>>>",
            )
            return
        problem, context = error.problem or "", error.context or ""
        context_start: Any = error.context_mark
        mark: Any = context_start if problem in _LATE_ERRORS else error.problem_mark
        character = self.source.decode("utf-8-sig", "replace")[mark.index : mark.index + 1]
        if character == "\t" or "tab character" in problem:
            code, message, hint = Code.NOT_YAML, "YAML does not allow a tab here", "indent with spaces"
        elif "nesting depth" in problem:  # libyaml 0.2.6 rejects deep nesting before it returns an event
            code, message, hint = Code.TOO_DEEP, _TOO_DEEP, _NEST_LESS
        elif " tag" in context + problem:
            code, message, hint = Code.TAG, f"a tag is not allowed: {problem}", _NO_TAGS
        else:
            code, hint = Code.NOT_YAML, _HINTS.get(problem, Code.NOT_YAML.hint)
            message = "not YAML: " + problem.replace("found character", f"found {character!r}, a character")
            if context_start and context_start.line != mark.line:
                message += f" ({context} that begins on line {self.place(context_start).line})"
        self.add_problem(self.place(mark), code, message, hint)

    def _try_step(self, step: Callable[[], _T]) -> _T | None:
        """Return the result of ``step``.

        If gitboot cannot read the rest of the document, add a problem and return None.
        """
        try:
            return step()
        except ReaderError as error:
            self.report_invalid_bytes(error)
        except MarkedYAMLError as error:
            self.report_syntax_error(error)
        except UnicodeDecodeError:  # PyYAML raises this error for %-escapes in a tag
            self.add_problem(self.start, Code.TAG, "tags are not allowed, and this tag is not valid UTF-8", _NO_TAGS)
        except _UnreadableRest:
            pass
        return None

    def _begin_document(self) -> Any:
        source = self.source
        if len(source) > MAX_DOCUMENT_BYTES:
            self.add_problem(
                self.start,
                Code.DOCUMENT_TOO_LARGE,
                f"the document is {len(source):,} bytes long; the limit is {MAX_DOCUMENT_BYTES:,}",
                "split the document into several documents",
            )
            raise _UnreadableRest
        if b"%" in source and (directive := _DIRECTIVE.search(source)):
            self.add_problem(
                self.locate_byte(directive.end()),
                Code.DIRECTIVE,
                "a directive (a line that begins with '%') is not allowed",
                "remove the line",
            )
            raise _UnreadableRest
        if (hidden := _find_hidden_text(source)) is not None:
            character = ord(source[hidden:].decode("utf-8", "replace")[0])
            self.add_problem(
                self.locate_byte(hidden),
                Code.CONTROL_CHARACTER,
                f"the line break U+{character:04X} after '#' would end a comment, but Git shows one line",
                "remove the character, or write it as an escape sequence in double quotes",
            )
            raise _UnreadableRest
        self._next()  # start of the stream
        return self._find_next_root()

    def _find_next_root(self) -> Any:
        """Return the event with which the next root value begins, or None if there is no further root value."""
        while type(self._next()) is DocumentStartEvent:
            root = self._next()
            if not _is_absent(root):
                return root
            self._next()  # end of the document
        return None

    def _read_document(self) -> Value:
        value = self._read_value(self._root, 1)
        self._next()  # end of the document
        if another := self._find_next_root():
            self.reject(
                another,
                Code.NOT_YAML,
                "another document begins here, but its '---' is not on a separate line",
                "end lines with LF or CRLF",
            )
        if not isinstance(value, dict):
            self.reject(
                self._root,
                Code.ROOT_NOT_MAPPING,
                "the document is not a mapping with apiVersion, kind, metadata and spec",
                "begin each document with `apiVersion:`",
            )
        return value

    def _read_value(self, event: Any, depth: int) -> Value:
        """Read the value that begins with ``event``.

        ``depth`` is the number of enclosing lists and mappings, plus 1.
        """
        if self._may_have_properties:
            self._reject_properties(event)
        kind = type(event)  # this is faster than isinstance(), and events have no subclasses
        if kind is ScalarEvent:
            text: str = event.value
            if event.style:
                return Quoted(text)
            return None if text in {"", "null", "~"} else text
        if kind is AliasEvent:
            self.reject(
                event,
                Code.ALIAS,
                "an alias is not allowed",
                "repeat the value, or put text that begins with '*' in quotes",
            )
            return None
        if depth > MAX_DEPTH:
            self.reject(event, Code.TOO_DEEP, _TOO_DEEP, _NEST_LESS)
            raise _UnreadableRest
        if kind is MappingStartEvent:
            return self._read_mapping(depth)
        items: list[Value] = []
        while type(event := self._next()) is not SequenceEndEvent:
            items.append(self._read_value(event, depth + 1))
        return items

    def _read_mapping(self, depth: int) -> dict[str, Value]:
        read, checks_properties = self._next, self._may_have_properties
        mapping: dict[str, Value] = {}
        firsts: dict[str, Any] = {}  # the first occurrence of each key
        while type(event := read()) is not MappingEndEvent:
            key = event.value if type(event) is ScalarEvent else ""
            if checks_properties or key in {"", "<<"} or key in firsts:
                self._check_key(event, firsts, depth)
            else:
                firsts[key] = event.start_mark
            mapping[key] = self._read_value(read(), depth + 1)
        return mapping

    def _check_key(self, event: Any, firsts: dict[str, Any], depth: int) -> None:
        if type(event) is not ScalarEvent:
            if type(event) is not AliasEvent:
                self.reject(
                    event,
                    Code.INVALID_KEY,
                    "a key must not be a list or a mapping",
                    "use text as the key, or put a value that begins with '{{' in quotes",
                )
            self._read_value(event, depth + 1)
            return
        self._reject_properties(event)
        key = event.value
        if not key:
            self.reject(
                event, Code.INVALID_KEY, "a key is empty", "add the key, or put text that contains ': ' in quotes"
            )
        elif key == "<<" and not event.style:
            self.reject(event, Code.MERGE_KEY, "a merge key ('<<') is not allowed", "repeat the keys")
        elif (first := firsts.setdefault(key, event.start_mark)) is not event.start_mark:
            self.reject(
                event,
                Code.DUPLICATE_KEY,
                f"the key {key[:80]!r} is already on line {self.place(first).line}",
                "remove one of the two keys",
            )

    def _reject_properties(self, event: Any) -> None:
        if type(event) is AliasEvent:
            return  # the event is an alias, whose `anchor` is the name of the target
        if event.anchor is not None:
            self.reject(
                event,
                Code.ANCHOR,
                "an anchor is not allowed",
                "remove the anchor, or put text that begins with '&' in quotes",
            )
        if event.tag is not None:
            self.reject(event, Code.TAG, "a tag is not allowed", _NO_TAGS)


def _find_hidden_text(source: bytes) -> int | None:
    """Return the position of a line break after which libyaml could read text that Git shows as part of a comment."""
    if b"#" not in source or _HIDDEN_BREAK.search(source) is None:
        return None
    start = 0
    for line in source.split(b"\n"):
        found = _HIDDEN_BREAK.search(line, line.find(b"#")) if b"#" in line else None
        if found is not None and _HIDDEN_BREAK.sub(b"", line[found.end() :]).strip():
            return start + found.start()
        start += len(line) + 1
    return None


def _build_layout(read: Callable[[], Any], event: Any) -> Spot:
    kind, start = type(event), event.start_mark.index
    if kind is MappingStartEvent:
        mapping: dict[str, tuple[int, Spot]] = {}
        while type(key := read()) is not MappingEndEvent:
            value, at = read(), key.start_mark.index
            mapping[key.value] = at, Spot(at) if _is_absent(value) else _build_layout(read, value)
        return Spot(start, items=mapping)
    if kind is SequenceStartEvent:
        items: list[Spot] = []
        while type(item := read()) is not SequenceEndEvent:
            items.append(_build_layout(read, item))
        return Spot(start, items=items)
    return Spot(start, None if _is_absent(event) else event.end_mark.index)


def _is_absent(event: Any) -> bool:
    length: int = event.end_mark.index - event.start_mark.index
    return length == 0 and type(event) is ScalarEvent


_TOO_DEEP: Final = f"lists and mappings are nested more than {MAX_DEPTH} levels deep"
_NEST_LESS: Final = "reduce the nesting"
# Conflict markers: git-merge(1), "How conflicts are presented".
_CONFLICT: Final = re.compile(rb"^(?:(?:<{7}|>{7}|\|{7}) .*|={7}\r?)$", re.MULTILINE)
_NO_TAGS = "remove the tag, or put text that begins with '!' in quotes"
# Problems for which libyaml reports a location after the actual fault.
_LATE_ERRORS = frozenset(
    {"could not find expected ':'", "found unexpected end of stream", "found unexpected document indicator"}
)
_HINTS = {
    "block sequence entries are not allowed in this context": "begin the list on a separate line",
    "could not find expected ':'": "write `key: value`, or put the text in quotes",
    "did not find expected '-' indicator": "indent all items of a list equally",
    "did not find expected ',' or ']'": "close the quotes, and close the list with ']'",
    "did not find expected ',' or '}'": "close the quotes, and close the mapping with '}'",
    "did not find expected <document start>": "move the text into the document, or add a '---' line before the text",
    "did not find expected alphabetic or numeric character": "put text that begins with '*' or '&' in quotes",
    "did not find expected comment or line break": "begin the text of a block on the next line",
    "did not find expected key": "indent all keys of a mapping equally, and close all quotes",
    "did not find expected node content": "put text that begins with one of ,[]{} in quotes",
    "found character that cannot start any token": "put the text in quotes",
    "found unexpected document indicator": "close the quotes",
    "found unexpected end of stream": "close the quotes",
    "found unknown escape character": "use single quotes, in which a backslash has no special meaning",
    "mapping values are not allowed in this context": "put text that contains ': ' in quotes, or indent keys equally",
}


def select_first(problems: Iterable[Problem], more: Mapping[str, int] | None = None) -> tuple[Problem, ...]:
    """Return the first hundred errors and the first hundred warnings of each file, sorted.

    An additional problem states how many problems are not shown.

    ``more`` contains, for each file, the number of further errors after those in ``problems``.
    """
    more = more or {}
    groups: defaultdict[tuple[str, Severity], list[Problem]] = defaultdict(list)
    for problem in problems:
        groups[problem.path, problem.severity].append(problem)
    shown: list[Problem] = []
    for (path, severity), group in groups.items():
        group.sort()
        shown += group[:MAX_SHOWN]
        count = len(group[MAX_SHOWN:]) + (more.get(path, 0) if severity is Severity.ERROR else 0)
        if count > 0:
            message, code = f"{count:,} more problems in the rest of this file are not shown", Code.TOO_MANY_PROBLEMS
            if count == 1:
                message = "1 more problem in the rest of this file is not shown"
            shown.append(structs.replace(group[:MAX_KEPT][-1], code=code, message=message, hint=code.hint))
    return tuple(sorted(shown))
