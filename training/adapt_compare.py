"""`python -m training.adapt_compare`: labels against the model's own attention, and FiLM against cross-attention.

    python -m training.adapt_compare --runs runs/adapt --clips 500 --steps 1500

Every run learns from the same drawn clips for as many steps; only the tiles' targets, or the query scorer,
differ. Runs and cases that the folder holds are not made again. What is reported is measured against the boxes, on
clips of the test split.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import cv2
import numpy as np
import torch
import typer

from arr_coc.adaptation.accuracy import measure
from arr_coc.adaptation.cases import AllocatorCase, Batches, Embedder
from arr_coc.adaptation.losses import attention_targets, box_loss
from arr_coc.adaptation.trainer import MapObjective, Trainer, new_layer
from arr_coc.adaptation.training_run import CHECKPOINT, Length
from arr_coc.layer import ARRCOCLayer
from arr_coc.layer_weights import fingerprint
from arr_coc.qwen.loading import load_qwen
from arr_coc.qwen.qwenvl import QwenVL
from arr_coc.relevance.balancing import RelevanceRealiser
from arr_coc.relevance.knowing import QueryScorer
from training.allocator_compare import FIRST_MEASURED, held_out_cases
from training.cases import FIRST_TRAINED, cases_of, random_samples
from training.objectives import attended

RESULTS = Path(__file__).parent / "results" / "adapt.json"
BOXES, ATTENTION = "boxes", "attention"
SCORERS: tuple[QueryScorer, ...] = ("film", "cross")


@dataclass(frozen=True, slots=True)
class ComparedRun:
    """One training: the tiles' targets, the query scorer, and the seed of weights and batches."""

    targets: str
    scorer: QueryScorer
    seed: int

    @property
    def name(self) -> str:
        return f"{self.targets}-{self.scorer}-{self.seed}"


def learned_cases(qwen: QwenVL, clips: int) -> dict[str, list[AllocatorCase]]:
    """The same questions about the same frames, with what the boxes hold and with what the model looks at."""
    samples = list(random_samples("train", FIRST_TRAINED, clips))
    attention_cases = [replace(case, target=attention_targets(case.target)) for case in attended(samples, qwen)]
    return {BOXES: list(cases_of(samples)), ATTENTION: attention_cases}


class Comparison:
    """Runs, trained unless their folders hold them already, all on the same cases."""

    def __init__(self, qwen: QwenVL, clips: int, steps: int, runs: Path) -> None:
        self._qwen, self._clips, self._steps, self._runs = qwen, clips, steps, runs

    @cached_property
    def _cases(self) -> dict[str, list[AllocatorCase]]:
        return learned_cases(self._qwen, self._clips)

    def trained(self, run: ComparedRun) -> ARRCOCLayer:
        """The layer of a run."""
        torch.manual_seed(run.seed)
        folder = self._runs / run.name
        layer = new_layer(self._qwen, run.scorer)
        trainer = Trainer(layer, folder, folder, Length(0.0, self._steps), made_for={"run": run.name})
        if (folder / CHECKPOINT).is_file():
            trainer.course.resume()
        if trainer.course.progress < 1:
            rng = np.random.default_rng([run.seed, trainer.course.steps])
            trainer.run(MapObjective(Batches(self._cases[run.targets], Embedder(self._qwen), rng), box_loss))
        return layer

    def table(self, compared: Sequence[ComparedRun], measured: int) -> dict[str, Any]:
        """Figures of all runs, and of none, on the same held-out cases."""
        cases, embed = held_out_cases("test", FIRST_MEASURED, measured), Embedder(self._qwen)
        levels = self._qwen.knows_levels
        table = {"untrained": measure(RelevanceRealiser(), cases, embed, levels=levels)}
        for run in compared:
            table[run.name] = measure(self.trained(run).realiser, cases, embed, levels=levels)
            print(run.name, table[run.name]["all"], flush=True)
        return table


def means_of(table: dict[str, Any], compared: Sequence[ComparedRun]) -> dict[str, dict[str, float]]:
    """The figures over all questions, each the mean of a way's seeds."""
    means: dict[str, dict[str, float]] = {}
    for targets, scorer in dict.fromkeys((run.targets, run.scorer) for run in compared):
        rows = [table[run.name]["all"] for run in compared if (run.targets, run.scorer) == (targets, scorer)]
        means[f"{targets}-{scorer}"] = {
            name: round(float(np.mean([row[name] for row in rows])), 4) for name in rows[0] if name != "cases"
        }
    return means


def main(
    runs: Annotated[Path, typer.Option(help="Folder with a folder for every run.")],
    model: Annotated[str, typer.Option(help="The model's folder.")] = "models/scenes-tiny",
    clips: Annotated[int, typer.Option(help="Drawn clips to learn from.")] = 500,
    steps: Annotated[int, typer.Option(help="Steps of every run.")] = 1500,
    seeds: Annotated[int, typer.Option(help="Runs of each kind.")] = 2,
    measured: Annotated[int, typer.Option(help="Drawn clips to measure on.")] = 100,
    out: Annotated[Path, typer.Option(help="Path of the comparison.")] = RESULTS,
) -> None:
    """Compare what allocators learn from, and how they compare tiles with questions."""
    torch.set_num_threads(1)
    cv2.setNumThreads(1)
    qwen = load_qwen(model, device="cpu")
    compared = [
        ComparedRun(targets, scorer, seed)
        for seed in range(1, seeds + 1)
        for scorer in SCORERS
        for targets in (BOXES, ATTENTION)
    ]
    table = Comparison(qwen, clips, steps, runs).table(compared, measured)
    means = means_of(table, compared)
    result = {
        "model": qwen.model_id,
        "weights": fingerprint(qwen.model.get_input_embeddings().weight),
        "clips": clips,
        "steps": steps,
        "parameters": {
            scorer: sum(rows.numel() for rows in new_layer(qwen, scorer).realiser.participation.parameters())
            for scorer in SCORERS
        },
        "iou_share_of_labels": {
            scorer: round(means[f"{ATTENTION}-{scorer}"]["matched_iou"] / means[f"{BOXES}-{scorer}"]["matched_iou"], 3)
            for scorer in SCORERS
        },
        "means": means,
        "test": table,
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(result, indent=2) + "\n", "utf-8")
    print(json.dumps(result["iou_share_of_labels"]))


if __name__ == "__main__":
    typer.run(main)
