// One run's detections: graph, matrix, the verdict of one node, the table of nodes. On real data nobody knows who is Byzantine.
const CLASSES = {
  kept: ["kept", "--edge"], flagged: ["flagged", "--right"], right: ["Byzantine, flagged", "--right"], wrong: ["honest, flagged (wrong)", "--wrong"], missed: ["Byzantine, not flagged (missed)", "--missed"],
};
const truth = DATA.graphs.some((graph) => graph.byzantine !== null);
const NUMBERED = 40;  // nodes up to which graph and matrix have their numbers
const view = { run: null, detection: 0, node: 0, axis: null };

function arcsOf(graph) {
  if (graph.receiver) return graph;
  graph.offset = [0];
  graph.neighbours.forEach((list, node) => graph.offset.push(graph.offset[node] + list.length));
  graph.count = graph.offset[graph.neighbours.length];
  graph.receiver = new Uint32Array(graph.count);
  graph.sender = new Uint32Array(graph.count);
  graph.neighbours.forEach((list, node) => list.forEach((sender, i) => { graph.receiver[graph.offset[node] + i] = node; graph.sender[graph.offset[node] + i] = sender; }));
  graph.bad = new Uint8Array(graph.neighbours.length);
  graph.known = graph.byzantine !== null;
  for (const node of graph.byzantine || []) graph.bad[node] = 1;
  return graph;
}
function unpack(run, index) {
  const packed = run.detections[index], graph = arcsOf(DATA.graphs[run.graph]);
  if (!packed || packed.ready) return packed;
  packed.ready = true;
  packed.scores = floats(packed.score);
  packed.statistics = packed.statistic ? floats(packed.statistic) : null;
  packed.reasons = bytes(packed.reason);
  packed.flags = bits(packed.flagged, graph.count);
  packed.cuts = bits(packed.cut, graph.count);
  packed.bounds = null;
  if (packed.bound) {  // of flagged arcs one by one, of kept ones per receiver
    const flagged = floats(packed.bound);
    let place = 0;
    packed.bounds = Float32Array.from(packed.flags, (flag, arc) => (flag ? flagged[place++] : packed.kept_bound[graph.receiver[arc]] ?? NaN));
  }
  const nodes = graph.neighbours.length;
  packed.by = new Uint32Array(nodes);
  packed.heard = new Uint32Array(nodes);
  for (let arc = 0; arc < graph.count; arc++) if (!graph.bad[graph.receiver[arc]]) { packed.heard[graph.sender[arc]]++; packed.by[graph.sender[arc]] += packed.flags[arc]; }
  return packed;
}
const kindOf = (graph, node, flagged) => (graph.bad[node] ? (flagged ? "right" : "missed") : flagged ? (graph.known ? "wrong" : "flagged") : "kept");
const roleOf = (graph, node) => (graph.known ? (graph.bad[node] ? "Byzantine" : "honest") : "-");
const receivers = (graph) => (graph.known ? "honest nodes" : "nodes");
const statusOf = (graph, detection, node) => kindOf(graph, node, 2 * detection.by[node] > detection.heard[node]);
const current = () => { const run = DATA.runs[view.run]; return { run, graph: arcsOf(DATA.graphs[run.graph]), detection: unpack(run, view.detection) }; };

function drawGraph(box, after) {
  const { run, graph, detection } = current(), size = 460, pad = 22, nodes = graph.neighbours.length;
  const place = (node) => graph.places[node].map((at) => size / 2 + at * (size / 2 - pad));
  const point = graph.neighbours.map((_, node) => place(node));
  const lines = { kept: "", flagged: "", right: "", wrong: "", missed: "" };
  let chosen = "";
  for (let arc = 0; arc < graph.count; arc++) {
    const receiver = graph.receiver[arc], sender = graph.sender[arc];
    if (graph.bad[receiver]) continue;
    const [a, b] = [point[sender], point[receiver]], line = `M${a[0].toFixed(0)} ${a[1].toFixed(0)}L${b[0].toFixed(0)} ${b[1].toFixed(0)}`;
    const kind = after ? kindOf(graph, sender, detection.cuts[arc]) : graph.bad[sender] ? "right" : "kept";
    lines[kind] += line;
    if ((receiver === view.node || sender === view.node) && !(after && detection.cuts[arc])) chosen += line;
  }
  const picture = svg("svg", { viewBox: `0 0 ${size} ${size}`, role: "img", "aria-label": after ? "Graph after pruning" : "Graph before pruning" });
  const faint = Math.max(0.14, Math.min(0.7, 900 / graph.count));
  const path = (d, colour, opacity, dash, width) => d && picture.append(svg("path", { d, fill: "none", stroke: `var(${colour})`, opacity, "stroke-dasharray": dash, "stroke-width": width || 1 }));
  path(lines.kept, "--edge", faint);
  if (!after) path(lines.right, "--byzantine", faint);
  if (after) { path(lines.wrong, "--wrong", Math.min(0.9, faint * 4), "4 3"); path(lines.missed, "--missed", Math.max(0.5, faint), "", 1.5); }
  path(chosen, "--focus", 0.75, "", 1.2);
  const core = new Set(run.nodes.core || []), radius = nodes > 90 ? 4.5 : 6;
  for (let node = 0; node < nodes; node++) {
    const kind = after ? statusOf(graph, detection, node) : graph.bad[node] ? "byzantine" : "honest";
    const colour = after ? (kind === "kept" ? "var(--honest)" : `var(${CLASSES[kind][1]})`) : `var(--${kind})`;
    const inside = after ? core.has(node) : true;
    const dot = mark(graph.bad[node] ? "diamond" : "circle", ...point[node], node === view.node ? radius + 2.5 : radius,
      { fill: inside ? colour : "var(--card)", stroke: node === view.node ? "var(--ink)" : colour, "stroke-width": node === view.node ? 2.5 : 1.8, class: "node", "data-node": node, onclick: () => select(node) });
    dot.append(svg("title", {}, `node ${node}${graph.known ? `, ${roleOf(graph, node)}` : ""}${after ? `, flagged by ${detection.by[node]} of the ${detection.heard[node]} ${receivers(graph)} that receive from it` : ""}`));
    picture.append(dot);
    if (nodes <= NUMBERED) picture.append(svg("text", { x: point[node][0], y: point[node][1] - radius - 3, "text-anchor": "middle", "pointer-events": "none" }, node));
  }
  clear(box).append(picture);
}

function order(graph) {
  if (!graph.order) {
    graph.order = [...graph.neighbours.keys()].sort((a, b) => graph.bad[a] - graph.bad[b] || a - b);
    graph.rank = new Uint32Array(graph.order.length);
    graph.order.forEach((node, index) => { graph.rank[node] = index; });
  }
  return graph.order;
}
function colourOf(name) {
  const probe = el("span", { style: `color: var(${name})` });
  document.body.append(probe);
  const found = getComputedStyle(probe).color.match(/[\d.]+/g).slice(0, 3).map(Number);
  probe.remove();
  return found;
}
const matrixCell = (nodes) => Math.max(2, Math.floor(720 / nodes));
const matrixMargin = (nodes, cell) => (nodes <= NUMBERED ? Math.min(24, Math.max(16, cell)) : 0);  // room for numbers
const cursor = { row: 0, column: 0 };
function drawMatrix() {
  const { graph, detection } = current(), nodes = graph.neighbours.length, cell = matrixCell(nodes);
  order(graph);
  const canvas = byId("matrix"), size = nodes * cell, margin = matrixMargin(nodes, cell);
  canvas.width = canvas.height = size + margin;
  const context = canvas.getContext("2d"), paint = {};
  if (margin) {
    context.fillStyle = `rgb(${colourOf("--ink").join(" ")})`;
    context.font = `${Math.min(14, cell * 0.7)}px sans-serif`;
    context.textAlign = "center";
    context.textBaseline = "middle";
    graph.order.forEach((node, place) => { const at = margin + (place + 0.5) * cell; context.fillText(node, at, margin / 2); context.fillText(node, margin / 2, at); });
  }
  context.translate(margin, margin);
  for (const [kind, [, name]] of Object.entries(CLASSES)) paint[kind] = `rgb(${colourOf(name).join(" ")})`;
  paint.kept = `rgb(${colourOf("--line").join(" ")})`;
  const gap = cell > 4 ? 1 : 0;
  for (let arc = 0; arc < graph.count; arc++) {
    const receiver = graph.receiver[arc], sender = graph.sender[arc];
    context.globalAlpha = graph.bad[receiver] ? 0.25 : 1;
    context.fillStyle = paint[kindOf(graph, sender, detection.flags[arc])];
    context.fillRect(graph.rank[sender] * cell, graph.rank[receiver] * cell, cell - gap, cell - gap);
  }
  context.globalAlpha = 1;
  context.strokeStyle = `rgb(${colourOf("--ink").join(" ")})`;
  const honest = (nodes - (graph.byzantine || []).length) * cell;
  context.setLineDash([4, 4]);
  context.strokeRect(-1, -1, honest + 1, honest + 1);
  context.setLineDash([]);
  context.lineWidth = 2;
  context.strokeRect(0, graph.rank[view.node] * cell, size, cell);
}
function arcAt(graph, receiver, sender) {
  const index = graph.neighbours[receiver].indexOf(sender);
  return index < 0 ? -1 : graph.offset[receiver] + index;
}
function readMatrix(event) {
  const { run, graph, detection } = current(), nodes = graph.neighbours.length, rect = byId("matrix").getBoundingClientRect();
  if (event) {
    const cell = matrixCell(nodes), margin = matrixMargin(nodes, cell), size = nodes * cell + margin;
    const place = (share) => Math.min(nodes - 1, Math.max(0, Math.floor((share * size - margin) / cell)));
    cursor.row = place((event.clientY - rect.top) / rect.height);
    cursor.column = place((event.clientX - rect.left) / rect.width);
  }
  const receiver = order(graph)[cursor.row], sender = order(graph)[cursor.column], arc = arcAt(graph, receiver, sender);
  const what = arc < 0 ? "is no neighbour of" : detection.flags[arc] ? `is flagged (${reasonOf(run, detection, arc, firstFlag(run, detection, arc))}) by` : "is kept by";
  const role = (node) => (graph.known ? ` (${roleOf(graph, node)})` : "");
  byId("matrix-readout").textContent = `Node ${sender}${role(sender)} ${what} node ${receiver}${role(receiver)}.`;
}

const SUSPENDED = ["suspended", "serving time"];  // as it is, and as older run folders call it
function firstFlag(run, detection, arc) {  // the detection that flagged a neighbour which is suspended since
  if (!SUSPENDED.includes(run.reasons[detection.reasons[arc]])) return null;
  for (let index = view.detection - 1; index >= 0; index--) {
    const one = unpack(run, index);
    if (one.flags[arc] && !SUSPENDED.includes(run.reasons[one.reasons[arc]])) return one;
  }
  return null;
}
const reasonOf = (run, detection, arc, first) => (first ? `suspended, for: ${run.reasons[first.reasons[arc]]} at round ${first.step}` : run.reasons[detection.reasons[arc]]);
function againstBound(run, told, arc, limit) {  // "above 12.3 spreads": where the statistic, or the published score, lies
  const statistic = told.statistics ? told.statistics[arc] : told.scores[arc], bound = told.statistics ? (told.bounds ? told.bounds[arc] : NaN) : limit === null ? NaN : limit;
  if (Number.isNaN(statistic) || Number.isNaN(bound)) return "-";
  return `${statistic >= bound ? "above" : "below"} ${num(bound)} ${told.statistics ? run.units[told.reasons[arc]] : ""}`.trim();
}

function drawScores() {
  const { run, graph, detection } = current(), node = view.node, from = graph.offset[node], list = graph.neighbours[node];
  const limit = detection.threshold[node], scored = list.some((_, i) => !Number.isNaN(detection.scores[from + i]));
  if (!view.axis) view.axis = detection.statistics && limit === null ? "statistic" : "score";
  const axis = detection.statistics ? view.axis : "score";
  const rows = list.map((sender, i) => {
    const arc = from + i, first = firstFlag(run, detection, arc), told = first || detection;
    const statistic = told.statistics ? told.statistics[arc] : NaN, score = told.scores[arc];
    return { sender, score, statistic, value: axis === "score" ? score : statistic, flagged: detection.flags[arc], cut: detection.cuts[arc], first, reason: reasonOf(run, detection, arc, first), against: againstBound(run, told, arc, limit), bad: graph.bad[sender] };
  });
  const controls = byId("node-controls"), input = el("input", { type: "number", min: 0, max: graph.neighbours.length - 1, value: node, id: "node-number", onchange: () => select(Number(input.value)) });
  clear(controls).append(el("label", {}, "Node", input));
  if (detection.statistics) controls.append(choice("Height", [["score", "score"], ["statistic", "statistic of the test"]], axis, (value) => { view.axis = value; drawScores(); }));
  const flagged = rows.filter((row) => row.flagged).length, guarded = detection.guarded.includes(node);
  byId("node-note").textContent = `${graph.known ? `Node ${node} is ${roleOf(graph, node)}. ` : ""}At round ${detection.step} node ${node} flagged ${flagged} of its ${rows.length} neighbours.` +
    (limit === null ? " No score threshold applied." : ` Its score threshold was ${num(limit)}.`) + (guarded ? " The guard reduced its flags to hard evidence." : "") +
    (scored ? "" : " It scored nobody.") + (detection.statistics ? " The statistic is that of the test named as the reason, for kept neighbours that of their score; beside it, the bound that applied in this neighbourhood: the lower of two where several were off together. A spread is a robust standard deviation over the neighbours; the usual score is that of an honest neighbour." : "");
  const silent = (row) => Number.isNaN(row.value) || (row.value === 0 && Number.isNaN(row.score));  // no number at this detection
  const drawn = rows.filter((row) => !silent(row)).sort((a, b) => a.value - b.value), box = clear(byId("scores"));
  const unit = axis === "score" && limit !== null ? Math.abs(limit) || 1 : 1, bend = (value) => Math.sign(value) * Math.log10(1 + Math.abs(value) / unit);
  if (drawn.length) {
    const width = Math.max(300, box.clientWidth || 900), height = 270, left = 58, bottom = 34, top = 12;
    const heights = drawn.map((row) => bend(row.value)).concat(axis === "score" && limit !== null ? [bend(limit)] : []);
    const low = Math.min(0, ...heights), high = Math.max(0.3, ...heights), y = scale(low, high, false, height - bottom, top), x = scale(-0.5, drawn.length - 0.5, false, left, width - 12);
    const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${axis} of each neighbour of node ${node}, lowest first` });
    const marks = new Set([0]);
    const factors = high - low < 2.5 ? [1, 3] : [1];
    for (let power = 0; power < 38; power += Math.max(1, Math.ceil((high - low) / 6))) for (const factor of factors) for (const sign of [1, -1]) { const value = sign * factor * unit * 10 ** power; if (bend(value) >= low && bend(value) <= high) marks.add(value); }
    for (const value of marks) picture.append(svg("line", { x1: left, x2: width - 12, y1: y(bend(value)), y2: y(bend(value)), class: value ? "grid" : "axis" }), svg("text", { x: left - 6, y: y(bend(value)) + 4, "text-anchor": "end" }, num(value, 2)));
    if (axis === "score" && limit !== null) picture.append(svg("line", { x1: left, x2: width - 12, y1: y(bend(limit)), y2: y(bend(limit)), stroke: "var(--ink)", "stroke-dasharray": "6 4" }), svg("text", { x: left + 4, y: y(bend(limit)) - 5, class: "strong" }, `threshold ${num(limit)}`));
    drawn.forEach((row, index) => {
      const kind = kindOf(graph, row.sender, row.flagged), colour = kind === "kept" ? "var(--honest)" : `var(${CLASSES[kind][1]})`;
      const dot = mark(row.bad ? "diamond" : "circle", x(index), y(bend(row.value)), drawn.length > 80 ? 3.4 : 4.6, { fill: row.flagged ? colour : "var(--card)", stroke: colour, "stroke-width": 1.8, class: "node", onclick: () => select(row.sender) });
      dot.append(svg("title", {}, `node ${row.sender}: ${axis === "score" && detection.statistics ? num(row.value) : `${num(row.value)}, ${row.against}`}, ${row.reason}`));
      picture.append(dot);
    });
    picture.append(svg("text", { x: (left + width) / 2, y: height - 6, "text-anchor": "middle" }, `neighbours, lowest ${axis} first`));
    box.append(picture);
    const earlier = drawn.filter((row) => row.first).length, missing = rows.length - drawn.length;
    const said = [earlier ? `${earlier} ${earlier === 1 ? "neighbour is" : "neighbours are"} suspended since an earlier detection and shown with its numbers.` : "", missing ? `${missing} ${missing === 1 ? "neighbour has" : "neighbours have"} no number: flagged before, or not heard.` : ""].filter(Boolean);
    if (said.length) box.append(el("p", { class: "note" }, said.join(" ")));
  } else box.append(el("p", { class: "note" }, "No numbers at this detection: see the reasons below."));
  setRows(byId("neighbours"), rows.map((row) => {
    const kind = kindOf(graph, row.sender, row.flagged);
    return el("tr", { class: "pick", tabindex: 0, onclick: () => select(row.sender), onkeydown: (event) => { if (event.key === "Enter") select(row.sender); } },
      el("td", {}, row.sender), el("td", { class: "text" }, roleOf(graph, row.sender)), el("td", { class: "text" }, kind === "kept" ? "kept" : CLASSES[kind][0].replace(/^.*, /, "")),
      el("td", { class: "text" }, row.reason), el("td", {}, num(row.score)), el("td", {}, num(row.statistic)), el("td", { class: "text" }, row.against), el("td", { class: "text" }, row.cut ? "cut" : "kept"));
  }));
}

function drawLooks() {
  const { run, graph } = current();
  const stored = new Map(run.detections.map((one, index) => [one.step, index]));
  setRows(byId("looks"), run.looks.map((look) => {
    const index = stored.get(look.step), detection = index === undefined ? null : unpack(run, index);
    let flags = 0;
    if (detection) for (let arc = 0; arc < graph.count; arc++) if (!graph.bad[graph.receiver[arc]]) flags += detection.flags[arc];
    return el("tr", { class: index === undefined ? "" : "pick", tabindex: index === undefined ? null : 0, "aria-selected": String(index === view.detection),
      onclick: () => index !== undefined && setDetection(index), onkeydown: (event) => { if (event.key === "Enter" && index !== undefined) setDetection(index); } },
      el("td", {}, look.step), truth ? ["fdp", "pa", "found", "honest_edge_loss"].map((key) => el("td", {}, percent(look[key]))) : [], el("td", {}, detection ? flags : "-"));
  }));
  const some = run.detections.length < run.detections_stored ? ` The page holds ${run.detections.length} of ${run.detections_stored} of them.` : "";
  byId("detections-note").textContent = `${run.looks.length} detections of ${runName(run)}; flags are those of ${receivers(graph)}. Choose a row to see that detection everywhere on this page.${some}`;
}

function drawState() {
  const { run, detection, graph } = current();
  const withVerdicts = DATA.runs.map((one, index) => [index, runName(one)]).filter(([index]) => DATA.runs[index].detections.length);
  const input = el("input", { type: "number", min: 0, max: graph.neighbours.length - 1, value: view.node, onchange: () => select(Number(input.value)) });
  clear(byId("state-controls")).append(
    choice("Run", withVerdicts, view.run, (value) => { view.run = Number(value); view.detection = DATA.runs[view.run].detections.length - 1; view.axis = null; select(view.node); }),
    choice("Detection at round", run.detections.map((one, index) => [index, one.step]), view.detection, (value) => setDetection(Number(value))),
    el("label", {}, "Node", input));
  byId("after-caption").textContent = `After the detection at round ${detection.step}`;
  byId("graph-readout").textContent = `Node ${view.node}: ${graph.known ? `${roleOf(graph, view.node)}, ` : ""}flagged by ${detection.by[view.node]} of the ${detection.heard[view.node]} ${receivers(graph)} that receive from it.`;
}

function drawNodes() {
  const runIndex = view.run === null ? DATA.main : view.run, run = DATA.runs[runIndex];
  if (!run.nodes) return;
  const graph = arcsOf(DATA.graphs[run.graph]), detection = run.detections.length ? unpack(run, view.detection) : null;
  const core = run.nodes.core ? new Set(run.nodes.core) : null, unheard = run.nodes.not_heard.map((count, node) => [node, count]).filter(([, count]) => count);
  byId("unheard-note").textContent = unheard.length
    ? `${unheard.reduce((sum, [, count]) => sum + count, 0)} messages of ${unheard.length} senders were missing or unusable and counted as not heard by ${receivers(graph)}.`
    : "Every message between neighbours was heard.";
  const relative = (node) => (core && core.has(node) && run.nodes.perron[node] !== null ? run.nodes.perron[node] * core.size : null);
  setRows(byId("node-table"), graph.neighbours.map((list, node) => el("tr", { class: "pick", tabindex: 0, "data-node": node, "aria-selected": String(node === view.node),
    onclick: () => select(node), onkeydown: (event) => { if (event.key === "Enter") select(node); } },
    el("td", {}, node), el("td", { class: "text" }, roleOf(graph, node)), el("td", {}, list.length),
    el("td", {}, detection ? ((100 * detection.by[node]) / Math.max(1, detection.heard[node])).toFixed(1) : "-"),
    el("td", { class: "text" }, core ? (core.has(node) ? "in" : "out") : "-"), el("td", {}, num(relative(node))), el("td", {}, num(run.nodes.step_factor ? run.nodes.step_factor[node] : null)),
    el("td", {}, percent(run.nodes.capped ? run.nodes.capped[node] : null)), el("td", {}, percent(run.nodes.floored ? run.nodes.floored[node] : null)), el("td", {}, run.nodes.not_heard[node]))));
  drawWeights(run, graph, core, relative);
}
function drawWeights(run, graph, core, relative) {
  const box = clear(byId("weights"));
  if (!core) return;
  const members = [...core].sort((a, b) => relative(a) - relative(b)), width = Math.max(300, box.clientWidth || 900), height = 190, left = 58, bottom = 32;
  const factors = members.map((node) => (run.nodes.step_factor ? run.nodes.step_factor[node] : null)), weights = members.map(relative);
  const high = Math.max(1.2, ...weights, ...factors.map((f) => Math.min(f === null ? 0 : f, 10))), y = scale(0, high, false, height - bottom, 10), x = scale(-0.5, members.length - 0.5, false, left, width - 12);
  const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": "Perron weight and step factor of each node of the core" });
  for (const value of ticks(0, high, false, 4)) picture.append(svg("line", { x1: left, x2: width - 12, y1: y(value), y2: y(value), class: "grid" }), svg("text", { x: left - 6, y: y(value) + 4, "text-anchor": "end" }, num(value)));
  members.forEach((node, index) => {
    if (factors[index] !== null) picture.append(svg("path", { d: `M${x(index) - 3} ${y(Math.min(factors[index], high))}h6`, stroke: "var(--wrong)", "stroke-width": 2.5 }));
    const dot = mark(graph.bad[node] ? "diamond" : "circle", x(index), y(weights[index]), 3.4, { fill: graph.bad[node] ? "var(--byzantine)" : "var(--honest)", class: "node", onclick: () => select(node) });
    dot.append(svg("title", {}, `node ${node}: weight ${num(weights[index])}, step factor ${num(factors[index])}`));
    picture.append(dot);
  });
  picture.append(svg("text", { x: (left + width) / 2, y: height - 6, "text-anchor": "middle" }, "nodes of the core, smallest weight first"));
  const list = el("ul", { class: "legend" });
  legend(list, [[mark("circle", 11, 7, 4, { fill: "var(--honest)" }), "Perron weight x nodes in the core"], [svg("path", { d: "M5 7h12", stroke: "var(--wrong)", "stroke-width": 3 }), "factor on the step size"]]);
  box.append(picture, list);
}

function setDetection(index) { view.detection = index; view.axis = null; drawAll(); }
function select(node) {
  const { graph } = current();
  view.node = Math.min(graph.neighbours.length - 1, Math.max(0, Math.round(node) || 0));
  cursor.row = graph.rank ? graph.rank[view.node] : 0;
  drawAll();
}
function drawAll() {
  if (view.run !== null) { drawState(); drawGraph(byId("graph-before"), false); drawGraph(byId("graph-after"), true); drawLooks(); drawMatrix(); drawScores(); }
  if (byId("node-table")) drawNodes();
}

if (byId("matrix")) {
  const withVerdicts = DATA.runs.map((run, index) => [run, index]).filter(([run]) => run.detections.length);
  view.run = (withVerdicts.find(([, index]) => index === DATA.main) || withVerdicts[withVerdicts.length - 1])[1];
  view.detection = DATA.runs[view.run].detections.length - 1;
  view.node = arcsOf(DATA.graphs[DATA.runs[view.run].graph]).bad.indexOf(0);
  const canvas = byId("matrix");
  canvas.addEventListener("pointermove", readMatrix);
  canvas.addEventListener("click", (event) => { readMatrix(event); select(order(current().graph)[cursor.row]); });
  canvas.addEventListener("keydown", (event) => {
    const moves = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }, last = current().graph.neighbours.length - 1;
    if (event.key === "Enter") select(order(current().graph)[cursor.row]);
    else if (moves[event.key]) { cursor.row = Math.min(last, Math.max(0, cursor.row + moves[event.key][0])); cursor.column = Math.min(last, Math.max(0, cursor.column + moves[event.key][1])); readMatrix(null); } else return;
    event.preventDefault();
  });
  const swatch = (name) => svg("rect", { x: 5, y: 1, width: 12, height: 12, fill: `var(${name})` });
  legend(byId("matrix-legend"), !truth ? [[swatch("--line"), "kept"], [swatch("--right"), "flagged"]] : [[swatch("--line"), "honest, kept"], [swatch("--right"), CLASSES.right[0]], [swatch("--wrong"), CLASSES.wrong[0]], [swatch("--missed"), CLASSES.missed[0]], [svg("text", { x: 2, y: 11 }, "…"), "pale rows: Byzantine receivers"]]);
  const shape = (kind, name, filled = true) => mark(kind, 11, 7, 4.5, { fill: filled ? `var(${name})` : "var(--card)", stroke: `var(${name})`, "stroke-width": 1.8 });
  const line = (name, dash) => svg("path", { d: "M0 7H22", stroke: `var(${name})`, "stroke-width": 2, "stroke-dasharray": dash });
  legend(byId("graph-legend"), !truth ? [[shape("circle", "--honest"), "not flagged"], [shape("circle", "--right"), "flagged by most"]] : [[shape("circle", "--honest"), "honest"], [shape("diamond", "--byzantine"), "Byzantine (before)"], [shape("diamond", "--right", false), "flagged rightly"], [shape("circle", "--wrong"), "flagged wrongly"], [shape("diamond", "--missed"), "missed"], [line("--wrong", "4 3"), "edge cut between honest nodes"], [line("--missed"), "edge left from a Byzantine node"]]);
  legend(byId("score-legend"), !truth ? [[shape("circle", "--honest", false), "kept"], [shape("circle", "--right"), "flagged"]] : [[shape("circle", "--honest", false), "honest, kept"], [shape("diamond", "--right"), CLASSES.right[0]], [shape("circle", "--wrong"), CLASSES.wrong[0]], [shape("diamond", "--missed", false), CLASSES.missed[0]]]);
}
if (byId("matrix") || byId("node-table")) redrawn(drawAll);
