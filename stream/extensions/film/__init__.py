"""Film: the video of a file or scene with its captions, in the pictures or as a subtitle track."""

from stream.extension import Extension, SinkType

SUFFIXES = (".mp4", ".mkv", ".mov", ".webm")

EXTENSION = Extension(
    name="film",
    section="stream.extensions.film.section:FilmSection",
    sinks=(
        SinkType(
            help="the video with captions in its pictures, or with `--soft` as a subtitle track (docs/films.md)",
            suffixes=SUFFIXES,
            check="stream.extensions.film.section:check",
            open="stream.extensions.film.sink:FilmSink.open",
        ),
    ),
)
