"""`formats`: what can be imported and exported."""

from __future__ import annotations

import polars as pl

from .readers.exporting.export import target_formats
from .writers.importing.formats import TABLES, source_formats


def formats() -> pl.DataFrame:
    """Return the formats of `import_dataset` and `EpisodeView.export`.

    Returns:
        One row for each format: `name`; `reads` and `writes`, bool; `extra`, what to install for it, or
        null; `rule`, how a source of this format is recognised; `options`, of the export.
    """
    sources, targets = source_formats(), target_formats()
    rows = []
    for name in sorted({*sources, *targets}):
        source, target = sources.get(name), targets.get(name)
        either = source or target
        assert either is not None
        rows.append(
            {
                "name": name,
                "reads": source is not None or name in TABLES,
                "writes": target is not None,
                "extra": either.extra,
                "rule": source.rule if source is not None else "as table" if name in TABLES else None,
                "options": ", ".join(target.options) if target is not None else None,
            }
        )
    schema = {"name": pl.String, "reads": pl.Boolean, "writes": pl.Boolean}
    texts = {name: pl.String for name in ("extra", "rule", "options")}
    return pl.DataFrame(rows, schema={**schema, **texts}, orient="row")
