/** Mode, number of results, radius and conditions: each acts at once. */

import { byId, counted, debounced, el } from "./dom.js";

const MODES = {
  hamming: ["Fast", "Compares short codes, bit by bit. The quickest, but many come out equally near."],
  asymmetric: ["Better", "Compares the query itself with what each code stands for: finer than bits alone."],
  reranked: ["Exact", "Takes the nearest by their codes, and sorts them by their true distances."],
};
export const DEFAULT_K = 20;
const RADIUS = "Radius: only codes that differ in at most this many bits.";
const WAIT = 140;

export class Controls {
  /**
   * @param {HTMLFormElement} form @param {object} stats
   * @param {(patch: object, gesture: string|null) => void} change a gesture that continues has the same name
   * @param {() => number} firstRadius the radius to begin with when it is switched on
   */
  constructor(form, stats, change, firstRadius) {
    this.stats = stats;
    this.change = change;
    form.addEventListener("submit", (event) => event.preventDefault());
    this.words = el("p", { class: "mode-words", id: "mode-words" });
    this.radios = stats.modes.map((mode) => el("input", {
      type: "radio", name: "mode", value: mode, "aria-describedby": "mode-words",
      onchange: () => { this.#explain(mode); change({ mode }, null); },
    }));
    const segment = (radio) => el("label", {}, radio, el("span", {}, MODES[radio.value]?.[0] ?? radio.value));
    this.k = this.#dial("k", "Results", 1, stats.max_k);
    this.radius = this.#dial("radius", "Radius", 0, stats.bits);
    this.bounded = el("input", {
      type: "checkbox", id: "bounded", "aria-describedby": "radius-words",
      onchange: () => {
        this.#enableRadius(this.bounded.checked);
        if (this.bounded.checked) this.radius.put(firstRadius());
        change({ radius: this.bounded.checked ? this.radius.value() : null }, null);
      },
    });
    this.where = el("input", {
      type: "search", id: "where-control", maxlength: 2000, autocomplete: "off", spellcheck: "false",
      placeholder: stats.has_pictures ? "width >= 1000 and file ~ holiday" : "year >= 2020 and lang = en",
      title: `Fields: ${stats.fields.join(", ")}`,
      onchange: () => change({ where: this.where.value.trim() || null }, null),
    });
    const dial = (label, { slider, box }) => el("div", { class: "dial" }, label, slider, box);
    form.replaceChildren(
      el(
        "fieldset", {}, el("legend", { class: "unseen" }, "Distance"),
        el("div", { class: "segments" }, this.radios.map(segment)),
      ),
      this.words,
      dial(el("label", { htmlFor: "k-slider" }, "Results"), this.k),
      ...(stats.has_radius ? [
        dial(el("label", { class: "switch" }, this.bounded, "Radius"), this.radius),
        el("p", { class: "radius-words", id: "radius-words" }, RADIUS),
      ] : []),
      ...(stats.fields.length ? [
        el("div", { class: "dial where-dial" }, el("label", { htmlFor: "where-control" }, "Only where"), this.where),
      ] : []),
    );
    const wide = matchMedia("(min-width: 1001px)"); // there it stands beside the query, else it folds
    const fold = () => { byId("settings").open = wide.matches; };
    wide.addEventListener("change", fold);
    fold();
  }

  #dial(name, words, min, max) {
    const input = (type, kind, more = {}) => el("input", {
      type, id: `${name}-${kind}`, min, max, step: 1, "aria-label": `${words}, ${kind}`, ...more,
    });
    const slider = input("range", "slider");
    const box = input("number", "number", { inputmode: "numeric", placeholder: "off" });
    const tell = debounced(WAIT, (value) => this.change({ [name]: value }, name));
    const within = (value) => Math.min(max, Math.max(min, Math.round(value)));
    const read = ({ value }) => (value === "" || Number.isNaN(Number(value)) ? null : within(Number(value)));
    slider.addEventListener("input", () => { box.value = slider.value; tell(read(slider)); });
    box.addEventListener("input", () => {
      const value = read(box);
      if (value === null) return;
      slider.value = value;
      tell(value);
    });
    slider.addEventListener("change", () => tell.now());
    box.addEventListener("change", () => { box.value = read(box) ?? slider.value; tell.now(); });
    const put = (value) => {
      if (document.activeElement !== box) box.value = value;
      slider.value = value;
    };
    return { slider, box, put, value: () => Number(slider.value), drop: tell.drop };
  }

  #explain(mode) {
    this.words.textContent = MODES[mode]?.[1] ?? "";
  }

  #enableRadius(on) {
    this.radius.slider.disabled = !on;
    this.radius.box.disabled = !on;
  }

  /** Show settings without acting. */
  put({ mode, k, radius, where }) {
    const chosen = mode ?? this.stats.default_mode;
    for (const radio of this.radios) radio.checked = radio.value === chosen;
    this.#explain(chosen);
    this.k.put(k ?? DEFAULT_K);
    this.where.value = where ?? "";
    const settings = [MODES[chosen]?.[0] ?? chosen, counted(k ?? DEFAULT_K, "result")];
    if (radius !== null) settings.push(`radius ${radius}`);
    if (where) settings.push(where);
    byId("settings-words").textContent = settings.join(" · ");
    this.bounded.checked = radius !== null;
    this.#enableRadius(radius !== null);
    if (radius === null) this.radius.box.value = "";
    else this.radius.put(radius);
  }
}
