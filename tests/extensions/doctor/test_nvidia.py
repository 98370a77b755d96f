"""NVIDIA's driver by its own library: a made-up one, in each of its states."""

# ruff: noqa: N802  (the names of cuda.h)
from __future__ import annotations

from typing import Any

import pytest

from arr_coc.errors import BackendMissing, DeviceLost
from stream.extensions.doctor import nvidia
from stream.extensions.doctor.gpu import system
from stream.extensions.doctor.gpu.checks import CheckAbsent, CheckFailed
from stream.extensions.doctor.nvidia import NO_DEVICE, NvidiaDevice, driver_devices, read_driver


class FakeDriver:
    """Functions of `libcuda.so.1`; each returns a status and writes to what its first argument refers to."""

    def __init__(self, start: int = 0, cuda: int = 12040, capability: tuple[int, int] = (9, 0), count: int = 1) -> None:
        self._start, self._cuda, self._count = start, cuda, count
        self._attributes = {75: capability[0], 76: capability[1], 16: 132}
        self.status = 0

    def cuInit(self, flags: int) -> int:
        return self._start

    def _give(self, reference: Any, value: int) -> int:
        reference._obj.value = value
        return self.status

    def cuDriverGetVersion(self, version: Any) -> int:
        return self._give(version, self._cuda)

    def cuDeviceGetCount(self, count: Any) -> int:
        return self._give(count, self._count)

    def cuDeviceGet(self, device: Any, ordinal: int) -> int:
        return self._give(device, ordinal)

    def cuDeviceGetAttribute(self, value: Any, attribute: int, device: int) -> int:
        return self._give(value, self._attributes[attribute])

    def cuDeviceTotalMem_v2(self, size: Any, device: int) -> int:
        return self._give(size, 80 << 30)

    def cuDeviceGetName(self, name: Any, length: int, device: int) -> int:
        name.value = b"NVIDIA Test 9000"
        return self.status


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Any:
    def use(driver: FakeDriver | None) -> None:
        def load(name: str) -> FakeDriver:
            if driver is None:
                raise OSError(name)
            return driver

        monkeypatch.setattr(nvidia.ctypes, "CDLL", load)

    return use


def test_the_driver_describes_its_devices(use: Any) -> None:
    use(FakeDriver(count=2))
    driver_info = read_driver()
    assert driver_info.cuda_text == "12.4"
    assert driver_info.devices == (NvidiaDevice("NVIDIA Test 9000", (9, 0), 81920, 132),) * 2
    assert driver_devices() == 2
    result = system.driver()
    assert result.finding == "CUDA 12.4, NVIDIA Test 9000, NVIDIA Test 9000, 81920 MB"
    assert result.facts["devices"][0]["capability"] == "9.0"


@pytest.mark.parametrize(
    ("driver", "message"),
    [
        (None, "no NVIDIA driver; needs a GPU, driver 525+, CUDA torch"),
        (FakeDriver(start=NO_DEVICE), "no NVIDIA GPU; needs a GPU"),
        (FakeDriver(count=0), "no GPU at the driver; needs a GPU"),
    ],
)
def test_no_gpu_is_absent(use: Any, driver: FakeDriver | None, message: str) -> None:
    use(driver)
    assert driver_devices() == 0
    with pytest.raises(CheckAbsent, match=message.replace("+", r"\+")):
        system.driver()
    if driver is None:
        with pytest.raises(BackendMissing):
            read_driver()


def test_a_driver_that_cannot_be_used_is_broken(use: Any) -> None:
    use(FakeDriver(start=803))
    assert driver_devices() == 0
    with pytest.raises(DeviceLost, match=r"does not start \(cuInit gives 803\); check it with nvidia-smi"):
        system.driver()
    silent = FakeDriver()
    silent.status = 999
    use(silent)
    with pytest.raises(DeviceLost, match=r"does not describe its devices \(error 999\)"):
        system.driver()


@pytest.mark.parametrize(
    ("driver", "message"),
    [
        (FakeDriver(cuda=11080), r"the driver speaks CUDA 11\.8, and 12\.0 is needed"),
        (FakeDriver(capability=(6, 1)), r"compute capability 6\.1, and 7\.5 is needed"),
    ],
)
def test_versions_that_are_too_old_are_broken(use: Any, driver: FakeDriver, message: str) -> None:
    use(driver)
    with pytest.raises(CheckFailed, match=message):
        system.driver()
