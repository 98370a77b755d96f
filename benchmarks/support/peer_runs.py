"""One process of the benchmark `peers`: a program that answers a question about one picture, some times.

    python -m benchmarks.support.peer_runs MODEL PICTURE TOKENS ANSWERS THREADS ours DTYPE BUDGET
    python -m benchmarks.support.peer_runs MODEL PICTURE TOKENS ANSWERS THREADS ours DTYPE BUDGET memory
    python -m benchmarks.support.peer_runs MODEL PICTURE TOKENS ANSWERS THREADS transformers DTYPE
    python -m benchmarks.support.peer_runs MODEL PICTURE TOKENS ANSWERS THREADS llama.cpp TEXT VISION VISUAL_TOKENS
    PYTHON -m benchmarks.support.peer_runs EXPORTED PICTURE TOKENS ANSWERS THREADS openvino WIDTHxHEIGHT PRUNED

The last line of the output is JSON: the visual tokens, the peak memory, and of each answer but the first the processor
and wall seconds to its first token and of all others.

`memory`: answers about a quiet scene, of which QUIET_PX square pixels change from one to the next. `openvino`: a
folder that `optimum-cli` exported, by a PYTHON that has OpenVINO; PRUNED percent of the visual tokens are dropped after
it encoded them.
"""

from __future__ import annotations

import base64
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from benchmarks.support.harness import resident_mib

QUERY = "What do you see?"

QUIET_PX = 64
"""Side of the square that changes between two answers about a quiet scene: 4 of a picture's 920 tiles."""

Answer = Callable[[Callable[[], None]], int]
"""Gives one answer, calls its argument at each piece of text, and returns the visual tokens."""


def arr_coc_answers(
    model: Path, picture: Path, tokens: int, threads: int, dtype: str, budget: str, *memory: str
) -> Answer:
    """This project's library.

    Args:
        model: Folder of the model.
        picture: File of the picture.
        tokens: Tokens of an answer.
        threads: Threads of torch.
        dtype: Precision of the weights.
        budget: Visual tokens, such as "27%".
        memory: Anything for the visual memory of a fixed camera.
    """
    import torch

    from arr_coc.model import ARRCOCQwen

    torch.set_num_threads(threads)
    qwen = ARRCOCQwen.from_pretrained(model, dtype=dtype, device="cpu")
    pixels, noise = np.asarray(Image.open(picture).convert("RGB")), np.random.default_rng(0)
    if memory:
        return with_memory(qwen.qwen, pixels, tokens, budget)

    def answer(note: Callable[[], None]) -> int:
        fresh = pixels ^ noise.integers(0, 2, pixels.shape, dtype=np.uint8)  # nothing is kept of the one before
        result = qwen.generate(fresh, QUERY, max_tokens=tokens, budget=budget, on_text=lambda _: note())
        return result.tokens_used

    return answer


def with_memory(qwen: Any, pixels: Any, tokens: int, budget: str) -> Answer:
    """The visual memory of a fixed camera.

    Args:
        qwen: The model.
        pixels: uint8 RGB [H, W, 3].
        tokens: Tokens of an answer.
        budget: Visual tokens, such as "27%".
    """
    from arr_coc.allocation.allocator import AllocatorOptions
    from arr_coc.allocation.group import GroupOptions
    from arr_coc.qwen.options import AnswerOptions, Decoding
    from arr_coc.qwen.session import AnswerSession
    from arr_coc.types import NS_PER_S, FrameStamp
    from arr_coc.video.picture_allocator import PictureAllocator

    memory = GroupOptions(2048, 600.0)
    allocator = PictureAllocator(qwen, QUERY, AllocatorOptions(budget=budget, explore=0.0, memory=memory), "sparse")
    session, count = AnswerSession(qwen, AnswerOptions("sparse", Decoding(tokens))), 0

    def answer(note: Callable[[], None]) -> int:
        nonlocal count
        fresh, place = pixels.copy(), QUIET_PX * count
        fresh[QUIET_PX : 2 * QUIET_PX, place : place + QUIET_PX] ^= 255
        packet = allocator.allocate(fresh, FrameStamp(count, count * NS_PER_S, 0))
        count += 1
        for _ in session.answer(allocator.group if packet.place else packet, QUERY):
            note()
        allocator.on_answer(session.last.feedback)
        return int(session.last.work.memory_tokens)

    return answer


def openvino(exported: Path, picture: Path, tokens: int, threads: int, size: str, pruned: str) -> Answer:
    """OpenVINO GenAI.

    Args:
        exported: Folder of the exported model.
        picture: File of the picture.
        tokens: Tokens of an answer.
        threads: Threads of OpenVINO.
        size: Size to which the picture is scaled, such as "640x384".
        pruned: Per cent of the visual tokens that its pruning drops.
    """
    import openvino_genai
    from openvino import Tensor

    pipeline = openvino_genai.VLMPipeline(str(exported), "CPU", INFERENCE_NUM_THREADS=threads, NUM_STREAMS=1)
    config = pipeline.get_generation_config()
    config.max_new_tokens, config.ignore_eos, config.do_sample = tokens, True, False
    if int(pruned):
        config.pruning_ratio = int(pruned)
    image = Image.open(picture).convert("RGB")
    width, height = map(int, size.split("x"))

    def answer(note: Callable[[], None]) -> int:
        scaled = Tensor(np.asarray(image.resize((width, height), Image.Resampling.BICUBIC))[None])

        def on_text(_: str) -> Any:
            note()
            return openvino_genai.StreamingStatus.RUNNING

        pipeline.generate(QUERY, images=[scaled], generation_config=config, streamer=on_text)
        return width * height // 1024 * (100 - int(pruned)) // 100

    return answer


def transformers(model: Path, picture: Path, tokens: int, threads: int, dtype: str) -> Answer:
    """Stock transformers, all tokens of the picture.

    Args:
        model: Folder of the model.
        picture: File of the picture.
        tokens: Tokens of an answer.
        threads: Threads of torch.
        dtype: Precision of the weights.
    """
    import torch
    from transformers import AutoModelForImageTextToText, AutoTokenizer
    from transformers.models.auto.image_processing_auto import AutoImageProcessor

    torch.set_num_threads(threads)
    stock = AutoModelForImageTextToText.from_pretrained(
        model, dtype=getattr(torch, dtype), use_safetensors=True, trust_remote_code=False
    ).eval()
    tokenizer = AutoTokenizer.from_pretrained(model, trust_remote_code=False)
    processor = AutoImageProcessor.from_pretrained(model, trust_remote_code=False)
    image = Image.open(picture).convert("RGB")

    class Streamer:
        """Called with the prompt first, and then with each token."""

        def __init__(self, note: Callable[[], None]) -> None:
            self._note, self._calls = note, 0

        def put(self, _: Any) -> None:
            self._calls += 1
            if self._calls > 1:
                self._note()

        def end(self) -> None:
            pass

    def answer(note: Callable[[], None]) -> int:
        pixels = processor(images=[image], return_tensors="pt")
        count = int(pixels["image_grid_thw"].prod()) // 4
        content = [{"type": "image"}, {"type": "text", "text": QUERY}]
        chat = tokenizer.apply_chat_template(
            [{"role": "user", "content": content}], tokenize=False, add_generation_prompt=True
        )
        ids = tokenizer(chat.replace("<|image_pad|>", "<|image_pad|>" * count), return_tensors="pt")
        types = (ids["input_ids"] == stock.config.image_token_id).long()
        options = {"max_new_tokens": tokens, "do_sample": False, "streamer": Streamer(note)}
        with torch.inference_mode():
            stock.generate(**ids, **pixels, mm_token_type_ids=types, **options)
        return count

    return answer


def llama_cpp(picture: Path, tokens: int, threads: int, text: str, vision: str, visual_tokens: str) -> Answer:
    """llama.cpp by the package `xllamacpp`.

    Args:
        picture: File of the picture.
        tokens: Tokens of an answer.
        threads: Threads of llama.cpp.
        text: GGUF of the language model.
        vision: GGUF of the vision encoder.
        visual_tokens: Number of tokens to which llama.cpp scales the picture.
    """
    import xllamacpp

    parameters = xllamacpp.CommonParams()
    parameters.model.path, parameters.mmproj.path = text, vision
    parameters.n_ctx, parameters.n_parallel = 4096, 1
    parameters.cache_prompt, parameters.cache_ram_mib = False, 0
    for part in (parameters.cpuparams, parameters.cpuparams_batch):
        part.n_threads = threads
    parameters.image_min_tokens = parameters.image_max_tokens = int(visual_tokens)
    server = xllamacpp.Server(parameters)
    url = "data:image/png;base64," + base64.b64encode(picture.read_bytes()).decode()
    content = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": QUERY}]
    request = {"messages": [{"role": "user", "content": content}], "max_tokens": tokens, "temperature": 0}
    request |= {"stream": True, "ignore_eos": True, "cache_prompt": False}

    def answer(note: Callable[[], None]) -> int:
        prompt_tokens = 0

        def on_chunk(chunk: dict[str, Any]) -> None:
            nonlocal prompt_tokens
            prompt_tokens = chunk.get("timings", {}).get("prompt_n", prompt_tokens)
            if any(choice["delta"].get("content") for choice in chunk["choices"]):
                note()

        server.handle_chat_completions(request, on_chunk)
        return prompt_tokens

    return answer


def main() -> None:
    model, picture = Path(sys.argv[1]), Path(sys.argv[2])
    tokens, answers, threads = map(int, sys.argv[3:6])
    program, *options = sys.argv[6:]
    if program == "ours":
        answer = arr_coc_answers(model, picture, tokens, threads, *options)
    elif program == "transformers":
        answer = transformers(model, picture, tokens, threads, *options)
    elif program == "openvino":
        answer = openvino(model, picture, tokens, threads, *options)
    else:
        answer = llama_cpp(picture, tokens, threads, *options)
    visual, rows = 0, []
    for number in range(answers + 1):
        start, marks = (sum(os.times()[:2]), time.monotonic()), list[tuple[float, float]]()
        visual = answer(lambda marks=marks: marks.append((sum(os.times()[:2]), time.monotonic())))
        first, last = marks[0], marks[-1]
        if number:
            rows.append(
                {
                    "first_cpu_s": first[0] - start[0],
                    "first_wall_s": first[1] - start[1],
                    "token_cpu_s": (last[0] - first[0]) / (len(marks) - 1),
                    "token_wall_s": (last[1] - first[1]) / (len(marks) - 1),
                    "total_cpu_s": sum(os.times()[:2]) - start[0],
                }
            )
    # `getrusage` would count the parent's memory, too.
    print(json.dumps({"tokens": visual, "peak_mib": int(resident_mib("self")), "answers": rows}), flush=True)


if __name__ == "__main__":
    main()
