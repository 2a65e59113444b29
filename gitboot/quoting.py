r"""Quoting: quote values for iPXE, GRUB and the kernel, so that these programs read exactly the same values.

For each of the three programs, there are values that cannot be quoted. gitboot rejects such values. In messages and
comments, gitboot replaces unsafe characters instead. The three programs process a line in this order:

- iPXE splits the line at whitespace. It has no quotes and no escapes. A word ``||``, ``&&`` or ``;`` ends the command.
  A word that begins with ``#`` ends the line. iPXE replaces ``${…}``, and reads the result again. A backslash at the
  end joins the next line (iPXE: core/exec.c, core/settings.c, image/script.c).
- GRUB keeps text in single quotes as it is (script/yylex.l). But its ``linux`` command quotes the words again for the
  kernel: it adds double quotes around a word with a space, and a backslash before each ``'``, ``"`` and ``\``. The
  kernel does not remove that backslash (lib/cmdline.c).
- The kernel splits the line at whitespace outside of double quotes, and removes double quotes around a value or a whole
  argument. It has no escapes (Linux: lib/cmdline.c, ``next_arg``).

An initramfs may split an argument that the kernel keeps together, because some initramfs programs split
/proc/cmdline at every space.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Final

# COMMAND_LINE_SIZE is 2048 on x86 and arm64, including the NUL, and iPXE on BIOS writes one byte less. 256 bytes are
# reserved for what boot loaders prepend: GRUB adds "BOOT_IMAGE=(http,HOST)/PATH", and iPXE on UEFI adds the name of the
# file.
MAX_COMMAND_LINE: Final = 2046 - 256

# iPXE keeps two pointers for each word on its stack, which has 4 KiB on BIOS (arch/x86/core/stack.S). The iPXE of
# Debian 12 boots with 230 words, and hangs with 260.
MAX_IPXE_WORDS: Final = 128

# Placeholders for the MAC address of the NIC from which a machine boots. The boot loader fills in the address.
# Therefore gitboot replaces a placeholder with a different expression for each loader. Templates have variables with
# these placeholders.
BOOT_NIC_MAC: Final = "{{boot_nic.mac}}"  # 52:54:00:12:34:56
BOOT_NIC_BOOTIF: Final = "{{boot_nic.bootif}}"  # 01-52-54-00-12-34-56, the form of `sysappend 2` in PXELINUX
_BOOT_NIC: Final = re.compile(r"(\{\{boot_nic\.(?:mac|bootif)\}\})")
_BOOT_NIC_IN_ANY_CASE: Final = re.compile(_BOOT_NIC.pattern, re.IGNORECASE)
# netX is the NIC in use
_BOOT_NIC_IPXE: Final = {BOOT_NIC_MAC: "${netX/mac}", BOOT_NIC_BOOTIF: "01-${netX/mac:hexhyp}"}
# a variable that the boot script sets
_BOOT_NIC_GRUB: Final = {BOOT_NIC_MAC: '"$gitboot_mac"', BOOT_NIC_BOOTIF: '"$gitboot_bootif"'}

_CACHE_SIZE: Final = 4096  # number of cached arguments; servers share most of their arguments

_Faults = tuple[tuple[re.Pattern[str], str], ...]


class QuotingError(ValueError):
    """A value that gitboot cannot quote for ``loader``.

    The loader would read a different value, or several values.
    """

    def __init__(self, loader: str, value: str, reason: str) -> None:
        shown = ascii(value if len(value) <= 60 else f"{value[:57]}...")
        self.loader = loader
        self.message = f"{shown} cannot be quoted for {loader}: {reason}"
        super().__init__(self.message)


# These characters have no special meaning for any of the three programs. Most values contain only these characters.
_PLAIN: Final = re.compile(r"[A-Za-z0-9_.,:/@%+-][A-Za-z0-9_.,:/@%+=-]*")


@lru_cache(maxsize=_CACHE_SIZE)
def quote_kernel_argument(argument: str) -> str:
    """Quote an argument so that the kernel reads it correctly: ``name``, ``name=value`` or ``name="a value"``.

    The value may already be in double quotes.
    """
    if _PLAIN.fullmatch(argument):
        return argument
    name, equals, value = _split_argument(argument)
    return f'{name}="{value}"' if " " in value else name + equals + value


def build_command_line(arguments: Iterable[str]) -> str:
    """Return the command line that the kernel receives.

    Raises `QuotingError` if a boot loader would truncate the command line. GRUB puts the quotes around a whole argument
    (``"name=a value"``). The kernel reads both forms the same way.
    """
    line = " ".join(map(quote_kernel_argument, arguments))
    if (length := len(fill_boot_nic(line, "00-00-00-00-00-00"))) > MAX_COMMAND_LINE:
        raise QuotingError(
            "the kernel's command line",
            line,
            f"the command line is {length} bytes long, but boot loaders pass on only {MAX_COMMAND_LINE} bytes",
        )
    return line


def quote_ipxe_arguments(arguments: Sequence[str]) -> str:
    """Quote kernel arguments for an iPXE script, as the last part of a ``kernel`` or ``imgargs`` line."""
    line = build_command_line(arguments)
    for argument in arguments:
        _check_ipxe_argument(argument)
    if (words := line.count(" ") + 1) > MAX_IPXE_WORDS:
        raise QuotingError(
            "iPXE",
            line,
            f"the line has {words} words, which may overflow iPXE's stack; at most {MAX_IPXE_WORDS} words are safe",
        )
    return _replace_boot_nic(line, _BOOT_NIC_IPXE)


def quote_ipxe_word(text: str) -> str:
    """Return the text if iPXE reads the text as one word. Otherwise raise `QuotingError`."""
    if not _PLAIN.fullmatch(text):
        _check_faults("iPXE", text, _IPXE_FAULTS)
    return _replace_boot_nic(text, _BOOT_NIC_IPXE)


@lru_cache(maxsize=_CACHE_SIZE)
def check_ipxe_url(url: str) -> str:
    """Return an absolute URL if the URL is safe in an iPXE script and iPXE does not read it as an option.

    Otherwise raise `QuotingError`.
    """
    _check_faults("iPXE", url, _URL_FAULTS)
    return url


def sanitize_ipxe_text(text: str) -> str:
    """Return any text as one line for ``echo`` or a comment, with ``?`` in place of each unsafe character."""
    return _IPXE_HARMFUL.sub(lambda match: "?" * len(match[0]), _join_lines(text))


def quote_grub_arguments(arguments: Sequence[str]) -> str:
    """Quote kernel arguments for a GRUB script, as the last part of a ``linux`` line."""
    build_command_line(arguments)
    return " ".join(map(_quote_grub_argument, arguments))


def quote_grub_word(text: str) -> str:
    """Quote one word of a GRUB command if it needs quotes."""
    if _PLAIN.fullmatch(text):
        return text
    _check_faults("GRUB", text, _GRUB_FAULTS)
    if "{{" not in text:
        return _quote_single(text)
    parts = filter(None, _BOOT_NIC.split(text))
    return "".join(
        _BOOT_NIC_GRUB.get(part) or (part if _PLAIN.fullmatch(part) else _quote_single(part)) for part in parts
    )


def sanitize_grub_text(text: str) -> str:
    """Return any text as one quoted word for ``echo``, a title or a comment.

    Replace each unsafe character with ``?``.
    """
    return _quote_single(_GRUB_HARMFUL.sub("?", _join_lines(text)))


def has_boot_nic_placeholder(text: str) -> bool:
    """Return whether a text contains a placeholder for the MAC address of the boot NIC, in upper or lower case."""
    return "{{" in text and _BOOT_NIC_IN_ANY_CASE.search(text) is not None


def has_miscased_placeholder(text: str) -> bool:
    """Return whether a template changed the case of a placeholder for the MAC address of the boot NIC.

    Boot loaders would not replace such a placeholder.
    """
    return "{{" in text and has_boot_nic_placeholder(_BOOT_NIC.sub("", text))


def uses_boot_nic_variable(script: str) -> bool:
    """Return whether a GRUB script uses a variable that contains the MAC address of the boot NIC."""
    return any(variable in script for variable in _BOOT_NIC_GRUB.values())


def fill_boot_nic(text: str, mac: str) -> str:
    """Return a text with a MAC address in place of the placeholders. ``mac`` uses hyphens as separators."""
    return _replace_boot_nic(text, {BOOT_NIC_MAC: mac.replace("-", ":"), BOOT_NIC_BOOTIF: f"01-{mac}"})


def _replace_boot_nic(text: str, values: Mapping[str, str]) -> str:
    return _BOOT_NIC.sub(lambda match: values[match[0]], text) if "{{" in text else text


def _compile_faults(*faults: tuple[str, str]) -> _Faults:
    return tuple((re.compile(pattern), reason) for pattern, reason in faults)


_FAULTS: Final = _compile_faults(
    (r"\A\Z", "the value is empty"),
    (r"[\x00-\x1f\x7f]", "the value contains a control character"),
    # Linux reads 0xA0 as a space (lib/ctype.c), and 0xA0 is the second byte of "à" in UTF-8.
    (r"[^\x00-\x7f]", "firmware, boot loaders and the kernel interpret only ASCII characters in the same way"),
)
_KERNEL_NAME_FAULTS: Final = _compile_faults(
    (r"\A\Z", "an argument cannot begin with ="),
    (r" ", "the argument has a space before the first =; write each argument as a separate item"),
    (r'"', "double quotes are allowed only around a value"),
)
_KERNEL_VALUE_FAULTS: Final = _compile_faults((r'"', "the kernel has no syntax for a double quote in a value"))
_IPXE_FAULTS: Final = _FAULTS + _compile_faults(
    (r" ", "a space would end the word"),
    (r"\$\{", "iPXE would expand ${...}, which cannot be escaped"),
    (r"\A#", "a # at the start of a word would start a comment"),
    (r"\A(?:\|\||&&|;)\Z", "the words ||, && and ; end a command"),
    (r"\\\Z", "a backslash at the end of a line would join the line with the next line"),
)
_IPXE_ARGUMENT_FAULTS: Final = _compile_faults(("  ", "iPXE merges consecutive spaces into one"))
_IPXE_HARMFUL: Final = re.compile(
    r"""[^ -~] | \A- | \$(?=\{) | (?<![^ ])\# | (?<![^ ])(?:\|\||&&|;)(?![^ ]) | \\\Z""", re.VERBOSE
)
_URL_FAULTS: Final = _compile_faults(
    (r"\A(?![a-z][a-z0-9+.-]*:)", "the value is not an absolute URL"),
    # RFC 3986, 2: reserved characters, unreserved characters, and the percent sign.
    (r"[^!#$%&'()*+,\-./0-9:;=?@A-Z\[\]_a-z~]", "the URL contains characters that must be percent-encoded"),
)
_GRUB_FAULTS: Final = _FAULTS + _compile_faults(
    # The rest of the word determines which backslashes commands/wildcard.c and script/execute.c remove.
    (r"\\", "GRUB may remove a backslash"),
)
_GRUB_LINUX_FAULTS: Final = _compile_faults((r"'", "GRUB would add a backslash before the quote"))
_GRUB_HARMFUL: Final = re.compile(r"[^ -~]|\A-|\\")


def _check_faults(loader: str, value: str, faults: _Faults, *, part: str | None = None) -> None:
    for pattern, reason in faults:
        if pattern.search(value if part is None else part):
            raise QuotingError(loader, value, reason)


def _split_argument(argument: str) -> tuple[str, str, str]:
    """Split an argument into its name, its equals sign if it has one, and its value without enclosing quotes."""
    _check_faults("the kernel", argument, _FAULTS)
    name, equals, value = argument.partition("=")
    if len(value) > 1 and value[0] == value[-1] == '"':
        value = value[1:-1]
    _check_faults("the kernel", argument, _KERNEL_NAME_FAULTS, part=name)
    _check_faults("the kernel", argument, _KERNEL_VALUE_FAULTS, part=value)
    return name, equals, value


@lru_cache(maxsize=_CACHE_SIZE)
def _check_ipxe_argument(argument: str) -> None:
    if _PLAIN.fullmatch(argument):
        return
    _check_faults("iPXE", argument, _IPXE_ARGUMENT_FAULTS)
    for word in quote_kernel_argument(argument).split(" "):
        _check_faults("iPXE", argument, _IPXE_FAULTS, part=word)


@lru_cache(maxsize=_CACHE_SIZE)
def _quote_grub_argument(argument: str) -> str:
    if _PLAIN.fullmatch(argument):
        return argument
    word = "".join(_split_argument(argument))
    _check_faults("GRUB", word, _GRUB_LINUX_FAULTS)
    return quote_grub_word(word)


def _join_lines(text: str) -> str:
    return " ".join(text.split())


def _quote_single(text: str) -> str:
    return "'" + text.replace("'", r"'\''") + "'"
