"""TorchRL: `reading.py` (TensorDicts, buffers, folders) and `in_memory.py` (`view.to`)."""
