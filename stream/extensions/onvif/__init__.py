"""Source: ONVIF cameras, which report their RTSP address."""

from stream.extension import Extension, SourceType

EXTENSION = Extension(
    name="onvif",
    sources=(
        SourceType(
            forms="`onvif://USER:PASSWORD@HOST`, `onvifs://…`",
            help="an [ONVIF camera](#onvif-cameras), which reports its RTSP address; over HTTPS",
            matches="stream.extensions.onvif.address:is_onvif",
            check="stream.sources.types:check_network",
            open="stream.extensions.onvif.camera:open_onvif",
        ),
    ),
)
