"use strict";
// Zoom: a rectangle drawn over a chart, or + and - at the point that the keyboard is at, and 0 for all.
// A view is a part of the chart, [left, right, top, bottom], each from 0 to 1.
const zoom = (() => {
  const SVG = "http://www.w3.org/2000/svg";
  const ALL = [0, 1, 0, 1];
  const views = new Map();
  const viewOf = (plot) => views.get(plot) || ALL;
  const heightOf = (plot) => Number(plot.querySelector(".chart").getAttribute("height"));

  // Where a point [% across, pixels down] is in the view; null outside of it.
  const place = (plot, [across, down]) => {
    const [left, right, top, bottom] = viewOf(plot), height = heightOf(plot);
    const x = (across / 100 - left) / (right - left), y = (down / height - top) / (bottom - top);
    return Math.min(x, y) < -1e-6 || Math.max(x, y) > 1 + 1e-6 ? null : [100 * x, height * y];
  };

  // An axis is "linear UNIT LOW HIGH" or "log UNIT LOW HIGH SHARE INFINITY": finite values lie in
  // SHARE of it, infinity at INFINITY, which is 0 where there is none.
  const axis = (text) => {
    const [kind, unit, ...numbers] = text.split(" ");
    const [low, high, share, infinity] = numbers.map(Number);
    const ratio = Math.log(high / low);
    return kind === "log"
      ? { unit, infinity, at: (s) => low * Math.exp(ratio * Math.min(1, s / share)), to: (v) => share * Math.log(v / low) / ratio }
      : { unit, at: (s) => low + s * (high - low), to: (v) => (v - low) / (high - low) };
  };
  // [place, name] of about five round values between two places.
  const ticks = ({ unit, infinity, at, to }, from, until) => {
    const low = at(from), high = at(until), found = [];
    if (low > 0 && high / low > 20) {
      for (let power = 10 ** Math.floor(Math.log10(low)); power <= high; power *= 10) found.push(power);
    } else if (high > low) {
      const rough = (high - low) / 5, power = 10 ** Math.floor(Math.log10(rough));
      const step = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= rough);
      for (let i = Math.ceil(low / step); i * step <= high; i++) found.push(i * step);
    }
    const style = unit === "B" ? { style: "unit", unit: "byte", unitDisplay: "narrow" } : {};
    const format = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 4, ...style });
    return [...found.map((value) => [to(value), format.format(value)]), [infinity || -1, "∞"]]
      .filter(([share]) => share >= from && share <= until);
  };

  const make = (chart, name, attributes, text = "") => {
    const part = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) part.setAttribute(key, value);
    part.classList.add("zoomed");
    part.textContent = text;
    chart.prepend(part);
  };
  const drawTicks = (plot, chart) => {
    const [left, right, top, bottom] = viewOf(plot), height = heightOf(plot);
    for (const [share, name] of ticks(axis(chart.dataset.x), left, right)) {
      const x = 100 * (share - left) / (right - left) + "%";
      make(chart, "text", { class: "tick", x, y: height + 18, "text-anchor": "middle" }, name);
      make(chart, "line", { class: "grid", x1: x, x2: x, y1: 0, y2: height });
    }
    for (const [share, name] of ticks(axis(chart.dataset.y), 1 - bottom, 1 - top)) {
      const y = height * (1 - share - top) / (bottom - top);
      make(chart, "text", { class: "tick", x: -8, y: y + 4, "text-anchor": "end" }, name);
      make(chart, "line", { class: "grid", x1: 0, x2: "100%", y1: y, y2: y });
    }
  };

  const draw = (plot) => {
    const chart = plot.querySelector(".chart"), whole = viewOf(plot) === ALL;
    const [left, right, top, bottom] = viewOf(plot), height = heightOf(plot);
    for (const old of chart.querySelectorAll(".zoomed")) old.remove();
    chart.classList.toggle("inside", !whole);
    for (const lines of chart.querySelectorAll("svg[viewBox]")) {
      lines.setAttribute("viewBox", [1000 * left, height * top, 1000 * (right - left), height * (bottom - top)].join(" "));
    }
    const move = (part, x, ...ys) => {
      const [across, ...downs] = part.places ||= [x, ...ys].map((name) => parseFloat(part.getAttribute(name)));
      const to = downs.map((down) => height * (down / height - top) / (bottom - top));
      const share = (across / 100 - left) / (right - left);
      part.classList.toggle("outside", share < 0 || share > 1 || Math.max(...to) < 0 || Math.min(...to) > height);
      for (const name of part.localName === "line" ? ["x1", "x2"] : [x]) part.setAttribute(name, 100 * share + "%");
      ys.forEach((name, i) => part.setAttribute(name, Math.max(0, Math.min(height, to[i]))));
    };
    for (const mark of chart.querySelectorAll("use[x], svg[x]")) move(mark, "x", "y");
    for (const bar of chart.querySelectorAll(".bar")) move(bar, "x1", "y1", "y2");
    if (!whole) drawTicks(plot, chart);
    plot.parentElement.querySelector(".whole-range").hidden = whole;
  };
  const set = (plot, view) => {
    if (view[1] - view[0] < 1e-3 || view[3] - view[2] < 1e-3) return;
    views.set(plot, view.every((share, i) => Math.abs(share - ALL[i]) < 1e-9) ? ALL : view);
    draw(plot);
  };
  // By a factor around a point of the chart, which stays where it is as far as the chart goes.
  const by = (plot, factor, point) => {
    const [left, right, top, bottom] = viewOf(plot);
    const part = (low, high, middle) => {
      const span = Math.min(1, (high - low) * factor);
      const start = Math.max(0, Math.min(1 - span, middle + (low - middle) * factor));
      return [start, start + span];
    };
    const [x, y] = point ? [point[0] / 100, point[1] / heightOf(plot)] : [(left + right) / 2, (top + bottom) / 2];
    set(plot, [...part(left, right, x), ...part(top, bottom, y)]);
  };

  for (const plot of document.querySelectorAll(".plot:not(.rows)")) {
    const chart = plot.querySelector(".chart");
    const whole = plot.parentElement.querySelector(".whole-range");
    const shares = (event) => {
      const box = chart.getBoundingClientRect();
      const inside = (share) => Math.max(0, Math.min(1, share));
      return [inside((event.clientX - box.left) / box.width), inside((event.clientY - box.top) / box.height)];
    };
    let start = null, frame = null;
    const end = () => { start = null; frame?.remove(); frame = null; };
    whole.addEventListener("click", () => { set(plot, ALL); plot.focus(); });
    plot.addEventListener("pointerdown", (event) => {
      if (event.button) return;
      start = shares(event);
      plot.setPointerCapture(event.pointerId);
    });
    plot.addEventListener("pointermove", (event) => {
      if (!start) return;
      const [x, y] = shares(event);
      frame ||= chart.appendChild(document.createElementNS(SVG, "rect"));
      const part = { class: "frame", x: 100 * Math.min(x, start[0]) + "%", width: 100 * Math.abs(x - start[0]) + "%",
        y: heightOf(plot) * Math.min(y, start[1]), height: heightOf(plot) * Math.abs(y - start[1]) };
      for (const [key, value] of Object.entries(part)) frame.setAttribute(key, value);
    });
    plot.addEventListener("pointercancel", end);
    plot.addEventListener("pointerup", (event) => {
      if (!start) return;
      const [x, y] = shares(event), [left, right, top, bottom] = viewOf(plot);
      const across = (share) => left + share * (right - left), down = (share) => top + share * (bottom - top);
      const ends = [Math.min(x, start[0]), Math.max(x, start[0]), Math.min(y, start[1]), Math.max(y, start[1])];
      end();
      if (ends[1] - ends[0] < 0.02) return; // a click
      // A drag along the axis keeps the heights.
      const heights = ends[3] - ends[2] < 0.08 ? [top, bottom] : [down(ends[2]), down(ends[3])];
      set(plot, [across(ends[0]), across(ends[1]), ...heights]);
    });
  }
  return { place, by, whole: (plot) => set(plot, ALL) };
})();
