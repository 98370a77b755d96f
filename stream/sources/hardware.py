"""Hardware decoding through FFmpeg: devices, a test of each, and the choice for one source."""

from __future__ import annotations

import logging

import av
from av.codec.hwaccel import HWAccel, hwdevices_available

from stream.config import CaptureConfig

DEVICES = ("cuda", "vaapi", "videotoolbox")
"""FFmpeg's names for NVDEC, VA-API and VideoToolbox, in the order in which `auto` tries them."""

_FAILURES = (av.FFmpegError, OSError, RuntimeError, NotImplementedError, ValueError)
"""Exceptions of PyAV if a device is absent, may not be used, or is broken."""

log = logging.getLogger(__name__)


def device_failure(device: str) -> str | None:
    """Return why a device cannot decode on this machine; None if it can. Opens and closes the device."""
    if device not in hwdevices_available():
        return "this FFmpeg was built without it"
    try:
        # every device that decodes video decodes this codec
        HWAccel(device, allow_software_fallback=False).create(av.Codec("h264", "r"))
    except _FAILURES as error:
        words = str(getattr(error, "strerror", None) or error or type(error).__name__)
        return words[:1].lower() + words[1:]
    return None


def working_devices() -> dict[str, str | None]:
    """Return the devices by name, each with why it cannot decode; None if it can."""
    return {device: device_failure(device) for device in DEVICES}


class HardwareDecoding:
    """Choice of one source's decoder by `capture.decoder`.

    If the device is unavailable, that is reported once and software decodes. `accelerator` is an argument for
    `av.open`; None: software. Frames are copied to host memory, as NV12 or P010.
    """

    def __init__(self, config: CaptureConfig, name: str) -> None:
        self._name = name
        self._has_reported = False
        self._device = self._select(config.decoder)
        if self._device is None:
            self.accelerator = None
        else:
            self.accelerator = HWAccel(self._device)

    def device_of(self, stream: av.video.stream.VideoStream) -> str | None:
        """Return the device that decodes an opened stream; None for software."""
        context = stream.codec_context
        if self._device is None or context.is_hwaccel:
            return self._device
        self._report(f"{self._device} does not decode {context.name}")
        return None

    def _select(self, setting: str) -> str | None:
        if setting == "software":
            return None
        if setting != "auto":
            failure = device_failure(setting)
            if failure is None:
                return setting
            self._report(f"the decoder {setting} cannot be used ({failure})")
            return None
        usable = next((device for device in DEVICES if device_failure(device) is None), None)
        if usable is None:
            self._report("no device for decoding can be used (`doctor` says why)")
        return usable

    def _report(self, problem: str) -> None:
        if not self._has_reported:
            self._has_reported = True
            log.warning("%s is decoded in software: %s", self._name, problem)
