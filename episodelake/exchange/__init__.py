"""Exchange formats: one room for each dataset of another library, with its reading and its writing.

Formats are entry points in `pyproject.toml`, as those of other packages are in theirs. They use
`episodelake.plugin`, and of `writers/importing` and `readers/exporting` what formats share. Begin with
`d4rl.py`; a format of some size is a package with `reading.py` and `writing.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import polars as pl


def formats() -> pl.DataFrame:
    """Return the formats of `import_dataset` and `EpisodeView.export`.

    Returns:
        One row for each format: `name`; `reads` and `writes`, bool; `extra`, what to install for it, or
        null; `rule`, how a source of this format is recognised; `options`, of the export; `import_options`,
        those of `import_dataset` that only some formats take.
    """
    import polars as pl

    from ..readers.exporting.export import target_formats
    from ..store.common.exchange import formats as registered
    from ..writers.importing.formats import OPTIONAL

    sources, targets = registered("sources"), target_formats()
    rows = []
    for name in sorted({*sources, *targets}):
        source, target = sources.get(name), targets.get(name)
        alias = source is not None and source.name != name
        either = target if alias and target is not None else source or target
        assert either is not None
        rows.append(
            {
                "name": name,
                "reads": source is not None,
                "writes": target is not None,
                "extra": either.extra,
                "rule": None if source is None else f"as {source.name}" if alias else source.rule,
                "options": ", ".join(target.options) if target is not None else None,
                "import_options": ", ".join(getattr(source, "options", OPTIONAL)) if source else None,
            }
        )
    schema = {"name": pl.String, "reads": pl.Boolean, "writes": pl.Boolean}
    texts = {name: pl.String for name in ("extra", "rule", "options", "import_options")}
    return pl.DataFrame(rows, schema={**schema, **texts}, orient="row")
