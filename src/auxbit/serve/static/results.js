/** The query and its results, drawn. */

import { drawBits } from "./bits.js";
import { counted, el, fileName, icon, number, thumbnail } from "./dom.js";
import { button } from "./notices.js";
import { titleOf, words } from "./rows.js";

const TURNED = ["mirrored", "turned left", "upside down", "turned right"]; // the other views are parts
const ENLARGE = "M12 3h5v5M17 3l-6 6M8 17H3v-5M3 17l6-6";

/** What a query or a result is called. */
export function nameOf(entry) {
  if (entry.file) return entry.file;
  if (entry.metadata) return titleOf(entry);
  if (entry.upload) return "Picture of your own";
  if (entry.text) return `“${entry.text}”`;
  return entry.id === null || entry.id === undefined ? "Your vector" : `Item ${entry.id}`;
}

function figure(picture, caption) {
  return el("figure", {}, picture, caption ? el("figcaption", {}, caption) : null);
}

function reconstruction(entry, alt) {
  return el("img", {
    src: entry.reconstruction, alt, width: 128, height: 128, decoding: "async", loading: "lazy",
    draggable: "false", class: "small-picture",
  });
}

/** The picture that was asked about, its code and what the code stands for. */
export function drawQuery(node, answer, open) {
  const { query } = answer;
  if (!query.thumbnail) return void drawWords(node, query);
  const ones = Array.from(query.code).filter((bit) => bit === "1").length;
  const picture = thumbnail(query, { alt: `The query, ${nameOf(query)}`, lazy: false });
  picture.addEventListener("click", () => open(0));
  const rebuilt = query.reconstruction ? reconstruction(query, "The query as its code stands for it") : null;
  const facts = [
    query.id === null ? "Your picture" : `Picture ${query.id}`,
    `${number(query.width)} × ${number(query.height)} pixels`,
  ];
  node.replaceChildren(
    el(
      "div", { class: "query-pictures" },
      figure(picture, rebuilt ? "Query" : null), rebuilt ? figure(rebuilt, "From its code") : null,
    ),
    el(
      "div", { class: "query-words" },
      el("h2", {}, fileName(nameOf(query), { whole: true })),
      el("p", { class: "facts" }, facts.join(" · ")),
      el(
        "div", { class: "query-code" }, drawBits(query.code),
        el("span", {}, `Its code: ${counted(query.code.length, "bit")}, ${number(ones)} of them 1`),
      ),
      button("Open picture", () => open(0), "open-picture"),
    ),
  );
}

/** A query that is no picture. */
function drawWords(node, query) {
  node.replaceChildren(el(
    "div", { class: "query-words" },
    query.metadata ? words(query) : el("h2", {}, nameOf(query)),
    el("p", { class: "facts" }, query.id === null ? "What you searched for" : "Searched from this item"),
    query.code ? el(
      "div", { class: "query-code" }, drawBits(query.code),
      el("span", {}, `Its code: ${counted(query.code.length, "bit")}`),
    ) : null,
  ));
}

/** In place of a query that is on its way. */
export function drawWaitingQuery(node) {
  node.replaceChildren(
    el("div", { class: "skeleton query-waiting" }),
    el(
      "div", { class: "query-words" },
      el("div", { class: "skeleton line" }), el("div", { class: "skeleton line short" }),
    ),
  );
}

/** In place of results that are on their way. */
export function drawWaitingCards(node, n) {
  const one = () => el("div", { class: "card waiting skeleton", "aria-hidden": "true" });
  node.replaceChildren(...Array.from({ length: Math.min(n, 24) }, one));
}

/** The distance in words, and the bits where that is something else; decimals as the farthest needs them. */
function distanceWords(answer, result, farthest) {
  const bits = `${result.hamming} of ${counted(answer.query.code.length, "bit")}`;
  const decimals = Math.max(0, Math.min(6, 3 - Math.floor(Math.log10(farthest || 1))));
  return answer.mode === "hamming" ? [bits, null] : [result.distance.toFixed(decimals), bits];
}

/** How a picture was found, if not as it is. */
const seenAs = (view) => (TURNED.includes(view) ? view : `a part of it, ${view}`);

function card(answer, result, index, farthest, href) {
  const [main, other] = distanceWords(answer, result, farthest);
  const bar = el("i");
  bar.style.width = `${farthest > 0 ? (100 * result.distance) / farthest : 0}%`;
  const differ = other ? `, ${other} differ` : "";
  const label = `${index + 1}. ${nameOf(result)}, distance ${main}${differ}. Search from it`;
  const link = el("a", {
    href: href(result), "aria-label": label, title: nameOf(result), tabindex: "-1", draggable: "false",
  });
  const distance = el("p", { class: "distance" }, el("strong", {}, main), other ? el("span", {}, other) : null);
  const meter = el("div", { class: "meter", "aria-hidden": "true" }, bar);
  if (result.file === undefined) {
    const near = el("div", { class: "row-near" }, distance, meter, drawBits(result.code, answer.query.code));
    return el("div", { class: "card row", role: "listitem" }, link, words(result), near);
  }
  const open = { type: "button", tabindex: "-1", "aria-label": `Open ${result.file}`, title: "Open picture" };
  return el(
    "div", { class: "card", role: "listitem" },
    link,
    el("button", open, icon(ENLARGE)),
    el(
      "div", { class: "card-pictures" }, thumbnail(result),
      result.reconstruction ? reconstruction(result, "") : null,
    ),
    el(
      "div", { class: "card-words" },
      distance, meter, drawBits(result.code, answer.query.code),
      fileName(result.file), result.view ? el("p", { class: "view-name" }, seenAs(result.view)) : null,
    ),
  );
}

/** Cards that are reached by one Tab and walked by arrow keys. */
export class Cards {
  /** @param {HTMLElement} node @param {{pick, open, href}} actions */
  constructor(node, actions) {
    this.node = node;
    this.actions = actions;
    this.results = [];
    this.active = 0;
    node.addEventListener("keydown", (event) => this.#key(event));
    node.addEventListener("focusin", (event) => this.#activate(this.#indexOf(event.target)));
    node.addEventListener("click", (event) => this.#clicked(event));
  }

  draw(answer) {
    this.results = answer.results;
    const farthest = Math.max(0, ...answer.results.map((result) => result.distance));
    const cards = answer.results.map((result, i) => card(answer, result, i, farthest, this.actions.href));
    this.node.classList.toggle("rows", answer.results[0]?.file === undefined && answer.results.length > 0);
    this.node.classList.toggle("with-reconstructions", Boolean(answer.results[0]?.reconstruction));
    this.node.replaceChildren(...cards);
    this.active = 0;
    this.#activate(0);
  }

  clear() {
    this.results = [];
    this.node.replaceChildren();
  }

  focus(index = 0) {
    this.node.children[index]?.querySelector("a")?.focus({ preventScroll: true });
  }

  #indexOf(target) {
    return Array.prototype.indexOf.call(this.node.children, target.closest(".card"));
  }

  #activate(index) {
    const set = (at, value) => {
      for (const part of this.node.children[at]?.querySelectorAll("a, button") ?? []) part.tabIndex = value;
    };
    set(this.active, -1);
    set(index, 0);
    this.active = index;
  }

  #clicked(event) {
    const index = this.#indexOf(event.target);
    const result = this.results[index];
    if (!result) return;
    if (event.target.closest("button")) return this.actions.open(index + 1);
    if (event.button || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
    event.preventDefault();
    this.actions.pick(result);
  }

  #key(event) {
    if (event.metaKey || event.ctrlKey || event.altKey) return;
    if (event.key === "o") return this.actions.open(this.active + 1);
    const n = this.results.length;
    const columns = getComputedStyle(this.node).gridTemplateColumns.split(" ").length;
    const steps = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: columns, ArrowUp: -columns, Home: -n, End: n };
    const step = steps[event.key];
    if (step === undefined) return;
    event.preventDefault();
    const to = Math.min(n - 1, Math.max(0, this.active + step));
    this.focus(to);
    this.node.children[to]?.scrollIntoView({ block: "nearest" });
  }
}

