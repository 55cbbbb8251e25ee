"""Trigger pyarrow's lookup of pandas early."""

from __future__ import annotations

import numpy as np
import pyarrow as pa


def make_first_array() -> None:
    """Have pyarrow look for pandas now, which takes half a second where it is installed.

    It does so when it makes its first array. In a thread that writes a journal, the first steps would reach
    the disk late; beside a thread that draws, Altair would meet a pandas of which only a part is loaded.
    """
    pa.array(np.empty(0))
