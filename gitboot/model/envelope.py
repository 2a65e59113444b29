"""What every document has: apiVersion, kind, metadata."""

from gitboot.model.fields import AnyText, Field, LabelKey, LabelValue, NameField, Struct, structure


@structure
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
