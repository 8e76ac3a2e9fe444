/** A larger look at the query and the results, with previous and next. */

import { isAbort, item as fetchItem } from "./api.js";
import { bytes, byId, el, fileName, icon, number, smallness } from "./dom.js";
import { button } from "./notices.js";
import { kept } from "./store.js";

const LEFT = "M12 4l-6 6 6 6";
const RIGHT = "M8 4l6 6-6 6";
const CROSS = "M5 5l10 10M15 5L5 15";

export class Viewer {
  /** @param {(id: number) => void} search */
  constructor(search) {
    this.dialog = byId("viewer");
    this.search = search;
    this.entries = [];
    this.at = 0;
    this.url = null;
    const step = (by) => () => this.#step(by);
    const small = (label, path, onclick) => el("button", {
      class: "button icon-button", type: "button", "aria-label": label, title: label, onclick,
    }, icon(path));
    this.name = el("h2", {});
    this.stage = el("div", { class: "viewer-stage" });
    this.facts = el("p", { role: "status" });
    this.from = button("Search from it", () => this.#searchFrom(), "primary");
    this.previous = small("Previous picture", LEFT, step(-1));
    this.next = small("Next picture", RIGHT, step(1));
    this.dialog.append(
      el("div", { class: "viewer-head" }, this.name, small("Close", CROSS, () => this.dialog.close())),
      this.stage,
      el("div", { class: "viewer-foot" }, this.facts, this.previous, this.next, this.from),
    );
    this.dialog.addEventListener("keydown", (event) => {
      const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (by) { event.preventDefault(); this.#step(by); }
    });
    this.dialog.addEventListener("click", (event) => {
      if (event.target === this.dialog) this.dialog.close(); // beside the picture
    });
    this.dialog.addEventListener("close", () => this.#let());
  }

  get isOpen() {
    return this.dialog.open;
  }

  /** @param {object[]} entries query and results, as the server gave them */
  open(entries, at) {
    this.entries = entries;
    this.first = entries[0].thumbnail ? 0 : 1; // words are no picture
    this.dialog.showModal();
    this.#show(at);
  }

  close() {
    if (this.dialog.open) this.dialog.close();
  }

  #step(by) {
    const to = this.at + by;
    if (to >= this.first && to < this.entries.length) this.#show(to);
  }

  #searchFrom() {
    const { id } = this.entries[this.at];
    this.dialog.close();
    if (id !== null) this.search(id);
  }

  #let() {
    this.abort?.abort();
    if (this.url) URL.revokeObjectURL(this.url);
    this.url = null;
  }

  #show(at) {
    this.#let();
    this.at = at;
    this.abort = new AbortController();
    const entry = this.entries[at];
    const name = entry.file ?? "Picture of your own";
    this.name.replaceChildren(fileName(name, { whole: true }));
    this.picture = el("img", { class: smallness(entry), src: entry.thumbnail, alt: name });
    this.stage.replaceChildren(this.picture);
    this.#tell(entry, []);
    this.previous.disabled = at === this.first;
    this.next.disabled = at === this.entries.length - 1;
    this.from.hidden = entry.id === null || at === 0;
    if (entry.id === null) this.#enlargeUpload(entry, this.abort.signal);
    else this.#enlarge(entry, this.abort.signal);
  }

  #tell(entry, more) {
    const place = this.at === 0 ? "Query" : `Result ${this.at} of ${this.entries.length - 1}`;
    const size = `${number(entry.width)} × ${number(entry.height)} pixels`;
    this.facts.textContent = [place, size, ...more].join(" · ");
  }

  async #enlarge(entry, signal) {
    try {
      const whole = await fetchItem(entry.id, signal);
      const more = [whole.format, bytes(whole.bytes), whole.taken ? whole.taken.replace("T", " ") : null];
      this.#tell(entry, more.filter(Boolean));
      const larger = await loaded(whole.picture, signal);
      if (signal.aborted) return;
      if (larger) this.picture.src = whole.picture;
      else this.#tell(entry, ["the file has moved or changed; this is the small picture kept of it"]);
    } catch (error) {
      if (!isAbort(error)) this.#tell(entry, [error.message]);
    }
  }

  async #enlargeUpload(entry, signal) {
    const own = await kept(entry.upload);
    if (!own || signal.aborted) return;
    this.url = URL.createObjectURL(own.file);
    if (await loaded(this.url, signal) && !signal.aborted) this.picture.src = this.url;
  }
}

/** Whether a picture can be shown; what is no longer wanted is not waited for. */
function loaded(url, signal) {
  return new Promise((resolve) => {
    const image = new Image();
    image.onload = () => resolve(true);
    image.onerror = () => resolve(false);
    signal.addEventListener("abort", () => { image.src = ""; resolve(false); });
    image.src = url;
  });
}
