"""The value types that the whole project shares: tiles, versions, planes, allocations and packets.

This module imports nothing local and touches no device.
"""

from __future__ import annotations

import itertools
import os
import secrets
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import torch

TILE_PX = 32
"""Side of a tile at level 0: Qwen3-VL's patch (16 px) times its spatial merge (2)."""

GROUP_GROWTH = 4
"""Most tokens that a picture which is kept up to date was given, as a multiple of those that it shows. Once more were
superseded, a new group of pictures begins, so that its packets stay bounded; idle work begins one long before."""

LEVELS = 6
"""Mipmap levels of a tile: 32 = 2**5, so levels 0..5, the last of which is one texel a tile."""

REGION_SHAPES: tuple[tuple[int, int], ...] = (
    *((level, level) for level in range(LEVELS)),
    (0, 1),
    (0, 2),
    (1, 2),
    (0, 3),
    (1, 0),
    (2, 0),
    (2, 1),
    (3, 0),
)
"""Shapes of regions by their code: (log2 of rows, log2 of columns), in tiles.

Codes 0 to 5 are the squares of the mipmap levels. 6 to 9 are wide, for text along a line: 1×2, 1×4, 2×4 and 1×8 tiles
(rows × columns). 10 to 13 are tall: their transposes, in the same order.
"""
EMBEDDING_COMPONENTS = 16
"""Numbers to which a tile's embedding is reduced, if feedback carries it."""

NS_PER_S = 1_000_000_000
NS_PER_MS = 1_000_000

Matrix = Literal["bt601", "bt709", "bt2020", "smpte240m", "fcc"]
Layout = Literal["yuv", "gray", "rgb"]
Encode = Literal["full", "prune", "sparse", "incremental", "weighted"]

NEEDS_TOKENS_ONLY: frozenset[Encode] = frozenset({"sparse", "incremental"})
"""The ways of encoding for which the chosen tokens are enough; the others need the whole frame."""

SHOWS_ALL_TILES: frozenset[Encode] = frozenset({"full", "weighted"})
"""The ways of encoding that give the model one token for every tile, whatever was chosen."""


@dataclass(frozen=True, slots=True)
class TileGrid:
    """The grid of 32×32-pixel tiles over one frame size.

    `height_px` and `width_px` are the picture's own size; the texture is padded by edge replication
    to `rows * 32` × `cols * 32`.
    """

    rows: int
    cols: int
    height_px: int
    width_px: int

    @classmethod
    def of(cls, height_px: int, width_px: int) -> TileGrid:
        """Return the grid that covers a picture of the given size. Raises ValueError below 1 pixel."""
        if height_px < 1 or width_px < 1:
            raise ValueError(f"a picture needs at least 1x1 pixels, got {width_px}x{height_px}")
        return cls(-(-height_px // TILE_PX), -(-width_px // TILE_PX), height_px, width_px)

    @property
    def tiles(self) -> int:
        return self.rows * self.cols

    @property
    def shape(self) -> tuple[int, int]:
        return self.rows, self.cols

    @property
    def padded_height_px(self) -> int:
        return self.rows * TILE_PX

    @property
    def padded_width_px(self) -> int:
        return self.cols * TILE_PX


_epoch_base = 0
_epoch_pid = -1
_epoch_count = itertools.count(1)


def new_epoch() -> int:
    """Return a number that no other call, thread or process has returned (31 random bits, then a counter)."""
    global _epoch_base, _epoch_pid, _epoch_count
    if _epoch_pid != os.getpid():
        _epoch_base = secrets.randbits(31) << 32
        _epoch_pid = os.getpid()
        _epoch_count = itertools.count(1)
    return _epoch_base | next(_epoch_count)


@dataclass(frozen=True, slots=True)
class TileVersions:
    """Versions of all tiles, when each last changed: one epoch for the grid, and `frame` int64 [rows, cols].

    All tiles share the epoch, because everything that begins an epoch moves every tile.
    """

    epoch: int
    frame: npt.NDArray[np.int64]

    def stale(self, current: TileVersions) -> npt.NDArray[np.bool_]:
        """Return the tiles for which a result of these versions no longer holds: bool [rows, cols]."""
        if not self.is_comparable(current):
            return np.ones(current.frame.shape, dtype=bool)
        return self.frame != current.frame

    def is_comparable(self, current: TileVersions) -> bool:
        """Return True if tiles may be the same as those of other versions: in one epoch, on one grid."""
        return self.epoch == current.epoch and self.frame.shape == current.frame.shape


@dataclass(frozen=True, slots=True)
class Colour:
    """Colour encoding of a frame's planes. `transfer` is carried along, not applied (as swscale)."""

    matrix: Matrix = "bt601"
    full_range: bool = False
    transfer: str = "unspecified"


class CodedMotion(Protocol):
    """Motion vectors that a codec stored with a frame. They made it cheap to code, and are a guess of how it moved."""

    def over(self, grid: TileGrid) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]] | None:
        """Return how far each tile's content moved, (dy_px, dx_px), float32 [rows, cols] each, down and right positive;
        NaN for tiles without motion vectors, None if there are none at all.

        They are relative to a frame that is one or a few frames away: the codec does not state how many.
        """
        ...


@dataclass(frozen=True, slots=True)
class FramePlanes:
    """The undecoded-to-RGB picture of one frame, 8 bits a sample.

    `yuv`: three uint8 planes y [H, W], u and v [ceil(H/sy), ceil(W/sx)], sx and sy in {1, 2, 4}.
    `gray`: one uint8 plane [H, W]. `rgb`: one uint8 array [H, W, 3].
    The arrays may be strided views on a decoder's buffer; `owner` keeps that buffer alive. `coded_motion` is what the
    frame's codec states of its motion, if the decoder exports that. `reach_px`: from how far away, in pixels of this
    picture, scaling and conversion may have mixed something into a sample; 0 if nothing was mixed.
    """

    layout: Layout
    planes: tuple[npt.NDArray[np.uint8], ...]
    colour: Colour = field(default_factory=Colour)
    owner: object = None
    coded_motion: CodedMotion | None = None
    reach_px: int = 0

    @property
    def height_px(self) -> int:
        return int(self.planes[0].shape[0])

    @property
    def width_px(self) -> int:
        return int(self.planes[0].shape[1])


@dataclass(frozen=True, slots=True)
class FrameStamp:
    """Identity and times of a frame: decode index (0-based), media time, capture time (monotonic), and epoch."""

    frame_index: int
    media_ns: int
    capture_ns: int
    epoch: int = 0


@dataclass(frozen=True, slots=True)
class TileChange:
    """Result of one texture update.

    `dirty` bool [rows, cols]: the tiles that were written.
    """

    stamp: FrameStamp
    dirty: npt.NDArray[np.bool_]

    @property
    def dirty_share(self) -> float:
        return float(np.count_nonzero(self.dirty) / self.dirty.size)


@dataclass(frozen=True, slots=True)
class Allocation:
    """The regions that a frame's token budget buys, in token order (by top-left tile, row by row).

    `regions` int64 [K, 3] (shape, row, col): with (a, b) = `REGION_SHAPES[shape]`, region (shape, r, c) covers tiles
    [r·2^a, (r+1)·2^a) × [c·2^b, (c+1)·2^b), cut off at the grid's edge. `relevance` float32 [K]; `mask` bool [K],
    False for padding in a batch. The first `overview` are an overview of the frame, as in a TokenPacket; each of the
    two parts is in token order.
    """

    regions: torch.Tensor
    relevance: torch.Tensor
    mask: torch.Tensor
    overview: int = 0

    @property
    def tokens(self) -> int:
        return int(self.mask.sum())


SCORES = ("information", "perspective", "participation")
"""The three ways of knowing, in the order of `FrameAllocation.scores`."""


@dataclass(frozen=True, slots=True)
class TokenReason:
    """One region of an allocation and what speaks for it; all but `rank` are means over its tiles.

    `level` is the region's shape, the level of a square; `row` and `col` count regions of that shape.

    `scores` in [0, 1], by SCORES; `shares`: how much of `now` each gave, 1 in all (0 if `now` is 0). `now` is this
    frame's relevance, the scores balanced by their weights; `memory` what the past adds to it, by answers and by
    blending over time, and `relevance` the two together. `rank`: 1 for the most relevant token of the frame; equals in
    token order. A token of a low rank is shown for coverage or exploration, or because the budget reached it.
    """

    level: int
    row: int
    col: int
    rank: int
    relevance: float
    now: float
    memory: float
    scores: dict[str, float]
    shares: dict[str, float]


def time_text(media_ns: int) -> str:
    """Return the time of a video frame as Qwen3-VL writes it."""
    return f"<{media_ns / 1e9:.1f} seconds>"


@dataclass(frozen=True, slots=True)
class Work:
    """Tokens, times in milliseconds and operations of an answer, of checks, or of a glance."""

    tokens_used: int
    """Visual tokens that it is about."""
    text_tokens: int = 0
    """Tokens of its text."""
    encode_ms: float = 0.0
    prefill_ms: float = 0.0
    decode_ms: float = 0.0
    frames: int = 1
    oldest_frame_ns: int | None = None
    """Media time of the oldest of its frames; None if it is about one frame only."""
    kept_bytes: int = 0
    """Memory of the frames that are kept."""
    flops: int = 0
    full_flops: int = 0
    """As in `arr_coc.qwen.flops.Operations`."""
    prefilled_tokens: int = 0
    """Computed tokens of the prompt."""
    appended_tokens: int = 0
    """Visual tokens that it added to a group of pictures."""
    memory_tokens: int = 0
    """Tokens that a group of pictures keeps before the next question."""
    looped: bool = False
    """True if the text repeated itself, and was ended at its second repetition."""
    escalated: bool = False
    """True if a larger model gave the answer, because the first was unsure of its own; times and operations are those
    of both."""


@dataclass(frozen=True, slots=True)
class PastAnswer:
    """Earlier answer about a stream, with the media time of its frame."""

    media_ns: int
    text: str


@dataclass(frozen=True, slots=True)
class PreviousAnswer:
    """Last answer to a question: `text` is the answer again if its probability is `same_above` or more."""

    text: str
    same_above: float


@dataclass(frozen=True, slots=True)
class Question:
    """Question about a packet: all that the answer depends on beside the packet and the model."""

    text: str
    wants_answer: bool = True
    """False if only the checks are evaluated."""
    checks: tuple[str, ...] = ()
    """Yes/no questions, each once, which are evaluated before the answer, without decoding."""
    history: tuple[PastAnswer, ...] = ()
    """Earlier answers, oldest first, put before the text."""
    previous: PreviousAnswer | None = None
    """The last answer, which is scored before a new one is given."""
    schema: str | None = None
    """Schema of the answer, as `arr_coc.answer_schema.AnswerSchema` has it; None for free text."""
    compared: str | None = None
    """Another answer about the packet: unless the words are the same, the model is asked whether both say the same."""
    encode: str = "sparse"
    """Encoding that the packet is made for."""


REREAD = 4
"""Of a group of several frames, this many times as many are read one after another before all that are shown are read
afresh."""


@dataclass(frozen=True, slots=True)
class GroupPlace:
    """Place of a frame in a group of pictures: the number of the group, from 1 on, and the index of the frame in it.

    Frame 0 is the key frame. With `frames` 1 the group is one picture that is kept up to date: a later frame holds only
    what is new since the frames before it, and what that supersedes. With more, each frame is whole and stands under
    its time behind those before it, and the newest `frames` are shown.
    """

    group: int
    frame: int
    frames: int = 1

    @property
    def first(self) -> int:
        """Index of the frame from which the group is read, up to this one.

        A picture is read from its key frame on. Several frames are read afresh after every REREAD times as many: what
        stays was computed beside frames that have left, and their positions grow.
        """
        period = REREAD * self.frames
        if self.frames == 1:
            return 0
        return max(self.frame // period * period - self.frames + 1, 0)

    @property
    def is_afresh(self) -> bool:
        """True if all that the group shows is read with this frame."""
        return self.frame == 0 or (self.frames > 1 and self.frame % (REREAD * self.frames) == 0)


@dataclass(frozen=True, slots=True)
class TokenPacket:
    """The chosen tokens of one frame.

    `regions` int32 [K, 3], `relevance` float32 [K], `pixels` uint8 [K, 3, 32, 32] (RGB), on `grid`; pixels that a
    texture on a device gathered are a tensor there. The first `overview` of them cover the whole frame with coarse
    regions; they are encoded apart from the chosen ones that follow, which they may overlap. `place`: the packet is
    part of a group of pictures, which the model's memory holds; without one it is complete in itself. Only a later
    frame of a group may hold no regions: nothing is new, and the question is about the group as it stands.
    `superseded` int32 [M]: tokens of the group that do not show the picture any more, by their number in the order in
    which all of it were appended.
    """

    stamp: FrameStamp
    grid: TileGrid
    regions: npt.NDArray[np.int32]
    relevance: npt.NDArray[np.float32]
    pixels: npt.NDArray[np.uint8] | torch.Tensor
    overview: int = 0
    place: GroupPlace | None = None
    superseded: npt.NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, np.int32))

    @property
    def host_pixels(self) -> npt.NDArray[np.uint8]:
        """The pixels in host memory; copied if they lie on a device."""
        if isinstance(self.pixels, np.ndarray):
            return self.pixels
        return self.pixels.cpu().numpy()

    @property
    def is_glance(self) -> bool:
        """True if it holds nothing but an overview."""
        return 0 < self.overview == len(self.regions)

    @property
    def is_empty(self) -> bool:
        """True if its group of pictures shows with it what it showed before."""
        return not len(self.regions) and not len(self.superseded)

    def overview_part(self) -> TokenPacket:
        """Return the overview alone."""
        return self._part(slice(0, self.overview), self.overview)

    def chosen_part(self) -> TokenPacket:
        """Return the chosen regions alone; none if `is_glance`."""
        return self._part(slice(self.overview, None), 0)

    def _part(self, rows: slice, overview: int) -> TokenPacket:
        return replace(
            self,
            regions=self.regions[rows],
            relevance=self.relevance[rows],
            pixels=self.pixels[rows],
            overview=overview,
        )


def shown_tokens(packets: Sequence[TokenPacket]) -> int:
    """Return the number of tokens that a group of pictures shows, by its packets, those that append something."""
    place = packets[-1].place if packets else None
    if place is None or place.frames == 1:
        visible_packets = packets
    else:
        visible_packets = packets[-place.frames :]
    return sum(len(packet.regions) - len(packet.superseded) for packet in visible_packets)


@dataclass(frozen=True, slots=True)
class FramePacket:
    """A whole frame and its allocation, for `full`, `prune` and `weighted`.

    `image` uint8 [rows*32, cols*32, 3] (level 0, RGB, padded); `relevance` float32 [rows, cols] for every tile.
    """

    stamp: FrameStamp
    grid: TileGrid
    regions: npt.NDArray[np.int32]
    relevance: npt.NDArray[np.float32]
    image: npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class QueryEmbedding:
    """The question as the language model's embedding table sees it: `tokens` float32 [Lq, D].

    `model_id` names the weights that it comes from, so that trained scorers know whether it is theirs.
    """

    text: str
    tokens: npt.NDArray[np.float32]
    model_id: str


@dataclass(frozen=True, slots=True)
class Feedback:
    """Feedback of one answer to later allocations, about the tokens that it was shown.

    `stamp` is the frame it was about; `regions` int32 [K, 3]; `attention` float32 [K], the decoder's
    attention summed over the answer's first tokens and divided by its largest, so in [0, 1]; `similarity` float32 [K],
    cosine of encoder embedding and pooled query embedding, in [-1, 1]. `embedding` float32 [K, 16], in [-1, 1]:
    components of the encoder's embeddings, if the allocator's channels need them.
    """

    stamp: FrameStamp
    regions: npt.NDArray[np.int32]
    attention: npt.NDArray[np.float32]
    similarity: npt.NDArray[np.float32]
    embedding: npt.NDArray[np.float32] | None = None


LEAST_MOTION_PX = 0.25
"""Motion of a tile below this is none."""

LEAST_CONFIDENCE = 0.25
"""Confidence from which a tile's motion is sure."""


@dataclass(frozen=True, slots=True)
class TileMotion:
    """Motion of every tile's content since the frame before; None stands for no motion.

    The content of tile (r, c) lay `dy_px` above and `dx_px` left of it: float32 [rows, cols], down and right positive.
    `confidence` float32 [rows, cols] in [0, 1]: 1 for a tile that did not change.
    """

    dy_px: npt.NDArray[np.float32]
    dx_px: npt.NDArray[np.float32]
    confidence: npt.NDArray[np.float32]

    @property
    def magnitude_px(self) -> npt.NDArray[np.float32]:
        """Length of each tile's motion, float32 [rows, cols]."""
        return np.hypot(self.dy_px, self.dx_px)

    @property
    def lengths_px(self) -> npt.NDArray[np.float32]:
        """Lengths of the motion of those tiles that move, and of which that is sure: float32 [N], row by row."""
        mask = (self.confidence >= LEAST_CONFIDENCE) & ((self.dy_px != 0) | (self.dx_px != 0))
        lengths = np.hypot(self.dy_px[mask], self.dx_px[mask])
        return lengths[lengths >= LEAST_MOTION_PX]


Result = TypeVar("Result")

Steps: TypeAlias = Generator[None, None, Result]
"""Work in short steps, after each of which it yields, and which returns a result after the last: an answer runs them at
once, idle work pauses in between."""


def finish(steps: Steps[Result]) -> Result:
    """Run all steps, and return the result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: Result = end.value
            return result
