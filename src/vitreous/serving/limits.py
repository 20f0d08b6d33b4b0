"""How much of anything the server takes on; beyond it there is a clear answer, never a longer queue."""

from __future__ import annotations

from dataclasses import dataclass

MEBIBYTE = 1024**2


@dataclass(frozen=True)
class Limits:
    body_bytes: int = 16 * MEBIBYTE  # one request's body; more: 413
    bodies_bytes: int = 256 * MEBIBYTE  # all bodies being read or worked on; more: 503
    most_images: int = 64  # in one request; more: 422
    most_pixels: int = 16_000_000  # one image's, as its header declares them; more: 422 for that image
    queue_images: int = 1024  # waiting for a model; more: 429
    looks: int = 16  # /v1/look requests waiting or running; more: 429
    look_numbers: int = 4_000_000  # in one answer of /v1/look; more: 422
    header_seconds: float = 10.0  # to send the request's head
    body_seconds: float = 15.0  # to send its body; longer: 408
    answer_seconds: float = 20.0  # from the body's last byte to the answer; longer: 504
    retry_seconds: int = 1  # what Retry-After says
    batch_images: int = 16  # one run of a model; measured: beyond this an image costs no less
    gather_seconds: float = 0.0  # how long a batch waits for more when the model is free
    decodes: int = 64  # requests with large images, waiting for a thread; more: 429
    heavy_pixels: int = 2_000_000  # larger images are decoded one at a time: they take 40 bytes a pixel on the way
    small_body_bytes: int = 64 * 1024  # decoded at once on the event loop; larger ones in a thread
    small_pixels: int = 128 * 128  # likewise
    connections: int = 4096  # open at once, a worker; more wait to be accepted
    drain_seconds: int = 20  # for what is under way when the server is told to stop
