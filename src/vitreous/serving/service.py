"""What the server does, apart from HTTP itself: predict, look, list models and samples, report its state."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import orjson
from starlette.responses import FileResponse

from vitreous.export.catalog import models_document, samples_for
from vitreous.runs import WEIGHTS
from vitreous.serving import look, reading
from vitreous.serving.contract import LookRequest
from vitreous.serving.limits import Limits
from vitreous.serving.made_files import MADE_FILES
from vitreous.serving.metrics import Metrics
from vitreous.serving.models import ServedModel
from vitreous.serving.pool import Check, Pool, while_connected
from vitreous.serving.reading import BodyReader, PreparedImage, Receive, Upload
from vitreous.serving.responses import TENSORS, ApiResponse, ImageProblem, Problem, busy, compressible

Headers = dict[bytes, bytes]
Prepared = list[PreparedImage | ImageProblem]


class Service:
    def __init__(self, models: dict[str, ServedModel], limits: Limits, metrics: Metrics):
        self.models, self.limits, self.metrics = models, limits, metrics
        self._default = next(iter(models.values()))
        self._bodies = BodyReader(limits)
        self._decoding = Pool(2, limits.decodes, "decoding")
        self._looking = Pool(1, limits.looks, "looking")
        self._stopping = False
        self.models_json = orjson.dumps(models_document([model.entry for model in models.values()]))
        self._samples_json: dict[str, bytes] = {}  # by model id
        engines = [model.engine for model in models.values()]
        metrics.add_gauge("vitreous_waiting_images", "Queued images.", lambda: sum(one.waiting for one in engines))
        metrics.add_gauge("vitreous_body_bytes", "Bodies in memory.", lambda: self._bodies.total_bytes)

    def stop(self) -> None:
        self._stopping = True  # the engines finish what is queued
        self._decoding.stop()
        self._looking.stop()

    def find(self, model_id: str | None) -> ServedModel:
        model = self._default if model_id is None else self.models.get(model_id)
        if model is None:
            raise Problem(422, f"there is no model with this id; the models are {', '.join(self.models)}")
        return model

    async def _respond(
        self, headers: Headers, receive: Receive, handle: Callable[[bytes], Awaitable[ApiResponse]]
    ) -> ApiResponse:
        """Read the body, then handle it in time."""
        body = await self._bodies.read(headers, receive)
        try:
            async with asyncio.timeout(self.limits.response_seconds):
                return await handle(body)
        except TimeoutError:
            detail = f"no result within {self.limits.response_seconds:g} s; ask for less at a time"
            raise Problem(504, detail) from None
        finally:
            self._bodies.release(body)

    async def predict(self, headers: Headers, query: bytes, receive: Receive) -> ApiResponse:
        content_type = headers.get(b"content-type", b"")
        return await self._respond(headers, receive, lambda body: self._predict(body, content_type, query, receive))

    async def _predict(self, body: bytes, content_type: bytes, query: bytes, receive: Receive) -> ApiResponse:
        # small images are parsed and decoded right here, in less time than it takes to wake a thread
        if len(body) <= self.limits.small_body_bytes:
            model, uploads = self._parse(body, content_type, query)
            if reading.is_small(uploads, self.limits):
                return await self._classify(model, self._prepare(uploads, model))
        async with while_connected(receive) as check:
            model, prepared = await self._decoding.run(self._decode, body, content_type, query, check)
            return await self._classify(model, prepared)

    def _parse(self, body: bytes, content_type: bytes, query: bytes) -> tuple[ServedModel, list[Upload]]:
        model_id, uploads = reading.parse_predict(body, content_type, query, self.limits)
        model = self.find(model_id)
        model.engine.check_room(len(uploads))
        return model, uploads

    def _prepare(self, uploads: list[Upload], model: ServedModel, check: Check = lambda: None) -> Prepared:
        return [reading.prepare(upload, model.run.preprocessing, self.limits, check) for upload in uploads]

    def _decode(self, body: bytes, content_type: bytes, query: bytes, check: Check) -> tuple[ServedModel, Prepared]:
        model, uploads = self._parse(body, content_type, query)
        return model, self._prepare(uploads, model, check)

    async def _classify(self, model: ServedModel, prepared: Prepared) -> ApiResponse:
        images = [one for one in prepared if isinstance(one, PreparedImage)]
        self.metrics.images(model.id, "predicted").inc(len(images))
        if len(images) < len(prepared):
            self.metrics.images(model.id, "refused").inc(len(prepared) - len(images))
        if not images:
            raise _nothing_readable([one for one in prepared if isinstance(one, ImageProblem)])
        pixels = np.concatenate([image.pixels[None] for image in images])
        found = await model.engine.predict(pixels)
        return ApiResponse(orjson.dumps({"model": model.id, "predictions": _predictions(model, prepared, found)}))

    async def look(self, headers: Headers, receive: Receive) -> ApiResponse:
        if headers.get(b"content-type", b"").partition(b";")[0].strip().lower() != b"application/json":
            raise Problem(415, "send application/json")
        # a request takes its place in the pool after its body is read: slow uploads hold up nobody
        return await self._respond(headers, receive, lambda body: self._look_in_thread(body, headers, receive))

    async def _look_in_thread(self, body: bytes, headers: Headers, receive: Receive) -> ApiResponse:
        async with while_connected(receive) as check:
            return await self._looking.run(self._look, body, headers, check)

    def _look(self, body: bytes, headers: Headers, check: Check) -> ApiResponse:
        request = LookRequest.parse(body)
        model = self.find(request.model)
        found = look.look(model, look.check_request(request, model, self.limits), check)
        # the fastest level: a higher one takes more time than it saves on any but a slow network
        if _accepts_tensors(headers):
            return compressible(look.as_tensors(found), headers, TENSORS, level=1)
        return compressible(look.as_json(found), headers, level=1)

    async def samples(self, model_id: str | None) -> bytes:
        """Return a model's samples, read when they are first asked for: data sets are large."""
        model = self.find(model_id)
        if model.id not in self._samples_json:
            read = await self._decoding.run(lambda: orjson.dumps(samples_for(model.run)))
            self._samples_json[model.id] = read
        return self._samples_json[model.id]

    async def made_file(self, name: str) -> bytes:
        """Return a file of the page that is made when it is first asked for."""
        return await self._decoding.run(MADE_FILES[name])

    def weights(self, model_id: str | None) -> FileResponse:
        """Return a model's weights as they are in its run, if /v1/models offers them."""
        model = self.find(model_id)
        if "weights" not in model.entry:
            raise Problem(404, "this server does not offer the weights of this model")
        return FileResponse(model.run.path / WEIGHTS, media_type="application/octet-stream")

    def readiness(self) -> bytes:
        if self._stopping:
            raise busy(503, "the server is stopping")
        return b'{"status":"ready"}'


def _accepts_tensors(headers: Headers) -> bool:
    """Return whether the client asks for the binary form by name; `*/*` gets JSON."""
    accepted = headers.get(b"accept", b"").split(b",")
    return any(part.partition(b";")[0].strip().lower() == TENSORS for part in accepted)


def _nothing_readable(problems: list[ImageProblem]) -> Problem:
    if len(problems) == 1:
        return Problem(422, problems[0].detail)
    errors = [{"name": problem.name, "detail": problem.detail} for problem in problems]
    detail = f"none of the {len(problems)} images can be read; the first: {problems[0].detail}"
    return Problem(422, detail, errors=errors)


def _predictions(model: ServedModel, prepared: Prepared, found: np.ndarray) -> list[dict[str, Any]]:
    """Return one entry per image in the order sent; an unreadable image has an `error` instead of a prediction."""
    class_names, rows = model.run.class_names, iter(found.tolist())
    predictions: list[dict[str, Any]] = []
    for image in prepared:
        if isinstance(image, ImageProblem):
            predictions.append({"name": image.name, "error": image.detail})
            continue
        row = [round(probability, 6) for probability in next(rows)]
        novelty = row.pop() if model.engine.has_novelty else None
        highest = max(row)
        predictions.append(
            {
                "name": image.name,
                "label": class_names[row.index(highest)],
                "probability": highest,
                "probabilities": dict(zip(class_names, row, strict=True)),
                "novelty": novelty,
                "unlike": None if novelty is None else novelty > 1,
                "notes": image.notes,
            }
        )
    return predictions
