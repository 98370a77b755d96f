"""The model families that the adapter serves."""

from __future__ import annotations

from dataclasses import dataclass

from arr_coc.errors import ModelError


@dataclass(frozen=True, slots=True)
class Family:
    """One architecture: its `model_type` in `config.json`, and its name for people."""

    model_type: str
    title: str


FAMILIES = {
    family.model_type: family
    for family in (
        Family("qwen3_vl", "Qwen3-VL"),
        Family("qwen3_vl_moe", "Qwen3-VL-MoE"),
        Family("qwen2_5_vl", "Qwen2.5-VL"),
        Family("qwen2_vl", "Qwen2-VL"),
    )
}


def family_of(model_type: object, name: str) -> Family:
    """The family with this `model_type`. Raises ModelError that names what was found in the model `name`."""
    family = FAMILIES.get(model_type) if isinstance(model_type, str) else None
    if family is None:
        found = f"is a model of type {model_type!r}" if model_type else "names no model_type in its config.json"
        supported = ", ".join(f"{family.title} ({family.model_type})" for family in FAMILIES.values())
        raise ModelError(f"{name} {found}, which is not supported", f"give a model of one of these types: {supported}")
    return family
