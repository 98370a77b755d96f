"""The trainer: it learns, stops at its end, and goes on from a checkpoint as if it had not stopped."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from transformers import AutoModelForImageTextToText
from typer.testing import CliRunner

import training.export
import training.vlm
from arr_coc.errors import ModelError, ModelNotFound
from training.model.batches import Batch, random_batches
from training.model.network import VOCABULARY, begin_with, new_model
from training.model.tokenizer import scenes_tokenizer
from training.vlm import MEAN_KEPT, Recipe, Trainer


class SameBatch:
    """Stands in for the background process: one small batch, over and over."""

    def __init__(self, seed: int = 0, workers: int = 1, *, whole: bool = False) -> None:
        self.progress = SimpleNamespace(value=0.0)
        asking = (batch for batch in random_batches(5, self.progress, whole=whole) if batch.ids.numel())
        batch = next(batch for batch in asking if batch.regions.shape[2] < 60)
        self._batch = batch.clips(2)
        self.closed = False

    def next(self) -> Batch:
        return self._batch

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def one_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same batch over and over, and no background process."""
    monkeypatch.setattr(training.vlm, "BackgroundBatches", SameBatch)


@pytest.mark.usefixtures("one_batch")
def test_it_learns_one_batch_by_heart_and_stops_after_its_steps(tmp_path: Path) -> None:
    torch.manual_seed(0)
    trainer = Trainer(Recipe(steps=6, rate=3e-3), tmp_path)
    batches = SameBatch()
    first = trainer.step(batches).total.item()  # type: ignore[arg-type]
    trainer.run()
    assert trainer.course.steps == 6
    last = trainer.step(batches).total.item()  # type: ignore[arg-type]
    assert last < 0.9 * first
    assert (tmp_path / "model" / "config.json").exists()
    assert (tmp_path / "checkpoint.pt").exists()


class EndAfterTwo(SameBatch):
    """Asks the process to end while the second batch is learned."""

    calls = 0

    def next(self) -> Batch:
        self.calls += 1
        if self.calls == 2:
            signal.raise_signal(signal.SIGTERM)
        return super().next()


def test_a_run_that_is_asked_to_end_keeps_what_it_learned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training.vlm, "BackgroundBatches", EndAfterTwo)
    before = signal.getsignal(signal.SIGTERM)
    trainer = Trainer(Recipe(steps=50), tmp_path)
    trainer.run()
    assert signal.getsignal(signal.SIGTERM) is before
    assert trainer.course.steps == 2
    assert Trainer(Recipe(steps=50), tmp_path, resume=True).course.steps == 2


@pytest.mark.usefixtures("one_batch")
def test_the_exported_weights_are_the_running_mean(tmp_path: Path) -> None:
    trainer, batches = Trainer(Recipe(steps=200, rate=3e-3), tmp_path / "run"), SameBatch()
    expected: dict[str, torch.Tensor] = {}
    for _ in range(3):
        trainer.step(batches)  # type: ignore[arg-type]
        for name, now in trainer.learner.model.named_parameters():
            mean = expected.get(name, now)
            expected[name] = (MEAN_KEPT * mean + (1 - MEAN_KEPT) * now).detach().clone()
    trainer.save()
    main = training.export.typer.Typer()
    main.command()(training.export.main)
    assert CliRunner().invoke(main, [str(tmp_path / "run"), str(tmp_path / "out")]).exit_code == 0
    for folder in (tmp_path / "run" / "model", tmp_path / "out"):
        mean = new_model(seed=0)
        begin_with(mean, folder)
        for name, parameter in mean.named_parameters():
            if len(parameter) != VOCABULARY:
                torch.testing.assert_close(parameter, expected[name], atol=1e-2, rtol=1e-2)
    name, now = next((n, p) for n, p in trainer.learner.model.named_parameters() if n.endswith("q_proj.weight"))
    assert not torch.allclose(now, expected[name], atol=1e-4)


@pytest.mark.usefixtures("one_batch")
def test_the_heads_learn_alone_at_first_where_the_model_is_known(tmp_path: Path) -> None:
    training.export.export(new_model(seed=7), tmp_path / "earlier")
    trainer = Trainer(Recipe(steps=100, begin_with=str(tmp_path / "earlier")), tmp_path / "run")
    batches = SameBatch()
    of_model = set(trainer.learner.model.parameters())
    for model_learns in (False, True):
        before = [parameter.detach().clone() for parameter in trainer.learner.parameters()]
        trainer.step(batches)  # type: ignore[arg-type]
        changes = {True: 0, False: 0}
        for was, now in zip(before, trainer.learner.parameters(), strict=True):
            changes[now in of_model] += not torch.equal(was, now)
        assert (changes[True] > 0) == model_learns
        assert changes[False] > 0


def test_lessons_may_begin_later_than_the_rate(tmp_path: Path) -> None:
    trainer = Trainer(Recipe(steps=10, lessons_from=0.4), tmp_path)
    batches = SameBatch()
    trainer.step(batches)  # type: ignore[arg-type]
    assert batches.progress.value == pytest.approx(0.4 + 0.6 * 0.1)


@pytest.mark.usefixtures("one_batch")
def test_a_resumed_run_equals_one_that_never_stopped(tmp_path: Path) -> None:
    batches = SameBatch()
    recipe = Recipe(steps=60)
    unbroken, halves = Trainer(recipe, tmp_path / "whole"), Trainer(recipe, tmp_path / "halves")
    for trainer in (unbroken, halves):
        for _ in range(2):
            trainer.step(batches)  # type: ignore[arg-type]
    halves.save()
    resumed = Trainer(recipe, tmp_path / "halves", resume=True)
    assert resumed.course.steps == 2
    assert resumed.course.spent_s == halves.course.spent_s > 0
    for trainer in (unbroken, resumed):
        trainer.step(batches)  # type: ignore[arg-type]
    for expected, parameter in zip(unbroken.learner.parameters(), resumed.learner.parameters(), strict=True):
        assert torch.equal(expected, parameter)


def test_a_checkpoint_that_is_missing_or_does_not_fit_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match="leave out --resume to begin"):
        Trainer(Recipe(), tmp_path, resume=True)
    torch.save({"learner": {"odd": torch.zeros(1)}}, tmp_path / "checkpoint.pt")
    with pytest.raises(ModelError, match=r"does not fit: .* begin anew in another folder"):
        Trainer(Recipe(), tmp_path, resume=True)
    (tmp_path / "checkpoint.pt").write_bytes(b"no checkpoint")
    with pytest.raises(ModelError, match="does not fit"):
        Trainer(Recipe(), tmp_path, resume=True)


def test_a_run_may_begin_with_an_earlier_models_weights(tmp_path: Path) -> None:
    base = new_model(seed=7)
    training.export.export(base, tmp_path / "earlier")
    trainer = Trainer(Recipe(begin_with=str(tmp_path / "earlier")), tmp_path / "run")
    words = len(scenes_tokenizer())
    for before, after in zip(base.parameters(), trainer.learner.model.parameters(), strict=True):
        if len(before) == VOCABULARY:
            before, after = before[:words], after[:words]
        torch.testing.assert_close(before, after, atol=0.02, rtol=0.02)
    with pytest.raises(ModelNotFound, match="holds no model"):
        Trainer(Recipe(begin_with=str(tmp_path)), tmp_path / "run")


def test_words_may_be_kept_as_they_are(tmp_path: Path) -> None:
    training.export.export(new_model(seed=7), tmp_path / "earlier")
    recipe = Recipe(steps=20, begin_with=str(tmp_path / "earlier"), keep_words=True)
    trainer = Trainer(recipe, tmp_path / "run")
    embeddings = AutoModelForImageTextToText.from_pretrained(tmp_path / "earlier").get_input_embeddings().weight.float()
    for _ in range(3):
        trainer.step(SameBatch())  # type: ignore[arg-type]
    torch.testing.assert_close(trainer.learner.model.get_input_embeddings().weight.detach(), embeddings, atol=0, rtol=0)


def test_a_model_is_exported_over_an_earlier_export_and_nothing_else(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    training.export.export(new_model(seed=7), folder)
    (folder / "model-of-mine.safetensors").write_bytes(b"mine")
    training.export.export(new_model(seed=8), folder)
    assert (folder / "model-of-mine.safetensors").read_bytes() == b"mine"
    (folder / "config.json").write_text("{}")
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(ModelError, match="holds another model; name a new folder"):
        training.export.export(new_model(seed=9), folder)
    (folder / "config.json").unlink()
    with pytest.raises(ModelError, match="is not empty, and no export wrote it; name a new folder"):
        training.export.export(new_model(seed=9), folder)
    del before["config.json"]
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


@pytest.mark.usefixtures("one_batch")
def test_a_model_of_whole_pictures_is_saved_and_exported_again_and_again(tmp_path: Path) -> None:
    trainer = Trainer(Recipe(steps=2, whole=True, checkpoint_minutes=0), tmp_path)
    trainer.run()
    trainer.save()
    config = json.loads((tmp_path / "model" / "config.json").read_text("utf-8"))
    assert "arr_coc_levels" not in config
    assert config["arr_coc_world"] == "drawn scenes"


@pytest.mark.slow  # compiling takes most of a minute
@pytest.mark.filterwarnings("ignore")  # of what torch's compiler does
def test_a_compiled_step_has_the_same_losses(tmp_path: Path) -> None:
    batches = SameBatch()
    losses = []
    for compiled in (False, True):
        trainer = Trainer(Recipe(compiled=compiled), tmp_path / str(compiled))
        losses.append([trainer.step(batches).total.item() for _ in range(3)])  # type: ignore[arg-type]
    assert losses[1][:2] == pytest.approx(losses[0][:2], rel=0.02), "from there on roundings of bfloat16 part them"
    assert losses[1][2] < losses[1][0]


@pytest.mark.usefixtures("one_batch")
def test_the_commands_train_resume_and_export(tmp_path: Path) -> None:
    runner = CliRunner()
    train = training.vlm.typer.Typer()
    train.command()(training.vlm.main)
    threads = torch.get_num_threads()
    run = str(tmp_path / "run")
    assert runner.invoke(train, ["--out", run, "--no-compiled", "--steps", "1"]).exit_code == 0
    assert runner.invoke(train, ["--out", run, "--no-compiled", "--steps", "3", "--resume"]).exit_code == 0
    torch.set_num_threads(threads)
    assert json.loads((tmp_path / "run" / "recipe.json").read_text())["steps"] == 3
    write = training.vlm.typer.Typer()
    write.command()(training.export.main)
    assert runner.invoke(write, [run, str(tmp_path / "model")]).exit_code == 0
    exported, expected = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("model", "run/model"))
    assert exported == expected
