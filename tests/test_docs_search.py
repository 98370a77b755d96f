"""Search of the documents' site: a task leads to its page with the first result."""

from __future__ import annotations

import json
import math
import re
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest

from tests.test_docs import ROOT

material = pytest.importorskip("material", reason="the site is made with mkdocs-material: the extra docs")

TASKS = {
    "Home Assistant": "home-assistant.html",
    "why this token": "why.html",
    "own loop": "library.html",
    "ask from an agent": "agents.html",
    "less memory": "settings.html",
    "webcam": "sources.html",
    "RTSP camera": "sources.html",
    "Ollama": "servers.html",
    "robot": "robots.html",
    "zones": "zones.html",
    "structured answers": "structured-answers.html",
    "burn captions": "films.html",
}
WORKERS = Path(material.__file__).parent / "templates" / "assets" / "javascripts" / "workers"
(SCRIPT,) = WORKERS.glob("search.*.min.js")
STOP_WORDS = json.loads(re.findall(r"generateStopWordFilter\((\[[^]]*\])\)", SCRIPT.read_text(encoding="utf-8"))[0])
"""Words that the theme leaves out of the index."""

TERM_SATURATION = 1.2
"""lunr's k1. The theme sets b, the weight of a text's length, to 0."""


class SearchIndex:
    """What the site's search finds: the scores of lunr 2.3, and what the theme's worker does with them."""

    def __init__(self, index: dict[str, Any]) -> None:
        boosts = {name: field["boost"] for name, field in index["config"]["fields"].items()}
        separator = re.compile(index["config"]["separator"])
        self._pages: set[str] = set()
        self._postings: dict[str, list[tuple[str, str, int, float]]] = defaultdict(list)
        for section in index["docs"]:
            location = section["location"]
            self._pages.add(location.partition("#")[0])
            for field in ("title", "text"):
                text = re.sub("<[^>]*>", " ", section[field]).lower()
                words = Counter(word for word in separator.split(text) if word and word not in STOP_WORDS)
                for word, count in words.items():
                    boost = boosts[field] * section.get("boost", 1)
                    self._postings[word].append((location, field, count, boost))
        self._sections = len(index["docs"])

    def results(self, query: str) -> list[str]:
        """The pages found, the best first: each word of the query is the beginning of words."""
        prefixes = query.lower().split()
        found = [word for prefix in prefixes for word in self._postings if word.startswith(prefix)]
        weight = 1 / math.sqrt(sum(count**2 for count in Counter(found).values()) or 1)
        scores: Counter[str] = Counter()
        matched = defaultdict(set)
        for word in found:
            postings = self._postings[word]
            rarity = abs((self._sections - len(postings) + 0.5) / (len(postings) + 0.5))
            for location, _, count, boost in postings:
                frequency = (TERM_SATURATION + 1) * count / (TERM_SATURATION + count)
                scores[location] += weight * math.log(1 + rarity) * frequency * boost
                matched[location] |= {prefix for prefix in prefixes if word.startswith(prefix)}
        for location in scores:
            asked = matched[location] | {prefix for prefix in prefixes if prefix not in STOP_WORDS}
            extra = (location in self._pages) + len(matched[location]) / len(asked)
            scores[location] *= 1 + extra**2
        return list(dict.fromkeys(location.partition("#")[0] for location, _ in scores.most_common()))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> SearchIndex:
    """The index of the site, without the reference, whose names of functions weigh a quarter of a page's words."""
    from mkdocs.commands.build import build
    from mkdocs.config import load_config

    folder = tmp_path_factory.mktemp("site")
    config = load_config(str(ROOT / "mkdocs.yml"), site_dir=str(folder), plugins=["search"])
    build(config)
    return SearchIndex(json.loads((folder / "search" / "search_index.json").read_text(encoding="utf-8")))


@pytest.mark.parametrize(
    ("task", "page"),
    [pytest.param(*entry, id=entry[0]) for entry in TASKS.items()],
)
def test_a_task_leads_to_its_page(site: SearchIndex, task: str, page: str) -> None:
    assert site.results(task)[0] == page
