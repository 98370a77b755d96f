// Layers over a picture, drawn from the map that comes with it: outlines of regions, heat map, dimming, the model's view.

export const OUTLINES = ["255,226,92", "150,190,255", "122,150,205", "110,130,170", "100,115,145", "95,105,130"];
const BRIGHTNESS = [1, 0.8, 0.66, 0.56, 0.5, 0.45];
const UNSEEN_BRIGHTNESS = 0.3;
const PATCH_PX = 32;
const HEAT = [[0, 13, 8, 60], [0.25, 92, 20, 120], [0.5, 188, 55, 84], [0.75, 243, 130, 30], [1, 252, 250, 160]];

export const heatTable = Uint8Array.from({ length: 256 * 3 }, (_, at) => {
  const value = Math.floor(at / 3) / 255;
  const above = Math.max(1, HEAT.findIndex(([from]) => from >= value));
  const [low, high] = [HEAT[above - 1], HEAT[above]];
  const share = (value - low[0]) / (high[0] - low[0]);
  return Math.round(low[1 + (at % 3)] + share * (high[1 + (at % 3)] - low[1 + (at % 3)]));
});

/** Whether the region of a number is of the overview: the first regions of a frame, later ones of a group of pictures. */
function isOverview(number, { overview, overviewBegin = 0 }) {
  return number >= overviewBegin && number < overviewBegin + overview;
}

/** The regions of a frame as boxes on its tile grid. `shapes` has log2 of rows and columns by shape code. */
export function regionsOf(frame, shapes) {
  const found = [];
  for (let at = 0; at < frame.regions.length; at += 3) {
    const [shape, row, col] = frame.regions.subarray(at, at + 3);
    const [a, b] = shapes[shape] ?? [0, 0];
    const [top, left] = [row << a, col << b];
    found.push({
      shape, row, col, top, left,
      bottom: Math.min(top + (1 << a), frame.rows), right: Math.min(left + (1 << b), frame.cols),
      level: Math.max(a, b), finest: Math.min(a, b), square: a === b, overview: isOverview(at / 3, frame),
    });
  }
  return found;
}

const STATES = { new: "255,130,240", superseded: "255,96,64" };

/** The tokens of the group of pictures of an inspection as regions, each with its `state` and the media time that it
 * shows; those that are drawn over others come last. */
export function tokensOf({ head, tokens, rows, cols }, shapes) {
  if (!head.group) return [];
  const at = [...Array(head.group.tokens).keys()];
  const regions = Int16Array.from(at.flatMap((index) => [...tokens.subarray(5 * index, 5 * index + 3)]));
  const { appended, overview, overview_begin: overviewBegin, times } = head.group;
  const held = regionsOf({ regions, rows, cols, overview, overviewBegin }, shapes).map((one, index) => {
    const state = index >= at.length - appended ? "new" : tokens[5 * index + 4] ? "superseded" : "shown";
    return { ...one, state, since: times[tokens[5 * index + 3]], colour: STATES[state] };
  });
  return ["superseded", "shown", "new"].flatMap((state) => held.filter((one) => one.state === state));
}

/** The finest region that shows a tile; undefined if none does. */
export function regionAt(regions, row, col) {
  return regions
    .filter((one) => one.top <= row && row < one.bottom && one.left <= col && col < one.right)
    .sort((a, b) => a.level - b.level)[0];
}

/** Mean relevance, 0 to 1, of a region's tiles. */
export function relevanceOf(frame, region) {
  let [sum, count] = [0, 0];
  for (let row = region.top; row < region.bottom; row++) {
    for (let col = region.left; col < region.right; col++, count++) sum += frame.relevance[row * frame.cols + col];
  }
  return count ? sum / count / 255 : 0;
}

/** Pixels of one tile in a picture that is drawn `width` wide; frames need not end with a whole tile. */
export function tilePx(frame, tile, width) {
  return ((tile >> frame.level) * width) / frame.width;
}

export function drawOutlines(context, regions, side, hidden, ratio) {
  const inset = ratio;
  for (const [style, width] of [["dark", 2 * ratio], ["own", ratio]]) {
    context.lineWidth = width;
    for (const one of regions) {
      if (one.overview || hidden.has(one.level)) continue;
      context.strokeStyle = style === "dark" ? "rgba(16,16,30,.45)" : `rgba(${one.colour ?? OUTLINES[one.level]},.95)`;
      context.strokeRect(
        one.left * side + inset, one.top * side + inset,
        (one.right - one.left) * side - 2 * inset, (one.bottom - one.top) * side - 2 * inset,
      );
    }
  }
}

const BOX = "255,158,66";
const BOXES_DRAWN = 100;
const LABEL_CHARS = 40;

/** Draw boxes, points and labels of an answer's detections on a picture that is drawn `width` wide. */
export function drawDetections(context, { objects, width_px }, width, ratio, mirrored) {
  const scale = width / width_px;
  const height = 13 * ratio;
  context.font = `600 ${height}px system-ui, sans-serif`;
  context.textBaseline = "middle";
  for (const { label, box, point, score } of objects.slice(0, BOXES_DRAWN)) {
    const [left, top, right, bottom] = (box ?? [...point, ...point]).map((edge) => edge * scale);
    for (const [style, lineWidth] of [["rgba(16,16,30,.6)", 4 * ratio], [`rgb(${BOX})`, 2 * ratio]]) {
      [context.strokeStyle, context.lineWidth] = [style, lineWidth];
      if (box) context.strokeRect(left, top, right - left, bottom - top);
    }
    if (!box) {
      context.fillStyle = `rgb(${BOX})`;
      context.beginPath();
      context.arc(left, top, 5 * ratio, 0, 2 * Math.PI);
      context.fill();
      context.stroke();
    }
    const words = [label.slice(0, LABEL_CHARS), score?.toFixed(2)].filter(Boolean).join(" ");
    if (!words) continue;
    const wide = context.measureText(words).width + 8 * ratio;
    const tall = height + 6 * ratio;
    const x = Math.max(0, Math.min(mirrored ? right - wide : left, width - wide));
    const y = top >= tall ? top - tall : Math.min(bottom, context.canvas.height - tall);
    context.fillStyle = "rgba(16,16,30,.85)";
    context.fillRect(x, y, wide, tall);
    context.save();
    context.translate(mirrored ? x + wide : x, y + tall / 2);
    if (mirrored) context.scale(-1, 1);
    context.fillStyle = `rgb(${BOX})`;
    context.fillText(words, 4 * ratio, 0);
    context.restore();
  }
}

/** Draw boxes in the pixels of `picture`, its width and height, over a canvas that shows all of it. */
export function drawBoxes(context, boxes, { width, height }) {
  const { canvas } = context;
  const [across, down] = [canvas.width / width, canvas.height / height];
  const objects = boxes.map(([left, top, right, bottom]) => ({ label: "", box: [left * across, top * down, right * across, bottom * down] }));
  drawDetections(context, { objects, width_px: canvas.width }, canvas.width, Math.max(1, canvas.width / 500), false);
}

export function drawDimming(context, frame, regions, side) {
  const shown = new Float32Array(frame.rows * frame.cols).fill(UNSEEN_BRIGHTNESS);
  for (const one of [...regions].sort((a, b) => b.level - a.level)) {
    for (let row = one.top; row < one.bottom; row++) {
      shown.fill(BRIGHTNESS[one.level], row * frame.cols + one.left, row * frame.cols + one.right);
    }
  }
  for (let row = 0; row < frame.rows; row++) {
    for (let col = 0; col < frame.cols; ) {
      const brightness = shown[row * frame.cols + col];
      let end = col + 1;
      while (end < frame.cols && shown[row * frame.cols + end] === brightness) end++;
      if (brightness < 1) {
        context.fillStyle = `rgba(0,0,0,${1 - brightness})`;
        context.fillRect(col * side, row * side, (end - col) * side, side);
      }
      col = end;
    }
  }
}

const heat = document.createElement("canvas");

export function drawHeat(context, frame, side, relative) {
  const { rows, cols, relevance } = frame;
  let [low, high] = [0, 255];
  if (relative) {
    low = relevance.reduce((a, b) => Math.min(a, b), 255);
    high = Math.max(low + 1, relevance.reduce((a, b) => Math.max(a, b), 0));
  }
  [heat.width, heat.height] = [cols, rows];
  const small = heat.getContext("2d");
  const pixels = small.createImageData(cols, rows);
  for (let at = 0; at < relevance.length; at++) {
    const value = Math.max(0, Math.min(255, Math.round(((relevance[at] - low) * 255) / (high - low))));
    pixels.data.set(heatTable.subarray(3 * value, 3 * value + 3), 4 * at);
    pixels.data[4 * at + 3] = 70 + 0.55 * value;
  }
  small.putImageData(pixels, 0, 0);
  context.imageSmoothingEnabled = true;
  context.drawImage(heat, 0, 0, cols * side, rows * side);
}

const mips = [];
const patch = Object.assign(document.createElement("canvas"), { width: PATCH_PX, height: PATCH_PX });

/** Draw each region at the detail that its token has: 32×32 texels, whatever part of the picture it covers. */
export function drawAsModelSees(context, picture, frame, regions, tile) {
  const side = tile >> frame.level;
  context.fillStyle = "#000";
  context.fillRect(0, 0, frame.width, frame.height);
  const levels = [picture];
  const deepest = Math.max(0, ...regions.map((one) => one.finest - frame.level));
  for (let level = 1; level <= deepest; level++) {
    const mip = (mips[level] ??= document.createElement("canvas"));
    const before = levels[level - 1];
    [mip.width, mip.height] = [Math.ceil(before.width / 2), Math.ceil(before.height / 2)];
    const on = mip.getContext("2d");
    on.drawImage(before, 0, 0, before.width, before.height, 0, 0, before.width / 2, before.height / 2);
    levels.push(mip);
  }
  const small = patch.getContext("2d");
  for (const one of [...regions].sort((a, b) => b.level - a.level)) {
    const [x, y] = [one.left * side, one.top * side];
    const [width, height] = [(one.right - one.left) * side, (one.bottom - one.top) * side];
    const level = Math.max(0, one.finest - frame.level);
    const scale = 2 ** level;
    const source = [x / scale, y / scale, width / scale, height / scale];
    if (one.square) {
      context.imageSmoothingEnabled = false;
      context.drawImage(levels[level], ...source, x, y, width, height);
    } else {
      small.drawImage(levels[level], ...source, 0, 0, PATCH_PX, PATCH_PX);
      context.imageSmoothingEnabled = false;
      context.drawImage(patch, 0, 0, PATCH_PX, PATCH_PX, x, y, width, height);
    }
  }
}
