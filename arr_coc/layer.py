"""`ARRCOCLayer`, and the weights of an allocator: saved, loaded, and as bytes that travel."""

from __future__ import annotations

import hashlib
import json
import logging
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load, load_file, save, save_file
from torch import nn
from torch.nn import functional as F

from arr_coc.allocation.attending import Tensions, allocate, check_strategy
from arr_coc.budget import DEFAULT_BUDGET, Budget
from arr_coc.errors import ModelError, ModelNotFound, NonFiniteError, OptionError, ShapeError
from arr_coc.hub import ALLOCATOR_FOLDER, download, local_folder
from arr_coc.ops.pictures import check_tensor
from arr_coc.ops.regions import paint, region_scales, token_positions
from arr_coc.relevance.balancing import RelevanceMaps, RelevanceRealiser
from arr_coc.relevance.channels import TextureArray, image_texture
from arr_coc.relevance.knowing import DEFAULT_SCORER, QueryScorer
from arr_coc.types import TILE_PX, Allocation

log = logging.getLogger(__name__)

CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.safetensors"


@dataclass(frozen=True, slots=True)
class ARRCOCConfig:
    """Options of an ARRCOCLayer.

    `levels`: whether coarse tokens may be chosen by `auto`. `query_dim`: width of the question's embeddings that
    learned parts take, 0 without learned parts; `trained_for`: the model that these embeddings belong to; `scorer`:
    how tiles and question are compared, "film" (`QueryAttention`) or "cross" (`QueryCrossAttention`). Others: see
    `allocate`.
    """

    strategy: str = "auto"
    budget: Budget = DEFAULT_BUDGET
    coverage: float = 0.25
    seed: int = 0
    levels: bool = False
    query_dim: int = 0
    trained_for: str = ""
    scorer: QueryScorer = DEFAULT_SCORER


@dataclass(frozen=True, slots=True)
class LayerOutput:
    """Chosen tokens of a batch of pictures; rows beyond a picture's own tokens are zero, and False in `mask`.

    `tokens` [B, K, D]; `positions` float32 [B, K, 2], each token's middle (row, col) in tiles; `budgets` int64
    [B, K], the texels that the token spends on each tile of its region: 1024 at level 0, which a larger region's tiles
    share; `mask` bool [B, K]; `allocation` the regions; `realised` relevance [B, gh, gw] with its scores and weights.
    """

    tokens: torch.Tensor
    positions: torch.Tensor
    budgets: torch.Tensor
    mask: torch.Tensor
    allocation: Allocation
    realised: RelevanceMaps


class ARRCOCLayer(nn.Module):
    """Texture → knowing → balancing → attending → the chosen tokens.

    A coarse region's token is the mean of its tiles' embeddings. The choice itself has no gradient; the tokens carry
    one to the embeddings, and straight through to the relevance that chose them. Where questions and encoder share a
    width, the cosine of tile and question serves as a prior that needs no training.
    """

    def __init__(self, config: ARRCOCConfig | None = None) -> None:
        """Raises StrategyError, OptionError for an unknown scorer, and ValueError for shares outside [0, 1]."""
        super().__init__()
        self.config = config or ARRCOCConfig()
        check_strategy(self.config.strategy)
        Tensions(self.config.budget, coverage=self.config.coverage)
        self.realiser = RelevanceRealiser(self.config.query_dim, self.config.trained_for, self.config.scorer)

    def forward(
        self, vision_embeds: torch.Tensor, query_embeds: torch.Tensor | None, image: torch.Tensor
    ) -> LayerOutput:
        """Choose from each picture's tokens.

        `vision_embeds` [B, gh·gw, D], one row a tile, row by row; `query_embeds` [B, Lq, Dq] or None; `image` [B, 3,
        H, W], uint8 or in [0, 1]. Raises ShapeError where they do not fit each other, NonFiniteError (naming the
        tensor), BudgetError.
        """
        shape = _check_inputs(vision_embeds, query_embeds, image, self.config.query_dim)
        texture = image_texture(image)
        texture = TextureArray(texture.channels.to(vision_embeds.device), texture.entropy.to(vision_embeds.device))
        learned = query_embeds.float() if query_embeds is not None and self.config.query_dim else None
        prior = _resemblance(vision_embeds, query_embeds, shape)
        realised = self.realiser(texture, learned, prior)
        allocation = allocate(
            realised.relevance,
            self.config.budget,
            self.config.strategy,
            coverage=self.config.coverage,
            seed=self.config.seed,
            levels=self.config.levels,
        )
        mask = allocation.mask.to(vision_embeds.device)
        regions = allocation.regions.to(vision_embeds.device)
        return LayerOutput(
            tokens=_gathered(vision_embeds, realised.relevance, allocation),
            positions=token_positions(regions) * mask[..., None],
            budgets=(TILE_PX * TILE_PX >> region_scales(regions).sum(dim=-1)) * mask,
            mask=mask,
            allocation=allocation,
            realised=realised,
        )

    def save_pretrained(self, folder: str | Path) -> None:
        """Write configuration and weights into a folder, which is made where it does not exist."""
        path = Path(folder)
        path.mkdir(parents=True, exist_ok=True)
        (path / CONFIG_FILE).write_text(json.dumps(asdict(self.config), indent=2) + "\n")
        save_file({name: tensor.contiguous() for name, tensor in self.state_dict().items()}, path / WEIGHTS_FILE)

    @classmethod
    def from_pretrained(cls, name: str | Path, token: str | None = None) -> ARRCOCLayer:
        """Read what `save_pretrained` wrote, from a folder or a name on the hub (`owner/model`).

        `token`: for private and gated ones. Raises ModelNotFound, and ModelError where the files do not fit.
        """
        path = local_folder(name) or download(str(name), token, (CONFIG_FILE, WEIGHTS_FILE))
        for file in (CONFIG_FILE, WEIGHTS_FILE):
            if not (path / file).is_file():
                raise ModelNotFound(
                    f"{path} holds no {file}; an ARRCOCLayer folder has {CONFIG_FILE} and {WEIGHTS_FILE}"
                )
        try:
            settings = json.loads((path / CONFIG_FILE).read_text("utf-8"))
        except ValueError as error:
            raise ModelError(
                f"{path / CONFIG_FILE} is not JSON: {error}; write it again with save_pretrained"
            ) from error
        if not isinstance(settings, dict) or "model_type" in settings:
            raise ModelError(
                f"{path} holds a model or something else, no allocator", "name a folder that `adapt` wrote"
            )
        unknown = settings.keys() - {field.name for field in fields(ARRCOCConfig)}
        if unknown:
            raise ModelError(f"{path / CONFIG_FILE} has unknown keys: {', '.join(sorted(unknown))}")
        layer = cls(ARRCOCConfig(**settings))
        try:
            layer.load_state_dict(load_file(path / WEIGHTS_FILE))
        except (RuntimeError, SafetensorError) as error:
            reason = str(error).strip().splitlines()[-1].strip()
            raise ModelError(
                f"{path / WEIGHTS_FILE} does not fit {CONFIG_FILE} or this version: {reason}; train it again"
            ) from error
        return layer


def _check_inputs(
    vision_embeds: torch.Tensor, query_embeds: torch.Tensor | None, image: torch.Tensor, query_dim: int
) -> tuple[int, int]:
    """The tile grid of `image`, once all shapes fit it."""
    check_tensor(vision_embeds, "vision_embeds")
    check_tensor(image, "image")
    if query_embeds is not None:
        check_tensor(query_embeds, "query_embeds")
    if image.ndim != 4 or image.shape[1] != 3 or 0 in image.shape:
        raise ShapeError(f"image must be [B, 3, H, W], none of them 0, got {list(image.shape)}")
    rows, cols = -(-image.shape[2] // TILE_PX), -(-image.shape[3] // TILE_PX)
    if vision_embeds.ndim != 3 or vision_embeds.shape[:2] != (image.shape[0], rows * cols):
        wanted = f"[{image.shape[0]}, {rows} * {cols}, D]"
        raise ShapeError(f"vision_embeds must be {wanted} for such an image, got {list(vision_embeds.shape)}")
    if query_embeds is not None and (query_embeds.ndim != 3 or query_embeds.shape[0] != image.shape[0]):
        raise ShapeError(f"query_embeds must be [{image.shape[0]}, Lq, Dq], got {list(query_embeds.shape)}")
    if query_embeds is not None and query_embeds.shape[1] == 0:
        raise ShapeError("query_embeds holds no token; give None where there is no question")
    if vision_embeds.shape[2] == 0:
        raise ShapeError("vision_embeds must be at least one number wide, got 0")
    if query_embeds is not None and query_dim not in (0, query_embeds.shape[2]):
        raise ShapeError(f"this layer takes questions of width {query_dim}, got {query_embeds.shape[2]}")
    for name, tensor in (("vision_embeds", vision_embeds), ("query_embeds", query_embeds)):
        if tensor is not None and not torch.isfinite(tensor).all():
            raise NonFiniteError(f"{name} holds NaN or Inf")
    return rows, cols


def _resemblance(
    vision_embeds: torch.Tensor, query_embeds: torch.Tensor | None, shape: tuple[int, int]
) -> torch.Tensor | None:
    """Cosine of tile and mean question, as a fully trusted prior [B, 3, gh, gw]; None where the widths differ."""
    if query_embeds is None or query_embeds.shape[2] != vision_embeds.shape[2]:
        return None
    question = query_embeds.float().mean(dim=1, keepdim=True)
    cosine = F.cosine_similarity(vision_embeds.float(), question, dim=2).clamp(min=0).unflatten(1, shape)
    return torch.stack([cosine, cosine, torch.ones_like(cosine)], dim=1)


def _gathered(vision_embeds: torch.Tensor, relevance: torch.Tensor, allocation: Allocation) -> torch.Tensor:
    """Means of the embeddings over each region's tiles, with a gradient to relevance: [B, K, D]."""
    shape = relevance.shape[1:]
    tokens = []
    for embeds, scores, regions, mask in zip(
        vision_embeds, relevance, allocation.regions, allocation.mask, strict=True
    ):
        own = regions[mask].numpy()
        index = paint(own, torch.arange(len(own)).numpy(), (shape[0], shape[1]), -1).reshape(-1)
        token_of = torch.from_numpy(index).to(embeds.device)
        shown = token_of >= 0
        through = scores.flatten().to(embeds.dtype)[:, None]
        carrying = embeds * (1 + (through - through.detach()))
        total = embeds.new_zeros(len(mask), embeds.shape[1]).index_add(0, token_of[shown], carrying[shown])
        tiles = torch.bincount(token_of[shown], minlength=len(mask)).clamp(min=1)
        tokens.append(total / tiles[:, None])
    return torch.stack(tokens)


_QUERY_WEIGHT = "balancer.query.weight"


def fingerprint(embeddings: torch.Tensor) -> str:
    """Names a model's weights by its input embeddings [vocabulary, D], which every training moves.

    They are compared as bfloat16, so that a checkpoint loaded in float32 has the same name.
    """
    rows = embeddings.detach().to("cpu", torch.bfloat16).contiguous()
    return f"sha256:{hashlib.sha256(rows.view(torch.int16).numpy().tobytes()).hexdigest()[:16]}"


def load_bundled_realiser(folder: Path, embeddings: torch.Tensor, model_id: str) -> RelevanceRealiser | None:
    """The trained allocator in a model's folder; None where there is none, or it was trained for other weights.

    `embeddings` are the model's, [vocabulary, D]; questions that `model_id` embeds are given to what is returned.
    Raises ModelError where the files do not fit the code.
    """
    own = folder / ALLOCATOR_FOLDER
    if not (own / CONFIG_FILE).is_file():
        return None
    layer = ARRCOCLayer.from_pretrained(own)
    if layer.config.trained_for != fingerprint(embeddings):
        log.warning(
            "the allocator's weights in %s are not for these weights of %s and are left out; make others with `adapt`",
            own,
            model_id,
        )
        return None
    return _ready(layer.realiser, model_id)


def load_realiser(name: str | Path, embeddings: torch.Tensor, model_id: str) -> RelevanceRealiser:
    """The allocator in a folder, or of a name on the hub, for the model of these `embeddings` [vocabulary, D].

    Raises as `ARRCOCLayer.from_pretrained`, and ModelError where it was made for other weights.
    """
    layer = ARRCOCLayer.from_pretrained(name)
    if layer.config.trained_for != fingerprint(embeddings):
        raise ModelError(
            f"the allocator in {name} was made for another model than {model_id}, or for other weights of it",
            "make one for this model with `adapt`, or leave it out",
        )
    return _ready(layer.realiser, model_id)


def _ready(realiser: RelevanceRealiser, model_id: str) -> RelevanceRealiser:
    realiser.trained_for = model_id
    return realiser.eval().requires_grad_(False)


def serialize_realiser(realiser: RelevanceRealiser | None) -> bytes:
    """Weights as bytes, safetensors' format, with what they are of as its metadata; nothing for None."""
    if realiser is None:
        return b""
    return save({name: rows.contiguous() for name, rows in realiser.state_dict().items()}, {"scorer": realiser.scorer})


def deserialize_realiser(data: bytes, model_id: str) -> RelevanceRealiser | None:
    """Load the bytes of `serialize_realiser`, for questions that `model_id` embeds. Raises ModelError where it does
    not fit."""
    if not data:
        return None
    try:
        weights, made = load(data), _metadata(data)
        realiser = RelevanceRealiser(weights[_QUERY_WEIGHT].shape[1], model_id, made["scorer"])
        realiser.load_state_dict(weights)
    except (SafetensorError, OptionError, KeyError, IndexError, TypeError, ValueError, RuntimeError) as error:
        raise ModelError(
            f"the allocator's weights that came with {model_id} cannot be used; install the same version at both ends"
        ) from error
    return realiser.eval().requires_grad_(False)


def _metadata(data: bytes) -> dict[str, str]:
    """Read the metadata of bytes that safetensors has read already: its header is JSON, its length comes first."""
    length = int.from_bytes(data[:8], "little")
    found: dict[str, str] = json.loads(data[8 : 8 + length])["__metadata__"]
    return found
