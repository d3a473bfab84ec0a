"""``/slipstream/openapi.json``, from the routes and their pydantic models."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from slipstream import __version__
from slipstream import contract as c
from slipstream_proxy.control.api.http import ENDLESS_MARK, JSON_TYPE, Route
from slipstream_proxy.json_types import JsonObject

_PARAMETER = re.compile(r"\{(\w+)(?::((?:[^{}]|\{[^{}]*\})+))?\}")
COMMON_ERRORS = {
    400: "The request cannot be read.",
    401: "No valid key.",
    403: "The key lacks the scope, or the origin may not ask.",
    405: "Method not allowed.",
    422: "A parameter or the body is wrong; `field` names it.",
    429: "The key asks for more at once than its share; `Retry-After` says when to ask again.",
    503: "Not just now; `Retry-After` says when.",
}
MORE_ERRORS = {
    404: "Not found.",
    408: "It took too long.",
    409: "Conflicts with what exists.",
    413: "Too large.",
    415: "Unsupported content type.",
}
SCHEMA_REF = "#/components/schemas/{model}"


def path_of(route: Route) -> tuple[str, list[JsonObject]]:
    parameters = []
    for name, pattern in _PARAMETER.findall(route.path):
        schema: JsonObject = {"type": "string"}
        if pattern:
            schema |= {"pattern": f"^{pattern}$", "minLength": 1}
        parameters.append({"name": name, "in": "path", "required": True, "schema": schema})
    return _PARAMETER.sub(lambda m: "{" + m[1] + "}", route.path), parameters


def query_of(model: type[BaseModel] | None) -> list[JsonObject]:
    if model is None:
        return []
    schema = model.model_json_schema(ref_template=SCHEMA_REF)
    found = []
    for name, part in schema.get("properties", {}).items():
        if part.get("x-endless"):
            continue
        part = dict(part)
        part.pop("title", None)
        text = part.pop("description", None)
        # an absent parameter is how null is said in a query
        kinds = [k for k in part.pop("anyOf", []) if k != {"type": "null"}]
        if kinds:
            part = {**part, **kinds[0]} if len(kinds) == 1 else {**part, "anyOf": kinds}
        if part.get("default", 0) is None:
            part.pop("default")
        item: JsonObject = {"name": name, "in": "query", "required": name in schema.get("required", []), "schema": part}
        found.append(item | ({"description": text} if text else {}))
    return found


def _defs(models: Iterable[type[BaseModel]]) -> tuple[dict[Any, Any], JsonObject]:
    unique = list(dict.fromkeys(models))
    refs, top = models_json_schema([(m, "validation") for m in unique], ref_template=SCHEMA_REF)
    schemas = _named_only(top.get("$defs", {}))
    _, sent = models_json_schema([(m, "serialization") for m in unique], ref_template=SCHEMA_REF)
    for name, schema in sent.get("$defs", {}).items():  # computed fields are in answers alone
        for field, part in schema.get("properties", {}).items():
            if "properties" in schemas.get(name, {}):
                schemas[name]["properties"].setdefault(field, part | {"readOnly": True})
    return {m: refs[(m, "validation")] for m in unique}, schemas


def answers(routes: Iterable[Route]) -> JsonObject:
    """The models of all answers, as they are sent: each field is there. For clients that are made from it."""
    models = dict.fromkeys(m for r in routes for m in r.responses.values() if isinstance(m, type))
    _, top = models_json_schema([(m, "serialization") for m in models], ref_template=SCHEMA_REF)
    schemas = top.get("$defs", {})
    for schema in schemas.values():
        if "properties" in schema:
            schema["required"] = sorted(schema["properties"])
    info = {"title": "What the control API answers", "version": __version__}
    return {"openapi": "3.1.0", "info": info, "paths": {}, "components": {"schemas": schemas}}


def _named_only(schema: Any) -> Any:
    """Names of a mapping with a pattern all have that pattern. Pydantic does not say so of other names."""
    if isinstance(schema, dict):
        if "patternProperties" in schema:
            schema.setdefault("additionalProperties", False)
        for part in schema.values():
            _named_only(part)
    elif isinstance(schema, list):
        for part in schema:
            _named_only(part)
    return schema


def _enums(model: type[BaseModel] | None) -> JsonObject:
    return dict(model.model_json_schema(ref_template=SCHEMA_REF).get("$defs", {})) if model else {}


def operation(route: Route, refs: dict[Any, Any], parameters: list[JsonObject]) -> JsonObject:
    error = {"content": {JSON_TYPE: {"schema": refs[c.Error]}}}
    responses: JsonObject = {}
    for status, what in route.responses.items():
        text = {200: "Done.", 201: "Made.", 204: "Nothing there."}.get(status, "Done.")
        if isinstance(what, str):
            binary = what.startswith(("application/octet", "application/vnd"))
            types = EXPORT_TYPES if what == "application/octet-stream" else (what,)
            schema: JsonObject = {"type": "string", "format": "binary"} if binary else {"type": "string"}
            responses[str(status)] = {"description": text, "content": {t: {"schema": schema} for t in types}}
        elif what is None:
            responses[str(status)] = {"description": text}
        else:
            responses[str(status)] = {"description": text, "content": {JSON_TYPE: {"schema": refs[what]}}}
    more = [*route.errors, *([413, 415] if route.body else []), *([404] if "{" in route.path else [])]
    for status, text in sorted((COMMON_ERRORS | {e: MORE_ERRORS[e] for e in more}).items()):
        responses[str(status)] = {"description": text, **error}
    found: JsonObject = {
        "operationId": f"{route.method.lower()}_{getattr(route.handler, '__name__', 'call')}",
        "summary": route.summary,
        "description": f"Scopes: {', '.join(dict.fromkeys((*route.scopes, 'admin')))}."
        + (" More filters: `tag.<name>=<value>`." if route.tags else ""),
        "parameters": [*parameters, *query_of(route.query)],
        "responses": responses,
        "security": [{"key": []}, {}],
    }
    if route.endless:
        found |= ENDLESS_MARK
    if route.body:
        found["requestBody"] = {"required": route.body_required, "content": {JSON_TYPE: {"schema": refs[route.body]}}}
    return found


EXPORT_TYPES = ("application/x-ndjson", "application/vnd.apache.parquet")


def document(routes: list[Route]) -> JsonObject:
    """OpenAPI 3.1."""
    models: list[type[BaseModel]] = [
        c.Error,
        *(r.body for r in routes if r.body),
        *(m for r in routes for m in r.responses.values() if isinstance(m, type)),
    ]
    refs, defs = _defs(models)
    paths: JsonObject = {}
    for route in routes:
        defs |= _enums(route.query)
        path, parameters = path_of(route)
        paths.setdefault(path, {})[route.method.lower()] = operation(route, refs, parameters)
    spec = {"type": "object"}
    paths["/slipstream/openapi.json"] = {
        "get": {
            "operationId": "get_openapi",
            "summary": "This API, as OpenAPI",
            "parameters": [],
            "responses": {
                "200": {"description": "Done.", "content": {JSON_TYPE: {"schema": spec}}},
                **{
                    str(s): {"description": t, "content": {JSON_TYPE: {"schema": refs[c.Error]}}}
                    for s, t in COMMON_ERRORS.items()
                },
            },
        }
    }
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Slipstream control API",
            "version": __version__,
            "description": "Where no keys are configured none is needed. Every error has the shape of `Error`.",
        },
        "paths": paths,
        "components": {"schemas": defs, "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}},
    }
