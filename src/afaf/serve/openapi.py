"""The description of the API for programs, from the endpoints themselves."""

from __future__ import annotations

import re
from typing import Any

from afaf.serve.api import ENDPOINTS, Endpoint
from afaf.version import __version__

QUERY: dict[str, dict[str, Any]] = {
    "top": {"description": "how many classes to name", "schema": {"type": "integer", "minimum": 1, "default": 3}},
    "unknown_below": {
        "description": "the probability below which an image is called none of these",
        "schema": {"type": "number", "minimum": 0, "maximum": 1, "default": 0},
    },
}
FILES = {"type": "object", "properties": {"images": {"type": "array", "items": {"type": "string", "format": "binary"}}}}
BODIES: dict[str, Any] = {
    "images": {"multipart/form-data": {"schema": FILES}, "image/*": {"schema": {"type": "string", "format": "binary"}}},
    "name": {"application/json": {"schema": {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}}},
}
TEXT = {"type": "string"}
ERROR = {
    "type": "object",
    "properties": {"error": {"type": "object", "properties": {"type": TEXT, "message": TEXT}}},
}


def openapi() -> dict[str, Any]:
    paths: dict[str, dict[str, Any]] = {}
    for each in ENDPOINTS:
        paths.setdefault(each.path, {})[each.method.lower()] = _operation(each)
    return {
        "openapi": "3.1.0",
        "info": {"title": "afaf serve", "version": __version__, "description": "Teach a model classes of images, and ask it."},
        "paths": paths,
        "components": {"securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}, "schemas": {"Error": ERROR}},
        "security": [{"token": []}],
    }


def _operation(each: Endpoint) -> dict[str, Any]:
    text = " ".join((each.handler.__doc__ or "").split())
    summary, _, more = text.partition(". ")
    names = re.findall(r"{(\w+)}", each.path)
    inside = [{"name": name, "in": "path", "required": True, "schema": TEXT} for name in names]
    refused = {"description": "refused", "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}}
    done: dict[str, Any] = {"description": "done"}
    if each.answer:
        done["content"] = {each.answer: {}}
    operation: dict[str, Any] = {
        "operationId": each.handler.__name__,
        "summary": summary.rstrip("."),
        "description": more,
        "parameters": [*inside, *({"name": name, "in": "query", **QUERY[name]} for name in each.query)],
        "responses": {str(each.status): done, "default": refused},
    }
    if each.body:
        operation["requestBody"] = {"required": True, "content": BODIES[each.body]}
    if each.path == "/health":
        operation["security"] = []
    return operation
