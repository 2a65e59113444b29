"""cloud-init user data: reject parts that cloud-init would ignore, and parse the YAML that cloud-init would read.

The rules are those of cloud-init 22.4 to 26: `cloudinit/user_data.py` splits user data into parts, and the modules in
`cloudinit/handlers` process the parts. gitboot never fetches the URLs in an `#include` part.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import yaml

from gitboot.model.scalars import Malformed, make_user_data_fault, quote_value

if TYPE_CHECKING:
    from email.message import Message

    from jinja2 import Environment


# Part types by the text at the beginning of the part. Source: cloudinit/handlers/__init__.py.
_CONFIG: Final = "text/cloud-config"
_JSON_PATCH: Final = "text/cloud-config-jsonp"
_ARCHIVE: Final = "text/cloud-config-archive"
_SCRIPT: Final = "text/x-shellscript"
_PERIODIC_SCRIPTS: Final = (f"{_SCRIPT}-per-boot", f"{_SCRIPT}-per-instance", f"{_SCRIPT}-per-once")
_BOOTHOOK: Final = "text/cloud-boothook"
_JINJA: Final = "text/jinja2"
_PART_HANDLER: Final = "text/part-handler"
_TYPE_BY_HEADER: Final = {
    "#include-once": "text/x-include-once-url",
    "#include": "text/x-include-url",
    "#cloud-config-archive": _ARCHIVE,
    "#cloud-config-jsonp": _JSON_PATCH,
    "#cloud-config": _CONFIG,
    "#cloud-boothook": _BOOTHOOK,
    "#part-handler": _PART_HANDLER,
    "## template: jinja": _JINJA,
    "#!": _SCRIPT,
    **{script: script for script in _PERIODIC_SCRIPTS},
}
_INCLUDES: Final = frozenset({"text/x-include-url", "text/x-include-once-url"})
_UNCHECKED: Final = frozenset({_SCRIPT, _BOOTHOOK, *_PERIODIC_SCRIPTS})
_GZIP: Final = frozenset(
    f"application/{name}"
    for name in (
        "gzip",
        "gzip-compressed",
        "gzipped",
        "x-compress",
        "x-compressed",
        "x-gunzip",
        "x-gzip",
        "x-gzip-compressed",
    )
)
_NOT_MULTIPART: Final = "text/x-not-multipart"
_HEADER_HINT: Final = (
    "begin the part with #cloud-config, #!, #cloud-boothook, #include, #part-handler, #cloud-config-archive or "
    "## template: jinja"
)
# the maximum size of a decompressed part, which is also the maximum size of a rendered template
_MAX_BYTES: Final = 1024 * 1024


class CloudConfigs(NamedTuple):
    """The cloud-config documents that cloud-init reads from user data."""

    configs: tuple[dict[Any, Any], ...]  # cloud-configs from the parts that gitboot can read, in order
    is_complete: bool  # False: an include, a part handler or a template adds more configuration on the machine


def read_cloud_configs(text: str) -> CloudConfigs:
    """Return the cloud-config documents in user data.

    Raises `Malformed` if cloud-init would ignore a part of the user data.
    """
    reader = _Reader()
    for part in _split_parts(text):
        reader.read(part)
    return CloudConfigs(tuple(reader.configs), reader.is_complete)


class _Part(NamedTuple):
    name: str  # the name in error messages
    type: str
    payload: str | bytes
    first_line: int  # the line of the user data, from 1, at which the payload starts; 0: the payload is encoded
    headers: Mapping[str, str]


def _detect_type(payload: str | bytes, default: str) -> str:
    try:
        text = payload if isinstance(payload, str) else payload.decode()
    except UnicodeDecodeError:
        return default
    start = text.lstrip()[:64].lower()
    return next((type for header, type in _TYPE_BY_HEADER.items() if start.startswith(header)), default)


def _split_parts(text: str) -> Iterator[_Part]:
    """Yield each part of the user data with its type. An archive is one part."""
    if b"mime-version:" not in text[:4096].encode("utf-8", "replace")[:4096].lower():
        yield _Part("the user data", _detect_type(text, _NOT_MULTIPART), text, 1, {})
        return
    import email  # gitboot imports this module here, because little user data has several parts

    try:
        message = email.message_from_string(text)
        leaves = [part for part in message.walk() if part.get_content_maintype().lower() != "multipart"]
    except RecursionError:
        raise make_user_data_fault(
            "the MIME parts of the rendered user data are nested too deeply", "reduce the nesting"
        ) from None
    for number, leaf in enumerate(leaves, 1):
        name, type, payload = f"part {number}", leaf.get_content_type(), _decode_payload(leaf)
        if type in _GZIP:
            type, payload = "text/plain", _decompress(payload, name)
        if type in ("text/plain", _NOT_MULTIPART, _SCRIPT):  # the content decides the type
            type = _detect_type(payload, type)
        offset = text.find(payload) if isinstance(payload, str) and payload else -1
        first_line = text.count("\n", 0, offset) + 1 if offset >= 0 else 0
        yield _Part(name, type, payload, first_line, {key.lower(): str(value) for key, value in leaf.items()})


def _decode_payload(part: Message) -> str | bytes:
    payload: Any = part.get_payload(decode=True)
    if isinstance(payload, bytes) and part.get_content_maintype() == "text":
        return payload.decode("utf-8", "surrogateescape")
    return b"" if payload is None else payload


def _decompress(payload: str | bytes, name: str) -> str:
    data = payload.encode("utf-8", "surrogateescape") if isinstance(payload, str) else payload
    text = b""
    try:
        while data.strip(b"\0"):
            member = zlib.decompressobj(wbits=31)
            text += member.decompress(data, _MAX_BYTES + 1 - len(text))
            if len(text) > _MAX_BYTES:
                raise make_user_data_fault(
                    f"{name} of the rendered user data is larger than {_MAX_BYTES:,} bytes after decompression",
                    "shorten the part",
                )
            if not member.eof:
                raise zlib.error("the compressed data is incomplete")
            data = member.unused_data
        content = text.decode()
    except (zlib.error, UnicodeDecodeError) as error:
        raise make_user_data_fault(
            f"{name} of the rendered user data is not gzip-compressed text: {error}",
            "compress the part with gzip and encode it as base64, or do not compress it",
        ) from None
    try:  # cloud-init encodes the content with Message.get_payload, and reads the result as UTF-8
        return content if content.isascii() else content.encode("raw-unicode-escape").decode()
    except UnicodeDecodeError:
        raise make_user_data_fault(
            f"{name} of the rendered user data is compressed and not ASCII, so cloud-init cannot read it",
            "do not compress the part",
        ) from None


class _Reader:
    """A reader of user data, which checks the parts in order and collects their cloud-config documents."""

    def __init__(self) -> None:
        self.configs: list[dict[Any, Any]] = []
        self.is_complete = True
        self._has_handlers = False  # whether an include or a part handler may add handlers for later parts

    def read(self, part: _Part) -> None:
        if part.type in _INCLUDES:
            self.is_complete, self._has_handlers = False, True
        elif part.type == _ARCHIVE:
            for entry in _split_archive(part):
                self._read_part(entry)
        else:
            self._read_part(part)

    def _read_part(self, part: _Part) -> None:
        if part.type == _PART_HANDLER:
            self.is_complete, self._has_handlers = False, True
        elif part.type == _CONFIG:
            self._read_config(part)
        elif part.type == _JSON_PATCH:
            _check_patch(part)
            self.is_complete = False
        elif part.type == _JINJA:
            self._read_template(part)
        elif part.type not in _UNCHECKED and part.payload and not self._has_handlers:
            raise _make_unhandled_fault(part)

    def _read_config(self, part: _Part) -> None:
        config = parse_yaml(part.payload, f"the cloud-config in {part.name}", part.first_line)
        if config is None:
            return  # cloud-init only warns about an empty part, and nothing is lost
        if not isinstance(config, dict):
            raise make_user_data_fault(
                f"the cloud-config in {part.name} is {quote_value(config)}, not a mapping, so cloud-init ignores it",
                "write keys and values below #cloud-config",
                part.first_line,
            )
        _check_merging(part, config)
        self.configs.append(config)

    def _read_template(self, part: _Part) -> None:
        text = part.payload if isinstance(part.payload, str) else part.payload.decode("utf-8", "replace")
        first, _, rest = text.partition("\n")
        header = re.match(r"##\s*template:(.*)", first, re.IGNORECASE)
        if header is None or header[1].lower().strip() != "jinja":
            raise make_user_data_fault(
                f"the first line of {part.name} is {quote_value(first)}, so cloud-init ignores the template below it",
                "write only `## template: jinja` on the first line",
                part.first_line,
            )
        body = _parse_template(rest, part.name, part.first_line)
        if body is None:
            self.is_complete = False
            return
        if not body.strip():
            return  # nothing is lost
        type = _detect_type(body, "")
        if type not in (_CONFIG, _JSON_PATCH, _SCRIPT, _BOOTHOOK):
            raise make_user_data_fault(
                f"the template in {part.name} begins with {quote_value(_first_line(body))}, which cloud-init ignores",
                "begin the second line with #cloud-config, #! or #cloud-boothook",
                part.first_line and part.first_line + 1,
            )
        if type not in (_CONFIG, _JSON_PATCH):
            return
        if body == rest:  # without expressions, the machine reads exactly this text
            self._read_config(part._replace(payload=body, first_line=part.first_line and part.first_line + 1))
        else:
            self.is_complete = False


def _make_unhandled_fault(part: _Part) -> Malformed:
    if part.type in ("text/plain", _NOT_MULTIPART):
        start = quote_value(_first_line(part.payload))
        subject = "the rendered user data" if part.type == _NOT_MULTIPART else f"{part.name} of the rendered user data"
        return make_user_data_fault(
            f"{subject} begins with {start}, which cloud-init ignores", _HEADER_HINT, part.first_line
        )
    return make_user_data_fault(
        f"{part.name} of the rendered user data has the type {quote_value(part.type)}, which cloud-init ignores",
        f"use a type that cloud-init reads, such as {_CONFIG} or {_SCRIPT}",
        part.first_line,
    )


def _first_line(payload: str | bytes) -> str:
    text = payload if isinstance(payload, str) else payload.decode("utf-8", "replace")
    return text.partition("\n")[0]


# cloud-init parses YAML with PyYAML's Python parser, but libyaml takes only a tenth of the time. In a test with random
# texts, the two parsers differed only for tabs, directives, unusual characters and adjacent indicators.
_NEEDS_PYTHON_PARSER: Final = re.compile(
    r"^%|[^\n -~\u00a1-\u1fff\u2030-\ud7ff]|[|>][-+0-9]*#|[:!][,\[\]{}]", re.MULTILINE
)
_INDICATORS: Final = re.compile(r"^[ \-?:]*", re.MULTILINE)
# the maximum depth of nested lists and mappings; PyYAML exceeds the recursion limit of Python at about 300
_MAX_DEPTH: Final = 100


def parse_yaml(payload: str | bytes, document_name: str, first_line: int = 1) -> Any:
    """Parse a YAML document as cloud-init does.

    Raises `Malformed` if cloud-init could not read the document. ``document_name`` is the name of the document in error
    messages. ``first_line`` is the number of the line in the user data where the document starts, or 0 if the number is
    unknown.
    """
    text = ""
    try:
        text = payload if isinstance(payload, str) else payload.decode()
        if exceeds_max_depth(text):
            raise make_user_data_fault(f"{document_name} is nested too deeply", "reduce the nesting", first_line)
        has_question_mark = "?" in text and ("[" in text or "{" in text or "? " in text or "?\n" in text)
        needs_python_parser = has_question_mark or _NEEDS_PYTHON_PARSER.search(text)
        loader: Any = yaml.SafeLoader(text) if needs_python_parser else yaml.CSafeLoader(text)
        try:
            return loader.get_single_data()
        finally:
            loader.dispose()
    except (yaml.YAMLError, ValueError, TypeError, RecursionError) as error:
        if isinstance(error, Malformed):
            raise
        message, line = describe_yaml_error(error, text)
        place, fault_line = document_name, 0
        if first_line and line:
            fault_line = first_line + line - 1
            place = f"line {fault_line} of {document_name}"
        raise make_user_data_fault(
            f"{place} is not YAML that cloud-init can read: {message}",
            "correct the template, and check its indentation and brackets",
            fault_line,
        ) from None


def describe_yaml_error(error: Exception, text: str) -> tuple[str, int]:
    """Return the message of an error in a YAML text, and the number of its line.

    The first line is 1. The number is 0 if the line is unknown.
    """
    if not isinstance(error, yaml.MarkedYAMLError):
        return str(getattr(error, "reason", None) or error).partition("\n")[0], 0
    mark, start_mark = error.problem_mark, error.context_mark
    # The parser reports an unclosed bracket or quote at the end of the text, but the author must fix the beginning.
    if start_mark is not None and any(word in (error.context or "") for word in ("flow", "quoted")):
        mark = start_mark
    line = find_line_number(text, mark) if mark is not None else 0
    return (error.problem or error.context or "").replace("\t", "\\t"), line


def find_line_number(text: str, mark: Any) -> int:
    """Return the number of the line with a mark of PyYAML, which also ends lines at CR, U+0085, U+2028 and U+2029."""
    return text.count("\n", 0, mark.index) + 1


def exceeds_max_depth(text: str) -> bool:
    """Return whether lists and mappings are nested so deeply that libyaml's recursion could overflow the stack."""
    indicators = max(len(match[0]) for match in _INDICATORS.finditer(text))  # the maximum for each line
    if text.count("[") + text.count("{") + 2 * indicators < _MAX_DEPTH:
        return False
    depth = 0
    for event in yaml.parse(text, Loader=yaml.CSafeLoader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > _MAX_DEPTH:
            return True
    return False


# Merging. Sources: cloudinit/mergers/__init__.py; cloud-init, "Merging user data sections".
_MERGER: Final = re.compile(r"[a-z_][a-z0-9_]*\(.*?\)")
_MERGERS: Final = frozenset({"dict", "list", "str"})


def _check_merging(part: _Part, config: Mapping[Any, Any]) -> None:
    merge_how = config.get("merge_how")
    if merge_how is None:
        merge_how = config.get("merge_type")
    header = part.headers.get("merge-type") or part.headers.get("x-merge-type") or ""
    for setting in (merge_how, header):
        if setting is None:
            continue
        names = _parse_merger_names(setting)
        if names is None:
            problem = f"the merge type in {part.name} is {quote_value(setting)}, which cloud-init cannot read"
        elif unknown := [name for name in names if name not in _MERGERS]:
            problem = (
                f"the merge type in {part.name} contains {quote_value(unknown[0])}, which is not dict, list or str"
            )
        else:
            continue
        raise make_user_data_fault(
            f"{problem}, so cloud-init ignores the part",
            "write `merge_how: dict(replace)+list(append)+str()`, or a list of entries with `name` and `settings`",
            part.first_line,
        )


def _parse_merger_names(setting: object) -> list[str] | None:
    """Return the names of the mergers without their prefix, or None if cloud-init cannot read them."""
    names: list[str] = []
    if isinstance(setting, str):
        for word in setting.split("+"):
            merger = word.lower().strip().replace("-", "_")
            if merger and not _MERGER.fullmatch(merger):
                return None
            names.append(merger.partition("(")[0])
    elif isinstance(setting, Iterable):
        for entry in setting:
            name = None
            if isinstance(entry, dict) and "settings" in entry:
                name = entry.get("name")
                name = name.replace("-", "_").strip() if isinstance(name, str) else None
            elif isinstance(entry, list | str) and entry:
                name = entry[0]
            if not isinstance(name, str):
                return None
            names.append(name)
    else:
        return None
    return [name.removeprefix("m_") for name in names if name]


# JSON patches (RFC 6902): the key that each operation requires, in addition to `path`.
_REQUIRED_KEYS: Final = {
    "add": "value",
    "replace": "value",
    "test": "value",
    "move": "from",
    "copy": "from",
    "remove": "op",
}


def _check_patch(part: _Part) -> None:
    text = part.payload if isinstance(part.payload, str) else part.payload.decode("utf-8", "replace")
    body = text.lstrip().removeprefix("#cloud-config-jsonp")
    try:
        patch = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise make_user_data_fault(
            f"the JSON patch in {part.name} is not JSON, so cloud-init ignores it: {error}",
            "write a list of operations (RFC 6902) below the line `#cloud-config-jsonp`",
            part.first_line,
        ) from None
    for operation in patch if isinstance(patch, list) else [patch]:
        if not _is_patch_operation(operation):
            raise make_user_data_fault(
                f"the JSON patch in {part.name} contains an element that is not an operation, so cloud-init ignores it",
                'write operations such as {"op": "add", "path": "/hostname", "value": "web01"}',
                part.first_line,
            )


def _is_patch_operation(operation: Any) -> bool:
    if not isinstance(operation, dict) or not isinstance(operation.get("path"), str):
        return False
    required_key = _REQUIRED_KEYS.get(str(operation.get("op")))
    return required_key in operation and re.fullmatch(r"|/.*", operation["path"], re.DOTALL) is not None


# Archives. Source: cloudinit/user_data.py, `_explode_archive`.
# The fields of an entry. All other fields are headers of the part.
_ARCHIVE_FIELDS: Final = frozenset(
    {"content", "filename", "type", "launch-index", "content-disposition", "number-attachments", "content-type"}
)


def _split_archive(part: _Part) -> Iterator[_Part]:
    entries = parse_yaml(part.payload, f"the archive in {part.name}", part.first_line)
    if entries is not None and not isinstance(entries, list):
        raise make_user_data_fault(
            f"the archive in {part.name} is {quote_value(entries)}, not a list, so cloud-init ignores it",
            "write a list of entries below #cloud-config-archive",
            part.first_line,
        )
    for number, entry in enumerate(entries or (), 1):
        name = f"entry {number} of the archive in {part.name}"
        fields: Any = {"content": entry} if isinstance(entry, str) else entry
        if not isinstance(fields, dict):
            raise make_user_data_fault(
                f"{name} is {quote_value(entry)}, which cloud-init ignores",
                "write the entry as text or as a mapping",
                part.first_line,
            )
        content, type = fields.get("content", ""), fields.get("type")
        headers = {str(key): value for key, value in fields.items() if str(key).lower() not in _ARCHIVE_FIELDS}
        is_readable = (
            isinstance(content, str | bytes)
            and all(isinstance(key, str) for key in fields)
            and all(value is None or isinstance(value, str) for value in headers.values())
            and (not type or (isinstance(type, str) and "/" in type))
        )
        if not is_readable:
            raise make_user_data_fault(
                f"cloud-init stops at {name}: the entry's content or headers are not text, or its type "
                "contains no slash",
                "set `content` to the part's text, and `type` to a type such as text/cloud-config",
                part.first_line,
            )
        if not type:
            type = _detect_type(content, _CONFIG if isinstance(content, str) else "application/octet-stream")
        yield _Part(name, type.lower(), content, 0, {str(key).lower(): str(value) for key, value in headers.items()})


# Jinja templates. Source: cloudinit/templater.py.


@cache
def _build_jinja_environment() -> Environment:
    """Return a Jinja2 environment that only parses templates.

    The optimizer is off, because computing a constant expression can take arbitrarily long.
    """
    from jinja2 import Environment, pass_context

    return Environment(
        trim_blocks=True,
        extensions=["jinja2.ext.do"],
        optimized=False,
        finalize=pass_context(lambda _, value: value),
        autoescape=False,  # noqa: S701 - gitboot never renders these templates
    )


def _parse_template(source: str, name: str, first_line: int) -> str | None:
    """Return the text before the first expression in a Jinja part, or None if the part begins with an expression.

    ``name`` is the name of the part in error messages. ``first_line`` is the number of the line in the user data where
    the part starts, or 0 if the number is unknown.
    """
    # imported here, because little user data contains templates
    from jinja2 import nodes
    from jinja2.exceptions import TemplateError, TemplateSyntaxError

    environment = _build_jinja_environment()
    try:
        tree = environment.parse(source)
        environment.compile(source, raw=True)  # this raises an error for an unknown filter or test
    except (TemplateError, RecursionError, ValueError) as error:
        line = error.lineno if isinstance(error, TemplateSyntaxError) else 1
        raise make_user_data_fault(
            f"cloud-init cannot read the Jinja template in {name}, so it ignores the template: {error}",
            "correct the Jinja template, and put it between `{% raw %}` and `{% endraw %}`",
            first_line and first_line + line,
        ) from None
    kinds: Any = (nodes.Include, nodes.Import, nodes.FromImport, nodes.Extends)
    if (other := tree.find(kinds)) is not None:
        raise make_user_data_fault(
            f"the Jinja template in {name} uses another template, but cloud-init does not support this",
            "copy the text of the other template into this template",
            first_line and first_line + other.lineno,
        )
    start = ""
    for statement in tree.body:
        if not isinstance(statement, nodes.Output):
            return start if start.strip() else None
        for expression in statement.nodes:
            if not isinstance(expression, nodes.TemplateData):
                return start if start.strip() else None
            start += expression.data
    return start if "{" in source else source
