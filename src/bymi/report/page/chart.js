// Charts over rounds: lines, bands, phases, detections, and a reading under the pointer or by arrow keys.
const COLOURS = [0, 1, 2, 3, 4, 5, 6, 7].map((index) => `var(--c${index})`);
const DASHES = ["", "7 3", "2 3", "9 3 2 3", "", "5 5", "1 4", "12 3"];

function scale(low, high, log, from, to) {
  const f = log ? Math.log10 : (x) => x;
  const a = f(low), b = f(high);
  return (value) => from + ((f(value) - a) / (b - a || 1)) * (to - from);
}
function ticks(low, high, log, count = 5) {
  if (log) {
    const first = Math.ceil(Math.log10(low) - 1e-9), last = Math.floor(Math.log10(high) + 1e-9);
    const step = Math.max(1, Math.ceil((last - first) / 6)), out = [];
    for (let power = first; power <= last; power += step) out.push(10 ** power);
    if (out.length > 2) return out;
    const fine = [];
    for (let power = first - 1; power <= last; power++) for (const factor of high / low > 30 ? [1, 3] : high / low > 4 ? [1, 2, 5] : [1, 1.5, 2, 3, 4, 5, 7]) { const value = Number((factor * 10 ** power).toPrecision(3)); if (value >= low && value <= high) fine.push(value); }
    return fine.length > 1 ? fine : [low, high];
  }
  const raw = (high - low || 1) / count, size = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((m) => m * size).find((m) => m >= raw), out = [];
  for (let value = Math.ceil(low / step) * step; value <= high + step * 1e-9; value += step) out.push(Number(value.toPrecision(12)));
  return out;
}
function powerLabel(value, log) {
  const exponent = Math.log10(value);
  if (!log || Math.abs(exponent - Math.round(exponent)) > 1e-6 || Math.abs(exponent) < 2.5) return [num(value)];
  return ["10", svg("tspan", { dy: -5, "font-size": 9 }, String(Math.round(exponent)).replace("-", "\u2212"))];
}

// series: [{name, step, mid, low?, high?}], options: {log, label, phases, detections, hidden}
function chart(box, series, options) {
  const width = Math.max(300, box.clientWidth || 900), height = Math.min(380, Math.max(230, width * 0.42));
  const left = 58, right = 22, top = 22, bottom = 36;
  const shown = series.map((one, index) => ({ ...one, index })).filter((one) => !options.hidden.has(one.name));
  const usable = (value) => value !== null && value !== undefined && (!options.log || value > 0);
  const values = shown.flatMap((one) => [...one.mid, ...(one.low || []), ...(one.high || [])]).filter(usable);
  const last = Math.max(1, ...series.flatMap((one) => one.step));
  clear(box);
  if (!values.length) { box.append(el("p", { class: "note" }, "Nothing to draw.")); return; }
  let low = Math.min(...values), high = Math.max(...values);
  if (options.share) { low = Math.min(0, low); high = Math.max(1, high); }
  if (low === high) { low = options.log ? low / 2 : low - 1; high = options.log ? high * 2 : high + 1; }
  const x = scale(0, last, false, left, width - right), y = scale(low, high, options.log, height - bottom, top);
  const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", tabindex: 0, "aria-label": `${options.label} over rounds` });
  (options.phases || []).forEach(([name, from, to], index) => {
    picture.append(svg("rect", { x: x(from), y: top, width: Math.max(0, x(to) - x(from)), height: height - top - bottom, fill: "var(--faint)", opacity: index % 2 ? 0.25 : 0.9 }));
    if (x(to) - x(from) > 7 * name.length) picture.append(svg("text", { x: x(from) + 4, y: 14 }, name));
  });
  for (const value of ticks(low, high, options.log)) {
    picture.append(svg("line", { x1: left, x2: width - right, y1: y(value), y2: y(value), class: "grid" }));
    picture.append(svg("text", { x: left - 6, y: y(value) + 4, "text-anchor": "end" }, ...powerLabel(value, options.log)));
  }
  for (const value of ticks(0, last, false, width < 500 ? 3 : 6)) picture.append(svg("text", { x: x(value), y: height - bottom + 16, "text-anchor": "middle" }, num(value, 4)));
  picture.append(svg("text", { x: (left + width) / 2, y: height - 4, "text-anchor": "middle" }, "round"));
  for (const step of options.detections || []) picture.append(svg("line", { x1: x(step), x2: x(step), y1: top, y2: height - bottom, stroke: "var(--muted)", "stroke-dasharray": "3 3" }));
  picture.append(svg("path", { d: `M${left} ${top}V${height - bottom}H${width - right}`, fill: "none", class: "axis" }));
  for (const one of shown) {
    const colour = COLOURS[one.index % 8];
    if (one.low) {
      const points = one.step.map((step, i) => [step, one.low[i], one.high[i]]).filter((point) => usable(point[1]) && usable(point[2]));
      if (points.length > 1) picture.append(svg("path", { d: `M${points.map((p) => `${x(p[0])} ${y(p[2])}`).join("L")}L${points.reverse().map((p) => `${x(p[0])} ${y(p[1])}`).join("L")}Z`, fill: colour, opacity: 0.18 }));
    }
    const points = one.step.map((step, i) => [step, one.mid[i]]).filter((point) => usable(point[1]));
    if (points.length > 1) picture.append(svg("path", { d: `M${points.map((p) => `${x(p[0]).toFixed(1)} ${y(p[1]).toFixed(1)}`).join("L")}`, fill: "none", stroke: colour, "stroke-width": 2, "stroke-dasharray": DASHES[one.index % 8] }));
    if (points.length < 25) for (const point of points) picture.append(mark("circle", x(point[0]), y(point[1]), 2.6, { fill: colour }));
  }
  const hair = svg("line", { y1: top, y2: height - bottom, stroke: "var(--ink)", opacity: 0 });
  picture.append(hair);
  const readout = el("p", { class: "readout", "aria-live": "polite" }, "\u00a0");
  const steps = [...new Set(shown.flatMap((one) => one.step))].sort((a, b) => a - b);
  let at = steps.length - 1;
  const read = () => {
    const step = steps[at];
    fill(hair, { x1: x(step), x2: x(step), opacity: 0.5 }, []);
    const parts = shown.map((one) => { const i = one.step.indexOf(step); return i < 0 || one.mid[i] === null ? null : `${one.name} ${num(one.mid[i])}`; }).filter(Boolean);
    readout.textContent = `Round ${step}: ${parts.join(" · ")}`;
  };
  const nearest = (clientX) => {
    const rect = picture.getBoundingClientRect(), value = ((clientX - rect.left) / rect.width) * width;
    at = steps.reduce((best, step, i) => (Math.abs(x(step) - value) < Math.abs(x(steps[best]) - value) ? i : best), 0);
    read();
  };
  picture.addEventListener("pointermove", (event) => nearest(event.clientX));
  picture.addEventListener("pointerdown", (event) => nearest(event.clientX));
  picture.addEventListener("keydown", (event) => {
    if (event.key !== "ArrowLeft" && event.key !== "ArrowRight") return;
    at = Math.min(steps.length - 1, Math.max(0, at + (event.key === "ArrowRight" ? 1 : -1)));
    read();
    event.preventDefault();
  });
  const list = el("ul", { class: "legend" }, series.map((one, index) => el("li", {}, el("button", {
    type: "button", "aria-pressed": String(!options.hidden.has(one.name)), title: "Show or hide",
    onclick: () => { options.hidden.has(one.name) ? options.hidden.delete(one.name) : options.hidden.add(one.name); chart(box, series, options); },
  }, svg("svg", { viewBox: "0 0 22 14", "aria-hidden": "true" }, svg("path", { d: "M0 7H22", stroke: COLOURS[index % 8], "stroke-width": 3, "stroke-dasharray": DASHES[index % 8] })), one.name))));
  box.append(el("figure", {}, el("figcaption", {}, options.label), picture), readout, list);
}

function redrawn(draw) {  // now, when the theme changes, and when the width does
  draw();
  document.addEventListener("redraw", draw);
  let width = innerWidth, timer = 0;
  addEventListener("resize", () => { clearTimeout(timer); timer = setTimeout(() => { if (innerWidth !== width) { width = innerWidth; draw(); } }, 150); });
}

function runName(run) {
  const same = DATA.runs.filter((other) => other.label === run.label);
  return same.length > 1 ? (new Set(same.map((other) => other.seed)).size === same.length ? `${run.label}, seed ${run.seed}` : `${run.label}, ${run.folder.slice(-6)}`) : run.label;
}

if (byId("curve-chart")) {
  const state = { measure: DATA.measures[0].key, run: DATA.main, hidden: new Set() };
  const draw = () => {
    const measure = DATA.measures.find((one) => one.key === state.measure), run = DATA.runs[state.run];
    clear(byId("curve-controls")).append(
      choice("Measure", DATA.measures.map((one) => [one.key, one.name]), state.measure, (value) => { state.measure = value; draw(); }),
      choice("Phases of", DATA.runs.map((one, index) => [index, runName(one)]), state.run, (value) => { state.run = Number(value); draw(); }));
    const series = DATA.runs.filter((one) => one.curves[measure.key]).map((one) => ({ name: runName(one), step: one.curves.step, mid: one.curves[measure.key] }));
    chart(byId("curve-chart"), series, { log: measure.log, share: measure.key.startsWith("acc"), label: measure.name, phases: run.phases, detections: run.looks.map((look) => look.step), hidden: state.hidden });
  };
  redrawn(draw);
}
