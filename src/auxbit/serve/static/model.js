/** The tab on the model: how it was trained and what its bits do. */

import * as api from "./api.js";
import { balanceChart, bucketChart, doubled, heatMap, pairs } from "./bars.js";
import { lineChart, tableOf } from "./charts.js";
import { bytes, counted, el, number } from "./dom.js";
import { problem, stateOf } from "./notices.js";

function panel(title, words, ...content) {
  return el("article", { class: "panel" }, el("h2", {}, title), el("p", { class: "words" }, words), content);
}

/** Panels in two columns, which stand below each other if there is no room. */
function columns(left, right) {
  const column = (panels) => el("div", { class: "panel-column" }, panels);
  return el("div", { class: "panel-columns" }, column(left), column(right));
}

/** In place of panels that are on their way. */
export function waiting(node) {
  const one = () => el("div", { class: "panel skeleton waiting", "aria-hidden": "true" });
  node.replaceChildren(el("p", { class: "unseen" }, "Loading"), columns([one(), one()], [one(), one()]));
}

export class Model {
  constructor(node, stats) {
    this.node = node;
    this.stats = stats;
    this.ready = false;
  }

  async show() {
    if (this.ready) return;
    waiting(this.node);
    try {
      this.#draw(await api.model());
      this.ready = true;
    } catch (error) {
      this.node.replaceChildren(problem(error, () => this.show()));
    }
  }

  #draw(model) {
    if (!model.items) {
      const words = "There are no codes to look at yet.";
      return void this.node.replaceChildren(stateOf("This collection is empty", [words]));
    }
    const heading = `${model.method}, ${counted(model.bits, "bit")}, ${counted(model.items, this.stats.has_pictures ? "picture" : "item")}`;
    const trained = model.history.length
      ? [errors(model.history), precision(model.history), penalty(model.history)] : [noHistory(model.method)];
    const facts = factsOf(model, this.stats);
    const left = [...trained, buckets(model.buckets, model.items)];
    const right = [effective(model.effective_bits), balance(model.balance), correlation(model.correlation)];
    (model.history.length ? right : left).push(facts);
    const advice = el("p", { class: "advice" }, this.#advice());
    this.node.replaceChildren(el("h1", {}, heading), advice, columns(left, right));
  }

  #advice() {
    const { retrain, reasons, added_since_training: added } = this.stats;
    const why = (reasons ?? []).join("; ");
    if (retrain) return `What was added differs from what the model was trained on: ${why}. A new model will fit them better.`;
    return added ? `${counted(added, "item")} added since training; the model still fits them.` : "";
  }
}

function noHistory(method) {
  return panel("Training", `${method} is computed in one go, without iterations, so there is no course of `
    + "training to draw. Everything else on this page holds for it all the same.");
}

function errors(history) {
  const of = (name) => history.map((step) => [step.iteration, step[name]]);
  const heads = ["Iteration", "μ", "E_Q", "E_BA", "Codes changed", "Codes off"];
  const rows = history.map((step) => [
    step.iteration, step.mu, step.E_Q, step.E_BA, step.changed, step.mismatched,
  ]);
  return panel(
    "Error by iteration",
    "E_BA is the squared error of vectors rebuilt from the codes that the hash function gives; E_Q is that "
    + "of codes left free, plus a penalty where the two differ. The nearer the lines, the less is lost.",
    lineChart({
      label: "E_Q and E_BA by iteration", xLabel: "iteration", yLabel: "squared error", xName: "iteration",
      series: [{ name: "E_Q", points: of("E_Q") }, { name: "E_BA", points: of("E_BA") }],
    }),
    tableOf("As a table", heads, rows),
  );
}

function penalty(history) {
  const points = history.filter((step) => step.mu > 0).map((step) => [step.iteration, step.mu]);
  if (!points.length) return null;
  return panel(
    "Penalty μ",
    "How strongly codes were held to what the hash function gives. It grows with every iteration.",
    lineChart({
      label: "μ by iteration", xLabel: "iteration", yLabel: "", xName: "iteration", height: 230,
      yKind: "log", series: [{ name: "μ (log scale)", points }],
    }),
  );
}

function precision(history) {
  const points = history.filter((step) => typeof step.precision === "number")
    .map((step) => [step.iteration, step.precision]);
  if (!points.length) return null;
  return panel(
    "Precision by iteration",
    "The share of true neighbours among those found, on rows kept aside. Higher is better.",
    lineChart({
      label: "Precision by iteration", xLabel: "iteration", yLabel: "", xName: "iteration", height: 230,
      series: [{ name: "precision", points }],
    }),
  );
}

function effective({ bits, effective: used, bound }) {
  const share = bound > 0 ? Math.min(1, used / bound) : 0;
  const fill = el("i");
  fill.style.width = `${100 * share}%`;
  const why = bound < bits
    ? `although a code has ${bits}: items cannot use more bits than log₂ of their number`
    : `the ${bits} bits of a code`;
  const gauge = {
    class: "gauge", role: "meter", "aria-label": "Bits used", "aria-valuemin": 0, "aria-valuemax": bound,
    "aria-valuenow": used,
  };
  return panel(
    "Bits used",
    "L_eff is how many bits’ worth of different codes the items use. "
    + `At most ${number(bound)} are possible, ${why}.`,
    el("p", { class: "big-number" }, el("strong", {}, used.toFixed(2)), ` of ${bound.toFixed(2)} bits`),
    el("div", gauge, fill),
    el("p", { class: "gauge-words" }, el("span", {}, "0"), el("span", {}, `${(100 * share).toFixed(1)} %`),
      el("span", {}, bound.toFixed(2))),
  );
}

function balance(shares) {
  const off = [...shares.keys()].sort((a, b) => Math.abs(shares[b] - 0.5) - Math.abs(shares[a] - 0.5))[0];
  return panel(
    "Balance of bits", "A bit tells most when half of the items have a 1 there: short bars are good. "
    + `The least balanced is bit ${off}, with ${(100 * shares[off]).toFixed(1)} % of ones.`,
    balanceChart(shares),
    tableOf("As a table", ["Bit", "Share of ones"], shares.map((share, bit) => [bit, share])),
  );
}

function correlation(matrix) {
  const strongest = pairs(matrix);
  if (!strongest.length) return panel("Correlation of bits", "There is one bit only.");
  const most = Math.min(1, Math.max(0.1, Math.ceil(Math.abs(strongest[0].value) * 10) / 10));
  const mean = strongest.reduce((sum, pair) => sum + Math.abs(pair.value), 0) / strongest.length;
  const rows = strongest.slice(0, 12).map(({ a, b, value }) => [a, b, value]);
  return panel(
    "Correlation of bits",
    "Each square compares two bits; pale squares are good, because bits that go together say the "
    + `same thing twice. The mean strength is ${mean.toFixed(3)}.`,
    heatMap(matrix, most),
    tableOf("The strongest pairs", ["Bit", "Bit", "Correlation"], rows),
  );
}

function buckets({ distinct, largest, sizes }, items) {
  const rows = doubled(sizes).map(({ words, buckets: n }) => [words, n]);
  const shared = largest > 1 ? `at most ${number(largest)} share one` : "none is shared";
  return panel(
    "Buckets", `${counted(items, "item")} have ${counted(distinct, "different code")}; ${shared}. `
    + "Many codes with few items each tell these apart well.",
    bucketChart(sizes),
    tableOf("As a table", ["Items with the same code", "Codes"], rows),
  );
}

const FEATURES = { gist: "GIST", pixels: "pixels", onnx: "a network of your own" };
const CODINGS = { hash: "the hash function", optimal: "the decoder (optimal codes)" };

function said(value) {
  if (typeof value === "number") return number(value);
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}

function wordsOf({ kind, side, colour, grey }) {
  const extras = [grey ? ", grey" : "", colour ? `, with colour (weight ${number(colour)})` : ""].join("");
  return `${FEATURES[kind] ?? kind} of ${side} × ${side} pixels${extras}`;
}

function factsOf(model, stats) {
  const features = stats.features ? [["Features", wordsOf(stats.features)]] : [];  // of pictures alone
  const sizes = Object.entries(stats.bytes ?? {}).filter(([, n]) => typeof n === "number");
  const { training } = model;
  const mu = stats.mu ? `, μ = ${number(stats.mu)}` : "";
  const given = Object.entries(model.parameters ?? {}).filter(([, value]) => value !== null);
  const rows = [
    ...features,
    ["Numbers in a vector", number(model.dimension)],
    ["Codes are made by", `${CODINGS[stats.coding] ?? stats.coding}${mu}`],
    ...(training ? [["Trained on", counted(training.rows, "row")]] : []),
    ...sizes.map(([name, n]) => [`Size on disk: ${name.replaceAll("_", " ")}`, bytes(n)]),
  ];
  const list = (pairsOf) => el("dl", { class: "fact-list" }, pairsOf.map(([name, value]) => (
    el("div", {}, el("dt", {}, name), el("dd", {}, value)))));
  return panel(
    "Facts", "What the model was made of.", list(rows),
    given.length ? el("details", {}, el("summary", {}, "Parameters of training"),
      list(given.map(([name, value]) => [name, said(value)]))) : null,
  );
}
