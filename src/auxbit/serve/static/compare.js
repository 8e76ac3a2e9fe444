/** The tab that compares methods, if a comparison was run. */

import * as api from "./api.js";
import { lineChart, tableAlone } from "./charts.js";
import { counted, el, number } from "./dom.js";
import { waiting } from "./model.js";
import { command, problem, stateOf } from "./notices.js";

/** Name in a row, words, decimals. */
const COLUMNS = [
  ["precision", "Precision", 3], ["recall", "Recall", 3], ["map", "MAP", 3],
  ["squared_error", "Squared error", undefined], ["effective_bits", "Bits used", 2],
  ["seconds", "Seconds", 1],
];

export class Compare {
  constructor(node, stats) {
    this.node = node;
    this.stats = stats;
    this.ready = false;
  }

  async show() {
    if (this.ready) return;
    if (!this.stats.has_comparison) return void this.node.replaceChildren(this.#invitation());
    waiting(this.node);
    try {
      this.#draw(await api.comparison());
      this.ready = true;
    } catch (error) {
      const none = error.code === "no_comparison";
      this.node.replaceChildren(none ? this.#invitation() : problem(error, () => this.show()));
    }
  }

  #invitation() {
    return stateOf("No comparison yet", [
      "How do other methods and lengths of code do on these pictures? This runs them side by side:",
      command(`auxbit images compare ${this.stats.name}.auxbit`),
      el("p", { class: "after-command" }, "Then load this page again."),
    ]);
  }

  #draw(comparison) {
    const rows = named(comparison.rows);
    const series = seriesOf(rows);
    const lengths = [...new Set(rows.map((row) => row.bits))].sort((a, b) => a - b);
    this.node.replaceChildren(
      el("h1", {}, "Methods side by side"),
      el("p", { class: "advice" }, settingOf(comparison)),
      el(
        "div", { class: "panel-column" },
        el(
          "article", { class: "panel" }, el("h2", {}, "Precision by bits"),
          el("p", { class: "words" }, "The share of true neighbours among the pictures that the codes find. "
            + "Higher is better; longer codes take more memory."),
          series.length ? lineChart({
            label: "Precision by number of bits", xLabel: "bits", yLabel: "precision", xName: "bits",
            xKind: "log", height: 340, xTicks: lengths, series,
          }) : null,
        ),
        el(
          "article", { class: "panel" }, el("h2", {}, "All figures"),
          el("p", { class: "words" }, "The best precision of each length is marked with a star."),
          tableOfRows(rows),
        ),
        comparison.command ? el(
          "article", { class: "panel" }, el("h2", {}, "How it was made"), command(comparison.command),
          comparison.made ? el("p", { class: "words" }, `On ${String(comparison.made).slice(0, 10)}.`) : null,
        ) : null,
      ),
    );
  }
}

/** Rows whose method says by which search it was measured, where there are several. */
function named(rows) {
  const several = new Set(rows.map((row) => row.search)).size > 1;
  const nameOf = ({ method, search }) => (several && search ? `${method}, ${search}` : method);
  return rows.map((row) => ({ ...row, method: nameOf(row) }));
}

function seriesOf(rows) {
  const methods = [...new Set(rows.map((row) => row.method))];
  const pointsOf = (name) => rows.filter((row) => row.method === name && typeof row.precision === "number")
    .map((row) => [row.bits, row.precision]).sort(([a], [b]) => a - b);
  return methods.map((name) => ({ name, points: pointsOf(name) })).filter((one) => one.points.length);
}

function tableOfRows(rows) {
  const columns = COLUMNS.filter(([name]) => rows.some((row) => typeof row[name] === "number"));
  const sorted = [...rows].sort((a, b) => a.bits - b.bits || (b.precision ?? 0) - (a.precision ?? 0));
  const isBest = (row, i) => typeof row.precision === "number" && row.bits !== sorted[i - 1]?.bits;
  return tableAlone(
    ["Bits", "Method", ...columns.map(([, words]) => words)],
    sorted.map((row, i) => [
      row.bits, isBest(row, i) ? `${row.method} ★` : row.method,
      ...columns.map(([name]) => row[name] ?? null),
    ]),
    "", [undefined, undefined, ...columns.map(([, , decimals]) => decimals)],
  );
}

function settingOf({ queries, items, K, k }) {
  if (typeof queries !== "number" || typeof items !== "number") return "";
  const asked = `${counted(queries, "query", "queries")} against ${counted(items, "picture")}`;
  if (typeof K !== "number" || typeof k !== "number") return `${asked}.`;
  return `${asked}: of the ${number(K)} true nearest pictures, how many are among the ${number(k)} found?`;
}
