"""What the server does, apart from HTTP's plumbing: predict, look, list, and say how it is."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import orjson

from vitreous.export.catalog import models_document, run_for_samples, sample_digits
from vitreous.serving import look, reading
from vitreous.serving.limits import Limits
from vitreous.serving.metrics import Metrics
from vitreous.serving.models import ServedModel
from vitreous.serving.problems import TEXT, Answer, ImageProblem, Problem, busy
from vitreous.serving.reading import Ready, Receive, Scope

Headers = dict[bytes, bytes]


class Service:
    def __init__(self, models: dict[str, ServedModel], limits: Limits, metrics: Metrics):
        self.models, self.limits, self.metrics = models, limits, metrics
        self._first = next(iter(models.values()))
        self._bodies = reading.BodyReader(limits)
        self._decoders = ThreadPoolExecutor(2, thread_name_prefix="vitreous-decode")
        self._lookers = ThreadPoolExecutor(1, thread_name_prefix="vitreous-look")
        self._decoding = self._looking = 0  # requests in those pools; touched by the event loop only
        self.draining = False
        self._models_json = orjson.dumps(models_document([model.entry for model in models.values()]))
        self._samples_json = orjson.dumps(sample_digits(run_for_samples([model.run for model in models.values()])))
        metrics.gauges["vitreous_waiting_images"] = lambda: sum(model.engine.waiting for model in models.values())
        metrics.gauges["vitreous_body_bytes"] = lambda: self._bodies.held_bytes

    def start(self) -> None:
        for model in self.models.values():
            model.engine.start()

    def stop(self) -> None:
        self.draining = True
        for model in self.models.values():
            model.engine.stop()
        self._decoders.shutdown(wait=False, cancel_futures=True)
        self._lookers.shutdown(wait=False, cancel_futures=True)

    # --- predict ---------------------------------------------------------------------------------------------------

    async def predict(self, scope: Scope, headers: Headers, receive: Receive) -> Answer:
        body = await self._bodies.read(headers, receive)
        try:
            async with asyncio.timeout(self.limits.answer_seconds):
                return await self._predict(body, headers.get(b"content-type", b""), scope["query_string"])
        except TimeoutError:
            raise Problem(504, f"no answer within {self.limits.answer_seconds:g} s; send fewer images") from None
        finally:
            self._bodies.release(len(body))

    async def _predict(self, body: bytes, content_type: bytes, query: bytes) -> Answer:
        if len(body) <= self.limits.small_body_bytes:
            ident, given = reading.parse_predict(body, content_type, query, self.limits)
            model = self.find(ident)
            model.engine.check_room(len(given))
            if reading.is_small(given, len(body), self.limits):
                prepared = reading.prepare_all(given, model.run.preprocessing, self.limits)
            else:
                prepared = await self._in_thread(reading.prepare_all, given, model.run.preprocessing, self.limits)
        else:
            model, prepared = await self._in_thread(self._parse_and_prepare, body, content_type, query)
        ready = [one for one in prepared if isinstance(one, Ready)]
        self.metrics.images[model.ident, "answered"] += len(ready)
        self.metrics.images[model.ident, "refused"] += len(prepared) - len(ready)
        if not ready:
            raise _nothing_readable([one for one in prepared if isinstance(one, ImageProblem)])
        pixels = np.stack([one.pixels for one in ready]) if len(ready) > 1 else ready[0].pixels[None]
        probabilities = await model.engine.answer(pixels)
        return Answer(200, orjson.dumps(_answers(model, prepared, probabilities)))

    def _parse_and_prepare(
        self, body: bytes, content_type: bytes, query: bytes
    ) -> tuple[ServedModel, list[Ready | ImageProblem]]:
        ident, given = reading.parse_predict(body, content_type, query, self.limits)
        model = self.find(ident)
        return model, reading.prepare_all(given, model.run.preprocessing, self.limits)

    async def _in_thread(self, work: Any, *arguments: Any) -> Any:
        if self._decoding >= self.limits.decodes:
            detail = f"{self._decoding} requests wait to be decoded already; try again"
            raise busy(429, detail, self.limits.retry_seconds)
        self._decoding += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._decoders, work, *arguments)
        finally:
            self._decoding -= 1

    def find(self, ident: str | None) -> ServedModel:
        model = self._first if ident is None else self.models.get(ident)
        if model is None:
            raise Problem(422, f"there is no model of that id; there are: {', '.join(self.models)}")
        return model

    # --- look ------------------------------------------------------------------------------------------------------

    async def look(self, headers: Headers, receive: Receive) -> Answer:
        if headers.get(b"content-type", b"").partition(b";")[0].strip().lower() != b"application/json":
            raise Problem(415, "send application/json")
        body = await self._bodies.read(headers, receive)  # first: who sends slowly takes no place from the others
        try:
            return Answer(200, await self._looked_at(body))
        finally:
            self._bodies.release(len(body))

    async def _looked_at(self, body: bytes) -> bytes:
        if self._looking >= self.limits.looks:
            raise busy(429, f"{self._looking} looks are under way already; try again", self.limits.retry_seconds)
        self._looking += 1
        try:
            work = asyncio.get_running_loop().run_in_executor(self._lookers, self._look, body)
            async with asyncio.timeout(self.limits.answer_seconds):
                return await work
        except TimeoutError:
            raise Problem(504, f"no answer within {self.limits.answer_seconds:g} s; want less at a time") from None
        finally:
            self._looking -= 1

    def _look(self, body: bytes) -> bytes:
        document = look.parse_look(body)
        model = self.find(look.model_of(document))
        question = look.read_question(document, model, self.limits)
        found = look.look(model, question)
        contiguous = {
            key: np.ascontiguousarray(value) if isinstance(value, np.ndarray) else value for key, value in found.items()
        }
        return orjson.dumps(contiguous, option=orjson.OPT_SERIALIZE_NUMPY)

    # --- the rest --------------------------------------------------------------------------------------------------

    def list_models(self) -> Answer:
        return Answer(200, self._models_json)

    def samples(self) -> Answer:
        return Answer(200, self._samples_json)

    def health(self) -> Answer:
        return Answer(200, b'{"status":"alive"}')

    def readiness(self) -> Answer:
        dead = [model.ident for model in self.models.values() if not model.engine.is_alive]
        if dead or self.draining:
            reason = "the server is stopping" if self.draining else f"the engine of {', '.join(dead)} does not run"
            raise busy(503, reason, self.limits.retry_seconds)
        return Answer(200, b'{"status":"ready"}')

    def telemetry(self) -> Answer:
        return Answer(200, self.metrics.text(), TEXT)


def _nothing_readable(problems: list[ImageProblem]) -> Problem:
    if len(problems) == 1:
        return Problem(422, problems[0].detail)
    errors = [{"name": one.name, "detail": one.detail} for one in problems]
    detail = f"none of the {len(problems)} images can be read; the first: {problems[0].detail}"
    return Problem(422, detail, errors=errors)


def _answers(model: ServedModel, prepared: list[Ready | ImageProblem], probabilities: np.ndarray) -> dict[str, Any]:
    """One entry an image, in the order they were sent; an image that cannot be read has an error instead."""
    names, rows = model.class_names, iter(probabilities.tolist())
    predictions: list[dict[str, Any]] = []
    for one in prepared:
        if isinstance(one, ImageProblem):
            predictions.append({"name": one.name, "error": one.detail})
            continue
        row = [round(probability, 6) for probability in next(rows)]
        best = max(row)
        predictions.append(
            {
                "name": one.name,
                "label": names[row.index(best)],
                "probability": best,
                "probabilities": dict(zip(names, row, strict=True)),
                "notes": one.notes,
            }
        )
    return {"model": model.ident, "predictions": predictions}
