"""Deferred imports: packages that a process does not import to answer, and their import on first use."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]

HEAVY = ("sympy", "accelerate", "torch._dynamo.eval_frame", "torch.distributed.tensor", "torch._inductor")

LOAD = """
import sys
from arr_coc.qwen.deferred_imports import deferred_imports
with deferred_imports():
    from arr_coc.qwen.loading import load_qwen
    from arr_coc.qwen.session import AnswerSession
    qwen = load_qwen()
"""


def run(code: str) -> str:
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=600)
    assert process.returncode == 0, process.stderr[-2000:]
    return process.stdout


def test_heavy_packages_are_imported_on_first_use() -> None:
    """transformers' list of models, its version, and torch's compiler, which also compiles a model loaded before."""
    loaded = run(
        LOAD
        + """
print(*sys.modules)
import importlib.metadata, torch, transformers
from transformers import Qwen3VLConfig, __version__
assert transformers.__version__ == __version__ == importlib.metadata.version("transformers")
assert transformers.Qwen3VLForConditionalGeneration is type(qwen.model)
assert transformers.models.qwen3_vl.Qwen3VLConfig is Qwen3VLConfig is type(qwen.model.config)
for name in ("NoSuchModel", "__no_such__"):
    for module in (transformers, transformers.models):
        assert not hasattr(module, name)
mlp = qwen.language_model.layers[0].mlp
rows = torch.ones(2, qwen.language_model.embed_tokens.weight.shape[1])
torch.testing.assert_close(torch.compile(mlp, backend="eager")(rows), mlp(rows))
assert type(torch._dynamo).__name__ == "module"
"""
    ).split()
    assert "transformers.modeling_utils" in loaded
    assert not set(HEAVY) & set(loaded)


def test_the_compiler_is_imported_at_once_if_used_inside() -> None:
    """Both ways of using it, each in a process that imported torch first."""
    run("""
import os, sys
from arr_coc.qwen.deferred_imports import deferred_imports
import torch
first = os.fork()
with deferred_imports():
    marked = []
    @torch.compiler.disable
    def plain(x):
        marked.append(torch.compiler.is_compiling())
        return x + 1
    assert plain(1) == 2
    if first:
        assert os.waitpid(first, 0)[1] == 0
        torch._dynamo.config.verbose
    else:
        import torch._dynamo.utils
    assert type(sys.modules["torch._dynamo"]).__name__ == "module"
    assert sys.modules["torch._dynamo.utils"] is torch._dynamo.utils
graph = torch.compile(lambda x: plain(x.sin()), backend="eager")
torch.testing.assert_close(graph(torch.ones(2)), torch.ones(2).sin() + 1)
assert marked == [False, False], marked
""")


def test_a_process_that_has_imported_transformers_stays_as_it_is() -> None:
    run("""
import transformers, sys
from arr_coc.qwen.deferred_imports import deferred_imports
before = dict(sys.modules)
with deferred_imports():
    assert sys.modules["transformers"] is before["transformers"]
    assert sys.modules.get("torch._dynamo") is before.get("torch._dynamo")
""")
