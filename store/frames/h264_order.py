"""The order in which frames of H.264 are shown, from the headers of their slices, without decoding them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

#: No header of interest is longer; emulation prevention bytes counted.
_HEADER_BYTES = 64
#: Profiles whose parameters name the format of the colours.
_HIGH = (44, 83, 86, 100, 110, 118, 122, 128, 134, 135, 138, 139, 244)
#: Before each unit in a stream. A search for the bytes themselves takes three times as long.
START_CODE = re.compile(b"\0\0\1")
_SLICE, _KEY_SLICE, _PARAMETERS, _PICTURE_PARAMETERS = 1, 5, 7, 8
#: Partitioned slices, and those of further layers.
_UNUSUAL = (2, 3, 4, 20, 21)


class _Bits:
    """Bits of a header, which are read from the front; IndexError where they end."""

    def __init__(self, unit: bytes) -> None:
        data = unit[1:_HEADER_BYTES].replace(b"\0\0\3", b"\0\0")
        self._bits = bin(int.from_bytes(b"\1" + data))[3:]
        self._at = 0

    def take(self, count: int) -> int:
        """Return a number of so many bits."""
        start, self._at = self._at, self._at + count
        if self._at > len(self._bits):
            raise IndexError
        return int(self._bits[start : self._at] or "0", 2)

    def number(self) -> int:
        """Return an Exp-Golomb number."""
        zeros = self._bits.find("1", self._at) - self._at
        if zeros < 0:
            raise IndexError
        self._at += zeros
        return self.take(zeros + 1) - 1

    def skip(self, count: int) -> None:
        """Pass over so many Exp-Golomb numbers."""
        at = self._at
        for _ in range(count):
            one = self._bits.find("1", at)
            if one < 0:
                raise IndexError
            at = 2 * one - at + 1
        self._at = at


@dataclass(frozen=True)
class _Parameters:
    """Of a sequence.

    Attributes:
        frame_bits: of the number of a frame in the header of a slice.
        order_bits: of the order that each slice states; None where frames are shown as their packets come.
        planes: whether slices state their plane.
        delayed: how many frames a decoder holds back to bring them in order; None where that is not stated.
    """

    frame_bits: int
    order_bits: int | None
    planes: bool
    delayed: int | None

    @staticmethod
    @lru_cache(16)  # Each group of pictures repeats them.
    def of(unit: bytes) -> _Parameters | None:
        """Return the parameters of a sequence; None where slices may state their order in another way."""
        bits = _Bits(unit)
        profile, _, _ = bits.take(8), bits.take(16), bits.number()
        planes = False
        if profile in _HIGH:
            if bits.number() == 3:
                planes = bool(bits.take(1))
            bits.skip(2)
            bits.take(1)
            if bits.take(1):  # scaling lists
                return None
        frame_bits, kind = bits.number() + 4, bits.number()
        order_bits = bits.number() + 4 if kind == 0 else None
        bits.skip(1)
        bits.take(1)
        bits.skip(2)
        frames_only = bits.take(1)
        if not frames_only or kind == 1:
            return None
        return _Parameters(frame_bits, order_bits, planes, _delayed(bits))


def _delayed(bits: _Bits) -> int | None:
    """Return the field `max_num_reorder_frames`, from the flag `direct_8x8_inference_flag` on (E.1.1)."""
    bits.take(1)
    if bits.take(1):  # cropping
        bits.skip(4)
    if not bits.take(1):
        return None
    if bits.take(1) and bits.take(8) == 255:  # the shape of pixels
        bits.take(32)
    if bits.take(1):  # overscan
        bits.take(1)
    if bits.take(1) and (bits.take(4), bits.take(1))[1]:  # colours
        bits.take(24)
    if bits.take(1):  # the place of colours
        bits.skip(2)
    if bits.take(1):  # times
        bits.take(65)
    buffers = [bits.take(1) and _skip_buffer(bits) for _ in range(2)]
    bits.take(1 + any(buffers))
    if not bits.take(1):
        return None
    bits.take(1)
    bits.skip(4)
    return bits.number()


def _skip_buffer(bits: _Bits) -> bool:
    """Pass over the parameters of a buffer (E.1.2)."""
    count = bits.number() + 1
    bits.take(8)
    for _ in range(count):
        bits.skip(2)
        bits.take(1)
    bits.take(20)
    return True


def shown_order(packets: Iterable[bytes]) -> np.ndarray | None:
    """Return the place at which the frame of each packet is shown, int64; None if only a decoder can tell.

    Args:
        packets: of a closed group of pictures, with start codes; the first has the parameters.
    """
    return order_of_units(START_CODE.split(packet)[1:] for packet in packets)


def order_of_units(packets: Iterable[Sequence[bytes]]) -> np.ndarray | None:
    """Return the same of packets that are split into their units."""
    parameters: _Parameters | None = None
    described: dict[int, bytes] = {}
    orders: list[int] = []
    high = low = 0
    try:
        for number, packet in enumerate(packets):
            for unit in packet:
                kind = unit[0] & 31
                if kind in (_PARAMETERS, _PICTURE_PARAMETERS):
                    stripped = unit.rstrip(b"\0")
                    if described.setdefault(kind, stripped) != stripped:
                        return None
                if kind == _PARAMETERS:
                    parameters = _Parameters.of(unit[:_HEADER_BYTES])
                elif kind in _UNUSUAL or (kind == _KEY_SLICE) != (
                    not number and kind in (_SLICE, _KEY_SLICE)
                ):
                    return None
                elif kind in (_SLICE, _KEY_SLICE) and len(orders) == number:
                    if parameters is None:
                        return None
                    if parameters.order_bits is None:
                        orders.append(number)
                        continue
                    stated = _stated(unit, parameters)
                    full = 1 << parameters.order_bits
                    # The number wraps around; the nearest to that of the last reference is meant.
                    turn = high + (
                        full if low - stated >= full // 2 else -full if stated - low > full // 2 else 0
                    )
                    orders.append(turn + stated)
                    if unit[0] >> 5:
                        high, low = turn, stated
            if len(orders) != number + 1:
                return None
    except IndexError:
        return None
    if len(set(orders)) < len(orders):
        return None
    shown = places(orders)
    delayed = parameters and parameters.delayed
    # A decoder that holds back fewer frames than their order needs leaves some out.
    if delayed is not None and any(number - place > delayed for number, place in enumerate(shown)):
        return None
    return np.array(shown, np.int64)


def places(orders: Sequence[int]) -> list[int]:
    """Return the place of each number, all of which differ, among them."""
    place = {order: number for number, order in enumerate(sorted(orders))}
    return [place[order] for order in orders]


def _stated(unit: bytes, parameters: _Parameters) -> int:
    """Return the order that the header of a slice states."""
    bits = _Bits(unit)
    bits.skip(3)
    bits.take(2 * parameters.planes + parameters.frame_bits)
    if unit[0] & 31 == _KEY_SLICE:
        bits.number()
    assert parameters.order_bits is not None
    return bits.take(parameters.order_bits)
