"""The explorer: pages that show the stores of a lake and the episodes of a store, on this machine alone.

`listing`, `moments`, `queries`, `copying` and `live` are plain Python over a view and know no page. `charts`
makes charts fit for the page. `gate` and `server` admit the owner alone. `page`, `lake_page`, `dialogs` and
the panes lay it out with NiceGUI, imported by need.
"""
