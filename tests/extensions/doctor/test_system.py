"""The doctor's checks of this machine: every check in each of its states."""

from __future__ import annotations

import json
import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from arr_coc.errors import HubUnreachable
from stream.config import Config
from stream.errors import TransportError
from stream.extensions.doctor import model_fit, system
from stream.extensions.doctor.examination import DiagnosticCheck, all_needed_work, examine
from stream.extensions.latency.section import LatencySection
from stream.options import extra as extra_module
from stream.options.extra import Extra
from stream.sources import cameras
from stream.sources import decoder as abilities
from stream.sources.cameras import Camera

GB = 10**9


def config(**sections: dict[str, Any]) -> Config:
    return Config.model_validate(sections)


def test_a_check_is_reported_before_it_is_made_and_given_before_the_next_begins() -> None:
    parts: list[str] = []
    checks = examine(config(answer={"device": "cpu"}), begin=parts.append)
    assert parts == []
    assert next(checks).part == "python"
    assert parts == ["python"]
    assert next(checks).part == "libraries"
    assert parts == ["python", "libraries"]


def test_here_everything_that_is_needed_works_and_a_check_that_breaks_hides_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert system.ffmpeg().state == "works"
    monkeypatch.setattr(system, "ffmpeg", Mock(side_effect=RuntimeError("no\nluck")))
    results = list(examine(config(answer={"device": "cpu"})))
    checks = {check.part: check for check in results}
    assert len(checks) == len(results)
    assert not all_needed_work(results)
    ffmpeg = checks.pop("ffmpeg")
    assert (ffmpeg.state, ffmpeg.found) == ("broken", "cannot be used: no luck")
    assert all_needed_work(list(checks.values())), [check for check in results if check.state == "broken"]
    assert all(check.remedy for check in checks.values() if check.state != "works")
    assert all_needed_work([DiagnosticCheck("cuda", "absent", "")])


EXTRAS = [value for value in vars(extra_module).values() if isinstance(value, Extra)]


class TestSoftware:
    def test_python(self) -> None:
        assert system.python().state == "works"
        assert system.python((3, 9, 1)).remedy == "install Python 3.10 or newer"

    def test_two_packages_of_opencv_are_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert "overwrite" not in system.opencv().found
        packages = {"cv2": ["opencv-python-headless", "opencv-python", "opencv-python"]}
        monkeypatch.setattr(system, "packages_distributions", lambda: packages)
        check = system.opencv()
        assert check.state == "works"
        assert check.found.endswith("; opencv-python and opencv-python-headless overwrite each other")
        assert check.remedy is not None
        assert check.remedy.startswith(
            "pip uninstall -y opencv-python; pip install --force-reinstall --no-deps opencv-"
        )

    def test_a_library(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert system.library("numpy", "numpy").state == "works"
        absent = system.library("no_such_module", "no-such-thing")
        assert (absent.state, absent.found, absent.remedy) == ("broken", "not installed", "pip install no-such-thing")
        assert system.library("x", "no-such-thing", imported=False).state == "broken"
        monkeypatch.setitem(sys.modules, "numpy", None)
        broken = system.library("numpy", "numpy")
        assert broken.found.startswith("cannot be imported")
        assert broken.remedy == "pip install numpy --force-reinstall"

    def test_a_library_without_metadata_is_known_by_itself(self) -> None:
        """OpenCV comes in several distributions, any of which will do."""
        assert system.library("json", "no-such-thing").found == json.__version__

    def test_small_libraries(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert system.libraries().state == "works"

        def version(name: str) -> str:
            if name in ("rich", "typer"):
                raise PackageNotFoundError
            return "1"

        monkeypatch.setattr(system, "version", version)
        check = system.libraries()
        assert (check.state, check.remedy) == ("broken", "pip install rich typer")

    def test_decoders(self) -> None:
        support = dict.fromkeys(abilities.DECODERS, True)
        assert system.decoders(support).state == "works"
        some = system.decoders({**support, "AV1": False})
        assert (some.state, some.found) == ("absent", "H.264, HEVC, VP9, MJPEG; not AV1")
        failure = system.decoders(dict.fromkeys(support, False))
        assert (failure.state, failure.found.partition(";")[0]) == ("broken", "none")

    def test_hardware_decoding(self) -> None:
        some = system.hardware_decoding({"cuda": None, "vaapi": "it is off"})
        assert (some.state, some.found) == ("works", "cuda decodes video, if capture.decoder selects it")
        failure = system.hardware_decoding({"cuda": "operation not permitted", "vaapi": "it is off"})
        assert (failure.state, failure.found) == (
            "absent",
            "no device decodes video (cuda: operation not permitted; vaapi: it is off)",
        )

    def test_heat_maps_network_and_plots(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert system.heatmaps(True).state == "works"
        assert system.heatmaps(False).state == "absent"
        assert system.network({"rtsp": True, "https": True}).found == "rtsp, https"
        assert system.network({"rtsp": True, "https": False}).found == "rtsp; not https"
        assert system.network({"rtsp": False}).found == "none; not rtsp"
        monkeypatch.setattr(system, "find_spec", lambda name: None)
        assert system.plots().remedy == "pip install matplotlib"

    @pytest.mark.parametrize("extra", EXTRAS, ids=lambda extra: extra.name)
    def test_extras(self, extra: Extra, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(system, "version", lambda distribution: "1.2")
        monkeypatch.setattr(extra_module, "find_spec", lambda name: name)
        check = system.optional(extra)
        assert (check.state, check.found) == ("works", ", ".join(f"{name} 1.2" for name in extra.libraries))
        monkeypatch.setattr(extra_module, "find_spec", lambda name: None)
        check = system.optional(extra)
        assert (check.part, check.state, check.remedy) == (extra.part, "absent", extra.install)
        assert check.found == f"no {', '.join(extra.libraries)}, so no {extra.needed_for}"

    def test_sockets(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert system.sockets().state == "works"

        def refuse(error: Exception) -> Any:
            return Mock(side_effect=error)

        monkeypatch.setattr("stream.transport.private_directory", refuse(TransportError("too long", "set TMPDIR")))
        assert (system.sockets().state, system.sockets().remedy) == ("broken", "set TMPDIR")
        monkeypatch.setattr("stream.transport.private_directory", refuse(OSError(28, "No space left on device")))
        assert system.sockets().found == "cannot be made: No space left on device"

    def test_shared_frames(self) -> None:
        assert "memfd" in system.shared_frames(True).found
        assert "temporary file" in system.shared_frames(False).found


class TestAbilities:
    def test_this_ffmpeg_has_what_the_wheels_have(self) -> None:
        assert all(abilities.decodable().values())
        assert abilities.encodes_heatmaps()
        assert all(abilities.protocols().values())

    def test_absent_parts_are_reported(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(abilities, "DECODERS", {"X": ("no-such-codec",)})
        monkeypatch.setattr(abilities, "PROTOCOLS", ("nosuch",))
        monkeypatch.setattr(abilities, "HEATMAP_ENCODER", "no-such-encoder")
        assert abilities.decodable() == {"X": False}
        assert abilities.protocols() == {"nosuch": False}
        assert not abilities.encodes_heatmaps()


class TestHardware:
    def test_cameras(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(cameras, "list_cameras", lambda: [Camera("/dev/video0", "Cam"), Camera("/dev/video1", "B")])
        assert system.cameras() == DiagnosticCheck("cameras", "works", "0 (Cam), 1 (B)")
        monkeypatch.setattr(cameras, "list_cameras", lambda: [Camera("/dev/video0", "", problem="is busy; end it")])
        assert system.cameras() == DiagnosticCheck("cameras", "absent", "/dev/video0 is busy", "end it")
        monkeypatch.setattr(cameras, "list_cameras", list)
        assert system.cameras().state == "absent"
        monkeypatch.setattr(abilities, "reads", lambda device_format: False)
        assert system.cameras().found == "this FFmpeg has no V4L2"

    def test_screens(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert system.screens({"DISPLAY": ":1"}) == DiagnosticCheck("screens", "works", "screen: is :1")
        absent = system.screens({})
        assert (absent.state, absent.found) == ("absent", "DISPLAY is not set, so no screen:")
        monkeypatch.setattr(abilities, "reads", lambda device_format: False)
        assert system.screens({}).found == "this FFmpeg has no X11 capture (x11grab)"

    def test_the_cpu_store_works_everywhere(self) -> None:
        check = system.texture("cpu", "auto")
        assert (check.part, check.state, check.found.partition(",")[0]) == ("texture cpu", "works", "host memory")

    def test_the_kernels_of_the_cpu_store_are_reported(self) -> None:
        program = "print('host memory, NumPy and OpenCV'); print('install a compiler')"
        check = system.texture("cpu", "auto", [sys.executable, "-c", program])
        expected = DiagnosticCheck("texture cpu", "works", "host memory, NumPy and OpenCV", "install a compiler")
        assert check == expected

    @pytest.mark.parametrize(("configured_backend", "state"), [("auto", "absent"), ("cpu", "absent"), ("gl", "broken")])
    @pytest.mark.parametrize(
        ("program", "finding", "remedy"),
        [
            ("print('no EGL here'); print('install Mesa'); exit(1)", "no EGL here", "install Mesa"),
            ("print('out of memory'); print(); exit(1)", "out of memory", system.NEWER_DRIVER),
            ("exit('libEGL is too old')", "libEGL is too old", system.NEWER_DRIVER),
            ("import os; os.kill(os.getpid(), 11)", "crashed: SIGSEGV", system.NEWER_DRIVER),
            ("import time; time.sleep(60)", "did not open within 0.2 s", system.NEWER_DRIVER),
        ],
    )
    def test_a_store_that_cannot_be_used(
        self, configured_backend: str, state: str, program: str, finding: str, remedy: str
    ) -> None:
        check = system.texture(
            "gl", configured_backend, (sys.executable, "-c", program), limit_s=0.2 if "sleep" in program else 30
        )
        assert check == DiagnosticCheck("texture gl", state, finding, remedy)

    @pytest.mark.parametrize(
        ("device", "devices", "built_for", "state", "finding"),
        [
            ("auto", 0, None, "absent", "no NVIDIA driver"),
            ("cpu", 1, None, "absent", "a driver with 1 device(s), but torch for the CPU"),
            ("auto", 1, "12.8", "absent", "torch for CUDA 12.8 cannot use the driver"),
            ("cuda", 0, None, "broken", "the device 'cuda' cannot be used: no NVIDIA driver"),
            ("nonsense", 0, None, "broken", "the device 'nonsense' cannot be used: no NVIDIA driver"),
        ],
    )
    def test_cuda_that_cannot_be_used(
        self,
        device: str,
        devices: int,
        built_for: str | None,
        state: str,
        finding: str,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        monkeypatch.setattr(torch.version, "cuda", built_for)
        monkeypatch.setattr(system, "_usable", lambda name: name in ("auto", "cpu"))
        check = system.cuda(device, lambda: devices)
        assert (check.state, check.found) == (state, finding)
        assert check.remedy

    @pytest.mark.parametrize(("device", "state"), [("auto", "works"), ("cpu", "works"), ("cuda:7", "broken")])
    def test_cuda_that_works(self, device: str, state: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: "Card")
        monkeypatch.setattr(torch.version, "cuda", "12.8")
        monkeypatch.setattr(system, "_usable", lambda name: name != "cuda:7")
        check = system.cuda(device, lambda: 2)
        assert check.state == state
        assert check.found == (
            "CUDA 12.8: Card" if state == "works" else "the device 'cuda:7' cannot be used: there are 2"
        )

    def test_usable_parts(self) -> None:
        assert system._usable("auto")
        assert system._usable("meta")
        assert not system._usable("nonsense")


def unreachable(name: str) -> model_fit.FoundModel:
    return model_fit.FoundModel(name, None, HubUnreachable("no hub", "check the network"), on_hub=True)


class TestFitness:
    def test_the_bundled_model_fits(self) -> None:
        check = model_fit.model(config())
        assert check.state == "works"
        assert check.found.startswith(
            "scenes-tiny: Qwen3-VL, 5.1 M parameters, 400 visual tokens a frame, context of 8192"
        )
        assert "only knows drawn scenes" in check.found

    def test_a_budget_beyond_the_context(self) -> None:
        check = model_fit.model(config(allocate={"budget": 9000}))
        assert (check.state, check.remedy) == ("broken", "lower --budget")
        assert "too short for the 91" in check.found

    def test_a_model_that_is_not_there(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        check = model_fit.model(config(answer={"model": str(tmp_path / "none")}))
        assert (check.state, check.remedy) == ("broken", "give one, or a name on the hub as owner/model")
        monkeypatch.setattr(model_fit, "cached_folder", lambda name: None)
        absent = config(answer={"model": "owner/model"})
        monkeypatch.setattr(model_fit, "_on_hub", unreachable)
        assert model_fit.model(absent).state == "absent"
        assert model_fit.memory(absent, lambda: GB).found == "556 MB and the model needed, 1.0 GB free"
        monkeypatch.setattr(model_fit, "cached_folder", lambda name: model_fit.bundled_model_path())
        assert model_fit.model(absent).found.startswith("owner/model: Qwen3-VL")

    def test_memory(self) -> None:
        on_cpu = config(answer={"device": "cpu"})
        check = model_fit.memory(on_cpu, lambda: 20 * GB)
        assert check.state == "works"
        assert check.found.startswith("about 650 MB needed (weights 20 MB, ")
        assert check.found.endswith("20.0 GB free")
        short = model_fit.memory(on_cpu, lambda: GB // 2)
        assert short.state == "broken"
        assert short.remedy is not None
        assert "--dtype bfloat16" in short.remedy

    def test_one_process_takes_less(self) -> None:
        configuration = config(answer={"device": "cpu"}, pipeline={"single_process": True})
        assert "processes 262 MB" in model_fit.memory(configuration, lambda: GB).found

    def test_a_model_that_cannot_be_read_needs_at_least_the_processes(self, tmp_path: Path) -> None:
        unknown = config(answer={"model": str(tmp_path)})
        assert model_fit.memory(unknown, lambda: GB).state == "works"
        assert model_fit.memory(unknown, lambda: GB // 10).state == "broken"

    def test_on_a_card_its_memory_counts(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (GB // 100, GB))
        check = model_fit.memory(config(), lambda: GB)
        assert check.state == "broken"
        assert check.found.startswith("about 1.1 GB needed on the GPU (weights 10 MB, ")
        assert check.found.endswith(
            "texture 11 MB, CUDA and a screen 1.1 GB; loading 10 MB on the host), 10 MB free there: it does not fit"
        )
        on_cpu = model_fit.memory(config(texture={"backend": "cpu"}), lambda: GB)
        assert "texture" not in on_cpu.found
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (2 * GB, 8 * GB))
        fits = model_fit.memory(config(), lambda: GB)
        assert (fits.state, fits.found.endswith("2.0 GB free there: it fits")) == ("works", True)

    def test_adaptive_budgets_are_taken_at_their_most(self) -> None:
        assert model_fit.tokens_of(config(allocate={"budget": "adaptive"}))[0] == 400
        assert model_fit.tokens_of(config(allocate={"budget": "adaptive", "max_tokens": 90}))[0] == 90
        assert model_fit.tokens_of(config(allocate={"max_tokens": 90}, latency=LatencySection(target_ms=500)))[0] == 90

    @pytest.mark.parametrize(
        ("limit", "usage"),
        [("memory.max", "memory.current"), ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes")],
    )
    def test_a_container_has_what_it_may(self, tmp_path: Path, limit: str, usage: str) -> None:
        (tmp_path / "memory").mkdir()
        unlimited = model_fit.free_memory_bytes(tmp_path)
        assert unlimited > 0
        (tmp_path / usage).write_text("3000\n")
        (tmp_path / limit).write_text("max\n")
        assert model_fit.free_memory_bytes(tmp_path) > 10_000
        (tmp_path / limit).write_text("10000\n")
        assert model_fit.free_memory_bytes(tmp_path) == 7000
        (tmp_path / limit).write_text("1000\n")
        assert model_fit.free_memory_bytes(tmp_path) == 0
