/** A code drawn as bits, by at most four paths however many bits it has. */

import { svg } from "./dom.js";

const CELL = 10;
const SIDE = 7.6;
const REACH = 4.4; // of a diamond, from its middle

/** Columns of a compact grid, without a ragged end where that can be: 64 bits are 16 × 4, 24 are 12 × 2. */
export function columnsOf(n) {
  const most = n <= 128 ? 16 : 32;
  if (n <= most) return n;
  for (let columns = most; columns > most / 2; columns -= 1) if (n % columns === 0) return columns;
  return most;
}

/** How many bits of two codes differ. @param {string} a @param {string} b */
export function differing(a, b) {
  let n = 0;
  for (let i = 0; i < a.length; i += 1) n += a[i] === b[i] ? 0 : 1;
  return n;
}

const square = (x, y) => `M${x + (CELL - SIDE) / 2} ${y + (CELL - SIDE) / 2}h${SIDE}v${SIDE}h-${SIDE}z`;
const diamond = (x, y) =>
  `M${x + CELL / 2} ${y + CELL / 2 - REACH}l${REACH} ${REACH}-${REACH} ${REACH}-${REACH}-${REACH}z`;

/**
 * Ones are dark squares, zeros are light ones; a bit that differs from `query` is a diamond in another
 * colour, filled for a one, hollow for a zero.
 * @param {string} code "0110…" @param {string|null} query
 */
export function drawBits(code, query = null) {
  const columns = columnsOf(code.length);
  const rows = Math.ceil(code.length / columns);
  const paths = { off: "", on: "", "differs-off": "", "differs-on": "" };
  for (let i = 0; i < code.length; i += 1) {
    const x = (i % columns) * CELL;
    const y = Math.floor(i / columns) * CELL;
    const value = code[i] === "1" ? "on" : "off";
    if (query !== null && query[i] !== code[i]) paths[`differs-${value}`] += diamond(x, y);
    else paths[value] += square(x, y);
  }
  const label = query === null
    ? `Code of ${code.length} bits: ${code}`
    : `Code: ${differing(code, query)} of ${code.length} bits differ`;
  return svg(
    "svg",
    { class: "bits", viewBox: `0 0 ${columns * CELL} ${rows * CELL}`, role: "img", "aria-label": label },
    Object.entries(paths).filter(([, d]) => d).map(([name, d]) => svg("path", { class: name, d })),
  );
}

/** What the squares and diamonds mean, as nodes; with reconstructions, which picture is which. */
export function legendOfBits(reconstructs) {
  const sample = (name, shape) => svg(
    "svg", { class: "bits", viewBox: "0 0 10 10", "aria-hidden": "true" },
    svg("path", { class: name, d: shape(0, 0) }),
  );
  const entry = (words, ...shapes) => {
    const node = document.createElement("span");
    node.append(...shapes, words);
    return node;
  };
  return [
    ...(reconstructs ? [entry("left: picture, right: from its code")] : []),
    entry("1", sample("on", square)), entry("0", sample("off", square)),
    entry("differs from the query", sample("differs-on", diamond), sample("differs-off", diamond)),
  ];
}
