"""No bytes sent as an image cause a 5xx. (schemathesis over the whole API: test_process.py.)"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient

HEADS = (b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff\xe0", b"RIFF\x00\x00\x00\x00WEBPVP8 ", b"BM", b"GIF89a", b"8BPS", b"%!PS")


def test_image_bytes(client: TestClient, digits: np.ndarray, png: Callable[..., bytes]) -> None:
    seeds = [png(digits[0], kind) for kind in ("PNG", "JPEG", "WEBP", "BMP")]

    @st.composite
    def damaged(draw: st.DrawFn) -> bytes:
        data = bytearray(draw(st.sampled_from(seeds)))
        for _ in range(draw(st.integers(0, 6))):
            data[draw(st.integers(0, len(data) - 1))] = draw(st.integers(0, 255))
        return bytes(data[: draw(st.integers(0, len(data)))] if draw(st.booleans()) else data)

    noise = st.builds(bytes.__add__, st.sampled_from(HEADS), st.binary(max_size=200)) | st.binary(max_size=100)

    @given(st.lists(damaged() | noise, min_size=1, max_size=3))
    @settings(max_examples=120, suppress_health_check=list(HealthCheck))
    def post(files: list[bytes]) -> None:
        response = client.post("/v1/predict", files=[("image", (f"{n}.png", data)) for n, data in enumerate(files)])
        assert response.status_code in (200, 422), response.text
        if response.status_code == 200:
            assert len(response.json()["predictions"]) == len(files)

    post()
    assert client.get("/readyz").status_code == 200
