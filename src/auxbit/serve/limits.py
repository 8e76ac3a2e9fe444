"""How much one request may ask for."""

from __future__ import annotations

from dataclasses import dataclass

MAX_K = 200
MAX_ITEMS = 500  # of one page of a listing
MAX_RANKED = 10_000  # within a radius, that are ranked by another distance than Hamming's
MULTIPART_BYTES = 64 * 1024  # what a form may have around its file


@dataclass(frozen=True)
class Limits:
    """Bytes and pixels of an upload; bytes of any other body; uploads remembered; seconds for a body."""

    upload_bytes: int = 20_000_000
    upload_pixels: int = 50_000_000
    body_bytes: int = 4_000_000
    uploads: int = 256
    uploads_bytes: int = 64 * 2**20
    body_seconds: float = 120.0
