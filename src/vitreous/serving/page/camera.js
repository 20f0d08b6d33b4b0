/** The camera: a live picture in place of the image, and one photograph taken from it. Nothing is recorded. */

import { byId, contextOf, make, onClick, setText } from "./dom.js";

const REASONS = /** @type {Record<string, string>} */ ({
  NotAllowedError: "The camera is not allowed on this page: allow it in the browser's settings, or open a picture.",
  NotFoundError: "No camera was found; open a picture instead.",
  NotReadableError: "The camera is in use by another program; close that, or open a picture.",
});
const NO_CAMERA = "The camera could not be started; open a picture instead.";
const INSECURE = "Browsers allow the camera only over https or on this computer itself; open a picture instead.";

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
      setText("draw-error", INSECURE);
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
        setText("draw-error", NO_CAMERA);
      });
      this.#video.srcObject = stream;
      await this.#video.play();
      byId("capture", HTMLButtonElement).disabled = false;
      byId("capture").focus();
    } catch (error) {
      if (!this.#wanted) return;
      this.#leave();
      setText("draw-error", REASONS[/** @type {any} */ (error)?.name] ?? NO_CAMERA);
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
    else setText("draw-error", NO_CAMERA);
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
