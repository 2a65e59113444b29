"""Which servers: All, None, labels as Kubernetes matches them, or names."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, model_validator
from pydantic.dataclasses import dataclass

from gitboot.model.envelope import STRICT, Struct
from gitboot.model.fields import LabelKey, LabelValue, NameField
from gitboot.model.scalars import Malformed, Name
from gitboot.problems.codes import Code


class Operator(StrEnum):
    IN = "In"
    NOT_IN = "NotIn"
    EXISTS = "Exists"
    DOES_NOT_EXIST = "DoesNotExist"


@dataclass(frozen=True, kw_only=True, slots=True, config=STRICT)
class MatchExpression(Struct):
    """One condition on one label (Kubernetes: LabelSelectorRequirement)."""

    key: LabelKey = Field(description="The label's key.")
    operator: Operator = Field(description="In and NotIn take values, Exists and DoesNotExist none.")
    values: tuple[LabelValue, ...] = Field(
        default=(),
        description="The values of In and NotIn. A server without the label is NotIn. Default: none.",
    )

    @model_validator(mode="after")
    def _values_fit(self) -> MatchExpression:
        wants = self.operator in (Operator.IN, Operator.NOT_IN)
        if wants != bool(self.values):
            expected = "at least one value" if wants else "no values"
            raise Malformed(Code.SELECTOR, f"{self.operator} takes {expected}", at=("operator",))
        return self

    def matches(self, labels: Mapping[str, str]) -> bool:
        match self.operator:
            case Operator.IN:
                return labels.get(self.key) in self.values
            case Operator.NOT_IN:
                return labels.get(self.key) not in self.values
            case Operator.EXISTS:
                return self.key in labels
            case _:
                return self.key not in labels


@dataclass(frozen=True, kw_only=True, slots=True, config=STRICT)
class Selector(Struct):
    """Servers by label (all conditions hold), or by name."""

    match_labels: dict[LabelKey, LabelValue] = Field(
        default_factory=dict, description="Labels that a server must have, with these values. Default: none."
    )
    match_expressions: tuple[MatchExpression, ...] = Field(
        default=(), description="Conditions that must hold besides. Default: none."
    )
    servers: tuple[NameField, ...] = Field(default=(), description="Servers by name, instead of labels. Default: none.")

    @model_validator(mode="after")
    def _says_something(self) -> Selector:
        by_label = bool(self.match_labels or self.match_expressions)
        if not by_label and not self.servers:
            raise Malformed(
                Code.SELECTOR,
                "a selector that says nothing could mean every server or none",
                "write All, None, matchLabels, matchExpressions or servers",
            )
        if by_label and self.servers:
            raise Malformed(Code.SELECTOR, "servers are selected by label or by name, not both", at=("servers",))
        return self

    @property
    def keys(self) -> frozenset[str]:
        """The labels that it looks at."""
        return frozenset((*self.match_labels, *(expression.key for expression in self.match_expressions)))

    def matches(self, name: Name, labels: Mapping[str, str]) -> bool:
        if self.servers:
            return name in self.servers
        return all(labels.get(key) == value for key, value in self.match_labels.items()) and all(
            expression.matches(labels) for expression in self.match_expressions
        )


def _tag(value: Any) -> str:
    return "(word)" if isinstance(value, str) else "(selector)"


Select = Annotated[
    Annotated[Literal["All", "None"], Tag("(word)")] | Annotated[Selector, Tag("(selector)")],
    Discriminator(_tag),
]


def selects(select: Literal["All", "None"] | Selector, name: Name, labels: Mapping[str, str]) -> bool:
    """Whether ``select`` names the server with this name and these labels."""
    if isinstance(select, str):
        return select == "All"
    return select.matches(name, labels)
