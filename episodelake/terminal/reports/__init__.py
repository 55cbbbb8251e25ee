"""Reports that commands print: stores, episodes, columns and differences."""
