/** The page: views by address, searches by click, upload and name, keys. */

import * as api from "./api.js";
import { Compare } from "./compare.js";
import { Duplicates } from "./duplicates.js";
import { byId, counted, debounced } from "./dom.js";
import { Grid } from "./grid.js";
import { Model } from "./model.js";
import { announce, button, clearNotices, command, notice, problem, stateOf } from "./notices.js";
import { address, NOTHING, Router, viewOf } from "./router.js";
import { Rows } from "./rows.js";
import { Searching } from "./searching.js";
import { keep } from "./store.js";
import { choose, listen, objection } from "./upload.js";

const VIEWS = ["start", "results", "duplicates", "model", "compare", "problem"];

class Page {
  constructor(stats) {
    this.stats = stats;
    this.start = NOTHING; // the grid to go back to, and where it was
    this.startScroll = 0;
    this.settings = { mode: null, k: null, radius: null, where: null };
    this.gesture = { name: null, at: 0 };
    this.shown = null;
    this.loading = null;
    const pick = ({ id }) => this.router.go({ id, ...this.settings });
    const href = ({ id }) => address({ id, ...this.settings });
    const go = (state) => this.router.go({ ...this.settings, where: this.start.where, ...state });
    const filter = (where) => this.router.go({ where: where || null }, { scroll: null });
    this.grid = stats.has_pictures
      ? new Grid(byId("grid"), { pick, href }) : new Rows(stats, { pick, href, go, filter, refuse: notice });
    this.searching = new Searching(stats, {
      pick, href, choose, home: () => this.home(), change: (patch, name) => this.change(patch, name),
    });
    this.duplicates = new Duplicates(byId("view-duplicates"), stats, {
      href, change: (patch, name) => this.change(patch, name),
    });
    this.model = new Model(byId("view-model"), stats);
    this.compare = new Compare(byId("view-compare"), stats);
    this.router = new Router((state, how) => this.show(state, how));
  }

  /** A control moved: the first step of a gesture is a new entry of the history, the next ones change it. */
  change(patch, gesture) {
    const now = performance.now();
    const goesOn = gesture !== null && this.gesture.name === gesture && now - this.gesture.at < 2000;
    this.router.go({ ...this.router.state, ...patch }, { replace: goesOn, scroll: null });
    this.gesture = { name: gesture, at: now };
  }

  async show(state, how) {
    this.gesture = { name: null, at: 0 };
    const view = viewOf(state);
    if (this.shown === "start" && view !== "start") this.startScroll = scrollY;
    this.loading?.abort();
    clearNotices();
    if (view !== "results") this.searching.leave();
    if (view === "start") await this.#showStart(state, how);
    else if (view === "results") await this.#showResults(state, how);
    else this.#showTab(view, state, how);
  }

  #reveal(view) {
    for (const name of VIEWS) byId(`view-${name}`).hidden = name !== view;
    const tab = view === "start" || view === "results" ? "search" : view;
    for (const link of document.querySelectorAll(".tabs a")) {
      if (link.dataset.tab === tab) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    }
    byId("brand").href = byId("back-link").href = address(this.start);
    document.querySelector('.tabs a[data-tab="search"]').href = address(this.start);
    this.shown = view;
  }

  #title(words) {
    document.title = words ? `${words} – ${this.stats.name}` : `${this.stats.name} – auxbit`;
  }

  async #showStart(state, { scroll, back }) {
    const cameBack = this.shown === "results" && !byId("name-input").matches(":focus");
    this.start = { ...NOTHING, name: state.name, seed: state.seed, where: state.where };
    if (!this.stats.has_pictures) {
      this.settings.where = state.where;
      return void await this.#showList(state, { scroll });
    }
    this.#reveal("start");
    this.#title(state.name ? `“${state.name}”` : "");
    const field = byId("name-input");
    if (document.activeElement !== field || back) field.value = state.name;
    const loading = new AbortController();
    this.loading = loading;
    byId("grid").setAttribute("aria-busy", "true");
    try {
      await this.grid.show(state, loading.signal);
      byId("grid").hidden = false;
      byId("grid-state").replaceChildren(...this.#emptiness(state));
      byId("grid-count").textContent = this.grid.total || state.name ? this.grid.words(this.stats.items) : "";
      if (state.name) announce(byId("grid-count").textContent);
      if (scroll !== null) scrollTo(0, scroll);
      if (cameBack && document.activeElement === document.body) this.grid.refocus();
    } catch (error) {
      if (api.isAbort(error)) return;
      byId("grid").hidden = true;
      byId("grid-count").textContent = "";
      byId("grid-state").replaceChildren(problem(error, () => this.#showStart(state, { scroll, back })));
    }
    byId("grid").removeAttribute("aria-busy");
  }

  async #showList(state, { scroll }) {
    this.#reveal("start");
    this.#title(state.where ?? "");
    const loading = new AbortController();
    this.loading = loading;
    byId("list").setAttribute("aria-busy", "true");
    try {
      await this.grid.show(state, loading.signal);
      byId("list-state").replaceChildren(...(this.grid.total ? [] : [this.grid.nothing()]));
      byId("list-count").textContent = this.grid.words(this.stats.items);
      announce(byId("list-count").textContent);
      if (scroll !== null) scrollTo(0, scroll);
    } catch (error) {
      if (api.isAbort(error)) return;
      byId("list").replaceChildren();
      byId("list-more").replaceChildren();
      byId("list-count").textContent = "";
      byId("list-state").replaceChildren(problem(error, () => this.#showList(state, { scroll })));
    }
    byId("list").removeAttribute("aria-busy");
  }

  #emptiness(state) {
    if (this.grid.total) return [];
    if (state.name) {
      const showAll = () => {
        byId("name-input").value = "";
        this.router.go(NOTHING);
      };
      const words = `No file name contains “${state.name}”.`;
      return [stateOf("No file name matches", [words], button("Show all pictures", showAll, "primary"))];
    }
    const how = command(`auxbit images add ${this.stats.name}.auxbit FOLDER`);
    return [stateOf("This collection is empty", ["Add pictures to it, then load this page again:", how])];
  }

  async #showResults(given, { scroll, answer }) {
    const fresh = this.shown !== "results";
    const { max_k: most, bits } = this.stats; // an address may ask for more than there is
    const k = given.k === null ? null : Math.min(Math.max(1, given.k), most);
    const radius = given.radius === null ? null : Math.min(given.radius, bits);
    this.settings = { mode: given.mode, k, radius, where: given.where };
    const state = { ...given, ...this.settings };
    if (fresh) {
      const fromGrid = byId("view-start").contains(document.activeElement);
      this.#reveal("results");
      scrollTo(0, 0);
      if (fromGrid) byId("main").focus({ preventScroll: true });
      this.#title("Searching…");
    }
    const done = await this.searching.show(state, answer);
    if (!done) return;
    this.#title(this.searching.name ?? "Problem");
    if (scroll !== null) scrollTo(0, scroll);
    if (fresh && document.activeElement === byId("main")) this.searching.cards.focus();
  }

  #showTab(view, state, { scroll }) {
    const fresh = this.shown !== view;
    this.#reveal(view);
    this.#title(view[0].toUpperCase() + view.slice(1));
    const shown = this[view].show(state);
    if (fresh) scrollTo(0, 0);
    shown.then(() => { if (this.shown === view && scroll) scrollTo(0, scroll); });
  }

  /** Search with a file of the user's own. */
  async take(file, name) {
    const refused = await objection(file, this.stats);
    if (refused) return void notice(refused);
    notice(`Searching with ${name} …`, "busy");
    this.sending?.abort();
    const sending = new AbortController();
    this.sending = sending;
    try {
      const answer = await api.searchFile(file, name, this.settings, sending.signal);
      if (sending.signal.aborted) return;
      clearNotices();
      await keep(answer.query.upload, file, name);
      this.router.go({ upload: answer.query.upload, ...this.settings }, { answer });
    } catch (error) {
      if (api.isAbort(error)) return;
      const again = error.code === "no_answer" ? button("Retry", () => this.take(file, name)) : null;
      notice(`${name}: ${error.message}`, "bad", again);
    }
  }

  /** To the grid as it was left. */
  home() {
    this.router.go(this.start, { scroll: this.startScroll });
  }
}

/** Links of the page itself, and the fields and buttons of the start. */
function wire(page) {
  const { router } = page;
  const follow = (selector, go) => {
    for (const link of document.querySelectorAll(selector)) {
      link.addEventListener("click", (event) => {
        if (event.button || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
        event.preventDefault();
        go(link);
      });
    }
  };
  const home = () => (page.shown === "start" ? scrollTo(0, 0) : page.home());
  follow("#back-link, #brand, .tabs a[data-tab='search']", home);
  follow(".tabs a:not([data-tab='search'])", (link) => router.go({ tab: link.dataset.tab }));
  follow(".skip", () => byId("main").focus());
  byId("text-form").hidden = !page.stats.has_text_search;
  byId("text-form").addEventListener("submit", (event) => {
    event.preventDefault();
    const text = byId("text-input").value.trim();
    if (text) router.go({ ...page.settings, where: page.start.where, text });
  });
  if (!page.stats.has_pictures) return;
  byId("shuffle").addEventListener("click", () => {
    byId("name-input").value = "";
    router.go({ seed: 1 + Math.floor(Math.random() * 999_999) }, { scroll: null });
  });
  const field = byId("name-input");
  const byName = debounced(220, () => {
    const name = field.value.trim();
    if (page.shown === "start" && name !== router.state.name) {
      const replace = page.named && Boolean(router.state.name);
      router.go({ name, seed: page.start.seed }, { replace, scroll: null });
      page.named = true;
    }
  });
  field.addEventListener("input", byName);
  field.addEventListener("blur", () => { page.named = false; });
  byId("name-form").addEventListener("submit", (event) => {
    event.preventDefault();
    byName();
    byName.now();
  });
  listen((file, name) => page.take(file, name), notice);
}

function wireKeys(page) {
  addEventListener("keydown", (event) => {
    if (event.defaultPrevented || event.metaKey || event.ctrlKey || event.altKey) return;
    if (page.searching.viewer.isOpen) return;
    const typing = event.target.closest?.("input[type=search], input[type=number], textarea");
    if (event.key === "Escape") {
      if (byId("notices").firstChild) clearNotices();
      else if (page.shown !== "start") page.home();
      else if (typing && typing.value === "") typing.blur();
    } else if (typing) {
      return;
    } else if (event.key === "/") {
      event.preventDefault();
      if (page.shown !== "start") page.home();
      const field = byId(["name-input", "text-input", "where-input"].find((id) => byId(id).checkVisibility()));
      field?.focus();
      field?.select();
    } else if (event.key === "u" && page.stats.has_pictures) {
      event.preventDefault();
      choose();
    }
  });
}

async function begin() {
  try {
    const stats = await api.stats();
    byId("view-problem").replaceChildren();
    byId("collection-name").textContent = stats.name;
    const facts = [counted(stats.items, stats.has_pictures ? "picture" : "item"), counted(stats.bits, "bit")];
    document.body.classList.toggle("without-pictures", !stats.has_pictures);
    if (!stats.has_pictures) {
      document.querySelector(".skip").textContent = "Skip to the items";
      document.querySelector("#back-link .all").textContent = "All items";
      document.querySelector('.tabs a[data-tab="compare"]').hidden = true;
      document.querySelector('.tabs a[data-tab="model"]').hidden = stats.method === null;
    }
    byId("collection-facts").textContent = facts.join(" · ");
    const page = new Page(stats);
    wire(page);
    wireKeys(page);
    page.router.begin();
  } catch (error) {
    byId("view-problem").hidden = false;
    byId("view-problem").replaceChildren(problem(error, begin));
  }
}

begin();
