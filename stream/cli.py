"""Command line: the commands, and every error as one line and an exit status."""

from __future__ import annotations

import io
import os
import re
import sys
from collections.abc import Sequence
from functools import cache
from importlib.metadata import version
from pkgutil import resolve_name
from typing import Annotated, Any

import typer

from arr_coc.errors import ArrCocError, DeviceLost
from stream import logs
from stream.commands.help import GroupedCommand
from stream.commands.outcome import BAD_INPUT, FAILED, INTERRUPTED, READER_GONE, report_error
from stream.control import leave_gone_terminal, raise_descriptor_limit
from stream.errors import ConfigError, OutputFailed, ReaderGone, StreamError
from stream.extension import CommandType
from stream.extension.registry import extensions, package_at_fault

WELCOME = """\
ARR-COC Stream {version}: a video goes in, text comes out, while it runs.
A Qwen vision-language model is shown only the visual tokens that matter now.

A drawn clip, with the bundled model:
  {program} demo
Captions of a video, as lines or into files:
  {program} caption clip.mp4 -o clip.vtt -q "What is the dog doing?"
A camera, an address or a file; with web in a page, with fleet several at once:
  {program} watch 0 -q "Is anybody at the door?"
With serve-answers and keys a run reaches hosts, with mcp agents; to ask one:
  {program} ask tcp://127.0.0.1:5557 "Is the door open?"
Frames a second, latency, jitter and drops:
  {program} bench clip.mp4
Choose tokens better with your model, learned from your clips without labels:
  {program} adapt clip.mp4 -m Qwen/Qwen3-VL-2B-Instruct -o adapted
What cameras saw, kept by --remember; or recap it, or replay a --record folder:
  {program} search "red car" --since 2h
What works on this machine; devices lists its cameras:
  {program} doctor

The bundled model only knows drawn scenes. For real video, name another:
  {program} caption clip.mp4 -m Qwen/Qwen3-VL-2B-Instruct

Every option: {program} COMMAND --help. More: docs/cli.md
"""

CORE = (
    CommandType(function="stream.commands.caption:caption", grouped=True),
    CommandType(function="stream.commands.watch:watch", grouped=True),
    CommandType(function="stream.commands.caption:demo", grouped=True),
)

app = typer.Typer(
    rich_markup_mode=None,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


@cache
def application() -> typer.Typer:
    """Return the program with the commands of the core and of extensions. Raises ConfigError for a broken extension."""
    for command in commands():
        app.command(cls=GroupedCommand if command.grouped else None)(resolve_name(command.function))
    return app


def commands() -> list[CommandType]:
    """Return all commands in the order of the help."""
    listed = list(CORE)
    for extension in extensions():
        for command in extension.commands:
            names = [other.name for other in listed]
            if command.before in names:
                listed.insert(names.index(command.before), command)
            else:
                listed.append(command)
    return listed


def _print_version(value: bool) -> None:
    if value:
        typer.echo(f"arr-coc-stream {version('arr-coc-stream')}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    show_version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """A video goes in, text comes out, while it runs."""
    if context.invoked_subcommand is None:
        typer.echo(WELCOME.format(version=version("arr-coc-stream"), program=context.info_name), nl=False)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    # closed standard streams open to nowhere: otherwise the first files of the run would take their numbers
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    sys.stdout = sys.stdout or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    sys.stderr = sys.stderr or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # characters that the terminal's encoding lacks end no run
    argv = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in argv
    logs.set_up(debug=debug, as_json="--log-json" in argv, verbose="--verbose" in argv)
    raise_descriptor_limit()
    try:
        try:
            os.getcwd()
        except FileNotFoundError:
            raise ConfigError("the working folder was removed; change to a folder that exists") from None
        return application()(args=argv, prog_name=_program(), standalone_mode=False) or 0
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except ReaderGone:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return READER_GONE
    except Exception as error:
        if debug:
            logs.report_traceback(error)
        return _explain(error)
    finally:
        leave_gone_terminal()  # text left in a buffer would fail as Python ends


def _program() -> str:
    name = os.path.basename(sys.argv[0])
    return f"python {name}" if name.endswith(".py") else name


def _explain(error: Exception) -> int:
    """Report an error in one line and return the exit status."""
    if isinstance(error, (ArrCocError, StreamError)):
        report_error(str(error))
        gave_up = isinstance(error, (OutputFailed, DeviceLost))  # these worked when the run began
        if error.user_fixable and not gave_up:
            return BAD_INPUT
        return FAILED
    if hasattr(error, "format_message"):
        report_error(_usage(error))
        return BAD_INPUT
    problem = f"unexpected {type(error).__name__}: {error}"
    package = package_at_fault(error)
    if package is not None:
        report_error(
            f"{problem}, from {package}; repair it (--debug shows where), or remove it: pip uninstall {package}"
        )
    else:
        report_error(f"{problem}; this is a bug: --debug shows where")
    return FAILED


def _commands_with(option: str, context: Any) -> str:
    """Return the commands that have this option, three at most; empty for none."""
    if not option or context is None:
        return ""
    group = context.find_root().command
    commands = [group.get_command(context, name) for name in group.list_commands(context)]
    names = [command.name for command in commands if any(option in parameter.opts for parameter in command.params)]
    return ", ".join(f"`{name}`" for name in names[:3])


_EXTRA = re.compile(r"Got unexpected extra argument(?:s|\(s\))? \((.*)\)")
"""Complaint about too many arguments; a shell's unquoted file name is the usual cause."""


RENAMED = {"--window": "--memory-frames"}
"""Options of an earlier version → those that took their place."""


def _usage(error: Exception) -> str:
    """Return Typer's own complaint in one line, with the help to read."""
    text = str(error.format_message())  # type: ignore[attr-defined]
    text = _EXTRA.sub(lambda match: f"too many arguments: {match[1]!r}", text)
    context = getattr(error, "ctx", None)
    option = getattr(error, "option_name", "")
    replacement = RENAMED.get(option)
    possible = [replacement] if replacement else getattr(error, "possibilities", None)
    if others := _commands_with(option, context):
        text = f"{text.partition(' (')[0]}; it is an option of {others}"
    elif possible:
        text = f"{text.partition(' (')[0]}; did you mean {possible[0]}?"
    if context is not None:
        path = context.command_path
    else:
        path = _program()
    return f"{text[:1].lower()}{text[1:].rstrip('.')} (see {path} --help)"
