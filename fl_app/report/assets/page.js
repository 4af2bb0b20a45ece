"use strict";
// Charts are drawn without this script; it adds what needs a hand: theme, tooltips, toggles, filter,
// sorting. zoom.js stands before it.
(() => {
  const points = JSON.parse(document.getElementById("points").textContent);
  const tip = document.getElementById("tip");
  const live = document.getElementById("live");
  const hidden = new Set();
  const SVG = "http://www.w3.org/2000/svg";

  const theme = document.getElementById("theme");
  const root = document.documentElement;
  const isDark = () => root.dataset.theme
    ? root.dataset.theme === "dark"
    : matchMedia("(prefers-color-scheme: dark)").matches;
  const nameTheme = () => { theme.textContent = isDark() ? "Light colours" : "Dark colours"; };
  theme.hidden = false;
  theme.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    nameTheme();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", nameTheme);
  nameTheme();

  // A setting that is switched off is off in every chart; one that the filter leaves out also has
  // no button and no row in a table, and a chart of such settings alone is not shown.
  const filtered = new Set();
  const isOff = (key) => hidden.has(key) || filtered.has(key);
  const buttons = [...document.querySelectorAll(".legend button")];
  const keysOf = (button) => button.dataset.keys.split(" ");
  const apply = () => {
    for (const part of document.querySelectorAll(".chart [data-s]")) {
      part.classList.toggle("off", isOff(part.dataset.s));
    }
    for (const row of document.querySelectorAll("tr[data-s]")) {
      row.hidden = filtered.has(row.dataset.s);
    }
    for (const button of buttons) {
      button.hidden = keysOf(button).every((key) => filtered.has(key));
      button.setAttribute("aria-pressed", String(!keysOf(button).every(isOff)));
    }
    for (const figure of document.querySelectorAll("figure:has(.legend button)")) {
      figure.hidden = !figure.querySelector(".legend button:not([hidden])");
    }
  };
  const filter = document.getElementById("filter");
  if (filter) {
    const rows = [...document.querySelectorAll("#glance tr[data-s]")];
    const plain = (text) => text.toLowerCase().replaceAll("\u00a0", " ").replaceAll(/\s*=\s*/g, "=");
    filter.parentElement.hidden = false;
    filter.addEventListener("input", () => {
      const words = plain(filter.value).split(/[\s,]+/).filter(Boolean);
      filtered.clear();
      for (const row of rows) {
        const name = plain(row.cells[0].textContent);
        if (!words.every((word) => name.includes(word))) filtered.add(row.dataset.s);
      }
      live.textContent = rows.length - filtered.size + " of " + rows.length + " settings shown";
      apply();
    });
  }
  for (const button of buttons) {
    button.addEventListener("click", () => {
      const on = button.getAttribute("aria-pressed") === "true";
      for (const key of keysOf(button)) { if (on) hidden.add(key); else hidden.delete(key); }
      apply();
    });
  }

  const hide = () => {
    tip.hidden = true;
    for (const ring of document.querySelectorAll(".at")) ring.remove();
  };
  const show = (plot, line, point, speak) => {
    hide();
    const chart = plot.querySelector(".chart");
    const [across, down] = zoom.place(plot, point);
    const ring = document.createElementNS(SVG, "circle");
    ring.setAttribute("class", "at");
    ring.setAttribute("cx", across + "%");
    ring.setAttribute("cy", down);
    ring.setAttribute("r", 8);
    chart.append(ring);
    const name = document.createElement("b");
    name.textContent = line.n;
    tip.replaceChildren(name, point[2]);
    tip.hidden = false;
    const box = chart.getBoundingClientRect();
    const x = box.left + box.width * across / 100;
    const left = Math.max(8, Math.min(x + 12, root.clientWidth - tip.offsetWidth - 8));
    const below = box.top + down - tip.offsetHeight - 12 < 0;
    const top = box.top + down + (below ? 14 : -tip.offsetHeight - 12);
    tip.style.left = left + scrollX + "px";
    tip.style.top = top + scrollY + "px";
    if (speak) live.textContent = line.n + ": " + point[2];
  };

  for (const plot of document.querySelectorAll(".plot")) {
    const lines = () => (points[plot.id] || [])
      .filter((line) => line.n && !isOff(line.s))
      .map((line) => ({ ...line, p: line.p.filter((point) => zoom.place(plot, point)) }))
      .filter((line) => line.p.length);
    let at = [0, -1], current = null;
    plot.addEventListener("pointermove", (event) => {
      const box = plot.querySelector(".chart").getBoundingClientRect();
      let best = null, nearest = 40 ** 2;
      for (const line of lines()) {
        for (const point of line.p) {
          const [across, down] = zoom.place(plot, point);
          const dx = box.left + box.width * across / 100 - event.clientX;
          const dy = box.top + down - event.clientY;
          const distance = dx * dx + dy * dy;
          if (distance < nearest) { nearest = distance; best = [line, point]; }
        }
      }
      if (best) show(plot, best[0], best[1], false); else hide();
    });
    plot.addEventListener("pointerleave", hide);
    plot.addEventListener("blur", hide);
    plot.addEventListener("keydown", (event) => {
      const step = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] }[event.key];
      const factor = { "+": 0.5, "=": 0.5, "-": 2 }[event.key];
      const shown = lines();
      if (event.key === "Escape") hide();
      if (event.key === "0") zoom.whole(plot);
      if (factor) zoom.by(plot, factor, current);
      if (factor || event.key === "0") hide();
      if (!step || !shown.length) return;
      event.preventDefault();
      const l = (Math.min(at[0], shown.length - 1) + step[0] + shown.length) % shown.length;
      const last = shown[l].p.length - 1;
      const p = Math.max(0, Math.min(last, at[1] + step[1]));
      at = [l, p];
      current = shown[l].p[p];
      show(plot, shown[l], current, true);
    });
  }
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") hide(); });

  // Sorting: numbers by value, ∞ last, what is missing at the end.
  const valueOf = (row, column) => {
    const text = row.cells[column].textContent.trim();
    const units = { B: 1, kB: 1e3, MB: 1e6, GB: 1e9, TB: 1e12 };
    const found = /^([\d.,]+)\s*([kMGT]?B)?/.exec(text);
    if (text === "∞") return Number.MAX_VALUE;
    return found ? Number(found[1].replaceAll(",", "")) * (units[found[2]] || 1) : text;
  };
  for (const table of document.querySelectorAll("table.sortable")) {
    const body = table.tBodies[0];
    [...table.tHead.rows[0].cells].forEach((head, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = head.textContent;
      head.replaceChildren(button);
      button.addEventListener("click", () => {
        const down = head.getAttribute("aria-sort") === "ascending";
        for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
        head.setAttribute("aria-sort", down ? "descending" : "ascending");
        const rows = [...body.rows].sort((a, b) => {
          const x = valueOf(a, column), y = valueOf(b, column);
          const isText = typeof x === "string" || typeof y === "string";
          return isText ? String(x).localeCompare(String(y), "en", { numeric: true }) : x - y;
        });
        body.append(...(down ? rows.reverse() : rows));
      });
    });
  }
})();
