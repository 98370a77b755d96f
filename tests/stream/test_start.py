"""Only code of the program and of its libraries runs, never files of the user's working folder."""

from __future__ import annotations

import ast
import importlib.util
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from stream.runtime.child import ROOT, python_command, python_environment
from stream.start import leave_out_working_folder
from tests.support.network import until

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PRODUCT = ("arr_coc", "stream", "training", "evaluation", "benchmarks", "scripts")
SOURCES = sorted(path for folder in PRODUCT for path in Path(ROOT, folder).rglob("*.py"))

LIMIT_S = 300

PROOF = """
import posix
posix.close(posix.open({proof!r} + "/" + __name__, posix.O_WRONLY | posix.O_CREAT))
"""
"""Writes a file of the module's name; it uses only what is built into the interpreter."""


def calls(path: Path) -> Iterator[tuple[str, ast.Call]]:
    """Every call in a file, with the source of the called function."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), node


def keyword(call: ast.Call, name: str) -> str | None:
    return next((ast.unparse(argument.value) for argument in call.keywords if argument.arg == name), None)


def test_children_are_started_in_one_place() -> None:
    naming = {
        path.relative_to(ROOT).as_posix()
        for path in SOURCES
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Attribute) and ast.unparse(node) == "sys.executable"
    }
    checkout_only = ("benchmarks/", "evaluation/", "scripts/")
    isolated = {"stream/extensions/web/uploads/receiver.py", "stream/extensions/fleet/vllm.py"}
    assert {name for name in naming if not name.startswith(checkout_only)} == {"stream/runtime/child.py", *isolated}
    assert all('"-I"' in Path(ROOT, name).read_text("utf-8") for name in isolated)
    starting = {path.name for path in SOURCES for name, _ in calls(path) if name.startswith(("os.exec", "os.spawn"))}
    assert starting == set()
    spawning = {path.relative_to(ROOT) for path in SOURCES if "multiprocessing" in path.read_text("utf-8")}
    assert {path.parts[0] for path in spawning} <= {"benchmarks", "training"}, "which run from a checkout only"


def test_models_and_checkpoints_are_read_as_data() -> None:
    loaded = {"from_pretrained": 0, "torch.load": 0}
    for path in SOURCES:
        for name, call in calls(path):
            assert keyword(call, "trust_remote_code") in (None, "False"), path
            assert keyword(call, "allow_pickle") in (None, "False"), path
            assert name not in ("pickle.load", "pickle.loads", "torch.hub.load"), path
            if name == "torch.load":
                loaded["torch.load"] += 1
                assert keyword(call, "weights_only") == "True", path
            if name.startswith("Auto") and name.endswith(".from_pretrained"):
                loaded["from_pretrained"] += 1
                assert keyword(call, "trust_remote_code") == "False", path
            if name.startswith("AutoModel") and name.endswith(".from_pretrained"):
                assert keyword(call, "use_safetensors") == "True", path
    assert all(loaded.values()), "nothing was looked at"


def test_a_childs_environment_keeps_only_absolute_paths(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(["", "/a", ".", "b/c", "/d"]))
    environment = python_environment({"OMP_NUM_THREADS": "1"})
    assert environment["PYTHONPATH"] == os.pathsep.join(["/a", "/d"])
    assert (environment["OMP_NUM_THREADS"], environment["PYTHONSAFEPATH"]) == ("1", "1")
    monkeypatch.setenv("PYTHONPATH", ":")
    assert "PYTHONPATH" not in python_environment()


def test_the_command_leaves_the_working_folder_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", ":/named:lib")
    paths = [ROOT, "/named", sys.path[-1]]
    monkeypatch.setattr(sys, "path", ["", str(tmp_path), str(tmp_path / "lib"), *paths])
    leave_out_working_folder()
    assert sys.path == paths
    monkeypatch.setenv("PYTHONPATH", f":{tmp_path}")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *paths])
    leave_out_working_folder()
    assert sys.path == [str(tmp_path), *paths], "it was asked for by name"
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("PYTHONPATH", ":")
    leave_out_working_folder()
    assert ROOT in sys.path, "the program itself lies there"


def plant(folder: Path, proof: Path, names: Iterable[str]) -> None:
    proof.mkdir()
    for name in names:
        (folder / f"{name}.py").write_text(PROOF.format(proof=str(proof)))
    for name in ("stream", "arr_coc", "kernels"):
        (folder / name).mkdir()
        (folder / name / "__init__.py").write_text(PROOF.format(proof=str(proof)))


def importable() -> set[str]:
    """The modules of the standard library and of everything that is installed."""
    return {name for name in {*sys.stdlib_module_names, *packages_distributions()} if name.isidentifier()}


@pytest.fixture
def trapped(tmp_path: Path) -> Path:
    """A folder of the user's that holds a file for every module there is; `proof` beside it shows which of them ran."""
    folder = tmp_path / "downloads"
    folder.mkdir()
    plant(folder, tmp_path / "proof", importable())
    return folder


def test_the_traps_work(trapped: Path, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", "import random, stream"], cwd=trapped, check=True, timeout=LIMIT_S)
    assert {path.name for path in (tmp_path / "proof").iterdir()} >= {"random", "stream"}


@pytest.mark.parametrize("paths", ["", ":", ".:lib:"])
def test_a_child_imports_nothing_from_the_working_folder(
    paths: str, trapped: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", paths)
    command = python_command("tests.support.child")
    process = subprocess.run(
        command, cwd=trapped, env=python_environment(), input="exit 3 gone", text=True, capture_output=True
    )
    assert (process.returncode, process.stdout) == (3, "gone\n"), process.stderr
    assert list((tmp_path / "proof").iterdir()) == []


COMMANDS = {
    "caption": ["caption", "scene:demo", "--max-frames", "2"],
    "watch": ["watch", "scene:demo", "--max-frames", "2", "--set", "pipeline.restart=true"],
    "doctor": ["doctor"],
}
LONG_COMMANDS = {"bench": ["bench", "scene:demo", "--max-frames", "2"]}


@pytest.mark.parametrize("command", [*COMMANDS, pytest.param("bench", marks=pytest.mark.slow)])
def test_no_command_runs_code_of_the_working_folder(command: str, trapped: Path, tmp_path: Path) -> None:
    arguments = {**COMMANDS, **LONG_COMMANDS}[command]
    run_there(trapped, arguments, {name: value for name, value in os.environ.items() if name != "PYTHONPATH"})
    assert list((tmp_path / "proof").iterdir()) == []


@pytest.mark.slow
def test_neither_does_one_on_the_path_of_python(tmp_path: Path) -> None:
    """An empty entry of PYTHONPATH is the working folder; Python's own imports at its start are out of reach."""
    bare = subprocess.run([sys.executable, "-c", "import sys; print(*sys.modules)"], capture_output=True, text=True)
    missing_modules = {name for name in sys.stdlib_module_names if importlib.util.find_spec(name) is None}
    at_start = {"sitecustomize", "usercustomize", *bare.stdout.replace(".", " ").split(), *missing_modules}
    assert {"random", "secrets", "queue", "numpy", "torch", "av"} & at_start == set()
    folder = tmp_path / "downloads"
    folder.mkdir()
    plant(folder, tmp_path / "proof", importable() - at_start)
    run_there(folder, COMMANDS["caption"], {**os.environ, "PYTHONPATH": ":."})
    assert list((tmp_path / "proof").iterdir()) == []


def run_there(folder: Path, arguments: list[str], environment: dict[str, str]) -> None:
    command = [sys.executable, str(Path(ROOT, "run_stream.py")), *arguments]
    process = subprocess.run(
        command,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert process.returncode in ((0, 1) if arguments == ["doctor"] else (0,)), process.stderr


@pytest.mark.parametrize("option", ["-P", None])
def test_the_script_finds_its_program_however_python_is_started(option: str | None, tmp_path: Path) -> None:
    if option is not None and sys.version_info < (3, 11):
        pytest.skip("Python 3.10 has no -P")
    command = [sys.executable, *([option] if option else []), str(Path(ROOT, "run_stream.py")), "--version"]
    process = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT_S)
    assert process.stdout.startswith("arr-coc-stream "), process.stderr


INTERRUPT_AT = """
import atexit, os, runpy, signal, sys

class Interrupt:
    def __init__(self, count):
        self.left = count

    def find_spec(self, name, path=None, target=None):
        self.left -= name == "stream" or "stream" in sys.modules  # not those of runpy
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGINT)

if sys.argv[1] == "exit":
    atexit.register(os.kill, os.getpid(), signal.SIGINT)
else:
    sys.meta_path.insert(0, Interrupt(int(sys.argv[1])))
sys.argv = sys.argv[2:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
"""Sends SIGINT at the search for the given one of the modules that the command imports, or as Python ends."""


@pytest.mark.parametrize("at", ["1", "2", "3", "4", "10", "40", "120", "exit"])
def test_ctrl_c_at_any_moment_ends_without_a_word(at: str) -> None:
    command = [sys.executable, "-c", INTERRUPT_AT, at, str(Path(ROOT, "run_stream.py")), "keys", "--help"]
    process = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)
    assert (process.returncode, process.stderr) == (130, "")


def test_an_ignored_ctrl_c_stays_ignored() -> None:
    """A shell ignores it for the commands in its background."""
    code = f"import signal; signal.signal(signal.SIGINT, signal.SIG_IGN){INTERRUPT_AT}"
    command = [sys.executable, "-c", code, "3", str(Path(ROOT, "run_stream.py")), "--version"]
    process = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)
    assert (process.returncode, process.stderr) == (0, "")
    assert process.stdout.startswith("arr-coc-stream ")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_before_the_first_frame_leaves_no_file(number: signal.Signals, tmp_path: Path) -> None:
    captions = tmp_path / "captions.vtt"
    command = [sys.executable, str(Path(ROOT, "run_stream.py")), "caption", "-", "-o", str(captions)]
    command += ["--heatmap", str(tmp_path / "map.mp4"), "--record", str(tmp_path / "recording")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        until(lambda: captions.exists() or process.poll() is not None)
        process.send_signal(number)
        assert process.wait(LIMIT_S) == 130
        assert process.stderr is not None
        assert process.stderr.read() == b""
    assert list(tmp_path.iterdir()) == []


def test_a_working_folder_that_was_removed_is_one_line(tmp_path: Path) -> None:
    folder, script = tmp_path / "gone", Path(ROOT, "run_stream.py")
    folder.mkdir()
    code = (
        "import os, runpy, sys; os.rmdir(os.getcwd()); del sys.argv[0]; runpy.run_path(sys.argv[0], None, '__main__')"
    )
    command = [sys.executable, "-c", code, str(script), "caption", "scene:demo"]
    process = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=LIMIT_S)
    message = "error: the working folder was removed; change to a folder that exists\n"
    assert (process.returncode, process.stderr) == (2, message)


@pytest.fixture
def another_stream(tmp_path: Path) -> Path:
    """A folder with another package named `stream`, whose code must not run."""
    package = tmp_path / "elsewhere" / "stream"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise SystemExit('code of another package ran')\n", "utf-8")
    return package.parent


def with_path(*folders: Path | str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, folders))}


def test_the_installed_command_refuses_another_package_named_stream(another_stream: Path, tmp_path: Path) -> None:
    project = tomllib.loads(Path(ROOT, "pyproject.toml").read_text("utf-8"))
    module, _, function = project["project"]["scripts"]["arr-coc-stream"].partition(":")
    assert module in project["tool"]["setuptools"]["py-modules"]
    code = f"import sys; from {module} import {function}; sys.exit({function}())"  # as pip writes it
    process = subprocess.run(
        [sys.executable, "-c", code, "--version"],
        cwd=tmp_path,
        env=with_path(another_stream, ROOT),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    (line,) = process.stderr.splitlines()
    assert (process.returncode, process.stdout) == (2, "")
    assert line.startswith(f"error: {another_stream / 'stream'} is another package named stream")


def test_the_script_and_the_library_do_without_another_package_named_stream(
    another_stream: Path, tmp_path: Path
) -> None:
    for words in (
        [str(Path(ROOT, "run_stream.py")), "--version"],
        ["-c", "import arr_coc, arr_coc.texturevlm; print(arr_coc.ARRCOCQwen)"],
    ):
        process = subprocess.run(
            [sys.executable, *words],
            cwd=tmp_path,
            env=with_path(another_stream, ROOT),
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
        )
        assert (process.returncode, process.stderr) == (0, "")
