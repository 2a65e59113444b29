"""What every document has: apiVersion, kind, metadata; and how its structures are made."""

from __future__ import annotations

from typing import Any, Final

from pydantic import ConfigDict, Field, model_validator
from pydantic.alias_generators import to_camel
from pydantic.dataclasses import dataclass

from gitboot.model.fields import AnyText, LabelKey, LabelValue, NameField

API_VERSION: Final = "gitboot.dev/v1alpha1"

# Built when first used: a kind that a fleet does not have costs nothing, and what is nested is built once.
STRICT: Final = ConfigDict(extra="forbid", alias_generator=to_camel, defer_build=True)


class Struct:
    """The base of every structure: a field that is left empty is a field that is absent."""

    __slots__ = ()

    @model_validator(mode="before")
    @classmethod
    def _absent(cls, value: Any) -> Any:
        if isinstance(value, dict) and None in value.values():
            return {key: item for key, item in value.items() if item is not None}
        return value


@dataclass(frozen=True, kw_only=True, slots=True, config=STRICT)
class Metadata(Struct):
    """A resource's name, and what selectors and people find it by."""

    name: NameField = Field(description="The resource's name, unique among its kind.")
    labels: dict[LabelKey, LabelValue] = Field(
        default_factory=dict, description="What selectors match, in Kubernetes' syntax. Default: none."
    )
    annotations: dict[LabelKey, AnyText] = Field(
        default_factory=dict,
        description="Notes for people and tools; nothing selects by them. Default: none.",
    )
