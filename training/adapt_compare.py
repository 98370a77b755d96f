"""`python -m training.adapt_compare`: labels against the model's own attention, and FiLM against cross-attention.

    python -m training.adapt_compare --runs runs/adapt --clips 500 --steps 1500

Every run learns from the same drawn clips for as many steps; only what is wanted of the tiles, or the query scorer, is
another. Runs and cases that the folder holds are not made again. What is reported is measured against the boxes, on
clips of the test split.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import cv2
import numpy as np
import torch
import typer

from arr_coc.adaptation.cases import AllocatorCase, Batches, Embedder
from arr_coc.adaptation.found import measure
from arr_coc.adaptation.losses import box_loss, looked_at
from arr_coc.adaptation.trainer import MapObjective, Trainer, new_layer
from arr_coc.adaptation.training_run import CHECKPOINT, Length
from arr_coc.layer import ARRCOCLayer, fingerprint
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
    """One training: what is wanted of the tiles, the query scorer, and the seed of weights and batches."""

    wanted: str
    scorer: QueryScorer
    seed: int

    @property
    def name(self) -> str:
        return f"{self.wanted}-{self.scorer}-{self.seed}"


def learned_cases(qwen: QwenVL, clips: int) -> dict[str, list[AllocatorCase]]:
    """The same questions about the same frames, with what the boxes hold and with what the model looks at."""
    samples = list(random_samples("train", FIRST_TRAINED, clips))
    looked = [replace(case, wanted=looked_at(case.wanted)) for case in attended(samples, qwen)]
    return {BOXES: list(cases_of(samples)), ATTENTION: looked}


def trained(run: ComparedRun, qwen: QwenVL, cases: Sequence[AllocatorCase], steps: int, runs: Path) -> ARRCOCLayer:
    """The layer of a run, which its folder holds once it is trained."""
    torch.manual_seed(run.seed)
    folder = runs / run.name
    trainer = Trainer(new_layer(qwen, run.scorer), folder, folder, Length(0.0, steps), made_for={"run": run.name})
    if (folder / CHECKPOINT).is_file():
        trainer.course.resume()
    rng = np.random.default_rng([run.seed, trainer.course.steps])
    trainer.run(MapObjective(Batches(cases, Embedder(qwen), rng), box_loss))
    return trainer.layer


def compare(
    qwen: QwenVL, compared: Sequence[ComparedRun], clips: int, steps: int, runs: Path, measured: int
) -> dict[str, Any]:
    """Train what is not trained yet, and measure all of it on the same cases."""
    cases: dict[str, list[AllocatorCase]] = {}
    if not all((runs / run.name / CHECKPOINT).is_file() for run in compared):
        cases = learned_cases(qwen, clips)
    held_out, embed = held_out_cases("test", FIRST_MEASURED, measured), Embedder(qwen)
    table = {"untrained": measure(RelevanceRealiser(), held_out, embed, levels=qwen.knows_levels)}
    for run in compared:
        layer = trained(run, qwen, cases.get(run.wanted, []), steps, runs)
        table[run.name] = measure(layer.realiser, held_out, embed, levels=qwen.knows_levels)
        print(run.name, table[run.name]["all"], flush=True)
    return table


def means_of(table: dict[str, Any], compared: Sequence[ComparedRun]) -> dict[str, dict[str, float]]:
    """The figures over all questions, each the mean of a way's seeds."""
    means: dict[str, dict[str, float]] = {}
    for wanted, scorer in dict.fromkeys((run.wanted, run.scorer) for run in compared):
        rows = [table[run.name]["all"] for run in compared if (run.wanted, run.scorer) == (wanted, scorer)]
        means[f"{wanted}-{scorer}"] = {
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
    out: Annotated[Path, typer.Option(help="Where the comparison goes.")] = RESULTS,
) -> None:
    """Compare what allocators learn from, and how they compare tiles with questions."""
    torch.set_num_threads(1)
    cv2.setNumThreads(1)
    qwen = load_qwen(model, device="cpu")
    compared = [
        ComparedRun(wanted, scorer, seed)
        for seed in range(1, seeds + 1)
        for scorer in SCORERS
        for wanted in (BOXES, ATTENTION)
    ]
    table = compare(qwen, compared, clips, steps, runs, measured)
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
