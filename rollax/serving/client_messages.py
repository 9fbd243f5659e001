"""The requests of a client as bytes: JSON over HTTP, msgpack over a WebSocket."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np

from rollax.errors import RequestError

_NOT_FINITE = "NaN or infinity, which JSON does not have"


def encode(verb: str, body: Mapping[str, Any], *, stream: bool) -> bytes:
    """The message of a request, for a WebSocket if `stream`; RequestError for values that cannot be sent."""
    try:
        if stream:
            return _MSGPACK.encode({"verb": verb, "id": 0, **body})
        message = _JSON.encode(body)
        if b"null" in message:  # msgspec also writes NaN as null
            _refuse_not_finite(body)
        return message
    except (TypeError, ValueError, OverflowError, NotImplementedError, RecursionError) as error:
        raise RequestError(
            "The value cannot be sent to a policy server.",
            where=verb,
            got=str(error),
            expected="finite numbers, strings, lists, numeric arrays, and dicts with strings as keys",
            fix="convert the value to one of these",
        ) from error


def _refuse_not_finite(value: Any) -> None:
    """Raises ValueError for a NaN or infinity, except in infos, where it becomes null."""
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(_NOT_FINITE)
    if isinstance(value, Mapping):
        for key, part in value.items():
            if key not in ("info", "infos"):
                _refuse_not_finite(part)
    elif isinstance(value, list | tuple):
        for part in value:
            _refuse_not_finite(part)


def _as_lists(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "biuf":
        if value.dtype.kind == "f" and not np.isfinite(value).all():
            raise ValueError(_NOT_FINITE)
        return value.tolist()
    raise NotImplementedError(f"{type(value).__name__} is not a number, string, list, dict or numeric array")


def _as_arrays(value: Any) -> Any:
    if not isinstance(value, np.ndarray) or value.dtype.kind not in "biuf" or not value.ndim:
        return _as_lists(value)
    little = value.astype(value.dtype.newbyteorder("<"), copy=False)
    return {"dtype": little.dtype.str, "shape": little.shape, "data": little.tobytes()}


_JSON = msgspec.json.Encoder(enc_hook=_as_lists)
_MSGPACK = msgspec.msgpack.Encoder(enc_hook=_as_arrays)
