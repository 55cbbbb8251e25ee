"""Token ids of a rollout and the numbers that belong to them, message by message.

Of every message a store keeps the ids that it adds to the context (`tokens`, int32), which of them the model
sampled (`token_mask`, left out where it is that of the message: all ids if the model sampled it, else none),
and for each sampled id a log-probability and so on (float32).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import InvalidArgumentError
from ..plugin import freeze_value

TOKENS, MASK, LOGPROBS = "tokens", "mask", "logprobs"
#: The own column of the mask; batches have a `mask` of their own.
TOKEN_MASK = "token_mask"
#: Columns with a number for each sampled token.
PER_SAMPLED: tuple[str, ...] = (LOGPROBS, "reference_logprobs", "advantages", "loss_weights", "token_rewards")
#: All own columns of tokens, and the time of a message.
TOKEN_COLUMNS = (TOKENS, TOKEN_MASK, *PER_SAMPLED, "time")


@dataclass(frozen=True)
class MessageTokens:
    """The tokens of one message.

    Attributes:
        tokens: int32, shape (n,).
        mask: bool, shape (n,): which of them the model sampled.
        numbers: float32, shape (number of sampled tokens,), by column of `PER_SAMPLED`.
    """

    tokens: np.ndarray
    mask: np.ndarray
    numbers: Mapping[str, np.ndarray]

    def columns(self, *, sampled: bool) -> dict[str, Any]:
        """Return the own columns of the message's step.

        Args:
            sampled: whether the model sampled the message.
        """
        mask = {} if (self.mask == sampled).all() else {TOKEN_MASK: self.mask}
        return {TOKENS: self.tokens, **mask, **self.numbers}

    @property
    def sampled(self) -> bool:
        """Whether the model sampled any of them."""
        return bool(self.mask.any())

    @staticmethod
    def of(columns: Mapping[str, Any], *, sampled: bool) -> MessageTokens | None:
        """Return the tokens of a step with such own columns; None if it has none.

        Args:
            columns: of the step.
            sampled: whether the model sampled the message.
        """
        if columns.get(TOKENS) is None:
            return None
        tokens = np.asarray(columns[TOKENS], np.int32)
        numbers = {
            name: np.asarray(columns[name], np.float32)
            for name in PER_SAMPLED
            if columns.get(name) is not None
        }
        mask = columns.get(TOKEN_MASK)
        every = np.full(len(tokens), sampled) if mask is None else np.asarray(mask, bool)
        return MessageTokens(tokens, every, numbers)


@dataclass(frozen=True)
class TokenArguments:
    """The arguments of `write_rollout` about tokens: one array for all messages, or a list by message."""

    tokens: Any = None
    mask: Any = None
    numbers: Mapping[str, Any] | None = None

    def by_message(
        self, sampled: Sequence[bool], vocabulary: int | None, *, line: bool
    ) -> list[MessageTokens | None]:
        """Return the tokens of each message; None for those without.

        Args:
            sampled: whether the model sampled each message.
            vocabulary: how many ids there are; None if that is not known.
            line: whether each message continues the one before.

        Raises:
            InvalidArgumentError: lengths do not go together, ids are no such numbers, or one array for all
                messages cannot be cut: its mask has not one stretch for each sampled message.
        """
        given = {MASK: self.mask, **(self.numbers or {})}
        given = {name: values for name, values in given.items() if values is not None}
        if self.tokens is None:
            return [message_tokens(None, given, own, vocabulary, "the rollout") for own in sampled]
        tokens = _by_message("tokens", self.tokens, len(sampled))
        if tokens is None:
            if not line:
                raise InvalidArgumentError(
                    "tokens is one array for all messages, and the rollout has branches. Give lists with an "
                    "entry for each message."
                )
            return self._cut(given, sampled, vocabulary)
        parts: dict[str, Sequence[Any]] = {}
        for name, values in given.items():
            listed = _by_message(name, values, len(sampled))
            if listed is None:
                raise InvalidArgumentError(
                    f"tokens has an entry for each of the {len(sampled)} messages, {name} does not. Give "
                    "both as one array, or both as lists with an entry for each message."
                )
            parts[name] = listed
        return [
            message_tokens(ids, {name: parts[name][at] for name in parts}, own, vocabulary, f"message {at}")
            for at, (ids, own) in enumerate(zip(tokens, sampled, strict=True))
        ]

    def _cut(
        self, given: Mapping[str, Any], sampled: Sequence[bool], vocabulary: int | None
    ) -> list[MessageTokens | None]:
        if MASK not in given and any(sampled):
            raise InvalidArgumentError(
                "tokens is one array for all messages, and there is no mask that says which of them the "
                "model sampled. Give mask, or lists with an entry for each message."
            )
        whole = checked(self.tokens, given, False, vocabulary, "the rollout")
        edges = np.flatnonzero(np.diff(np.concatenate([[0], whole.mask.astype(np.int8), [0]])))
        if len(edges) != 2 * sum(sampled):
            raise InvalidArgumentError(
                f"mask has {len(edges) // 2} stretches of sampled tokens, and there are {sum(sampled)} "
                "messages that the model sampled. Give tokens, mask and logprobs as lists with an entry for "
                "each message."
            )
        return list(_pieces(whole, edges, sampled))


def _pieces(
    whole: MessageTokens, edges: np.ndarray, sampled: Sequence[bool]
) -> Iterator[MessageTokens | None]:
    """Cut tokens at the edges of sampled stretches.

    The tokens between two sampled messages belong to the last message between them: where a template ends
    one message and begins the next is not in them. Without a message there they belong to the sampled one
    after them, and tokens at the end to the last message.
    """
    stops = np.zeros(len(sampled), np.int64)
    for begin, end, at in zip(edges[::2], edges[1::2], np.flatnonzero(sampled).tolist(), strict=True):
        stops[at] = end
        if at and not sampled[at - 1]:
            stops[at - 1] = begin
    stops[-1] = len(whole.tokens)
    begin = used = 0
    for stop in np.maximum.accumulate(stops).tolist():
        mask = whole.mask[begin:stop]
        until = used + int(np.count_nonzero(mask))
        numbers = {name: values[used:until] for name, values in whole.numbers.items() if until > used}
        yield MessageTokens(whole.tokens[begin:stop], mask, numbers) if stop > begin else None
        begin, used = stop, until


def message_tokens(
    tokens: Any, given: Mapping[str, Any], sampled: bool, vocabulary: int | None, place: str
) -> MessageTokens | None:
    """Return the tokens of a message, as `checked` does; None if it has none.

    Raises:
        InvalidArgumentError: see `checked`; or there are values of tokens without any.
    """
    if tokens is not None:
        return checked(tokens, given, sampled, vocabulary, place)
    alone = [name for name, values in given.items() if values is not None]
    if alone:
        raise InvalidArgumentError(f"{place}: {', '.join(alone)} came without tokens.")
    return None


def checked(
    tokens: Any, given: Mapping[str, Any], sampled: bool, vocabulary: int | None, place: str
) -> MessageTokens:
    """Return tokens with their mask and numbers as arrays of the stored types.

    Args:
        tokens: whole numbers, shape (n,).
        given: `mask` and columns of `PER_SAMPLED`; None where a message has none. Numbers are one for each
            sampled token, or one for each token, of which those of others are dropped.
        sampled: what the mask is where there is none.
        vocabulary: how many ids there are; None if that is not known.
        place: names the message or rollout in errors.

    Raises:
        InvalidArgumentError: a length does not go with the tokens, an id is out of range, or a number is NaN.
    """
    ids = _array("tokens", tokens, place)
    limit = vocabulary or 2**31
    if ids.ndim != 1 or (len(ids) and ids.dtype.kind not in "iu"):
        raise InvalidArgumentError(
            f"{place}: tokens have the type {ids.dtype} and shape {ids.shape}; expected whole numbers of "
            "shape (n,)."
        )
    if len(ids) and not (ids.min() >= 0 and ids.max() < limit):
        worst = int(ids.min() if ids.min() < 0 else ids.max())
        raise InvalidArgumentError(f"{place}: token id {worst} is out of range; expected 0 to {limit - 1}.")
    mask = given.get(MASK)
    every = np.full(len(ids), sampled) if mask is None else _mask(mask, len(ids), place)
    count = int(np.count_nonzero(every))
    numbers = {
        name: _numbers(name, values, every, count, place)
        for name, values in given.items()
        if name != MASK and values is not None
    }
    return MessageTokens(ids.astype(np.int32), every, numbers)


def _mask(values: Any, count: int, place: str) -> np.ndarray:
    mask = _array(MASK, values, place)
    if mask.shape != (count,):
        raise InvalidArgumentError(f"{place}: mask has shape {mask.shape}, and there are {count} tokens.")
    flags = mask.astype(bool)
    if count and not np.array_equal(flags, mask):
        raise InvalidArgumentError(f"{place}: mask has values other than 0 and 1.")
    return flags


def _numbers(name: str, values: Any, mask: np.ndarray, sampled: int, place: str) -> np.ndarray:
    given = _array(name, values, place)
    if given.shape == mask.shape and len(mask) != sampled:
        given = given[mask]
    if given.shape != (sampled,):
        raise InvalidArgumentError(
            f"{place}: {name} has shape {given.shape}; expected one number for each of the {sampled} "
            f"sampled tokens, or for each of all {len(mask)}."
        )
    if given.dtype == object:
        # A list with None for tokens that were not sampled.
        given = _array(name, given.tolist(), place)
    if sampled and given.dtype.kind not in "biuf":
        raise InvalidArgumentError(f"{place}: {name} has the type {given.dtype}; expected numbers.")
    with np.errstate(over="ignore"):
        numbers = given.astype(np.float32)
    if (np.isinf(numbers) & ~np.isinf(given)).any():
        raise InvalidArgumentError(f"{place}: {name} has a finite number that float32 cannot hold.")
    if np.isnan(numbers).any():
        raise InvalidArgumentError(f"{place}: {name} has NaN for sampled token {np.isnan(numbers).argmax()}.")
    return numbers


def _by_message(name: str, values: Any, count: int) -> Sequence[Any] | None:
    """Return the entries of a list that has an array, or None, for each message; None for one array.

    Raises:
        InvalidArgumentError: it has not an entry for each of `count` messages.
    """
    if not isinstance(values, list | tuple):
        values = _array(name, values, "the rollout")
        values = values if values.ndim == 2 else values.tolist() if values.dtype == object else ()
    if not len(values) or not all(each is None or is_array(each) for each in values):
        return None
    check_length(name, values, count)
    return values


def check_length(name: str, values: Sequence[Any], count: int) -> None:
    """Refuse a list that has not an entry for each of `count` messages."""
    if len(values) != count:
        raise InvalidArgumentError(f"{name} has {len(values)} entries, and there are {count} messages.")


def is_array(value: Any) -> bool:
    """Return whether a value is an array or a list, and no number or text."""
    if isinstance(value, np.ndarray):
        return bool(value.ndim)
    if isinstance(value, Sequence):
        return not isinstance(value, str | bytes)
    return bool(getattr(value, "ndim", hasattr(value, "__array__")))


def _array(name: str, values: Any, place: str) -> np.ndarray:
    """Return an array or list of any library as a numpy array.

    Raises:
        InvalidArgumentError: it has no shape, or masked elements.
    """
    if np.ma.is_masked(values):
        raise InvalidArgumentError(f"{place}: {name} has masked elements. Leave them out.")
    try:
        try:
            return np.asarray(values)
        except (TypeError, RuntimeError):
            # Tensors with a gradient, on a device, or of a type that numpy lacks.
            return np.asarray(freeze_value(values))
    except (TypeError, ValueError, RuntimeError) as error:
        raise InvalidArgumentError(
            f"{place}: {name} is {values!r:.100}; expected numbers of shape (n,)."
        ) from error
