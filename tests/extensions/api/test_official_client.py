"""Fake API server of these tests, checked by the API's official client."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support import api_server as fake
from tests.support.api_server import FakeApiServer, api_server

openai = pytest.importorskip("openai", reason="no official client: pip install openai")


def streamed(client: Any, **request: Any) -> list[Any]:
    """The pieces of a reply about a picture, each as the API's own schema has it."""
    picture = {"type": "image_url", "image_url": {"url": "data:image/jpeg;base64,AAAA"}}
    message = {"role": "user", "content": [picture, {"type": "text", "text": "what?"}]}
    options = {"include_usage": True}
    with client.chat.completions.create(
        model=fake.MODEL, messages=[message], stream=True, stream_options=options, **request
    ) as stream:
        return [type(piece).model_validate(piece.to_dict()) for piece in stream]


def refusal(server: FakeApiServer, client: Any, behaviour: Any) -> Any:
    server.behaviour = behaviour
    with pytest.raises(openai.APIError) as raised:
        streamed(client)
    return raised.value


def test_the_official_client_understands_the_server() -> None:
    with (
        api_server() as server,
        openai.OpenAI(base_url=server.url, api_key="none", max_retries=0, timeout=10) as client,
    ):
        assert [(model.id, model.owned_by) for model in client.models.list()] == [(fake.MODEL, "tests")]
        *pieces, last = streamed(client)
        assert "".join(piece.choices[0].delta.content or "" for piece in pieces) == "".join(fake.TEXT)
        assert pieces[-1].choices[0].finish_reason == "stop"
        assert (last.choices, last.usage.prompt_tokens, last.usage.total_tokens) == ([], 90, 94)
        (first,) = streamed(client, logprobs=True, top_logprobs=20)[0].choices[0].logprobs.content
        assert {token.token: token.logprob for token in first.top_logprobs} == fake.LIKELY
        server.behaviour = fake.speak_at_once
        completion = client.chat.completions.create(model=fake.MODEL, messages=[{"role": "user", "content": "what?"}])
        assert type(completion).model_validate(completion.to_dict()).choices[0].message.content == "".join(fake.TEXT)
        kinds = [type(refusal(server, client, fake.refuse(status))) for status in (400, 401, 404, 422, 429, 500)]
        assert kinds == [
            openai.BadRequestError,
            openai.AuthenticationError,
            openai.NotFoundError,
            openai.UnprocessableEntityError,
            openai.RateLimitError,
            openai.InternalServerError,
        ]
        assert refusal(server, client, fake.refuse(400, "no pictures")).message.endswith("no pictures")
        assert "out of memory" in str(refusal(server, client, fake.fail_within))
