"""`transformers.Trainer` and LoRA by `peft` with a tiny model: losses fall, checkpoints go on, adapters come back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import Trainer, TrainingArguments

from arr_coc.errors import ModelError
from arr_coc.finetune.collator import AnswerCollator
from arr_coc.finetune.module import TrainableQwen
from tests.arr_coc.finetune.test_forward import examples
from tests.support.models import tiny_folder

pytestmark = pytest.mark.slow

LORA = LoraConfig(r=4, target_modules=r".*language_model.*\.(q_proj|v_proj)", modules_to_save=["allocator"])


@pytest.fixture
def model(tmp_path: Path) -> TrainableQwen:
    model = TrainableQwen.from_pretrained(tiny_folder(tmp_path / "tiny", tie_word_embeddings=True))
    model.new_allocator(seed=1, budget=8)
    return model


def trainer_of(module: Any, model: TrainableQwen, folder: Path, steps: int, **options: Any) -> Trainer:
    arguments = TrainingArguments(
        str(folder),
        max_steps=steps,
        per_device_train_batch_size=2,
        learning_rate=1e-2,
        lr_scheduler_type="constant",
        logging_steps=1,
        remove_unused_columns=False,
        report_to="none",
        use_cpu=True,
        dataloader_pin_memory=False,
        disable_tqdm=True,
        **options,
    )
    collate = AnswerCollator(model.qwen)
    return Trainer(module, arguments, train_dataset=examples() * 2, eval_dataset=examples(), data_collator=collate)


def losses(trainer: Trainer) -> list[float]:
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def loss_of(module: Any, model: TrainableQwen) -> torch.Tensor:
    with torch.no_grad():
        return module.eval()(**AnswerCollator(model.qwen)(examples())).loss


@pytest.mark.parametrize("options", [{}, {"activation_checkpointing": True, "bf16": True}], ids=["plain", "frugal"])
def test_the_trainer_lowers_the_loss(model: TrainableQwen, tmp_path: Path, options: dict[str, Any]) -> None:
    before = {name: rows.clone() for name, rows in model.allocator.named_parameters()}
    trainer = trainer_of(model, model, tmp_path / "run", 8, save_strategy="no", **options)
    trainer.train()
    assert losses(trainer)[-1] < losses(trainer)[0] / 3
    assert trainer.evaluate()["eval_loss"] < losses(trainer)[0] / 3
    changed_names = [name for name, rows in model.allocator.named_parameters() if not torch.equal(rows, before[name])]
    assert len(changed_names) > len(before) / 2


def test_a_run_goes_on_from_its_checkpoint(model: TrainableQwen, tmp_path: Path) -> None:
    full_run = trainer_of(model, model, tmp_path / "run", 4, save_steps=2)
    full_run.train()
    other = TrainableQwen.from_pretrained(tmp_path / "tiny")
    other.new_allocator(seed=7, budget=8)
    resumed = trainer_of(other, other, tmp_path / "run", 4, save_strategy="no")
    resumed.train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-2"))
    assert losses(resumed)[-1] == pytest.approx(losses(full_run)[-1], abs=1e-3)
    torch.testing.assert_close(other.state_dict(), model.state_dict(), atol=1e-4, rtol=1e-3)


def test_logits_of_an_evaluation_leave_out_what_was_chosen(model: TrainableQwen, tmp_path: Path) -> None:
    trainer = trainer_of(model, model, tmp_path / "run", 1, save_strategy="no", per_device_eval_batch_size=2)
    predicted = trainer.predict(examples(), ignore_keys=["arr_coc_info"])
    assert predicted.predictions.shape[0] == 2
    assert predicted.predictions.shape[2] == 512


def test_lora_and_the_allocator_learn_together_and_come_back(model: TrainableQwen, tmp_path: Path) -> None:
    frozen = model.model.model.visual.patch_embed.proj.weight.clone()
    adapted = get_peft_model(model, LORA)
    trained = {name for name, parameter in adapted.named_parameters() if parameter.requires_grad}
    assert all("lora_" in name or "allocator.modules_to_save" in name for name in trained)
    trainer = trainer_of(adapted, model, tmp_path / "run", 16, save_strategy="no")
    trainer.train()
    assert losses(trainer)[-1] < losses(trainer)[0] - 1
    assert torch.equal(model.model.model.visual.patch_embed.proj.weight, frozen)
    assert model.generate(examples()[0]["image"], "Is the cat sleeping?", max_tokens=2, budget=8).tokens_used == 8
    with pytest.raises(ModelError, match=r"adapters of peft that are not merged; call merge_and_unload\(\) first"):
        model.save_pretrained(tmp_path / "unmerged")
    assert not (tmp_path / "unmerged").exists()

    expected = loss_of(adapted, model)
    adapted.save_pretrained(tmp_path / "adapters")
    base = TrainableQwen.from_pretrained(tmp_path / "tiny")
    base.new_allocator(seed=9, budget=8)
    torch.testing.assert_close(loss_of(PeftModel.from_pretrained(base, tmp_path / "adapters"), base), expected)

    merged = adapted.merge_and_unload()
    merged.save_pretrained(tmp_path / "merged")
    reloaded_model = TrainableQwen.from_pretrained(tmp_path / "merged")
    torch.testing.assert_close(loss_of(reloaded_model, reloaded_model), expected, atol=1e-4, rtol=1e-4)


def test_adapters_may_lie_in_the_stock_model_alone(model: TrainableQwen, tmp_path: Path) -> None:
    model.requires_grad_(False)
    model.model.add_adapter(LoraConfig(r=4, target_modules=["q_proj", "v_proj"]))
    trainer = trainer_of(model, model, tmp_path / "run", 8, save_strategy="no")
    trainer.train()
    assert losses(trainer)[-1] < losses(trainer)[0]
