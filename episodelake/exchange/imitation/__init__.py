"""imitation: `reading.py` over the forms of `forms.py`, and `in_memory.py` (`view.to`)."""
