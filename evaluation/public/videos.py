"""Video-MME: questions about whole videos."""

from __future__ import annotations

from pathlib import Path

from evaluation.frames import Sampling
from evaluation.public.entries import Entry, parquet_rows, read_entries
from evaluation.public.items import QWEN_TILES, PublicQuestion, Request
from evaluation.public.rules import video_mme_choice

FRAMES = 64
"""The paper leaves the number to the model."""

CHOICES = 4
SUFFIXES = (".mp4", ".MP4", ".mkv")
PROMPT = (
    "Select the best answer to the following multiple-choice question based on the video. Respond with only the letter "
    "(A, B, C, or D) of the correct option.\n{}\nThe best answer is:"
)


def read_video_mme(request: Request) -> list[PublicQuestion]:
    """Video-MME (Fu et al. 2024, arXiv:2405.21075), as on the hub (lmms-lab/Video-MME), its archives unpacked:

        FOLDER/videomme/test-00000-of-00001.parquet
        FOLDER/data/fFjv93ACGo8.mp4
        FOLDER/subtitle/fFjv93ACGo8.srt

    64 frames, evenly, the first and the last of the video included. With subtitles, their lines at the times of the
    frames stand before the question; 156 videos have none.
    """
    sampling = request.sampling(Sampling(FRAMES, tiles=QWEN_TILES))

    def read(entry: Entry) -> list[PublicQuestion]:
        video, options = entry.file("videoID"), entry.texts("options")
        if len(options) != CHOICES:
            raise ValueError(f'it needs "options", a list of {CHOICES} texts; got {len(options)}')
        subtitles = request.folder / "subtitle" / f"{video}.srt"
        task = entry.text("task_type")
        return [
            PublicQuestion(
                id=entry.text("question_id"),
                kind=task,
                text=PROMPT.format("\n".join((entry.text("question"), *options))),
                answers=(entry.letter("answer", CHOICES),),
                path=_video(request.folder / "data", video),
                rule=video_mme_choice,
                sampling=sampling,
                tags={
                    "duration": entry.text("duration"),
                    "domain": entry.text("domain"),
                    "sub_category": entry.text("sub_category"),
                    "task": task,
                },
                clip=video,
                subtitles=subtitles if request.subtitles and subtitles.is_file() else None,
            )
        ]

    path = request.folder / "videomme" / "test-00000-of-00001.parquet"
    return read_entries(path, parquet_rows(path), read)


def _video(folder: Path, name: str) -> Path:
    paths = [folder / (name + suffix) for suffix in SUFFIXES]
    return next((path for path in paths if path.is_file()), paths[0])
