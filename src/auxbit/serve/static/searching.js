/** The view of results: asks the server, keeps old results meanwhile, drops answers that come too late. */

import { ApiError, isAbort, search, searchFile, searchVector } from "./api.js";
import { legendOfBits } from "./bits.js";
import { Controls, DEFAULT_K } from "./controls.js";
import { byId, counted, number } from "./dom.js";
import { announce, button, problem, stateOf } from "./notices.js";
import { Cards, drawQuery, drawWaitingCards, drawWaitingQuery, nameOf } from "./results.js";
import { keptVector } from "./rows.js";
import { kept } from "./store.js";
import { Viewer } from "./viewer.js";

export class Searching {
  /** @param {object} stats @param {{pick, href, change, choose, home}} actions */
  constructor(stats, actions) {
    this.stats = stats;
    this.actions = actions;
    this.answer = null;
    this.pending = null;
    this.viewer = new Viewer((id) => actions.pick({ id }));
    this.thing = stats.has_pictures ? "picture" : "item";
    this.open = (at) => {
      if (stats.has_pictures) this.viewer.open([this.answer.query, ...this.answer.results], at);
    };
    this.controls = new Controls(byId("controls"), stats, actions.change, () => this.#firstRadius());
    this.cards = new Cards(byId("results"), { pick: actions.pick, href: actions.href, open: this.open });
    byId("results-legend").replaceChildren(...legendOfBits(stats.reconstructs));
  }

  /** The name of what is shown, for the title. */
  get name() {
    return this.answer ? nameOf(this.answer.query) : null;
  }

  /** Show the results of a state; `answer` where the server has given it already. */
  async show(state, answer = null) {
    this.pending?.abort();
    const pending = new AbortController();
    this.pending = pending;
    this.viewer.close();
    this.controls.put(state);
    const focused = byId("results").contains(document.activeElement);
    this.#wait(state);
    try {
      const given = answer ?? (await this.#ask(state, pending.signal));
      if (pending.signal.aborted) return false;
      this.#draw(given, focused);
    } catch (error) {
      if (isAbort(error) || pending.signal.aborted) return false;
      this.#fail(error);
    }
    byId("results").removeAttribute("aria-busy");
    byId("query").removeAttribute("aria-busy");
    return true;
  }

  /** Another view is shown: what is on its way is not waited for. */
  leave() {
    this.pending?.abort();
    this.viewer.close();
  }

  async #ask(state, signal) {
    const wanted = { ...state, k: state.k ?? DEFAULT_K };
    if (state.vector !== null) {
      const vector = keptVector(state.vector);
      if (vector === null) throw new ApiError(404, "vector_gone", "This vector is no longer here: paste it again.");
      return searchVector(vector, wanted, signal);
    }
    try {
      return await search(wanted, signal);
    } catch (error) {
      if (!(error instanceof ApiError) || error.code !== "upload_gone") throw error;
      const own = await kept(state.upload);
      if (!own) throw error;
      return searchFile(own.file, own.name, wanted, signal);
    }
  }

  #sameQuery(state) {
    const query = this.answer?.query;
    if (!query) return false;
    if (state.id !== null) return String(query.id) === String(state.id);
    return (query.upload ?? null) === state.upload && query.text === state.text;
  }

  #wait(state) {
    byId("results").setAttribute("aria-busy", "true");
    if (this.answer) {
      if (!this.#sameQuery(state)) byId("query").setAttribute("aria-busy", "true");
      return;
    }
    byId("view-results").classList.remove("failed");
    byId("results-state").replaceChildren();
    byId("results-facts").textContent = "";
    drawWaitingQuery(byId("query"));
    drawWaitingCards(byId("results"), state.k ?? DEFAULT_K);
  }

  #draw(answer, focused) {
    const before = this.answer?.query;
    if (!before || !answer.query.thumbnail || before.thumbnail !== answer.query.thumbnail) {
      drawQuery(byId("query"), answer, this.open);
    }
    this.answer = answer;
    byId("view-results").classList.remove("failed");
    this.cards.draw(answer);
    const found = answer.results.length;
    const within = answer.radius === null ? "" : ` within ${counted(answer.radius, "bit")}`;
    const time = number(Number(answer.milliseconds.toPrecision(2)));
    const words = `${counted(found, this.thing)}${within} of ${number(answer.items)}, found in ${time} ms`;
    byId("results-facts").textContent = words;
    byId("results-legend").hidden = !found;
    byId("results-state").replaceChildren(...(found ? [] : [this.#nothing(answer)]));
    announce(found
      ? `${counted(found, "result")} for ${nameOf(answer.query)}. The nearest is ${nameOf(answer.results[0])}.`
      : `No results for ${nameOf(answer.query)}.`);
    if (focused) this.cards.focus();
  }

  #nothing(answer) {
    if (answer.radius === null) {
      if (answer.where) {
        const all = button("Without conditions", () => this.actions.change({ where: null }, null), "primary");
        return stateOf("Nothing matches", [`Nothing fulfils ${answer.where}.`], all);
      }
      const words = `The collection has no other ${this.thing}s.`
        + (this.stats.has_pictures ? " Add some with auxbit images add." : "");
      return stateOf("There is nothing to compare with", [words]);
    }
    const larger = Math.min(this.stats.bits, Math.max(answer.radius + 2, Math.ceil(answer.radius * 1.5)));
    const words = `No code differs from the query’s in ${counted(answer.radius, "bit")} or fewer.`;
    const off = button("Any distance", () => this.actions.change({ radius: null }, null));
    if (larger === answer.radius) return stateOf("Nothing within this radius", [words], off);
    const more = button(`Radius ${larger}`, () => this.actions.change({ radius: larger }, null), "primary");
    return stateOf("Nothing within this radius", [words], more, off);
  }

  #fail(error) {
    this.answer = null;
    this.cards.clear();
    byId("view-results").classList.add("failed");
    byId("results-facts").textContent = "";
    const others = [button(`All ${this.thing}s`, this.actions.home)];
    if (this.controls.where.value) {
      others.push(button("Without conditions", () => this.actions.change({ where: null }, null)));
    }
    if (this.stats.has_pictures) others.push(button("Choose a picture", this.actions.choose));
    const gone = error instanceof ApiError && error.code === "upload_gone";
    byId("results-state").replaceChildren(gone
      ? stateOf("This picture is no longer here", [
        "The server keeps pictures that were searched with for a while only, and this browser has no copy.",
        "Drop the picture again, paste it, or choose the file.",
      ], button("Choose a picture", this.actions.choose, "primary"))
      : problem(error, () => this.actions.change({}, null), ...others));
    announce(error.message);
  }

  /** Of the results that are shown, the farthest: switching the radius on changes nothing yet. */
  #firstRadius() {
    const distances = this.answer?.results.map((result) => result.hamming) ?? [];
    return Math.min(this.stats.bits, Math.max(1, ...distances));
  }
}
