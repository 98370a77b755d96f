"""Incremental encoding: how fast at a real model's dimensions, and how far from the truth on real and drawn frames.

`benchmarks.encode` runs it. Weights are random for speed, because none are needed for that; the drift
is measured with a trained model.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

from arr_coc.allocation.allocator import AllocatorOptions
from arr_coc.qwen.encoding import IncrementalEncoder, encode_packet
from arr_coc.qwen.families import family_of
from arr_coc.qwen.options import AnswerOptions, Decoding, IncrementalOptions
from arr_coc.qwen.preprocess import PixelNormalisation, Preprocessing, grid_regions
from arr_coc.qwen.qwenvl import QwenVL
from arr_coc.qwen.session import AnswerSession
from arr_coc.qwen.untrained import VISION
from arr_coc.types import NS_PER_S, Encode, FrameStamp, TileGrid, TokenPacket
from arr_coc.video.picture_allocator import FrameAllocator
from benchmarks.support.clips import CLIPS, clips_here
from stream.clock import MonotonicClock
from stream.config import CaptureConfig
from stream.sources.factory import open_source

GRID = TileGrid.of(1024, 1024)
TOKENS = 273
CHANGED_SHARE = 0.10
SPARSE_TARGET = 3.0
FULL_TARGET = 12.0
WARM_UP = 2
"""Frames that are not counted; the first is encoded whole."""

FULL_EVERY = 4
"""Frames per frame that is encoded with all tokens, which is slow."""

QUERY = "Say what happens."
DRIFT_TOKENS = 128
DRIFT_FRAMES = 40
ANSWERS_A_SECOND = 5
SCENES = ("scene:demo", "scene:moving")
CLIP_NAMES = ("static_signer.mkv", "static_cars_topdown.mp4", "screen_terminal.gif")

ONLY_NEW = IncrementalOptions(every_frames=None, share=0.0, drift_limit=None)
POLICIES = {
    "no refresh": ONLY_NEW,
    "all every 16 frames": replace(ONLY_NEW, every_frames=16),
    "5 % a frame": replace(ONLY_NEW, share=0.05),
    "10 % a frame": replace(ONLY_NEW, share=0.10),
    "20 % a frame": replace(ONLY_NEW, share=0.20),
    "10 % a frame, limit 0.5": replace(ONLY_NEW, share=0.10, drift_limit=0.5),
    "default": IncrementalOptions(),
}


def model_2b(device: str, dtype: torch.dtype) -> QwenVL:
    """Qwen3-VL-2B's vision encoder with random weights, and next to no language model."""
    text = {
        "vocab_size": 32,
        "hidden_size": 2048,
        "intermediate_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "num_key_value_heads": 1,
        "head_dim": 32,
        "rope_scaling": {"rope_type": "default", "mrope_section": [6, 5, 5], "mrope_interleaved": True},
    }
    torch.manual_seed(0)
    with torch.device(device):
        model = Qwen3VLForConditionalGeneration(Qwen3VLConfig(text_config=text, vision_config=VISION)).to(dtype).eval()
    preprocessing = Preprocessing(16, PixelNormalisation(), 32 * 32, 4096 * 4096)
    return QwenVL(
        model, None, preprocessing, "vision encoder of Qwen3-VL-2B, random weights", family_of("qwen3_vl", "qwen3_vl")
    )


def changing_packets(tokens: int, frames: int, epoch: int = 1) -> list[TokenPacket]:
    """The same tiles of noise over and over, a tenth of them new in every frame."""
    random = np.random.default_rng(0)
    regions = grid_regions(GRID).numpy().astype(np.int32)[np.sort(random.permutation(GRID.tiles)[:tokens])]
    pixels = random.integers(0, 256, (tokens, 3, 32, 32), dtype=np.uint8)
    packets = []
    for index in range(frames):
        packets.append(TokenPacket(FrameStamp(index, 0, 0, epoch), GRID, regions, np.ones(tokens, np.float32), pixels))
        changed = random.permutation(tokens)[: round(CHANGED_SHARE * tokens)]
        pixels = pixels.copy()
        pixels[changed] = random.integers(0, 256, (len(changed), 3, 32, 32), dtype=np.uint8)
    return packets


def measure_speed(qwen: QwenVL, repeats: int) -> dict[str, Any]:
    """Milliseconds a frame: 273 of 1024 tokens, of which a tenth changes with every frame, and all 1024.

    The cost of encoding everything now and then is spread over the frames between.
    """
    options = IncrementalOptions()
    times = _times_ms(qwen, options, repeats)
    frame_ms = {way: statistics.median(series) for way, series in times.items()}
    interval = options.every_frames or 1
    frame_ms["incremental"] = ((interval - 1) * frame_ms["incremental"] + frame_ms["sparse"]) / interval
    than_sparse = frame_ms["sparse"] / frame_ms["incremental"]
    than_full = frame_ms["full"] / frame_ms["incremental"]
    return {
        "model": qwen.model_id,
        "dtype": str(qwen.model.dtype).removeprefix("torch."),
        "device": str(qwen.vision_device),
        "clock": "wall" if qwen.vision_device.type == "cuda" else "processor time, all threads",
        "threads": torch.get_num_threads(),
        "tokens": {"full": GRID.tiles, "sparse": TOKENS, "changed": round(CHANGED_SHARE * TOKENS)},
        "options": asdict(options),
        "times_ms": times,
        "frame_ms": frame_ms,
        "times_faster_than_sparse": than_sparse,
        "times_faster_than_full": than_full,
        "targets": {"than sparse": SPARSE_TARGET, "than full": FULL_TARGET},
        "met": than_sparse >= SPARSE_TARGET and than_full >= FULL_TARGET,
    }


def _times_ms(qwen: QwenVL, options: IncrementalOptions, repeats: int) -> dict[str, list[float]]:
    """The ways in turns, so that what else the machine does falls on all of them; frames between two whole ones."""
    encoder = IncrementalEncoder(replace(options, every_frames=None))
    (full_packet,) = changing_packets(GRID.tiles, 1)
    times: dict[str, list[float]] = {"incremental": [], "sparse": [], "full": []}

    def take(way: str, packet: TokenPacket, memory: IncrementalEncoder | None = None) -> None:
        encode: Encode = "sparse" if memory is None else "incremental"
        times[way].append(_took_ms(qwen, lambda: encode_packet(qwen, packet, encode, memory)))

    for index, packet in enumerate(changing_packets(TOKENS, repeats + WARM_UP)):
        take("incremental", packet, encoder)
        take("sparse", packet)
        if index % FULL_EVERY == WARM_UP:
            take("full", full_packet)
    return {"incremental": times["incremental"][WARM_UP:], "sparse": times["sparse"][WARM_UP:], "full": times["full"]}


def _took_ms(qwen: QwenVL, work: Callable[[], object]) -> float:
    """Wall time on CUDA. On the CPU the process's own time, which what else the machine does falsifies less."""
    on_cuda = qwen.vision_device.type == "cuda"
    clock = time.perf_counter if on_cuda else time.process_time
    started = clock()
    work()
    if on_cuda:
        torch.cuda.synchronize()
    return (clock() - started) * 1e3


def stream_packets(qwen: QwenVL, address: str, frames: int) -> list[TokenPacket]:
    """Packets that a run would send to the answer stage about a source, five times a second."""
    clock = MonotonicClock()
    options = AllocatorOptions(budget=DRIFT_TOKENS)
    stream = FrameAllocator(options, qwen.realiser)
    stream.allocator.set_query(qwen.embed_query(QUERY))
    packets: list[TokenPacket] = []
    due_ns = 0
    with closing(open_source(address, CaptureConfig(), clock)) as source:
        for frame in source.frames():
            stamp = FrameStamp(frame.frame_index, frame.media_ns, frame.capture_ns)
            allocated = stream.allocate(frame.planes, stamp, frame.discontinuity)
            if frame.media_ns >= due_ns:
                packets.append(allocated.packet)
                stream.allocator.mark_answered()
                due_ns = frame.media_ns + NS_PER_S // ANSWERS_A_SECOND
            if len(packets) == frames:
                break
    return packets


def drift_sources() -> list[str]:
    """Scenes, and the present clips; reports those that are left out."""
    return [*SCENES, *map(str, clips_here(CLIPS, CLIP_NAMES))]


def measure_drift(qwen: QwenVL, addresses: Sequence[str], frames: int) -> dict[str, Any]:
    """Distance of incremental embeddings from sparse ones, ‖incremental − sparse‖ / ‖sparse‖, by clip and policy.

    `same_answers` is the share of frames about which both give the same text.
    """
    clips = {}
    for address in addresses:
        packets = stream_packets(qwen, address, frames)
        truth = [encode_packet(qwen, packet, "sparse").tokens.embeds for packet in packets]
        texts = _texts(qwen, packets)
        clips[Path(address).name] = {
            "frames": len(packets),
            "tokens": statistics.mean(len(packet.regions) for packet in packets),
            "shots": len({packet.stamp.epoch for packet in packets}),
            "policies": {
                name: _drift(qwen, packets, truth, options)
                | {"same_answers": _same(texts, _texts(qwen, packets, options))}
                for name, options in POLICIES.items()
            },
        }
    return {"model": qwen.model_id, "answers_a_second": ANSWERS_A_SECOND, "budget": DRIFT_TOKENS, "clips": clips}


def _texts(qwen: QwenVL, packets: Sequence[TokenPacket], options: IncrementalOptions | None = None) -> list[str]:
    """The text about each frame; encoded incrementally if `options` are given."""
    encode: Encode = "sparse" if options is None else "incremental"
    answers = AnswerOptions(encode, Decoding(max_tokens=24), incremental=options or IncrementalOptions())
    session = AnswerSession(qwen, answers)
    return ["".join(session.answer(packet, QUERY)) for packet in packets]


def _same(texts: Sequence[str], others: Sequence[str]) -> float:
    return statistics.mean(text == other for text, other in zip(texts, others, strict=True))


def _drift(
    qwen: QwenVL, packets: Sequence[TokenPacket], truth: Sequence[torch.Tensor], options: IncrementalOptions
) -> dict[str, float | None]:
    encoder = IncrementalEncoder(options)
    errors, encoded, estimates = [], [], []
    for packet, reference in zip(packets, truth, strict=True):
        embeds = encode_packet(qwen, packet, "incremental", encoder).tokens.embeds
        report = encoder.report
        errors.append(float((embeds - reference).norm() / reference.norm()))
        encoded.append(report.encoded / report.regions)
        if report.drift is not None:
            estimates.append(report.drift)
    return {
        "error_mean": statistics.mean(errors),
        "error_max": max(errors),
        "encoded_share": statistics.mean(encoded),
        "estimated_drift_mean": statistics.mean(estimates) if estimates else None,
    }
