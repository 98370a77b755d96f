"""Questions about what happens: which way things move, what appears, leaves or changes, and all of it in a sentence."""

from __future__ import annotations

from training.asking import Asked, Asking
from training.casting import one
from training.patterns import PATTERNS
from training.stories import Story, article, middle

_MOST_DESCRIBED = 4
_EVENT_ONLY = ("What happened to the {}?",)
"""Of what moves besides, "what did it do" would ask for either."""


def movement(asking: Asking) -> Asked | None:
    """Which way something goes, or what it is that goes a certain way."""
    if len(asking.clip.frames) < 2:
        return None
    movers = [story for story in asking.told if story.movement != "still"]
    if movers and asking.rng.random() < 0.2:
        way = one(asking.rng, movers).movement
        same = [story for story in movers if story.movement == way]
        if len(same) == 1 and not same[0].turns:
            return Asked(asking.word(("What moves {}?", "Which thing moves {}?"), way), f"{same[0].phrase}.", same)
    order = [story for story in asking.told if len(story.shown) > 1 and story.what not in PATTERNS]
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


def event(asking: Asking) -> Asked | None:
    """What appeared, left or changed its colour."""
    if len(asking.clip.frames) < 2 or not asking.told:
        return None
    events = [story for story in asking.told if story.appears or story.leaves or story.turns]
    still = all(story.movement == "still" for story in asking.told)
    if len(events) > 1 or any(story.appears + story.leaves + story.turns > 1 for story in events):
        return None
    if not events:
        if still and asking.rng.random() < 0.3:
            return Asked(asking.word(("What happened?", "What changed?")), "nothing.")
        if asking.rng.random() < 0.15:
            return Asked(one(asking.rng, ("What appeared?", "What left?", "What changed colour?")), "nothing.")
        return None
    story = events[0]
    happened = _happened(story)
    found: list[tuple[str, str]] = []
    if still:
        found.append((asking.word(("What happened?", "What changed?")), f"{_subject(story)} {happened}."))
    if name := asking.name(story):
        wordings = ("What happened to the {}?", "What did the {} do?") if story.movement == "still" else _EVENT_ONLY
        found.append((asking.word(wordings, name), f"it {happened}."))
    if story.turns:
        found.append(("What changed colour?", f"{article(story.noun)}."))
    else:
        found.append(("What appeared?" if story.appears else "What left?", f"{_subject(story)}."))
    question, answer = one(asking.rng, found)
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


def describe(asking: Asking) -> Asked | None:
    """Every thing with a phrase, from left to right as they are first seen."""
    told = [story for story in asking.told if story.what not in PATTERNS]
    if not 1 <= len(told) <= _MOST_DESCRIBED:
        return None
    told.sort(key=lambda story: middle(story.shown[0].box_px))
    moving = len(asking.clip.frames) > 1
    phrases = [_told(story) if moving else story.phrase for story in told]
    *first, last = phrases
    answer = f"{', '.join(first)} and {last}" if first else last
    fit = ("Say what happens.", "Describe what happens.") if moving else ("What do you see?", "Caption this.")
    wordings = (*fit, "Describe the scene.", "Describe this image.", "What is in the picture?", "Say what happens.")
    facts = tuple(phrase.split(" ", 1)[1] for phrase in phrases)
    return Asked(asking.word(wordings), f"{answer}.", told, facts)


def _told(story: Story) -> str:
    """What a thing is and does: one phrase."""
    parts = ["appears"] if story.appears else []
    parts += [f"moves {story.movement}"] if story.movement != "still" else []
    parts += ["leaves"] if story.leaves else []
    parts += [f"turns {story.last.colour}"] if story.turns else []
    return f"{_subject(story)} {' and '.join(parts) or 'stays still'}"
