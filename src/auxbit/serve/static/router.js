/**
 * What the page shows is what its address says; scroll positions are kept beside the history.
 *
 * @typedef {object} State
 * @property {"search"|"duplicates"|"model"|"compare"} tab
 * @property {string|null} id        item searched from
 * @property {string|null} text      words searched for
 * @property {string|null} vector    checksum of a vector that was pasted
 * @property {string|null} where     conditions on metadata
 * @property {string|null} upload    hash of the picture searched with
 * @property {string} name           part of a file name
 * @property {number} seed           of the random order of the grid
 * @property {string|null} mode      null: the server's default
 * @property {number|null} k
 * @property {number|null} radius
 */

export const NOTHING = Object.freeze({
  tab: "search", id: null, upload: null, text: null, vector: null, where: null, name: "", seed: 0, mode: null,
  k: null, radius: null,
});
const TABS = ["duplicates", "model", "compare"];
const KEPT = "auxbit-scroll";

function wholeNumber(text) {
  return text !== null && /^\d{1,15}$/.test(text) ? Number(text) : null;
}

/** @returns {State} */
export function read(query) {
  const given = new URLSearchParams(query);
  const tab = given.get("tab");
  const upload = given.get("upload");
  const mode = given.get("mode");
  return {
    tab: TABS.includes(tab) ? tab : "search",
    id: given.get("id") || null,
    text: given.get("text") || null,
    vector: /^[0-9a-f]{8}$/.test(given.get("vector") ?? "") ? given.get("vector") : null,
    where: given.get("where") || null,
    upload: upload !== null && /^[0-9a-f]{8,128}$/.test(upload) ? upload : null,
    name: given.get("name") ?? "",
    seed: wholeNumber(given.get("seed")) ?? 0,
    mode: ["hamming", "asymmetric", "reranked"].includes(mode) ? mode : null,
    k: wholeNumber(given.get("k")),
    radius: wholeNumber(given.get("radius")),
  };
}

/** "start" | "results" | "duplicates" | "model" | "compare". @param {State} state */
export function viewOf(state) {
  if (state.tab !== "search") return state.tab;
  const { id, upload, text, vector } = state;
  return [id, upload, text, vector].some((each) => each !== null) ? "results" : "start";
}

/** The address that `read` makes the state of. @param {Partial<State>} partial */
export function address(partial) {
  const state = { ...NOTHING, ...partial };
  const query = new URLSearchParams();
  const put = (name, value) => {
    if (value !== null && value !== "") query.set(name, value);
  };
  const view = viewOf(state);
  if (TABS.includes(view)) {
    put("tab", view);
    if (view === "duplicates") put("radius", state.radius);
  } else if (view === "start") {
    put("name", state.name);
    put("where", state.where);
    put("seed", state.name ? null : state.seed || null);
  } else {
    const names = ["id", "upload", "text", "vector"];
    const asked = names.find((name) => state[name] !== null);
    put(asked, state[asked]);
    put("where", state.where);
    put("mode", state.mode);
    put("k", state.k);
    put("radius", state.radius);
  }
  const text = query.toString();
  return text ? `/?${text}` : "/";
}

/** Follows the history and tells `show(state, {scroll, …})` what to show; scroll null: stay where you are. */
export class Router {
  #show;
  #key;
  #positions;

  constructor(show) {
    this.#show = show;
    this.#positions = restored();
    history.scrollRestoration = "manual";
    this.#key = history.state?.key ?? newKey();
    history.replaceState({ key: this.#key }, "");
    addEventListener("popstate", () => {
      this.#remember();
      this.#key = history.state?.key ?? newKey();
      this.state = read(location.search);
      this.#show(this.state, { scroll: this.#positions.get(this.#key) ?? 0, back: true });
    });
    addEventListener("pagehide", () => {
      this.#remember();
      try {
        sessionStorage.setItem(KEPT, JSON.stringify([...this.#positions].slice(-200)));
      } catch { /* storage that is full or forbidden costs the position alone */ }
    });
    /** @type {State} */
    this.state = read(location.search);
  }

  /** Show what the address says, as at the start. */
  begin() {
    this.#show(this.state, { scroll: this.#positions.get(this.#key) ?? 0, back: true });
  }

  /** @param {Partial<State>} state */
  go(state, { replace = false, scroll = 0, ...more } = {}) {
    const to = address(state);
    this.#remember();
    if (replace || to === location.pathname + location.search) {
      history.replaceState({ key: this.#key }, "", to);
    } else {
      this.#key = newKey();
      history.pushState({ key: this.#key }, "", to);
    }
    this.state = { ...NOTHING, ...state };
    this.#show(this.state, { scroll, back: false, ...more });
  }

  #remember() {
    this.#positions.delete(this.#key);
    this.#positions.set(this.#key, scrollY);
  }
}

const newKey = () => `${Date.now().toString(36)}${Math.random().toString(36).slice(2, 8)}`;

function restored() {
  try {
    return new Map(JSON.parse(sessionStorage.getItem(KEPT) ?? "[]"));
  } catch {
    return new Map();
  }
}
