"""What a configuration field accepts, in words, for messages and documentation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import create_model
from pydantic.fields import FieldInfo

_KINDS = {
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "string": "text",
    "array": "a list of texts",
    "null": "none",
}


def wanted(field: FieldInfo) -> str:
    """For example "a whole number of at least 1, or adaptive"."""
    annotation: Any = field.annotation
    schema = create_model("Wanted", value=(annotation, field)).model_json_schema()["properties"]["value"]
    branches = schema.get("anyOf", [schema])
    words = [_branch({**schema, **branch}) for branch in branches]
    return ", or ".join(words)


def _branch(schema: Mapping[str, Any]) -> str:
    if "const" in schema:
        return str(schema["const"])
    if "enum" in schema:
        return "one of " + ", ".join(map(str, schema["enum"]))
    if "pattern" in schema and schema["type"] == "string":
        return f"text such as {schema['examples'][0]}"
    return _KINDS[schema["type"]] + _limits(schema)


def _limits(schema: Mapping[str, Any]) -> str:
    if schema["type"] == "string":
        low, high = schema.get("minLength"), schema.get("maxLength")
        if high is not None:
            return f" of {low} to {high} characters"
        return "" if low is None else " that is not empty"
    low, above, high = schema.get("minimum"), schema.get("exclusiveMinimum"), schema.get("maximum")
    if high is not None:
        return f" above {above} and up to {high}" if above is not None else f" from {low} to {high}"
    if above is not None:
        return f" above {above}"
    return "" if low is None else f" of at least {low}"
