"""Adapting an allocator: it learns what the model looks at, and whatever ends it, the next run goes on."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from arr_coc.adaptation import adapt as adapt_module
from arr_coc.adaptation import folder as folder_module
from arr_coc.adaptation import training_run as training_run_module
from arr_coc.adaptation.adapt import ASKING, LEARNING, LEAST_PICTURES, Adaptation, AdaptOptions, AdaptResult
from arr_coc.adaptation.cases import AllocatorCase
from arr_coc.adaptation.folder import AdaptFolder
from arr_coc.adaptation.lessons import Lesson, PlannedLesson, TaughtPicture
from arr_coc.adaptation.losses import attention_targets
from arr_coc.adaptation.teacher import AttentionTeacher
from arr_coc.adaptation.trainer import new_layer
from arr_coc.allocation.allocator import AllocatorOptions
from arr_coc.errors import ModelError, OptionError
from arr_coc.layer import ARRCOCLayer
from arr_coc.layer_weights import fingerprint, load_layer
from arr_coc.model import ARRCOCQwen
from arr_coc.qwen.attention import AttentionProbe
from arr_coc.qwen.loading import load_qwen
from arr_coc.qwen.qwenvl import QwenVL
from arr_coc.types import FramePlanes, FrameStamp
from arr_coc.video.picture_allocator import FrameAllocator
from tests.support.models import tiny_folder, tiny_qwen

MADE_OF = {"clips": "some", "--seed": "1"}
QUESTIONS = ("Where is the red circle?", "What is the number in the upper left?")


class Watcher:
    """A progress that records its calls, and stops at a given one."""

    def __init__(self, stop_in: str = "", at: int = 0) -> None:
        self.phases: list[str] = []
        self.counts: dict[str, int] = {}
        self._stop = stop_in, at

    def begin(self, phase: str, total: int | None) -> None:
        self.phases.append(phase)

    def advance(self, count: int) -> None:
        self.counts[self.phases[-1]] = count

    @property
    def stopping(self) -> bool:
        phase, at = self._stop
        return bool(self.phases) and self.phases[-1] == phase and self.counts.get(phase, 0) >= at


@pytest.fixture(scope="module")
def qwen() -> QwenVL:
    return tiny_qwen()


def image(number: int) -> np.ndarray:
    pixels = np.random.default_rng(number).integers(0, 60, (64, 96, 3)).astype(np.uint8)
    pixels[:32, 32 * (number % 3) : 32 * (number % 3) + 32] = (250, 40, 30)
    return pixels


def lessons(count: int = 12, load: Callable[[int], Lesson | None] | None = None) -> list[PlannedLesson]:
    load_lesson = load or (lambda number: Lesson(image(number), QUESTIONS))
    return [PlannedLesson(lambda number=number: load_lesson(number), number % 4 == 3) for number in range(count)]  # type: ignore[misc]


def adapted(
    qwen: QwenVL,
    folder: Path,
    watcher: Watcher | None = None,
    steps: int = 6,
    plan: list[PlannedLesson] | None = None,
) -> AdaptResult | None:
    adaptation = Adaptation(qwen, AdaptFolder(folder), AdaptOptions(steps=steps), watcher or Watcher())
    return adaptation.run(plan or lessons(), MADE_OF)


def test_attended_tiles_have_a_fifth_of_the_largest_attention_or_more() -> None:
    attention = torch.tensor([[[0.1, 0.5, 0.04]], [[0.0, 0.0, 0.0]]])
    assert attention_targets(attention).tolist() == [[[1, 1, 0]], [[0, 0, 0]]]


def test_an_allocator_is_made_that_fits_its_model(qwen: QwenVL, tmp_path: Path) -> None:
    watcher = Watcher()
    result = adapted(qwen, tmp_path / "made", watcher)
    assert result is not None
    assert watcher.phases == [ASKING, LEARNING, adapt_module.MEASURING]
    assert watcher.counts == {ASKING: 12, LEARNING: 6}
    assert (result.pictures, result.questions, result.held_out, result.held_out_questions) == (9, 18, 3, 6)
    assert (result.steps, result.unread, result.labelled) == (6, 0, 0)
    embeddings = qwen.model.get_input_embeddings().weight
    layer = load_layer(tmp_path / "made", embeddings, "tiny")
    assert layer.realiser.knows("tiny")
    about = json.loads((tmp_path / "made" / "adapt.json").read_text())
    assert about["finished"]
    assert about["after"] == result.after
    assert {path.name for path in (tmp_path / "made").iterdir()} == {"adapt.json", "config.json", "model.safetensors"}


def test_an_allocator_is_made_for_the_profile_that_is_asked_for(qwen: QwenVL, tmp_path: Path) -> None:
    options = AdaptOptions(steps=6, channels="full40")
    folder = tmp_path / "made"
    result = Adaptation(qwen, AdaptFolder(folder), options, Watcher()).run(lessons(), MADE_OF)
    assert result is not None
    layer = load_layer(folder, qwen.model.get_input_embeddings().weight, "tiny")
    assert layer.config.channels == layer.realiser.channels == "full40"
    assert json.loads((folder / "config.json").read_text())["channels"] == "full40"
    frames = FrameAllocator(AllocatorOptions(budget=3), layer.realiser)
    assert frames.allocator.channels == "full40"
    frame = frames.allocate(FramePlanes("rgb", (image(1),)), FrameStamp(0, 0, 0))
    assert frame.allocation.maps is not None
    assert frame.allocation.maps.scored.channels.shape == (40, 2, 3)
    frames.close()


def test_learning_finds_more_of_what_the_model_looks_at(qwen: QwenVL, tmp_path: Path) -> None:
    class Teacher:
        """Attention to the lower row, which does not stand out, for any question."""

        def show(self, image: np.ndarray) -> None:
            self.looks = torch.tensor([[0.05] * 3, [1.0] * 3])

        def attention(self, question: str) -> torch.Tensor:
            return self.looks

    adaptation = Adaptation(qwen, AdaptFolder(tmp_path / "made"), AdaptOptions(steps=60), Watcher())
    adaptation.__dict__["_teacher"] = Teacher()
    result = adaptation.run(lessons(24), MADE_OF)
    assert result is not None
    assert result.after["matched_iou"] > 0.9 > result.before["matched_iou"]


def test_boxes_teach_in_place_of_the_model(qwen: QwenVL, tmp_path: Path) -> None:
    def labelled(number: int) -> Lesson:
        left = 32.0 * (number % 3)
        return Lesson(image(number), QUESTIONS[:1], (((left, 0.0, left + 32, 32.0),),))

    unreadable = tiny_qwen()
    del unreadable.language_model.layers[1].self_attn.q_proj  # what would be asked for attention cannot be
    result = adapted(unreadable, tmp_path / "made", steps=60, plan=lessons(24, labelled))
    assert result is not None
    assert result.labelled == result.held_out_questions == 6
    assert result.after["matched_iou"] > 0.9


def test_a_model_whose_attention_cannot_be_read_cannot_teach(tmp_path: Path) -> None:
    unreadable = tiny_qwen()
    del unreadable.language_model.layers[1].self_attn.q_proj
    with pytest.raises(ModelError, match="the attention of tiny-qwen3_vl cannot be read, so it cannot teach; take"):
        adapted(unreadable, tmp_path / "made")
    AdaptFolder(tmp_path / "made").check({"--frames": "another number"}, resume=False)


def test_attention_that_is_nowhere_cannot_teach(qwen: QwenVL, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AttentionProbe, "attention", lambda self: torch.zeros(6))
    teacher = AttentionTeacher(qwen)
    teacher.show(image(0))
    with pytest.raises(ModelError, match="cannot be read, so it cannot teach"):
        teacher.attention(QUESTIONS[0])


@pytest.mark.parametrize("family", ["qwen2_vl", "qwen2_5_vl"])
def test_models_with_other_tiles_teach_on_the_allocators_tiles(family: str) -> None:
    lesson = Lesson(image(0), QUESTIONS)
    taught = TaughtPicture.from_attention(AttentionTeacher(tiny_qwen(family)), lesson, held_out=False)
    assert taught.targets.shape == (2, *taught.texture.entropy.shape) == (2, 2, 3)
    assert all(target.any() for target in taught.targets)


@pytest.mark.parametrize(("phase", "at"), [(ASKING, 5), (LEARNING, 3)])
def test_an_interrupted_run_resumes(qwen: QwenVL, tmp_path: Path, phase: str, at: int) -> None:
    stopped = Watcher(phase, at)
    assert adapted(qwen, tmp_path / "made", stopped) is None
    with pytest.raises(OptionError, match="holds an unfinished run; add --resume to go on, or remove the"):
        AdaptFolder(tmp_path / "made").check(MADE_OF, resume=False)
    AdaptFolder(tmp_path / "made").check(MADE_OF, resume=True)
    with pytest.raises(OptionError, match="was begun with other clips; give what it was begun with, or remove the"):
        AdaptFolder(tmp_path / "made").check({"clips": "others"}, resume=True)

    numbers: list[int] = []

    def remembered(number: int) -> Lesson:
        numbers.append(number)
        return Lesson(image(number), QUESTIONS)

    result = adapted(qwen, tmp_path / "made", plan=lessons(load=remembered))
    assert result is not None
    assert result.pictures + result.held_out == 12
    assert result.steps == 6
    assert numbers == list(range(stopped.counts[ASKING], 12))


def test_ctrl_c_twice_loses_no_answer(qwen: QwenVL, tmp_path: Path) -> None:
    def interrupted(number: int) -> Lesson:
        if number == 7:
            raise KeyboardInterrupt
        return Lesson(image(number), QUESTIONS)

    with pytest.raises(KeyboardInterrupt):
        adapted(qwen, tmp_path / "made", plan=lessons(load=interrupted))
    pictures, count, _ = AdaptFolder(tmp_path / "made").load_pictures()
    assert (len(pictures), count) == (7, 7)


def test_a_full_disk_leaves_what_was_saved_before(
    qwen: QwenVL, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert adapted(qwen, tmp_path / "made", Watcher(ASKING, 5)) is None
    before = {path.name: path.read_bytes() for path in (tmp_path / "made").iterdir()}
    real = folder_module.write_whole

    def full(path: Path, data: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(folder_module, "write_whole", full)
    with pytest.raises(OSError, match="No space left on device"):
        adapted(qwen, tmp_path / "made")
    assert {path.name: path.read_bytes() for path in (tmp_path / "made").iterdir()} == before
    monkeypatch.setattr(folder_module, "write_whole", real)
    assert adapted(qwen, tmp_path / "made") is not None


def test_clips_with_too_few_frames_are_refused(qwen: QwenVL, tmp_path: Path) -> None:
    few = lessons(load=lambda number: Lesson(image(number), QUESTIONS) if number < LEAST_PICTURES - 1 else None)
    with pytest.raises(
        OptionError, match=r"only 7 frames of 12 could be read, and at least 8 are needed.*; give longer"
    ):
        adapted(qwen, tmp_path / "made", plan=few)
    AdaptFolder(tmp_path / "made").check({"clips": "longer ones"}, resume=False)
    assert adapted(qwen, tmp_path / "made") is not None, "what was given before is forgotten"


def test_minutes_are_for_asking_and_learning_together(
    qwen: QwenVL, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Clock:
        """Every look at it is a minute later."""

        def __init__(self) -> None:
            self.now_s = 0.0

        def perf_counter(self) -> float:
            self.now_s += 60.0
            return self.now_s

    clock = Clock()
    for module in (adapt_module, training_run_module):
        monkeypatch.setattr(module, "time", clock)
    adaptation = Adaptation(qwen, AdaptFolder(tmp_path / "made"), AdaptOptions(minutes=18.0), Watcher())
    result = adaptation.run(lessons(40), MADE_OF)
    assert result is not None
    assert result.pictures + result.held_out == 10
    assert (result.steps, result.minutes) == (8, 18.0)


def test_a_run_goes_on_with_what_it_was_begun_with_only(qwen: QwenVL, tmp_path: Path) -> None:
    folder = AdaptFolder(tmp_path / "made")
    folder.begin({**MADE_OF, "clips": "of a run that saved nothing"})
    folder.begin(MADE_OF)
    folder.save_pictures([], 1, 0.5)
    folder.begin(MADE_OF)
    with pytest.raises(OptionError, match="was begun with other clips; give what it was begun with, or remove the"):
        folder.begin({**MADE_OF, "clips": "others"})


def test_folders_that_cannot_be_used_say_so_in_one_line(qwen: QwenVL, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "full").mkdir()
    for name in ("d.txt", "a.txt", "c.txt", "b.txt"):
        (tmp_path / "full" / name).write_text("")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "adapt.json").write_text("[]")
    ARRCOCLayer().save_pretrained(tmp_path / "allocator")
    for name, resume, message in (
        ("file", False, "is a file; name a folder"),
        ("full", False, r"holds something else \(a.txt, b.txt, c.txt, ...\); name a new or empty folder"),
        ("full", True, "holds something else"),
        ("broken", False, r"holds something else \(adapt.json\)"),
        ("allocator", False, r"holds something else \(config.json, model.safetensors\)"),
        ("new", True, "holds nothing to go on with; leave out --resume to begin"),
    ):
        with pytest.raises(OptionError, match=message) as refused:
            AdaptFolder(tmp_path / name).check(MADE_OF, resume=resume)
        assert "\n" not in str(refused.value)
    AdaptFolder(tmp_path / "new").check(MADE_OF, resume=False)
    assert not (tmp_path / "new").exists()
    assert adapted(qwen, tmp_path / "done") is not None
    with pytest.raises(OptionError, match="is finished; use it with --allocator, or name a new folder"):
        AdaptFolder(tmp_path / "done").check(MADE_OF, resume=True)


def test_damaged_pictures_are_reported(qwen: QwenVL, tmp_path: Path) -> None:
    assert adapted(qwen, tmp_path / "made", Watcher(ASKING, 5)) is None
    (tmp_path / "made" / "pictures.pt").write_bytes(b"noise")
    with pytest.raises(ModelError, match=r"pictures.pt is damaged; remove it to ask the model again"):
        adapted(qwen, tmp_path / "made")


def test_an_allocator_of_another_model_is_refused(qwen: QwenVL, tmp_path: Path) -> None:
    assert adapted(qwen, tmp_path / "made") is not None
    other = tiny_qwen(seed=5).model.get_input_embeddings().weight
    assert fingerprint(other) != fingerprint(qwen.model.get_input_embeddings().weight)
    with pytest.raises(ModelError, match="was made for another model than other, or for other weights of it; make one"):
        load_layer(tmp_path / "made", other, "other")


def test_pictures_come_back_from_their_file(tmp_path: Path) -> None:
    boxes = (((0.0, 0.0, 40.0, 32.0),),)
    picture = TaughtPicture.from_boxes(Lesson(image(1), ("Where?",), boxes), held_out=True)
    (tmp_path / "made").mkdir()
    folder = AdaptFolder(tmp_path / "made")
    folder.save_pictures([picture], 3, 1.5)
    (copy,), count, spent_s = folder.load_pictures()
    assert (count, spent_s, copy.questions, copy.held_out, copy.labelled) == (3, 1.5, ("Where?",), True, True)
    assert torch.equal(copy.targets, torch.tensor([[[1.0, 0.25, 0.0], [0.0, 0.0, 0.0]]]))
    (case,) = copy.cases()
    assert isinstance(case, AllocatorCase)
    assert torch.equal(case.texture.channels, picture.texture.channels)


def test_the_library_takes_an_allocator_by_name(qwen: QwenVL, tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path / "tiny")
    tiny = load_qwen(folder)
    layer = new_layer(tiny, "film")
    layer.save_pretrained(tmp_path / "made")
    assert ARRCOCQwen.from_pretrained(folder, allocator=tmp_path / "made").qwen.allocator.config == layer.config
    with pytest.raises(ModelError, match="no allocator: there is no folder"):
        ARRCOCQwen.from_pretrained(folder, allocator=tmp_path / "nosuch")
