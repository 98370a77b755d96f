"""Form of the address of an ONVIF camera."""

from __future__ import annotations

from stream.sources.address import scheme_of


def is_onvif(address: str) -> bool:
    """Return True for an address of an ONVIF camera."""
    return scheme_of(address) in ("onvif", "onvifs")
