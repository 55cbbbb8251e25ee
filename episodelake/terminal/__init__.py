"""The command line `episodelake`: every command opens a store with the public API and writes to a page."""
