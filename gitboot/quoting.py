"""How values are written so that iPXE, GRUB and the kernel read back exactly them.

None of the three can carry everything. What one of them cannot is refused; only texts for people, in messages
and comments, are made harmless instead. What each does with a line, in the order in which a value meets them:

- iPXE splits it at whitespace, and knows neither quotes nor escapes. A word that is ``||``, ``&&`` or ``;``
  ends the command, one that begins with ``#`` the line; ``${…}`` is replaced, and the result looked through
  again; a backslash at the end joins the next line (iPXE: core/exec.c, core/settings.c, image/script.c).
- GRUB leaves alone what stands in single quotes (script/yylex.l). But its ``linux`` writes its words anew for
  the kernel: in double quotes where there is a space, and with a backslash before each ``'``, ``"`` and
  ``\\``, which the kernel does not take off again (lib/cmdline.c).
- The kernel splits it at whitespace outside of double quotes, and takes those off a value or a whole
  argument. It has no escapes (Linux: lib/cmdline.c, ``next_arg``).

What the kernel keeps together need not stay so in the initramfs: some split /proc/cmdline at every space.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Final

# COMMAND_LINE_SIZE is 2048 on x86 and arm64, with the NUL, and iPXE under BIOS writes one byte less. 256 are
# kept for what loaders put in front: GRUB "BOOT_IMAGE=(http,HOST)/PATH", iPXE under UEFI the file's name.
MAX_COMMAND_LINE: Final = 2046 - 256

# iPXE keeps two pointers a word on its stack, which under BIOS has 4 KiB (arch/x86/core/stack.S): that of
# Debian 12 boots with 230 words, and hangs with 260.
MAX_IPXE_WORDS: Final = 128

# Placeholders for the MAC address of the NIC from which a machine boots. The boot loader fills in the address, so each
# loader gets an expression of its own in place of a placeholder. Documents have them as values of templates.
BOOT_NIC_MAC: Final = "{{boot_nic.mac}}"  # 52:54:00:12:34:56
BOOT_NIC_BOOTIF: Final = "{{boot_nic.bootif}}"  # 01-52-54-00-12-34-56, as `sysappend 2` of PXELINUX
_BOOT_NIC: Final = re.compile(r"(\{\{boot_nic\.(?:mac|bootif)\}\})")
_BOOT_NIC_IN_ANY_CASE: Final = re.compile(_BOOT_NIC.pattern, re.IGNORECASE)
_BOOT_NIC_IPXE: Final = {BOOT_NIC_MAC: "${netX/mac}", BOOT_NIC_BOOTIF: "01-${netX/mac:hexhyp}"}  # netX: the NIC in use
_BOOT_NIC_GRUB: Final = {BOOT_NIC_MAC: '"$gitboot_mac"', BOOT_NIC_BOOTIF: '"$gitboot_bootif"'}  # set by the script

_CACHE_SIZE: Final = 4096  # arguments, most of which servers have in common

_Faults = tuple[tuple[re.Pattern[str], str], ...]


class Unquotable(ValueError):
    """A value that ``loader`` cannot carry: it would read back another one, or more than one."""

    def __init__(self, loader: str, value: str, reason: str) -> None:
        shown = ascii(value if len(value) <= 60 else f"{value[:57]}...")
        self.loader = loader
        self.message = f"{loader} cannot carry {shown}: {reason}"
        super().__init__(self.message)


@lru_cache(maxsize=_CACHE_SIZE)
def quote_kernel_argument(argument: str) -> str:
    """One argument in the kernel's own quoting: ``name``, ``name=value`` or ``name="a value"``.

    A value may stand in its double quotes already.
    """
    if _PLAIN.fullmatch(argument):
        return argument
    name, equals, value = _split_argument(argument)
    return f'{name}="{value}"' if " " in value else name + equals + value


def build_command_line(arguments: Iterable[str]) -> str:
    """What the kernel sees, of a length that every loader passes on whole.

    GRUB puts the quotes around a whole argument (``"name=a value"``), which the kernel reads as the same.
    """
    line = " ".join(map(quote_kernel_argument, arguments))
    if (length := len(fill_boot_nic(line, "00-00-00-00-00-00"))) > MAX_COMMAND_LINE:
        excess = f"of its {length} bytes only {MAX_COMMAND_LINE} are sure to arrive"
        raise Unquotable("the kernel's command line", line, excess)
    return line


def quote_ipxe_arguments(arguments: Sequence[str]) -> str:
    """A kernel's arguments in an iPXE script: the rest of a ``kernel`` or ``imgargs`` line."""
    line = build_command_line(arguments)
    for argument in arguments:
        _check_ipxe_argument(argument)
    if (words := line.count(" ") + 1) > MAX_IPXE_WORDS:
        raise Unquotable("iPXE", line, f"{words} words may overflow its stack; {MAX_IPXE_WORDS} are safe")
    return _replace_boot_nic(line, _BOOT_NIC_IPXE)


def quote_ipxe_word(text: str) -> str:
    """One word of an iPXE command."""
    if not _PLAIN.fullmatch(text):
        _check("iPXE", text, _IPXE_FAULTS)
    return _replace_boot_nic(text, _BOOT_NIC_IPXE)


@lru_cache(maxsize=_CACHE_SIZE)
def check_ipxe_url(url: str) -> str:
    """An absolute URL in an iPXE script, which is never taken for an option."""
    _check("iPXE", url, _URL_FAULTS)
    return url


def sanitize_ipxe_text(text: str) -> str:
    """Any text as one line for ``echo`` or a comment, with ``?`` for what may do harm."""
    return _IPXE_HARMFUL.sub(lambda match: "?" * len(match[0]), _join_lines(text))


def quote_grub_arguments(arguments: Sequence[str]) -> str:
    """A kernel's arguments in a GRUB script: the rest of a ``linux`` line."""
    build_command_line(arguments)
    return " ".join(map(_quote_grub_argument, arguments))


def quote_grub_word(text: str) -> str:
    """One word of a GRUB command, in quotes where it needs them."""
    if _PLAIN.fullmatch(text):
        return text
    _check("GRUB", text, _GRUB_FAULTS)
    if "{{" not in text:
        return _quote_single(text)
    parts = filter(None, _BOOT_NIC.split(text))
    return "".join(
        _BOOT_NIC_GRUB.get(part) or (part if _PLAIN.fullmatch(part) else _quote_single(part)) for part in parts
    )


def sanitize_grub_text(text: str) -> str:
    """Any text as one quoted word for ``echo``, a title or a comment, with ``?`` for what may do harm."""
    return _quote_single(_GRUB_HARMFUL.sub("?", _join_lines(text)))


def names_boot_nic(text: str) -> bool:
    """Return whether a text has a placeholder for the MAC address of the boot NIC, in any case."""
    return "{{" in text and _BOOT_NIC_IN_ANY_CASE.search(text) is not None


def names_changed_boot_nic(text: str) -> bool:
    """Return whether a template changed the case of a placeholder, so that no boot loader would replace it."""
    return "{{" in text and names_boot_nic(_BOOT_NIC.sub("", text))


def reads_boot_nic(script: str) -> bool:
    """Return whether a GRUB script reads a variable with the MAC address of the boot NIC."""
    return any(variable in script for variable in _BOOT_NIC_GRUB.values())


def fill_boot_nic(text: str, mac: str) -> str:
    """Return a text with a MAC address in place of the placeholders. ``mac`` has hyphens."""
    return _replace_boot_nic(text, {BOOT_NIC_MAC: mac.replace("-", ":"), BOOT_NIC_BOOTIF: f"01-{mac}"})


def _replace_boot_nic(text: str, values: Mapping[str, str]) -> str:
    return _BOOT_NIC.sub(lambda match: values[match[0]], text) if "{{" in text else text


def _compile_faults(*faults: tuple[str, str]) -> _Faults:
    return tuple((re.compile(pattern), reason) for pattern, reason in faults)


# Nothing here means anything to any of the three; most values are of this kind.
_PLAIN: Final = re.compile(r"[A-Za-z0-9_.,:/@%+-][A-Za-z0-9_.,:/@%+=-]*")

_FAULTS: Final = _compile_faults(
    (r"\A\Z", "it is empty"),
    (r"[\x00-\x1f\x7f]", "it holds a control character"),
    # To Linux (lib/ctype.c) 0xA0 is a space, and it is the second byte of an "à" in UTF-8.
    (r"[^\x00-\x7f]", "only ASCII is read alike by firmware, loaders and the kernel"),
)
_KERNEL_NAME_FAULTS: Final = _compile_faults(
    (r"\A\Z", "an argument does not begin with ="),
    (r" ", "there is a space before any =; each argument is an item of its own"),
    (r'"', "double quotes may stand around a value, nowhere else"),
)
_KERNEL_VALUE_FAULTS: Final = _compile_faults((r'"', "it knows no way to write a double quote within a value"))
_IPXE_FAULTS: Final = _FAULTS + _compile_faults(
    (r" ", "a space ends the word"),
    (r"\$\{", "it would replace ${...}, and knows no escape"),
    (r"\A#", "# at the beginning of a word begins a comment"),
    (r"\A(?:\|\||&&|;)\Z", "it ends the command at the words ||, && and ;"),
    (r"\\\Z", "a backslash at the end of a line joins the next one to it"),
)
_IPXE_ARGUMENT_FAULTS: Final = _compile_faults(("  ", "it puts one space between words, however many there were"))
_IPXE_HARMFUL: Final = re.compile(
    r"""[^ -~] | \A- | \$(?=\{) | (?<![^ ])\# | (?<![^ ])(?:\|\||&&|;)(?![^ ]) | \\\Z""", re.VERBOSE
)
_URL_FAULTS: Final = _compile_faults(
    (r"\A(?![a-z][a-z0-9+.-]*:)", "it is not an absolute URL"),
    # RFC 3986, 2: what is reserved, what is unreserved, and the percent sign.
    (r"[^!#$%&'()*+,\-./0-9:;=?@A-Z\[\]_a-z~]", "a URL holds such characters only percent-encoded"),
)
_GRUB_FAULTS: Final = _FAULTS + _compile_faults(
    # Which ones commands/wildcard.c and script/execute.c take off depends on the rest of the word.
    (r"\\", "a backslash may be lost on the way"),
)
_GRUB_LINUX_FAULTS: Final = _compile_faults((r"'", "it would hand the quote to the kernel with a backslash before it"))
_GRUB_HARMFUL: Final = re.compile(r"[^ -~]|\A-|\\")


def _check(loader: str, value: str, faults: _Faults, *, part: str | None = None) -> None:
    for pattern, reason in faults:
        if pattern.search(value if part is None else part):
            raise Unquotable(loader, value, reason)


def _split_argument(argument: str) -> tuple[str, str, str]:
    """An argument's name, its equals sign if it has one, and its value without the quotes around it."""
    _check("the kernel", argument, _FAULTS)
    name, equals, value = argument.partition("=")
    if len(value) > 1 and value[0] == value[-1] == '"':
        value = value[1:-1]
    _check("the kernel", argument, _KERNEL_NAME_FAULTS, part=name)
    _check("the kernel", argument, _KERNEL_VALUE_FAULTS, part=value)
    return name, equals, value


@lru_cache(maxsize=_CACHE_SIZE)
def _check_ipxe_argument(argument: str) -> None:
    if _PLAIN.fullmatch(argument):
        return
    _check("iPXE", argument, _IPXE_ARGUMENT_FAULTS)
    for word in quote_kernel_argument(argument).split(" "):
        _check("iPXE", argument, _IPXE_FAULTS, part=word)


@lru_cache(maxsize=_CACHE_SIZE)
def _quote_grub_argument(argument: str) -> str:
    if _PLAIN.fullmatch(argument):
        return argument
    word = "".join(_split_argument(argument))
    _check("GRUB", word, _GRUB_LINUX_FAULTS)
    return quote_grub_word(word)


def _join_lines(text: str) -> str:
    return " ".join(text.split())


def _quote_single(text: str) -> str:
    return "'" + text.replace("'", r"'\''") + "'"
