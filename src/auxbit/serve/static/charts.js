/** Line charts in SVG, drawn at the width they have, read by pointer or arrow keys. */

import { el, number, shortNumber, svg } from "./dom.js";

const MARGIN = { top: 30, right: 16, bottom: 44 };
const SHAPES = ["circle", "square", "diamond", "triangle", "cross", "bar"];

/** About `n` round numbers that cover low to high. */
export function ticks(low, high, n = 6) {
  if (!(high > low)) return [low];
  const rough = (high - low) / n;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((f) => f * power).find((s) => s >= rough * 0.999);
  const found = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i += 1) {
    found.push(Number((i * step).toPrecision(12)));
  }
  return found;
}

/** Powers of ten within low to high; with 2 and 5 times as much where these are few. */
export function logTicks(low, high) {
  const among = (factors) => {
    const found = [];
    for (let p = Math.floor(Math.log10(low)); p <= Math.ceil(Math.log10(high)); p += 1) {
      found.push(...factors.map((factor) => Number((factor * 10 ** p).toPrecision(1))));
    }
    return found.filter((value) => value >= low * (1 - 1e-9) && value <= high * (1 + 1e-9));
  };
  const powers = among([1]);
  return powers.length > 2 ? powers : among([1, 2, 5]);
}

/** A scale from numbers to pixels. @param {"linear"|"log"} kind */
export function scale(kind, [low, high], [from, to]) {
  const f = kind === "log" ? Math.log10 : (x) => x;
  const width = f(high) - f(low) || 1;
  return (x) => from + ((f(x) - f(low)) / width) * (to - from);
}

/** The mark of a series, so that colour is not all that tells them apart. */
export function mark(series, x, y, size = 4) {
  const s = size;
  const paths = {
    circle: `M${x - s} ${y}a${s} ${s} 0 1 0 ${2 * s} 0a${s} ${s} 0 1 0 ${-2 * s} 0z`,
    square: `M${x - s} ${y - s}h${2 * s}v${2 * s}h${-2 * s}z`,
    diamond: `M${x} ${y - s * 1.3}l${s * 1.3} ${s * 1.3}l${-s * 1.3} ${s * 1.3}l${-s * 1.3} ${-s * 1.3}z`,
    triangle: `M${x} ${y - s * 1.2}l${s * 1.2} ${s * 2.1}h${-s * 2.4}z`,
    cross: `M${x - s} ${y - s}l${2 * s} ${2 * s}M${x - s} ${y + s}l${2 * s} ${-2 * s}`,
    bar: `M${x - s} ${y - s / 2}h${2 * s}v${s}h${-2 * s}z`,
  };
  return svg("path", { class: `mark series-${(series % 6) + 1}`, d: paths[SHAPES[series % 6]] });
}

const sample = (series) => svg(
  "svg", { viewBox: "0 0 14 14", width: 14, height: 14, "aria-hidden": "true" }, mark(series, 7, 7),
);

/** Call `draw(width)` now and whenever the width of the node changes. */
export function whenSized(node, draw) {
  let width = 0;
  new ResizeObserver(() => {
    if (!node.clientWidth || node.clientWidth === width) return;
    width = node.clientWidth;
    draw(width);
  }).observe(node);
}

/** Room to the left for numbers as wide as these. @param {string[]} texts */
export const leftOf = (texts) => 16 + 7.5 * Math.max(1, ...texts.map((text) => text.length));

/** Where a chart is drawn: pixels from left to right, and from the bottom up. */
export const inner = (width, height, left) => ({
  across: [left, width - MARGIN.right], down: [height - MARGIN.bottom, MARGIN.top],
});

/** Frame of a chart: lines across, numbers and names of both axes. */
export function axes(width, height, left, { x, y, xTicks, yTicks, xLabel, yLabel, xText = number }) {
  const right = width - MARGIN.right;
  const bottom = height - MARGIN.bottom;
  return svg(
    "g", { class: "axes" },
    yTicks.map((v) => svg("line", { x1: left, x2: right, y1: y(v), y2: y(v) })),
    yTicks.map((v) => svg("text", { x: left - 8, y: y(v) + 4, "text-anchor": "end" }, shortNumber(v))),
    xTicks.map((v) => svg("text", { x: x(v), y: bottom + 20, "text-anchor": "middle" }, xText(v))),
    svg("text", { x: (left + right) / 2, y: height - 6, "text-anchor": "middle" }, xLabel),
    svg("text", { x: 0, y: 12 }, yLabel),
  );
}

function range(values, kind) {
  const low = Math.min(...values);
  const high = Math.max(...values);
  if (kind === "log") return low === high ? [low / 2, high * 2] : [low / 1.1, high * 1.1];
  const room = (high - low) * 0.06 || Math.abs(high) * 0.1 || 1;
  return [low >= 0 ? Math.max(0, low - room) : low - room, high + room];
}

/**
 * A chart of one or more series over the same kind of x.
 * @param {{label: string, series: {name: string, points: [number, number][]}[],
 *   xLabel: string, yLabel: string, xName: string, xTicks?: number[],
 *   xKind?: "linear"|"log", yKind?: "linear"|"log", height?: number}} options
 */
export function lineChart(options) {
  const { label, series, xLabel, yLabel, xName, xTicks } = options;
  const { xKind = "linear", yKind = "linear", height = 270 } = options;
  const xs = [...new Set(series.flatMap((one) => one.points.map(([x]) => x)))].sort((a, b) => a - b);
  const values = series.map(() => el("output", {}));
  const at = el("span", { class: "chart-at" });
  const legend = el(
    "div", { class: "chart-legend", role: "status" },
    series.map((one, i) => el("span", {}, sample(i), one.name, values[i])),
    at,
  );
  const node = el("div", {
    class: "chart", tabindex: "0", role: "group", "aria-label": `${label}. Arrow keys read values.`,
  });
  const whole = range(series.flatMap((one) => one.points.map(([, y]) => y)), yKind);
  const xRange = xs.length > 1 ? [xs[0], xs[xs.length - 1]] : [xs[0] - 1, xs[0] + 1];
  let chosen = null;
  let x = null;
  let guide = null;

  const read = (index) => {
    chosen = index;
    const value = index === null ? null : xs[index];
    series.forEach((one, i) => {
      const point = one.points.find(([px]) => px === value);
      values[i].textContent = point ? ` ${number(point[1])}` : "";
    });
    at.textContent = value === null ? "" : `${xName} ${number(value)}`;
    guide?.setAttribute("visibility", value === null ? "hidden" : "visible");
    if (value !== null) { guide?.setAttribute("x1", x(value)); guide?.setAttribute("x2", x(value)); }
  };

  whenSized(node, (width) => {
    const yTicks = yKind === "log" ? logTicks(...whole) : ticks(...whole);
    const left = leftOf(yTicks.map(shortNumber));
    const { across, down } = inner(width, height, left);
    x = scale(xKind, xRange, across);
    const y = scale(yKind, whole, down);
    const room = Math.max(2, Math.floor((across[1] - across[0]) / 48));
    const shownX = xTicks ?? ticks(...xRange, Math.min(room, 10)).filter(Number.isInteger);
    guide = svg("line", { class: "guide", y1: down[0], y2: down[1], visibility: "hidden" });
    node.replaceChildren(svg(
      "svg", { width, height, viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" },
      axes(width, height, left, { x, y, xLabel, yLabel, yTicks, xTicks: shownX.length ? shownX : xs }),
      guide,
      series.map(({ points }, i) => svg(
        "g", {},
        svg("path", {
          class: `line series-${(i % 6) + 1}`,
          d: points.map(([px, py], j) => `${j ? "L" : "M"}${x(px)} ${y(py)}`).join(""),
        }),
        points.length <= 60 ? points.map(([px, py]) => mark(i, x(px), y(py), 3.4)) : null,
      )),
    ));
    read(chosen);
  });

  node.addEventListener("pointermove", (event) => {
    const place = event.clientX - node.getBoundingClientRect().left;
    const away = (i) => Math.abs(x(xs[i]) - place);
    read(xs.reduce((best, _, i) => (away(i) < away(best) ? i : best), 0));
  });
  node.addEventListener("pointerleave", () => read(null));
  node.addEventListener("blur", () => read(null));
  node.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1, Home: -xs.length, End: xs.length }[event.key];
    if (step === undefined) return;
    event.preventDefault();
    const first = step === -1 || step === xs.length ? xs.length - 1 : 0;
    read(chosen === null ? first : Math.min(xs.length - 1, Math.max(0, chosen + step)));
  });
  return el("figure", {}, legend, node);
}

/** A table, folded away, that says what a chart draws. */
export function tableOf(summary, heads, rows) {
  return el("details", {}, el("summary", {}, summary), tableAlone(heads, rows, "bounded"));
}

/** A table. Numbers are set to the right, with `decimals` of their column where these are given. */
export function tableAlone(heads, rows, kind = "", decimals = []) {
  const isNumber = heads.map((_, i) => rows.some((row) => typeof row[i] === "number"));
  const text = (value, i) => {
    if (typeof value !== "number") return value ?? "–";
    return decimals[i] === undefined ? number(value) : value.toFixed(decimals[i]);
  };
  const cell = (tag, content, i, more = {}) => (
    el(tag, { class: isNumber[i] ? "number" : null, ...more }, content));
  return el(
    "div", { class: `table-wrap ${kind}`, tabindex: "0", role: "region", "aria-label": "Table" },
    el(
      "table", {},
      el("thead", {}, el("tr", {}, heads.map((head, i) => cell("th", head, i, { scope: "col" })))),
      el("tbody", {}, rows.map((row) => el("tr", {}, row.map((value, i) => cell("td", text(value, i), i))))),
    ),
  );
}
