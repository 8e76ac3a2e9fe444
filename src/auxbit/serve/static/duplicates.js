/** The tab on duplicates: groups side by side, and a list of what could be deleted; nothing is deleted here. */

import * as api from "./api.js";
import { counted, debounced, el, fileName, number, thumbnail } from "./dom.js";
import { button, problem, stateOf } from "./notices.js";
import { words } from "./rows.js";

const PAGE = 20;
const SHOWN = 12; // items of a group
const MOST_RADIUS = 16;

export class Duplicates {
  /** @param {HTMLElement} node @param {object} stats @param {{change, href}} actions */
  constructor(node, stats, actions) {
    this.stats = stats;
    this.actions = actions;
    this.thing = stats.has_pictures ? "picture" : "item";
    const choice = (value, label) => el("label", {}, el("input", {
      type: "radio", name: "duplicates", value, onchange: () => this.#chosen(),
    }), el("span", {}, label));
    this.slider = el("input", {
      type: "range", id: "near-slider", min: 0, max: Math.min(MOST_RADIUS, stats.bits), step: 1,
      "aria-label": "How many bits may differ",
    });
    this.value = el("output", { htmlFor: "near-slider" });
    const tell = debounced(200, () => this.#chosen());
    this.slider.addEventListener("input", () => { this.#label(); tell(); });
    this.near = el("div", { class: "dial near-dial" }, el("span", {}, "Differing bits"), this.slider, this.value);
    const same = stats.has_pictures ? "Same file" : "Same vector";
    this.form = el(
      "form", { class: "controls", "aria-label": "Which duplicates" },
      el("div", { class: "segments" }, choice("same", same), stats.has_radius ? choice("near", "Nearly the same") : null),
      this.near,
    );
    this.facts = el("p", { class: "facts", role: "status" });
    this.list = el("a", { class: "button", download: "could-be-deleted.txt", hidden: true });
    this.groups = el("div", { class: "groups" });
    this.more = el("div", { class: "more" });
    node.replaceChildren(
      el("h1", {}, "Duplicates"),
      el(
        "p", { class: "advice" }, stats.has_pictures
          ? "Pictures whose files are the same, or that look nearly the same, side by side. The first of each "
            + "group has the most pixels. Nothing is deleted here: the list names files that you could delete."
          : "Items that are the same, or nearly so. Nothing is deleted here: the list names ids that you could delete.",
      ),
      this.form, el("div", { class: "results-head" }, this.facts, this.list), this.groups, this.more,
    );
  }

  #chosen() {
    const near = this.form.elements.duplicates.value === "near";
    this.actions.change({ tab: "duplicates", radius: near ? Number(this.slider.value) : null }, "near");
  }

  #label() {
    this.value.textContent = `${this.slider.value} or fewer`;
  }

  async show({ radius }) {
    for (const each of this.form.elements.duplicates.length ? this.form.elements.duplicates : [this.form.elements.duplicates]) {
      each.checked = each.value === (radius === null ? "same" : "near");
    }
    this.near.hidden = radius === null;
    if (radius !== null) this.slider.value = radius;
    else this.slider.value = 2;
    this.#label();
    this.asked = radius;
    this.groups.setAttribute("aria-busy", "true");
    try {
      await this.#load(radius, 0);
    } catch (error) {
      this.facts.textContent = "";
      this.list.hidden = true;
      this.more.replaceChildren();
      this.groups.replaceChildren(problem(error, () => this.show({ radius })));
    }
    this.groups.removeAttribute("aria-busy");
  }

  async #load(radius, offset) {
    const found = await api.duplicates({ radius, offset, limit: PAGE });
    if (this.asked !== radius) return;
    const groups = found.groups.map((group) => this.#group(group));
    if (offset) this.groups.append(...groups);
    else this.groups.replaceChildren(...groups);
    const thing = counted(found.spare, this.thing);
    this.facts.textContent = found.total
      ? `${counted(found.total, "group")}; ${thing} ${radius === null ? "could go if one of each is kept" : "besides one of each: look before you delete"}` : "";
    this.list.hidden = !found.total;
    this.list.textContent = this.stats.has_pictures ? "Download the list of files" : "Download the list of ids";
    this.list.href = `/api/v1/duplicates/spare${api.parameters({ radius })}`;
    if (!found.total) this.groups.replaceChildren(this.#nothing(radius));
    const shown = offset + found.groups.length;
    const next = button("Show more groups", () => this.#load(radius, shown).catch(
      (error) => this.more.replaceChildren(problem(error, () => this.show({ radius }))),
    ));
    this.more.replaceChildren(...(shown < found.total ? [next] : []));
  }

  #nothing(radius) {
    if (radius !== null) return stateOf("No near-duplicates", ["Let more bits differ to find more."]);
    return stateOf("No duplicates", [this.stats.has_pictures
      ? "No two files are the same. Copies that were changed a little are found as nearly the same."
      : "No two items have the same vector."]);
  }

  #group({ items }) {
    const spare = this.asked === null ? "could go" : "alike";
    const one = (item, i) => {
      const mark = el("span", { class: i ? "mark-spare" : "mark-keep" }, i ? spare : "keep");
      const link = el("a", { href: this.actions.href(item), "aria-label": `More like ${item.file ?? item.id}` });
      const size = item.file === undefined ? null : `${number(item.width)} × ${number(item.height)}`;
      const content = item.file === undefined ? [words(item)] : [
        el("div", { class: "card-pictures" }, thumbnail(item)),
        el("div", { class: "card-words" }, fileName(item.file, { whole: true }), el("p", { class: "facts" }, size)),
      ];
      return el("div", { class: `card ${item.file === undefined ? "row" : ""}`, role: "listitem" }, link, content, mark);
    };
    const rest = items.length - SHOWN;
    return el(
      "section", { class: "group", "aria-label": counted(items.length, this.thing) },
      el("h2", {}, counted(items.length, this.thing)),
      el("div", { class: `cards ${items[0].file === undefined ? "rows" : ""}`, role: "list" }, items.slice(0, SHOWN).map(one)),
      rest > 0 ? el("p", { class: "facts" }, `and ${counted(rest, "more", "more")}`) : null,
    );
  }
}
