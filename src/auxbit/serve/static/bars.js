/** Bars and the heat map: balance and correlation of bits, sizes of buckets. */

import { axes, inner, leftOf, logTicks, scale, ticks, whenSized } from "./charts.js";
import { counted, el, number, svg } from "./dom.js";

const HEIGHT = 230;

/** A chart of n bars side by side, of which one is read at a time. @param {(i: number) => string} words */
function barReader(n, words, name, left) {
  const out = el("p", { class: "chart-read", role: "status" }, " ");
  const node = el("div", {
    class: "chart", tabindex: "0", role: "group", "aria-label": `${name}. Arrow keys read values.`,
  });
  let chosen = null;
  const read = (index) => {
    chosen = index;
    out.textContent = index === null ? " " : words(index);
    for (const bar of node.querySelectorAll("[data-chosen]")) bar.removeAttribute("data-chosen");
    if (index !== null) node.querySelector(`[data-index="${index}"]`)?.setAttribute("data-chosen", "");
  };
  node.addEventListener("pointermove", (event) => {
    const [from, to] = inner(node.clientWidth, HEIGHT, left).across;
    const place = (event.clientX - node.getBoundingClientRect().left - from) / (to - from);
    read(Math.min(n - 1, Math.max(0, Math.floor(place * n))));
  });
  node.addEventListener("pointerleave", () => read(null));
  node.addEventListener("blur", () => read(null));
  node.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1, Home: -n, End: n }[event.key];
    if (step === undefined) return;
    event.preventDefault();
    const first = step === -1 || step === n ? n - 1 : 0;
    read(chosen === null ? first : Math.min(n - 1, Math.max(0, chosen + step)));
  });
  return { node, out };
}

const picture = (width, ...content) => svg(
  "svg", { width, height: HEIGHT, viewBox: `0 0 ${width} ${HEIGHT}`, "aria-hidden": "true" }, ...content,
);

/** One bar per bit, up or down from one half. @param {number[]} shares of ones */
export function balanceChart(shares) {
  const n = shares.length;
  const farthest = Math.max(...shares.map((share) => Math.abs(share - 0.5)));
  const reach = Math.min(0.5, Math.max(0.2, Math.ceil(farthest * 10) / 10));
  const yTicks = [-1, -0.5, 0, 0.5, 1].map((part) => Number((0.5 + part * reach).toFixed(3)));
  const left = leftOf(yTicks.map(number));
  const words = (i) => `Bit ${i}: 1 in ${(100 * shares[i]).toFixed(1)} % of the items`;
  const { node, out } = barReader(n, words, "Share of ones by bit", left);
  whenSized(node, (width) => {
    const { across, down } = inner(width, HEIGHT, left);
    const x = scale("linear", [0, n], across);
    const y = scale("linear", [0.5 - reach, 0.5 + reach], down);
    const wide = Math.max(1, (x(1) - x(0)) * 0.78);
    const among = ticks(0, n, Math.min(8, Math.floor(width / 60)));
    const xTicks = among.filter((tick) => Number.isInteger(tick) && tick < n);
    const middle = (bit) => x(bit + 0.5);
    node.replaceChildren(picture(
      width,
      axes(width, HEIGHT, left, { x: middle, y, xTicks, yTicks, xLabel: "bit", yLabel: "share of ones" }),
      shares.map((share, i) => svg("rect", {
        class: "bar-shape", "data-index": i, x: middle(i) - wide / 2, width: wide,
        y: y(Math.max(share, 0.5)), height: Math.max(1, Math.abs(y(share) - y(0.5))),
      })),
      svg("line", { class: "half", x1: x(0), x2: x(n), y1: y(0.5), y2: y(0.5) }),
    ));
  });
  return el("figure", {}, node, out);
}

/** Buckets by size, in steps of doubling. @param {{items: number, buckets: number}[]} sizes */
export function doubled(sizes) {
  const bins = [];
  for (const { items, buckets } of sizes) {
    const bin = items <= 1 ? 0 : Math.ceil(Math.log2(items));
    bins[bin] = (bins[bin] ?? 0) + buckets;
  }
  return Array.from(bins, (buckets, bin) => {
    const low = bin < 2 ? bin + 1 : 2 ** (bin - 1) + 1;
    return { words: low === 2 ** bin ? `${low}` : `${low}–${2 ** bin}`, buckets: buckets ?? 0 };
  });
}

/** A histogram on a logarithmic scale, for there are many small buckets and few large ones. */
export function bucketChart(sizes) {
  const bins = doubled(sizes);
  const n = bins.length;
  const most = Math.max(...bins.map((bin) => bin.buckets), 1);
  const yTicks = logTicks(1, Math.max(10, most)).filter((value) => value <= most * 1.3);
  const left = leftOf(yTicks.map(number));
  const words = (i) => (bins[i].words === "1"
    ? `${counted(bins[i].buckets, "code")} of one item only`
    : `${counted(bins[i].buckets, "code")} of ${bins[i].words} items each`);
  const { node, out } = barReader(n, words, "Number of codes by how many items share them", left);
  whenSized(node, (width) => {
    const { across, down } = inner(width, HEIGHT, left);
    const x = scale("linear", [0, n], across);
    const y = scale("log", [0.5, most * 1.3], down);
    const wide = Math.min(64, (x(1) - x(0)) * 0.7);
    const every = Math.ceil((n * 58) / width); // labels that would touch each other are left out
    const xTicks = bins.map((_, i) => i).filter((i) => i % every === 0);
    node.replaceChildren(picture(
      width,
      axes(width, HEIGHT, left, {
        x: (i) => x(i + 0.5), y, xTicks, yTicks,
        xLabel: "items with the same code", yLabel: "codes (log scale)", xText: (i) => bins[i].words,
      }),
      bins.map((bin, i) => (bin.buckets ? svg("rect", {
        class: "bar-shape", "data-index": i, x: x(i + 0.5) - wide / 2, width: wide, y: y(bin.buckets),
        height: y(0.5) - y(bin.buckets), rx: 2,
      }) : null)),
    ));
  });
  return el("figure", {}, node, out);
}

const colour = (name) => {
  const text = getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  return [1, 3, 5].map((i) => parseInt(text.slice(i, i + 2), 16));
};

/** Pairs of different bits, the strongest first. @returns {{a: number, b: number, value: number}[]} */
export function pairs(matrix) {
  const found = [];
  for (let a = 0; a < matrix.length; a += 1) {
    for (let b = a + 1; b < matrix.length; b += 1) found.push({ a, b, value: matrix[a][b] ?? 0 });
  }
  return found.sort((p, q) => Math.abs(q.value) - Math.abs(p.value));
}

/** The correlation of bits as a map of colours. @param {number} most the end of the scale */
export function heatMap(matrix, most) {
  const n = matrix.length;
  const canvas = el("canvas", {
    width: n, height: n, class: "heat", role: "img", "aria-label": `Correlation of ${n} bits with each other`,
  });
  const out = el("p", { class: "chart-read", role: "status" }, " ");
  const paint = () => {
    const context = canvas.getContext("2d");
    const image = context.createImageData(n, n);
    const [middle, low, high] = [colour("--surface"), colour("--series-1"), colour("--series-2")];
    const own = colour("--sunken");
    for (let i = 0; i < n * n; i += 1) {
      const [row, column] = [Math.floor(i / n), i % n];
      const value = Math.max(-1, Math.min(1, (matrix[row][column] ?? 0) / most));
      const end = value < 0 ? low : high;
      const part = Math.abs(value);
      for (let c = 0; c < 3; c += 1) {
        image.data[4 * i + c] = row === column ? own[c] : Math.round(middle[c] + (end[c] - middle[c]) * part);
      }
      image.data[4 * i + 3] = 255;
    }
    context.putImageData(image, 0, 0);
  };
  paint();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", paint);
  canvas.addEventListener("pointermove", (event) => {
    const box = canvas.getBoundingClientRect();
    const at = (place, size) => Math.min(n - 1, Math.max(0, Math.floor((place / size) * n)));
    const [a, b] = [at(event.clientY - box.top, box.height), at(event.clientX - box.left, box.width)];
    out.textContent = a === b ? `Bit ${a} with itself` : `Bits ${a} and ${b}: ${number(matrix[a][b])}`;
  });
  canvas.addEventListener("pointerleave", () => { out.textContent = " "; });
  const key = el(
    "div", { class: "heat-key", "aria-hidden": "true" },
    el("span", {}, `−${number(most)}`), el("i"), el("span", {}, `+${number(most)}`),
  );
  return el("figure", { class: "heat-figure" }, canvas, key, out);
}
