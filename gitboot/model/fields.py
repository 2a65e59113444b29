"""Scalars as fields of the models: the parser of each, and what its JSON Schema says to editors."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Annotated, Any

from gitboot.jsonio import Digest
from gitboot.model.scalars.artifacts import (
    SHA256,
    ArtifactUrl,
    parse_artifact_url,
    parse_base_url,
    parse_bmc_address,
    parse_digest,
    parse_fingerprint,
)
from gitboot.model.scalars.instants import INSTANT, parse_instant
from gitboot.model.scalars.machines import (
    LOCAL_DISK,
    MacAddress,
    SystemUuid,
    parse_interface_address,
    parse_ledger,
    parse_local_disk,
    parse_mac,
    parse_network,
    parse_uuid,
)
from gitboot.model.scalars.names import (
    LABEL_NAME,
    NAME,
    Name,
    parse_file_path,
    parse_kernel_argument,
    parse_label_key,
    parse_label_value,
    parse_name,
    parse_secret_path,
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
)
from gitboot.model.scalars.texts import nonempty, text
from gitboot.model.structure import Scalar

# What editors read: they type plain scalars by YAML 1.2, where 3815.2 is a number and gitboot reads text.
_ANY_SCALAR = {"type": ["string", "number", "boolean"]}
_TEXT = {"type": ["string", "number"], "minLength": 1}


def _matching(pattern: re.Pattern[str], *types: str) -> dict[str, Any]:
    return {"type": [*types] if len(types) > 1 else types[0], "pattern": f"^(?:{pattern.pattern})$"}


Text = Annotated[str, Scalar(nonempty, _TEXT, common=True)]
NameField = Annotated[Name, Scalar(parse_name, {**_matching(NAME, "string", "number"), "maxLength": 253}, common=True)]
Integer = Annotated[int, Scalar(parse_integer, {"type": "integer", "minimum": 0})]
Positive = Annotated[int, Scalar(parse_positive, {"type": "integer", "minimum": 1})]
SignedInteger = Annotated[int, Scalar(parse_signed, {"type": "integer"})]
Percent = Annotated[int, Scalar(parse_percent, {"type": "integer", "minimum": 0, "maximum": 100})]
Boolean = Annotated[bool, Scalar(parse_boolean, {"type": "boolean"}, common=True)]
Mac = Annotated[
    MacAddress,
    Scalar(
        parse_mac,
        {
            "type": ["string", "number"],
            "pattern": r"^([0-9A-Fa-f]{2}([:-]?)(?:[0-9A-Fa-f]{2}\2){4}[0-9A-Fa-f]{2}|"
            r"([0-9A-Fa-f]{4}\.){2}[0-9A-Fa-f]{4})$",
        },
    ),
]
Uuid = Annotated[
    SystemUuid,
    Scalar(parse_uuid, {"type": "string", "pattern": "^[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}$"}),
]
Ledger = Annotated[
    str, Scalar(parse_ledger, {"type": "string", "pattern": "^[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}$"})
]
InterfaceAddress = Annotated[str, Scalar(parse_interface_address, {"type": "string"})]
Network = Annotated[str, Scalar(parse_network, {"type": "string"})]
Sha256 = Annotated[Digest, Scalar(parse_digest, _matching(SHA256, "string"))]
Fingerprint = Annotated[
    Digest, Scalar(parse_fingerprint, {"type": "string", "pattern": "^[0-9A-Fa-f]{2}(:?[0-9A-Fa-f]{2}){31}$"})
]
Url = Annotated[
    ArtifactUrl, Scalar(parse_artifact_url, {"type": "string", "pattern": "^(assets:|https?://|oci://)[!-~]+$"})
]
BaseUrl = Annotated[str, Scalar(parse_base_url, {"type": "string", "pattern": r"^https?://[^?#\s]+$"})]
BmcAddress = Annotated[str, Scalar(parse_bmc_address, {"type": "string", "pattern": r"^(https?|ipmi)://[^?#\s]+$"})]
Instant = Annotated[datetime, Scalar(parse_instant, _matching(INSTANT, "string"))]
CountOrPercent = Annotated[
    str, Scalar(parse_count_or_percent, {"type": ["string", "integer"], "pattern": "^[1-9][0-9]*%?$", "minimum": 1})
]
FilePath = Annotated[
    str, Scalar(parse_file_path, {"type": ["string", "number"], "pattern": r"^[^/\\][^\\]*$"}, common=True)
]
SecretPath = Annotated[str, Scalar(parse_secret_path, {"type": "string", "pattern": r"^[^/\\][^\\]*\.age$"})]
LocalDisk = Annotated[str, Scalar(parse_local_disk, _matching(LOCAL_DISK, "string"))]
KernelArgument = Annotated[str, Scalar(parse_kernel_argument, _TEXT, common=True)]
VariableName = Annotated[str, Scalar(parse_variable_name, common=True)]
Variable = Annotated[str | bool, Scalar(parse_variable, _ANY_SCALAR)]
LabelKey = Annotated[str, Scalar(parse_label_key, common=True)]
LabelValue = Annotated[
    str,
    Scalar(
        parse_label_value, _matching(re.compile(f"({LABEL_NAME.pattern})?"), "string", "number", "boolean"), common=True
    ),
]
AnyText = Annotated[str, Scalar(text, _ANY_SCALAR)]
