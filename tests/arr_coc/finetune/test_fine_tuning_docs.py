"""The examples of docs/fine-tuning.md run unchanged and lower the loss as documented."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "fine-tuning.md"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:'pin_memory' argument is set as true:UserWarning")  # of a machine without a GPU
def test_every_example_runs_and_teaches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    names: dict[str, Any] = {}
    try:
        for code in re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL):
            exec(compile(code, str(DOCUMENT), "exec"), names)
    finally:
        torch.set_num_threads(threads)
    assert names["after"] < names["before"] / 10
    assert names["losses"][-1] < names["losses"][0] / 10
    assert names["answer"].tokens_used == 4
    assert names["answer"].text == names["unseen"][0]["answer"]
    assert names["answer"].text.replace(".", " square.") in capsys.readouterr().out
    assert {path.name for path in Path("adapters").iterdir()} >= {"adapter_config.json", "adapter_model.safetensors"}
    assert names["out"].logits.shape[0] == 2
