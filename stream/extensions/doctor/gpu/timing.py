"""Times on the device against targets, and the frames after which sharing a texture with OpenGL pays."""

from __future__ import annotations

import json
import statistics
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from arr_coc.allocation.allocator import AllocatorOptions, StreamAllocator
from arr_coc.allocation.packets import packet_from
from arr_coc.allocation.strategies import AllocationHistory, AllocationRequest, choose
from arr_coc.backends.cuda.device import CudaDevice, call, find_device
from arr_coc.backends.cuda.store import CudaStore
from arr_coc.qwen.encoding import encode_packet
from arr_coc.qwen.loading import load_qwen
from arr_coc.qwen.options import AnswerOptions, Decoding
from arr_coc.qwen.session import AnswerSession
from arr_coc.relevance.balancing import RelevanceRealiser
from arr_coc.relevance.cached_relevance import CachedRelevance
from arr_coc.relevance.channels import TextureArray
from arr_coc.texture.store.base import TextureStore
from arr_coc.texture.store.planes import PlaneFormat, Thresholds
from arr_coc.texture.store.tensors import format_of
from arr_coc.types import LEVELS, FramePlanes, FrameStamp, TileGrid, TokenPacket
from stream.extensions.doctor.gpu.checks import CheckFailed, CheckResult, Figure, GpuCheck
from stream.extensions.doctor.gpu.model import QUERY, TEXT_TOKENS, disable_end_tokens, picture_allocator, pictures
from stream.extensions.doctor.gpu.reference import stamp
from stream.extensions.doctor.gpu.runner import run_check
from stream.extensions.doctor.gpu.sharing import shared_store
from stream.extensions.doctor.gpu.stores import hold

BUDGET = 273
CHANGED_SHARE = 0.10
WARM_UP = 10
TIMING = 0
"""CU_EVENT_DEFAULT of cuda.h: an event with a time stamp."""

HOLD_CYCLES = 4_000_000
"""Two milliseconds of a GPU's clock: longer than the host takes to give one piece of work."""

LARGE = (1080, 1920)
SMALL = (64, 128)
"""Heights and widths of frames that are timed on a GPU, and on a CPU that emulates one."""

TARGETS_MS = {
    ("upload", "device"): 0.05,
    ("upload", "wall"): 0.15,
    ("gather", "device"): 0.03,
    ("channels", "device"): 0.2,
    ("scores", "device"): 0.2,
    ("frame", "wall"): 1.0,
}
"""Of an H200-class GPU at 1080p (docs/gpu.md)."""

MODEL_TARGETS_MS = {"encode": 4.3, "first token": 10.0, "first token p99": 15.0, "answer": 35.0}
TOKENS_TARGET_HZ = 600.0
"""Of an H200-class GPU with Qwen3-VL-2B's dimensions in bfloat16, 273 visual and 12 text tokens; from a picture of
1024² in host memory on, but encoding from the chosen tokens on."""

PACKET_TARGET_MS = 1.5
"""A packet of 273 tokens on its way to the answer process, the median (benchmarks/README.md)."""


@dataclass(frozen=True, slots=True)
class ChangedBlock:
    """Two frames that differ in one block, as planes and as tensors on the device; `dirty` is the block."""

    planes: tuple[FramePlanes, FramePlanes]
    tensors: tuple[torch.Tensor, torch.Tensor]
    dirty: np.ndarray[Any, np.dtype[np.bool_]]


class Timer:
    """Times a piece of work on the device and on the host."""

    def __init__(self, device: CudaDevice, rounds: int) -> None:
        self._device = device
        self._rounds = rounds
        self._start, self._end = (call("cuEventCreate", TIMING) for _ in range(2))

    def measure(self, work: Callable[[int], object]) -> dict[str, dict[str, float]]:
        """Medians and more of `work(turn)`, in milliseconds."""
        for turn in range(WARM_UP):
            work(turn)
        wall = []
        device = []
        for turn in range(self._rounds):
            call("cuCtxSynchronize")
            start_ns = time.perf_counter_ns()
            work(2 * turn)
            call("cuCtxSynchronize")
            wall.append((time.perf_counter_ns() - start_ns) / 1e6)
            stream = self._device.stream()
            hold(self._device, HOLD_CYCLES)
            call("cuEventRecord", self._start, stream)
            work(2 * turn + 1)
            call("cuEventRecord", self._end, stream)
            call("cuEventSynchronize", self._end)
            device.append(float(call("cuEventElapsedTime", self._start, self._end)))
        return {"device": summary(device), "wall": summary(wall)}


def summary(times_ms: list[float]) -> dict[str, float]:
    """Return the smallest, the median and the 95th percentile."""
    quantiles = {"min": min(times_ms), "p50": statistics.median(times_ms), "p95": float(np.percentile(times_ms, 95))}
    return {name: round(value, 4) for name, value in quantiles.items()}


def make_scene(height: int, width: int, place: torch.device) -> ChangedBlock:
    """Return noise, and the same with a tenth of the tiles changed."""
    rng = np.random.default_rng(0)
    shapes = ((height, width), *[(-(-height // 2), -(-width // 2))] * 2)
    first = tuple(rng.integers(40, 200, shape, dtype=np.uint8) for shape in shapes)
    second = tuple(plane.copy() for plane in first)
    rows, cols = PlaneFormat.of(FramePlanes("yuv", first)).grid.shape
    tall = max(1, round(rows * CHANGED_SHARE**0.5))
    wide = max(1, round(cols * CHANGED_SHARE**0.5))
    dirty = np.zeros((rows, cols), bool)
    dirty[:tall, :wide] = True
    for plane, side in zip(second, (32, 16, 16), strict=True):
        plane[: tall * side, : wide * side] += np.uint8(30)
    rgb = [np.stack([plane[0]] * 3, axis=2) for plane in (first, second)]
    tensors = tuple(torch.from_numpy(frame).to(place) for frame in rgb)
    return ChangedBlock((FramePlanes("yuv", first), FramePlanes("yuv", second)), (tensors[0], tensors[1]), dirty)


def pieces(scene: ChangedBlock) -> dict[str, Callable[[int], object]]:
    """Measurements of texture and allocation by name; each takes the number of the turn."""
    store = CudaStore(PlaneFormat.of(scene.planes[0]), Thresholds(), 1000)
    on_device = CudaStore(format_of(scene.tensors[0]), Thresholds(), 1000)
    for index in range(2):
        store.update(scene.planes[index], FrameStamp(index, 0, 0))
        on_device.update_tensor(scene.tensors[index], FrameStamp(index, 0, 0))
    tiles = np.argwhere(scene.dirty)
    allocator, tensor_allocator = (
        StreamAllocator(AllocatorOptions(budget=BUDGET, on_device=True), measures_change=False) for _ in range(2)
    )
    relevance = CachedRelevance(RelevanceRealiser(), stays=True)
    with store.lease() as view:
        channels, entropy = view.texture_array()
        first = allocator.allocate(view)
    regions = first.selection.choice.regions
    tokens = first.tokens

    def update(turn: int) -> None:
        store.update(scene.planes[turn % 2], FrameStamp(turn, 0, 0))

    def gather(turn: int) -> None:
        with store.lease() as view:
            view.patches(regions, torch.bfloat16)

    @torch.inference_mode()
    def scores(turn: int) -> None:
        relevance.compute(TextureArray(channels, entropy), None)

    @torch.inference_mode()
    def choice(turn: int) -> None:
        choose(AllocationRequest(first.relevance, tokens, 0.25, 0, AllocationHistory()), "foveated")

    def texture_array(turn: int) -> None:
        with store.lease() as view:
            view.texture_array()

    def frame(turn: int) -> None:
        update(turn)
        with store.lease() as view:
            allocator.allocate(view)

    def answer(turn: int) -> None:
        update(turn)
        with store.lease() as view:
            packet_from(view, allocator.allocate(view))

    def update_tensor(turn: int) -> None:
        on_device.update_tensor(scene.tensors[turn % 2], FrameStamp(turn, 0, 0))

    def frame_tensor(turn: int) -> None:
        update_tensor(turn)
        with on_device.lease() as view:
            tensor_allocator.allocate(view)

    return {
        "upload": lambda turn: store.send(tiles),
        "update": update,
        "update_tensor": update_tensor,
        "gather": gather,
        "channels": texture_array,
        "scores": scores,
        "choice": choice,
        "frame": frame,
        "answer": answer,
        "frame_tensor": frame_tensor,
    }


TEXTURE = ("upload", "update", "update_tensor", "gather", "channels")
ALLOCATE = ("scores", "choice", "frame", "answer", "frame_tensor")


def texture() -> CheckResult:
    """Time the texture at 1080p with a tenth of its tiles changed."""
    return _timed_pieces(TEXTURE)


def allocate() -> CheckResult:
    """Time scores, choice and whole frames of such a texture."""
    return _timed_pieces(ALLOCATE)


def _timed_pieces(names: tuple[str, ...]) -> CheckResult:
    device = find_device()
    with device.current():
        works = pieces(make_scene(*_size(device), device.place))
        timer = Timer(device, _rounds(device, 100))
        times_by_name = {name: timer.measure(works[name]) for name in names}
    figures = [
        Figure(f"{name} {kind}", times[kind]["p50"], target=_target(device, TARGETS_MS.get((name, kind))))
        for name, times in times_by_name.items()
        for kind in ("device", "wall")
    ]
    return CheckResult.of_figures(*figures, facts={"milliseconds": times_by_name})


def _size(device: CudaDevice) -> tuple[int, int]:
    return LARGE if device.place.type == "cuda" else SMALL


def _rounds(device: CudaDevice, rounds: int) -> int:
    return rounds if device.place.type == "cuda" else 2


def _target(device: CudaDevice, target: float | None) -> float | None:
    """A target holds for a GPU."""
    return target if device.place.type == "cuda" else None


def hops() -> CheckResult:
    """Time a packet of 273 tokens from the gathered pixels to the other process's tensor: by CUDA IPC, by the host."""
    from stream.protocol.device_pixels import IpcPixelSender

    device = find_device()
    rounds = 50
    pixels = torch.randint(0, 256, (BUDGET, 3, 32, 32), dtype=torch.uint8, device=device.place)
    with ExitStack() as stack:
        pixel_sender = stack.enter_context(closing(IpcPixelSender()))
        ipc_ms = _hop_times(lambda packet: pixel_sender.put(pixels), pixels, device, rounds, on_host=False)
        host_ms = _hop_times(lambda packet: None, pixels, device, rounds, on_host=True)
    target = _target(device, PACKET_TARGET_MS)
    figures = [
        Figure(f"{name} {part}", value, target=target if part == "p50" else None)
        for name, times in (("ipc", ipc_ms), ("host", host_ms))
        for part, value in (("p50", statistics.median(times)), ("p99", float(np.percentile(times, 99))))
    ]
    return CheckResult.of_figures(*figures)


RECEIVER = GpuCheck("receiver", "stream.extensions.doctor.gpu.timing:receive_packets", "", limit_s=40)
WAIT_MS = 600_000
"""Longer than the limit of a check, which ends both processes."""


def _hop_times(
    share_pixels: Callable[[TokenPacket], Any], pixels: torch.Tensor, device: CudaDevice, rounds: int, *, on_host: bool
) -> list[float]:
    """Send packets one by one, and return the milliseconds until the receiver holds each."""
    from arr_coc.types import Question
    from stream.protocol.codec import token_message
    from stream.transport import Transport, ipc_endpoint, private_directory

    rows: list[Any] = []
    sent_ns = []
    with private_directory() as folder, closing(Transport()) as transport:
        endpoint = ipc_endpoint(folder, "hop")
        link = transport.link(endpoint, bind=True)
        order = json.dumps({"endpoint": endpoint, "count": rounds})
        receiver = threading.Thread(target=lambda: rows.append(run_check(replace(RECEIVER, argument=order))))
        receiver.start()
        regions = np.zeros((BUDGET, 3), np.int32)
        relevance = np.ones(BUDGET, np.float32)
        packet = TokenPacket(FrameStamp(0, 0, 0), TileGrid.of(1080, 1920), regions, relevance, pixels)
        for number in range(rounds):
            if link.receive(WAIT_MS) is None:
                break
            with device.current():
                call("cuCtxSynchronize")
            sent_ns.append(time.monotonic_ns())
            place = share_pixels(packet)
            if on_host:
                payload = replace(packet, pixels=pixels.cpu().numpy())
            else:
                payload = packet
            link.send(*token_message(number, 0, payload, Question(""), pixels_at=place))
        receiver.join()
        link.close()
    (row,) = rows
    if row.state != "works":
        raise CheckFailed(f"the receiving process: {row.finding}\n{row.traceback}")
    arrived_ns = row.facts["arrived_ns"]
    times = [(arrival_ns - departure_ns) / 1e6 for departure_ns, arrival_ns in zip(sent_ns, arrived_ns, strict=True)]
    return times[len(times) // 10 :]


def receive_packets(argument: str) -> CheckResult:
    """Process of the other side: take packets, and report when each was there."""
    from stream.protocol.codec import token_packet
    from stream.protocol.device_pixels import IpcPixelReceiver
    from stream.protocol.messages import Credit, TokenPacketMessage
    from stream.transport import Transport

    order = json.loads(argument)
    device = find_device()
    pixels = IpcPixelReceiver()
    arrived_ns = []
    with closing(Transport()) as transport:
        link = transport.link(order["endpoint"])
        for _ in range(order["count"]):
            link.send(Credit())
            received = link.receive(WAIT_MS)
            if received is None or not isinstance(received.message, TokenPacketMessage):
                raise CheckFailed("no packet arrived")
            packet = token_packet(received.message, received.parts, pixels.take)
            if isinstance(packet.pixels, torch.Tensor):
                packet_pixels = packet.pixels
            else:
                packet_pixels = torch.from_numpy(packet.pixels)
            packet_pixels.to(device.place)
            with device.current():
                call("cuCtxSynchronize")
            arrived_ns.append(time.monotonic_ns())
        link.close()
    return CheckResult("received", {"arrived_ns": arrived_ns})


FREE_FOR_2B = 12 << 30
"""Bytes for Qwen3-VL-2B's dimensions, whose weights are made in float32."""


def model() -> CheckResult:
    """Time encoding, prefill and decoding at Qwen3-VL-2B's dimensions; of the bundled model if memory is short."""
    from arr_coc.qwen.untrained import qwen3_vl_2b

    device = find_device()
    real = device.place.type == "cuda"
    large = real and torch.cuda.mem_get_info(device.place)[0] >= FREE_FOR_2B
    qwen = disable_end_tokens(
        qwen3_vl_2b(device.place, torch.bfloat16) if large else load_qwen(None, device=device.place)
    )
    budget, side_px = (BUDGET, 1024) if real else (64, 320)
    frames = pictures(4, side_px)
    allocator = picture_allocator(qwen, budget)
    session = AnswerSession(qwen, AnswerOptions("sparse", Decoding(TEXT_TOKENS)))
    results = []
    prepared_ms = []
    answers_ms = []
    rounds = _rounds(device, 30)
    for turn in range(WARM_UP // 3 + rounds):
        start_ns = time.perf_counter_ns()
        packet = allocator.allocate(frames[turn % len(frames)], stamp(turn))
        prepared_ms.append((time.perf_counter_ns() - start_ns) / 1e6)
        for _ in session.answer(packet, QUERY):
            pass
        answers_ms.append((time.perf_counter_ns() - start_ns) / 1e6)
        results.append(session.last)
    results = results[-rounds:]
    prepared_ms = prepared_ms[-rounds:]
    answers_ms = answers_ms[-rounds:]
    with device.current(), torch.inference_mode():
        encode = Timer(device, rounds).measure(lambda turn: encode_packet(qwen, packet, "sparse"))["wall"]["p50"]
    first_ms = [before + result.first_token_ms for before, result in zip(prepared_ms, results, strict=True)]
    values = {
        "encode": encode,
        "prefill": statistics.median(result.first_token_ms for result in results) - encode,
        "first token": statistics.median(first_ms),
        "first token p99": float(np.percentile(first_ms, 99)),
        "answer": statistics.median(answers_ms),
    }
    figures = [
        Figure(name, value, target=MODEL_TARGETS_MS.get(name) if large else None) for name, value in values.items()
    ]
    rate = 1e3 * (TEXT_TOKENS - 1) / statistics.median(result.work.decode_ms for result in results)
    figures.append(Figure("decode", rate, "tokens/s", TOKENS_TARGET_HZ if large else None, is_rate=True))
    facts = {"model": qwen.model_id, "visual_tokens": results[-1].work.tokens_used, "text_tokens": TEXT_TOKENS}
    return CheckResult.of_figures(*figures, facts=facts)


def opengl() -> CheckResult:
    """Time the OpenGL store, the driver's mipmaps of the whole frame, and several cameras in one array."""
    from arr_coc.backends.gl.device import open_device
    from arr_coc.backends.gl.store import GlStore
    from stream.extensions.doctor.gpu.driver_mipmaps import GenerateMipmap

    gl = open_device()
    scene = make_scene(*(SMALL if gl.software else LARGE), torch.device("cpu"))
    regions = np.array([[0, row, col] for row, col in np.argwhere(np.ones(scene.dirty.shape, bool))[:BUDGET]])
    with closing(GlStore(PlaneFormat.of(scene.planes[0]), Thresholds(), 1000)) as store:
        update, gather = _frame_times(store, scene, lambda view: view.gather(regions), 3 if gl.software else 50)
        with store.lease() as view:
            own = [view.read(level).astype(np.int16) for level in range(LEVELS)]
    driver = GenerateMipmap(store.grid)
    driver.run(own[0].astype(np.uint8))
    apart = max(int(np.abs(levels[0] - levels[1]).max()) for levels in zip(driver.levels(), own, strict=True))
    took_ms = []
    for _ in range(3):
        start_ns = time.perf_counter_ns()
        driver.generate()
        took_ms.append((time.perf_counter_ns() - start_ns) / 1e6)
    each, together = _camera_times(scene, rounds=3 if gl.software else 30)
    figures = (
        Figure("update", update),
        Figure("gather", gather),
        Figure(f"{CAMERAS} stores", each),
        Figure(f"{CAMERAS} layers of an array", together),
        Figure("glGenerateMipmap", statistics.median(took_ms)),
        Figure("glGenerateMipmap differs", apart, "of 255"),
    )
    return CheckResult.of_figures(*figures, facts={"renderer": gl.renderer}, software=gl.software)


CAMERAS = 4


def _camera_times(scene: ChangedBlock, rounds: int) -> tuple[float, float]:
    """Return medians of an update of several cameras, in milliseconds: a store each, and layers of one array."""
    from arr_coc.backends.gl.layers import GlLayers
    from arr_coc.backends.gl.store import GlStore

    fmt = PlaneFormat.of(scene.planes[0])
    times_ms: tuple[list[float], list[float]] = ([], [])
    with ExitStack() as stack:
        stores = [stack.enter_context(closing(GlStore(fmt, Thresholds(), 1000))) for _ in range(CAMERAS)]
        layers = stack.enter_context(closing(GlLayers(fmt, CAMERAS)))
        device = stores[0].device

        def each(planes: FramePlanes, stamp: FrameStamp) -> None:
            for store in stores:
                store.update(planes, stamp)

        def together(planes: FramePlanes, stamp: FrameStamp) -> None:
            layers.update([planes] * CAMERAS, [stamp] * CAMERAS)

        for turn in range(2 + rounds):
            for update, taken_ms in zip((each, together), times_ms, strict=True):
                start_ns = time.perf_counter_ns()
                update(scene.planes[turn % 2], FrameStamp(turn, 0, 0))
                with device.current():
                    device.library.gl.glFinish()
                taken_ms.append((time.perf_counter_ns() - start_ns) / 1e6)
    return statistics.median(times_ms[0][2:]), statistics.median(times_ms[1][2:])


def _frame_times(
    store: TextureStore, scene: ChangedBlock, read_view: Callable[[Any], object], rounds: int
) -> tuple[float, float]:
    """Return medians of a frame's update and of a read that follows it, in milliseconds."""
    updates = []
    reads = []
    for turn in range(3 + rounds):
        start_ns = time.perf_counter_ns()
        store.update(scene.planes[turn % 2], FrameStamp(turn, 0, 0))
        updated_ns = time.perf_counter_ns()
        with store.lease() as view:
            read_view(view)
        updates.append((updated_ns - start_ns) / 1e6)
        reads.append((time.perf_counter_ns() - updated_ns) / 1e6)
    return statistics.median(updates[3:]), statistics.median(reads[3:])


def interop() -> CheckResult:
    """Time frames in a shared texture and frames that are read back, and count after how many sharing has paid."""
    from arr_coc.backends.gl import device as gl_device
    from arr_coc.backends.gl.store import GlStore

    device = find_device()
    gl = gl_device.open_device(device.index)
    scene = make_scene(*_size(device), device.place)
    rounds = _rounds(device, 50)
    tiles = np.argwhere(np.ones(scene.dirty.shape, bool))[:BUDGET]
    regions = np.concatenate([np.zeros((len(tiles), 1), np.int64), tiles], axis=1)

    def read_shared(view: Any) -> None:
        view.patches(regions)
        call("cuCtxSynchronize")

    def read_back(view: Any) -> None:
        torch.from_numpy(view.gather(regions)).to(device.place)
        call("cuCtxSynchronize")

    start_ns = time.perf_counter_ns()
    with device.current(), shared_store(scene.planes[0]) as store:
        store.update(scene.planes[0], FrameStamp(0, 0, 0))
        opening = (time.perf_counter_ns() - start_ns) / 1e6
        shared = sum(_frame_times(store, scene, read_shared, rounds))
        drawings = []
        for _ in range(rounds):
            start_ns = time.perf_counter_ns()
            with gl.current(), store.drawing():
                pass
            with store.lease() as view:
                read_shared(view)
            drawings.append((time.perf_counter_ns() - start_ns) / 1e6)
    start_ns = time.perf_counter_ns()
    with device.current(), closing(GlStore(PlaneFormat.of(scene.planes[0]), Thresholds(), 1000, device.index)) as plain:
        plain.update(scene.planes[0], FrameStamp(0, 0, 0))
        setup = opening - (time.perf_counter_ns() - start_ns) / 1e6
        copied = sum(_frame_times(plain, scene, read_back, rounds))
    figures = [
        Figure("shared frame", shared),
        Figure("copied frame", copied),
        Figure("set-up", setup),
        Figure("map and unmap", statistics.median(drawings)),
    ]
    if (frames := break_even_frames(setup, shared, copied)) is not None:
        figures.insert(0, Figure("pays after", frames, "frames"))
    result = CheckResult.of_figures(*figures, facts={"break_even_frames": frames}, software=gl.software)
    if frames is not None:
        return result
    return replace(result, finding=f"never pays; {result.finding}")


def break_even_frames(setup_ms: float, shared_ms: float, copied_ms: float) -> float | None:
    """Return the frames after which a shared texture, which costs more once, has cost less; None if it never does."""
    saved_ms = copied_ms - shared_ms
    if saved_ms <= 0:
        return None
    return float(max(0, -(-setup_ms // saved_ms)))
