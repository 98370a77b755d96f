"""Help of the commands with many options: the most used ones first, the others in groups, and examples.

The groups are typer's help panels, printed as plain text: rich would take longer to import than the rest of the help.
"""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand

BEHAVIOUR = "Behaviour"

GROUPS: dict[str, tuple[str, ...]] = {
    "Source": ("capture.",),
    "Question": (
        *("answer.query", "answer.every_s", "answer.when", "answer.memory."),
        *("watch", "until", "go_on", "force"),
    ),
    "Tokens": (
        *("answer.allocator", "allocate.budget", "allocate.min_tokens", "allocate.max_tokens"),
        *("allocate.", "answer.encode", "answer.glance."),
    ),
    "Outputs": ("folder", "json_path", "png_path", "output.paths", "output.timing"),
    "Page": (),
    "Servers": ("ray", "engine", "answer.server", "output.", "network."),
    BEHAVIOUR: (
        *("stats_every", "ask_stdin", "warmup", "answer.model", "texture.", "answer."),
        *("config", "set", "pipeline."),
    ),
}
"""Groups in the order of the help → keys of their options, sections of keys, and names of options without a key, in
order, too. The first group that fits counts, so a new option has its group by its key; the last one has the rest."""

MOST_USED = {
    "caption": "query model api output every budget start duration heatmap resume",
    "watch": "query model api output web every budget watch for_time set",
    "fleet": "query model api output every budget for_time metrics_port mqtt ray",
    "web": "query model api every budget any_source compare_model web_control web_token set",
    "bench": "runs limit against against_set json_path png_path query model budget set",
}
"""Command → names of the options that its help begins with, in that order."""

WITHOUT_GROUPS = {
    "adapt": (
        "output model question boxes frames steps minutes max_tiles scorer channels seed resume device dtype log_json"
    ),
    "doctor": "model budget max_budget dtype memory memory_frames encode backend device streams as_json",
    "serve-answers": (
        "model api allocator escalate escalate_below encode memory memory_frames max_tokens thinking slots device "
        "dtype cache_weights keys plain_tcp metrics_port config set debug"
    ),
    "recap": "since before camera model api device dtype as_json config set debug",
}
"""Command → names of its options in the order of the help, if that is not in groups."""

EXAMPLES = {
    "caption": (
        'clip.mp4 -o clip.vtt -q "What is the dog doing?"',
        "talk.mp4 --start 10:00 --duration 5m -o part.srt",
    ),
    "watch": (
        '0 -q "Is anybody at the door?" --web 8000',
        'rtsp://HOST/live --until "Is the door open?"',
    ),
    "fleet": (
        'cameras.toml -q "Is anybody there?"',
        "cameras.toml --for 1h -o '{camera}.jsonl'",
    ),
    "web": (
        "8000 yard=rtsp://HOST/live clip=clip.mp4",
        "8000 -m Qwen/Qwen3-VL-2B-Instruct --any-source",
    ),
    "bench": (
        "scene:demo --runs 5",
        "clip.mp4 --against-set allocate.budget=64",
    ),
}
"""Command → arguments of two examples."""

COLUMN_CHARS = 22
"""Width of the column of options; the text of a longer one begins on the next line."""


def group_of(name: str) -> str:
    """Return the group of an option: that of its key, or of its parameter's name if it has none."""
    for group, keys in GROUPS.items():
        if any(name == key or _begins(name, key) for key in keys):
            return group
    if "." in name:  # of an extension
        return "Servers"
    return BEHAVIOUR


def rank_of(command: str, name: str, key: str, group: str) -> tuple[int, ...]:
    """Return the place of an option, or an argument, of a group in the help of a command."""
    first = (MOST_USED | WITHOUT_GROUPS).get(command, "").split()
    prefixes = GROUPS[group]
    places = [place for place, prefix in enumerate(prefixes) if key == prefix or _begins(key, prefix)]
    if places:
        within = places[0]
    elif "output." in prefixes:  # of an extension: beside the options of the core's own outputs
        within = prefixes.index("output.")
    else:
        within = 99
    return (first.index(name) if name in first else 99, [*GROUPS].index(group), within)


def _begins(key: str, prefix: str) -> bool:
    return prefix.endswith((".", "_")) and key.startswith(prefix)


class GroupedCommand(TyperCommand):
    """Command whose help has the options in groups, as their `rich_help_panel` names them."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the words of the usage line: `[OPTIONS]`, and the arguments as their metavars are written."""
        arguments = [param for param in self.get_params(ctx) if param.param_type_name == "argument"]
        return [self.options_metavar or "", *(_shown(param) for param in arguments)]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the sections: arguments, most used options, groups, examples."""
        most_used = MOST_USED.get(self.name or "", "").split()
        sections: dict[str, list[tuple[str, str]]] = {
            "Arguments": [],
            "Most used options": [],
            **{g: [] for g in GROUPS},
        }
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is None:
                continue
            option, text = record
            if param.param_type_name == "argument":
                sections["Arguments"].append((str(param.metavar), text))
                continue
            section = "Most used options" if param.name in most_used else getattr(param, "rich_help_panel", None)
            sections[section or BEHAVIOUR].append((option, text))
        for title, rows in sections.items():
            if rows:
                with formatter.section(title):
                    formatter.write_dl([(option.ljust(COLUMN_CHARS), text) for option, text in rows], COLUMN_CHARS)
        if self.name in EXAMPLES:
            with formatter.section("Examples"):
                for arguments in EXAMPLES[self.name]:
                    formatter.write(f"{'':{formatter.current_indent}}{ctx.command_path} {arguments}\n")


def _shown(argument: Any) -> str:
    """Return the metavar of an argument, in brackets if it may be left out."""
    metavar: str = argument.metavar
    if argument.required or metavar.startswith("["):
        return metavar
    return f"[{metavar}]"
