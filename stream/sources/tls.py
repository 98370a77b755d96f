"""Checks of the certificates of video servers: which servers are checked, against which authorities, and advice.

FFmpeg checks certificates only with `tls_verify` (libavformat 62; its default changes with 63), and never for the
segments of an HLS or DASH playlist.
"""

from __future__ import annotations

import importlib.util
import os
import socket
import ssl
import sys
import time
from urllib.parse import urlsplit

from stream.config import CaptureConfig
from stream.errors import ConfigError

PORTS = {"https": 443, "rtsps": 322, "rtmps": 443, "onvifs": 443}
"""Schemes of addresses over TLS, and their usual ports."""

SIGNED = frozenset({"https", "rtmps"})
"""Schemes of web servers, whose certificates an authority has signed. Cameras usually have self-signed ones."""


def is_checked(scheme: str, config: CaptureConfig) -> bool:
    """Return True if a server's certificate is checked."""
    if config.tls_verify == "auto":
        return scheme in SIGNED or config.ca_file is not None
    return config.tls_verify


def ffmpeg_options(scheme: str, config: CaptureConfig) -> dict[str, str]:
    """Return FFmpeg's options for an address over TLS. Raises ConfigError for an invalid `capture.ca_file`."""
    if scheme not in PORTS:
        return {}
    if not is_checked(scheme, config):
        return {"tls_verify": "0"}
    context_of(scheme, config)
    authorities = config.ca_file or _system_authorities()
    return {"tls_verify": "1"} | ({} if authorities is None else {"ca_file": os.path.expanduser(authorities)})


def context_of(scheme: str, config: CaptureConfig) -> ssl.SSLContext:
    """Return Python's TLS context with the same checks. Raises ConfigError for an invalid `capture.ca_file`."""
    file = config.ca_file
    try:
        context = ssl.create_default_context(cafile=_system_authorities() if file is None else os.path.expanduser(file))
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        raise ConfigError(f"capture.ca_file {file!r} holds no certificate that can be read; give a PEM file") from error
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT  # devices make certificates without every extension
    if not is_checked(scheme, config):
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def problem_of(error: ssl.SSLError) -> tuple[str, str]:
    """Return the reason of a TLS failure, and the remedy."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return (
            f"has a certificate that cannot be trusted: {error.verify_message.rstrip('.')}",
            "name a file with it, or with its signer's, as capture.ca_file, or set capture.tls_verify = false to "
            "accept any certificate",
        )
    return "speaks no TLS there", "check the port, or use the address without the s at the end of its scheme"


def problem_at(address: str, config: CaptureConfig, limit_s: float) -> tuple[str, str] | None:
    """Return the TLS problem of an address that FFmpeg could not open, and the remedy; None for no TLS problem.

    It connects once more, because FFmpeg's error does not contain the reason.
    """
    parts = urlsplit(address)
    if parts.scheme not in PORTS or not parts.hostname:
        return None
    end_s = time.monotonic() + max(limit_s, 1.0)
    try:
        place = parts.hostname, parts.port or PORTS[parts.scheme]
        with socket.create_connection(place, end_s - time.monotonic()) as connection:
            context_of(parts.scheme, config).wrap_socket(connection, server_hostname=parts.hostname).close()
    except ssl.SSLError as error:
        return problem_of(error)
    except OSError:
        return None
    return None


def _system_authorities() -> str | None:
    """Return a file with the system's trusted authorities; None if its libraries have them built in."""
    if sys.platform != "linux":
        return None
    if (file := ssl.get_default_verify_paths().cafile) is not None:
        return file
    if importlib.util.find_spec("certifi") is None:
        return None
    import certifi

    return certifi.where()
