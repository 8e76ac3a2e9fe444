/** What the page tells: a live region for ears, notices, and what is shown if there is nothing else. */

import { ApiError } from "./api.js";
import { byId, el } from "./dom.js";

/** Said by screen readers. */
export function announce(text) {
  byId("live").textContent = text;
}

export function clearNotices() {
  byId("notices").replaceChildren();
}

/** A notice above the view, in place of the one before. @param {"bad"|"busy"} kind */
export function notice(text, kind = "bad", action = null) {
  const close = el("button", { class: "button", type: "button", onclick: clearNotices }, "Close");
  const node = el(
    "div", { class: `notice ${kind}`, role: kind === "bad" ? "alert" : "status" },
    kind === "busy" ? el("span", { class: "spinner", "aria-hidden": "true" }) : null,
    el("p", {}, text), action, kind === "bad" ? close : null,
  );
  byId("notices").replaceChildren(node);
  return node;
}

/** A state in place of content: heading, sentences (strings or nodes), buttons. */
export function stateOf(heading, sentences, ...actions) {
  return el(
    "div", { class: "state" }, el("h2", {}, heading),
    sentences.map((sentence) => (typeof sentence === "string" ? el("p", {}, sentence) : sentence)),
    actions.length ? el("div", { class: "actions" }, actions) : null,
  );
}

export function button(text, onclick, kind = "") {
  return el("button", { class: `button ${kind}`, type: "button", onclick }, text);
}

export const command = (text) => el("code", { class: "command" }, text);

/** The state of an error, with what can be done about it. @param {Error} error */
export function problem(error, retry, ...actions) {
  const again = button("Retry", retry, "primary");
  const node = problemState(error, again, actions);
  node.setAttribute("role", "alert");
  return node;
}

function problemState(error, again, actions) {
  if (!(error instanceof ApiError)) {
    return stateOf("Something went wrong on this page", [String(error?.message ?? error)], again, ...actions);
  }
  if (error.code === "no_answer") {
    return stateOf("The server does not answer", ["Is auxbit serve still running?"], again, ...actions);
  }
  if (error.status === 401) {
    return stateOf("This server asks for a token", [
      "Open the whole address that auxbit serve printed when it started. It ends in",
      command("/?token=…"),
    ], again);
  }
  if (error.status === 404) return stateOf("Not found", [error.message], ...actions); // to retry is in vain
  return stateOf("The server could not answer", [error.message], again, ...actions);
}
