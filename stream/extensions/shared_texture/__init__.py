"""The picture of a run in memory that other programs draw from, with its tiles and answers."""

from stream.extension import Extension, SinkType

EXTENSION = Extension(
    name="shared_texture",
    section="stream.extensions.shared_texture.section:SharedTextureSection",
    sinks=(
        SinkType(
            key="shared_texture.socket",
            option="--share-texture",
            place="address",
            lasts=False,
            check="stream.extensions.shared_texture.socket_file:check",
            open="stream.extensions.shared_texture.observer:NoSink.open",
        ),
    ),
    frame_observer="stream.extensions.shared_texture.observer:TextureSharer.open",
)
