"""Muxer of a video's packets into fragments of MP4 for HLS, DASH and clips; nothing is decoded or encoded.

Fragmented MP4: ISO/IEC 14496-12. A fragment ends before a key frame, or before the one that would make it too long.
"""

from __future__ import annotations

from dataclasses import dataclass

import av

from arr_coc.types import NS_PER_S
from stream.recording.mp4_boxes import header_length

COPIED_CODECS = frozenset({"h264", "hevc", "av1", "vp9"})
"""Video formats that browsers and players read in fragmented MP4."""

MP4_OPTIONS = {
    "movflags": "frag_keyframe+delay_moov+default_base_moof+skip_trailer",
    "use_editlist": "0",
    "flush_packets": "1",
}
"""One fragment per group of pictures. `delay_moov`: the header is made from the first packets, because a live source
may not announce its parameters earlier."""

LONGEST_FRAGMENT_NS = 20 * NS_PER_S
"""Limit of a fragment without key frames."""


@dataclass(frozen=True, slots=True)
class Fragment:
    """Fragment of a track: `data` continues that of the fragment before.

    `pts_ns` is the presentation time of its first frame by the packets' clock, `track_ns` by the track's clock, on
    which the first packet is decoded at 0. `header` is the initialization section of the track. `key`: it begins with
    a key frame; `ends_gop`: a key frame or the end of the track follows it.
    """

    header: bytes
    data: bytes
    pts_ns: int
    track_ns: int
    duration_ns: int
    key: bool
    ends_gop: bool

    def follows(self, before: Fragment) -> bool:
        """Return True if it continues the track of another fragment."""
        return self.header == before.header and self.track_ns == before.track_ns + before.duration_ns


class Fragmenter:
    """Muxer of one track.

    `template`: stream of the packets; without one they are H.264 of the size `size_px` (width, height). `longest_ns`:
    limit of a fragment. Raises av.FFmpegError or ValueError if MP4 does not support the format.
    """

    def __init__(
        self,
        template: av.VideoStream | None = None,
        size_px: tuple[int, int] = (0, 0),
        longest_ns: int = LONGEST_FRAGMENT_NS,
    ) -> None:
        self._data = bytearray()
        self._header = b""
        options = {**MP4_OPTIONS, "frag_duration": str(longest_ns // 1000)}  # in microseconds
        self._container = av.open(_Collector(self._data), "w", format="mp4", options=options)
        if template is not None:
            self._stream = self._container.add_stream_from_template(template, opaque=True)
            size_px = template.codec_context.width, template.codec_context.height
            if (self._stream.width, self._stream.height) != size_px:  # unknown until the first picture, or changed
                self._stream.width, self._stream.height = size_px
                # parameters in this format also come with each key frame, and the newer ones count
                if (template.codec_context.extradata or b"").startswith((b"\0\0\1", b"\0\0\0\1")):
                    self._stream.codec_context.extradata = None
            if template.codec_context.codec.canonical_name == "hevc":
                self._stream.codec_context.codec_tag = "hvc1"  # sample entry that Apple's players take
        else:
            self._stream = self._container.add_mux_stream("h264", width=size_px[0], height=size_px[1])
        self._first_dts_ns: int | None = None
        self._last_dts_ns = 0
        self._start_ns = self._end_ns = self._reorder_ns = 0
        self._key = True

    @property
    def started(self) -> bool:
        """True once the track has a packet."""
        return self._first_dts_ns is not None

    def follows(self, packet: av.Packet, leap_ns: int) -> bool:
        """Return True if a packet continues the track: later than the last one, and by less than `leap_ns`."""
        return not self.started or 0 < _ns(packet, packet.dts) - self._last_dts_ns < leap_ns

    def add(self, packet: av.Packet) -> Fragment | None:
        """Add a packet with PTS and DTS, which must not be used afterwards; the first packet is a key frame.

        Returns the fragment that ends before it, if any. Raises av.FFmpegError.
        """
        pts_ns = _ns(packet, packet.pts)
        dts_ns = _ns(packet, packet.dts)
        key = packet.is_keyframe
        # a frame of unknown duration lasts as long as the step from the packet before, or 1/25 s
        shown_ns = _ns(packet, packet.duration or 0) or (
            dts_ns - self._last_dts_ns if self.started else (NS_PER_S // 25)
        )
        size_before = len(self._data)
        packet.stream = self._stream
        self._container.mux_one(packet)
        if self._first_dts_ns is None:
            self._first_dts_ns = dts_ns
            self._start_ns = pts_ns
            self._reorder_ns = pts_ns - dts_ns
        fragment = None
        if len(self._data) > size_before:
            fragment = self._cut(pts_ns if key else dts_ns + self._reorder_ns, ends_gop=key)
            self._key = key
        self._last_dts_ns = dts_ns
        self._end_ns = max(self._end_ns, pts_ns + shown_ns)
        return fragment

    def close(self) -> Fragment | None:
        """Return the last fragment unless it is empty. Raises av.FFmpegError."""
        self._container.close()
        if self.started:
            return self._cut(self._end_ns, ends_gop=True)
        return None

    def _cut(self, end_ns: int, *, ends_gop: bool) -> Fragment | None:
        """Remove and return the data written so far, as the fragment that ends at `end_ns`."""
        assert self._first_dts_ns is not None
        data = bytes(self._data)
        self._data.clear()
        if not self._header:
            length = header_length(data)
            self._header = data[:length]
            data = data[length:]
        start_ns = self._start_ns
        self._start_ns = end_ns
        if not data or end_ns <= start_ns:
            return None
        track_ns = start_ns - self._first_dts_ns
        return Fragment(self._header, data, start_ns, track_ns, end_ns - start_ns, self._key, ends_gop)


class _Collector:
    """Output for the muxer without seeking."""

    def __init__(self, data: bytearray) -> None:
        self._data = data

    def write(self, data: bytes) -> int:
        self._data += data
        return len(data)


def _ns(packet: av.Packet, ticks: int | None) -> int:
    assert ticks is not None
    return ticks * packet.time_base.numerator * NS_PER_S // packet.time_base.denominator


def codec_of(header: bytes) -> str:
    """Return the RFC 6381 name of the video format in an initialization section; "" if it is unknown.

    avcC and hvcC: ISO/IEC 14496-15, annex E; av1C: AV1 in ISO BMFF; vpcC: VP codec in ISO BMFF.
    """
    for kind, name in ((b"avcC", _avc), (b"hvcC", _hevc), (b"av1C", _av1), (b"vpcC", _vp9)):
        at = header.find(kind)
        if at >= 0 and len(header) >= at + 24:
            return name(header[at + 4 : at + 24])
    return ""


def _avc(record: bytes) -> str:
    return f"avc1.{record[1:4].hex()}"


def _hevc(record: bytes) -> str:
    space = ("", "A", "B", "C")[record[1] >> 6]
    tier = "H" if record[1] & 0x20 else "L"
    compatible = int(f"{int.from_bytes(record[2:6], 'big'):032b}"[::-1], 2)
    constraints = "".join(f".{byte:X}" for byte in record[6:12].rstrip(b"\0"))
    return f"hvc1.{space}{record[1] & 0x1F}.{compatible:X}.{tier}{record[12]}{constraints}"


def _av1(record: bytes) -> str:
    profile = record[1] >> 5
    level = record[1] & 0x1F
    tier = "H" if record[2] & 0x80 else "M"
    if record[2] & 0x40:
        depth = 12 if record[2] & 0x20 else 10
    else:
        depth = 8
    return f"av01.{profile}.{level:02}{tier}.{depth:02}"


def _vp9(record: bytes) -> str:
    return f"vp09.{record[4]:02}.{record[5]:02}.{record[6] >> 4:02}"
