"use strict";
// Tables are sorted by the numbers in data-key; empty ones stay last whichever way.
for (const table of document.querySelectorAll("table.sortable")) {
  const body = table.tBodies[0];
  [...table.tHead.rows[0].cells].forEach((head, column) => {
    const button = document.createElement("button");
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") === "ascending";
      for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const key = (row) => row.cells[column].dataset.key;
      const rows = [...body.rows].sort((a, b) => {
        const [one, two] = [key(a), key(b)];
        if (one === "" || two === "") return (one === "") - (two === "");
        const apart = Number(one) - Number(two);
        const order = Number.isNaN(apart) ? one.localeCompare(two, undefined, { numeric: true }) : apart;
        return down ? -order : order;
      });
      body.append(...rows);
    });
  });
}

// One axis of the curves at a time.
for (const group of document.querySelectorAll(".along")) {
  const show = () => {
    const chosen = group.querySelector("input:checked").value;
    for (const part of group.querySelectorAll("[data-along]")) part.hidden = part.dataset.along !== chosen;
  };
  group.addEventListener("change", show);
  show();
}

// What is under the pointer: of curves, every variant at this place; of points, the nearest one.
const brief = (value) => {
  const size = Math.abs(value);
  for (const [unit, letter] of [[1e18, "E"], [1e15, "P"], [1e12, "T"], [1e9, "G"], [1e6, "M"], [1e4, "k"]])
    if (size >= unit) return Number((value / unit).toPrecision(4)) + letter;
  return String(Number(value.toPrecision(4)));
};
for (const chart of document.querySelectorAll("figure.chart")) {
  const data = JSON.parse(chart.querySelector("script").textContent);
  const svg = chart.querySelector("svg");
  const view = svg.viewBox.baseVal;
  const tip = document.createElement("div");
  tip.className = "tip";
  tip.hidden = true;
  chart.append(tip);
  const cursor = document.createElementNS("http://www.w3.org/2000/svg", "path");
  cursor.setAttribute("class", "cursor");
  svg.append(cursor);
  const lines = data.series.filter((one) => one.line && one.px.length);
  const points = data.series.filter((one) => !one.line && one.px.length);
  const where = (x) => (data.ticks.length ? data.ticks[x] : brief(x));
  const line = (one, i) => {
    const row = document.createElement("div");
    const chip = document.createElement("span");
    chip.className = "chip " + one.hue;
    const half = one.half ? " ± " + brief(Number(one.half[i].toPrecision(2))) : "";
    row.append(chip, one.label + ": " + brief(one.y[i]) + half);
    return row;
  };
  const at = (one, x) => {
    let low = 0;
    one.px.forEach((px, i) => { if (Math.abs(px - x) < Math.abs(one.px[low] - x)) low = i; });
    return low;
  };
  const hide = () => { tip.hidden = true; cursor.setAttribute("d", ""); };
  const tell = (event) => {
    const box = svg.getBoundingClientRect();
    const scale = view.width / box.width;
    const x = (event.clientX - box.left) * scale, y = (event.clientY - box.top) * scale;
    let rows = [], place = x;
    if (lines.length) {
      const near = lines.map((one) => [one, at(one, x)]).filter(([one, i]) => Math.abs(one.px[i] - x) < 24);
      if (!near.length) return hide();
      near.sort(([a, i], [b, j]) => a.py[i] - b.py[j]);
      const [nearest, i] = near.reduce((a, b) => (Math.abs(b[0].px[b[1]] - x) < Math.abs(a[0].px[a[1]] - x) ? b : a));
      place = nearest.px[i];
      const shown = near.filter(([one]) => one.hue !== "grey");
      rows = [data.x + " " + where(nearest.x[i]), ...(shown.length ? shown : near.slice(0, 8)).map(([one, j]) => line(one, j))];
    } else {
      let best = null, distance = 900;
      for (const one of points) one.px.forEach((px, i) => {
        const apart = (px - x) ** 2 + (one.py[i] - y) ** 2;
        if (apart < distance) { distance = apart; best = [one, i]; }
      });
      if (!best) return hide();
      place = best[0].px[best[1]];
      rows = [line(...best), data.x + " " + where(best[0].x[best[1]])];
    }
    cursor.setAttribute("d", "M" + place + " 10V" + (view.height - 42));
    tip.replaceChildren(...rows);
    tip.hidden = false;
    const outer = chart.getBoundingClientRect();
    const left = place / scale + box.left - outer.left;
    const right = left > chart.clientWidth / 2;
    tip.style.left = right ? "" : left + 10 + "px";
    tip.style.right = right ? chart.clientWidth - left + 10 + "px" : "";
    tip.style.top = box.top - outer.top + 8 + "px";
  };
  svg.addEventListener("pointermove", tell);
  svg.addEventListener("pointerdown", tell);
  svg.addEventListener("pointerleave", hide);
}
