"""One parser for each kind of scalar: source text in, a normalised value out, or `Malformed`."""

from gitboot.model.scalars.artifacts import ArtifactUrl, Digest, parse_artifact_url, parse_base_url, parse_digest
from gitboot.model.scalars.instants import format_instant, parse_instant
from gitboot.model.scalars.machines import (
    MacAddress,
    SystemUuid,
    byte_orders,
    is_placeholder_uuid,
    parse_interface_address,
    parse_mac,
    parse_network,
    parse_uuid,
    swapped,
)
from gitboot.model.scalars.names import (
    Name,
    parse_file_path,
    parse_kernel_argument,
    parse_label_key,
    parse_label_value,
    parse_name,
    parse_variable,
    parse_variable_name,
)
from gitboot.model.scalars.numbers import (
    parse_boolean,
    parse_count_or_percent,
    parse_integer,
    parse_percent,
    parse_positive,
    parse_signed,
    version_key,
)
from gitboot.model.scalars.texts import Malformed, nonempty, one_line, shown, text

__all__ = [
    "ArtifactUrl",
    "Digest",
    "MacAddress",
    "Malformed",
    "Name",
    "SystemUuid",
    "byte_orders",
    "format_instant",
    "is_placeholder_uuid",
    "nonempty",
    "one_line",
    "parse_artifact_url",
    "parse_base_url",
    "parse_boolean",
    "parse_count_or_percent",
    "parse_digest",
    "parse_file_path",
    "parse_instant",
    "parse_integer",
    "parse_interface_address",
    "parse_kernel_argument",
    "parse_label_key",
    "parse_label_value",
    "parse_mac",
    "parse_name",
    "parse_network",
    "parse_percent",
    "parse_positive",
    "parse_signed",
    "parse_uuid",
    "parse_variable",
    "parse_variable_name",
    "shown",
    "swapped",
    "text",
    "version_key",
]
