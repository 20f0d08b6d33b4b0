"""The API in OpenAPI's words, for FastAPI to publish; the handlers do their own, faster, validation."""

from __future__ import annotations

from typing import Any

from vitreous.serving.look import WANTS

Schema = dict[str, Any]
Responses = dict[int | str, dict[str, Any]]


def _object(properties: Schema, required: list[str] | None = None, description: str = "") -> Schema:
    schema: Schema = {"type": "object", "properties": properties}
    if required:
        schema["required"] = required
    return schema | ({"description": description} if description else {})


def _array(items: Schema, **more: Any) -> Schema:
    return {"type": "array", "items": items, **more}


_NUMBER: Schema = {"type": "number"}
_STRING: Schema = {"type": "string"}
_LEVEL: Schema = {"type": "number", "minimum": 0, "maximum": 255}
_NULL: Schema = {"type": "null"}
_MODEL: Schema = {"type": "string", "description": "A model's id; left out: the first of /v1/models."}


def _nested(depth: int) -> Schema:
    schema: Schema = _NUMBER
    for _ in range(depth):
        schema = _array(schema)
    return schema


def _or_null(schema: Schema) -> Schema:
    return {"anyOf": [schema, _NULL]}


PROBLEM = _object(
    {"type": _STRING, "title": _STRING, "status": {"type": "integer"}, "detail": _STRING},
    ["type", "title", "status", "detail"],
)
_STATUSES = {
    400: "The body cannot be parsed.",
    401: "A token is needed.",
    404: "There is nothing at this address.",
    405: "This address does not take this method.",
    408: "The body came too slowly.",
    413: "The body is too large.",
    415: "The body is of a type that is not taken.",
    421: "Asked for under another name than this machine's.",
    422: "The request is understood and cannot be answered; the detail says why.",
    429: "Too much waits already; try again after Retry-After.",
    503: "The server is busy or stopping; try again after Retry-After.",
    504: "It took too long.",
}


def problems(*statuses: int) -> Responses:
    return {
        status: {
            "description": _STATUSES[status],
            "content": {"application/problem+json": {"schema": PROBLEM}},
        }
        for status in (401, 405, 421, *statuses)
    }


def answers(schema: Schema, description: str) -> Responses:
    return {200: {"description": description, "content": {"application/json": {"schema": schema}}}}


_PREDICTION = _object(
    {
        "name": _STRING,
        "label": _STRING,
        "probability": _NUMBER,
        "probabilities": {"type": "object", "additionalProperties": _NUMBER},
        "notes": _array(_STRING, description="What was done to the image to make it the model's input."),
        "error": {**_STRING, "description": "Instead of an answer, where this image cannot be read."},
    },
    ["name"],
)
PREDICTIONS = _object({"model": _STRING, "predictions": _array(_PREDICTION)}, ["model", "predictions"])
PREDICT_REQUEST: Schema = {
    "parameters": [{"name": "model", "in": "query", "required": False, "schema": _MODEL}],
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": _object(
                    {
                        "image": _array(
                            {"type": "string", "format": "binary"},
                            minItems=1,
                            maxItems=64,
                            description="One or many PNG, JPEG, WebP or BMP files.",
                        ),
                        "model": _MODEL,
                    },
                    ["image"],
                )
            },
            "application/json": {
                "schema": {
                    **_object(
                        {
                            "pixels": {
                                "description": "Levels 0–255: rows × columns; images × rows × columns; or images ×"
                                " rows × columns × 3.",
                                "anyOf": [
                                    _array(_array(_LEVEL)),
                                    _array(_array(_array(_LEVEL))),
                                    _array(_array(_array(_array(_LEVEL)))),
                                ],
                            },
                            "model": _MODEL,
                        },
                        ["pixels"],
                    ),
                    "additionalProperties": False,
                }
            },
        },
    },
}
LOOK_REQUEST: Schema = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {
                    **_object(
                        {
                            "model": _or_null(_MODEL),
                            "pixels": {
                                "type": "string",
                                "description": "Base64 of uint8 channels × rows × columns, at the model's size.",
                            },
                            "head_mask": _or_null(_nested(2)),
                            "token_mask": _or_null(_nested(1)),
                            "relevance_class": _or_null({"type": "integer"}),
                            "want": _array({"type": "string", "enum": list(WANTS)}),
                        },
                        ["pixels"],
                    ),
                    "additionalProperties": False,
                }
            }
        },
    }
}
LOOKED = _object(
    {
        "probabilities": {**_array(_NUMBER), "description": "classes"},
        "attention": {**_or_null(_nested(4)), "description": "layers × heads × tokens × tokens"},
        "lens": {**_or_null(_nested(2)), "description": "(layers + 1) × classes, probabilities"},
        "queries": {**_or_null(_nested(4)), "description": "layers × heads × tokens × head width"},
        "keys": _or_null(_nested(4)),
        "values": _or_null(_nested(4)),
        "rollout": {**_or_null(_nested(1)), "description": "patches"},
        "patch_removal": {**_or_null(_nested(1)), "description": "patches: what the answer loses without each"},
        "relevance": {**_or_null(_nested(1)), "description": "patches"},
    },
    description="What was wanted; null where the model has no such thing. Attention, queries, keys and values have five"
    " significant digits.",
)
MODELS = _object({"models": _array({"type": "object"}), "version": _STRING}, ["models", "version"])
SAMPLES = _object({"samples": _array(_object({"label": _STRING, "pixels": _STRING}, ["label", "pixels"]))}, ["samples"])
STATUS = _object({"status": _STRING}, ["status"])
