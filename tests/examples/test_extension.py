"""The package of examples/extension is installed into an empty folder, and the program has its parts."""

from __future__ import annotations

import csv
import os
import shutil
import subprocess
import sys
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import ClassVar

import pytest

from tests.support.http_server import LoopbackServer, QuietHandler
from tests.support.network import LIMIT_S

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "extension"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the package, as pip installs it. Its sources are copied, as a build writes beside them."""
    folder = tmp_path_factory.mktemp("site")
    sources = tmp_path_factory.mktemp("sources") / "extension"
    shutil.copytree(EXAMPLE, sources)
    offline = ("--no-deps", "--no-build-isolation", "--no-index")
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "--quiet", *offline, "--target", str(folder), str(sources)],
        check=True,
        timeout=LIMIT_S,
    )
    return folder


def program(site: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The result of a command with the packages of `site`."""
    return subprocess.run(
        [sys.executable, str(ROOT / "run_stream.py"), *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(site), "COLUMNS": "80"},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )


def test_its_source_sink_keys_and_command_are_there(site: Path, tmp_path: Path) -> None:
    result = program(site, tmp_path, "caption", "ball:3", "-o", "a.csv", "--csv-delimiter", ";")
    assert result.returncode == 0, result.stderr
    assert "wrote a.csv" in result.stderr
    head, *lines = (tmp_path / "a.csv").read_text().splitlines()
    assert head == "seconds;text;tokens"
    assert [line.partition(";")[0] for line in lines] == ["0.0", "2.0", "2.9"]
    assert program(site, tmp_path, "count", "a.csv").stdout.startswith("3 answers, ")
    described = program(site, tmp_path, "caption", "--help").stdout
    assert "--csv-delimiter CHARACTER" in described
    assert ".csv, - for JSON" in " ".join(described.replace("│", " ").split())
    assert "Count the answers of a .csv." in program(site, tmp_path, "--help").stdout


def test_its_filter_changes_the_answers_in_every_output(site: Path, tmp_path: Path) -> None:
    arguments = ("caption", "ball:1", "-o", "a.vtt", "--max-frames", "1", "-q", "What is there?")
    assert program(site, tmp_path, *arguments).returncode == 0
    words = (tmp_path / "a.vtt").read_text().split()
    last = words[-1].strip(".")
    result = program(site, tmp_path, *arguments, "--hide-word", last, "--hide-word", "unheard")
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "a.vtt").read_text().split()[-1] == words[-1].replace(last, "***")


class CountingHandler(QuietHandler, BaseHTTPRequestHandler):
    """Answers a line of CSV with its question, in capitals; notes the lines."""

    lines: ClassVar[list[list[str]]] = []

    def do_POST(self) -> None:
        (line,) = csv.reader([self.content().decode()])
        self.lines.append(line)
        self.send_whole(200, line[0].upper().encode())


def test_its_model_answers(site: Path, tmp_path: Path) -> None:
    with LoopbackServer(CountingHandler) as server:
        options = ("--csv-server", server.address, "-q", "what, and where?", "--budget", "30")
        result = program(site, tmp_path, "caption", "ball:3", "-o", "a.csv", *options)
        refused = program(site, tmp_path, "caption", "ball:3", *options, "--until", "is there a ball?")
    assert result.returncode == 0, result.stderr
    _, *answers = csv.reader((tmp_path / "a.csv").read_text().splitlines())
    assert answers == [[second, "WHAT, AND WHERE?", "30"] for second in ("0.0", "2.0", "2.9")]
    assert CountingHandler.lines[0] == ["what, and where?", "0.0", "30"]
    assert len(CountingHandler.lines) == 3
    assert "the server has no probabilities of yes and no; leave watches out" in refused.stderr


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("caption", "ball:3", "--csv-server", "x"), "error: 'x' is no address of a server; write http://HOST:PORT"),
        (
            ("caption", "ball:3", "--csv-server", "http://h", "--api", "http://h"),
            "answers come from one server; leave out --api or --csv-server",
        ),
        (("caption", "ball:x"), "error: 'ball:x' has no length in seconds; write for example ball:5"),
        (("caption", "ball:3", "--csv-delimiter", ";;"), "error: --csv-delimiter should have at most 1 character"),
        (("caption", "ball:3", "--set", "csv.delimitr=;"), "unknown key csv.delimitr; did you mean csv.delimiter?"),
    ],
)
def test_mistakes_are_reported_as_those_of_the_program(
    arguments: tuple[str, ...], line: str, site: Path, tmp_path: Path
) -> None:
    result = program(site, tmp_path, *arguments)
    assert result.returncode == 2
    assert line in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("raise OSError('no display')", "the extension csv of arr-coc-csv cannot be loaded: no display; repair it"),
        ("EXTENSION = 5", "arr_coc_csv:EXTENSION of arr-coc-csv is no stream.extension.Extension; repair it"),
        ("import sys\nsys.exit('no')", "the extension csv of arr-coc-csv cannot be loaded: no; repair it"),
        (
            "from stream.extension import Extension\nEXTENSION = Extension(name='csv', section='nowhere:Section')",
            "the extension csv of arr-coc-csv cannot be loaded: No module named 'nowhere'; repair it",
        ),
        (
            "from stream.extension import Extension\nEXTENSION = Extension(name='output')",
            "the extension csv of arr-coc-csv cannot be loaded: its name output is taken by the configuration; repair",
        ),
        (
            "from stream.extension import Extension\nEXTENSION = Extension(name='csv', answer_filter='nowhere:of')",
            "nowhere:of of arr-coc-csv cannot be used: No module named 'nowhere'; repair it",
        ),
        (
            "from stream.extension import Extension\nEXTENSION = Extension(name='csv', continuation='json:loads')",
            "json:loads of arr-coc-csv cannot be used: ",
        ),
        (
            "from stream.extension import Extension\nEXTENSION = Extension(name='otlp')",
            "arr-coc-csv has an extension otlp, and so has another package; repair it",
        ),
        (
            "from typing import Annotated\n"
            "from stream.config import ExtensionSection\n"
            "from stream.extension import Extension\n"
            "from stream.options.option import Option\n"
            "class Section(ExtensionSection):\n"
            "    question: Annotated[str, Option('--query TEXT', 'Its own.')] = ''\n"
            "EXTENSION = Extension(name='csv', section='arr_coc_csv:Section')",
            "`bench` has an option --query already, and the extension csv another; repair it",
        ),
        (
            "from stream.extension import Extension, ModelType\n"
            "EXTENSION = Extension(name='csv', models=(ModelType(key='csv.url', option='-', name='', load=''),))",
            "the extension csv of arr-coc-csv cannot be loaded: its section has no key csv.url; repair it",
        ),
    ],
)
def test_a_broken_extension_is_one_line_that_names_its_package(
    text: str, problem: str, site: Path, tmp_path: Path
) -> None:
    broken = tmp_path / "site"
    shutil.copytree(site, broken)
    (broken / "arr_coc_csv" / "__init__.py").write_text(text)
    result = program(broken, tmp_path, "caption", "scene:demo", "--max-frames", "1")
    assert result.returncode == 2
    assert result.stderr.startswith(f"error: {problem}")
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("import csv\n", "import csvx as csv\n", "ModuleNotFoundError: No module named 'csvx'"),
        ("class CsvSink", "class OtherSink", "AttributeError: module 'arr_coc_csv.sink' has no attribute 'CsvSink'"),
        (
            "    def write(",
            "    def write(self, event: object) -> None:\n        raise KeyError('boom')\n\n    def w(",
            "KeyError",
        ),
    ],
)
def test_an_error_in_a_part_names_its_package(old: str, new: str, problem: str, site: Path, tmp_path: Path) -> None:
    broken = tmp_path / "site"
    shutil.copytree(site, broken)
    module = broken / "arr_coc_csv" / "sink.py"
    text = module.read_text()
    assert old in text
    module.write_text(text.replace(old, new))
    result = program(broken, tmp_path, "caption", "ball:1", "-o", "a.csv", "--max-frames", "1", "-q", "What?")
    assert result.returncode == 1
    (line,) = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    assert line.startswith(f"error: unexpected {problem}")
    assert line.endswith("from arr-coc-csv; repair it (--debug shows where), or remove it: pip uninstall arr-coc-csv")
