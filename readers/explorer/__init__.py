"""The explorer: a page that shows the episodes of a store, on this machine alone.

`listing`, `moments`, `queries`, `exports` and `watching` are plain Python over a view and know no page; `charts` makes
specifications of charts fit for the page; `gate` and `server` let the page's owner in and nobody else; the modules
called `page` and `..._pane` lay it out with NiceGUI, which only they and `server` import.
"""
