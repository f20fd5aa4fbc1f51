// Sweeps: heat map over two settings, a dot per run, bands of curves.
if (byId("sweep")) {
  const sweep = DATA.sweep, axes = sweep.axes.length ? sweep.axes : [{ key: "setting", values: ["all"] }];
  const at = (row, axis) => (sweep.axes.length ? row.settings[axis] : "all");
  const state = { measure: sweep.measures.length ? sweep.measures[0].key : null, down: 0, across: axes.length > 1 ? 1 : 0, only: {}, curve: sweep.curve_measures.length ? sweep.curve_measures[0].key : null, hidden: new Set() };
  const median = (values) => { const sorted = [...values].sort((a, b) => a - b), half = sorted.length >> 1; return sorted.length % 2 ? sorted[half] : (sorted[half - 1] + sorted[half]) / 2; };
  const measure = () => sweep.measures.find((one) => one.key === state.measure);
  const show = (value) => (measure().kind === "share" ? percent(value) : num(value));
  const others = () => axes.map((_, index) => index).filter((index) => index !== state.down && index !== state.across);
  const fits = (row) => others().every((axis) => state.only[axis] === undefined || state.only[axis] === "" || at(row, axis) === state.only[axis]);
  const position = (value, low, high) => {  // on the colour scale, which spans a decade or a tenth at least: small differences look small
    const log = measure().kind === "log" && low > 0, f = log ? Math.log10 : (x) => x;
    const span = Math.max(f(high) - f(low), log ? 1 : measure().kind === "share" ? 0.1 : 1);
    return 0.5 + (f(value) - (f(low) + f(high)) / 2) / span;
  };

  function drawHeat() {
    const rows = sweep.rows.filter(fits), cells = new Map();
    for (const row of rows) {
      const key = JSON.stringify([at(row, state.down), at(row, state.across)]);
      if (!cells.has(key)) cells.set(key, []);
      cells.get(key).push(row);
    }
    const known = (list) => list.map((row) => row.values[state.measure]).filter((value) => value !== null && value !== undefined);
    const middles = [...cells.values()].map(known).filter((list) => list.length).map(median);
    const usable = middles.filter((value) => measure().kind !== "log" || value > 0), low = Math.min(...usable), high = Math.max(...usable);
    const single = state.down === state.across, columns = single ? ["all"] : axes[state.across].values;
    const table = el("table", { class: "heat", id: "heat-table" },
      el("thead", {}, el("tr", {}, el("th", { scope: "col" }, single ? axes[state.down].key : `${axes[state.down].key} \\ ${axes[state.across].key}`), columns.map((value) => el("th", { scope: "col", style: "text-align:center" }, single ? measure().name : value)))),
      el("tbody", {}, axes[state.down].values.map((value) => el("tr", {}, el("th", { scope: "row", style: "text-align:left" }, value), columns.map((other) => {
        const list = cells.get(JSON.stringify([value, single ? value : other])) || [], numbers = known(list), bad = list.filter((row) => row.outcome !== "finished").length;
        if (!numbers.length) return el("td", {}, list.length ? list[0].outcome : "-");
        const middle = median(numbers), share = Math.max(0, Math.min(1, position(middle, low, high)));
        const title = `${numbers.length} runs${bad ? `, ${bad} not finished` : ""}`;
        return el("td", { title, style: `background: color-mix(in srgb, #08306b ${(share * 100).toFixed(0)}%, #fdf3d8); color: ${share > 0.62 ? "#fff" : "#111"}` }, show(middle),
          el("small", {}, numbers.length > 1 ? `${show(Math.min(...numbers))} to ${show(Math.max(...numbers))}` : "", bad ? ` · ${bad} not finished` : ""));
      })))));
    byId("heat-measure").textContent = `${measure().name}.`;
    clear(byId("heat")).append(table);
  }

  function drawDots() {
    const rows = sweep.rows.filter(fits), groups = new Map(), box = clear(byId("dots"));
    for (const row of rows) { const key = row.settings.join(" · ") || "all"; if (!groups.has(key)) groups.set(key, []); groups.get(key).push(row); }
    const log = measure().kind === "log", usable = (value) => value !== null && value !== undefined && (!log || value > 0);
    const values = rows.map((row) => row.values[state.measure]).filter(usable);
    if (!values.length) { box.append(el("p", { class: "note" }, "Nothing to draw.")); return; }
    const width = Math.max(300, box.clientWidth || 900), narrow = width < 620, names = narrow ? 12 : Math.min(380, 20 + 6.6 * Math.max(...[...groups.keys()].map((key) => key.length)));
    const line = narrow ? 34 : 22, height = groups.size * line + 46;
    let low = Math.min(...values), high = Math.max(...values);
    if (low === high) { low = log ? low / 2 : low - 0.5; high = log ? high * 2 : high + 0.5; }
    const x = scale(low, high, log, names + 8, width - 26), picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${measure().name}, a dot per run` });
    for (const value of ticks(low, high, log, narrow ? 3 : 6)) picture.append(svg("line", { x1: x(value), x2: x(value), y1: 4, y2: height - 36, class: "grid" }), svg("text", { x: x(value), y: height - 20, "text-anchor": "middle" }, ...(measure().kind === "share" ? [percent(value)] : powerLabel(value, log))));
    [...groups].forEach(([key, list], index) => {
      const y = index * line + (narrow ? 24 : 14), numbers = list.map((row) => row.values[state.measure]).filter(usable);
      picture.append(narrow ? svg("text", { x: 12, y: y - 9, class: "strong" }, key) : svg("text", { x: names, y: y + 4, "text-anchor": "end", class: "strong" }, key));
      picture.append(svg("line", { x1: names + 8, x2: width - 26, y1: y, y2: y, class: "grid" }));
      if (numbers.length) picture.append(svg("path", { d: `M${x(median(numbers))} ${y - 8}v16`, stroke: "var(--ink)", "stroke-width": 2.5 }));
      for (const row of list) {
        const value = row.values[state.measure];
        if (!usable(value)) continue;
        const fine = row.outcome === "finished" && !/farther from the optimum/.test(row.sentence), dot = mark(fine ? "circle" : "diamond", x(value), y, 4.2, { fill: fine ? "var(--honest)" : "var(--byzantine)", "fill-opacity": 0.75 });
        dot.append(svg("title", {}, `${key}, seed ${row.seed}: ${show(value)}, ${row.outcome}`));
        picture.append(dot);
      }
      const left = list.length - numbers.length;
      if (left) picture.append(svg("text", { x: width - 24, y: y + 4, class: "strong" }, `+${left}`));
    });
    picture.append(svg("text", { x: (names + width) / 2, y: height - 4, "text-anchor": "middle" }, measure().name));
    const list = el("ul", { class: "legend" });
    legend(list, [[mark("circle", 11, 7, 4.2, { fill: "var(--honest)" }), "finished"], [mark("diamond", 11, 7, 4.2, { fill: "var(--byzantine)" }), "any other outcome, or farther off than at the start"], [svg("path", { d: "M11 0v14", stroke: "var(--ink)", "stroke-width": 2.5 }), "median"], [svg("text", { x: 2, y: 11, class: "strong" }, "+1"), "runs without this number"]]);
    box.append(picture, list);
  }

  function drawBands() {
    if (!state.curve) return;
    const chosen = sweep.curve_measures.find((one) => one.key === state.curve);
    clear(byId("band-controls")).append(choice("Measure", sweep.curve_measures.map((one) => [one.key, one.name]), state.curve, (value) => { state.curve = value; drawBands(); }));
    const series = sweep.bands.filter((band) => band.measures[state.curve] && fits(band)).map((band) => ({ name: band.settings.join(" · ") || "all", ...band.measures[state.curve] }));
    if (!state.begun) { series.slice(8).forEach((one) => state.hidden.add(one.name)); state.begun = true; }  // eight can be told apart
    chart(byId("bands"), series, { log: chosen.log, share: chosen.key.startsWith("acc"), label: `${chosen.name}, median and range over seeds`, hidden: state.hidden });
  }

  function draw() {
    if (!state.measure) { byId("heat").append(el("p", { class: "note" }, "No run has ended yet.")); return; }
    const names = axes.map((axis, index) => [index, axis.key]);
    clear(byId("sweep-controls")).append(choice("Measure", sweep.measures.map((one) => [one.key, one.name]), state.measure, (value) => { state.measure = value; draw(); }));
    if (axes.length > 1) byId("sweep-controls").append(
      choice("Rows", names, state.down, (value) => { state.down = Number(value); draw(); }), choice("Columns", names, state.across, (value) => { state.across = Number(value); draw(); }),
      ...others().map((axis) => choice(axes[axis].key, [["", "all"], ...axes[axis].values.map((value) => [value, value])], state.only[axis] || "", (value) => { state.only[axis] = value; draw(); })));
    drawHeat(); drawDots(); drawBands();
  }
  redrawn(draw);
}
