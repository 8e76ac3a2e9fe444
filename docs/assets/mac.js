// The path of MAC in the plane: points, hyperplanes, decoder and codes for each μ. Everything is computed before
// (benchmarks/mac_page.py); this only draws it.
"use strict";
(function () {
  const COLOURS = ["#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#bbbbbb", "#e07b39",
    "#7755cc", "#117766", "#994455", "#88aa22", "#3399cc", "#cc77aa", "#557799", "#aa8844"];
  const SIZE = 520;
  const svg = (name, attributes) => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", name);
    Object.entries(attributes).forEach(([key, value]) => made.setAttribute(key, value));
    return made;
  };

  function start(root) {
    const find = (name) => root.querySelector(`[data-mac="${name}"]`);
    fetch(root.dataset.source).then((answer) => answer.json()).then((paths) => {
      const names = [...new Set(paths.map((path) => path.name))];
      const bits = [...new Set(paths.map((path) => path.bits))];
      names.forEach((name) => find("data").add(new Option(name, name)));
      bits.forEach((n) => find("bits").add(new Option(`${n} bits`, n)));
      find("bits").value = "3";
      let timer = null;
      const chosen = () => paths.find((path) =>
        path.name === find("data").value && path.bits === Number(find("bits").value));
      const show = () => draw(root, find, chosen(), Number(find("step").value));
      const begin = () => {
        find("step").max = chosen().steps.length - 1;
        find("step").value = 0;
        show();
      };
      const stop = () => { clearInterval(timer); timer = null; find("play").textContent = "Play"; };
      find("data").onchange = find("bits").onchange = () => { stop(); begin(); };
      find("step").oninput = () => { stop(); show(); };
      find("play").onclick = () => {
        if (timer !== null) { stop(); return; }
        if (find("step").value === find("step").max) { find("step").value = 0; }
        find("play").textContent = "Pause";
        timer = setInterval(() => {
          if (find("step").value === find("step").max) { stop(); return; }
          find("step").value = Number(find("step").value) + 1;
          show();
        }, 900);
      };
      begin();
    }).catch(() => { find("words").textContent = "The paths could not be loaded."; });
  }

  function draw(root, find, path, place) {
    const step = path.steps[place];
    const reach = 1.15 * Math.max(...path.points.flat().map(Math.abs));
    const at = (x, y) => [SIZE / 2 * (1 + x / reach), SIZE / 2 * (1 - y / reach)];
    const bit = (code, l) => (code >> l) & 1;
    const decoded = (code) => step.b.map((b, d) =>
      b + step.A[d].reduce((sum, a, l) => sum + a * bit(code, l), 0));
    const hashed = ([x, y]) => step.weights.reduce((code, [w, v, c], l) =>
      code | ((w * x + v * y + c >= 0 ? 1 : 0) << l), 0);
    const picture = find("picture");
    picture.replaceChildren();
    step.weights.forEach(([w, v, c]) => {
      const norm = Math.hypot(w, v) || 1;
      const [px, py] = [-c * w / norm ** 2, -c * v / norm ** 2];
      const [dx, dy] = [-v / norm * 3 * reach, w / norm * 3 * reach];
      const [a, b] = [at(px - dx, py - dy), at(px + dx, py + dy)];
      picture.append(svg("line", { x1: a[0], y1: a[1], x2: b[0], y2: b[1], class: "mac-plane" }));
    });
    path.points.forEach((point, n) => {
      const code = step.codes[n], colour = COLOURS[code % COLOURS.length];
      const [x, y] = at(...point), [fx, fy] = at(...decoded(code));
      picture.append(svg("line", { x1: x, y1: y, x2: fx, y2: fy, stroke: colour, class: "mac-error" }));
      if (hashed(point) !== code) {
        picture.append(svg("circle", { cx: x, cy: y, r: 7, class: "mac-differs" }));
      }
      picture.append(svg("circle", { cx: x, cy: y, r: 3.5, fill: colour }));
    });
    [...new Set(step.codes)].forEach((code) => {
      const [x, y] = at(...decoded(code));
      const square = { x: x - 6, y: y - 6, width: 12, height: 12, transform: `rotate(45 ${x} ${y})` };
      picture.append(svg("rect", { ...square, fill: COLOURS[code % COLOURS.length], class: "mac-decoded" }));
      const label = svg("text", { x: x + 11, y: y + 4, class: "mac-label" });
      label.textContent = [...Array(path.bits).keys()].map((l) => bit(code, l)).join("");
      picture.append(label);
    });
    const number = (value) => value.toPrecision(3);
    find("mu").textContent = `step ${place + 1} of ${path.steps.length}, μ = ${number(step.mu)}`;
    find("words").textContent = `E_Q = ${number(step.E_Q)}, E_BFA = ${number(step.E_BFA)}, ` +
      `E_BA = ${number(step.E_BA)}; ` + (step.differ === 0
      ? "Z = h(X): the three are one, and MAC stops."
      : `${step.differ} of ${path.points.length * path.bits} bits of Z are not those of h.`);
  }

  const all = () => document.querySelectorAll(".mac-page:not([data-begun])").forEach((root) => {
    root.dataset.begun = "yes";
    start(root);
  });
  if (document.readyState === "loading") { document.addEventListener("DOMContentLoaded", all); } else { all(); }
}());
