"""`Video`: how the frames of a column are encoded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..common.arguments import expect, flag, whole_number
from ..errors import InvalidArgumentError

#: By codec: the default of `crf`, and the largest.
CODECS: dict[str, tuple[int, int]] = {"h264": (23, 51), "hevc": (28, 51), "av1": (35, 63)}
#: In `store.json`, the codec of lossless frames.
LOSSLESS = "lossless"
#: A chunk counts its frames in 16 bits, and a reader of one frame decodes those before it.
LONGEST_GOP = 1024


@dataclass(frozen=True)
class Video:
    """How the frames of a camera column are encoded in a store; for `create(encodings=...)`.

    Args:
        codec: "h264", "hevc" or "av1". h264 encodes and decodes fastest on most machines. av1 has the best
            picture for its size, and takes two to three times as long to encode.
        crf: the quality; smaller numbers are better and larger. 0 to 51, for av1 0 to 63; None for 23 (h264),
            28 (hevc) or 35 (av1).
        gop: frames from one keyframe to the next, 1 to 1024. Random access to one frame decodes up to so
            many; longer groups are smaller.
        lossless: keep each frame exactly; takes no codec, crf or gop.

    Raises:
        InvalidArgumentError: an unknown codec, a number out of range, or options that do not go together.
    """

    codec: str | None = None
    crf: int | None = None
    gop: int | None = None
    lossless: bool = False

    def __post_init__(self) -> None:
        """Check the options and fill in the defaults."""
        if flag("lossless", self.lossless):
            if (self.codec, self.crf, self.gop) != (None, None, None):
                raise InvalidArgumentError(
                    f"{self!r}: lossless frames take no codec, crf or gop. Expected Video(lossless=True), or "
                    "a codec without lossless."
                )
            return
        codec = "h264" if self.codec is None else self.codec
        expect(isinstance(codec, str) and codec in CODECS, "codec", codec, f"one of {', '.join(CODECS)}")
        default, worst = CODECS[codec]
        crf = default if self.crf is None else whole_number("crf", self.crf, 0)
        gop = 16 if self.gop is None else whole_number("gop", self.gop, 1)
        for name, given, most in (("crf", crf, worst), ("gop", gop, LONGEST_GOP)):
            if given > most:
                raise InvalidArgumentError(
                    f"{name}={given}: expected a {name} of at most {most} for {codec}."
                )
        for name, value in (("codec", codec), ("crf", crf), ("gop", gop)):
            object.__setattr__(self, name, value)

    def to_json(self) -> dict[str, Any]:
        """Return what `store.json` says."""
        if self.lossless:
            return {"codec": LOSSLESS}
        return {"codec": self.codec, "crf": self.crf, "gop": self.gop}

    @staticmethod
    def from_json(content: Mapping[str, Any]) -> Video:
        """Return the encoding that `store.json` names.

        Raises:
            ValueError: it names none that this version knows.
        """
        if content["codec"] == LOSSLESS:
            return Video(lossless=True)
        options = content["codec"], content["crf"], content["gop"]
        if None in options:
            raise ValueError(f"an encoding lacks its codec, crf or gop: {options}")
        try:
            return Video(*options)
        except InvalidArgumentError as error:
            raise ValueError(str(error)) from error
