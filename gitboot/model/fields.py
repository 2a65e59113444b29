"""Scalars as fields of the models: the parser of each, and what its JSON Schema says to editors."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Annotated, Any

from pydantic import BeforeValidator, WithJsonSchema

from gitboot.model.scalars import (
    ArtifactUrl,
    Digest,
    MacAddress,
    Name,
    SystemUuid,
    nonempty,
    parse_artifact_url,
    parse_base_url,
    parse_bmc_address,
    parse_boolean,
    parse_count_or_percent,
    parse_digest,
    parse_file_path,
    parse_fingerprint,
    parse_instant,
    parse_integer,
    parse_interface_address,
    parse_kernel_argument,
    parse_label_key,
    parse_label_value,
    parse_local_disk,
    parse_mac,
    parse_name,
    parse_network,
    parse_percent,
    parse_positive,
    parse_secret_path,
    parse_signed,
    parse_uuid,
    parse_variable,
    parse_variable_name,
    text,
)
from gitboot.model.scalars.artifacts import SHA256
from gitboot.model.scalars.instants import INSTANT
from gitboot.model.scalars.machines import LOCAL_DISK
from gitboot.model.scalars.names import LABEL_NAME, NAME

# What editors read: they type plain scalars by YAML 1.2, where 3815.2 is a number and gitboot reads text.
_ANY_SCALAR = WithJsonSchema({"type": ["string", "number", "boolean"]})
_TEXT = WithJsonSchema({"type": ["string", "number"], "minLength": 1})


def _matching(pattern: re.Pattern[str], *types: str) -> dict[str, Any]:
    return {"type": [*types] if len(types) > 1 else types[0], "pattern": f"^(?:{pattern.pattern})$"}


Text = Annotated[str, BeforeValidator(nonempty), _TEXT]
NameField = Annotated[
    Name,
    BeforeValidator(parse_name),
    WithJsonSchema({**_matching(NAME, "string", "number"), "maxLength": 253}),
]
Integer = Annotated[int, BeforeValidator(parse_integer), WithJsonSchema({"type": "integer", "minimum": 0})]
Positive = Annotated[int, BeforeValidator(parse_positive), WithJsonSchema({"type": "integer", "minimum": 1})]
SignedInteger = Annotated[int, BeforeValidator(parse_signed), WithJsonSchema({"type": "integer"})]
Percent = Annotated[
    int, BeforeValidator(parse_percent), WithJsonSchema({"type": "integer", "minimum": 0, "maximum": 100})
]
Boolean = Annotated[bool, BeforeValidator(parse_boolean), WithJsonSchema({"type": "boolean"})]
Mac = Annotated[
    MacAddress,
    BeforeValidator(parse_mac),
    WithJsonSchema(
        {
            "type": ["string", "number"],
            "pattern": r"^([0-9A-Fa-f]{2}([:-]?)(?:[0-9A-Fa-f]{2}\2){4}[0-9A-Fa-f]{2}|"
            r"([0-9A-Fa-f]{4}\.){2}[0-9A-Fa-f]{4})$",
        }
    ),
]
Uuid = Annotated[
    SystemUuid,
    BeforeValidator(parse_uuid),
    WithJsonSchema({"type": "string", "pattern": "^[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}$"}),
]
InterfaceAddress = Annotated[str, BeforeValidator(parse_interface_address), WithJsonSchema({"type": "string"})]
Network = Annotated[str, BeforeValidator(parse_network), WithJsonSchema({"type": "string"})]
Sha256 = Annotated[
    Digest,
    BeforeValidator(parse_digest),
    WithJsonSchema(_matching(SHA256, "string")),
]
Fingerprint = Annotated[
    Digest,
    BeforeValidator(parse_fingerprint),
    WithJsonSchema({"type": "string", "pattern": "^[0-9A-Fa-f]{2}(:?[0-9A-Fa-f]{2}){31}$"}),
]
Url = Annotated[
    ArtifactUrl,
    BeforeValidator(parse_artifact_url),
    WithJsonSchema({"type": "string", "pattern": "^(assets:|https?://|oci://)[!-~]+$"}),
]
BaseUrl = Annotated[
    str, BeforeValidator(parse_base_url), WithJsonSchema({"type": "string", "pattern": r"^https?://[^?#\s]+$"})
]
BmcAddress = Annotated[
    str,
    BeforeValidator(parse_bmc_address),
    WithJsonSchema({"type": "string", "pattern": r"^(https?|ipmi)://[^?#\s]+$"}),
]
Instant = Annotated[datetime, BeforeValidator(parse_instant), WithJsonSchema(_matching(INSTANT, "string"))]
CountOrPercent = Annotated[
    str,
    BeforeValidator(parse_count_or_percent),
    WithJsonSchema({"type": ["string", "integer"], "pattern": "^[1-9][0-9]*%?$", "minimum": 1}),
]
FilePath = Annotated[
    str,
    BeforeValidator(parse_file_path),
    WithJsonSchema({"type": ["string", "number"], "pattern": r"^[^/\\][^\\]*$"}),
]
SecretPath = Annotated[
    str,
    BeforeValidator(parse_secret_path),
    WithJsonSchema({"type": "string", "pattern": r"^[^/\\][^\\]*\.age$"}),
]
LocalDisk = Annotated[str, BeforeValidator(parse_local_disk), WithJsonSchema(_matching(LOCAL_DISK, "string"))]
KernelArgument = Annotated[str, BeforeValidator(parse_kernel_argument), _TEXT]
VariableName = Annotated[str, BeforeValidator(parse_variable_name)]
Variable = Annotated[str | bool, BeforeValidator(parse_variable), _ANY_SCALAR]
LabelKey = Annotated[str, BeforeValidator(parse_label_key)]
LabelValue = Annotated[
    str,
    BeforeValidator(parse_label_value),
    WithJsonSchema(_matching(re.compile(f"({LABEL_NAME.pattern})?"), "string", "number", "boolean")),
]
AnyText = Annotated[str, BeforeValidator(text), _ANY_SCALAR]
