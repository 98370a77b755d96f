"""Polygons for masks and zones."""

from __future__ import annotations

from arr_coc.texture.polygons import Polygon


def box_polygon(box: tuple[float, float, float, float]) -> Polygon:
    """Return the corners of a box (left, top, right, bottom)."""
    left, top, right, bottom = box
    return (left, top), (right, top), (right, bottom), (left, bottom)
