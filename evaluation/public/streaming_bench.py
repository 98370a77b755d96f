"""StreamingBench: questions at times of a stream."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from evaluation.frames import Sampling
from evaluation.public.entries import Entry, json_list, read_entries
from evaluation.public.items import QWEN_TILES, PublicQuestion, Request, as_streams
from evaluation.public.rules import poll, streaming_bench_choice

CHOICES = 4
FPS = ((300.0, 1.0), (600.0, 0.5), (float("inf"), 0.2))
"""Up to so many seconds of video, so many frames a second: their evaluation of Qwen models."""

MOST_FRAMES = 1016

OMNI_TASKS = frozenset({"Emotion Recognition", "Scene Understanding", "Source Discrimination", "Multimodal Alignment"})

POLL_S = 1
POLLS_AFTER_S = 4
"""A poll a second, from the instruction until so long after its true time."""

NEAR_S = 2

HEAD = (
    "You are an advanced video question-answering AI assistant. You have been provided with {} and a multiple-choice "
    "question related to the video. Your task is to carefully analyze the video and {}, choosing from the four options "
    "provided. Respond with only the letter (A, B, C, or D) of the correct option.\n\n"
)
PROMPT = (
    HEAD.format("some frames from the video", "provide the best answer to question")
    + "Question: {}\n\nOptions:\n{}\n\nThe best option is:"
)
SEQUENTIAL_PROMPT = (
    HEAD.format("a video", "the provided context to answer the question")
    + "{}\n\nHere is the question. Answer it and don't confuse it with the previous conversation.\nQuestion: {}\n\n"
    + "Options:\n{}\n\nThe best option is:"
)
CONTEXT = (
    "Here are the contextual information related to the video. Please answer the questions based on the contextual "
    "information: "
)
EARLIER = "At timestamp {}, the following question and answer occurred: Question: {}; Options: {}; Answer: {}; "
POLL_PROMPT = (
    "You are an advanced image question-answering AI assistant. You have been provided with images and a question "
    "related to the images. Your task is to carefully analyze the images and provide the answer to the question. "
    "You need to carefully confirm whether the images content meet the conditions of the question, and then output the "
    'correct content.\n\nQuestion: {} Is it the right time to output "{}"? You can only answer yes or no.\n\n'
    "The answer is:\n"
)


def read_streaming_bench(request: Request) -> list[PublicQuestion]:
    """StreamingBench (Lin et al. 2024, arXiv:2411.03628), as `src/data` of its repository after its `preprocess.sh`:

        FOLDER/questions_real.json
        FOLDER/videos/sample_348_real.mp4

    Splits: real (real-time visual understanding), omni (omni-source and contextual), sqa (sequential questions, with
    the earlier ones and their right answers in the prompt) and proactive (an instruction, polled each second). Frames
    are those up to the time stamp: one a second, one in two seconds beyond 5 minutes, one in five beyond 10.
    """
    path = request.folder / f"questions_{request.split}.json"
    values = json_list(path)
    if request.split == "proactive":
        return read_entries(path, values, lambda entry: list(_polls(request, entry)))
    if request.split == "sqa":
        videos = [{"parts": video} for video in values]
        return as_streams(read_entries(path, videos, lambda entry: _sequence(request, entry)))
    return as_streams(read_entries(path, values, lambda entry: list(_choices(request, entry, [entry]))))


def _sequence(request: Request, entry: Entry) -> list[PublicQuestion]:
    return list(_choices(request, entry, entry.entries("parts")))


def _choices(request: Request, entry: Entry, parts: Sequence[Entry]) -> Iterator[PublicQuestion]:
    context = ""
    for number, part in enumerate(parts):
        for place, question in enumerate(part.entries("questions")):
            options = _options(question)
            text, option_lines = question.text("question"), "\n".join(options)
            answer, task = question.letter("answer", CHOICES), question.text("task_type")
            sequential = request.split == "sqa"
            yield PublicQuestion(
                id=f"{entry.number}-{number}-{place}",
                kind=task,
                text=SEQUENTIAL_PROMPT.format(context, text, option_lines)
                if sequential
                else PROMPT.format(text, option_lines),
                answers=(answer,),
                rule=streaming_bench_choice,
                tags={"aspect": _aspect(request.split, task), "task": task},
                **_segment(request, part, question.time_s("time_stamp")),
            )
            context = context or CONTEXT
            context += EARLIER.format(question.text("time_stamp"), text, ", ".join(options), answer)


def _options(question: Entry) -> tuple[str, ...]:
    options = question.texts("options")[:CHOICES]
    if len(options) < CHOICES:
        raise ValueError(f'it needs "options", a list of {CHOICES} texts; got {len(options)}')
    if options[0].startswith("A."):
        return options
    return tuple(f"{letter}. {option}" for letter, option in zip("ABCD", options, strict=True))


def _aspect(split: str, task: str) -> str:
    if split == "real":
        return "real-time visual understanding"
    return "omni-source understanding" if task in OMNI_TASKS else "contextual understanding"


def _segment(request: Request, part: Entry, end_s: float, begin_s: float = 0.0) -> dict[str, Any]:
    start_s = max(begin_s, request.start_s(end_s))
    name = part.file("video_path")
    fps = next(fps for limit_s, fps in FPS if end_s - start_s <= limit_s)
    return {
        "path": request.folder / name,
        "sampling": request.sampling(Sampling(MOST_FRAMES, fps, QWEN_TILES)),
        "start_s": start_s,
        "end_s": end_s,
        "clip": name,
        "group": name,
    }


def _polls(request: Request, entry: Entry) -> Iterator[PublicQuestion]:
    for place, question in enumerate(entry.entries("questions")):
        start_s, due_s = question.time_s("time_stamp"), question.time_s("ground_truth_time_stamp")
        query, seen_s = f"{entry.number}-{place}", None
        text = POLL_PROMPT.format(question.text("question"), question.text("ground_truth_output"))
        for at_s in range(int(start_s) + POLL_S, int(due_s) + POLLS_AFTER_S + 1, POLL_S):
            yield PublicQuestion(
                id=f"{query}@{at_s}",
                kind="Proactive Output",
                text=text,
                answers=("yes",) if abs(at_s - due_s) <= NEAR_S else ("no",),
                rule=poll,
                tags={"query": query, "at_s": str(at_s), "due_s": str(int(due_s))},
                seen_s=seen_s,
                **_segment(request, entry, float(at_s), start_s) | {"group": query},
            )
            seen_s = float(at_s)
