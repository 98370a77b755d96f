"""The eleven kinds of questions."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from training.clips.cast import COLOUR_NAMES, one
from training.clips.fonts import random_word
from training.clips.scenes import PATTERNS
from training.questions.asking import AskContext, Asked
from training.questions.stories import AREAS, SIDES, TEXTS, Story, article, is_beside, may_be_in, middle, place_of

_MOST_DESCRIBED = 4
_EVENT_ONLY = ("What happened to the {}?",)
"""Of what moves besides, "what did it do" would ask for either."""


def movement(asking: AskContext) -> Asked | None:
    """Direction of a thing's movement, or the thing that moves in a direction."""
    if len(asking.clip.frames) < 2:
        return None
    movers = [story for story in asking.stories if story.movement != "still"]
    if movers and asking.rng.random() < 0.2:
        way = one(asking.rng, movers).movement
        same = [story for story in movers if story.movement == way]
        if len(same) == 1 and not same[0].turns:
            return Asked(asking.word(("What moves {}?", "Which thing moves {}?"), way), f"{same[0].phrase}.", same)
    order = [story for story in asking.stories if len(story.shown) > 1 and story.kind not in PATTERNS]
    order.sort(key=lambda story: (story.movement == "still") - 2 * asking.rng.random())
    for story in order:
        if name := asking.name(story):
            wordings = (
                *("Which way does the {} move?", "Where does the {} move?", "Where does the {} go?"),
                "In which direction does the {} move?",
            )
            answer = "nowhere." if story.movement == "still" else f"{story.movement}."
            return Asked(asking.word(wordings, name), answer, [story])
    return None


def event(asking: AskContext) -> Asked | None:
    """A thing that appeared, left or changed its colour."""
    if len(asking.clip.frames) < 2 or not asking.stories:
        return None
    events = [story for story in asking.stories if story.appears or story.leaves or story.turns]
    all_still = all(story.movement == "still" for story in asking.stories)
    if len(events) > 1 or any(story.appears + story.leaves + story.turns > 1 for story in events):
        return None
    if not events:
        if all_still and asking.rng.random() < 0.3:
            return Asked(asking.word(("What happened?", "What changed?")), "nothing.")
        if asking.rng.random() < 0.15:
            return Asked(one(asking.rng, ("What appeared?", "What left?", "What changed colour?")), "nothing.")
        return None
    story = events[0]
    happened = _happened(story)
    choices: list[tuple[str, str]] = []
    if all_still:
        choices.append((asking.word(("What happened?", "What changed?")), f"{_subject(story)} {happened}."))
    if name := asking.name(story):
        wordings = ("What happened to the {}?", "What did the {} do?") if story.movement == "still" else _EVENT_ONLY
        choices.append((asking.word(wordings, name), f"it {happened}."))
    if story.turns:
        choices.append(("What changed colour?", f"{article(story.noun)}."))
    else:
        choices.append(("What appeared?" if story.appears else "What left?", f"{_subject(story)}."))
    question, answer = one(asking.rng, choices)
    return Asked(question, answer, [story])


def _subject(story: Story) -> str:
    """Its phrase; of what changes its colour, with the colour that it had first."""
    if not story.turns:
        return story.phrase
    return article(f"{story.shown[0].colour} {story.noun}")


def _happened(story: Story) -> str:
    if story.appears:
        return "appeared"
    return "left" if story.leaves else f"turned {story.last.colour}"


def describe(asking: AskContext) -> Asked | None:
    """Every thing with a phrase, from left to right as they are first seen."""
    stories = [story for story in asking.stories if story.kind not in PATTERNS]
    if not 1 <= len(stories) <= _MOST_DESCRIBED:
        return None
    stories.sort(key=lambda story: middle(story.shown[0].box_px))
    moving = len(asking.clip.frames) > 1
    phrases = [_account(story) if moving else story.phrase for story in stories]
    *first, last = phrases
    answer = f"{', '.join(first)} and {last}" if first else last
    fit = ("Say what happens.", "Describe what happens.") if moving else ("What do you see?", "Caption this.")
    wordings = (*fit, "Describe the scene.", "Describe this image.", "What is in the picture?", "Say what happens.")
    facts = tuple(phrase.split(" ", 1)[1] for phrase in phrases)
    return Asked(asking.word(wordings), f"{answer}.", stories, facts)


def _account(story: Story) -> str:
    """A thing and its movement: one phrase."""
    parts = ["appears"] if story.appears else []
    parts += [f"moves {story.movement}"] if story.movement != "still" else []
    parts += ["leaves"] if story.leaves else []
    parts += [f"turns {story.last.colour}"] if story.turns else []
    return f"{_subject(story)} {' and '.join(parts) or 'stays still'}"


COUNT_WORDS = ("none", "one", "two", "three", "four", "five", "six")

_ABSENT_SHARE = 0.08
"""Share of questions for a text or a number of things that does not exist."""

_FURTHEST = {"left": "on the left", "right": "on the right", "above": "at the top", "below": "at the bottom"}
_TO = {"left": "left of", "right": "right of", "above": "above", "below": "below"}
_OPPOSITE = {"left": "right", "right": "left", "above": "below", "below": "above"}


def colour(asking: AskContext) -> Asked | None:
    """Colour of a thing that is named without it."""
    for story in asking.shuffled:
        if story.kind in PATTERNS:
            question = asking.word(
                ("What colour is the picture?", "What is the main colour?", "Which colour do you see most?")
            )
            return Asked(question, f"{story.colour}.", [story])
        name = asking.name(story, colour=False)
        if name and story.colour in COLOUR_NAMES:
            wordings = (
                *("What colour is the {}?", "What color is the {}?"),
                *("Which colour is the {}?", "What is the colour of the {}?"),
            )
            return Asked(asking.word(wordings, name), f"{story.colour}.", [story])
    return None


def shape(asking: AskContext) -> Asked | None:
    """Shape of a thing that is named by its colour or its place; for a pattern, which one."""
    for story in asking.shuffled:
        if story.kind in PATTERNS:
            wordings: tuple[str, ...] = ("What pattern is this?", "Which pattern do you see?", "What is the pattern?")
            return Asked(asking.word(wordings), f"{story.kind}.", [story])
        if story.kind in TEXTS:
            continue
        choices: list[str] = []
        same = [
            other for other in asking.stories if any(appearance.colour == story.colour for appearance in other.shown)
        ]
        if same == [story]:
            wordings = ("What is the {} thing?", "What shape is {}?", "Which thing is {}?", "What is {}?")
            choices.append(asking.word(wordings, story.colour))
        place = place_of(asking.clip, story)
        if place in AREAS and [other for other in asking.stories if may_be_in(asking.clip, other, place)] == [story]:
            wordings = ("What shape is in the {}?", "What do you see in the {}?", "What is in the {}?")
            choices.append(asking.word(wordings, place))
        if choices:
            return Asked(one(asking.rng, choices), f"{article(story.kind)}.", [story])
    return None


def where(asking: AskContext) -> Asked | None:
    """In which ninth of the picture something that stands still is."""
    for story in asking.shuffled:
        place, name = place_of(asking.clip, story), asking.name(story)
        if place and name and story.movement == "still" and story.kind not in PATTERNS:
            wordings = ("Where is the {}?", "Where do you see the {}?", "In which place is the {}?")
            return Asked(asking.word(wordings, name), f"{place}.", [story])
    return None


def word(asking: AskContext) -> Asked | None:
    """The word that is shown."""
    plain = (
        "What word is shown?",
        "What word is it?",
        "Read the word.",
        "What does the word say?",
        "Which word is it?",
    )
    return _text(asking, "word", plain)


def number(asking: AskContext) -> Asked | None:
    """The number that is shown."""
    plain = ("What number is shown?", "Which number is it?", "What is the number?", "Read the number.")
    return _text(asking, "number", plain)


def _text(asking: AskContext, kind: str, plain: Sequence[str]) -> Asked | None:
    """Reading: the only one of its kind, or the one of a colour, or the one on a side."""
    texts = [story for story in asking.stories if story.kind == kind]
    if not texts:
        if asking.stories and asking.rng.random() < _ABSENT_SHARE:
            return Asked(asking.word(plain), f"there is no {kind}.")
        return None
    for story in asking.shuffled:
        if story.kind != kind:
            continue
        choices: list[str] = []
        if len(texts) == 1:
            choices.append(asking.word(plain))
        if asking.names.fitting(f"{story.colour} {kind}") == [story] and story.colour in COLOUR_NAMES:
            wordings = (f"What {kind} is {{}}?", f"Which {kind} is {{}}?", f"Read the {{}} {kind}.")
            choices.append(asking.word(wordings, story.colour))
        if len(texts) > 1 and all(other.steady for other in texts):
            others = [other for other in texts if other is not story]
            sides = (side for side in SIDES if all(is_beside(asking.clip, story, side, other) for other in others))
            choices += [f"What {kind} is {_FURTHEST[side]}?" for side in sides]
        if choices:
            return Asked(one(asking.rng, choices), f"{story.text}.", [story])
    return None


def count(asking: AskContext) -> Asked | None:
    """Number of things of a shape, a colour or of all; the same number in every frame."""
    stories = [story for story in asking.stories if story.kind not in PATTERNS]
    if not stories or any(not story.steady for story in stories):
        return None
    groups: list[tuple[str, list[Story]]] = [("things", stories)]
    for key in {story.kind for story in stories}:
        groups.append((_plural(key), [story for story in stories if story.kind == key]))
    for key in sorted({story.colour for story in stories} & set(COLOUR_NAMES)):
        groups.append((f"{key} things", [story for story in stories if story.colour == key]))
    groups.sort(key=lambda group: group[0])
    if asking.rng.random() < _ABSENT_SHARE and (absent := asking.absent()):
        groups = [(_plural(absent), [])]
    several = [group for group in groups if len(group[1]) > 1]
    if several and asking.rng.random() < 0.3:
        several = [max(several, key=lambda group: len(group[1]))]
    name, counted = one(asking.rng, several if several and asking.rng.random() < 0.75 else groups)
    if len(counted) >= len(COUNT_WORDS):
        return None
    wordings = ("How many {} are there?", "How many {} do you see?", "Count the {}.")
    return Asked(asking.word(wordings, name), f"{COUNT_WORDS[len(counted)]}.", counted)


def _plural(name: str) -> str:
    return f"{name}es" if name.endswith("s") else f"{name}s"


def exists(asking: AskContext) -> Asked | None:
    """Existence of a thing, or of an attribute of it."""
    stories = [story for story in asking.shuffled if story.kind not in PATTERNS]
    yes = asking.rng.random() < 0.5
    if stories and asking.rng.random() < 0.4:
        for story in stories:
            name = asking.name(story, colour=False)
            if name and story.colour in COLOUR_NAMES:
                others = tuple(colour for colour in COLOUR_NAMES if colour != story.colour)
                colour = story.colour if yes else one(asking.rng, others)
                return Asked(f"Is the {name} {colour}?", "yes." if yes else "no.", [story])
    wordings = ("Is there {}?", "Do you see {}?")
    if not yes:
        texts = [story for story in asking.stories if story.kind == "word"]
        if texts and asking.rng.random() < 0.3:
            word = random_word(asking.rng, asking.split)
            if all(story.text != word for story in texts):
                return Asked(asking.word(wordings, f"a word {word}"), "no.", texts)
        name = asking.absent()
        return Asked(asking.word(wordings, article(name)), "no.") if name else None
    for story in stories:
        choices = [story.kind, story.noun]
        if story.colour in COLOUR_NAMES:
            choices += [f"{story.colour} {story.kind}"] * 2
        name = one(asking.rng, choices)
        return Asked(asking.word(wordings, article(name)), "yes.", asking.names.fitting(name))
    return None


def relation(asking: AskContext) -> Asked | None:
    """Place of one thing relative to another."""
    pairs = [(story, name) for story in asking.shuffled if (name := asking.name(story)) and story.kind not in PATTERNS]
    clip = asking.clip
    for (story, name), (other, other_name) in pairwise(pairs):
        sides = [side for side in SIDES if is_beside(clip, story, side, other)]
        if not sides:
            continue
        side = one(asking.rng, sides)
        kind = asking.rng.random()
        candidates = [
            third for third in asking.stories if third is not other and not is_beside(clip, other, side, third)
        ]
        if kind < 0.4 and candidates == [story]:
            return Asked(f"What is {_TO[side]} the {other_name}?", f"{story.phrase}.", [story, other])
        if kind < 0.8 and len(sides) == 1:
            wordings = ("Where is the {} from the {}?", "On which side of the {1} is the {0}?")
            return Asked(asking.word(wordings, name, other_name), f"{side}.", [story, other])
        yes = asking.rng.random() < 0.5
        side = side if yes else _OPPOSITE[side]
        return Asked(f"Is the {name} {_TO[side]} the {other_name}?", "yes." if yes else "no.", [story, other])
    return None
