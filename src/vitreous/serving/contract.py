"""The API's requests and responses as pydantic models: what OpenAPI publishes, and what JSON requests are checked with.

Responses are documented but not validated: validation would cost more than the response itself.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self, get_args

import orjson
from pydantic import BaseModel, ConfigDict, Field, SkipValidation, ValidationError

from vitreous.serving.limits import Limits
from vitreous.serving.responses import TENSORS, Problem

Responses = dict[int | str, dict[str, Any]]
Want = Literal["probabilities", "novelty", "attention", "lens", "qkv", "kept", "rollout", "patch_removal", "relevance"]
WANTS: tuple[Want, ...] = get_args(Want)

Vector = list[float]
Matrix = list[Vector]
LayersAndHeads = list[list[Matrix]]
FAIL_FAST = Field(fail_fast=True)  # stop at the first mistake: a hostile body could contain millions
Flags = Annotated[list[bool | float], FAIL_FAST]
GrayImage = list[list[Annotated[float, Field(ge=0, le=255)]]]
ColourImage = list[list[list[Annotated[float, Field(ge=0, le=255)]]]]

MODEL_ID = "the id of a model, as /v1/models lists them; omitted: the first"


class Request(BaseModel):
    """A JSON body. A field's description completes the sentence "`field` must be …" for a client that got it wrong."""

    model_config = ConfigDict(strict=True, extra="forbid")
    model: str | None = Field(None, description=MODEL_ID)

    @classmethod
    def parse(cls, body: bytes) -> Self:
        try:
            document = orjson.loads(body)  # rejects NaN, and nesting beyond 1024
        except orjson.JSONDecodeError as error:
            raise Problem(400, f"the body is not JSON: {str(error)[:120]}") from None
        if not isinstance(document, dict):
            raise Problem(422, "the body must be a JSON object")
        unknown = next((key for key in document if key not in cls.model_fields), None)
        if unknown is not None:
            raise Problem(422, f"unknown field {unknown[:60]!r}; the fields are {', '.join(cls.model_fields)}")
        try:
            return cls.model_validate(document)
        except ValidationError as error:
            name = str(error.errors(include_url=False, include_context=False, include_input=False)[0]["loc"][0])
            raise Problem(422, f"`{name}` must be {cls.model_fields[name].description}") from None


class PredictRequest(Request):
    # checked by numpy instead, which is many times faster on thousands of numbers
    pixels: SkipValidation[GrayImage | list[GrayImage] | list[ColourImage]] = Field(
        description="numbers from 0 to 255: rows × columns, images × rows × columns, or images × rows × columns × 3"
    )


class PredictForm(BaseModel):
    # multipart.py parses this one
    image: list[bytes] = Field(
        min_length=1, max_length=Limits.most_images, description="PNG, JPEG, WebP, BMP, GIF or TIFF files"
    )
    model: str | None = Field(None, description=MODEL_ID)


class LookRequest(Request):
    pixels: str = Field(description="base64 of uint8 channels × rows × columns, at the model's size")
    head_mask: Annotated[list[Flags], FAIL_FAST] | None = Field(None, description="null, or 0s and 1s: layers × heads")
    token_mask: Flags | None = Field(None, description="null, or 0s and 1s: one per patch")
    relevance_class: int | None = Field(None, description="null (the predicted class), or the index of a class")
    want: Annotated[list[Want], FAIL_FAST] = Field(["probabilities"], description=f"a list of: {', '.join(WANTS)}")


class Prediction(BaseModel):
    name: str
    label: str | None = None
    probability: float | None = None
    probabilities: dict[str, float] | None = None
    novelty: float | None = Field(None, description="relative to a threshold; null where the run does not measure it")
    unlike: bool | None = Field(None, description="novelty > 1: unlike the training images, so do not trust it")
    notes: list[str] | None = Field(None, description="what was done to turn the image into the model's input")
    error: str | None = Field(None, description="why this image cannot be read; the other fields are then missing")


class Predictions(BaseModel):
    model: str
    predictions: list[Prediction]


class Look(BaseModel):
    """What was wanted; null where the model has no such thing. The four large arrays have five significant digits."""

    probabilities: Vector | None = Field(None, description="classes")
    novelty: float | None = Field(None, description="above 1: unlike the training images")
    attention: LayersAndHeads | None = Field(None, description="layers × heads × tokens × tokens")
    lens: Matrix | None = Field(None, description="(layers + 1) × classes: probabilities")
    queries: LayersAndHeads | None = Field(None, description="layers × heads × tokens × head width")
    keys: LayersAndHeads | None = None
    values: LayersAndHeads | None = None
    kept: Vector | None = Field(None, description="patches: 0 where one was removed or, being blank, skipped")
    rollout: Vector | None = Field(None, description="patches")
    patch_removal: Vector | None = Field(None, description="patches: probability lost without each patch's token")
    relevance: Vector | None = Field(None, description="patches")


#: The binary form of `Look`, for OpenAPI.
LOOK_TENSORS: dict[str, Any] = {
    "type": "string",
    "format": "binary",
    "description": (
        "Sent to a client whose Accept header names this type: the same arrays by the same names in the safetensors"
        " format (little-endian: the header's length as 8 bytes; the header, JSON with the type, shape and place of"
        " each array; the arrays). `attention`, `queries`, `keys` and `values` are F16, or F32 where F16 cannot hold"
        " them; all others are F32. `attention` is rounded to multiples of 1/1024 unless `qkv` is wanted too. What is"
        " null in JSON is missing."
    ),
}


class Models(BaseModel):
    models: list[dict[str, Any]]
    version: str


class Sample(BaseModel):
    label: str
    pixels: str = Field(description="base64 of uint8 channels × rows × columns")


class Samples(BaseModel):
    shape: list[int] = Field(description="channels, rows, columns")
    samples: list[Sample]
    note: str = Field(description="why there are none; otherwise empty")


class Status(BaseModel):
    status: str


class ProblemDocument(BaseModel):
    type: str
    title: str
    status: int
    detail: str


_PROBLEMS = {
    400: "The request cannot be parsed.",
    401: "A token is required.",
    403: "A page of another site made the request.",
    404: "There is no such thing here.",
    405: "This address does not accept this method.",
    408: "The body arrived too slowly.",
    413: "The body is too large.",
    415: "The body's media type is not supported.",
    421: "The Host header names another machine.",
    422: "The request is well-formed but invalid; the detail says why.",
    429: "Too many requests are waiting; try again after Retry-After.",
    503: "The server is busy or stopping; try again after Retry-After.",
    504: "The request took too long.",
}
POST_PROBLEMS = (400, 408, 413, 415, 422, 429, 503, 504)


def problems(*statuses: int) -> Responses:
    """Describe these statuses, and those of every address, for FastAPI's `responses`."""
    content = {"application/problem+json": {"schema": ProblemDocument.model_json_schema()}}
    everywhere = (400, 401, 403, 405, 421)
    return {status: {"description": _PROBLEMS[status], "content": content} for status in (*everywhere, *statuses)}


def responses(model: type[BaseModel], description: str, *statuses: int) -> Responses:
    return {200: {"model": model, "description": description}, **problems(*statuses)}


def look_responses() -> Responses:
    """Describe the two forms of /v1/look's response."""
    described = responses(Look, "The wanted arrays.", *POST_PROBLEMS)
    described[200]["content"] = {TENSORS.decode(): {"schema": LOOK_TENSORS}}
    return described


def request_body(schemas: dict[str, type[BaseModel]]) -> dict[str, Any]:
    """Describe a body by media type for FastAPI's `openapi_extra`; the handlers parse bodies themselves."""
    content = {media_type: {"schema": model.model_json_schema()} for media_type, model in schemas.items()}
    return {"requestBody": {"required": True, "content": content}}
