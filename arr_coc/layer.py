"""`ARRCOCLayer`: relevance and choice of tokens as a layer of torch, with its configuration, saved and loaded."""

from __future__ import annotations

import json
import math
import os
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import nn
from torch.nn import functional as F

from arr_coc.allocation.attending import Tensions, allocate, stack_allocations
from arr_coc.allocation.choice_gradient import (
    ChoiceGradient,
    add_gumbel_noise,
    check_choice_gradient,
    log_shares,
    straight_through,
    token_of_tiles,
)
from arr_coc.allocation.strategies import check_strategy, resolve_strategy
from arr_coc.allocation.structure import VOID_STRUCTURE, map_structure, picture_structure
from arr_coc.bounded_json import read_json
from arr_coc.budget import ADAPTIVE, DEFAULT_BUDGET, DEFAULT_LIMITS, Budget, TokenLimits, check_budget, tokens_for
from arr_coc.errors import ModelError, NonFiniteError, OptionError, ProfileError, ShapeError, counted
from arr_coc.hub import ALLOCATOR_FILES, allocator_folder, check_allocator_files, download, upload
from arr_coc.relevance.balancing import RelevanceMaps, RelevanceRealiser
from arr_coc.relevance.channels import TextureArray, image_texture
from arr_coc.relevance.history import with_embeddings
from arr_coc.relevance.knowing import DEFAULT_SCORER, QueryScorer
from arr_coc.relevance.profiles import CORE, FULL
from arr_coc.texture.pictures import check_images, check_tensor
from arr_coc.texture.regions import region_mean, region_scales, token_positions
from arr_coc.types import TILE_PX, Allocation

CONFIG_FILE, WEIGHTS_FILE = ALLOCATOR_FILES

COVER_TOKENS = 64
"""With fewer tokens, a cover of the whole picture leaves hardly a tile sharp (training/README.md)."""


@dataclass(frozen=True, slots=True)
class ARRCOCConfig:
    """Options of an ARRCOCLayer.

    `levels`: whether `auto` covers the whole picture, with coarse tokens, so that a model learns them (`foveated` from
    `COVER_TOKENS` tokens on, else `mixed`). `query_dim`: width of the question's embeddings that
    learned parts take, 0 without learned parts; `trained_for`: the model that these embeddings belong to; `scorer`:
    how tiles and question are compared, "film" (`QueryAttention`) or "cross" (`QueryCrossAttention`); `channels`: the
    profile of the texture that its scorers see, `core13`, `full40` or `full40+text`. `gradient` and its `temperature`:
    how the choice passes one on to relevance (`arr_coc.allocation.choice_gradient`); `gumbel` draws tokens by chance
    while the layer is in training mode. `min_tokens` and `max_tokens` limit the budgets "auto" and "adaptive". Others:
    see `allocate`.
    """

    strategy: str = "auto"
    budget: Budget = DEFAULT_BUDGET
    coverage: float = 0.25
    seed: int = 0
    levels: bool = False
    query_dim: int = 0
    trained_for: str = ""
    scorer: QueryScorer = DEFAULT_SCORER
    gradient: ChoiceGradient = "straight-through"
    temperature: float = 1.0
    channels: str = "core13"
    min_tokens: int = 64
    max_tokens: int = 400

    @property
    def limits(self) -> TokenLimits:
        """Raise BudgetError unless 1 ≤ `min_tokens` ≤ `max_tokens`."""
        return TokenLimits(self.min_tokens, self.max_tokens)


def token_texels(regions: torch.Tensor) -> torch.Tensor:
    """Texels that a token spends on each tile of its region, 1024 at level 0: int64 [...] of regions [..., 3]."""
    return TILE_PX * TILE_PX >> region_scales(regions).sum(dim=-1)


@dataclass(frozen=True, slots=True)
class LayerChoice:
    """Regions that a layer chose of a batch of pictures.

    `token_of` int64 [B, gh * gw]: the token that shows each tile, K if none does. `presence` float32 [B, K]: zeros
    that pass their gradient on to the relevance of each token's tiles, straight through.
    """

    allocation: Allocation
    token_of: torch.Tensor
    presence: torch.Tensor

    @property
    def positions(self) -> torch.Tensor:
        """Each token's middle (row, col) in tiles: float32 [B, K, 2]."""
        return token_positions(self.allocation.regions) * self.allocation.mask[..., None]

    @property
    def budgets(self) -> torch.Tensor:
        """Texels that each token spends on each tile of its region, 1024 at level 0: int64 [B, K]."""
        return token_texels(self.allocation.regions) * self.allocation.mask


@dataclass(frozen=True, slots=True)
class ARRCOCOutput:
    """Chosen tokens of a batch of pictures; rows beyond a picture's own tokens are zero, and False in `mask`.

    `tokens` [B, K, D]; `positions` float32 [B, K, 2], each token's middle (row, col) in tiles; `budgets` int64
    [B, K], the texels that the token spends on each tile of its region: 1024 at level 0, which a larger region's tiles
    share; `relevance` float32 [B, gh, gw] in [0, 1], of `scores` float32 [B, 3, gh, gw] (information, perspective and
    participation) and their `weights` float32 [B, 3]; `mask` bool [B, K]; `allocation` the regions.
    """

    tokens: torch.Tensor
    positions: torch.Tensor
    budgets: torch.Tensor
    relevance: torch.Tensor
    scores: torch.Tensor
    weights: torch.Tensor
    mask: torch.Tensor
    allocation: Allocation

    @property
    def regions(self) -> torch.Tensor:
        """int64 [B, K, 3] (shape, row, col), on the CPU."""
        return self.allocation.regions


class ARRCOCLayer(nn.Module):
    """Texture → knowing → balancing → attending → the chosen tokens.

    A coarse region's token is the mean of its tiles' embeddings. The choice itself has no gradient; the tokens carry
    one to the embeddings, and straight through to the relevance that chose them (`arr_coc.allocation.choice_gradient`
    has the methods and their sources). If questions and encoder share a width, the cosine of tile and question
    serves as a prior that needs no training.
    """

    def __init__(
        self,
        hidden_dim: int | ARRCOCConfig | None = None,
        texture_channels: int | None = None,
        min_tokens: int | None = None,
        max_tokens: int | None = None,
        *,
        config: ARRCOCConfig | None = None,
    ) -> None:
        """A layer of a `config`, or one with an adaptive budget of `min_tokens` to `max_tokens`.

        Args:
            hidden_dim: Width of the question's embeddings; or the `config`, which may stand first.
            texture_channels: 13 (profile `core13`, if not given) or 40 (`full40`).
            min_tokens: Least visual tokens of a picture.
            max_tokens: Most visual tokens of a picture.
            config: All options of a layer.

        Raises:
            StrategyError, BudgetError, OptionError, ProfileError: A wrong option.
            ValueError: A share outside [0, 1].
        """
        super().__init__()
        if isinstance(hidden_dim, ARRCOCConfig):
            hidden_dim, config = None, hidden_dim
        sizes = {"hidden_dim": hidden_dim, "texture_channels": texture_channels}
        sizes |= {"min_tokens": min_tokens, "max_tokens": max_tokens}
        arguments = {name: size for name, size in sizes.items() if size is not None}
        if config is not None and arguments:
            raise OptionError(f"a config has its own sizes, got {', '.join(arguments)} too", "give one or the other")
        self.config = config = _checked(config or (_config_of(**arguments) if arguments else ARRCOCConfig()))
        self.realiser = RelevanceRealiser(config.query_dim, config.trained_for, config.scorer, config.channels)

    def forward(
        self,
        vision_embeds: torch.Tensor,
        query_embeds: torch.Tensor | None,
        image: torch.Tensor | npt.NDArray[Any],
        grid: tuple[int, int] | None = None,
    ) -> ARRCOCOutput:
        """Choose from each picture's tokens.

        The texture is that of the image at the size of the tiles' grid.

        Args:
            vision_embeds: [B, gh·gw, D], one row a tile, row by row.
            query_embeds: [B, Lq, Dq], or pooled over the words, [B, Dq]; None without a question.
            image: Of any size, a tensor [B, 3, H, W] or an array [B, H, W, 3] (of one picture also without B), uint8 or
                in [0, 1]. A floating one gets a gradient through the mean colours of tiles.
            grid: (gh, gw). If not given, the grid of gh·gw tiles that has the image's aspect, else the square one.

        Raises:
            ShapeError: Tensors that do not fit each other, or a grid that is not clear.
            NonFiniteError: NaN or Inf in a tensor, which it names.
            BudgetError: A wrong budget.
        """
        image = _image_batch(image)
        if isinstance(query_embeds, torch.Tensor) and query_embeds.ndim == 2:
            query_embeds = query_embeds[:, None]
        shape = _check_inputs(vision_embeds, query_embeds, image, grid, self.config.query_dim)
        at_grid = _at_grid(image, shape)
        texture = image_texture(at_grid, self.config.channels)
        if at_grid.requires_grad:
            texture = _with_gradient(texture, at_grid)
        texture = texture.to(vision_embeds.device)
        texture = self._with_embeddings(texture, vision_embeds, query_embeds)
        prior = _similarity_prior(vision_embeds, query_embeds, shape)
        realised = self.realise(texture, query_embeds, prior)
        choice = self.choose(texture, realised, prior)
        device = vision_embeds.device
        return ARRCOCOutput(
            tokens=_pool_tokens(vision_embeds, choice),
            positions=choice.positions.to(device),
            budgets=choice.budgets.to(device),
            relevance=realised.relevance,
            scores=realised.scores,
            weights=realised.weights,
            mask=choice.allocation.mask.to(device),
            allocation=choice.allocation,
        )

    def configure(self, **changes: Any) -> None:
        """Change options of `config` from here on. Raises as the constructor, and OptionError for unknown names and for
        options that the weights fix."""
        fixed = {"query_dim", "trained_for", "scorer", "channels"}
        free = [field.name for field in fields(ARRCOCConfig) if field.name not in fixed]
        if unknown := sorted(changes.keys() - set(free)):
            raise OptionError(f"a layer has no option {unknown[0]} to change; there are {', '.join(free)}")
        self.config = _checked(replace(self.config, **changes))

    def realise(
        self, texture: TextureArray, query_embeds: torch.Tensor | None = None, prior: torch.Tensor | None = None
    ) -> RelevanceMaps:
        """Compute the relevance of batched textures, in float32 whatever the weights' dtype; autocast is left out.

        Args:
            texture: Channels of the pictures [B, C, gh, gw].
            query_embeds: [B, Lq, Dq], padded by rows of zeros; only learned parts use them.
            prior: [B, 3, gh, gw], as ParticipatoryScorer takes it.

        Raises:
            NonFiniteError: NaN or Inf in a tensor, which it names.
        """
        like = self.realiser.balancer.out.weight
        if query_embeds is not None and self.config.query_dim:
            query = query_embeds.to(like)
        else:
            query = None
        with torch.autocast(like.device.type, enabled=False):
            maps = self.realiser(
                TextureArray(texture.channels.to(like), texture.entropy.to(like)),
                query,
                None if prior is None else prior.to(like),
            )
        return RelevanceMaps(maps.relevance.float(), maps.scores.float(), maps.weights.float())

    def choose(self, texture: TextureArray, realised: RelevanceMaps, prior: torch.Tensor | None = None) -> LayerChoice:
        """Choose regions of batched pictures by their relevance, with a gradient to it.

        Args:
            texture: Channels of the pictures [B, C, gh, gw], which show whether a picture has structure.
            realised: Their relevance [B, gh, gw].
            prior: [B, 3, gh, gw], as ParticipatoryScorer takes it; a picture whose prior has structure is not a void.

        Raises:
            BudgetError: A wrong budget.
        """
        relevance = realised.relevance
        config = self.config
        by_chance = self.training and config.gradient == "gumbel"
        if by_chance:
            ranking = add_gumbel_noise(relevance, config.temperature)
        else:
            ranking = relevance.detach()
        looks = texture.looks.detach().float().cpu()
        priors = [None] * len(relevance) if prior is None else (prior[:, 0] * prior[:, 2]).detach().float().cpu()
        pictures = zip(relevance.detach().cpu(), ranking.cpu(), looks, priors, strict=True)
        allocation = stack_allocations([self._regions(*picture) for picture in pictures])
        token_of = token_of_tiles(allocation, (relevance.shape[1], relevance.shape[2])).to(relevance.device)
        shares = log_shares(relevance, token_of, allocation.mask.shape[1], config.temperature)
        return LayerChoice(allocation, token_of, straight_through(shares))

    def _regions(
        self, relevance: torch.Tensor, ranking: torch.Tensor, looks: torch.Tensor, prior: torch.Tensor | None
    ) -> Allocation:
        """Return the regions of one picture: tokens by its relevance [gh, gw], places by what chance has made of it."""
        config = self.config
        tokens = tokens_for(self.config.budget, relevance, self.config.limits)
        taught = prior is not None and bool(map_structure(prior) >= VOID_STRUCTURE)
        void = config.strategy == "auto" and not taught and bool(picture_structure(looks) < VOID_STRUCTURE)
        strategy = resolve_strategy(config.strategy, void)
        if config.strategy == "auto" and config.levels and not void:
            strategy = "foveated" if tokens >= COVER_TOKENS else "mixed"
        allocation = allocate(ranking, tokens, strategy, coverage=config.coverage, seed=config.seed)
        means = torch.from_numpy(region_mean(allocation.regions.numpy(), relevance.numpy()))
        return Allocation(allocation.regions, means, allocation.mask)

    def _with_embeddings(
        self, texture: TextureArray, vision_embeds: torch.Tensor, query_embeds: torch.Tensor | None
    ) -> TextureArray:
        """Return the texture with the components of all tiles' embeddings, if the channels have room for them."""
        axes = self.realiser.axes
        if axes is None or vision_embeds.shape[2] != len(axes.mean):
            return texture
        components = axes(vision_embeds).mT.unflatten(2, texture.entropy.shape[1:])
        if query_embeds is None:
            question = None
        else:
            question = axes(query_embeds.float().mean(dim=1))
        return with_embeddings(texture, components, question)

    def save_pretrained(self, folder: str | Path) -> None:
        """Write configuration and weights into a folder, which is made if it does not exist. Raises OSError."""
        path = Path(folder)
        path.mkdir(parents=True, exist_ok=True)
        write_whole(path / WEIGHTS_FILE, save({name: rows.contiguous() for name, rows in self.state_dict().items()}))
        write_whole(path / CONFIG_FILE, (json.dumps(asdict(self.config), indent=2) + "\n").encode())

    def push_to_hub(
        self, name: str, *, private: bool | None = None, token: str | None = None, message: str = "Upload allocator"
    ) -> str:
        """Upload what `save_pretrained` writes to the hub, and return its address.

        Args:
            name: `owner/model`; the repository is made if it does not exist.
            private: Whether a new repository is private.
            token: Of an account that may write; the one that is logged in if not given.
            message: Of the commit.

        Raises:
            ModelError: The hub refuses it.
            HubUnreachable: No connection.
        """
        with TemporaryDirectory() as folder:
            self.save_pretrained(folder)
            return upload(Path(folder), name, private=private, token=token, message=message)

    @classmethod
    def from_pretrained(cls, name: str | Path, token: str | None = None) -> ARRCOCLayer:
        """Read what `save_pretrained` wrote.

        Args:
            name: Folder, or name on the hub (`owner/model`).
            token: For private and gated repositories.

        Raises:
            ModelNotFound: No such folder or name.
            ModelError: Files that do not fit.
        """
        path = allocator_folder(name) or download(str(name), token, ALLOCATOR_FILES)
        check_allocator_files(path)
        try:
            settings = read_json(path / CONFIG_FILE)
        except ValueError as error:
            raise ModelError(
                f"{path / CONFIG_FILE} is not usable JSON: {error}; write it again with save_pretrained"
            ) from error
        if not isinstance(settings, dict) or "model_type" in settings:
            raise ModelError(
                f"{path} holds a model or something else, no allocator", "name a folder that `adapt` wrote"
            )
        unknown = settings.keys() - {field.name for field in fields(ARRCOCConfig)}
        if unknown:
            raise ModelError(f"{path / CONFIG_FILE} has unknown keys: {', '.join(sorted(unknown))}")
        try:
            layer = cls(ARRCOCConfig(**settings))
        except ProfileError as error:
            raise ModelError(f"{path / CONFIG_FILE}: {error}; install the version that wrote it") from error
        try:
            layer.load_state_dict(load_file(path / WEIGHTS_FILE))
        except (RuntimeError, SafetensorError) as error:
            reason = str(error).strip().splitlines()[-1].strip()
            raise ModelError(
                f"{path / WEIGHTS_FILE} does not fit {CONFIG_FILE} or this version: {reason}; train it again"
            ) from error
        return layer


def _checked(config: ARRCOCConfig) -> ARRCOCConfig:
    check_strategy(config.strategy)
    check_budget(config.budget)
    check_choice_gradient(config.gradient, config.temperature)
    Tensions(config.budget, coverage=config.coverage, limits=config.limits)
    return config


def _config_of(
    hidden_dim: int = 0,
    texture_channels: int = CORE,
    min_tokens: int = DEFAULT_LIMITS.min_tokens,
    max_tokens: int = DEFAULT_LIMITS.max_tokens,
) -> ARRCOCConfig:
    """Raise OptionError for a width below 0, ProfileError for channels that no profile has."""
    if hidden_dim < 0:
        raise OptionError(f"hidden_dim is the width of a question's embeddings, at least 0, got {hidden_dim}")
    profiles = {CORE: "core13", FULL: "full40"}
    if texture_channels not in profiles:
        raise ProfileError(f"texture_channels is {CORE} or {FULL}, got {texture_channels}")
    return ARRCOCConfig(
        budget=ADAPTIVE,
        query_dim=hidden_dim,
        channels=profiles[texture_channels],
        min_tokens=min_tokens,
        max_tokens=max_tokens,
    )


def _image_batch(image: torch.Tensor | npt.NDArray[Any]) -> torch.Tensor:
    """Return the image as a tensor [B, 3, H, W]; an array's channels are last."""
    if isinstance(image, np.ndarray):
        image = torch.from_numpy(np.ascontiguousarray(np.moveaxis(image, -1, -3) if image.ndim > 2 else image))
    check_tensor(image, "image")
    batch = image[None] if image.ndim == 3 else image
    if batch.ndim != 4 or batch.shape[1] != 3 or 0 in batch.shape:
        raise ShapeError(
            f"image must be [B, 3, H, W], or an array [B, H, W, 3], none of them 0, got {list(image.shape)}"
        )
    check_images(batch)
    return batch


def _at_grid(image: torch.Tensor, shape: tuple[int, int]) -> torch.Tensor:
    """Return the images resampled to whole tiles of a grid; as they are if the grid is their own."""
    if shape == _own_grid(image):
        return image
    size = shape[0] * TILE_PX, shape[1] * TILE_PX
    resized = F.interpolate(image.float(), size, mode="bilinear", antialias=True, align_corners=False)
    if image.is_floating_point():
        return resized
    return resized.round().clamp(0, 255).to(torch.uint8)


def _own_grid(image: torch.Tensor) -> tuple[int, int]:
    return -(-image.shape[2] // TILE_PX), -(-image.shape[3] // TILE_PX)


def _grid_of(tiles: int, image: torch.Tensor) -> tuple[int, int]:
    """Return the grid of `tiles` tiles over images [B, 3, H, W]. Raises ShapeError if it is not clear."""
    rows, cols = _own_grid(image)
    if rows * cols == tiles:
        return rows, cols
    aspect = image.shape[3] / image.shape[2]
    pairs = [(side, tiles // side) for side in range(1, tiles + 1) if tiles % side == 0]
    # Of an encoder that keeps the aspect, both sides are rounded to whole tiles.
    candidates = [(r, c) for r, c in pairs if abs(c - r * aspect) <= 1 and abs(r - c / aspect) <= 1]
    if candidates:
        return min(candidates, key=lambda pair: abs(math.log(pair[1] / (pair[0] * aspect))))
    side = math.isqrt(tiles)
    if side * side == tiles and side:
        return side, side
    raise ShapeError(
        f"vision_embeds has {counted(tiles, 'token')} a picture, which is no grid of the aspect of an image of "
        f"{image.shape[3]}x{image.shape[2]} pixels (its own is {rows} * {cols}), and no square",
        "give grid=(rows, columns)",
    )


def _with_gradient(texture: TextureArray, image: torch.Tensor) -> TextureArray:
    """Return the texture, whose colours pass a gradient on to the images [B, 3, H, W] in [0, 1] that it shows.

    A colour is the mean of a tile's pixels, but for rounding; other channels have no gradient.
    """
    rows, cols = texture.entropy.shape[1:]
    padding = (0, cols * TILE_PX - image.shape[3], 0, rows * TILE_PX - image.shape[2])
    means = F.avg_pool2d(F.pad(image, padding, mode="replicate"), TILE_PX)
    means = means - means.detach()
    others = torch.zeros_like(texture.channels[:, 3:])
    return replace(texture, channels=texture.channels + torch.cat([means.to(others), others], dim=1))


def _check_inputs(
    vision_embeds: torch.Tensor,
    query_embeds: torch.Tensor | None,
    image: torch.Tensor,
    grid: tuple[int, int] | None,
    query_dim: int,
) -> tuple[int, int]:
    """Return the grid of the tiles, once all shapes fit it."""
    check_tensor(vision_embeds, "vision_embeds")
    if query_embeds is not None:
        check_tensor(query_embeds, "query_embeds")
    if vision_embeds.ndim != 3 or len(vision_embeds) != len(image):
        raise ShapeError(f"vision_embeds must be [{len(image)}, tiles, D], got {list(vision_embeds.shape)}")
    rows, cols = _grid_of(vision_embeds.shape[1], image) if grid is None else grid
    if rows < 1 or rows * cols != vision_embeds.shape[1]:
        raise ShapeError(
            f"a grid of {rows} * {cols} does not have the {counted(vision_embeds.shape[1], 'token')} of vision_embeds"
        )
    if query_embeds is not None and (query_embeds.ndim != 3 or query_embeds.shape[0] != image.shape[0]):
        raise ShapeError(f"query_embeds must be [{len(image)}, Lq, Dq], got {list(query_embeds.shape)}")
    if query_embeds is not None and query_embeds.shape[1] == 0:
        raise ShapeError("query_embeds holds no token; give None if there is no question")
    if vision_embeds.shape[2] == 0:
        raise ShapeError("vision_embeds must be at least one number wide, got 0")
    if query_embeds is not None and query_dim not in (0, query_embeds.shape[2]):
        raise ShapeError(f"this layer takes questions of width {query_dim}, got {query_embeds.shape[2]}")
    for name, tensor in (("vision_embeds", vision_embeds), ("query_embeds", query_embeds)):
        if tensor is not None and not torch.isfinite(tensor).all():
            raise NonFiniteError(f"{name} holds NaN or Inf")
    return rows, cols


def _similarity_prior(
    vision_embeds: torch.Tensor, query_embeds: torch.Tensor | None, shape: tuple[int, int]
) -> torch.Tensor | None:
    """Return the cosine of tile and mean question, as a fully trusted prior [B, 3, gh, gw]; None if the widths
    differ."""
    if query_embeds is None or query_embeds.shape[2] != vision_embeds.shape[2]:
        return None
    question = query_embeds.float().mean(dim=1, keepdim=True)
    cosine = F.cosine_similarity(vision_embeds.float(), question, dim=2).clamp(min=0).unflatten(1, shape)
    return torch.stack([cosine, cosine, torch.ones_like(cosine)], dim=1)


def _pool_tokens(vision_embeds: torch.Tensor, choice: LayerChoice) -> torch.Tensor:
    """Means of the embeddings over each region's tiles, with a gradient to relevance: [B, K, D]."""
    batch, _, width = vision_embeds.shape
    tokens = choice.presence.shape[1]
    token_of = choice.token_of.to(vision_embeds.device)
    total = vision_embeds.new_zeros(batch, tokens + 1, width)
    total = total.scatter_add(1, token_of[..., None].expand(-1, -1, width), vision_embeds)[:, :tokens]
    tiles = torch.stack([torch.bincount(row, minlength=tokens + 1)[:tokens] for row in token_of]).clamp(min=1)
    return total / tiles[..., None] * (1 + choice.presence[..., None].to(total))


def write_whole(path: Path, data: bytes) -> None:
    """Write a file whole or not at all: an earlier file stays until the new one is on the disk. Raises OSError."""
    new = path.with_name(f"{path.name}.new")
    try:
        with new.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
    except OSError:
        new.unlink(missing_ok=True)
        raise
