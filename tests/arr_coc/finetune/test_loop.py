"""Fine-tuning from VQAv2: it learns, goes on after an interruption, and reports what is wrong in one line."""

from __future__ import annotations

import logging
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import distributed

from arr_coc.errors import ModelError, NonFiniteError, OptionError
from arr_coc.finetune import __main__ as program
from arr_coc.finetune.loop import FineTuneOptions, FineTuning
from arr_coc.finetune.module import TrainableQwen
from arr_coc.finetune.parts import LearningRates, shard
from tests.arr_coc.finetune.test_forward import examples, fresh
from tests.support.benchmarks import coco, vqa_v2
from tests.support.models import tiny_folder

OPTIONS = FineTuneOptions(steps=4, batch=2, rates=LearningRates(allocator=1e-2, language=1e-2))


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Tiny matrices are slow on several threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def losses_of(tuning: FineTuning, stop_after: int = 99) -> list[float]:
    losses: list[float] = []
    finished = tuning.run(lambda step, loss: losses.append(loss), lambda: len(losses) == stop_after)
    assert finished == (stop_after == 99)
    return losses


def tuned(folder: Path, *, sharded: bool = False, resume: bool = False, stop_after: int = 99) -> list[float]:
    model = fresh()
    if sharded:
        shard(model)
    tuning = FineTuning(model, examples(), folder, OPTIONS)
    tuning.begin(resume=resume)
    losses = losses_of(tuning, stop_after)
    learned = tuning.learned()
    assert {name for name, weight in model.named_parameters() if weight.requires_grad} == learned.keys()
    assert all(type(weight) is torch.Tensor for weight in learned.values())
    return losses


@pytest.fixture(params=[pytest.param(False, id="alone"), pytest.param(True, id="sharded", marks=pytest.mark.slow)])
def sharded(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[bool]:
    if request.param:
        distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield request.param
    if request.param:
        distributed.destroy_process_group()


def test_it_learns_and_goes_on_as_if_it_had_not_stopped(tmp_path: Path, sharded: bool) -> None:
    losses = tuned(tmp_path / "whole")
    assert losses[-1] < losses[0] - 1
    first = tuned(tmp_path / "parts", sharded=sharded, stop_after=2)
    with pytest.raises(ModelError, match=r"holds the checkpoint.pt of an earlier run; give --resume"):
        tuned(tmp_path / "parts", sharded=sharded)
    rest = tuned(tmp_path / "parts", sharded=sharded, resume=True)
    assert first + rest == pytest.approx(losses, abs=1e-3)


def test_other_rates_do_not_fit_a_checkpoint(tmp_path: Path) -> None:
    tuned(tmp_path / "run", stop_after=1)
    tuning = FineTuning(fresh(), examples(), tmp_path / "run", FineTuneOptions(steps=4))
    with pytest.raises(ModelError, match="does not fit: it was made in another way"):
        tuning.begin(resume=True)


def test_a_loss_that_is_no_number_ends_it(tmp_path: Path) -> None:
    model = fresh()
    tuning = FineTuning(model, examples(), tmp_path, OPTIONS)
    with torch.no_grad():
        model.model.lm_head.weight.fill_(torch.inf)
    with pytest.raises(NonFiniteError, match="the loss is NaN or Inf; lower the rates"):
        tuning.run()
    assert not (tmp_path / "checkpoint.pt").exists()


def test_pictures_that_cannot_be_read_are_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "broken.jpg").write_bytes(b"broken")
    broken = {**examples()[0], "image": tmp_path / "broken.jpg"}
    tuning = FineTuning(fresh(), [examples()[0], broken], tmp_path / "run", FineTuneOptions(steps=3, batch=2))
    with caplog.at_level(logging.WARNING):
        tuning.run()
    assert tuning.unread > 0
    assert "a picture is left out: " in caplog.text
    assert "broken.jpg" in caplog.text
    with pytest.raises(OptionError, match="50 pictures in a row cannot be read; download them again"):
        FineTuning(fresh(), [broken], tmp_path / "other", FineTuneOptions(steps=3, batch=2)).run()


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The working folder, with a model in `tiny` and VQAv2 in `vqa`; signal handlers are put back."""
    monkeypatch.chdir(tmp_path)
    tiny_folder(tmp_path / "tiny")
    vqa_v2(tmp_path / "vqa", "train2014")
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield tmp_path
    for number, handler in handlers.items():
        signal.signal(number, handler)


SHORT = ("-m", "tiny", "--steps", "2", "--batch", "1")


def test_the_phases_follow_each_other(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert program.main(["vqa", *SHORT, "-o", "tuned"]) == 0
    assert "2 of 2 steps, loss " in capsys.readouterr().err
    before = TrainableQwen.from_pretrained("tiny").state_dict()
    tuned_state = TrainableQwen.from_pretrained("tuned").state_dict()
    changed = {name for name in before if not torch.equal(before[name], tuned_state[name])}
    assert not {name for name in changed if not name.startswith("allocator.")}

    options = [
        "--last-layers",
        "1",
        "--layer-rate",
        "1e-3",
        "--checkpointing",
        "--offload",
        "--allocator",
        "tuned/arr_coc",
    ]
    assert program.main(["vqa", "-m", "tuned", *SHORT[2:], *options, "-o", "deeper"]) == 0
    assert "wrote deeper; other commands use it with -m deeper" in capsys.readouterr().err
    deeper = TrainableQwen.from_pretrained("deeper").state_dict()
    changed = {name for name in deeper if not torch.equal(deeper[name], tuned_state[name])}
    last = len(TrainableQwen.from_pretrained("tiny").qwen.language_model.layers) - 1
    assert {name.split(".")[0] for name in changed} == {"allocator", "model"}
    assert all(name.startswith(("allocator.", f"model.model.language_model.layers.{last}.")) for name in changed)
    assert not (data / "deeper" / "checkpoint.pt").exists()


def test_ctrl_c_writes_a_checkpoint(
    data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    step = FineTuning._step

    def interrupted(tuning: FineTuning) -> float:
        signal.raise_signal(signal.SIGINT)
        return step(tuning)

    monkeypatch.setattr(FineTuning, "_step", interrupted)
    assert program.main(["vqa", *SHORT, "-o", "tuned"]) == 130
    errors = capsys.readouterr().err
    assert "stopping: writing the checkpoint; Ctrl-C again ends at once" in errors
    assert "not finished: the same command with --resume goes on from here" in errors
    monkeypatch.undo()
    monkeypatch.chdir(data)
    assert program.main(["vqa", *SHORT, "-o", "tuned", "--resume"]) == 0
    assert (data / "tuned" / "model.safetensors").is_file()


@pytest.mark.parametrize("path", ["one process", "no torchrun"])
def test_sharded_by_a_key(
    data: Path, path: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["vqa", *SHORT, "-o", "tuned", "--spread", "fsdp", "--device", "cpu"]
    if path == "no torchrun":
        assert program.main(arguments) == 2
        assert "--spread fsdp needs the processes of torchrun; torchrun --nproc" in capsys.readouterr().err
        return
    rendezvous = {"LOCAL_RANK": "0", "RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    for name, value in rendezvous.items():
        monkeypatch.setenv(name, value)
    assert program.main(arguments) == 0
    sharded_state = TrainableQwen.from_pretrained("tuned").state_dict()
    assert program.main(["vqa", *SHORT, "-o", "alone"]) == 0
    torch.testing.assert_close(sharded_state, TrainableQwen.from_pretrained("alone").state_dict())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("nosuch -o made", "there is no folder nosuch; give the folder of VQAv2"),
        ("coco -o made", "coco is COCO, which has no answers; give VQAv2's folder; adapt --boxes learns from COCO"),
        ("vqa -o made --split val2014", "cannot read vqa/v2_OpenEnded_mscoco_val2014_questions.json: No such file"),
        ("without -o made", "1 of 1 picture cannot be found, the first is without/train2014/COCO_train2014_0"),
        ("vqa -o made --steps 0", "--steps is a number of at least 1, got 0"),
        ("vqa -o made --rate 2", "--rate is a rate from 0 on and below 1, got 2.0"),
        ("vqa -o made --rate 0", "nothing would learn, because all rates are 0"),
        ("vqa -o made --all-layers --last-layers 1", "--all-layers and --last-layers both say which layers learn"),
        ("vqa -o made --last-layers 9", "got last_layers=9"),
        ("vqa -o made --budget much", "much"),
        ("vqa -o tiny", "tiny holds something else (chat_template.jinja); name a new or empty folder"),
        ("vqa -o without/train2014.txt", "without/train2014.txt is a file; name a folder"),
        ("vqa -o made --resume", "made holds no checkpoint.pt; leave out --resume to begin"),
    ],
)
def test_bad_input_is_refused_in_one_line(
    data: Path, arguments: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    coco(data / "coco", "train2017")
    vqa_v2(data / "without", "train2014")
    next((data / "without" / "train2014").iterdir()).unlink()
    (data / "without" / "train2014.txt").write_text("")
    assert program.main([*arguments.split(), "-m", "tiny"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert message in line
