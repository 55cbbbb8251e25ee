"""Frames of cameras as video: what a column is encoded with, and the cells that hold it."""

from .encoded import EncodedFrames
from .encoding import Video
from .images import ImageShape
from .video_column import (
    DamagedFramesError,
    VideoColumn,
    chunk_starts,
    decode_cells,
    decode_frames,
    encoded_tables,
    has_chunks,
    naming_frames,
    whole_chunks,
)

__all__ = [
    "DamagedFramesError",
    "EncodedFrames",
    "ImageShape",
    "Video",
    "VideoColumn",
    "chunk_starts",
    "decode_cells",
    "decode_frames",
    "encoded_tables",
    "has_chunks",
    "naming_frames",
    "whole_chunks",
]
