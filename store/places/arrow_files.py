"""pyarrow's own file systems for object stores, made from the same `storage_options`.

Arrow datasets read through them in threads of their own. A file system written in Python would be called from
these threads; it deadlocks against the interpreter's lock now and then.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import pyarrow.fs

from ..errors import InvalidArgumentError

_PREFIXES = ("aws_", "google_", "azure_storage_", "azure_")
_S3_NAMES = {
    "access_key_id": "access_key",
    "secret_access_key": "secret_key",
    "session_token": "session_token",
    "token": "session_token",
    "region": "region",
    "default_region": "region",
}
_AZURE_NAMES = {"account_name": "account_name", "account_key": "account_key", "sas_token": "sas_token"}
#: Options of other parts than the credentials; these file systems have their own settings for them.
_PASSED_OVER = frozenset(
    {
        "allow_http",
        "conditional_put",
        "connect_timeout",
        "endpoint",
        "endpoint_url",
        "max_retries",
        "retry_timeout",
        "skip_signature",
        "timeout",
        "virtual_hosted_style_request",
    }
)


def arrow_files(url: str, options: Mapping[str, str]) -> tuple[pyarrow.fs.FileSystem, str]:
    """The file system behind a URL, and the URL's path in it.

    Args:
        url: `s3://`, `gs://`, `az://` or `abfs://`.
        options: `storage_options`, keys in lower case; what is left out comes from the environment.

    Raises:
        InvalidArgumentError: an option has no counterpart.
    """
    scheme, _, path = url.partition("://")
    bare = {_bare(name): value for name, value in options.items()}
    if scheme in ("s3", "s3a"):
        return _s3(bare), path
    if scheme == "gs":
        _check(bare, {})
        return pyarrow.fs.GcsFileSystem(anonymous=bare.get("skip_signature") == "true"), path
    return pyarrow.fs.AzureFileSystem(**_renamed(bare, _AZURE_NAMES)), path


def _bare(name: str) -> str:
    for prefix in _PREFIXES:
        if name.startswith(prefix):
            return name.removeprefix(prefix)
    return name


def _s3(options: Mapping[str, str]) -> pyarrow.fs.FileSystem:
    settings = _renamed(options, _S3_NAMES)
    endpoint = options.get("endpoint_url") or options.get("endpoint")
    if endpoint:
        parts = urlsplit(endpoint if "://" in endpoint else f"https://{endpoint}")
        settings |= {"endpoint_override": parts.netloc, "scheme": parts.scheme}
    if options.get("skip_signature") == "true":
        settings["anonymous"] = True
    return pyarrow.fs.S3FileSystem(**settings)


def _renamed(options: Mapping[str, str], names: Mapping[str, str]) -> dict[str, Any]:
    _check(options, names)
    return {names[name]: value for name, value in options.items() if name in names}


def _check(options: Mapping[str, str], names: Mapping[str, str]) -> None:
    unknown = sorted(set(options) - set(names) - _PASSED_OVER)
    if unknown:
        raise InvalidArgumentError(
            f"SQL cannot reach this store with the storage option {unknown[0]!r}. Give the setting through "
            "the environment instead, or read with Polars: episodes, steps and filter take every option."
        )
