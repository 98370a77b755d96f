"""Events of a run, and their msgpack and JSON encodings.

The JSON form is the one that JSONL and ZeroMQ carry: `type` first, times in seconds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from arr_coc.types import NS_PER_S, TokenReason
from stream.untrusted import printable_json, replace_surrogates

if TYPE_CHECKING:
    from stream.config import WatchConfig


class Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    """Base of all events. `time`: local time of day at which a live source showed the frame of `pts_s`, in ISO 8601
    with its offset; None for other sources, and for events of no frame."""

    time: str | None = None


class Started(Event, frozen=True, tag="started"):
    """The run begins. `backend` is the texture store that runs, `kernel` the implementation for texels in host memory:
    the instruction set that the compiled kernel uses, or "reference" without it."""

    source: str
    model: str
    query: str
    backend: str
    kernel: str = ""


class Cut(Event, frozen=True, tag="cut"):
    """A scene cut: the first frame of the new shot."""

    frame_index: int
    pts_s: float
    score: float


class PictureChanged(Event, frozen=True, tag="discontinuity"):
    """From this frame on the picture has another size or form, and is not compared with the frames before.

    `reason`: "resolution" (the source's size changed) or "format" (other planes, or another colour encoding).
    `width_px` and `height_px` are those at which the picture is worked on from here on.
    """

    frame_index: int
    pts_s: float
    reason: str
    width_px: int
    height_px: int


class Skipped(Event, frozen=True, tag="skipped"):
    """Something of the source that could not be used. `frame_index` is the decode index of the next good frame."""

    frame_index: int
    pts_s: float
    what: str
    reason: str
    count: int = 1


ANSWERS_LOST = "answers-lost"
"""The code of the notice that a remote answer stage failed, or is gone: no answers until one is connected again."""


PEER_MISBEHAVES = "peer-misbehaves"
"""The code of the notice that an answer stage sends invalid messages."""


STORE_LOST = "store-lost"
"""The code of the notice that the hardware under the texture failed: the run continues in the CPU store."""


class Notice(Event, frozen=True, tag="notice"):
    """Something that the user should know once. `code` is stable, `message` is for people."""

    code: str
    message: str


class NoticesOnce:
    """Notices of which each code comes once."""

    def __init__(self) -> None:
        self._codes: set[str] = set()

    def take(self, code: str, message: str) -> list[Notice]:
        """Return the notice; none if one of this code was returned before."""
        if code in self._codes:
            return []
        self._codes.add(code)
        return [Notice(code=code, message=message)]


def store_lost(reason: str) -> Notice:
    """The notice that the hardware under the texture failed."""
    return Notice(code=STORE_LOST, message=f"the CPU store takes over the texture: {reason}")


class Outage(Event, frozen=True, tag="outage"):
    """A live source was lost (`lasted_s` is None), or is back after `lasted_s` seconds and `attempts` attempts.

    `pts_s` is the media time of the last frame before it; `reason` never holds credentials.
    """

    frame_index: int
    pts_s: float
    reason: str
    lasted_s: float | None = None
    attempts: int = 0


class Restarted(Event, frozen=True, tag="restarted"):
    """A process died or hung and is being started again. `count` is how often this has happened to it in this run."""

    process: str
    cause: str
    count: int


class QueryChanged(Event, frozen=True, tag="asked"):
    """The question was changed while the run went on; or it was refused, for `error`, and the old one stays."""

    query: str
    error: str | None = None


class AnswerDeltaEvent(Event, frozen=True, tag="text"):
    """A piece of an answer that is being spoken, and the media time of the frame that it speaks of."""

    answer: int
    text: str
    pts_s: float | None = None


class FrameMap(msgspec.Struct, frozen=True, kw_only=True):
    """Relevance of a frame and the regions that were chosen.

    `relevance` is uint8 [rows, cols] (255 is 1.0), `regions` little-endian int16 [K, 3]: level, row, col. The first
    `overview` of them are an overview of the whole frame.
    """

    rows: int
    cols: int
    relevance: bytes
    regions: bytes
    overview: int = 0


class GlanceTiming(msgspec.Struct, frozen=True, kw_only=True):
    """Milliseconds. `total` counts from the moment at which the overview was sent."""

    encode_ms: float
    prefill_ms: float
    total_ms: float


class Glance(Event, frozen=True, tag="glance"):
    """The model looked at an overview of a frame, asked `query`, before the frame's tokens were chosen.

    `tokens_used` visual tokens, of `tokens_total` tiles. `slot` and `map` are those of the frame's new allocation, as
    in FrameReady, if the frame could still be allocated again.
    """

    frame_index: int
    pts_s: float
    query: str
    tokens_used: int
    tokens_total: int
    slot: int | None = None
    map: FrameMap | None = None
    timing: GlanceTiming | None = None


class AnswerTiming(msgspec.Struct, frozen=True, kw_only=True):
    """Milliseconds. `sent`, `ttft` and `total` count from the capture time of the packet's frame; `turn` is the wait
    for its turn, `glance` the sum of the glances before it, each from its sending to its reply; `idle` the idle work of
    the model for this run since the answer before, which no answer waited for."""

    encode_ms: float
    prefill_ms: float
    decode_ms: float
    ttft_ms: float
    total_ms: float
    glance_ms: float = 0.0
    turn_ms: float = 0.0
    sent_ms: float = 0.0
    idle_ms: float = 0.0


class AnswerPoint(Event, frozen=True):
    """Moment of an answer, its figures and its cost. The answer is about `frames` frames from `start_s` to
    `end_s`; `trigger` is why it was given.

    `kept_bytes`: memory of frames and prompt that the model keeps for the next question. `flops`: operations
    to encode, prefill and decode it from the tokens that were shown, `full_flops` from all tokens of its frames; 0
    if unknown. `glances`: how many overviews the model looked at before it, since the last answer,
    and `glance_tokens` their visual tokens; `flops` counts them in. `target_ms`: the latency that is held, if one is,
    and `budget` the tokens that frames get for it from here on. `before_cut`: a cut or a discontinuity came while it
    was generated, so it is about the shot before. `looped`: it repeated itself, and was ended at its second repetition.
    `escalated`: a larger model gave it, because the run's own was unsure.

    `prefilled_tokens`: tokens of the prompt that were computed, `appended_tokens` visual ones among them; 0 if a server
    with an API answers. With a visual memory `group` numbers the group of pictures that the answer is about, from 1 on;
    0 without one. `began` is why the group began with this answer, empty if it goes on. `appended_tokens` were added to
    the group; `memory_tokens`: all tokens before the question, `superseded_tokens`: visual tokens that have left the
    group. Between the answer before and this one the model read `idle_tokens` ahead, and wrote the group anew `rebuilt`
    times.

    `fields`: the answer's fields, by name, if it has a schema; `text` is then the same for people. None without one.
    """

    answer: int
    frame_index: int
    pts_s: float
    start_s: float
    end_s: float
    trigger: str
    query: str
    text: str
    tokens_used: int
    tokens_total: int
    text_tokens: int
    frames: int = 1
    kept_bytes: int = 0
    flops: int = 0
    full_flops: int = 0
    glances: int = 0
    glance_tokens: int = 0
    target_ms: float | None = None
    budget: int | None = None
    before_cut: bool = False
    looped: bool = False
    escalated: bool = False
    group: int = 0
    began: str = ""
    prefilled_tokens: int = 0
    appended_tokens: int = 0
    memory_tokens: int = 0
    superseded_tokens: int = 0
    idle_tokens: int = 0
    rebuilt: int = 0
    fields: dict[str, Any] | None = None
    timing: AnswerTiming | None = None


class Answer(AnswerPoint, frozen=True, tag="answer"):
    """One whole answer."""


class Detection(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Thing that an answer locates, in pixels of the source's picture from its top left: `box` [left, top, right,
    bottom], `point` [x, y], or both. `label` is the model's; `score`: from 0 to 1, if it gave one."""

    label: str
    box: list[float] | None = None
    point: list[float] | None = None
    score: float | None = None


class Detections(Event, frozen=True, tag="detections"):
    """Things that answer `answer` locates in its frame, in pixels of a picture of `width_px` × `height_px`: that of the
    source as it is shown, upright, before it is scaled for the model. Empty if the answer is an empty list."""

    frame_index: int
    pts_s: float
    answer: int
    width_px: int
    height_px: int
    objects: list[Detection]


class AnswerUnchanged(AnswerPoint, frozen=True, kw_only=True, tag="unchanged"):
    """Nothing new: the answer, `text`, is that of `since_s`, and is not given again.

    `probability`: that of its least likely token in this frame, of a model behind an API that it is still right; None
    if the server did not score it, and the model gave the same answer word for word.
    """

    since_s: float
    probability: float | None = None


class AnswerInvalid(AnswerPoint, frozen=True, kw_only=True, tag="invalid"):
    """An answer that does not fit its schema, for `reason`: no `Answer` follows, and `text` is empty."""

    reason: str


class SideText(Event, frozen=True, tag="side_text"):
    """A piece of the answer to side question `question`."""

    question: int
    text: str


class SideAnswer(Event, frozen=True, tag="side_answer"):
    """The whole answer to side question `question`, about `frames` frames from `start_s` to `end_s`. It is no caption:
    the run's own answers go on as if it had not been asked.

    `tokens_used` visual tokens, of `tokens_total` tiles; `text_tokens` of the answer, `prefilled_tokens` of its prompt.
    """

    question: int
    query: str
    text: str
    frame_index: int
    start_s: float
    end_s: float
    frames: int
    tokens_used: int
    tokens_total: int
    text_tokens: int
    prefilled_tokens: int


class SideRefused(Event, frozen=True, tag="side_refused"):
    """Side question `question` gets no answer, for `error`."""

    question: int
    error: str


class AnswerCancelled(Event, frozen=True, tag="cancelled"):
    """An answer was cancelled while it was being spoken: no `Answer` follows, and its text is not a caption.

    `frame_index` and `pts_s` are of the frame that it was about, `text` is what had been spoken. `by` says what
    made it stale, "cut" or "discontinuity"; `by_frame_index` and `by_pts_s` are of the first frame after that.
    """

    answer: int
    frame_index: int
    pts_s: float
    trigger: str
    text: str
    by: str
    by_frame_index: int
    by_pts_s: float


class YesNoTiming(msgspec.Struct, frozen=True, kw_only=True):
    """Milliseconds. `total` counts from the capture time of the packet's frame."""

    encode_ms: float
    prefill_ms: float
    total_ms: float


class YesNoResult(Event, frozen=True, tag="look"):
    """One look for a watch, named `watch`. `trigger` is why it was taken; the times are those of all watches that were
    looked at with this frame.

    `yes`: the probability of yes, given that it is yes or no; `certain`: that of one of the two. `holds`: the answer
    that holds after it, "yes" or "no"; None before the first. `warning`: why the values mean nothing, if that is
    known.
    """

    watch: str
    frame_index: int
    pts_s: float
    trigger: str
    question: str
    yes: float
    certain: float
    holds: str | None
    tokens_used: int
    tokens_total: int
    kept_bytes: int = 0
    timing: YesNoTiming | None = None
    warning: str | None = None


class VerdictChanged(Event, frozen=True, tag="turned"):
    """The answer to a watch's question turned `to` "yes" or "no", by the look at this frame; the fields are its."""

    watch: str
    frame_index: int
    pts_s: float
    question: str
    to: str
    yes: float
    certain: float
    warning: str | None = None


class Match(Event, frozen=True, tag="match"):
    """A watch matched: the answer to its question turned to yes and stayed yes for as long as the watch asks, in its
    schedule and outside its cooldown. `match` counts those of the run, from 1; `yes` and `certain` are of the last
    look.
    """

    match: int
    watch: str
    frame_index: int
    pts_s: float
    question: str
    yes: float
    certain: float


class StandingQuestion(msgspec.Struct, frozen=True):
    """Name and question of a watch. A check says yes from a probability of `threshold` on, and no up to `no_below`; yes
    must stay for `hold_s` seconds to be a match, at most one in `cooldown_s`."""

    name: str
    question: str
    threshold: float = 0.6
    no_below: float = 0.4
    hold_s: float = 0.0
    cooldown_s: float = 0.0

    @classmethod
    def of(cls, watch: WatchConfig) -> StandingQuestion:
        """Return what a configured watch asks."""
        return cls(watch.name, watch.question, watch.threshold, watch.most_of_no, watch.hold_s, watch.cooldown_s)


class WatchesChanged(Event, frozen=True, tag="watches"):
    """A watch was added to the run, or removed from it, which was asked for while it went on. `watches` are all from
    now on, `watch` is the name of that one and `question` its question; `error` is why it was not done."""

    watch: str
    watches: list[StandingQuestion]
    error: str | None = None
    question: str = ""


class ShadowCheck(Event, frozen=True, tag="shadow"):
    """An answer beside the one that the same frame gets with all of its tokens.

    `same`: equal but for case, punctuation and spaces; `words`: share of equal words; `meaning`: the model's
    probability that both say the same, None if it was not asked; `differs`: they count as different.
    `tokens_full` are all of the frame's.
    """

    answer: int
    frame_index: int
    pts_s: float
    query: str
    text: str
    full_text: str
    same: bool
    words: float
    tokens_used: int
    tokens_full: int
    differs: bool = False
    meaning: float | None = None


class BudgetChanged(Event, frozen=True, tag="budget"):
    """Shadow checks moved the token budget, or the most tokens of one that adapts, for the frames from here on.

    `reason`: "differ" if it rose, "agree" if it fell; `differing` of the last `checks` at the old budget differed.
    `answer` and its frame are those of the last one.
    """

    answer: int
    frame_index: int
    pts_s: float
    reason: str
    from_tokens: int
    to_tokens: int
    differing: int
    checks: int


class TokenMemory(msgspec.Struct, frozen=True, kw_only=True):
    """State of a token in the model's visual memory: "new" with the frame, "shown" as the picture still is, or
    "superseded", if it has changed there since. The token shows the frame of media time `since_s`."""

    state: str
    since_s: float


class Explanation(Event, frozen=True, tag="why"):
    """Reasons for the tokens of a frame that is being answered about, if a run writes them down.

    `weights`: each score's in the balance, 1 in all; `tokens` in token order. With a visual memory they are all that it
    holds with this frame, in the order in which they were appended, and `memory` has the state of each.
    """

    frame_index: int
    pts_s: float
    strategy: str
    weights: dict[str, float]
    tokens: list[TokenReason]
    memory: list[TokenMemory] | None = None


class AskedPicture(Event, frozen=True, tag="picture"):
    """The frame that is being answered about, or looked at for a standing question, if an output sends it on.

    `jpeg` shows the frame without padding, reduced to mipmap `level`: a tile is 32 >> level pixels wide in it. `map` is
    the frame's relevance and its chosen regions. A frame that is answered about and looked at comes twice. With
    `asked` false no question is about it: it is one of the output's regular pictures.
    """

    frame_index: int
    pts_s: float
    jpeg: bytes
    level: int = 0
    map: FrameMap | None = None
    asked: bool = True


class SegmentWritten(Event, frozen=True, tag="segment"):
    """A segment of the source's video has been written, for an output that uses them.

    `start_s` is the media time of its first frame, `track_s` the presentation time of that frame in its track; the
    other fields are those of `MediaSegment`.
    """

    file: str
    header: str
    start_s: float
    duration_s: float
    track_s: float
    size_bytes: int
    codec: str
    width_px: int
    height_px: int
    error: str | None = None


class ClipWritten(Event, frozen=True, tag="clip"):
    """The picture of a match, or its video too, has been written into the folder of clips.

    `picture` and `video` are names of files there. Each match has this event twice: with the picture as soon as it is
    written, and with both when the video is complete, which shows `start_s` to `end_s`; matches close to each other
    share a video. `error`: why a file is missing.
    """

    match: int
    watch: str
    picture: str | None
    video: str | None
    start_s: float
    end_s: float
    error: str | None = None


class VideoFragment(Event, frozen=True, tag="fragment"):
    """A piece of the source's video as fragmented MP4, in memory, for an output that uses it.

    `data` continues the fragment before if that has the same `init` (initialization section) and ends at `track_s`, the
    presentation time of its first frame in the track; `start_s` is the media time of that frame. `key`: it begins with
    a key frame.
    """

    data: bytes
    init: bytes
    start_s: float
    duration_s: float
    track_s: float
    key: bool

    @property
    def end_s(self) -> float:
        """Media time of its end."""
        return self.start_s + self.duration_s


class FrameReady(Event, frozen=True, tag="frame"):
    """A frame's allocation is ready; for progress, measurements and overlays, not for files of answers.

    `tokens` are the visual tokens that the model gets if the frame is answered about: the chosen regions, or with
    `encode` full and weighted one for each of the `tiles`. `jitter_share` and `map` are of the chosen regions; if
    these stay on a device, or are chosen only once the frame is answered about, `jitter_share` is None, and `tokens`
    are the planned ones.
    `slot` names the picture in the run's slot table, if an overlay was asked for; `map` is set if the run
    publishes. `duration_s`: how long the frame is shown, if its source knows. `moving_share`: share of tiles that
    move, and of which that is sure; `motion_px`: their median motion since the frame before, in pixels. `held_ms`: how
    long the allocation, once it was done, was held for frames to come out at even intervals, up to `ready_ns`.
    """

    frame_index: int
    pts_s: float
    capture_ns: int
    ready_ns: int
    texture_ms: float
    allocate_ms: float
    dirty_share: float
    tokens: int
    tiles: int
    jitter_share: float | None
    slot: int | None = None
    map: FrameMap | None = None
    duration_s: float | None = None
    motion_px: float = 0.0
    moving_share: float = 0.0
    held_ms: float = 0.0

    @property
    def latency_s(self) -> float:
        """Seconds from the capture of the frame to here."""
        return (self.ready_ns - self.capture_ns) / NS_PER_S


class IdleSummary(msgspec.Struct, frozen=True, kw_only=True):
    """Work of the model between the answers of a run: visual tokens that it read, groups that it wrote anew, and its
    time for that."""

    tokens: int
    rebuilt: int
    seconds: float


class MemorySummary(msgspec.Struct, frozen=True, kw_only=True):
    """Groups of pictures of a run: how many began, by reason, and visual tokens: appended to groups by answers, kept
    from earlier (counted with each answer that was shown them), and superseded in the end. `idle`: None if nothing was
    read ahead."""

    groups: dict[str, int]
    appended_tokens: int
    kept_tokens: int
    superseded_tokens: int
    idle: IdleSummary | None = None


class ShadowSummary(msgspec.Struct, frozen=True, kw_only=True):
    """Shadow checks of a run: their number, how many had the same words, how many counted as different, and how often
    they raised and lowered the budget."""

    checks: int
    same: int
    differing: int
    raises: int
    lowers: int


class Summary(Event, frozen=True, tag="summary"):
    """The end of the run: what it did, in numbers. `backend` is the texture store that ran last.

    `mean_tokens` are the visual tokens that a frame was given, of `mean_tiles`. `work_ratio`: how many times the
    operations of the answers all tokens of their frames would have taken; None without answers, or if the model
    does not report it. `found`: whether a watch matched, None without a look for one; `matches`: how often.
    `glances`: looks at an overview before an answer. `mean_motion_px`, `mean_moving_share`: means over all frames
    of the fields of FrameReady. `memory`: None without groups of pictures. `unchanged`: answers without news,
    `invalid`: answers that did not fit their schema. `shadow`: None without shadow checks.
    """

    frames: int
    duration_s: float
    answers: int
    cuts: int
    skipped: int
    dropped: dict[str, int]
    mean_tokens: float
    mean_dirty_share: float
    ended: str
    backend: str
    discontinuities: int = 0
    error: str | None = None
    mean_tiles: float = 0.0
    work_ratio: float | None = None
    found: bool | None = None
    glances: int = 0
    mean_motion_px: float = 0.0
    mean_moving_share: float = 0.0
    memory: MemorySummary | None = None
    unchanged: int = 0
    invalid: int = 0
    shadow: ShadowSummary | None = None
    timing: dict[str, float] | None = None
    matches: int = 0


AnyEvent: TypeAlias = (
    Started
    | Cut
    | PictureChanged
    | Skipped
    | Notice
    | Outage
    | Restarted
    | QueryChanged
    | AnswerDeltaEvent
    | Glance
    | Answer
    | Detections
    | AnswerUnchanged
    | AnswerInvalid
    | SideText
    | SideAnswer
    | SideRefused
    | AnswerCancelled
    | YesNoResult
    | VerdictChanged
    | Match
    | WatchesChanged
    | ShadowCheck
    | BudgetChanged
    | Explanation
    | AskedPicture
    | SegmentWritten
    | ClipWritten
    | VideoFragment
    | FrameReady
    | Summary
)

OF_FRAMES: tuple[type[Event], ...] = (
    FrameReady,
    AnswerDeltaEvent,
    SideText,
    Explanation,
    AskedPicture,
    SegmentWritten,
    VideoFragment,
)
"""Events that are no lines of text: too many, in pieces, or for a separate output."""


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(AnyEvent)


def pack_event(event: Event) -> bytes:
    """The event in the form that travels between threads."""
    return _encoder.encode(event)


def unpack_event(data: bytes) -> AnyEvent:
    """The event that `pack_event` packed. Raises msgspec.DecodeError for other bytes."""
    try:
        return _decoder.decode(data)
    except (UnicodeDecodeError, RecursionError) as error:
        raise msgspec.DecodeError(str(error)) from error


PICTURE: tuple[str, ...] = ("slot", "map")
"""Fields that hold, or name, a picture for a sink of this run."""

GROUP = ("group", "began", "superseded_tokens", "idle_tokens", "rebuilt")
"""Fields of an answer about a group of pictures."""


def event_fields(event: Event) -> dict[str, Any]:
    """The event as plain values, `type` and then `time` first, without its picture, and without `time`, `looped`,
    `escalated` and the fields of groups of pictures, of answers without news, or of answers with a schema, if there are
    none; without `timing` also without those that depend on what the model had kept."""
    absent = (*PICTURE, "time")
    if isinstance(event, AnswerPoint):
        absent = absent if event.group else (*absent, *GROUP)
        if event.fields is None:
            absent = (*absent, "fields")
        absent = (*absent, *(name for name in ("looped", "escalated") if not getattr(event, name)))
        if event.timing is None:
            # a model that was just loaded has kept nothing, so these differ if a run is continued or its server dies
            names = ("idle_tokens", "rebuilt") if event.group else ("appended_tokens",)
            absent = (*absent, "prefilled_tokens", *names)
    elif isinstance(event, Summary):
        absent = (*absent, *(name for name in ("memory", "unchanged", "invalid", "shadow") if not getattr(event, name)))
    values = msgspec.to_builtins(event)
    data = {"type": values.pop("type")}
    if event.time is not None:
        data["time"] = event.time
    data |= {name: value for name, value in values.items() if name not in absent}
    if isinstance(event, Summary) and event.memory is not None and (event.timing is None or event.memory.idle is None):
        del data["memory"]["idle"]
    return data


def encode_event(event: Event, camera: str | None = None) -> str:
    """The event as one printable line of JSON, as `encode_fields` makes it.

    `camera`: the name of the event's camera, after the type, if a run is one of several.
    """
    data = event_fields(event)
    if camera is not None:
        data = {"type": data.pop("type"), "camera": camera, **data}
    return encode_fields(data)


def encode_fields(data: dict[str, Any]) -> str:
    """The fields of an event, and further ones, as one printable line of JSON: no `timing`, `warning`, `memory`,
    `fields` or `meaning` if there are none, floats to six decimals."""
    for name in ("timing", "warning", "memory", "fields", "meaning"):
        if data.get(name, ...) is None:
            del data[name]
    return printable_json(msgspec.json.encode(json_value(data)).decode())


def json_value(value: Any) -> Any:
    """Plain values as JSON carries them: floats to six decimals, texts that UTF-8 can hold."""
    if isinstance(value, dict):
        return {key: json_value(item) for key, item in value.items()}
    if isinstance(value, list):
        return [json_value(item) for item in value]
    if isinstance(value, str):
        return replace_surrogates(value)
    if isinstance(value, float):
        return round(value, 6)
    return value
