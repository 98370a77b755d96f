"""Events, packets and replies made by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from arr_coc.types import NS_PER_S, FramePacket, FrameStamp, GroupPlace, Question, TileGrid, TokenPacket, Work
from stream.control import AskAside
from stream.events import (
    Answer,
    AnswerTiming,
    Detection,
    Detections,
    FrameReady,
    Glance,
    GlanceTiming,
    Match,
    SegmentWritten,
    ShadowCheck,
    SideAnswer,
    Summary,
    VerdictChanged,
    YesNoResult,
    YesNoTiming,
)
from stream.protocol.messages import AnswerReply, CheckScore, GlanceReply, YesNoReply

QUESTION = Question("what?")

TIMING = AnswerTiming(encode_ms=10.0, prefill_ms=20.0, decode_ms=30.0, ttft_ms=40.0, total_ms=60.123456789)


def answer(pts_s: float, text: str, *, frame_index: int = 0, timing: AnswerTiming | None = TIMING) -> Answer:
    return Answer(
        answer=0,
        frame_index=frame_index,
        pts_s=pts_s,
        start_s=pts_s,
        end_s=pts_s,
        trigger="every",
        query="What?",
        text=text,
        tokens_used=64,
        tokens_total=240,
        text_tokens=5,
        timing=timing,
    )


def side_answer(question: AskAside, text: str) -> SideAnswer:
    return SideAnswer(
        question=question.number,
        query=question.query,
        text=text,
        frame_index=7,
        start_s=1.0,
        end_s=3.0,
        frames=2,
        tokens_used=64,
        tokens_total=240,
        text_tokens=3,
        prefilled_tokens=80,
    )


def detections(
    pts_s: float, *objects: Detection, frame_index: int = 0, size: tuple[int, int] = (190, 120)
) -> Detections:
    """A cat's box and a point on a dog, unless other `objects` are given, in a picture of `size` (width, height)."""
    usual = [
        Detection(label="cat", box=[19.0, 12.0, 95.0, 60.0], score=0.5),
        Detection(label="dog", point=[38.0, 90.0]),
    ]
    return Detections(
        frame_index=frame_index,
        pts_s=pts_s,
        answer=0,
        width_px=size[0],
        height_px=size[1],
        objects=[*objects] or usual,
    )


def look(pts_s: float, yes: float = 0.97, holds: str | None = "yes", watch: str = "here") -> YesNoResult:
    return YesNoResult(
        watch=watch,
        frame_index=0,
        pts_s=pts_s,
        trigger="change",
        question="is it here?",
        yes=yes,
        certain=0.5,
        holds=holds,
        tokens_used=64,
        tokens_total=240,
        timing=YesNoTiming(encode_ms=10.0, prefill_ms=20.0, total_ms=60.0),
    )


def turned(pts_s: float, to: str = "yes", yes: float = 0.97, watch: str = "here") -> VerdictChanged:
    return VerdictChanged(watch=watch, frame_index=0, pts_s=pts_s, question="is it here?", to=to, yes=yes, certain=0.5)


def match(
    pts_s: float, number: int = 1, watch: str = "here", question: str = "is it here?", *, frame_index: int = 0
) -> Match:
    return Match(
        match=number, watch=watch, frame_index=frame_index, pts_s=pts_s, question=question, yes=0.97, certain=0.5
    )


def shadow(pts_s: float) -> ShadowCheck:
    return ShadowCheck(
        answer=0,
        frame_index=0,
        pts_s=pts_s,
        query="What?",
        text="a cat",
        full_text="a black cat",
        same=False,
        words=0.8,
        tokens_used=64,
        tokens_full=240,
    )


def glance(pts_s: float, **changes: Any) -> Glance:
    timing = GlanceTiming(encode_ms=10.0, prefill_ms=20.0, total_ms=35.0)
    fields: dict[str, Any] = {"frame_index": 0, "query": "What?", "tokens_used": 60, "tokens_total": 240}
    return Glance(pts_s=pts_s, **{**fields, "timing": timing, **changes})


def frame(index: int, pts_s: float, **changes: Any) -> FrameReady:
    fields: dict[str, Any] = {
        "frame_index": index,
        "pts_s": pts_s,
        "capture_ns": round(pts_s * 1e9),
        "ready_ns": round(pts_s * 1e9) + 5_000_000,
        "texture_ms": 1.0,
        "allocate_ms": 2.0,
        "dirty_share": 0.5,
        "tokens": 64,
        "tiles": 240,
        "jitter_share": 0.01,
    }
    return FrameReady(**{**fields, **changes})


def summary(**changes: Any) -> Summary:
    fields: dict[str, Any] = {
        "frames": 3,
        "duration_s": 1.0,
        "answers": 2,
        "cuts": 1,
        "skipped": 0,
        "dropped": {},
        "mean_tokens": 64.0,
        "mean_tiles": 240.0,
        "work_ratio": 3.14,
        "mean_dirty_share": 0.5,
        "ended": "finished",
        "backend": "cpu",
        "timing": {"wall_s": 1.5, "fps": 2.0},
    }
    return Summary(**{**fields, **changes})


def make_token_packet(stamp: FrameStamp, grid: TileGrid, tokens: int = 1, value: int = 0) -> TokenPacket:
    """A packet of `tokens` tokens of the first tile, all of whose pixels have this value."""
    regions, pixels = np.zeros((tokens, 3), np.int32), np.full((tokens, 3, 32, 32), value, np.uint8)
    return TokenPacket(stamp, grid, regions, np.ones(tokens, np.float32), pixels)


def make_group_packet(place: tuple[int, ...], tokens: int = 2, second: int = 0, side_px: int = 64) -> TokenPacket:
    """The packet of a frame in a group of pictures, whose pixels have the value of `second`."""
    packet = make_token_packet(FrameStamp(second, second * NS_PER_S, 0), TileGrid.of(side_px, side_px), tokens, second)
    return replace(packet, place=GroupPlace(*place))


def make_frame_packet(stamp: FrameStamp, grid: TileGrid, value: int = 0) -> FramePacket:
    """A whole frame, all of whose pixels have this value; its first tile was chosen."""
    image = np.full((grid.padded_height_px, grid.padded_width_px, 3), value, np.uint8)
    return FramePacket(stamp, grid, np.zeros((1, 3), np.int32), np.ones(grid.shape, np.float32), image)


def make_work(fields: dict[str, Any], **figures: Any) -> Work:
    """The work with these figures, and those among `fields`, which are taken out."""
    names = [name for name in fields if name in Work.__dataclass_fields__]
    return Work(**{**figures, **{name: fields.pop(name) for name in names}})


def make_answer_reply(number: int, text: str, **fields: Any) -> AnswerReply:
    work = make_work(fields, tokens_used=2, text_tokens=3, encode_ms=1.0, prefill_ms=2.0, decode_ms=3.0)
    return AnswerReply(answer=number, text=text, work=work, **fields)


def make_yes_no_reply(number: int, *scores: tuple[float, float], **fields: Any) -> YesNoReply:
    work = make_work(fields, tokens_used=2, encode_ms=1.0, prefill_ms=2.0)
    check_scores = tuple(CheckScore(*score) for score in scores or ((0.75, 0.5),))
    return YesNoReply(answer=number, scores=check_scores, work=work, **fields)


def make_overview(stamp: FrameStamp, grid: TileGrid, tokens: int = 1, value: int = 0) -> TokenPacket:
    """A packet of `tokens` tokens, all of which are an overview."""
    return replace(make_token_packet(stamp, grid, tokens, value), overview=tokens)


def make_glance_reply(number: int, **fields: Any) -> GlanceReply:
    work = make_work(fields, tokens_used=1, encode_ms=1.0, prefill_ms=2.0, flops=5)
    return GlanceReply(glance=number, work=work, **fields)


def segment(
    start_s: float = 0.0, duration_s: float = 2.0, *, file: str = "", header: str = "", **fields: Any
) -> SegmentWritten:
    """A segment of the video, in a track that begins with media time."""
    return SegmentWritten(
        file=file,
        header=header,
        start_s=start_s,
        duration_s=duration_s,
        **{
            "track_s": start_s,
            "size_bytes": 1000,
            "codec": "avc1.64001e",
            "width_px": 64,
            "height_px": 48,
            **fields,
        },
    )
