/** Making elements, and words for numbers. Text only ever becomes text: nothing here parses HTML. */

const SVG = "http://www.w3.org/2000/svg";
const PROPERTIES = new Set(["checked", "disabled", "hidden", "value", "tabIndex", "htmlFor"]);

function fill(node, props, children) {
  for (const [name, value] of Object.entries(props)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (PROPERTIES.has(name)) node[name] = value;
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return node;
}

/** An HTML element. Attributes by name, `onclick: f` listens; children are nodes or strings, but for null. */
export function el(tag, props = {}, ...children) {
  return fill(document.createElement(tag), props, children);
}

/** An SVG element, likewise. */
export function svg(tag, props = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), props, children);
}

/** An icon of strokes, 20 × 20. */
export function icon(path) {
  const frame = { viewBox: "0 0 20 20", width: 20, height: 20, "aria-hidden": "true" };
  return svg("svg", frame, svg("path", { d: path }));
}

export const byId = (id) => document.getElementById(id);

const TAIL = 8;

/** The name of a file, the middle of which gives way if there is no room. */
export function fileName(file, { whole = false } = {}) {
  const shown = whole ? file : file.slice(file.lastIndexOf("/") + 1) || file;
  const letters = Array.from(shown);
  const cut = Math.max(0, letters.length - TAIL);
  return el(
    "bdi", { class: "file-name", title: file },
    el("span", {}, letters.slice(0, cut).join("")), el("span", {}, letters.slice(cut).join("")),
  );
}

/** A picture of at most 64 pixels is enlarged in squares, not blurred. */
export function thumbnail(item, { alt = "", lazy = true } = {}) {
  return el("img", {
    src: item.thumbnail, alt, width: 128, height: 128, decoding: "async", draggable: "false",
    loading: lazy ? "lazy" : "eager", class: smallness(item),
  });
}

export const smallness = (item) => (Math.max(item.width, item.height) <= 64 ? "small-picture" : null);

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const parts = new Intl.NumberFormat("en", { maximumSignificantDigits: 4 });

/** 1797 → "1,797"; 0.54666 → "0.5467"; 371555.4 → "371,555". */
export function number(value) {
  if (value === null || value === undefined) return "–";
  if (Number.isInteger(value) || Math.abs(value) >= 1000) return whole.format(value);
  return parts.format(value);
}

const compact = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 4 });

/** For an axis, where room is short: 101026137 → "101M". */
export const shortNumber = (value) => (Math.abs(value) >= 1e5 ? compact.format(value) : number(value));

/** "1 picture", "1,797 pictures". */
export const counted = (n, one, many = `${one}s`) => `${number(n)} ${n === 1 ? one : many}`;

/** 1234567 → "1.2 MB". */
export function bytes(n) {
  const units = ["bytes", "kB", "MB", "GB", "TB"];
  let unit = 0;
  while (n >= 1000 && unit < units.length - 1) [n, unit] = [n / 1000, unit + 1];
  return `${unit === 0 || n >= 100 ? whole.format(n) : n.toFixed(1)} ${units[unit]}`;
}

/** Calls that follow each other within `wait` ms become the last of them; `.now()` runs what is waiting. */
export function debounced(wait, run) {
  let timer = 0;
  let last = null;
  const now = () => {
    clearTimeout(timer);
    if (last === null) return;
    const values = last;
    last = null;
    run(...values);
  };
  const later = (...values) => {
    last = values;
    clearTimeout(timer);
    timer = setTimeout(now, wait);
  };
  later.now = now;
  later.drop = () => { clearTimeout(timer); last = null; };
  return later;
}
