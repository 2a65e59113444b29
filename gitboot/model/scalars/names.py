"""What authors name and set as they like: resources, labels, variables, files, kernel arguments."""

from __future__ import annotations

import re
from typing import Final, NewType

from gitboot.model.scalars.machines import Malformed, nonempty, shown, text
from gitboot.problems.codes import Code

Name = NewType("Name", str)  # DNS-1123 subdomain

NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")


def parse_name(value: object) -> Name:
    """A DNS-1123 subdomain, as Kubernetes names objects."""
    found = text(value)
    if len(found) > 253 or not NAME.fullmatch(found):
        raise Malformed(
            Code.NAME,
            f"expected a name (DNS-1123 subdomain), found {shown(found)}",
            "use at most 253 lower-case letters, digits, '-' and '.', with a letter or digit at both ends",
        )
    return Name(found)


LABEL_NAME: Final = re.compile(r"[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_LABEL_MEND: Final = (
    "use at most 63 letters, digits, '-', '_' and '.', with a letter or digit at both ends; "
    "a key may have a DNS prefix and a slash before"
)


def parse_label_key(value: object) -> str:
    """Kubernetes' label key: an optional DNS prefix and a name."""
    found = text(value)
    prefix, slash, name = found.rpartition("/")
    if not LABEL_NAME.fullmatch(name) or (slash and (len(prefix) > 253 or not NAME.fullmatch(prefix))):
        raise Malformed(Code.LABEL, f"expected a label's key, found {shown(found)}", _LABEL_MEND)
    return found


def parse_label_value(value: object) -> str:
    found = text(value)
    if found and not LABEL_NAME.fullmatch(found):
        raise Malformed(Code.LABEL, f"expected a label's value, found {shown(found)}", _LABEL_MEND)
    return found


_IDENTIFIER: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")


def parse_variable_name(value: object) -> str:
    found = text(value)
    if not _IDENTIFIER.fullmatch(found):
        raise Malformed(
            Code.VARIABLE,
            f"expected a variable's name, found {shown(found)}",
            "use letters, digits and _, and no digit first: templates read it as vars.NAME",
        )
    return found


def parse_variable(value: object) -> str | bool:
    """The source text; plain ``true`` and ``false`` are booleans, so that templates can branch."""
    found = text(value)
    if type(value) is str and found in ("true", "false"):  # what was quoted is a `Quoted`
        return found == "true"
    return found


def parse_file_path(value: object) -> str:
    """A file in the repository, relative to the fleet's root."""
    found = nonempty(value)
    if found.startswith("/") or "\\" in found or {"", ".", ".."} & set(found.split("/")):
        raise Malformed(
            Code.FILE_PATH,
            f"expected a path below the fleet's root, found {shown(found)}",
            "write it relative to the folder of the fleet, with / and without . or ..",
        )
    return found


AGE: Final = ".age"  # the end of the name of a file that is encrypted


def parse_secret_path(value: object) -> str:
    """A file that age encrypted, in the repository; its name says so, to people and to editors."""
    found = parse_file_path(value)
    if not found.endswith(AGE):
        raise Malformed(
            Code.FILE_PATH,
            f"expected a file that is encrypted, *{AGE}, found {shown(found)}",
            "encrypt it with `gitboot secret encrypt`, and never commit what it holds",
        )
    return found


_ARGUMENT: Final = re.compile(r"[^\x00-\x1f\x7f]+")


def parse_kernel_argument(value: object) -> str:
    """One argument, possibly a template: ``name``, ``name=value``, or ``-name`` to remove one."""
    found = nonempty(value)
    if not _ARGUMENT.fullmatch(found) or found.strip() != found:
        raise Malformed(
            Code.ARGUMENT,
            f"expected one kernel argument on one line, found {shown(found)}",
            "write one item an argument: name, name=value, or -name to remove one",
        )
    return found
