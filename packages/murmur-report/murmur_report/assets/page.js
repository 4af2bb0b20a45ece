"use strict";
// Draws the charts (Vega stands before this script), and does what needs a hand: theme, which
// settings are shown, tables and files of a figure's numbers, sorting.
(() => {
  const { config, light, figures } = JSON.parse(document.getElementById("figures").textContent);
  const live = document.getElementById("live");
  const root = document.documentElement;
  const views = [];

  const theme = document.getElementById("theme");
  const system = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => root.dataset.theme ? root.dataset.theme === "dark" : system.matches;
  const nameTheme = () => { theme.textContent = isDark() ? "Light colours" : "Dark colours"; };
  theme.hidden = false;
  theme.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    nameTheme();
  });
  system.addEventListener("change", nameTheme);
  nameTheme();

  // A setting's box in the results shows or hides it in every chart; the filter leaves out its row
  // as well. A panel of hidden settings alone is not shown.
  const rows = [...document.querySelectorAll("#glance tr[data-s]")];
  const boxOf = (row) => row.querySelector("input");
  const apply = () => {
    const hidden = rows.filter((row) => row.hidden || !boxOf(row).checked).map((row) => row.dataset.s);
    for (const row of document.querySelectorAll("#budget tr[data-s]")) {
      row.hidden = rows.find((each) => each.dataset.s === row.dataset.s).hidden;
    }
    for (const { view, figure, panel } of views) {
      const { panels, numbers } = figures[figure];
      const keys = numbers.filter((n) => n.panel === panels[panel].title && n.key).map((n) => n.key);
      view.container().closest("figure").hidden = keys.length > 0 && keys.every((k) => hidden.includes(k));
      view.signal("hidden", hidden).runAsync();
    }
  };
  for (const row of rows) boxOf(row).addEventListener("change", apply);
  const filter = document.getElementById("filter");
  if (filter) {
    const plain = (text) => text.toLowerCase().replaceAll("\u00a0", " ").replaceAll(/\s*=\s*/g, "=");
    filter.addEventListener("input", () => {
      const words = plain(filter.value).split(/[\s,]+/).filter(Boolean);
      for (const row of rows) {
        const name = plain(row.cells[0].textContent);
        row.hidden = !words.every((word) => name.includes(word));
      }
      live.textContent = rows.filter((row) => !row.hidden).length + " of " + rows.length + " settings shown";
      apply();
    });
  }

  // A figure's numbers, as a table and as a file; no cell of the file is a formula.
  const shown = (value) => typeof value === "number" ? String(Number(value.toPrecision(4))) : value ?? "";
  const table = (figure) => {
    const { columns, numbers } = figures[figure];
    const made = document.createElement("table");
    const line = (parent, cells, kind) => {
      const row = parent.insertRow();
      for (const text of cells) {
        const cell = document.createElement(kind);
        cell.textContent = text;
        row.append(cell);
      }
    };
    line(made.createTHead(), Object.values(columns), "th");
    const body = made.createTBody();
    for (const record of numbers) line(body, Object.keys(columns).map((name) => shown(record[name])), "td");
    return made;
  };
  const csv = (figure) => {
    const { columns, numbers } = figures[figure];
    const cell = (value) => {
      if (typeof value !== "string") return value ?? "";
      const safe = /^[=+\-@\t\r']/.test(value) ? "'" + value : value;
      return /[",\n\r]/.test(safe) ? '"' + safe.replaceAll('"', '""') + '"' : safe;
    };
    const lines = numbers.map((record) => Object.keys(columns).map((name) => cell(record[name])));
    return [Object.values(columns).map(cell), ...lines].map((line) => line.join(",") + "\n").join("");
  };
  const save = (name, kind, content) => {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([content], { type: kind }));
    link.download = name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  };
  const onPaper = (svg) => svg.replaceAll(/var\(--(\w+)\)/g, (_, name) => light[name]);
  for (const details of document.querySelectorAll("details.numbers")) {
    details.addEventListener("toggle", () => {
      const place = details.querySelector(".scroll");
      if (details.open && !place.hasChildNodes()) place.append(table(details.dataset.figure));
    });
  }
  document.getElementById("main").addEventListener("click", async (event) => {
    const kind = event.target.dataset.save;
    const figure = document.getElementById("which")?.value;
    if (kind === "csv") save(figure + ".csv", "text/csv", csv(figure));
    if (kind !== "svg") return;
    for (const each of views.filter((each) => each.figure === figure)) {
      const number = views.filter((other) => other.figure === figure).length > 1 ? "-" + (each.panel + 1) : "";
      save(figure + number + ".svg", "image/svg+xml", onPaper(await each.view.toSVG()));
    }
  });

  const drawn = [...document.querySelectorAll(".chart")].map(async (place) => {
    const figure = place.dataset.figure, panel = Number(place.dataset.panel);
    const spec = { ...figures[figure].panels[panel].chart, datasets: { numbers: figures[figure].numbers } };
    const options = { ast: true, renderer: "svg", actions: false, config };
    const { view } = await vegaEmbed(place, spec, options);
    place.querySelector("svg").setAttribute("aria-hidden", "true");  // its box has the name
    views.push({ view, figure, panel });
  });
  Promise.all(drawn).then(() => { root.dataset.drawn = drawn.length; });

  // Sorting, within each promise: numbers by value, ∞ last, what is missing at the end.
  const valueOf = (row, column) => {
    const text = row.cells[column].textContent.trim();
    const units = { B: 1, kB: 1e3, MB: 1e6, GB: 1e9, TB: 1e12 };
    const found = /^([\d.,]+)\s*([kMGT]?B)?/.exec(text);
    if (text.startsWith("∞")) return Number.MAX_VALUE;
    return found ? Number(found[1].replaceAll(",", "")) * (units[found[2]] || 1) : text;
  };
  for (const sortable of document.querySelectorAll("table.sortable")) {
    [...sortable.tHead.rows[0].cells].forEach((head, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = head.textContent;
      head.replaceChildren(button);
      button.addEventListener("click", () => {
        const down = head.getAttribute("aria-sort") === "ascending";
        for (const other of sortable.tHead.rows[0].cells) other.removeAttribute("aria-sort");
        head.setAttribute("aria-sort", down ? "descending" : "ascending");
        for (const body of sortable.tBodies) {
          const settings = [...body.rows].filter((row) => row.dataset.s).sort((a, b) => {
            const x = valueOf(a, column), y = valueOf(b, column);
            const isText = typeof x === "string" || typeof y === "string";
            return isText ? String(x).localeCompare(String(y), "en", { numeric: true }) : x - y;
          });
          body.append(...(down ? settings.reverse() : settings));
        }
      });
    });
  }
})();
