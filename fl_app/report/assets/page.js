"use strict";
// Charts are drawn without this script; it adds what needs a hand: theme, tooltips, toggles, sorting.
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

  // A setting that is switched off is off in every chart.
  const buttons = [...document.querySelectorAll(".legend button")];
  const keysOf = (button) => button.dataset.keys.split(" ");
  const apply = () => {
    for (const part of document.querySelectorAll(".chart [data-s]")) {
      part.classList.toggle("off", hidden.has(part.dataset.s));
    }
    for (const button of buttons) {
      const on = keysOf(button).some((key) => !hidden.has(key));
      button.setAttribute("aria-pressed", String(on));
    }
  };
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
    const ring = document.createElementNS(SVG, "circle");
    ring.setAttribute("class", "at");
    ring.setAttribute("cx", point[0] + "%");
    ring.setAttribute("cy", point[1]);
    ring.setAttribute("r", 8);
    chart.append(ring);
    const name = document.createElement("b");
    name.textContent = line.n;
    tip.replaceChildren(name, point[2]);
    tip.hidden = false;
    const box = chart.getBoundingClientRect();
    const x = box.left + box.width * point[0] / 100;
    const left = Math.max(8, Math.min(x + 12, root.clientWidth - tip.offsetWidth - 8));
    const below = box.top + point[1] - tip.offsetHeight - 12 < 0;
    const top = box.top + point[1] + (below ? 14 : -tip.offsetHeight - 12);
    tip.style.left = left + scrollX + "px";
    tip.style.top = top + scrollY + "px";
    if (speak) live.textContent = line.n + ": " + point[2];
  };

  for (const plot of document.querySelectorAll(".plot")) {
    const lines = () => (points[plot.id] || []).filter((line) => line.n && !hidden.has(line.s));
    let at = [0, -1];
    plot.addEventListener("pointermove", (event) => {
      const box = plot.querySelector(".chart").getBoundingClientRect();
      let best = null, nearest = 40 ** 2;
      for (const line of lines()) {
        for (const point of line.p) {
          const dx = box.left + box.width * point[0] / 100 - event.clientX;
          const dy = box.top + point[1] - event.clientY;
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
      if (event.key === "Escape") hide();
      if (!step) return;
      event.preventDefault();
      const shown = lines();
      if (!shown.length) return;
      const l = (at[0] + step[0] + shown.length) % shown.length;
      const last = shown[l].p.length - 1;
      const p = Math.max(0, Math.min(last, at[1] + step[1]));
      at = [l, p];
      show(plot, shown[l], shown[l].p[p], true);
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

  // A printed page shows what details hide; browsers without ::details-content need this.
  let closed = [];
  addEventListener("beforeprint", () => {
    closed = [...document.querySelectorAll("details:not([open])")];
    for (const part of closed) part.open = true;
  });
  addEventListener("afterprint", () => { for (const part of closed) part.open = false; });
})();
