from __future__ import annotations

import pytest
import torch

from arr_coc.errors import ShapeError
from arr_coc.relevance.embedding_axes import EmbeddingAxes


def embeddings_of(rows: int, width: int, seed: int = 0) -> torch.Tensor:
    """Embeddings whose first direction varies most."""
    rows_of = torch.randn(rows, width, generator=torch.Generator().manual_seed(seed))
    return rows_of * torch.linspace(9, 0.1, width) + 3


def test_axes_begin_the_same_for_everyone_and_orthogonal() -> None:
    first, second = EmbeddingAxes(64), EmbeddingAxes(64)
    assert torch.equal(first.axes, second.axes)
    products = first.axes @ first.axes.T
    assert torch.allclose(products, torch.eye(16) * products[0, 0], atol=1e-5)
    assert not list(first.parameters())
    assert set(first.state_dict()) == {"mean", "axes"}


def test_fitted_axes_are_the_principal_components() -> None:
    axes, rows = EmbeddingAxes(40), embeddings_of(4000, 40)
    axes.fit(rows)
    components = axes(rows)
    assert components.shape == (4000, 16)
    assert components.std(dim=0).sub(1 / 3).abs().max() < 0.02
    assert components.mean(dim=0).abs().max() < 0.02
    correlation = torch.corrcoef(components.T) - torch.eye(16)
    assert correlation.abs().max() < 0.05
    centred = rows - rows.mean(dim=0)
    explained = torch.linalg.svdvals(centred).square()
    directions = axes.axes / axes.axes.norm(dim=1, keepdim=True)
    assert (centred @ directions.T).square().sum() / explained.sum() == pytest.approx(
        float(explained[:16].sum() / explained.sum()), rel=1e-3
    )


def test_components_end_at_one_and_any_shape_is_taken() -> None:
    axes = EmbeddingAxes(20)
    axes.fit(embeddings_of(500, 20))
    assert axes(embeddings_of(6, 20).view(2, 3, 20) * 1e4).abs().max() == 1
    assert axes(embeddings_of(6, 20).bfloat16()).dtype == torch.float32


def test_fitting_twice_gives_the_same_axes() -> None:
    first, second = EmbeddingAxes(24), EmbeddingAxes(24)
    for axes in (first, second):
        axes.fit(embeddings_of(100, 24))
    assert torch.equal(first.axes, second.axes)


def test_narrow_embeddings_leave_components_empty() -> None:
    axes = EmbeddingAxes(8)
    axes.fit(embeddings_of(100, 8))
    assert axes(embeddings_of(3, 8))[:, :8].any()
    assert not axes(embeddings_of(3, 8))[:, 8:].any()


@pytest.mark.parametrize("rows", [torch.zeros(15, 24), torch.zeros(100, 23), torch.zeros(24)])
def test_embeddings_that_say_too_little_are_refused(rows: torch.Tensor) -> None:
    with pytest.raises(ShapeError, match="at least 16 rows, 24 wide"):
        EmbeddingAxes(24).fit(rows)
