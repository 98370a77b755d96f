"""Fine-tuning as a program, from VQAv2 as published: `python -m arr_coc.finetune FOLDER -o FOLDER`."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import distributed

from arr_coc.adaptation.published import INSTANCES, check_pictures, is_vqa_v2, read_vqa_v2
from arr_coc.adaptation.training_run import CHECKPOINT, CURVE
from arr_coc.errors import ArrCocError, OptionError, counted
from arr_coc.finetune.loop import LOG_STEPS, FineTuneOptions, FineTuning
from arr_coc.finetune.module import TrainableQwen
from arr_coc.finetune.parts import LearningRates, shard

FSDP = "fsdp"
INTERRUPTED = 130
STEPS = 1000


def parser() -> argparse.ArgumentParser:
    """Return the parser of the program's options."""
    parse = argparse.ArgumentParser(prog="python -m arr_coc.finetune", description=__doc__, allow_abbrev=False)
    add = parse.add_argument
    add("data", metavar="FOLDER", type=Path, help="VQAv2 as published: questions, annotations and pictures")
    add("-o", "--output", metavar="FOLDER", type=Path, required=True, help="folder of the tuned model")
    add("-m", "--model", metavar="NAME", help="folder or hub name of a Qwen-VL model [bundled]")
    add("--allocator", metavar="FOLDER", help="allocator to go on from, made by adapt [the model's own, or a new one]")
    add("--split", default="train2014", help="split of VQAv2 [%(default)s]")
    add("--rate", metavar="R", type=float, default=1e-4, help="rate of the allocator; 0 freezes it [%(default)s]")
    add("--last-layers", metavar="N", type=int, help="also learn the last layers of the language model [none]")
    add("--all-layers", action="store_true", help="also learn the whole language model")
    add("--layer-rate", metavar="R", type=float, default=1e-5, help="rate of those layers [%(default)s]")
    add("--vision-rate", metavar="R", type=float, default=0.0, help="rate of the vision tower; 0 freezes it [0]")
    add("--budget", metavar="N", default="27%", help="visual tokens of a picture: 64, 27%% [27%%]")
    add("--steps", metavar="N", type=int, default=STEPS, help="steps of learning [%(default)s]")
    add("--batch", metavar="N", type=int, default=8, help="questions of a step, in each process [%(default)s]")
    add("--seed", metavar="N", type=int, default=1, help="seed of weights and of random draws [%(default)s]")
    add("--checkpointing", action="store_true", help="compute activations again for the backward pass")
    add("--offload", action="store_true", help="keep activations in the host's memory")
    add("--spread", metavar="NAME", help=f"{FSDP} in the processes of torchrun, or a device map: auto, balanced")
    add("--device", metavar="NAME", default="auto", help="cpu, cuda, cuda:1 [%(default)s]")
    add("--resume", action="store_true", help="go on from the last checkpoint")
    return parse


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; return its exit status."""
    options = parser().parse_args(arguments)
    logging.basicConfig(format="%(levelname)s: %(message)s", level=logging.WARNING)
    try:
        return _run(options)
    except (ArrCocError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    finally:
        if distributed.is_initialized():
            distributed.destroy_process_group()


def _run(options: argparse.Namespace) -> int:
    _check(options)
    examples = _examples(options.data, options.split)
    device = options.device
    if options.spread == FSDP:
        device = _join_processes(device)
    is_first = not distributed.is_initialized() or distributed.get_rank() == 0
    model = _load(options, device)
    if options.checkpointing:
        model.gradient_checkpointing_enable()
    model.offload_activations = options.offload
    if options.spread == FSDP:
        shard(model)
    tuning = FineTuning(
        model,
        examples,
        options.output,
        FineTuneOptions(options.steps, options.batch, _rates(options), options.seed),
        {"model": str(options.model), "split": options.split},
    )
    tuning.begin(resume=options.resume)
    interrupt = _Interrupt(is_first)

    def show(step: int, loss: float) -> None:
        line = f"{step} of {options.steps} steps, loss {loss:.3f}"
        if is_first and sys.stderr.isatty():
            print(f"\r{line} ", end="", file=sys.stderr, flush=True)
        elif is_first and (step % LOG_STEPS == 0 or step == options.steps):
            print(line, file=sys.stderr)

    finished = tuning.run(show, interrupt)
    learned = tuning.learned()
    if not is_first:
        return 0 if finished else INTERRUPTED
    if sys.stderr.isatty():
        print(file=sys.stderr)
    if tuning.unread:
        print(f"{counted(tuning.unread, 'draw')} of pictures that cannot be read were left out", file=sys.stderr)
    if not finished:
        print("not finished: the same command with --resume goes on from here", file=sys.stderr)
        return INTERRUPTED
    if options.spread == FSDP:  # gathered weights go into a model of their own
        model = _load(options, "cpu")
        model.load_state_dict(learned, strict=False)
    model.save_pretrained(options.output)
    (options.output / CHECKPOINT).unlink()
    print(f"wrote {options.output}; other commands use it with -m {options.output}", file=sys.stderr)
    return 0


def _check(options: argparse.Namespace) -> None:
    for name in ("steps", "batch"):
        if getattr(options, name) < 1:
            raise OptionError(f"--{name} is a number of at least 1, got {getattr(options, name)}")
    for name in ("rate", "layer_rate", "vision_rate"):
        if not 0 <= getattr(options, name) < 1:
            raise OptionError(
                f"--{name.replace('_', '-')} is a rate from 0 on and below 1, got {getattr(options, name)}"
            )
    if options.all_layers and options.last_layers is not None:
        raise OptionError("--all-layers and --last-layers both say which layers learn", "give one of them")
    if options.output.exists() and not options.output.is_dir():
        raise OptionError(f"{options.output} is a file", "name a folder")
    others = [path.name for path in options.output.glob("*") if path.name not in (CHECKPOINT, CURVE)]
    if others:
        raise OptionError(f"{options.output} holds something else ({min(others)})", "name a new or empty folder")


def _examples(folder: Path, split: str) -> list[dict[str, Any]]:
    """Return the questions of VQAv2, with the answer that most people gave. Raises OptionError."""
    if not folder.is_dir():
        raise OptionError(f"there is no folder {folder}", "give the folder of VQAv2 as it is published")
    if not is_vqa_v2(folder) and any(folder.glob(f"annotations/{INSTANCES}*.json")):
        raise OptionError(
            f"{folder} is COCO, which has no answers", "give VQAv2's folder; adapt --boxes learns from COCO"
        )
    questions = read_vqa_v2(folder, split)
    check_pictures(question.path for question in questions)
    return [{"image": each.path, "question": each.question, "answer": each.answer} for each in questions]


def _rates(options: argparse.Namespace) -> LearningRates:
    learns = options.all_layers or options.last_layers is not None
    return LearningRates(
        allocator=options.rate,
        language=options.layer_rate if learns else 0.0,
        last_layers=options.last_layers,
        vision=options.vision_rate,
    )


def _load(options: argparse.Namespace, device: str) -> TrainableQwen:
    """Load the model in float32, in which small steps of learning are not lost."""
    device_map = None if options.spread == FSDP else options.spread
    model = TrainableQwen.from_pretrained(
        options.model, device=device, dtype="float32", device_map=device_map, allocator=options.allocator
    )
    if model.qwen.allocator is None:
        model.new_allocator(seed=options.seed)
    model.allocator.configure(budget=options.budget)
    return model


def _join_processes(device: str) -> str:
    """Join the processes of torchrun; return the device of this one."""
    if "LOCAL_RANK" not in os.environ:
        raise OptionError(
            "--spread fsdp needs the processes of torchrun",
            "torchrun --nproc-per-node 4 -m arr_coc.finetune … --spread fsdp",
        )
    on_gpu = device != "cpu" and torch.cuda.is_available()
    if on_gpu:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    distributed.init_process_group("nccl" if on_gpu else "gloo")
    return f"cuda:{os.environ['LOCAL_RANK']}" if on_gpu else "cpu"


class _Interrupt:
    """Ctrl-C: the first ends the training after its step, and a checkpoint is written; the second ends at once."""

    def __init__(self, is_first: bool) -> None:
        self._is_first = is_first
        self._stopping = False
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._on_signal)

    def __call__(self) -> bool:
        return self._stopping

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._stopping:
            raise KeyboardInterrupt
        self._stopping = True
        if self._is_first:
            print("\nstopping: writing the checkpoint; Ctrl-C again ends at once", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
