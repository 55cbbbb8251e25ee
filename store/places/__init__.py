"""The places of a store's files: a folder of this machine, or an object store.

    place.py    `Place`, what the rest of the library needs of a file or folder
    locating.py `locate`, from a path or a URL to its place
    local.py    a path of the file system
    memory.py   `memory://name`: a folder in memory that ends with the process
    remote.py   `s3://`, `gs://`, `az://`, by obstore

Everything above this package speaks of places only; the journal alone is always local.
"""

from .locating import locate
from .place import Entry, Place, oversized_error

__all__ = ["Entry", "Place", "locate", "oversized_error"]
