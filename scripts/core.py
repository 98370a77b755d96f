"""The core and the features of the product, and how large each is: `python -m scripts.core`.

The core is what `caption FILE` and `watch` without options need. A feature is to lie in one folder and to hang on the
core by a protocol; until it does, FEATURES names the modules that are its own. Every other module is of the core.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("stream", "arr_coc")

EXTENSIONS = "stream.extensions"

# The form of an answer (arr_coc.answer_schema, and its tokens, arr_coc.qwen.constraint) is core: a question
# carries it, and the prompt, the decoder and every message about an answer read it. Zones are core: masks black the
# picture before anything reads it, and a question may be about a part of it.
FEATURES = {
    "backends": "arr_coc.backends.cuda arr_coc.backends.gl",
    "finetune": "arr_coc.finetune",
    "latency": "arr_coc.allocation.latency_budget",
    "small weights": "arr_coc.qwen.small_weights",
    "texturevlm": "arr_coc.ops arr_coc.texturevlm arr_coc.knowing",
    "adapt": "arr_coc.adaptation",
}


def feature_of(module: str) -> str | None:
    """Return the feature of a module, by the longest name that fits; None for one of the core.

    A package of `stream.extensions` is a feature.
    """
    if module.startswith(f"{EXTENSIONS}."):
        return module.split(".")[2]
    features = {place: feature for feature, names in FEATURES.items() for place in names.split()}
    places = [place for place in features if module == place or module.startswith(f"{place}.")]
    return features[max(places, key=len)] if places else None


def lines_of_parts() -> Counter[str]:
    """Return the lines of the core, "core", and of each feature."""
    lines: Counter[str] = Counter()
    for package in PACKAGES:
        for file in (ROOT / package).rglob("*.py"):
            parts = file.relative_to(ROOT).with_suffix("").parts
            module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            lines[feature_of(module) or "core"] += file.read_text("utf-8").count("\n")
    return lines


def main() -> None:
    lines = lines_of_parts()
    for part, count in lines.most_common():
        print(f"{count:7,}  {part}")
    print(f"{lines.total():7,}  in all")


if __name__ == "__main__":
    main()
