"""Playlists in the format of RFC 8216."""

from __future__ import annotations

from dataclasses import replace

from stream.extensions.hls.playlists import PlaylistSegment, PlaylistState, master_playlist, media_playlist

FIRST = PlaylistSegment(7, "header-00007.mp4", 14.0, 2.0, 0.08, 250_000)
SEGMENTS = (
    FIRST,
    replace(FIRST, number=8, start_s=16.0, duration_s=2.6, track_s=2.08, size_bytes=500_000),
    replace(FIRST, number=9, start_s=30.0, duration_s=1.0, track_s=0.08, header="header-00009.mp4"),
)
STATE = PlaylistState(SEGMENTS, discontinuities=3, longest_s=2.6, growing=False, ended=False)


def test_a_live_playlist_of_video() -> None:
    assert media_playlist(STATE, ".m4s").splitlines() == [
        "#EXTM3U",
        "#EXT-X-VERSION:7",
        "#EXT-X-TARGETDURATION:3",
        "#EXT-X-MEDIA-SEQUENCE:7",
        "#EXT-X-DISCONTINUITY-SEQUENCE:3",
        '#EXT-X-MAP:URI="header-00007.mp4"',
        "#EXTINF:2.000000,",
        "segment-00007.m4s",
        "#EXTINF:2.600000,",
        "segment-00008.m4s",
        "#EXT-X-DISCONTINUITY",
        '#EXT-X-MAP:URI="header-00009.mp4"',
        "#EXTINF:1.000000,",
        "segment-00009.m4s",
    ]


def test_the_captions_have_the_same_segments() -> None:
    video = [line for line in media_playlist(STATE, ".m4s").splitlines() if "EXT-X-MAP" not in line]
    captions = media_playlist(STATE, ".vtt").splitlines()
    assert captions == [line.replace(".m4s", ".vtt") for line in video]


def test_a_playlist_that_only_grows_and_one_that_has_ended_say_so() -> None:
    text = media_playlist(replace(STATE, growing=True, ended=True), ".m4s")
    assert "#EXT-X-PLAYLIST-TYPE:EVENT\n" in text
    assert text.endswith("#EXT-X-ENDLIST\n")


def test_the_longest_segment_is_no_longer_than_the_target() -> None:
    for longest_s, target in ((0.5, 1), (2.0, 2), (2.49, 2), (2.5, 3)):  # a duration may be rounded, RFC 8216 4.3.3.1
        text = media_playlist(replace(STATE, longest_s=longest_s), ".m4s")
        assert f"#EXT-X-TARGETDURATION:{target}\n" in text


def test_the_master_names_format_size_rates_and_captions() -> None:
    text = master_playlist("video.m3u8", "captions.m3u8", "avc1.64001e", (640, 384), SEGMENTS[:2])
    assert text.splitlines() == [
        "#EXTM3U",
        "#EXT-X-VERSION:7",
        '#EXT-X-MEDIA:TYPE=SUBTITLES,GROUP-ID="captions",NAME="Answers",DEFAULT=YES,AUTOSELECT=YES,FORCED=NO,'
        'URI="captions.m3u8"',
        '#EXT-X-STREAM-INF:BANDWIDTH=1538462,AVERAGE-BANDWIDTH=1304348,CODECS="avc1.64001e",RESOLUTION=640x384,'
        'SUBTITLES="captions"',
        "video.m3u8",
    ]


def test_unknown_values_are_left_out() -> None:
    text = master_playlist("video.m3u8", "captions.m3u8", "", (0, 0), [])
    assert "CODECS" not in text
    assert "RESOLUTION" not in text
    assert "BANDWIDTH=1000000," in text
