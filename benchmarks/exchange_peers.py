"""Import and export beside what other libraries do with the same episodes.

Their side is not the same work, since their objects are in memory: Minari and d3rlpy write from arrays, where
ours reads a store first, and they read into objects, where ours writes a store.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import exchange
from measure import Row, interleave, scaled
from peer_process import D3RLPY, Peer
from setting import FORMATS, Setting, create, write_all
from trajectories import control

WORK = ", 17 floats, episodes of 200"


def run(setting: Setting) -> list[Row]:
    """Measure Minari's and d3rlpy's own ways beside ours."""
    data = control(episodes=setting.choose(500, 20), length=200)
    store = setting.fresh("exchanged-peers")
    write_all(create(store, data.kind), data)
    arrays = str(data.save(setting.folder / "exchange-arrays"))
    forms = {form.name: form for form in exchange.FORMS}
    d3rlpy = Peer(setting.environments, setting.folder, D3RLPY)
    rows: list[Row] = []
    try:
        for kind in FORMATS:
            form = forms["minari" if kind == "hdf5" else f"minari {kind}"]
            names = {"arrays": arrays, "dataset": f"exchange-{kind}-v0", "data_format": kind}
            write = partial(setting.minari.ask, "build", **names)
            read = partial(setting.minari.ask, "iterate", dataset=names["dataset"])
            theirs = ("Minari create_dataset_from_buffers", write), ("Minari iterate_episodes", read)
            rows += _rows(setting, form, data, store, *theirs)
        write, read = (partial(d3rlpy.ask, do, arrays=arrays) for do in ("dump", "load"))
        theirs = ("d3rlpy ReplayBuffer.dump", write), ("d3rlpy ReplayBuffer.load", read)
        rows += _rows(setting, forms["d3rlpy"], data, store, *theirs)
    finally:
        d3rlpy.close()
    return rows


def _rows(
    setting: Setting,
    form: exchange.Form,
    data: Any,
    store: Any,
    writer: tuple[str, Callable[[], Any]],
    reader: tuple[str, Callable[[], Any]],
) -> list[Row]:
    target = setting.fresh(f"exported{form.suffix}")
    rows = []
    for work, ours, (name, theirs) in (
        ("export", partial(exchange.export_to, form, store, target, data), writer),
        ("import", partial(exchange.import_from, setting, form, target, data), reader),
    ):
        sides: dict[str, Callable[[], float]] = {
            "ours": lambda ours=ours: exchange.cost(ours)[0],
            "theirs": lambda theirs=theirs: theirs()["seconds"],
        }
        measured = interleave(sides, setting.repeats)
        both = [scaled(measured[side], 1e6 / data.steps) for side in ("ours", "theirs")]
        rows.append(Row(f"{work} {form.name}{WORK}", "us/step", both[0], name, both[1]))
    return rows
