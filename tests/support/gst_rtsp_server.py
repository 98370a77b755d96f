"""A camera made of GStreamer's RTSP server: H.264 with B-frames, a key frame every 10 frames, at /cam.

Runs in the system's Python, which has the bindings. Arguments: USER:PASSWORD or "-", a file with certificate and key or
"-", and a port or 0. Prints the port once it listens.
"""

import sys

import gi

gi.require_version("Gst", "1.0")
gi.require_version("GstRtsp", "1.0")
gi.require_version("GstRtspServer", "1.0")
from gi.repository import Gio, GLib, Gst, GstRtsp, GstRtspServer  # noqa: E402

CAMERA = (
    "( videotestsrc is-live=true pattern=ball ! video/x-raw,width=320,height=240,framerate=25/1 "
    "! x264enc key-int-max=10 bframes=2 b-adapt=false speed-preset=veryfast ! video/x-h264,profile=main "
    "! rtph264pay name=pay0 pt=96 )"
)


def main(login: str, certificate: str, port: str) -> None:
    Gst.init(None)
    server = GstRtspServer.RTSPServer()
    server.set_address("127.0.0.1")
    server.set_service(port)
    factory = GstRtspServer.RTSPMediaFactory()
    factory.set_launch(CAMERA)
    factory.set_shared(True)
    if (login, certificate) != ("-", "-"):
        server.set_auth(protected(factory, login, certificate))
    server.get_mount_points().add_factory("/cam", factory)
    server.attach(None)
    print(server.get_bound_port(), flush=True)
    GLib.MainLoop().run()


def protected(factory: GstRtspServer.RTSPMediaFactory, login: str, certificate: str) -> GstRtspServer.RTSPAuth:
    """Let only a viewer with that login have the camera, or any viewer without one."""
    permissions = GstRtspServer.RTSPPermissions()
    for permission in ("media.factory.access", "media.factory.construct"):
        permissions.add_permission_for_role("viewer", permission, True)
    factory.set_permissions(permissions)
    viewer = GstRtspServer.RTSPToken()
    viewer.set_string("media.factory.role", "viewer")
    auth = GstRtspServer.RTSPAuth()
    if login == "-":
        auth.set_default_token(viewer)
    else:
        auth.set_supported_methods(GstRtsp.RTSPAuthMethod.DIGEST)
        auth.add_digest(*login.split(":"), viewer)
    if certificate != "-":
        auth.set_tls_certificate(Gio.TlsCertificate.new_from_file(certificate))
    return auth


if __name__ == "__main__":
    main(*sys.argv[1:])
