"""Exchange formats: one room for each dataset of another library, with its reading and its writing.

A room uses `writers/importing` and `readers/exporting`, which have the drivers and what formats share. Begin
with `d4rl.py`; a format of some size is a package with `reading.py` and `writing.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..store.common.exchange import register

if TYPE_CHECKING:
    import polars as pl

#: The objects that recognise and open sources, in the order in which they are tried.
_SOURCES = {
    "minari": "minari.reading:FORMAT",
    "d4rl": "d4rl:FORMAT",
    "d3rlpy": "d3rlpy:FORMAT",
    "robomimic": "robomimic:FORMAT",
    "tianshou": "tianshou:FORMAT",
    "sb3": "sb3:FORMAT",
    "torchrl": "torchrl.reading:FORMAT",
    "imitation": "imitation.trajectories:FORMAT",
    "ogbench": "ogbench:FORMAT",
    "dopamine": "dopamine.reading:FORMAT",
    "lerobot": "lerobot.reading:FORMAT",
    "rlds": "rlds.reading:FORMAT",
    "rllib": "rllib.reading:FORMAT",
    "table": "table.reading:FORMAT",
}
#: The functions that write targets.
_TARGETS = {
    "minari": "minari.writing:write_minari",
    "d4rl": "d4rl:write_d4rl",
    "d3rlpy": "d3rlpy:write_d3rlpy",
    "robomimic": "robomimic:write_robomimic",
    "parquet": "table.writing:write_parquet",
    "csv": "table.writing:write_csv",
    "huggingface": "huggingface.writing:write_huggingface",
    "lerobot": "lerobot.writing:write_lerobot",
    "rlds": "rlds.writing:write_rlds",
    "rllib": "rllib.writing:write_rllib",
    "rerun": "rerun:write_rerun",
    "webdataset": "webdataset:write_webdataset",
}
#: The functions of `view.to`.
_CONVERSIONS = {
    "d3rlpy": "d3rlpy:to_d3rlpy",
    "huggingface": "huggingface.writing:to_huggingface",
    "imitation": "imitation.trajectories:to_imitation",
    "minari": "minari.writing:to_minari",
    "rllib": "rllib.writing:to_rllib",
    "sb3": "sb3:to_sb3",
    "tianshou": "tianshou:to_tianshou",
    "torchrl": "torchrl.in_memory:to_torchrl",
}


def register_formats() -> None:
    """Register the formats of the library; nothing of them is imported."""
    register("open", _full(_SOURCES))
    register("write", _full(_TARGETS))
    register("convert", _full(_CONVERSIONS))


def _full(places: dict[str, str]) -> dict[str, str]:
    return {name: f"{__name__}.{place}" for name, place in places.items()}


def formats() -> pl.DataFrame:
    """Return the formats of `import_dataset` and `EpisodeView.export`.

    Returns:
        One row for each format: `name`; `reads` and `writes`, bool; `extra`, what to install for it, or
        null; `rule`, how a source of this format is recognised; `options`, of the export; `import_options`,
        those of `import_dataset` that only some formats take.
    """
    import polars as pl

    from ..readers.exporting.export import target_formats
    from ..writers.importing.formats import OPTIONAL, TABLES, source_formats

    sources, targets = source_formats(), target_formats()
    rows = []
    for name in sorted({*sources, *targets}):
        source, target = sources.get(name), targets.get(name)
        either = source or target
        assert either is not None
        read = source or (sources["table"] if name in TABLES else None)
        rows.append(
            {
                "name": name,
                "reads": read is not None,
                "writes": target is not None,
                "extra": either.extra,
                "rule": source.rule if source is not None else "as table" if name in TABLES else None,
                "options": ", ".join(target.options) if target is not None else None,
                "import_options": ", ".join(getattr(read, "options", OPTIONAL)) if read is not None else None,
            }
        )
    schema = {"name": pl.String, "reads": pl.Boolean, "writes": pl.Boolean}
    texts = {name: pl.String for name in ("extra", "rule", "options", "import_options")}
    return pl.DataFrame(rows, schema={**schema, **texts}, orient="row")
