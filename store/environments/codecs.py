"""Arguments of environments and wrappers as JSON or as contents of artifacts, and back, without pickle.

Plain values and arrays are tagged JSON, as infos are (see `dynamic.values`). Four more objects may represent
a whole argument: a kept file, a value that is in one, a numpy dtype and a space. Anything else is an
`OpaqueValue`, arrays of other libraries too: an environment would get another type back. Decoding builds
values only; it never imports or runs anything that the text names.

Data frames of Polars and pandas become Parquet; arrays and containers that are too large for the spec become
npy and JSON. Users register codecs for classes of their own.
"""

from __future__ import annotations

import io
import json
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import gymnasium
import numpy as np
import polars as pl

from ..common.arguments import expect
from ..dynamic.values import OpaqueValue, dump_json, freeze_value, load_json
from ..errors import CorruptStoreError, EnvUnavailableError, EpisodelakeError, InvalidArgumentError
from ..spaces import space_from_json, space_to_json

_FILE, _DTYPE, _SPACE, _CODED = "$file", "$dtype", "$space", "$coded"
_LONGEST = 1 << 20
_SHOWN = 1000
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_-]{0,48}[A-Za-z0-9])?")


@dataclass(frozen=True)
class CodedValue:
    """An argument whose value is the content of a kept file.

    Attributes:
        codec: the codec's name; see `codecs`.
        path: the file, once it is unpacked.
    """

    codec: str
    path: Path


def encode_argument(value: Any) -> Any:
    """Return an argument as plain JSON; what is too long or cannot be kept becomes its type and printed
    form.
    """
    if isinstance(value, type) and issubclass(value, np.generic):
        value = np.dtype(value)
    if isinstance(value, np.dtype) and value.names is None and not value.hasobject:
        return {_DTYPE: value.str}
    if isinstance(value, gymnasium.Space):
        try:
            return {_SPACE: space_to_json(value)}
        except EpisodelakeError:
            return encode_opaque(value)
    if isinstance(value, np.ndarray) and value.nbytes > _LONGEST:
        return encode_opaque(value)
    text = dump_json(freeze_value(value, convert=False))
    return json.loads(text) if len(text) <= _LONGEST else encode_opaque(value)


def encode_file(name: str, given: Literal["str", "path"]) -> dict[str, Any]:
    """Return an argument that is the path of a kept file, given as text or as a `pathlib.Path`."""
    return {_FILE: [name, given]}


def encode_coded(codec: str, name: str) -> dict[str, Any]:
    """Return an argument whose value is the content of a kept file."""
    return {_CODED: [codec, name]}


def is_opaque(encoded: Any) -> bool:
    """Return whether an encoded argument cannot be read back completely."""
    return isinstance(encoded, dict) and list(encoded) == ["$object"]


def encode_opaque(value: Any) -> Any:
    """Return an argument that cannot be kept, as its type and printed form."""
    large = isinstance(value, np.ndarray) and value.nbytes > _LONGEST
    frozen = None if large else freeze_value(value, convert=False)
    if not isinstance(frozen, OpaqueValue):
        kind = type(value)
        text = f"{str(value)[:_SHOWN]}..."
        frozen = OpaqueValue(f"{kind.__module__}.{kind.__qualname__}", text)
    return json.loads(dump_json(OpaqueValue(frozen.type_name, frozen.text[:_SHOWN])))


def decode_argument(value: Any, where: str, file: Callable[[str], Path]) -> Any:
    """Read an argument back.

    Args:
        value: JSON, from anywhere.
        where: named in errors.
        file: gives the path of a kept file, and raises a KeyError for others.

    Raises:
        CorruptStoreError: it is no argument that was encoded so.
    """
    try:
        match value:
            case {"$file": [str(name), "str" | "path" as given]} if len(value) == 1:
                return str(file(name)) if given == "str" else file(name)
            case {"$coded": [str(codec), str(name)]} if len(value) == 1:
                return CodedValue(codec, file(name))
            case {"$dtype": str(code)} if len(value) == 1:
                return _dtype(code, where)
            case {"$space": dict(space)} if len(value) == 1:
                return space_from_json(space, where)
        return load_json(json.dumps(value), where)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        if isinstance(error, EpisodelakeError):
            raise
        raise CorruptStoreError(f"{where} has an argument that cannot be read back: {error!r}.") from error


def _dtype(code: str, where: str) -> np.dtype:
    # Numpy takes whole expressions for a dtype, so it is found by what numpy itself writes.
    return load_json(json.dumps({"$array": [code, [0], ""]}), where).dtype


def opaque_parts(value: Any) -> list[OpaqueValue]:
    """Return the parts of a decoded argument that could not be kept."""
    return [leaf for leaf in _leaves(value) if isinstance(leaf, OpaqueValue)]


def texts(value: Any) -> list[str]:
    """Return all texts in a decoded argument, bytes among them."""
    plain = (leaf.tolist() if isinstance(leaf, np.ndarray) else leaf for leaf in _leaves(value))
    leaves = [leaf for each in plain for leaf in _leaves(each) if isinstance(leaf, str | bytes)]
    return [leaf if isinstance(leaf, str) else leaf.decode("latin-1") for leaf in leaves]


def _leaves(value: Any) -> Iterator[Any]:
    """Yield the keys and values of nested containers that are no containers themselves."""
    if isinstance(value, dict):
        value = [each for item in value.items() for each in item]
    if isinstance(value, list | tuple | set | frozenset):
        for each in value:
            yield from _leaves(each)
    else:
        yield value


@dataclass(frozen=True)
class _Codec:
    """Functions from a value to bytes and back.

    Attributes:
        same: whether a decoded value equals the original; None for codecs of users.
    """

    encode: Callable[[Any], bytes]
    decode: Callable[[bytes], Any]
    same: Callable[[Any, Any], bool] | None = None


def _polars_bytes(frame: pl.DataFrame) -> bytes:
    target = io.BytesIO()
    frame.write_parquet(target)
    return target.getvalue()


def _same_polars(one: pl.DataFrame, other: pl.DataFrame) -> bool:
    return one.schema == other.schema and one.equals(other)


def _pandas_bytes(frame: Any) -> bytes:
    target = io.BytesIO()
    frame.to_parquet(target, engine="pyarrow", index=True)
    return target.getvalue()


def _pandas_frame(data: bytes) -> Any:
    import pandas

    return pandas.read_parquet(io.BytesIO(data), engine="pyarrow")


def _same_pandas(one: Any, other: Any) -> bool:
    import pandas

    # Parquet has no frequency of an index.
    pandas.testing.assert_frame_equal(one, other, check_exact=True, check_freq=False)
    return True


def _array_bytes(array: np.ndarray) -> bytes:
    target = io.BytesIO()
    np.save(target, array, allow_pickle=False)
    return target.getvalue()


def _array(data: bytes) -> np.ndarray:
    return np.load(io.BytesIO(data), allow_pickle=False)


def _same_arrays(one: np.ndarray, other: np.ndarray) -> bool:
    return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()


def _json_bytes(value: Any) -> bytes:
    frozen = freeze_value(value, convert=False)
    if opaque_parts(frozen):
        raise TypeError("it has values that JSON cannot hold")
    return dump_json(frozen).encode()


def _json_value(data: bytes) -> Any:
    return load_json(data.decode(), "An argument of an environment")


_BUILT_IN = {
    "polars": _Codec(_polars_bytes, pl.read_parquet, _same_polars),
    "pandas": _Codec(_pandas_bytes, _pandas_frame, _same_pandas),
    "npy": _Codec(_array_bytes, _array, _same_arrays),
    "json": _Codec(_json_bytes, _json_value, lambda one, other: True),
}
_registered: dict[str, tuple[type, _Codec]] = {}


def register_artifact_codec(
    kind: type, name: str, encode: Callable[[Any], bytes], decode: Callable[[bytes], Any]
) -> None:
    """Keep constructor arguments of a class with runs and saved environments, for the rest of this process.

    The argument of an environment or a wrapper whose class is exactly `kind` becomes an artifact, and
    `make_env(trust=True)` decodes it. Registering a name again replaces its codec.

    Args:
        kind: the class.
        name: names the codec in the store: up to 50 letters, digits, dashes and underscores.
        encode: returns the bytes of a value; what it raises becomes a warning, and the value is not kept.
        decode: returns the value of bytes, which come from the store: do not unpickle them.

    Raises:
        InvalidArgumentError: an argument is not valid, or the codec belongs to the library.
    """
    if not isinstance(kind, type) or not callable(encode) or not callable(decode):
        raise InvalidArgumentError(
            f"Cannot register a codec for {kind!r}: expected a class, a name and two functions."
        )
    expected = f"up to 50 letters, digits, dashes and underscores, and none of {', '.join(_BUILT_IN)}"
    expect(isinstance(name, str) and _NAME.fullmatch(name) and name not in _BUILT_IN, "name", name, expected)
    _registered[name] = (kind, _Codec(encode, decode))


def encode_content(value: Any, *, large: bool) -> tuple[str, bytes] | None:
    """Return the codec and the bytes of an argument; None if no codec keeps it without a loss.

    Args:
        value: the argument.
        large: whether it is too large for the spec, or of a type that the spec cannot hold.
    """
    name = _codec_of(value, large=large)
    if name is None:
        return None
    codec = _find(name)
    try:
        data = codec.encode(value)
        if not isinstance(data, bytes):
            raise TypeError(f"encode gave {type(data).__name__}; expected bytes")
        if codec.same is not None and not codec.same(value, codec.decode(data)):
            raise ValueError("it would come back as another value")
    except Exception as error:  # codecs and the values of users may raise anything
        problem = str(error).strip().partition("\n")[0][:300]
        warnings.warn(
            f"An argument of the environment, a {type(value).__name__}, is not kept: the codec {name!r} "
            f"failed ({type(error).__name__}: {problem}).",
            RuntimeWarning,
            stacklevel=2,
        )
        return None
    return name, data


def _codec_of(value: Any, *, large: bool) -> str | None:
    """Return the codec for exactly the class of a value: a subclass may have more to keep."""
    kind = type(value)
    for name, (registered, _) in reversed(_registered.items()):
        if kind is registered:
            return name
    if kind is pl.DataFrame:
        return "polars"
    if kind is getattr(sys.modules.get("pandas"), "DataFrame", None):
        return "pandas"
    if large and kind is np.ndarray and not value.dtype.hasobject:
        return "npy"
    return (
        "json"
        if large and kind in (dict, list, tuple) and not opaque_parts(freeze_value(value, convert=False))
        else None
    )


def _find(name: str) -> _Codec:
    return _BUILT_IN[name] if name in _BUILT_IN else _registered[name][1]


def is_codec(name: str) -> bool:
    """Return whether there is a codec of a name in this process."""
    return name in _BUILT_IN or name in _registered


def decode_contents(arguments: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return arguments with the values of those that were kept as artifacts; runs codecs of the user.

    Raises:
        CorruptStoreError: the content is none of a codec of the library.
        EnvUnavailableError: a codec of the user failed, or a package is missing.
    """
    return {
        name: _decoded(value, f"{where}: the argument {name!r}") if isinstance(value, CodedValue) else value
        for name, value in arguments.items()
    }


def _decoded(value: CodedValue, where: str) -> Any:
    try:
        return _find(value.codec).decode(Path(value.path).read_bytes())
    except Exception as error:  # codecs of users and parsers of others may raise anything
        problem = f"{where} cannot be decoded ({value.codec}): {type(error).__name__}: {str(error)[:300]}"
        if isinstance(error, ImportError) or value.codec not in _BUILT_IN:
            raise EnvUnavailableError(f"{problem}. Install what is missing, or correct the codec.") from error
        raise CorruptStoreError(f"{problem}. Restore the artifact from a copy.") from error
