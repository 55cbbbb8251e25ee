"""Everything that fills a store."""
