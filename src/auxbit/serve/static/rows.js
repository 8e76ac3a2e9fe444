/** Items without pictures: their texts and metadata as a list, and the ways to search among them. */

import { isAbort, items as fetchItems } from "./api.js";
import { byId, counted, el, number } from "./dom.js";
import { button, problem, stateOf } from "./notices.js";

const TITLES = ["title", "text", "name", "headline", "content", "body", "abstract", "label"];
const PAGE = 50;
const MOST_FACTS = 8;

const shown = (value) => (typeof value === "string" ? value : JSON.stringify(value));

/** The field that says most to a reader: one that is called so, or else the longest text. */
export function titleField(metadata) {
  const texts = Object.keys(metadata).filter((name) => typeof metadata[name] === "string" && metadata[name]);
  const byLength = (a, b) => metadata[b].length - metadata[a].length;
  return TITLES.find((name) => texts.includes(name)) ?? texts.sort(byLength)[0] ?? null;
}

/** What an item is called where there is room for a line. */
export function titleOf({ id, metadata }) {
  const field = titleField(metadata ?? {});
  return field === null ? `Item ${id}` : metadata[field];
}

/** Text and metadata of an item. */
export function words(item) {
  const field = titleField(item.metadata);
  const rest = Object.entries(item.metadata).filter(([name]) => name !== field);
  const facts = rest.slice(0, MOST_FACTS).map(([name, value]) => el(
    "span", {}, el("b", {}, name), ` ${shown(value)}`,
  ));
  const more = rest.length > MOST_FACTS ? el("span", {}, `and ${rest.length - MOST_FACTS} more`) : null;
  return el(
    "div", { class: "row-words" }, el("p", { class: "row-title" }, titleOf(item)),
    el("p", { class: "row-facts" }, el("span", {}, el("b", {}, "id"), ` ${item.id}`), facts, more),
  );
}

/** Numbers of a pasted vector: JSON, or numbers between spaces, commas or lines; null if there are others. */
export function numbersIn(text) {
  const parts = text.replace(/[[\](){};,]/g, " ").trim().split(/\s+/);
  const numbers = parts.map(Number);
  return parts[0] === "" || numbers.some((value) => !Number.isFinite(value)) ? null : numbers;
}

export class Rows {
  /** @param {object} stats @param {{pick, href, go, refuse}} actions */
  constructor(stats, actions) {
    this.stats = stats;
    this.actions = actions;
    this.node = byId("list");
    this.total = 0;
    this.more = button("Show more", () => this.#next());
    byId("list-start").hidden = false;
    byId("picture-start").hidden = true;
    this.#wire("vector-form", "vector-input", stats.method !== null, (text) => this.#paste(text));
    this.#wire("where-form", "where-input", stats.fields.length > 0, (where) => actions.filter(where));
    byId("where-hint").textContent = `Fields: ${stats.fields.slice(0, 12).join(", ")}`;
    byId("where-hint").hidden = !stats.fields.length;
    byId("vector-input").placeholder = `${number(stats.dimension)} numbers: 0.12, -0.5, …`;
    this.node.addEventListener("click", (event) => this.#clicked(event));
  }

  #wire(form, input, isPossible, act) {
    byId(form).hidden = !isPossible;
    byId(form).addEventListener("submit", (event) => {
      event.preventDefault();
      act(byId(input).value.trim());
    });
  }

  #paste(text) {
    const vector = numbersIn(text);
    const wanted = this.stats.dimension;
    if (vector === null) this.actions.refuse("This is no vector: paste numbers only.");
    else if (vector.length !== wanted) {
      this.actions.refuse(`The vector has ${counted(vector.length, "number")}; ${number(wanted)} are needed.`);
    } else this.actions.go({ vector: keepVector(vector) });
  }

  /** Show the items that conditions find; throws ApiError. */
  async show({ where }, signal) {
    const asked = where ?? "";
    byId("where-input").value = asked;
    const page = await fetchItems({ where: asked, list: true, offset: 0, limit: PAGE }, signal);
    this.asked = asked;
    this.items = [];
    this.total = page.total;
    this.node.replaceChildren();
    this.#put(page.items);
  }

  async #next() {
    try {
      const wanted = { where: this.asked, list: true, offset: this.items.length, limit: PAGE };
      this.#put((await fetchItems(wanted)).items);
    } catch (error) {
      if (!isAbort(error)) this.more.replaceWith(problem(error, () => this.#next()));
    }
  }

  #put(items) {
    const first = this.items.length;
    this.items.push(...items);
    this.node.append(...items.map((item, i) => {
      const link = el("a", { href: this.actions.href(item), "aria-label": `More like ${titleOf(item)}` });
      link.index = first + i;
      return el(
        "div", { class: "card row", role: "listitem" }, link, words(item),
        el("span", { class: "row-more", "aria-hidden": "true" }, "More like this"),
      );
    }));
    byId("list-more").replaceChildren(...(items.length && this.items.length < this.total ? [this.more] : []));
  }

  #clicked(event) {
    const link = event.target.closest("a");
    if (!link || event.button || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
    event.preventDefault();
    this.actions.pick(this.items[link.index]);
  }

  words(items) {
    return this.asked ? `${number(this.total)} of ${counted(items, "item")}` : counted(items, "item");
  }

  refocus() {}

  /** In place of items, if there are none. */
  nothing() {
    if (this.asked) return stateOf("Nothing matches", ["No item fulfils these conditions."]);
    return stateOf("This collection is empty", ["Add items to it, then load this page again."]);
  }
}

// ---- Vectors that were pasted: too long for an address, so that the address has their checksum

const KEPT = "auxbit-vector-";

function keepVector(vector) {
  const text = JSON.stringify(vector);
  let sum = 0x811c9dc5;
  for (let i = 0; i < text.length; i += 1) sum = Math.imul(sum ^ text.charCodeAt(i), 0x01000193) >>> 0;
  const key = sum.toString(16).padStart(8, "0");
  pasted.set(key, text);
  try {
    sessionStorage.setItem(KEPT + key, text);
  } catch { /* storage that is full or forbidden: it is kept until the page is left */ }
  return key;
}

const pasted = new Map();

/** The numbers that were pasted, or null. */
export function keptVector(key) {
  try {
    const text = pasted.get(key) ?? sessionStorage.getItem(KEPT + key);
    return text ? JSON.parse(text) : null;
  } catch {
    return null;
  }
}
