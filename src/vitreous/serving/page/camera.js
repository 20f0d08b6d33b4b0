/** The camera: a live picture in place of the image, and one photograph taken from it. Nothing is recorded. */

import { byId, contextOf, make, onClick, setText } from "./dom.js";
import { text } from "./texts.js";

const REASONS = /** @type {const} */ (["NotAllowedError", "NotFoundError", "NotReadableError"]);

export class Camera {
  #video = byId("camera", HTMLVideoElement);
  /** @type {MediaStream | null} */
  #stream = null;
  #wanted = false;

  /** @param {(photo: Blob) => void} onPhoto */
  constructor(onPhoto) {
    this.onPhoto = onPhoto;
    const takeByPhone = byId("capture-file", HTMLInputElement);
    onClick("take-photo", () => {
      // a phone's own camera works without https, too
      if (!navigator.mediaDevices && matchMedia("(pointer: coarse)").matches) takeByPhone.click();
      else void this.open();
    });
    onClick("capture", () => void this.#capture());
    onClick("close-camera", () => this.#leave());
    document.addEventListener("keydown", (event) => {
      if (event.key !== "Escape" || !this.#wanted) return;
      event.stopImmediatePropagation(); // it would also end the tour
      this.#leave();
    }, { capture: true });
    document.addEventListener("visibilitychange", () => document.hidden && this.close());
  }

  async open() {
    setText("draw-error", "");
    if (!navigator.mediaDevices) {
      setText("draw-error", text("camera.insecure"));
      return;
    }
    this.#show(true);
    try {
      const video = { facingMode: "environment", width: { ideal: 1280 }, height: { ideal: 960 } };
      const stream = await navigator.mediaDevices.getUserMedia({ video });
      if (!this.#wanted) {
        stop(stream); // closed while the browser asked
        return;
      }
      this.#stream = stream;
      stream.getVideoTracks()[0].addEventListener("ended", () => {
        this.close();
        setText("draw-error", text("camera.failed"));
      });
      this.#video.srcObject = stream;
      await this.#video.play();
      byId("capture", HTMLButtonElement).disabled = false;
      byId("capture").focus();
    } catch (error) {
      if (!this.#wanted) return;
      this.#leave();
      const reason = REASONS.find((name) => name === /** @type {any} */ (error)?.name);
      setText("draw-error", text(reason ? `camera.${reason}` : "camera.failed"));
    }
  }

  close() {
    if (this.#stream !== null) stop(this.#stream);
    this.#stream = null;
    this.#video.srcObject = null;
    this.#show(false);
  }

  #leave() {
    this.close();
    byId("take-photo").focus();
  }

  async #capture() {
    const { videoWidth: width, videoHeight: height } = this.#video;
    const canvas = make("canvas", { width, height });
    contextOf(canvas).drawImage(this.#video, 0, 0);
    this.#leave();
    const photo = await new Promise((resolve) => canvas.toBlob(resolve)); // as PNG, which loses nothing
    if (photo instanceof Blob) this.onPhoto(photo);
    else setText("draw-error", text("camera.failed"));
  }

  /** @param {boolean} shown */
  #show(shown) {
    this.#wanted = shown;
    byId("camera-panel").hidden = !shown;
    byId("capture", HTMLButtonElement).disabled = true;
    for (const id of ["open", "take-photo", "undo"]) byId(id).hidden = shown;
    for (const id of ["capture", "close-camera"]) byId(id).hidden = !shown;
  }
}

/** @param {MediaStream} stream */
function stop(stream) {
  for (const track of stream.getTracks()) track.stop();
}
