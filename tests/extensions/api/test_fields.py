"""Fields of requests: those that the configuration adds or omits, and those that a server refuses."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from arr_coc.errors import ModelError
from stream.config import Config
from stream.config_loading import build_config, layer_from_option
from stream.errors import ConfigError
from stream.extensions.api.fields import RequestFields, refused_field
from stream.extensions.api.section import ApiSection
from stream.extensions.api.text import load_api_text
from tests.extensions.api.test_model import answer_text, config, loaded, notice, packet
from tests.support import api_server as fake
from tests.support.api_server import FakeApiServer, api_server

OPENAI_TOKENS = {
    "error": {
        "message": "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' "
        "instead.",
        "type": "invalid_request_error",
        "param": "max_tokens",
        "code": "unsupported_parameter",
    }
}
OPENAI_TEMPERATURE = "Unsupported value: 'temperature' does not support 0 with this model. Only the default (1) is."
FASTAPI_TEMPERATURE = {
    "detail": [{"type": "extra_forbidden", "loc": ["body", "temperature"], "msg": "Extra inputs are not permitted"}]
}
BARE_TEMPERATURE = {"error": {"message": "unsupported_value", "param": "temperature"}}


@pytest.fixture
def server() -> Iterator[FakeApiServer]:
    with api_server() as fake_server:
        yield fake_server


@pytest.mark.parametrize("temperature_error", [OPENAI_TEMPERATURE, FASTAPI_TEMPERATURE, BARE_TEMPERATURE])
def test_a_server_that_refuses_fields_is_asked_otherwise_for_the_whole_run(
    server: FakeApiServer, temperature_error: object
) -> None:
    server.behaviour = fake.refuse_fields({"max_tokens": OPENAI_TOKENS, "temperature": temperature_error})
    model = loaded(server, max_tokens=20)
    assert answer_text(model) == "a red circle"
    assert notice(model) == "the server refuses temperature, which it then chooses by itself"
    assert answer_text(model, 1) == "a red circle"
    assert model.score(packet(2), "is it red?")[0] > 0.9
    assert notice(model) == ""
    fields = [
        (body.get("max_tokens"), body.get("max_completion_tokens"), "temperature" in body) for body in server.bodies
    ]
    assert fields == [(20, None, True), (None, 20, True), (None, 20, False), (None, 20, False), (None, 3, False)]


def test_a_server_without_usage_in_its_stream_is_not_asked_for_it(server: FakeApiServer) -> None:
    server.behaviour = fake.refuse_fields({"stream_options": "Unrecognized request argument: stream_options"})
    assert answer_text(loaded(server)) == "a red circle"


def test_a_recap_is_asked_for_without_refused_fields_too(server: FakeApiServer) -> None:
    server.behaviour = fake.refuse_fields({"max_tokens": OPENAI_TOKENS, "temperature": OPENAI_TEMPERATURE})
    model = load_api_text(config(server))
    assert model.complete("what?") == model.complete("what?") == "a red circle"
    assert len(server.bodies) == 4


def test_a_value_that_is_refused_is_no_refused_field(server: FakeApiServer) -> None:
    server.behaviour = fake.refuse_fields({"max_tokens": "max_tokens is too large: this model has 16 tokens"})
    with pytest.raises(ModelError, match=r"too large: .*\); name a vision-language model with -m, or a smaller budget"):
        answer_text(loaded(server))
    assert len(server.bodies) == 1


def test_a_refused_field_that_nothing_replaces_has_a_remedy(server: FakeApiServer) -> None:
    server.behaviour = fake.refuse_fields(
        {"max_completion_tokens": "max_completion_tokens is unknown"} | {"max_tokens": OPENAI_TOKENS}
    )
    omit = re.escape("""leave the field out with -s 'api.omit=["max_completion_tokens"]'""")
    with pytest.raises(ModelError, match=omit):
        answer_text(loaded(server))
    server.behaviour = fake.refuse_fields({"top_k": "top_k is not supported"})
    with pytest.raises(ModelError, match=r"leave top_k out of api\.extra"):
        answer_text(loaded(server, {"extra": {"top_k": 1}}))


def test_the_configuration_adds_fields_and_omits_others(server: FakeApiServer) -> None:
    api = {"extra": {"reasoning_effort": "low", "max_completion_tokens": 500}, "omit": ("temperature", "seed")}
    answer_text(loaded(server, api, temperature=0.5))
    (body,) = server.bodies
    assert {"max_tokens", "temperature", "seed"}.isdisjoint(body)
    assert (body["reasoning_effort"], body["max_completion_tokens"]) == ("low", 500)


def test_a_field_of_the_configuration_is_never_left_out() -> None:
    fields = RequestFields(ApiSection(extra={"temperature": 1.0}))
    assert fields.applied({"temperature": 0.0}) == {"temperature": 1.0}
    assert not fields.learn({"temperature": 1.0}, "temperature is not supported")


@pytest.mark.parametrize(
    ("error", "field"),
    [
        ("Unsupported parameter: 'max_tokens'; use 'max_completion_tokens' instead", "max_tokens"),
        ("max_tokens_to_sample is unknown", None),
        ("temperature is out of the range of 1 to 2", None),
        ("the model does not support these messages", None),
    ],
)
def test_the_field_of_a_refusal_is_the_first_that_it_names(error: str, field: str | None) -> None:
    request = {"model": "m", "messages": [], "temperature": 0, "max_tokens": 3, "max_completion_tokens": 3}
    assert refused_field(request, error) == field


def configured(*settings: str) -> Config:
    return build_config([layer_from_option("--set", *setting.split("=", 1)) for setting in settings])


def test_fields_of_several_layers_are_merged_key_by_key() -> None:
    extra = configured('api.extra={a={b="x"}, c=1}', "api.extra.a.d=true", "api.extra.c=2").value("api.extra")
    assert extra == {"a": {"b": "x", "d": True}, "c": 2}
    assert configured("api.extra.a=1", "api.extra.a.b=2").value("api.extra") == {"a": {"b": 2}}
    assert configured('api.omit=["seed"]').value("api.omit") == ("seed",)


@pytest.mark.parametrize(
    ("setting", "problem"),
    [
        ("extra.model=x", "extra should not have model, which the program sets"),
        ("extra.max_tokens=9", "extra should not have max_tokens, which is answer.max_tokens"),
        ("extra.since=2020-01-01", "extra should hold text, numbers, true, false, lists and tables"),
        ("extra.top_k=nan", "extra should hold text, numbers"),
        ("extra=7", "extra should be a valid dictionary, got 7"),
        ('omit=["messages"]', "omit should not have messages, which every request needs"),
        ("extras.a=1", "unknown key api.extras.a; did you mean api.extra?"),
    ],
)
def test_fields_that_cannot_be_sent_are_refused_at_the_start(setting: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(problem)) as error:
        configured(f"api.{setting}")
    assert str(error.value).startswith("--set: ")
