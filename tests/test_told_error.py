from __future__ import annotations

import pytest

from arr_coc.errors import ModelNotFound
from stream.errors import SourceNotFound
from stream.told_error import told_error


@pytest.mark.parametrize("kind", [ModelNotFound, SourceNotFound])
def test_an_error_of_the_projects_own_is_made_again(kind: type[Exception]) -> None:
    error = told_error(kind.__name__, "what happened")
    assert type(error) is kind
    assert str(error) == "what happened"


@pytest.mark.parametrize("name", ["ValueError", "StageDied", "annotations", "", "Nonsense"])
def test_any_other_is_none_that_is_known_here(name: str) -> None:
    assert told_error(name, "what happened") is None
