"""Where a store's files lie: a folder of this machine, or an object store.

    place.py    `Place`, what the rest of the library needs of a file or folder, and `locate`
    local.py    a path of the file system
    memory.py   `memory://name`: a folder in memory that ends with the process
    remote.py   `s3://`, `gs://`, `az://`, by obstore

Everything above this package speaks of places only; the journal alone is always local.
"""

from .place import Entry, Place, locate

__all__ = ["Entry", "Place", "locate"]
