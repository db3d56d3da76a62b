// An image of a record: its bytes as they are, pixels on a canvas, or the address as text.
import { make } from "./util.js";

function bytesOf(base64) {
  return Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
}

export function picture(image) {
  if (image.kind === "encoded") {
    const from = URL.createObjectURL(new Blob([bytesOf(image.data)], { type: image.type }));
    const shown = make("img", { src: from, alt: "image of the record" });
    const free = () => URL.revokeObjectURL(from);
    shown.addEventListener("load", free);
    shown.addEventListener("error", () => {
      free();
      shown.replaceWith(make("span", { class: "soft", text: `an ${image.type} that cannot be shown` }));
    });
    return shown;
  }
  if (image.kind !== "pixels") return make("span", { class: "soft", text: image.text });
  const { width, height, channels } = image;
  const given = bytesOf(image.data);
  const pixels = new Uint8ClampedArray(width * height * 4);
  for (let at = 0; at < width * height; at += 1) {
    for (let part = 0; part < 3; part += 1) {
      pixels[4 * at + part] = given[at * channels + (channels === 1 ? 0 : part)];
    }
    pixels[4 * at + 3] = channels === 4 ? given[at * channels + 3] : 255;
  }
  const canvas = make("canvas", { width, height, role: "img", "aria-label": "image of the record" });
  canvas.getContext("2d").putImageData(new ImageData(pixels, width, height), 0, 0);
  return canvas;
}
