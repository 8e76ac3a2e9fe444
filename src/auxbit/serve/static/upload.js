/** A picture of the user's own: dropped, pasted or chosen. */

import { bytes, byId, number } from "./dom.js";

/** Why a file is not worth sending, or null. The server checks again. */
export async function objection(file, stats) {
  if (!file.size) return `${file.name} is empty.`;
  if (file.type && !file.type.startsWith("image/")) {
    return `${file.name} is not a picture (${file.type}). JPEG, PNG, WebP, GIF, TIFF, BMP, AVIF and HEIC are read.`;
  }
  if (file.size > stats.max_upload_bytes) {
    return tooMuch(file, bytes(file.size), bytes(stats.max_upload_bytes));
  }
  const pixels = await pixelsOf(file);
  if (pixels > stats.max_upload_pixels) {
    return tooMuch(file, `${number(pixels)} pixels`, number(stats.max_upload_pixels));
  }
  return null;
}

function tooMuch({ name }, has, most) {
  return `${name} has ${has}; at most ${most} are taken. Send a smaller copy.`;
}

/** Pixels as the browser sees them; 0 where it cannot read the file, of which the server shall judge. */
async function pixelsOf(file) {
  const url = URL.createObjectURL(file);
  try {
    return await new Promise((resolve) => {
      const image = new Image();
      image.onload = () => resolve(image.naturalWidth * image.naturalHeight);
      image.onerror = () => resolve(0);
      image.src = url;
    });
  } finally {
    URL.revokeObjectURL(url);
  }
}

/** Of several files the first picture. */
function pictureAmong(files) {
  const all = Array.from(files ?? []);
  return all.find((file) => file.type.startsWith("image/")) ?? all[0] ?? null;
}

/**
 * Listen on the whole page.
 * @param {(file: File, name: string) => void} take @param {(words: string) => void} refuse
 */
export function listen(take, refuse) {
  const input = byId("file-input");
  const chosen = () => {
    const file = pictureAmong(input.files);
    if (file) take(file, file.name);
    input.value = ""; // the same file may be chosen again
  };
  input.addEventListener("change", chosen);
  chosen(); // a file that was chosen before the page was ready
  listenToPaste(take);
  listenToDrop(take, refuse);
}

function listenToPaste(take) {
  addEventListener("paste", (event) => {
    const file = pictureAmong(event.clipboardData?.files);
    const isText = event.clipboardData?.types.includes("text/plain");
    if (!file || (isText && event.target.matches?.("input"))) return; // text goes where it is pasted
    event.preventDefault();
    take(file, file.name || "pasted picture");
  });
}

function listenToDrop(take, refuse) {
  const veil = byId("drop-veil");
  const hasFiles = (event) => Array.from(event.dataTransfer?.types ?? []).includes("Files");
  const away = () => { veil.hidden = true; };
  let hide = 0;
  addEventListener("dragover", (event) => {
    if (!hasFiles(event)) return;
    event.preventDefault();
    event.dataTransfer.dropEffect = "copy";
    veil.hidden = false;
    clearTimeout(hide);
    hide = setTimeout(away, 400); // the event repeats while something is held over the page
  });
  addEventListener("drop", (event) => {
    away();
    clearTimeout(hide);
    if (!hasFiles(event)) return;
    event.preventDefault();
    const file = pictureAmong(event.dataTransfer.files);
    if (file) take(file, file.name);
    else refuse("That was no file. Drop a picture from a folder, or paste one.");
  });
}

/** Open the browser's file chooser. */
export function choose() {
  byId("file-input").click();
}
