"""A message of a rollout as own columns of its step, and back.

A message is a mapping in OpenAI's form: `role`, `content`, and what the role needs. Parts that queries ask
for have columns of their own; whatever does not fit one exactly is in `rest`, so that reading gives back an
equal mapping.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import InvalidArgumentError
from ..plugin import dump_json, freeze_value, load_json
from ..types import OpaqueValue

ROLE, CONTENT, PARTS, REST = "role", "content", "parts", "rest"
#: Whether the model sampled the message, where its role does not say so. The action says it as well, but the
#: last message of a rollout that was cut has no action.
SAMPLED = "sampled"
#: Texts of a message that have a column of the same name, and the key of the message.
_TEXTS = {
    CONTENT: "content",
    "name": "name",
    "reasoning": "reasoning_content",
    "tool_call_id": "tool_call_id",
}
_DUMP = "A message of pydantic becomes a mapping by message.model_dump(exclude_none=True)."
TOOL_IDS, TOOL_NAMES, TOOL_ARGUMENTS = "tool_ids", "tool_names", "tool_arguments"
#: All own columns of a message.
COLUMNS = (ROLE, *_TEXTS, PARTS, TOOL_IDS, TOOL_NAMES, TOOL_ARGUMENTS, REST)


def columns_of(message: Any, place: str) -> dict[str, Any]:
    """Return the columns of a message; what it lacks is absent.

    Args:
        message: a mapping with a text `role`.
        place: names the message in errors, such as "message 3".

    Raises:
        InvalidArgumentError: it is no mapping, or its role is no text.
    """
    if not isinstance(message, Mapping):
        raise InvalidArgumentError(
            f"{place} is {type(message).__name__}; expected a mapping such as "
            "{'role': 'user', 'content': 'Hello'}.",
            hint=_DUMP if hasattr(message, "model_dump") else "",
        )
    role = message.get("role")
    if not isinstance(role, str):
        keys = ", ".join(map(repr, message)) or "nothing"
        raise InvalidArgumentError(f"{place}: role is {role!r:.100}; expected a text. It has {keys:.300}.")
    if not is_unicode(role):
        raise InvalidArgumentError(f"{place}: role is {role!r:.100}, which no column can hold as text.")
    rest = dict(message)
    del rest["role"]
    columns: dict[str, Any] = {ROLE: role}
    for column, key in _TEXTS.items():
        if isinstance(rest.get(key), str):
            columns[column] = rest.pop(key)
    if isinstance(rest.get("content"), list):
        columns[PARTS] = _json(rest.pop("content"), place, "content")
    calls = rest.get("tool_calls")
    if isinstance(calls, list) and calls:
        if all(map(_is_plain, calls)):
            del rest["tool_calls"]
            columns[TOOL_IDS] = [call["id"] for call in calls]
            columns[TOOL_ARGUMENTS] = [call["function"]["arguments"] for call in calls]
        names = list(map(name_of, calls))
        if None not in names:
            columns[TOOL_NAMES] = names
    if rest:
        columns[REST] = _json(rest, place, "a value")
    return columns


def message_of(columns: Mapping[str, Any]) -> dict[str, Any]:
    """Return the message that `columns_of` gave these columns; further columns are passed over."""
    message: dict[str, Any] = {"role": columns[ROLE]}
    for column, key in _TEXTS.items():
        if columns.get(column) is not None:
            message[key] = columns[column]
    if columns.get(PARTS) is not None:
        message["content"] = load_json(columns[PARTS], "The content of a message")
    if columns.get(TOOL_IDS) is not None:
        calls = zip(columns[TOOL_IDS], columns[TOOL_NAMES], columns[TOOL_ARGUMENTS], strict=True)
        message["tool_calls"] = [
            {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}
            for id, name, arguments in calls
        ]
    if columns.get(REST) is not None:
        message |= load_json(columns[REST], "The rest of a message")
    return message


def _json(value: Any, place: str, name: str) -> str:
    try:
        frozen = freeze_value(value)
        text = dump_json(frozen)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidArgumentError(f"{place}: {name} cannot be kept: {error}") from error
    opaque = _opaque(frozen)
    if opaque is not None:
        raise InvalidArgumentError(
            f"{place}: {name} has {opaque.text:.100}, which is no value of JSON, or is nested too deeply.",
            hint=_DUMP,
        )
    return text


def _opaque(frozen: Any) -> OpaqueValue | None:
    """Return an object of a frozen value that only has its printed form; None if there is none."""
    if isinstance(frozen, OpaqueValue):
        return frozen
    if isinstance(frozen, dict):
        return _opaque([*frozen, *frozen.values()])
    if isinstance(frozen, list | tuple | frozenset):
        return next((opaque for each in frozen if (opaque := _opaque(each)) is not None), None)
    return None


def _is_plain(call: Any) -> bool:
    """Return whether a tool call has exactly the keys of OpenAI's form, all of them texts."""
    if not isinstance(call, Mapping) or set(call) != {"id", "type", "function"} or call["type"] != "function":
        return False
    function = call["function"]
    return (
        isinstance(call["id"], str)
        and isinstance(function, Mapping)
        and set(function) == {"name", "arguments"}
        and all(isinstance(value, str) for value in function.values())
    )


def name_of(call: Any) -> str | None:
    """Return the name of a called tool: also where the call has another form than OpenAI's."""
    if not isinstance(call, Mapping):
        return None
    function = call.get("function", call)
    name = function.get("name") if isinstance(function, Mapping) else None
    return name if isinstance(name, str) else None


def is_models(role: str) -> bool:
    """Return whether the model sampled a message of this role, unless the writer says otherwise."""
    return role == "assistant"


def is_unicode(text: str) -> bool:
    """Return whether a column can hold a text: it has no lone surrogates."""
    return not any("\ud800" <= each <= "\udfff" for each in text)
