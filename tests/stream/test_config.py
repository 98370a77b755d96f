"""Configuration in layers: precedence, and the message of each mistake."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

from arr_coc.budget import TokenLimits
from arr_coc.resources import presets
from stream.commands.options import GivenOptions, takes_options
from stream.config import Config
from stream.config_loading import (
    ConfigLayer,
    build_config,
    layer_from_assignment,
    layer_from_file,
    layer_from_option,
)
from stream.errors import ConfigError
from stream.untrusted import QUERY_LIMIT_CHARS

ROOT = Path(__file__).resolve().parents[2]

AUTO = "be 'auto' or 'adaptive'"
SHARE = "be a share up to 100%, such as 27%"


def test_without_layers_every_default_stands() -> None:
    assert build_config([]) == Config()


def test_a_later_layer_wins_key_by_key() -> None:
    first = ConfigLayer("one", {"allocate.budget": 10, "allocate.explore": 0.5})
    second = ConfigLayer("two", {"allocate.budget": 20})
    config = build_config([first, second])
    assert (config.allocate.budget, config.allocate.explore) == (20, 0.5)


@pytest.mark.parametrize(
    ("assignment", "key", "value"),
    [
        ("allocate.budget=64", "allocate.budget", 64),
        ("allocate.budget=adaptive", "allocate.budget", "adaptive"),
        ("allocate.budget=27%", "allocate.budget", "27%"),
        ('allocate.budget="12.5%"', "allocate.budget", "12.5%"),
        ("answer.every_s = 0.5", "answer.every_s", 0.5),
        ("answer.query=what = what?", "answer.query", "what = what?"),
        ("answer.query=5", "answer.query", "5"),
        ('answer.query="quoted"', "answer.query", "quoted"),
        ("pipeline.single_process=true", "pipeline.single_process", True),
        ('output.paths=["a.vtt"]', "output.paths", ["a.vtt"]),
        ("answer.model=1\nx=2", "answer.model", "1\nx=2"),
    ],
)
def test_set_takes_toml_values_and_bare_text(assignment: str, key: str, value: object) -> None:
    assert layer_from_assignment(assignment).values == {key: value}


@pytest.mark.parametrize("assignment", ["allocate.budget", "=3", ""])
def test_set_without_key_or_equals_sign_shows_the_form(assignment: str) -> None:
    with pytest.raises(ConfigError, match=r"--set needs KEY=VALUE.*got"):
        layer_from_assignment(assignment)


@pytest.mark.parametrize(("word", "value"), [("on", True), ("off", False), ("yes", True), ("no", False)])
def test_switches_have_the_words_of_the_tables(word: str, value: bool) -> None:
    assert build_config([layer_from_assignment(f"answer.feedback={word}")]).answer.feedback is value
    assert build_config([layer_from_assignment(f"answer.query={word}")]).answer.query == word


def test_none_switches_off_what_may_be_off() -> None:
    assert build_config([layer_from_assignment("answer.every_s=none")]).answer.every_s is None
    assert build_config([layer_from_assignment("answer.query=none")]).answer.query == "none"


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("allocate.budgt", "there: unknown key allocate.budgt; did you mean allocate.budget?"),
        ("budget", "there: unknown key budget; did you mean allocate.budget?"),
        ("answer.dtpe", "there: unknown key answer.dtpe; did you mean answer.dtype?"),
        (
            "zzz",
            "there: unknown key zzz; its sections are capture, texture, allocate, answer, zones, output, network, "
            "pipeline; those of extensions: docs/configuration.md",
        ),
        ("output.mqtt_name", "there: unknown key output.mqtt_name; did you mean mqtt.name?"),
        ("answer.api.url", "there: unknown key answer.api.url; did you mean api.url?"),
        ("answer.api.extra.top_k", "there: unknown key answer.api.extra.top_k; did you mean api.extra?"),
        ("answer.api.pictre", "there: unknown key answer.api.pictre; did you mean api.picture?"),
        ("answer.api", "there: unknown key answer.api; did you mean api.url?"),
        ("output.otlp", "there: unknown key output.otlp; did you mean otlp.url?"),
        ("texture.cut", "there: texture.cut is a section, not a value; its keys are enabled"),
    ],
)
def test_an_unknown_key_names_the_place_and_the_nearest_right_one(key: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        build_config([ConfigLayer("there", {key: 1})])
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("allocate.budget", 0, f"allocate.budget should be 1 or more, or {AUTO}, or {SHARE}, got 0"),
        ("allocate.explore", 2, "allocate.explore should be at most 1, got 2"),
        ("answer.every_s", 0, "answer.every_s should be more than 0, or be none, got 0"),
        ("answer.temperature", float("nan"), "answer.temperature should be a number, got nan"),
        ("answer.repetition_penalty", 0, "answer.repetition_penalty should be more than 0, or be none, got 0"),
        ("answer.presence_penalty", 3, "answer.presence_penalty should be at most 2, or be none, got 3"),
        ("answer.frequency_penalty", -3, "answer.frequency_penalty should be -2 or more, or be none, got -3"),
        ("answer.min_p", 1.5, "answer.min_p should be at most 1, or be none, got 1.5"),
        ("answer.top_k", -1, "answer.top_k should be 0 or more, or be none, got -1"),
        (
            "answer.no_repeat_ngram_size",
            1.5,
            "answer.no_repeat_ngram_size should be a whole number, or be none, got 1.5",
        ),
        ("answer.decoding", "greedy", "answer.decoding should be 'auto', 'checkpoint' or 'plain', got 'greedy'"),
        ("capture.size", "640", "capture.size should be text such as 640x480, or be none, got '640'"),
        ("answer.model", "", "answer.model should have at least 1 character, or be none, got ''"),
        ("pipeline.single_process", "yes", "pipeline.single_process should be on or off, got 'yes'"),
    ],
)
def test_a_wrong_value_is_refused_with_the_accepted_ones(key: str, value: object, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        build_config([ConfigLayer("here", {key: value})])
    assert str(caught.value) == f"here: {message}"


@pytest.mark.parametrize("value", ["0%", "101%", "27%\n", "many", 1.5, True])
def test_a_budget_is_a_number_a_word_or_a_share(value: object) -> None:
    with pytest.raises(ConfigError) as caught:
        build_config([ConfigLayer("here", {"allocate.budget": value})])
    expected = f"should be a whole number, or {AUTO}, or {SHARE}, got {value!r}"
    assert str(caught.value) == f"here: allocate.budget {expected}"


@pytest.mark.parametrize(
    ("text", "seconds"), [("2", 2.0), (".5", 0.5), ("500ms", 0.5), ("1m30s", 90.0), ("none", None), ("'none'", None)]
)
def test_seconds_may_have_units(text: str, seconds: float | None) -> None:
    assert build_config([layer_from_option("--every", "answer.every_s", text)]).answer.every_s == seconds


@pytest.mark.parametrize("text", ["1x", "-.5", "."])
def test_other_seconds_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"--every should be"):
        build_config([layer_from_option("--every", "answer.every_s", text)])


def test_an_unknown_strategy_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"be 'auto', .* or 'querystream', got 'best'"):
        build_config([layer_from_option("--strategy", "allocate.strategy", "best")])


def test_a_long_question_is_refused_without_being_repeated() -> None:
    with pytest.raises(ConfigError) as caught:
        build_config([layer_from_option("--query", "answer.query", "x" * 10_000)])
    message = str(caught.value)
    assert message == f"--query should have at most {QUERY_LIMIT_CHARS} characters, got 10000 characters"


@pytest.mark.parametrize("values", [{"allocate.min_tokens": 401}, {"allocate.max_tokens": 63}])
def test_the_least_tokens_are_no_more_than_the_most(values: dict[str, int]) -> None:
    with pytest.raises(ConfigError) as caught:
        build_config([ConfigLayer("here", values)])
    least, most = values.get("allocate.min_tokens", 64), values.get("allocate.max_tokens", 400)
    assert str(caught.value) == (
        f"here: allocate.min_tokens = {least} is more than allocate.max_tokens = {most}; "
        "lower the one or raise the other"
    )
    assert build_config([ConfigLayer("here", dict.fromkeys(("allocate.min_tokens", "allocate.max_tokens"), 9))])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["--memory", "--encode", "full"],
            "--memory: a visual memory is shown what is new, and answer.encode = full .* sparse",
        ),
        (
            ["--memory", "--encode", "prune"],
            "answer.encode = prune encodes whole frames; give --encode sparse or incremental",
        ),
        (
            ["--memory", "--api", "http://127.0.0.1:1/v1"],
            "a server with an API keeps no visual memory; leave --memory out",
        ),
        (
            ["--memory-frames", "3", "--encode", "weighted"],
            "--memory-frames: a visual memory is shown what is new, and answer.encode = weighted encodes whole frames; "
            "give --encode sparse or incremental, or leave --memory-frames out",
        ),
        (
            ["--memory-frames", "3", "--no-memory"],
            "--memory-frames: answer.memory.frames = 3: the visual memory keeps them, and --no-memory switches",
        ),
        (
            ["--memory-frames", "3", "--budget", "700"],
            "--memory-frames: answer.memory.tokens = 2048 is too small for 3 frames of 700 tokens; raise it, or lower",
        ),
        (
            ["--memory", "--budget", "3000"],
            "--budget: answer.memory.tokens = 2048 is too small for 1 frame of 3000 tokens; raise it",
        ),
        (
            ["--memory", "--budget", "90", "-s", "answer.memory.tokens=64"],
            "--set: answer.memory.tokens = 64 is too small for 1 frame",
        ),
        (
            ["--when", "news", "-s", "answer.thinking=hide"],
            "answer.when = news compares answers without thoughts; leave",
        ),
        (
            ["-s", "answer.thinking=show", "--api", "http://127.0.0.1:1/v1"],
            "answer.thinking = show has no effect with --api: thoughts are hidden, and its server switches them off",
        ),
        (
            ["--thinking", "hide", "--server", "ipc:///tmp/answers"],
            "--thinking: answer.thinking = hide has no effect with --server: its server decides that; leave it out, or "
            "start `serve-answers` there with --thinking hide",
        ),
        (
            ["--cache-weights", "--dtype", "bfloat16"],
            "--cache-weights: answer.cache_weights keeps weights in int8 or int4, and answer.dtype = bfloat16; give",
        ),
        (["-s", "answer.memory.tokens=63"], "answer.memory.tokens should be 64 or more"),
        (["-s", "answer.memory.tokens=65537"], "answer.memory.tokens should be at most 65536"),
        (["-s", "answer.memory.seconds=0"], "answer.memory.seconds should be more than 0"),
    ],
)
def test_options_beyond_the_model_are_refused_with_the_remedy(options: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        run_config(*options)


@pytest.mark.parametrize(
    ("options", "keeps_memory"),
    [
        *(([], True), (["--memory"], True), (["--memory", "--encode", "incremental"], True), (["--no-memory"], False)),
        *((["--memory-frames", "2"], True), (["--memory-frames", "1"], True), (["--encode", "full"], False)),
        *((["--memory-frames", n, "--api", "http://127.0.0.1:1/v1"], False) for n in "12"),
        (["--budget", "4000", "--max-budget", "4000"], True),
    ],
)
def test_a_memory_is_kept_if_it_can_be(options: list[str], keeps_memory: bool) -> None:
    assert run_config(*options).keeps_groups is keeps_memory


@pytest.mark.parametrize(
    ("key", "hint"),
    [
        ("frames", "did you mean answer.memory.frames?"),
        ("on_cut", "did you mean answer.on_cut?"),
        ("kept", "its sections"),
    ],
)
def test_a_key_of_an_unknown_section_is_named_with_the_nearest(key: str, hint: str, tmp_path: Path) -> None:
    path = tmp_path / "old.toml"
    path.write_text(f"[answer.window]\n{key} = 3\n", encoding="utf-8")
    for origin, options in (("--set", ["-s", f"answer.window.{key}=3"]), (path, ["-c", str(path)])):
        with pytest.raises(ConfigError) as raised:
            run_config(*options)
        assert str(raised.value).startswith(f"{origin}: unknown key answer.window.{key}; {hint}")


def test_several_wrong_values_are_counted() -> None:
    with pytest.raises(ConfigError, match=r"allocate\.budget should .* \(and 1 more\)$"):
        build_config([ConfigLayer("x", {"allocate.budget": 0, "answer.top_p": 3})])


def test_a_file_is_read_section_by_section(tmp_path: Path) -> None:
    path = tmp_path / "my.toml"
    path.write_text('source = "a.mp4"\n[texture.cut]\nenabled = false\n', encoding="utf-8")
    config = build_config([layer_from_file(str(path))])
    assert (config.source, config.texture.cut.enabled) == ("a.mp4", False)


def run_config(*arguments: str) -> Config:
    """The configuration that a command with these options would run."""
    configs: list[Config] = []
    probe = typer.Typer()

    @probe.command()
    @takes_options
    def caption(*, options: GivenOptions) -> int:
        configs.append(options.configuration())
        return 0

    probe(args=list(arguments), standalone_mode=False)
    return configs[0]


def test_several_files_are_merged_key_by_key_and_the_last_wins(tmp_path: Path) -> None:
    config_file = tmp_path / "own.toml"
    config_file.write_text("[answer]\nmax_tokens = 7\n[answer.memory]\nframes = 3\n", encoding="utf-8")
    config = run_config("-c", "gpu", "-c", "webcam", "--config", str(config_file))
    assert config.answer.model == "Qwen/Qwen3-VL-2B-Instruct", "only gpu has it"
    assert config.capture.max_tiles == 920, "only webcam has it"
    assert (config.answer.max_tokens, config.answer.memory.frames) == (7, 3), "the file comes last"
    assert run_config("-c", "robot", "-c", "webcam").allocate.budget == "auto"
    assert run_config("-c", "webcam", "-c", "robot").allocate.budget == 64


def test_a_value_that_another_file_replaces_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "stream.config_loading"):
        run_config("-c", "robot", "-c", "gpu", "--budget", "9")
    assert [record.getMessage() for record in caplog.records] == [
        "answer.max_tokens of gpu takes the place of that of robot",
        "allocate.budget of --budget takes the place of that of robot",
    ]


@pytest.mark.parametrize("pair", list(itertools.permutations(presets(), 2)))
def test_any_two_presets_go_together(pair: tuple[str, str]) -> None:
    assert run_config("-c", pair[0], "-c", pair[1])


def test_options_set_the_least_and_most_tokens() -> None:
    allocate = run_config("--min-budget", "6", "--max-budget", "90").allocate
    assert (allocate.min_tokens, allocate.max_tokens, allocate.limits) == (6, 90, TokenLimits(6, 90))


def test_set_and_options_win_over_every_file() -> None:
    assert run_config("-s", "allocate.budget=5", "-c", "gpu", "-c", "webcam").allocate.budget == 5
    assert run_config("--budget", "6", "-s", "allocate.budget=5", "-c", "webcam").allocate.budget == 6


def test_a_mistake_in_one_of_several_files_names_that_file(tmp_path: Path) -> None:
    good, unknown, wrong = (tmp_path / name for name in ("good.toml", "unknown.toml", "wrong.toml"))
    good.write_text("[allocate]\nbudget = 5\n", encoding="utf-8")
    unknown.write_text("[allocate]\nbudgt = 5\n", encoding="utf-8")
    wrong.write_text("[answer]\nevery_s = 0\n", encoding="utf-8")
    for bad, message in ((unknown, "unknown key allocate.budgt"), (wrong, "answer.every_s should be more than 0")):
        for order in ((good, bad), (bad, good)):
            with pytest.raises(ConfigError) as caught:
                run_config(*(argument for path in order for argument in ("-c", str(path))))
            assert str(caught.value).startswith(f"{bad}: {message}")


def test_files_that_cannot_be_used_say_why(tmp_path: Path) -> None:
    broken = tmp_path / "broken.toml"
    broken.write_text("[allocate\n", encoding="utf-8")
    binary = tmp_path / "binary.toml"
    binary.write_bytes(b"\xff\xfe\x00")
    for name, message in [
        (str(tmp_path / "absent.toml"), "no configuration file"),
        (str(broken), "not valid TOML: .*line 1"),
        (str(binary), "not UTF-8"),
        (str(tmp_path), "cannot read configuration"),
        ("wbcam", "no preset 'wbcam'; there are demo, file, gpu, robot, webcam"),
        ("webcam,gpu", "or give a TOML file; give --config once for each"),
    ]:
        with pytest.raises(ConfigError, match=message):
            layer_from_file(name)


def refusal(key: str, text: str) -> str:
    """The error of that text as that key's value; empty for a valid one."""
    try:
        build_config([layer_from_option("--set", key, text)])
    except ConfigError as error:
        return str(error)
    return ""


@given(
    st.text(), st.sampled_from(["allocate.budget", "answer.every_s", "capture.size", "output.paths", "answer.query"])
)
def test_any_text_for_any_key_is_taken_or_refused(text: str, key: str) -> None:
    reported = refusal(key, text)
    assert not reported or reported.startswith(f"--set: {key} should ")
