"""How much the server accepts; beyond a limit, a client gets a clear response instead of a longer queue.

The longest side of an image is the same for every command: `MAX_SIDE` of data/images.py.
"""

from __future__ import annotations

from dataclasses import dataclass

MEBIBYTE = 1024**2


@dataclass(frozen=True)
class Limits:
    body_bytes: int = 16 * MEBIBYTE  # of one request; more: 413
    json_bytes: int = 4 * MEBIBYTE  # of one in JSON, which takes up to 36 times as much when parsed; more: 413
    bodies_bytes: int = 256 * MEBIBYTE  # of all requests being read or processed; more: 503
    most_images: int = 64  # in one request; more: 422
    most_pixels: int = 16_000_000  # of one image, as its header declares them; more: 422 for that image
    queue_images: int = 1024  # waiting for a model; more: 429
    looks: int = 16  # /v1/look requests waiting or running; more: 429
    look_numbers: int = 4_000_000  # in one response of /v1/look; more: 422
    header_seconds: float = 10.0  # to send the request's head
    body_seconds: float = 15.0  # to send its body; longer: 408
    response_seconds: float = 20.0  # from the last byte of the body to the response; longer: 504
    batch_images: int = 16  # per run of a model; measured: larger batches are no cheaper per image
    decodes: int = 64  # requests with large images, waiting for a thread; more: 429
    heavy_pixels: int = 2_000_000  # larger images are decoded one at a time: decoding takes up to 30 bytes per pixel
    small_body_bytes: int = 64 * 1024  # decoded on the event loop; larger ones in a thread
    small_pixels: int = 320 * 320  # likewise, of all images of a request: 2 ms
    connections: int = 4096  # open at once per worker; more wait to be accepted
    drain_seconds: int = 20  # for requests under way when the server is asked to stop
