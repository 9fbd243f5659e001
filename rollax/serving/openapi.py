"""The OpenAPI description of a policy server's routes, and a self-contained page that shows it."""

from __future__ import annotations

import html
from pathlib import Path
from string import Template
from typing import Any

import msgspec

from rollax.serving import protocol
from rollax.serving.protocol import REQUESTS, ErrorResponse

RESPONSES: dict[str, type[msgspec.Struct]] = {
    "start_episode": protocol.Started,
    "get_action": protocol.Action,
    "get_actions": protocol.Actions,
    "log_action": protocol.Done,
    "log_returns": protocol.Done,
    "end_agents": protocol.Done,
    "end_episode": protocol.Done,
    "submit_episodes": protocol.Submitted,
}
"""Verb -> its response."""

ERRORS = {
    400: "The request is malformed.",
    401: "The token is missing or wrong.",
    403: "The Host or Origin header is not allowed.",
    404: "There is no such episode or policy.",
    409: "The state of the episode does not allow the request.",
    410: "The episode has ended or was dropped.",
    413: "The request is too large.",
    415: "The body is neither JSON nor msgpack.",
    422: "The request does not have the fields of its verb, or values do not belong to their space.",
    429: "A limit is reached: send the request again after the seconds of Retry-After.",
    500: "The server failed; its log has the details under the error id.",
    503: "The server is shutting down.",
}

_SCHEMAS = "#/components/schemas/"
_QUERY_ERRORS = (401, 403, 422, 429, 500, 503)
_FILE_ERRORS = (400, 401, 403, 404, 422, 429, 500, 503)
_TAGS = {
    "/v1": ("hello", "The server: its protocol, policies with their spaces, addresses and limits.", protocol.Hello),
    "/v1/health": ("health", "Whether the server answers requests.", protocol.Health),
    "/v1/statistics": ("statistics", "What the live page shows.", None),
}


def description() -> dict[str, Any]:
    """Returns the OpenAPI description."""
    requests, responses = list(REQUESTS.values()), list(dict.fromkeys(RESPONSES.values()))
    kinds = [*requests, *responses, protocol.Hello, protocol.Health, ErrorResponse]
    schemas, components = msgspec.json.schema_components(kinds, ref_template=_SCHEMAS + "{name}")
    schema_of = dict(zip(kinds, schemas, strict=True))
    paths: dict[str, Any] = {}
    for path, (verb, summary, kind) in _TAGS.items():
        found = {"type": "object"} if kind is None else schema_of[kind]
        paths[path] = {"get": _operation(verb, summary, {"application/json": {"schema": found}}, _QUERY_ERRORS)}
    text = {"text/plain": {"schema": {"type": "string"}}}
    paths["/v1/metrics"] = {"get": _operation("metrics", "Counts as Prometheus text.", text, _QUERY_ERRORS)}
    for verb, summary in (
        ("weights", "The weights of a policy, with what local inference requires, as safetensors."),
        ("policy", "A policy as an ONNX model."),
    ):
        paths[f"/v1/{verb}"] = {"get": _file_operation(verb, summary)}
    for verb, kind in REQUESTS.items():
        answer = {"application/json": {"schema": schema_of[RESPONSES[verb]]}}
        operation = _operation(verb, (kind.__doc__ or "").partition("\n")[0], answer, tuple(ERRORS))
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema_of[kind]}}}
        paths[f"/v1/{verb}"] = {"post": operation}
    return {
        "openapi": "3.1.0",
        "info": {"title": "rollax policy server", "version": str(protocol.PROTOCOL_VERSION), "description": _ABOUT},
        "paths": paths,
        "components": {"schemas": components, "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
        "security": [{"token": []}, {}],
    }


def description_page() -> str:
    """Returns an HTML page with the verbs, their fields and their errors."""
    found = description()
    sections = [
        _section(path, method, operation, found["components"]["schemas"])
        for path, methods in found["paths"].items()
        for method, operation in methods.items()
    ]
    page = Template((Path(__file__).parent / "docs.html").read_text(encoding="utf-8"))
    return page.substitute(about=html.escape(_ABOUT), routes="\n".join(sections))


def _operation(verb: str, summary: str, answer: dict[str, Any], statuses: tuple[int, ...]) -> dict[str, Any]:
    error = {"application/json": {"schema": {"$ref": _SCHEMAS + ErrorResponse.__name__}}}
    responses: dict[str, Any] = {"200": {"description": "Done.", "content": answer}}
    for status in statuses:
        responses[str(status)] = {"description": ERRORS[status], "content": error}
        if status == 429:
            retry = {"schema": {"type": "integer", "minimum": 1}, "description": "seconds"}
            responses["429"]["headers"] = {"Retry-After": retry}
    return {"operationId": verb, "summary": summary, "responses": responses}


def _file_operation(verb: str, summary: str) -> dict[str, Any]:
    content = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
    operation = _operation(verb, summary, content, _FILE_ERRORS)
    tag = {"ETag": {"schema": {"type": "string"}, "description": "changes with the version of the weights"}}
    operation["responses"]["200"]["headers"] = tag
    operation["responses"]["304"] = {"description": "If-None-Match names the current version."}
    optional = {"required": False, "schema": {"type": "string"}}
    operation["parameters"] = [
        {**optional, "name": "policy_id", "in": "query", "description": "may be left out if there is one policy"},
        {**optional, "name": "If-None-Match", "in": "header"},
    ]
    return operation


def _section(path: str, method: str, operation: dict[str, Any], schemas: dict[str, Any]) -> str:
    lines = [f"<h2><b>{method.upper()}</b> {html.escape(path)}</h2>", f"<p>{html.escape(operation['summary'])}</p>"]
    body = operation.get("requestBody", {}).get("content", {}).get("application/json")
    if body:
        lines.append(_fields("Request", body["schema"], schemas))
    parameters = ((html.escape(parameter["name"]), parameter["in"]) for parameter in operation.get("parameters", ()))
    lines += [f"<p><code>{name}</code> ({place}, optional)</p>" for name, place in parameters]
    answer = operation["responses"]["200"]["content"]
    for content_type, content in answer.items():
        lines.append(_fields(f"Response, {content_type}", content["schema"], schemas))
    statuses = (f"{status} {html.escape(found['description'])}" for status, found in operation["responses"].items())
    lines.append(f"<details><summary>Statuses</summary><p>{'<br>'.join(statuses)}</p></details>")
    return "<section>" + "\n".join(lines) + "</section>"


def _fields(title: str, schema: dict[str, Any], schemas: dict[str, Any]) -> str:
    found = schemas.get(schema.get("$ref", "").rpartition("/")[2], {})
    rows = []
    for name, field in found.get("properties", {}).items():
        needed = "" if name in found.get("required", ()) else "optional"
        rows.append(f"<tr><td><code>{html.escape(name)}</code><td>{html.escape(_kind(field))}<td>{needed}")
    return f"<h3>{html.escape(title)}</h3>" + (f"<table>{''.join(rows)}</table>" if rows else "")


def _kind(field: dict[str, Any]) -> str:
    """Returns the type of a field in words."""
    if "anyOf" in field:
        return " or ".join(_kind(option) for option in field["anyOf"])
    if "$ref" in field:
        return field["$ref"].rpartition("/")[2]
    kind = field.get("type", "any value")
    if kind == "array":
        return f"list of {_kind(field.get('items', {}))}"
    if kind == "object" and isinstance(field.get("additionalProperties"), dict):
        return f"object of {_kind(field['additionalProperties'])}"
    return kind


_ABOUT = (
    "Starts episodes, chooses actions and takes experience. Every verb except metrics, weights and policy also exists "
    "as a message on the WebSocket /v1/stream: the same body with the fields verb and id (an integer that the response "
    "repeats); a text message is JSON, a binary message msgpack. A token, if the server requires one, is sent as "
    "Authorization: Bearer; for a WebSocket, browsers offer the subprotocols rollax and bearer.<token as base64url>."
)
