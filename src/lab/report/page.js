// SPDX-License-Identifier: Apache-2.0
// Values under the pointer or at the arrow keys, and a curve by itself. The page is whole without.
"use strict";
for (const figure of document.querySelectorAll("figure")) {
  const plot = figure.querySelector(".plot");
  const legend = figure.querySelector(".legend");
  const tip = figure.querySelector(".tip");
  const chart = JSON.parse(figure.querySelector(".values").textContent);
  const [left, right, top, bottom] = chart.box;
  const [low, high] = chart.x; // on a logarithmic axis, of the logarithm
  const scaled = (x) => (chart.logX ? Math.log10(x) : x);
  const steps = [...new Set(chart.curves.flatMap((curve) => curve.x))].sort((a, b) => a - b);
  const mark = document.createElementNS("http://www.w3.org/2000/svg", "g");
  plot.append(mark);
  plot.tabIndex = 0;
  let shown = -1;

  const nearest = (sorted, value) => {
    let best = 0;
    for (let i = 1; i < sorted.length; i++) {
      if (Math.abs(sorted[i] - value) < Math.abs(sorted[best] - value)) best = i;
    }
    return best;
  };
  const number = (value, digits) => {
    const short = Number(value.toPrecision(digits));
    return Math.abs(short) < 1e-3 && short ? short.toExponential() : String(short);
  };
  const atX = (x) => left + ((scaled(x) - low) / (high - low)) * (right - left);
  const atY = (y) => {
    const place = chart.log ? Math.log10(y) : y;
    return bottom - ((place - chart.y[0]) / (chart.y[1] - chart.y[0])) * (bottom - top);
  };
  const add = (parent, name, attributes) => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    parent.append(made);
  };
  const hide = () => {
    shown = -1;
    tip.hidden = true;
    mark.replaceChildren();
  };
  const show = (index) => {
    shown = Math.max(0, Math.min(steps.length - 1, index));
    const step = steps[shown];
    const x = atX(step);
    mark.replaceChildren();
    add(mark, "line", { x1: x, x2: x, y1: top, y2: bottom, stroke: "#888" });
    const rows = [];
    for (const curve of chart.curves) {
      const i = nearest(curve.x, step);
      // A curve of other steps has a value near by, or none here.
      if (Math.abs(scaled(curve.x[i]) - scaled(step)) > (high - low) / 50) continue;
      rows.push({ ...curve, value: curve.y[i], spread: curve.s ? curve.s[i] : 0 });
    }
    rows.sort((a, b) => b.value - a.value);
    const list = document.createElement("ul");
    for (const row of rows) {
      const y = atY(row.value);
      if (y >= top && y <= bottom) add(mark, "circle", { cx: x, cy: y, r: 3, fill: row.colour });
      const line = document.createElement("li");
      const text = (value) => line.appendChild(document.createElement("span")).append(value);
      line.append(legend.querySelector(`[data-entry="${row.entry}"] svg`).cloneNode(true));
      text(row.name);
      text(number(row.value, 5) + (row.spread ? ` ± ${number(row.spread, 2)}` : ""));
      list.append(line);
    }
    tip.replaceChildren(`${chart.label} ${step}`, list);
    // Over the legend, which says less: the curves stay to be seen. Panels have none of their own.
    const below = plot.getBoundingClientRect().bottom - figure.getBoundingClientRect().top;
    tip.style.top = `${legend.offsetHeight ? legend.offsetTop : below}px`;
    tip.style.minHeight = `${legend.offsetHeight}px`;
    tip.hidden = false;
  };

  plot.addEventListener("pointermove", (event) => {
    const box = plot.getBoundingClientRect();
    const x = ((event.clientX - box.left) / box.width) * plot.viewBox.baseVal.width;
    const place = low + ((x - left) / (right - left)) * (high - low);
    show(nearest(steps, chart.logX ? 10 ** place : place));
  });
  plot.addEventListener("pointerleave", hide);
  plot.addEventListener("blur", hide);
  plot.addEventListener("keydown", (event) => {
    const move = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity }[event.key];
    if (event.key === "Escape") hide();
    if (move === undefined) return;
    event.preventDefault();
    show(shown < 0 && move > 0 && move < 2 ? 0 : shown + move);
  });
}
// One series alone, while the pointer is on its name: in its figure, or in all panels of a grid.
for (const legend of document.querySelectorAll("figure > .legend, .grid > .legend")) {
  for (const entry of legend.querySelectorAll("[data-series]")) {
    const curves = legend.parentElement.querySelectorAll(
      `.plot .series[data-series="${entry.dataset.series}"]`);
    entry.addEventListener("pointerenter", () => {
      legend.parentElement.dataset.only = "";
      for (const curve of curves) curve.classList.add("only");
    });
    entry.addEventListener("pointerleave", () => {
      delete legend.parentElement.dataset.only;
      for (const curve of curves) curve.classList.remove("only");
    });
  }
}
