"""Row buffers between recorders and the journal."""
