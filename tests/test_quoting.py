"""Values through models of the three parsers, each written after the source that it names."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gitboot.quoting import (
    BOOT_NIC_BOOTIF,
    BOOT_NIC_MAC,
    MAX_COMMAND_LINE,
    MAX_IPXE_WORDS,
    QuotingError,
    build_command_line,
    check_ipxe_url,
    fill_boot_nic,
    quote_grub_arguments,
    quote_grub_word,
    quote_ipxe_arguments,
    quote_ipxe_word,
    quote_kernel_argument,
    sanitize_grub_text,
    sanitize_ipxe_text,
)
from tests.helpers.cases import for_each

SETTING = "\0what a setting holds"
IPXE_SPACE = " \f\n\r\t\v"  # iPXE core/ctype.c
KERNEL_SPACE = " \t\n\v\f\r\xa0"  # Linux lib/ctype.c


def ipxe_commands(script: str) -> Iterator[list[str]]:
    """Return what iPXE executes if everything succeeds: process_script (image/script.c), system (core/exec.c)."""
    line = ""
    for part in script.split("\n"):
        line = (line + part).removesuffix("\r")
        if line.endswith("\\"):
            line = line[:-1]
            continue
        command, line = line.lstrip(IPXE_SPACE), ""
        if command.startswith(":"):  # a label
            command = re.sub(r"\A\S*", "", command)
        words = [word for word in re.split(f"[{IPXE_SPACE}]", command) if word]
        argv: list[str] = []
        for word in [*words, "#"]:
            if word in ("||", "&&", ";") or word.startswith("#"):  # command_terminator
                if argv:
                    yield argv
                argv = []
                if word.startswith("#"):
                    break
            else:
                argv.append(ipxe_expand(word))


def ipxe_expand(word: str) -> str:
    """expand_settings (core/settings.c): the last ``${`` before the first ``}``, again and again."""
    while match := re.search(r"\$\{(?:(?!\$\{)[^}])*\}", word):
        word = word[: match.start()] + SETTING + word[match.end() :]
    return word


GRUB_TOKEN = re.compile(  # script/yylex.l
    r"""(?P<blank>[ \t]+ | \#[^\n]*)
    | (?P<end>\n | \|\| | && | ;)
    | (?P<word>(?: [^{}|&$;<>\ \t\n'"\\] | '[^']*' | "(?:\\.|[^\\"])*" | \\.
                 | \$(?:\w+|[?\#*@]) | \$\{(?:\w+|[?\#*@])\} )+)""",
    re.VERBOSE | re.DOTALL,
)
GRUB_PIECE = re.compile(r"'(?P<single>[^']*)'|(?P<double>\".*?\"|\$)|(?P<text>\\.|[^'\"$\\]+)", re.DOTALL)


def grub_commands(script: str) -> Iterator[list[str]]:
    """Return what GRUB executes without variables and blocks: both end the test."""
    argv: list[str] = []
    place = 0
    while place < len(script):
        token = GRUB_TOKEN.match(script, place)
        assert token, f"GRUB stops at {script[place:]!r}"
        place = token.end()
        if token["word"]:
            argv.append(grub_unescape("".join(grub_pieces(token["word"]))))
        elif token["end"]:
            if argv:
                yield argv
            argv = []
    assert not argv


def grub_pieces(word: str) -> Iterator[str]:
    for piece in GRUB_PIECE.finditer(word):
        assert piece["double"] is None, f"GRUB expands {word!r}"
        yield piece["text"] or grub_escape(piece["single"])


def grub_escape(word: str) -> str:
    """wildcard_escape (script/execute.c)."""
    return re.sub(r"[*?\\]", r"\\\g<0>", word)


def grub_unescape(word: str) -> str:
    """wildcard_unescape (script/execute.c)."""
    return re.sub(r"\\(.)", r"\1", word, flags=re.DOTALL)


def grub_loader_cmdline(words: list[str]) -> str:
    """grub_create_loader_cmdline (lib/cmdline.c)."""
    escaped = [re.sub(r"['\"\\]", r"\\\g<0>", word) for word in words]
    return " ".join(f'"{word}"' if " " in word else word for word in escaped)


def kernel_parameters(line: str) -> list[tuple[str, str | None]]:
    """parse_args and next_arg (Linux: kernel/params.c, lib/cmdline.c), over bytes."""
    parameters = []
    rest = line.encode().decode("latin-1").lstrip(KERNEL_SPACE)
    while rest:
        quoted = in_quote = rest.startswith('"')
        rest = rest[quoted:]
        equals = end = 0
        while end < len(rest) and (in_quote or rest[end] not in KERNEL_SPACE):
            equals = equals or (end if rest[end] == "=" else 0)
            in_quote ^= rest[end] == '"'
            end += 1
        name, value = (rest[:equals], rest[equals + 1 : end]) if equals else (rest[:end], None)
        if value and value.startswith('"'):
            value = value[1:].removesuffix('"')
        elif quoted and value is not None:
            value = value.removesuffix('"')
        elif quoted:
            name = name.removesuffix('"')
        parameters.append((name, value))
        rest = rest[end + 1 :].lstrip(KERNEL_SPACE)
    return parameters


def parse_argument(argument: str) -> tuple[str, str | None]:
    name, equals, value = argument.partition("=")
    if re.fullmatch('".*"', value):
        value = value[1:-1]
    return name, value if equals else None


def through_ipxe(arguments: list[str]) -> list[tuple[str, str | None]]:
    script = f"#!ipxe\nkernel http://h/vmlinuz {quote_ipxe_arguments(arguments)}\nboot\n"
    kernel, boot = ipxe_commands(script)
    assert kernel[:2] == ["kernel", "http://h/vmlinuz"]
    assert boot == ["boot"]
    return kernel_parameters(" ".join(kernel[2:]))  # concat_args (core/exec.c)


def through_grub(arguments: list[str]) -> list[tuple[str, str | None]]:
    linux, boot = grub_commands(f"linux (http,h)/vmlinuz {quote_grub_arguments(arguments)}\nboot\n")
    assert linux[:2] == ["linux", "(http,h)/vmlinuz"]
    assert boot == ["boot"]
    return kernel_parameters(grub_loader_cmdline(linux[2:]))


def through_nothing(arguments: list[str]) -> list[tuple[str, str | None]]:
    return kernel_parameters(build_command_line(arguments))


LOADERS = {"the kernel": through_nothing, "iPXE": through_ipxe, "GRUB": through_grub}

EVERYWHERE = [
    "quiet", "console=ttyS0,115200n8", "--", "-x", "a=b=c", "a==b", "root=UUID=4c4c", "empty=", 'empty=""',
    "spaces=a b c", "lead= a", "trail=a ", 'written="a b"', 'single="a"', "dyndbg=file drivers/usb/* +p",
    "dollar=$HOME", "dollar=$", "command=$(reboot)", "backtick=`reboot`", "braces={}", "percent=%d", "bang=!",
    "or=a||b", "and=a&&b", "end=a;b", ";reboot", "|", "&", "hash=a#b", "star=/a*b?c[d]", "*", "/etc/*", "(x)",
    "less=<a>", "tilde=~", "caret=^", "long=" + "x" * 1024,
]  # fmt: skip
NOWHERE = [
    "", "=", "=a", "a b", "a b=c", "quiet splash=1 x", '"', 'a"b', '"a"', '"a=b"', 'a="', 'a=b"c', 'a="b"c"',
    'a="b" c', 'a="b c" d="e"', "a\nb", "a=b\n", "a=b\nboot", "a=\tb", "a=b\r", "a=\0", "a=\x1b[2J", "a=\x7f",
    "a=\xa0b", "a=é", "a=à", "a=\u2028", "a=\U0001f600",
]  # fmt: skip
ONLY_SOME = {
    # what it is: (the argument, who refuses it, why)
    "two spaces": ("a=b  c", {"iPXE"}, "merges consecutive spaces into one"),
    "a setting of iPXE's": ("a=${net0/mac}", {"iPXE"}, "expand"),
    "a setting in a setting": ("a=${${x}}", {"iPXE"}, "expand"),
    "|| as a word": ("a=b || reboot", {"iPXE"}, "end a command"),
    "&& as a word": ("a=b && reboot", {"iPXE"}, "end a command"),
    "; as a word": ("a=b ; reboot", {"iPXE"}, "end a command"),
    "|| alone": ("||", {"iPXE"}, "end a command"),
    "; alone": (";", {"iPXE"}, "end a command"),
    "# at a word's beginning": ("a=b #c", {"iPXE"}, "comment"),
    "# first": ("#a", {"iPXE"}, "comment"),
    "a backslash": (r"a=b\c", {"GRUB"}, "backslash"),
    "a backslash and hexadecimal digits": (r"a=\x41", {"GRUB"}, "backslash"),
    "a backslash at the end": ("a=b\\", {"iPXE", "GRUB"}, "backslash"),
    "a single quote": ("a=it's", {"GRUB"}, "quote"),
    "a single quote among spaces": ("a=it's 5 o'clock", {"GRUB"}, "quote"),
}


@for_each("argument", EVERYWHERE)
@for_each("loader", LOADERS)
def test_an_argument_arrives_unchanged(loader: str, argument: str) -> None:
    arguments = ["before", argument, "after=1"]
    assert LOADERS[loader](arguments) == [parse_argument(each) for each in arguments]


@for_each("argument", NOWHERE)
@for_each("loader", LOADERS)
def test_an_argument_that_the_kernel_cannot_read_is_rejected(loader: str, argument: str) -> None:
    with pytest.raises(QuotingError) as caught:
        LOADERS[loader](["before", argument, "after=1"])
    assert caught.value.loader == "the kernel"
    assert ascii(argument) in caught.value.message


@for_each("case", ONLY_SOME)
@for_each("loader", LOADERS)
def test_an_argument_that_one_loader_cannot_carry_is_rejected_for_that_loader(loader: str, case: str) -> None:
    argument, refusing, reason = ONLY_SOME[case]
    if loader not in refusing:
        assert LOADERS[loader]([argument, "after"]) == [parse_argument(argument), ("after", None)]
        return
    with pytest.raises(QuotingError) as caught:
        LOADERS[loader]([argument, "after"])
    assert caught.value.loader == loader
    assert ascii(argument) in caught.value.message
    assert reason in caught.value.message


@for_each(
    ("argument", "ipxe", "grub", "filled"),
    [
        (
            f"BOOTIF={BOOT_NIC_BOOTIF}",
            "BOOTIF=01-${netX/mac:hexhyp}",
            'BOOTIF="$gitboot_bootif"',
            "BOOTIF=01-52-54-00-12-34-56",
        ),
        (f"ksdevice={BOOT_NIC_MAC}", "ksdevice=${netX/mac}", 'ksdevice="$gitboot_mac"', "ksdevice=52:54:00:12:34:56"),
        (
            f"ifname=$boot:{BOOT_NIC_MAC}:{BOOT_NIC_BOOTIF}$",
            "ifname=$boot:${netX/mac}:01-${netX/mac:hexhyp}$",
            """'ifname=$boot:'"$gitboot_mac":"$gitboot_bootif"'$'""",
            "ifname=$boot:52:54:00:12:34:56:01-52-54-00-12-34-56$",
        ),
        (
            f"a=x {BOOT_NIC_MAC} y",
            'a="x ${netX/mac} y"',
            """'a=x '"$gitboot_mac"' y'""",
            'a="x 52:54:00:12:34:56 y"',
        ),
        (BOOT_NIC_MAC, "${netX/mac}", '"$gitboot_mac"', "52:54:00:12:34:56"),
        ("a={{boot_nic.other}}", "a={{boot_nic.other}}", "'a={{boot_nic.other}}'", "a={{boot_nic.other}}"),
    ],
)
def test_finding_p12_each_loader_puts_in_the_mac_address_of_the_nic_that_it_uses(
    argument: str, ipxe: str, grub: str, filled: str
) -> None:
    assert quote_ipxe_arguments([argument, "quiet"]) == f"{ipxe} quiet"
    assert quote_grub_arguments([argument, "quiet"]) == f"{grub} quiet"
    assert fill_boot_nic(build_command_line([argument]), "52-54-00-12-34-56") == filled


@for_each(
    "argument", ["a=${net0/mac}", "a=$" + BOOT_NIC_MAC, "a=#" + BOOT_NIC_MAC + " #b", "a=${" + BOOT_NIC_MAC + "}"]
)
def test_finding_p12_a_placeholder_lets_no_variable_of_ipxe_pass(argument: str) -> None:
    with pytest.raises(QuotingError):
        quote_ipxe_arguments([argument])


def test_finding_p12_the_length_of_a_command_line_counts_the_mac_address() -> None:
    argument = f"BOOTIF={BOOT_NIC_BOOTIF}"
    rest = "a" * (MAX_COMMAND_LINE - len("BOOTIF=01-52-54-00-12-34-56 "))
    assert build_command_line([argument, rest])
    with pytest.raises(QuotingError):
        build_command_line([argument, rest + "a"])


NASTY = st.text(st.sampled_from(" \t\n\r\0'\"\\$`{}()[]<>|&;#!?*~=-+%:/.,axé\xa0\u2028😀"), max_size=12)
ARGUMENTS = st.lists(
    st.one_of(
        NASTY,
        st.text(max_size=12),
        st.builds("name={}".format, NASTY),
        st.builds(lambda *words: "name=" + " ".join(words), *[NASTY] * 3),
        st.sampled_from([*EVERYWHERE, *(argument for argument, _, _ in ONLY_SOME.values())]),
    ),
    max_size=4,
)


@given(arguments=ARGUMENTS)
@example(arguments=["a=b\\", "boot"])
@example(arguments=['a="b', 'c="'])
def test_arguments_arrive_unchanged_or_are_rejected(arguments: list[str]) -> None:
    for through in LOADERS.values():
        try:
            arrived = through(arguments)
        except QuotingError:
            continue
        assert arrived == [parse_argument(argument) for argument in arguments]


@given(text=NASTY | st.text())
def test_a_word_arrives_unchanged_or_is_rejected(text: str) -> None:
    for word, commands in ((quote_ipxe_word, ipxe_commands), (quote_grub_word, grub_commands)):
        try:
            line = f"set a {word(text)} b\n"
        except QuotingError:
            continue
        assert list(commands(line)) == [["set", "a", text, "b"]]


@given(url=st.builds("http://h/{}".format, NASTY) | NASTY | st.text())
@example(url="--replace")
@example(url="http://h/${net0/mac}")
@example(url="http://h/a'b;c&d||e#f?g=[h]")
def test_a_url_arrives_unchanged_or_is_rejected(url: str) -> None:
    try:
        line = f"chain {check_ipxe_url(url)} || goto next\n"
    except QuotingError:
        return
    assert list(ipxe_commands(line)) == [["chain", url], ["goto", "next"]]
    assert re.match("[a-z]", url)


@pytest.mark.parametrize(
    "url",
    [
        "http://h:8080/o/ab12/vmlinuz",
        "https://[fd00::1]/a%20b?c=d&e=f;g#h",
        "tftp://10.0.0.1/~a/b,c$d",
        "https://h/a'(b)*!",
    ],
)
def test_ipxe_carries_a_valid_url(url: str) -> None:
    assert check_ipxe_url(url) == url


@for_each("url", ["/boot.ipxe", "vmlinuz", "-x", "http://h/a b", "http://h/${uuid}", 'http://h/"', "http://h/é"])
def test_a_url_for_ipxe_must_be_absolute_and_encoded(url: str) -> None:
    with pytest.raises(QuotingError, match=r"cannot be quoted for iPXE: .*URL"):
        check_ipxe_url(url)


@given(text=NASTY | st.text() | st.lists(NASTY).map(" ".join))
@example(text="${net0/mac} || reboot")
@example(text="a; b && c # d")
@example(text="-n; ; #x \\")
@example(text="a\nreboot")
@example(text="$'reboot'\\")
def test_text_for_people_is_not_executed(text: str) -> None:
    script = f"#!ipxe\n# {sanitize_ipxe_text(text)}\necho {sanitize_ipxe_text(text)}\nboot\n"
    (echo, *words), boot = ipxe_commands(script)
    assert (echo, boot) == ("echo", ["boot"])
    assert not any(SETTING in word for word in words)
    script = f"# {sanitize_grub_text(text)}\necho {sanitize_grub_text(text)}\nboot\n"
    (_, shown), _ = grub_commands(script)
    for line in (sanitize_ipxe_text(text), shown):
        assert re.fullmatch("[ -~]*", line)
        assert not line.startswith("-")  # an option


@pytest.mark.parametrize(
    "text",
    [
        "Fleet's image: 3975.2.0 (10 %), for web-01 [canary]",
        "a;b c||d $HOME x#y",
        "BIOS 2.19, CHG-3381; see NET-412!",
    ],
)
def test_harmless_text_for_people_stays_unchanged(text: str) -> None:
    assert sanitize_ipxe_text(text) == text
    assert next(grub_commands(f"echo {sanitize_grub_text(text)}\n")) == ["echo", text]


def test_harmful_text_is_shown_as_question_marks() -> None:
    text = "-a  || b; ; #c ${d}\té\\"
    assert sanitize_ipxe_text(text) == "?a ?? b; ? ?c ?{d} ??"
    assert sanitize_grub_text(text) == "'?a || b; ; #c ${d} ??'"


def test_a_plain_grub_word_is_not_quoted() -> None:
    assert quote_grub_word("console=ttyS0,115200") == "console=ttyS0,115200"
    assert quote_grub_word("it's $1") == r"'it'\''s $1'"


def test_the_quoting_of_the_kernel_is_kept() -> None:
    assert (
        quote_kernel_argument('dyndbg="file a +p"') == quote_kernel_argument("dyndbg=file a +p") == 'dyndbg="file a +p"'
    )
    assert quote_kernel_argument('a="b"') == "a=b"


def test_the_longest_command_line_is_accepted_and_no_longer_one() -> None:
    longest = ["a=" + "x" * (MAX_COMMAND_LINE - 2)]
    for through in LOADERS.values():
        assert through(longest) == [parse_argument(longest[0])]
        with pytest.raises(QuotingError, match="1791 bytes"):
            through([longest[0] + "x"])


def test_ipxe_accepts_no_more_words_than_its_stack_holds() -> None:
    assert len(through_ipxe(["a"] * MAX_IPXE_WORDS)) == MAX_IPXE_WORDS
    for arguments in (["a"] * (MAX_IPXE_WORDS + 1), ["a=" + "b " * MAX_IPXE_WORDS + "c"]):
        with pytest.raises(QuotingError, match="129 words"):
            quote_ipxe_arguments(arguments)
        assert through_grub(arguments)


def _grub_lines() -> Iterator[str]:
    for argument in [*EVERYWHERE, *(argument for argument, _, _ in ONLY_SOME.values()), *NOWHERE]:
        yield f"# {sanitize_grub_text(argument)}"
        yield f"menuentry {sanitize_grub_text(argument)} {{ echo {sanitize_grub_text(argument)}; }}"
        for write in (quote_grub_word, lambda text: quote_grub_arguments([text, text])):
            try:
                yield f"linux /vmlinuz {write(argument)}"
            except QuotingError:
                continue


def test_grub_reads_every_line(grub_script_check: Callable[[str], bool]) -> None:
    lines = list(_grub_lines())
    assert len(lines) > 250
    assert grub_script_check("\n".join(lines))
    assert not grub_script_check("linux /vmlinuz a=it's\n")


@pytest.fixture
def grub_script_check(tmp_path: Path) -> Callable[[str], bool]:
    """GRUB's own check of a script; in CI it must be there."""
    if not shutil.which("grub-script-check") and not os.environ.get("CI"):
        pytest.skip("grub-script-check is in Debian's package grub-common")

    def check(script: str) -> bool:
        path = tmp_path / "grub.cfg"
        path.write_text(script)
        return subprocess.run(["grub-script-check", path], capture_output=True, check=False).returncode == 0

    return check
