"""Commands in the documents: each of this project is parsed and its configuration built, or run; others are listed."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import tomllib
import typer

from stream.cli import application, main
from stream.commands.options import GivenOptions
from stream.config_loading import ConfigLayer, build_config, leaves
from stream.extensions.fleet.file import read_fleet
from tests.support.video import make_video, moving_square
from tests.test_docs import PAGES, ROOT

BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`([^`]+)`")

ELSEWHERE = "cd|curl|docker|export|ffmpeg|hf|kubectl|openssl|pip|ray|ros2|sudo|vllm"
"""Programs of other projects. Files of this one that their commands name are looked for."""

RUN = ("docs/cli.md", "docs/streaming.md")
"""Pages whose commands about clip.mp4 with the bundled model are run on a short clip."""


class Command(NamedTuple):
    """A command of a page: its words, and whether it is an example of a refused one."""

    page: str
    line: str
    words: tuple[str, ...]
    refused: bool


def commands() -> Iterator[Command]:
    """Yield the commands of all pages, without prompt, variables, redirections and what follows `&&` or `|`."""
    for page in PAGES:
        for language, block in BLOCK.findall(page.read_text(encoding="utf-8")):
            if language not in ("", "sh", "bash", "console"):
                continue
            for variable, value in re.findall(r'^([A-Z_]+)="(.*)"$', block, re.MULTILINE):
                block = block.replace(f"${variable}", value)
            lines = block.replace("\\\n", "").splitlines()
            for number, line in enumerate(lines):
                line = line.removeprefix("$ ").replace(".venv/bin/", "")
                if not re.match(rf"([A-Z_]+=\S+ )*(python|arr-coc-stream|make|{ELSEWHERE})\b", line):
                    continue
                output = lines[number + 1] if number + 1 < len(lines) else ""
                yield from _commands(str(page.relative_to(ROOT)), line, output.startswith("error:"))


def _commands(page: str, line: str, refused: bool) -> Iterator[Command]:
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;<>")
    lexer.whitespace_split = True
    words: list[str] = []
    for word in [*lexer, ";"]:
        if set(word) <= set("|&;<>"):
            while words and re.fullmatch(r"[A-Z_]+=.*|\d", words[0]):
                words.pop(0)
            if words:
                yield Command(page, line.strip(), tuple(words), refused)
            if word in (">", "<"):
                return
            words = []
        else:
            words.append(word)


COMMANDS = list(dict.fromkeys(commands()))
OWN = [
    command
    for command in COMMANDS
    if command.words[:2] == ("python", "run_stream.py") or command.words[0] == "arr-coc-stream"
]


def arguments(command: Command) -> list[str]:
    return list(command.words[1 if command.words[0] == "arr-coc-stream" else 2 :])


def name_of(command: Command) -> str:
    return f"{command.page}: {' '.join(command.words)[:60]}"


@pytest.mark.parametrize("command", OWN, ids=name_of)
def test_options_of_a_command_are_accepted(command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    name, *option_words = arguments(command) or [""]
    group: Any = typer.main.get_command(application())
    if not name:
        return
    parsed = group.commands[name].make_context(name, option_words, resilient_parsing=False)
    options = {key: value for key, value in parsed.params.items() if key != "options"}
    files = [value for value in options.get("config") or () if Path(value).suffix]
    if "set" in options and not files and not command.refused:
        GivenOptions(name, options).configuration(top=[ConfigLayer("SOURCE", {"source": "scene:demo"})])


@pytest.mark.parametrize(
    "command",
    [
        command
        for command in OWN
        if command.page in RUN
        and "caption" in command.words
        and "clip.mp4" in command.words
        and not {"-m", "--api"} & {*command.words}
    ],
    ids=name_of,
)
def test_a_command_about_a_clip_runs(
    command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    make_video(tmp_path / "clip.mp4", moving_square(20, 256, 192))
    monkeypatch.chdir(tmp_path)
    status = main(arguments(command))
    output = capfd.readouterr().err
    assert ("error:" in output) == command.refused, output
    assert (status == 0) != command.refused, output


MODULES = [
    command
    for command in COMMANDS
    if command.words[:2] == ("python", "-m") and not command.words[2].startswith(("http", "venv"))
]


@pytest.mark.parametrize("command", MODULES, ids=name_of)
def test_options_of_a_module_are_accepted(command: Command) -> None:
    module = import_module(command.words[2])
    option_words = list(command.words[3:])
    if hasattr(module, "__path__"):
        program = import_module(f"{command.words[2]}.__main__")
        if hasattr(program, "parser"):
            program.parser().parse_args(option_words)
            return
        parsed: Any = typer.main.get_command(program.app)
        if option_words and option_words[0] in getattr(parsed, "commands", ()):
            parsed = parsed.commands[option_words.pop(0)]
    else:
        group = typer.Typer()
        group.command()(module.main)
        parsed = typer.main.get_command(group)
    parsed.make_context(command.words[2], option_words)


@pytest.mark.parametrize("command", [command for command in COMMANDS if command.words[0] == "make"], ids=name_of)
def test_the_makefile_has_the_target(command: Command) -> None:
    target = command.words[1]
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE), target


@pytest.mark.parametrize(
    "command", [command for command in COMMANDS if re.fullmatch(ELSEWHERE, command.words[0])], ids=name_of
)
def test_files_and_extras_of_other_commands_are_here(command: Command) -> None:
    patterns = [
        word.split("=")[-1] for word in command.words if re.match(r"(\S+=)?(deploy|examples|configs|plugins)/", word)
    ]
    assert [name for name in patterns if not [*ROOT.glob(name)]] == []
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    extra_lists = [name for word in command.words for name in re.findall(r"(?:stream|\.)\[([\w,-]+)\]", word)]
    assert {name for names in extra_lists for name in names.split(",")} <= extras.keys()


TABLES = [
    (str(page.relative_to(ROOT)), block)
    for page in PAGES
    for language, block in BLOCK.findall(page.read_text(encoding="utf-8"))
    if language == "toml" and not page.is_relative_to(ROOT / "plugins")
]


@pytest.mark.parametrize(("page", "text"), TABLES)
def test_a_configuration_is_accepted(page: str, text: str, tmp_path: Path) -> None:
    tables = tomllib.loads(text)
    if "cameras" in tables:
        (tmp_path / "cameras.toml").write_text(text, encoding="utf-8")
        assert read_fleet(str(tmp_path / "cameras.toml")).problems == {}
        return
    tables = {name: table for name, table in tables.items() if name not in ("ray", "vllm")}
    build_config([ConfigLayer(page, dict(leaves(tables))), ConfigLayer("SOURCE", {"source": "scene:demo"})])
