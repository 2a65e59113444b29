"""Server selectors: All, None, labels as in Kubernetes, or names."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Literal

from gitboot.model.fields import Field, LabelKey, LabelValue, NameField, check, structure
from gitboot.model.scalars import Malformed, Name
from gitboot.problems import Code


class Operator(StrEnum):
    IN = "In"
    NOT_IN = "NotIn"
    EXISTS = "Exists"
    DOES_NOT_EXIST = "DoesNotExist"


@structure
class MatchExpression:
    """A condition on a label (Kubernetes: LabelSelectorRequirement)."""

    key: LabelKey = Field(description="The key of the label.")
    operator: Operator = Field(description="In and NotIn need values, Exists and DoesNotExist allow no values.")
    values: tuple[LabelValue, ...] = Field(
        default=(),
        description="The values for In and NotIn. A server without the label matches NotIn. Default: none.",
    )

    @check
    def _values_fit(self) -> None:
        wants = self.operator in (Operator.IN, Operator.NOT_IN)
        if wants != bool(self.values):
            message = "needs at least one value" if wants else "does not allow values"
            hint = "add a value" if wants else "remove values"
            raise Malformed(Code.SELECTOR, f"{self.operator} {message}", hint, ("operator",))

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


@structure
class Selector:
    """Servers by label, if they meet all conditions, or by name."""

    match_labels: dict[LabelKey, LabelValue] = Field(
        default_factory=dict, description="Labels that a server must have, with these values. Default: none."
    )
    match_expressions: tuple[MatchExpression, ...] = Field(
        default=(), description="More conditions, which must all be true. Default: none."
    )
    servers: tuple[NameField, ...] = Field(
        default=(), description="The names of servers, instead of labels. Default: none."
    )

    @check
    def _says_something(self) -> None:
        by_label = bool(self.match_labels or self.match_expressions)
        if not by_label and not self.servers:
            raise Malformed(
                Code.SELECTOR,
                "an empty selector is ambiguous",
                "use All, None, matchLabels, matchExpressions or servers",
            )
        if by_label and self.servers:
            raise Malformed(
                Code.SELECTOR,
                "a selector must use labels or names, not both",
                "remove servers, or remove matchLabels and matchExpressions",
                ("servers",),
            )

    @property
    def keys(self) -> frozenset[str]:
        return frozenset((*self.match_labels, *(expression.key for expression in self.match_expressions)))

    def matches(self, name: Name, labels: Mapping[str, str]) -> bool:
        if self.servers:
            return name in self.servers
        return all(labels.get(key) == value for key, value in self.match_labels.items()) and all(
            expression.matches(labels) for expression in self.match_expressions
        )


Select = Literal["All", "None"] | Selector


def selects(select: Literal["All", "None"] | Selector, name: Name, labels: Mapping[str, str]) -> bool:
    """Return whether ``select`` matches the server with this name and these labels."""
    if isinstance(select, str):
        return select == "All"
    return select.matches(name, labels)
