"""What a line chart shows; the page's script and the figures draw from the same."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A value, and the band around it where there is one."""

    x: float
    y: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """A line."""

    name: str
    points: tuple[Point, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """Lines over one axis."""

    name: str
    """For the file of the figure."""
    title: str
    x: str
    y: str
    series: tuple[Series, ...]
    is_log: bool = False
    """Whether x doubles from tick to tick."""
    is_unit: bool = False
    """Whether both axes go from 0 to 1, with the diagonal drawn."""
