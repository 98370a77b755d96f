"""OVO-Bench: questions about the past, the present and the future of a stream."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from evaluation.frames import Sampling
from evaluation.public.entries import Entry, json_list, read_entries
from evaluation.public.items import QWEN_TILES, PublicQuestion, Request, as_streams
from evaluation.public.rules import ovo_choice, ovo_count, ovo_yes_no

FRAMES = 64
"""Evenly over the video so far: their evaluation of Qwen2-VL."""

MODES = {
    **dict.fromkeys(("EPM", "ASI", "HLD"), "backward tracing"),
    **dict.fromkeys(("STU", "OJR", "ATR", "ACR", "OCR", "FPD"), "real-time visual perception"),
    **dict.fromkeys(("REC", "SSR", "CRR"), "forward active responding"),
}

ANNOTATIONS = ("ovo_bench_new.json", "ovo_bench.json")
CHUNKS, VIDEOS = "chunked_videos", "src_videos"

NOTHING_ELSE = "Do not include any additional text or explanation in your response."
CHOICE_PROMPT = (
    "Question: {}\nOptions:\n{}\nRespond only with the letter corresponding to your chosen option (e.g., A, B, C).\n"
    + NOTHING_ELSE
)
COUNT_PROMPT = (
    "You're watching a video in which people may perform a certain type of action repetively.\n"
    "The person performing this kind of action are referred to as 'they' in the following statement.\n"
    "You're task is to count how many times have different people in the video perform this kind of action in total.\n"
    "One complete motion counts as one.\n"
    "Now, answer the following question: How many times did they {}?\n"
    "Provide your answer as a single number (e.g., 0, 1, 2, 3…) indicating the total count.\n" + NOTHING_ELSE
)
STEP_PROMPT = (
    "You're watching a tutorial video which contain a sequential of steps.\n"
    "The following is one step from the whole procedures:\n{}\n"
    "Your task is to determine if the man or woman in the video is currently performing this step.\n"
    "Answer only with “Yes” or “No”.\n" + NOTHING_ELSE
)
CLUE_PROMPT = (
    "You're responsible of answering questions based on the video content.\n"
    "The following question are relevant to the latest frames, i.e. the end of the video.\n{}\n"
    "Decide whether existing visual content, especially latest frames, i.e. frames that near the end of the video, "
    "provide enough information for answering the question.\n"
    "Answer only with “Yes” or “No”.\n" + NOTHING_ELSE
)


def read_ovo_bench(request: Request) -> list[PublicQuestion]:
    """OVO-Bench (Li et al. 2025, arXiv:2501.05510), as `data` of its repository with the hub's archives unpacked
    (JoeLeelyf/OVO-Bench):

        FOLDER/ovo_bench_new.json
        FOLDER/src_videos/COIN/xZecGPPhbHE.mp4        or, cut at each question's time,
        FOLDER/chunked_videos/1516_0.mp4

    Each is asked about the video up to its time: of backward tracing and real-time perception once, of forward active
    responding at each of its times. 64 frames, evenly, the newest included.
    """
    path = next((request.folder / name for name in ANNOTATIONS if (request.folder / name).is_file()), None)
    path = path or request.folder / ANNOTATIONS[0]
    return as_streams(read_entries(path, json_list(path), lambda entry: list(_questions(request, entry))))


def _questions(request: Request, entry: Entry) -> Iterator[PublicQuestion]:
    name, task = entry.name_of("id"), entry.text("task")
    if task not in MODES:
        raise ValueError(f'it needs "task", one of {", ".join(MODES)}; got {task!r}')
    video = entry.file("video")
    common: dict[str, Any] = {"kind": task, "tags": {"task": task, "mode": MODES[task]}, "clip": video, "group": video}
    if "test_info" not in entry.fields:
        options = entry.texts("options")
        option_text = "; ".join(f"{chr(65 + place)}. {option}" for place, option in enumerate(options)) + ";"
        right = int(entry.number_of("gt"))
        if not 0 <= right < len(options):
            raise ValueError(f'it needs "gt", the place of one of its {len(options)} options from 0; got {right}')
        yield PublicQuestion(
            id=name,
            text=CHOICE_PROMPT.format(entry.text("question"), option_text),
            answers=(chr(65 + right),),
            rule=ovo_choice,
            **_segment(request, video, name, entry.number_of("realtime")),
            **common,
        )
        return
    for place, point in enumerate(entry.entries("test_info")):
        point_id = f"{name}_{place}"
        yield PublicQuestion(
            id=point_id,
            **_forward(task, entry, point),
            **_segment(request, video, point_id, point.number_of("realtime")),
            **common,
        )


def _forward(task: str, entry: Entry, point: Entry) -> dict[str, Any]:
    if task == "REC":
        text = COUNT_PROMPT.format(entry.text("activity"))
        return {"text": text, "answers": (str(int(point.number_of("count"))),), "rule": ovo_count}
    text = STEP_PROMPT.format(point.text("step")) if task == "SSR" else CLUE_PROMPT.format(entry.text("question"))
    return {"text": text, "answers": ("Yes" if point.number_of("type") else "No",), "rule": ovo_yes_no}


def _segment(request: Request, video: str, name: str, end_s: float) -> dict[str, Any]:
    full_video = request.folder / VIDEOS / video
    chunk = request.folder / CHUNKS / f"{name}.mp4"
    return {
        "path": _first(full_video, chunk),
        "sampling": request.sampling(Sampling(FRAMES, tiles=QWEN_TILES)),
        "start_s": request.start_s(end_s),
        "end_s": end_s,
    }


def _first(*paths: Path) -> Path:
    return next((path for path in paths if path.is_file()), paths[0])
