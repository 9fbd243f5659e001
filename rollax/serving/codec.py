"""Decodes requests and encodes responses, as JSON and msgpack; decoders and encoders are made once."""

from __future__ import annotations

import functools
import logging
import operator
import secrets
from typing import Annotated, Any

import msgspec
import numpy as np

from rollax.errors import InvalidRequestError, RequestError, RollaxError, WorkerError
from rollax.serving.protocol import QUERIES, REQUESTS, ErrorBody, Request

_log = logging.getLogger("rollax.serving")


_LARGEST_TEXT = 1000
_FIXMAP, _FIXMAP_END = 0x80, 0x8F


class Codec:
    """One format of messages, "json" or "msgpack"."""

    def __init__(self, name: str) -> None:
        self._json = name == "json"
        self.content_type = b"application/" + name.encode()
        self._module: Any = msgspec.json if self._json else msgspec.msgpack
        self.encode = self._module.Encoder(enc_hook=_json_value if self._json else _msgpack_value).encode
        options = {} if self._json else {"ext_hook": _refuse_extension}
        kinds = {None: _Message, **REQUESTS}
        self._decode = {verb: self._module.Decoder(kind, **options).decode for verb, kind in kinds.items()}

    def decode(self, verb: str | None, data: bytes) -> Any:
        """The body of a verb; for None a stream message, whose class is in `VERBS`. RequestError if malformed."""
        try:
            return self._decode[verb](data)
        except _MALFORMED as error:
            raise _malformed(error) from error

    def id_of(self, data: bytes) -> int | None:
        """Returns the id of a malformed message, or None."""
        try:
            return self._module.decode(data, type=_OnlyId).id
        except _MALFORMED:
            return None

    def encode_response(self, number: int, response: Any) -> bytes:
        """Returns the response to message `number` of the stream: an `id`, then its fields."""
        body = self.encode(response)
        if self._json:
            return b'{"id":%d%b' % (number, b"}" if body == b"{}" else b"," + body[1:])
        if not _FIXMAP <= body[0] < _FIXMAP_END:  # a map of 15 fields or more has a longer header
            return self.encode({"id": number, **response})
        return b"%c\xa2id%b%b" % (body[0] + 1, self.encode(number), body[1:])


_Id = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]


class _Query(Request):
    """A request without a body."""


class _OnlyId(msgspec.Struct):
    id: _Id


def _message(verb: str, base: type[Request]) -> Any:
    """The class of a stream message: a request with an id and its verb as a tag."""
    options: dict[str, Any] = {"kw_only": True, "forbid_unknown_fields": True}
    return msgspec.defstruct(f"{verb}Message", [("id", _Id)], bases=(base,), tag_field="verb", tag=verb, **options)


VERBS: dict[type[Request], str] = {
    _message(verb, base): verb for verb, base in {**REQUESTS, **dict.fromkeys(QUERIES, _Query)}.items()
}
"""Class of a stream message -> its verb."""

_Message: Any = functools.reduce(operator.or_, VERBS)
_MALFORMED = (msgspec.DecodeError, UnicodeDecodeError, RecursionError, OverflowError)


def failure(error: BaseException) -> tuple[int, ErrorBody, float | None]:
    """Returns status, body and Retry-After of an error, and logs it with the id in the body.

    A WorkerError, or an error that is not a RollaxError, is a fault of the server: its text is only in the log.
    """
    error_id = secrets.token_hex(8)
    if not isinstance(error, RollaxError) or isinstance(error, WorkerError):
        _log.error("error %s", error_id, exc_info=error)
        fix = "report it with this id; the server's log has the details"
        return 500, ErrorBody(error_id, "The server failed to execute the request.", fix=fix), None
    status, retry_after_s = (error.status, error.retry_after_s) if isinstance(error, RequestError) else (422, None)
    _log.log(logging.ERROR if status >= 500 else logging.INFO, "refused %s: %s", error_id, error)
    parts = {name: text[:_LARGEST_TEXT] for name, text in error.parts.items()}
    return status, ErrorBody(id=error_id, **parts), retry_after_s


def _malformed(error: Exception) -> RequestError:
    if isinstance(error, msgspec.ValidationError):
        fix = "correct the field that the message names; /openapi.json has the fields of all requests"
        return InvalidRequestError("The request does not have the fields of its verb.", got=str(error), fix=fix)
    if isinstance(error, RecursionError):
        return RequestError("The request is nested too deeply.", expected="at most a few hundred levels")
    return RequestError(
        "The request is malformed.", got=str(error), expected="JSON without NaN and Infinity, or msgpack"
    )


def _refuse_extension(code: int, data: memoryview) -> Any:
    del data
    raise msgspec.ValidationError(f"Unexpected msgpack extension type {code}")


def _json_value(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    raise NotImplementedError(f"{type(value).__name__} in a response")


def _msgpack_value(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return {"dtype": value.dtype.str, "shape": value.shape, "data": np.ascontiguousarray(value).data.cast("B")}
    if isinstance(value, np.generic):
        return value.item()
    raise NotImplementedError(f"{type(value).__name__} in a response")


JSON, MSGPACK = Codec("json"), Codec("msgpack")
