"""Secret scan: find secrets in files and documents."""

from __future__ import annotations

import re
from base64 import b64decode
from binascii import Error, a2b_base64
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import cache, lru_cache
from hashlib import sha256
from itertools import accumulate, groupby
from operator import itemgetter
from typing import Final, NamedTuple

from gitboot.problems import Severity
from gitboot.resolve.betterleaks_patterns import TOKENS
from gitboot.resolve.server_decision import Boot


class SecretSpan(NamedTuple):
    """The offset in a text where the name of a secret starts, and the range [start, end) of the secret itself."""

    at: int
    start: int
    end: int


Finder = Callable[[str], Iterable[SecretSpan]]


class LeakRule(NamedTuple):
    """A rule that finds one kind of secret."""

    kind: str
    severity: Severity
    words: tuple[str, ...]  # lower-case words; each text with such a secret contains at least one of them
    find: Finder
    in_line: bool = False  # whether the rule can scan each line separately


# Harmless values in fields that may contain secrets

_HARMLESS: Final = re.compile(
    r"""
    [!*.?_~-]*+ | [xX]{3,}+ | \$                         # locked, hidden, left out
    | [!*]{0,2}\$(?:y|gy|7|2[abxy]|5|6)\$\S*+           # crypt(5): a hash is made to be seen
    | [*]LK[*] | NP | R | RANDOM
    | .*?(?:\{\{|\{%|\$[{(]).*+                         # something is filled in
    | \$\w++ | %\w++% | @\w++@ | <[^>]*+>
    | (?i:change[_-]?me|placeholder|redacted|hidden|none|null|true|false|yes|no|todo|your[_-].*+)
    | /(?:dev|etc|home|mnt|opt|proc|root|run|srv|sys|tmp|usr|var)/\S*+
    """,
    re.VERBOSE | re.DOTALL,
)
# Example tokens from the documentation of AWS, kubeadm and JWT.
_EXAMPLES: Final = ("EXAMPLE", "abcdef.0123456789abcdef", "eyJzdWIiOiIxMjM0NTY3ODkwIi")


def _is_harmless(value: str) -> bool:
    return _HARMLESS.fullmatch(value) is not None or any(example in value for example in _EXAMPLES)


def _looks_generated(value: str) -> bool:
    """Return whether a value looks like a random token rather than a name or a word."""
    return len(value) >= 8 and any(each.isdigit() for each in value) and any(each.isalpha() for each in value)


# Kinds of rules

_compiled: Final = cache(re.compile)  # compiled on first use, because most commits need only a few rules
_BLANKS: Final = r"[^\S\n]*+"  # white space except line ends
_VALUE: Final = r"""(?:"(?P<double>[^"\n]*+)"|'(?P<single>[^'\n]*+)'|(?P<plain>[^\s'"#,{}\[\];]++))"""


def _make_value_finder(
    pattern: str, *groups: str, flags: re.RegexFlag = re.MULTILINE, accepts: Callable[[str], bool] = bool
) -> Finder:
    """Return a function that finds the values that a pattern captures, except harmless values."""

    def find(text: str) -> Iterator[SecretSpan]:
        for found in _compiled(pattern, flags).finditer(text):
            group = next((each for each in groups if found[each] is not None), 0)
            if not _is_harmless(found[group]) and accepts(found[group]):
                yield SecretSpan(found.start(), found.start(group), found.end(group))

    return find


_IN_VALUE: Final = ("double", "single", "plain")


def _make_block_finder(start: str, end: str) -> Finder:
    """Return a function that finds blocks of text.

    A block starts at a match of ``start``, and ends before ``end`` or at the end of the text.
    """
    compiled = re.compile(start)

    def find(text: str) -> Iterator[SecretSpan]:
        position = 0
        while found := compiled.search(text, position):
            last = text.find(end, found.end())
            position = last if last >= 0 else len(text)
            yield SecretSpan(found.start(), found.start(), position)

    return find


# Rules that need more than a pattern


_LIST_LINES: Final = 13
_PASSWORD_LIST: Final = re.compile(rf"{_BLANKS}chpasswd:")
_NAME_AND_PASSWORD: Final = re.compile(rf"{_BLANKS}(?:-{_BLANKS})?[a-z_][\w-]*+:(?P<v>\S++)")


def _find_password_lists(text: str) -> Iterator[SecretSpan]:
    """Yield each name:password pair below the cloud-init key ``chpasswd:``.

    The pairs are reported under the name ``chpasswd:``.
    """
    if "chpasswd:" not in text:
        return
    offset = list_start = lines_left = 0
    for line in text.split("\n"):
        found = _NAME_AND_PASSWORD.match(line) if lines_left else None
        if found is not None and not _is_harmless(found["v"]):
            yield SecretSpan(list_start, offset + found.start("v"), offset + found.end("v"))
        if _PASSWORD_LIST.match(line):
            list_start, lines_left = offset, _LIST_LINES
        elif lines_left and line.strip():
            lines_left -= 1
        offset += len(line) + 1


_KICKSTART: Final = re.compile(rf"^{_BLANKS}(?:rootpw|user)[^\S\n].*", re.MULTILINE)


def _find_kickstart_passwords(text: str) -> Iterator[SecretSpan]:
    for found in _KICKSTART.finditer(text):
        command, *options = found[0].split()
        if command == "rootpw":
            is_plain = options and not any(option.startswith(("--iscrypted", "--lock")) for option in options)
            is_plain = is_plain and not _is_harmless(options[-1])
        else:
            passwords = [option.partition("=")[2] for option in options if option.startswith("--password=")]
            is_plain = "--iscrypted" not in options and not all(map(_is_harmless, passwords))
        if is_plain:
            yield SecretSpan(found.start(), found.start(), found.end())


_ASSIGNMENT: Final = re.compile(
    rf"^{_BLANKS}(?:-{_BLANKS})?(?:export[^\S\n]++)?['\"]?(?P<name>[A-Z][A-Z0-9_]*+)=(?P<value>{_VALUE})", re.MULTILINE
)
_SECRET_SUFFIX: Final = re.compile(r"(?:PASSWORD|PASSWD|PASSPHRASE|SECRET|TOKEN|API_?KEY|ACCESS_?KEY)$")


def _find_assignments(text: str) -> Iterator[SecretSpan]:
    """Yield each NAME=value assignment in a shell script or environment file if the name suggests a secret."""
    for found in _ASSIGNMENT.finditer(text):
        value = next(found[each] for each in _IN_VALUE if found[each] is not None)
        if _SECRET_SUFFIX.search(found["name"]) and not _is_harmless(value):
            yield SecretSpan(found.start(), found.start("value"), found.end("value"))


_REGISTRY: Final = re.compile(r"\"auth\"\s*+:\s*+\"(?P<v>[A-Za-z0-9+/]{8,}+={0,2})\"")


def _find_registry_passwords(text: str) -> Iterator[SecretSpan]:
    """Yield each base64-encoded user:password pair in a ``.dockerconfigjson`` file."""
    for found in _REGISTRY.finditer(text):
        try:
            is_pair = b":" in b64decode(found["v"], validate=True)
        except Error:
            continue
        if is_pair:
            yield SecretSpan(found.start(), found.start("v"), found.end("v"))


_BEFORE_KEY: Final = rf"(?:^{_BLANKS}(?:-{_BLANKS})?|[{{,]{_BLANKS})['\"]?"
_KEY: Final = r"(?:{names})['\"]?\s*+:(?=\s*+{value})"


def _make_key_finder(*names: str, accepts: Callable[[str], bool] = bool) -> Finder:
    """Return a function that finds the values of the given keys in YAML or JSON, in block or flow style."""
    key = _KEY.format(names="|".join(names), value=_VALUE)
    find_values = _make_value_finder(_BEFORE_KEY + key, *_IN_VALUE, accepts=accepts)

    def find(text: str) -> Iterable[SecretSpan]:
        # Searching for the names first is ten times as fast, because most texts do not contain such names.
        return find_values(text) if _compiled(key).search(text) else ()

    return find


_OPTIONS: Final = r"(?<![\w-])--(?:password|passwd|passphrase|token|secret|secret-key|api-key|auth-key|authkey)"
_MIN_DISTINCT_CHARACTERS: Final = 8  # real tokens have at least this many distinct characters
RULES: Final = (
    LeakRule(
        "a private key",
        Severity.ERROR,
        ("private key",),
        _make_block_finder(r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----", "-----END"),
    ),
    LeakRule(
        "a private key", Severity.ERROR, ("putty-",), _make_block_finder(r"PuTTY-User-Key-File-\d", "Private-MAC")
    ),
    LeakRule(
        "a private key",
        Severity.ERROR,
        ("privatekey", "presharedkey"),
        _make_value_finder(rf"(?:PrivateKey|PresharedKey){_BLANKS}={_BLANKS}(?P<v>[A-Za-z0-9+/]{{43}}=)", "v"),
    ),
    LeakRule("a password", Severity.WARNING, ("passw",), _make_key_finder("plain_text_passwd", "password", "passwd")),
    LeakRule("a password", Severity.WARNING, ("passphrase", "psk"), _make_key_finder("passphrase", "psk", "wpa-psk")),
    LeakRule(
        "a token",
        Severity.WARNING,
        ("token", "secret", "apikey", "api-key", "api_key"),
        _make_key_finder(
            *("token", "agent-token", "auth[_-]?token", "access[_-]?token", "client[_-]?secret"),
            *("secret[_-]?key", "api[_-]?key", "apikey"),
            accepts=_looks_generated,
        ),
    ),
    LeakRule("a password", Severity.WARNING, ("chpasswd",), _find_password_lists),
    LeakRule("a password", Severity.WARNING, ("rootpw", "user"), _find_kickstart_passwords, in_line=True),
    LeakRule(
        "a password",
        Severity.WARNING,
        ("-password",),
        _make_value_finder(r"passwd/(?:root|user)-password(?:-again)?\s++password\s++(?P<v>\S++)", "v"),
    ),
    LeakRule(
        "a password",
        Severity.WARNING,
        ("psk",),
        _make_value_finder(rf"^{_BLANKS}(?:wpa-)?psk(?:{_BLANKS}={_BLANKS}|[^\S\n]++){_VALUE}", *_IN_VALUE),
    ),
    LeakRule(
        "a password",
        Severity.WARNING,
        ("--pass", "--token", "--secret", "--api-key", "--auth"),
        _make_value_finder(rf"{_OPTIONS}(?:=|[^\S\n]++)(?!-){_VALUE}", *_IN_VALUE),
    ),
    LeakRule(
        "a password",
        Severity.WARNING,
        ("curl",),
        _make_value_finder(  # the first login in each line with a curl command
            r"^(?=[^\n]*curl)[^\n]*?[^\S\n](?:-u|--user)(?:=|[^\S\n]{0,4})"
            r"['\"]?[\w.@-]{1,64}+:(?P<v>[^\s'\"]{1,256}+)",
            "v",
            accepts=lambda value: not value.isdigit(),
        ),
        in_line=True,
    ),
    LeakRule(
        "a password",
        Severity.WARNING,
        ("://",),
        _make_value_finder(r"://[^\s/:@'\"]{1,64}+:(?P<v>[^\s/@'\"]{1,256}+)@", "v"),
        in_line=True,
    ),
    LeakRule(
        "a password",
        Severity.WARNING,
        ("authorization",),
        _make_value_finder(
            r"(?i:authorization)['\"]?\s{0,4}+[:=]\s{0,4}+['\"]?(?i:basic|bearer|token)\s{1,4}+(?P<v>[\w.~+/=-]{8,}+)",
            "v",
        ),
    ),
    LeakRule(
        "a weakly hashed password",
        Severity.WARNING,
        ("$apr1$", "$1$", "{sha}", "{ssha}"),
        _make_value_finder(
            rf"^{_BLANKS}(?:-{_BLANKS})?[\w.@-]{{1,64}}+:(?P<v>(?:\$apr1\$|\$1\$|\{{SHA\}}|\{{SSHA\}})\S++)", "v"
        ),
    ),
    LeakRule(
        "a password or token", Severity.WARNING, ("pass", "secret", "token", "key"), _find_assignments, in_line=True
    ),
    LeakRule("a registry's password", Severity.ERROR, ('"auth"',), _find_registry_passwords),
    LeakRule(
        "a kubeadm token",
        Severity.WARNING,
        ("kubeadm", "bootstrap", "token"),
        _make_value_finder(r"(?<![\w.-])(?P<v>[a-z0-9]{6}\.[a-z0-9]{16})(?![\w.-])", "v", accepts=_looks_generated),
        in_line=True,
    ),
    LeakRule(
        "a k3s token", Severity.ERROR, ("k10",), _make_value_finder(r"\bK10[0-9a-f]{48,}+::\S++", flags=re.NOFLAG)
    ),
    LeakRule(
        "an AWS secret key",
        Severity.ERROR,
        ("secret",),
        _make_value_finder(
            rf"(?i:aws.?secret.?access.?key)['\"]?{_BLANKS}[:=]{_BLANKS}['\"]?"
            r"(?P<v>[A-Za-z0-9/+]{40})(?![A-Za-z0-9/+])",
            "v",
        ),
        in_line=True,
    ),
    LeakRule(
        "an Azure storage key",
        Severity.ERROR,
        ("accountkey",),
        _make_value_finder(r"AccountKey=(?P<v>[A-Za-z0-9+/]{86}==)", "v"),
    ),
    LeakRule(
        "a JSON Web Token",
        Severity.ERROR,
        ("eyj",),
        _make_value_finder(r"eyJ(?<![\w-]eyJ)[\w-]{10,}+\.eyJ[\w-]{10,}+\.[\w-]{20,}+", flags=re.NOFLAG),
        in_line=True,
    ),
    *(
        LeakRule(
            each.kind,
            Severity.ERROR,
            each.words,
            _make_value_finder(
                each.pattern, flags=re.NOFLAG, accepts=lambda value: len(set(value)) >= _MIN_DISTINCT_CHARACTERS
            ),
            in_line=True,
        )
        for each in TOKENS
    ),
)


class Leak(NamedTuple):
    """The kind and the location of a possible secret, but not the secret itself."""

    kind: str  # such as "a private key" or "a password"
    location: str  # such as "user data, line 7" or "kernel argument rd.luks.key"
    severity: Severity
    is_argument: bool = False


class Secret(NamedTuple):
    """A possible secret in a text. Line numbers start at 1."""

    kind: str
    line: int  # the line that contains the name
    first: int  # the first and the last line that must not be shown
    last: int
    severity: Severity
    digest: str  # of the secret without white space; identifies the same secret elsewhere
    allowance: str | None = None  # why the author permits the secret; None: not permitted


# The rules must treat these values as ordinary digests and addresses, and not as placeholders.
_ANY_DIGEST: Final = sha256().hexdigest()
_ANY_MAC: Final = "00-00-5e-00-53-1a"


def find_leaks(boot: Boot, known_digests: frozenset[str] = frozenset(), own: Collection[str] = ()) -> Iterator[Leak]:
    """Yield possible secrets in a boot's kernel arguments and published files. Yield one secret of each kind per file.

    ``known_digests`` identify the secrets that are already reported at their source. ``own`` contains the server's MAC
    addresses and the digests that gitboot computed for the server. The texts of many servers differ only in these
    values.
    """
    replacements = [(each, _ANY_DIGEST if len(each) == len(_ANY_DIGEST) else _ANY_MAC) for each in own]
    for argument in boot.kernel_arguments:
        if is_secret_argument(_replace_own_values(argument, replacements)) and is_secret_argument(argument):
            name = argument.partition("=")[0]
            yield Leak("a password or token", f"kernel argument {name}", Severity.WARNING, is_argument=True)
    texts = dict(boot.user_data.files) if boot.user_data is not None else {}
    for name, text in {**texts, **boot.entries}.items():
        if not find_secrets(_replace_own_values(text, replacements)):
            continue
        reported: set[str] = set()
        for secret in find_secrets(text):
            if secret.allowance is None and secret.digest not in known_digests and secret.kind not in reported:
                reported.add(secret.kind)
                yield Leak(secret.kind, f"{name}, line {secret.line}", secret.severity)


def _replace_own_values(text: str, replacements: Iterable[tuple[str, str]]) -> str:
    """Replace a server's own values in a text.

    The lines then equal those of other servers, so that cached results apply.
    """
    for value, replacement in replacements:
        text = text.replace(value, replacement)
    return text


_SECRET_NAME: Final = re.compile(r"(?:^|[._-])(?:password|passwd|secret|token|apikey)$", re.IGNORECASE)


@lru_cache(maxsize=4096)  # servers share most texts
def is_secret_argument(argument: str) -> bool:
    name, _, value = argument.partition("=")
    return bool(find_secrets(f"password: '{value}'" if _SECRET_NAME.search(name) else argument))


@lru_cache(maxsize=1024)
def find_secrets_in_file(content: bytes) -> tuple[Secret, ...]:
    """Return the possible secrets in a file from the repository. All servers share the cached result."""
    return tuple(find_secrets(content.decode(errors="replace")))


_SPACE: Final = re.compile(r"\s|\\n")
_Match = tuple[LeakRule, SecretSpan, str]


def find_secrets(text: str) -> list[Secret]:
    """Return the possible secrets in a text, sorted by line."""
    lines = _scan_lines(text)
    found = [*_apply_rules(text, lines), *_find_encoded_secrets(lines)]
    if not found:
        return []
    text_lines = text.split("\n")
    ends = list(accumulate(len(line) + 1 for line in text_lines))
    find_allowance = cache(parse_allowance)  # a long line may contain many secrets
    secrets: dict[Secret, None] = {}
    for rule, span, value in sorted(found, key=itemgetter(1)):
        line, first, last = (min(bisect_right(ends, offset), len(ends) - 1) + 1 for offset in span)
        digest = sha256(_SPACE.sub("", value).strip("'\"").encode(errors="replace")).hexdigest()
        reasons = (find_allowance(text_lines[number - 1]) for number in sorted({line, first}))
        allowed = next((why for why in reasons if why is not None), None)
        secrets[Secret(rule.kind, line, first, last, rule.severity, digest, allowed)] = None
    return sorted(secrets, key=lambda secret: (secret.first, secret.line, secret.kind))


class _LeakLine(NamedTuple):
    length: int
    rules: tuple[int, ...]  # numbers of the multi-line rules that may match here
    matches: tuple[tuple[int, SecretSpan, str], ...]  # matches of the single-line rules
    pieces: tuple[tuple[int, int, str], ...]  # base64 strings in the line: (start, end, data)
    base64: str | None  # the base64 data if it fills the whole line


_MAX_CACHED_LENGTH: Final = 4096  # characters; longer lines would fill the cache


def _scan_lines(text: str) -> list[_LeakLine]:
    return [
        _scan_line(line) if len(line) <= _MAX_CACHED_LENGTH else _scan_line.__wrapped__(line)
        for line in text.split("\n")
    ]


# Rules are searched for in parts of a line, because lines that differ only in a name or a digest share most parts.
_PART: Final = 64  # the length of each part, in characters
_OVERLAP: Final = max(len(word) for rule in RULES for word in rule.words) - 1  # so that no word is cut
_BASE64: Final = re.compile(r"(?<![A-Za-z0-9+/=])[A-Za-z0-9+/]{24,}+={0,2}+(?![A-Za-z0-9+/=])")
_BASE64_LINE: Final = re.compile(r"[^\S\n]*+(?P<v>[A-Za-z0-9+/]{40,}+|[A-Za-z0-9+/]{2,}+={0,2}+)[^\S\n]*+")


@lru_cache(maxsize=8192)  # servers share most lines
def _scan_line(line: str) -> _LeakLine:
    lowered = line.lower()
    parts = (lowered[at : at + _PART + _OVERLAP] for at in range(0, len(lowered), _PART))
    numbers = sorted({number for part in parts for number in _find_rules(part)})
    found = (
        (number, span, line[span.start : span.end])
        for number in numbers
        if RULES[number].in_line
        for span in RULES[number].find(line)
    )
    base64 = _BASE64_LINE.fullmatch(line)
    return _LeakLine(
        length=len(line),
        rules=tuple(number for number in numbers if not RULES[number].in_line),
        matches=tuple(found),
        pieces=tuple([(found.start(), found.end(), found[0]) for found in _BASE64.finditer(line)]),
        base64=base64["v"] if base64 is not None else None,
    )


_RULES_BY_WORD: Final[defaultdict[str, list[int]]] = defaultdict(list)  # word -> numbers of rules
for _number, _rule in enumerate(RULES):
    for _word in _rule.words:
        _RULES_BY_WORD[_word].append(_number)
_WORDS_BY_FIRST: Final = {first: list(words) for first, words in groupby(sorted(_RULES_BY_WORD), itemgetter(0))}
_ANY_WORD: Final = re.compile(
    "|".join(
        rf"{re.escape(first)}(?:{'|'.join(re.escape(word[1:]) for word in words)})"
        for first, words in _WORDS_BY_FIRST.items()
    )
)


@lru_cache(maxsize=16384)
def _find_rules(part: str) -> frozenset[int]:
    """Return the numbers of the rules that have a word which occurs in ``part``, a lower-case part of a line."""
    numbers: set[int] = set()
    found = _ANY_WORD.search(part)
    while found is not None:
        at = found.start()
        numbers.update(*(_RULES_BY_WORD[word] for word in _WORDS_BY_FIRST[part[at]] if part.startswith(word, at)))
        found = _ANY_WORD.search(part, at + 1)
    return frozenset(numbers)


def _apply_rules(text: str, lines: list[_LeakLine]) -> list[_Match]:
    found, numbers, offset = [], set[int](), 0
    for line in lines:
        if line.matches:
            found += [
                (number, SecretSpan(*(at + offset for at in span)), value) for number, span, value in line.matches
            ]
        if line.rules:
            numbers.update(line.rules)
        offset += line.length + 1
    for number in numbers:
        found += [(number, span, text[span.start : span.end]) for span in RULES[number].find(text)]
    return [(RULES[number], span, value) for number, span, value in sorted(found, key=itemgetter(0))]


# Secrets that their author permits

_ALLOWED: Final = re.compile(r"gitboot:allow-secret[^\S\n]++(?P<why>[^\n]++)")
_COMMENT_END: Final = re.compile(r"\s*(?:#\}|\*/|-->)?[\s'\",]*$")


_LONGEST_REASON: Final = 200


def parse_allowance(line: str) -> str | None:
    """Return the REASON from ``gitboot:allow-secret REASON`` in a line, or None if the line does not permit secrets."""
    found = _ALLOWED.search(line)
    return (_COMMENT_END.sub("", found["why"][:_LONGEST_REASON]) or None) if found is not None else None


# Encoded secrets


def _find_encoded_secrets(lines: list[_LeakLine]) -> Iterator[_Match]:
    """Yield the possible secrets in base64 data. The data may be within one line or span consecutive lines."""
    offset = 0
    for line in lines:
        for start, end, data in line.pieces:
            for rule, value in (
                _find_short_base64_secrets(data) if len(data) <= _MAX_CACHED_LENGTH else _find_base64_secrets(data)
            ):
                yield rule, SecretSpan(start + offset, start + offset, end + offset), value
        offset += line.length + 1
    for start, end, data in _find_base64_blocks(lines):
        for rule, value in _find_base64_secrets(data):
            yield rule, SecretSpan(start, start, end), value


@lru_cache(maxsize=1024)  # servers share most pieces
def _find_short_base64_secrets(data: str) -> tuple[tuple[LeakRule, str], ...]:
    """Return the possible secrets in a short base64 string. The result is cached."""
    return tuple(_find_base64_secrets(data))


def _find_base64_secrets(data: str, max_layers: int = 2) -> Iterator[tuple[LeakRule, str]]:
    """Yield the possible secrets in data that was base64-encoded up to ``max_layers`` times.

    If the data contains a secret, callers must hide all of the data.
    """
    try:
        decoded = a2b_base64(data + "=" * (-len(data) % 4), strict_mode=True).decode()
    except (Error, UnicodeDecodeError):
        return  # the data is not text
    lines = _scan_lines(decoded)
    for rule, _, value in _apply_rules(decoded, lines):
        yield rule, value
    for line in lines if max_layers > 1 else ():
        for _, _, piece in line.pieces:
            yield from _find_base64_secrets(piece, max_layers - 1)


_NO_LINE: Final = _LeakLine(0, (), (), (), None)
_MIN_BLOCK_WIDTH: Final = 40  # the minimum length of each line in a block except the last line


def _find_base64_blocks(lines: list[_LeakLine]) -> Iterator[tuple[int, int, str]]:
    """Yield the blocks of consecutive base64 lines as (start, end, data)."""
    if not any(line.base64 is not None and len(line.base64) >= _MIN_BLOCK_WIDTH for line in lines):
        return
    block: list[str] = []
    start = end = offset = 0
    for line in (*lines, _NO_LINE):
        data = line.base64
        if data is not None and (block or len(data) >= _MIN_BLOCK_WIDTH):
            start = start if block else offset
            block.append(data)
            end = offset + line.length
        if block and (data is None or len(data) < _MIN_BLOCK_WIDTH):
            if len(block) > 1:
                yield start, end, "".join(block)
            block = []
        offset += line.length + 1
