/**
 * All pictures in one scroll. The grid is cut into sections of about 100 pictures, whose heights are known
 * before they are filled; a section is filled when it comes near the window and emptied when it is far away,
 * so that the page holds a few hundred pictures however many there are.
 */

import { isAbort, items as fetchItems } from "./api.js";
import { el, fileName, number, thumbnail } from "./dom.js";
import { button } from "./notices.js";

const NEAR = "1200px 0px"; // of the window: what is filled
const PATIENCE = 70; // ms that a section has to stay near before its pictures are requested
const ABOUT = 100;
export const MOST = 100_000; // taller pages than this meet the browsers' limits of height

export class Grid {
  /** @param {HTMLElement} node @param {{pick: (item) => void, href: (item) => string}} actions */
  constructor(node, actions) {
    this.node = node;
    this.actions = actions;
    this.total = 0;
    this.asked = null; // {name, seed} of what is shown
    this.items = [];
    this.sections = [];
    this.active = 0;
    this.columns = 0;
    this.tile = 0;
    this.moves = 0;
    this.near = new IntersectionObserver((entries) => this.#seen(entries), { rootMargin: NEAR });
    new ResizeObserver(() => this.#resized()).observe(node);
    node.addEventListener("keydown", (event) => this.#key(event));
    node.addEventListener("focusin", (event) => this.#focused(event));
    node.addEventListener("pointerover", (event) => this.#name(event.target.closest("a")));
    node.addEventListener("click", (event) => this.#clicked(event));
  }

  /** Show the pictures of a name or a seed; resolves when heights are known. Throws ApiError. */
  async show({ name, seed }, signal) {
    const asked = JSON.stringify({ name, seed });
    if (asked === this.asked) return;
    const first = await fetchItems({ name, seed, offset: 0, limit: 200 }, signal);
    this.asked = asked;
    this.source = { name, seed };
    this.total = Math.min(first.total, MOST);
    this.found = first.total;
    this.items = first.items.slice();
    this.active = 0;
    this.columns = 0;
    this.#resized();
  }

  /** Forget what is shown, so that `show` requests it again. */
  forget() {
    this.asked = null;
  }

  #resized() {
    const width = this.node.clientWidth;
    if (!width || this.asked === null) return;
    const space = width < 520 ? 6 : 8;
    const least = width < 520 ? 100 : 132;
    const columns = Math.max(2, Math.floor((width + space) / (least + space)));
    const top = this.columns === columns ? null : this.#firstVisible();
    this.tile = Math.floor(((width + space) / columns - space) * 100) / 100;
    this.space = space;
    this.node.style.setProperty("--columns", columns);
    this.node.style.setProperty("--tile", `${this.tile}px`);
    this.node.style.setProperty("--space", `${space}px`);
    if (this.columns === columns) {
      for (const section of this.sections) this.#setHeight(section);
      return;
    }
    this.columns = columns;
    this.#cut();
    if (top) scrollTo(0, this.#topOf(top));
  }

  #cut() {
    const size = Math.max(1, Math.round(ABOUT / this.columns)) * this.columns;
    this.near.disconnect();
    for (const section of this.sections) this.#stop(section);
    this.sections = [];
    for (let first = 0; first < this.total; first += size) {
      const node = el("div", { class: "grid-section", role: "presentation" });
      const count = Math.min(size, this.total - first);
      const section = { node, first, count, filled: false, timer: 0, abort: null, loading: null };
      node.section = section;
      this.#setHeight(section);
      this.sections.push(section);
    }
    this.node.replaceChildren(...this.sections.map((section) => section.node));
    if (this.sections.length) this.#fillIfHere(this.sections[0]);
    for (const section of this.sections) this.near.observe(section.node);
  }

  #setHeight(section) {
    const height = Math.ceil(section.count / this.columns) * (this.tile + this.space);
    section.node.style.height = `${height}px`;
    section.node.style.containIntrinsicHeight = `${height}px`;
  }

  #topOf(index) {
    const row = Math.floor(index / this.columns);
    return this.node.getBoundingClientRect().top + scrollY + row * (this.tile + this.space) - 76;
  }

  /** Index of the first picture within the window; 0 where the grid begins within it. */
  #firstVisible() {
    if (!this.columns) return 0;
    const above = 76 - this.node.getBoundingClientRect().top;
    return above <= 0 ? 0 : Math.floor(above / (this.tile + this.space)) * this.columns;
  }

  #sectionOf(index) {
    return this.sections.find(({ first, count }) => index < first + count);
  }

  #seen(entries) {
    if (!this.node.offsetParent) return; // another view is shown: keep what is here for the way back
    for (const { target, isIntersecting } of entries) {
      const section = target.section;
      if (isIntersecting) this.#fillIfHere(section, () => {
        section.timer = setTimeout(() => this.#load(section), PATIENCE);
      });
      else this.#empty(section);
    }
    const far = 3 * innerHeight + 1200; // filled while another view was shown, and left behind since
    for (const section of this.sections) {
      if (!section.filled) continue;
      const { top, bottom } = section.node.getBoundingClientRect();
      if (bottom < -far || top > innerHeight + far) this.#empty(section);
    }
  }

  #fillIfHere(section, otherwise = () => {}) {
    if (section.filled) return;
    for (let i = section.first; i < section.first + section.count; i += 1) {
      if (!this.items[i]) return void otherwise();
    }
    this.#fill(section);
  }

  /** Ask for a section's pictures, once, and fill it. */
  #load(section) {
    clearTimeout(section.timer);
    if (!section.loading) {
      const loading = this.#ask(section).finally(() => {
        if (section.loading === loading) section.loading = null;
      });
      section.loading = loading;
    }
    return section.loading;
  }

  async #ask(section) {
    const { first: offset, count: limit } = section;
    const { items, source } = this;
    section.abort = new AbortController();
    try {
      const page = await fetchItems({ ...source, offset, limit }, section.abort.signal);
      page.items.forEach((item, i) => { items[offset + i] = item; });
      if (items === this.items && this.sections.includes(section)) this.#fill(section);
    } catch (error) {
      if (isAbort(error)) return;
      const again = button("Retry", () => { section.node.replaceChildren(); this.#load(section); });
      const words = el("p", {}, error.message);
      section.node.replaceChildren(el("div", { class: "grid-problem", role: "alert" }, words, again));
    }
  }

  #stop(section) {
    clearTimeout(section.timer);
    section.abort?.abort();
    section.loading = null;
  }

  #empty(section) {
    this.#stop(section);
    if (!section.filled || section.node.contains(document.activeElement)) return;
    section.filled = false;
    section.node.classList.remove("filled");
    section.node.replaceChildren();
  }

  #fill(section) {
    if (section.filled) return;
    section.filled = true;
    section.node.classList.add("filled");
    const tiles = document.createDocumentFragment();
    for (let i = section.first; i < section.first + section.count; i += 1) {
      if (this.items[i]) tiles.append(this.#tileOf(this.items[i], i));
    }
    section.node.replaceChildren(tiles);
    if (!this.#tileAt(this.active)) this.active = section.first; // Tab leads to where one looks
    this.#tileAt(this.active)?.setAttribute("tabindex", "0");
  }

  #tileOf(item, index) {
    const href = this.actions.href(item);
    const link = el(
      "a", { href, tabindex: "-1", "aria-label": `Search from ${item.file}`, draggable: "false" },
      thumbnail(item),
    );
    link.index = index;
    const place = { "aria-setsize": this.total, "aria-posinset": index + 1 };
    return el("div", { class: "tile", role: "listitem", ...place }, link);
  }

  #tileAt(index) {
    const section = this.#sectionOf(index);
    return section?.filled ? section.node.children[index - section.first]?.firstElementChild ?? null : null;
  }

  /** Names are drawn for pictures that are looked at only: half of the elements of a tile. */
  #name(link) {
    if (link?.childElementCount === 1) link.append(fileName(this.items[link.index].file));
  }

  #focused({ target }) {
    if (target.index === undefined) return;
    this.#name(target);
    if (target.index === this.active) return;
    this.#tileAt(this.active)?.setAttribute("tabindex", "-1");
    this.active = target.index;
    target.setAttribute("tabindex", "0");
  }

  #clicked(event) {
    const link = event.target.closest("a");
    if (!link || event.button || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
    event.preventDefault();
    this.actions.pick(this.items[link.index]);
  }

  #key(event) {
    if (event.target.index === undefined || event.metaKey || event.ctrlKey || event.altKey) return;
    const page = Math.max(1, Math.floor(innerHeight / (this.tile + this.space)) - 1) * this.columns;
    const steps = {
      ArrowRight: 1, ArrowLeft: -1, ArrowDown: this.columns, ArrowUp: -this.columns,
      PageDown: page, PageUp: -page, Home: -this.total, End: this.total,
    };
    const step = steps[event.key];
    if (step === undefined) return;
    event.preventDefault();
    this.focus(Math.min(this.total - 1, Math.max(0, this.active + step)));
  }

  /** Move the focus to a picture, wherever it is. */
  async focus(index) {
    const move = (this.moves += 1);
    const section = this.#sectionOf(index);
    if (!section) return;
    if (!section.filled) {
      scrollTo(0, this.#topOf(index) - innerHeight / 3);
      await this.#load(section);
    }
    const tile = this.#tileAt(index);
    if (!tile || move !== this.moves) return;
    tile.focus({ preventScroll: true });
    tile.scrollIntoView({ block: "nearest" });
  }

  /** Back to the picture that had the focus, if it is still here. */
  refocus() {
    this.#tileAt(this.active)?.focus({ preventScroll: true });
  }

  /** How many pictures there are, in words. */
  words(items) {
    const { name } = this.source;
    if (name) return `${number(this.found)} of ${number(items)} file names contain “${name}”`;
    return this.found > MOST ? `${number(MOST)} of these, in random order` : "In random order";
  }
}
