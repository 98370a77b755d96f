// Tiles of a frame on the screen: its canvases in their box, the tile under the pointer, and the next one by an arrow key.

import { tilePx } from "./layers.js";

const MOVES = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };

/** Pixels of the screen for one of the page, at most two. */
export const pixelRatio = () => Math.min(2, devicePixelRatio || 1);

/** Make the canvases of a frame as large as its box allows; the layers have the pixels of the screen. */
export function fitCanvases(box, picture, layers, frame) {
  const scale = Math.min(box.clientWidth / frame.width, box.clientHeight / frame.height);
  const [width, height] = [Math.round(frame.width * scale), Math.round(frame.height * scale)];
  for (const canvas of [picture, layers]) [canvas.style.width, canvas.style.height] = [`${width}px`, `${height}px`];
  const size = [Math.round(width * pixelRatio()), Math.round(height * pixelRatio())];
  if (layers.width !== size[0] || layers.height !== size[1]) [layers.width, layers.height] = size;
}

/** Row and column of the tile under the pointer; null if it is beside the picture. */
export function tileAt(event, picture, frame, tile, mirrored = false) {
  const box = picture.getBoundingClientRect();
  if (!frame || !box.width) return null;
  const side = tilePx(frame, tile, box.width);
  const across = mirrored ? box.right - event.clientX : event.clientX - box.left;
  const [row, col] = [Math.floor((event.clientY - box.top) / side), Math.floor(across / side)];
  return row >= 0 && col >= 0 && row < frame.rows && col < frame.cols ? [row, col] : null;
}

/** Row and column beside a tile by an arrow key; null for another key. */
export function nextTile(event, [row, col], frame, mirrored = false) {
  const step = MOVES[event.key];
  if (!step || !frame) return null;
  event.preventDefault();
  const inside = (value, end) => Math.max(0, Math.min(end - 1, value));
  return [inside(row + step[0], frame.rows), inside(col + (mirrored ? -step[1] : step[1]), frame.cols)];
}
