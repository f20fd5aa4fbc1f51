// Elements, numbers, packed arrays, sortable tables.
"use strict";
const DATA = JSON.parse(document.getElementById("data").textContent);
const SVG = "http://www.w3.org/2000/svg";
const byId = (id) => document.getElementById(id);

function fill(node, attributes, children) {
  for (const [key, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else node.setAttribute(key, value === true ? "" : value);
  }
  for (const child of children.flat()) if (child !== null && child !== undefined) node.append(child);
  return node;
}
const el = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
const svg = (tag, attributes, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);
const clear = (node) => { node.replaceChildren(); return node; };

function bytes(text) {
  const raw = atob(text), out = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i++) out[i] = raw.charCodeAt(i);
  return out;
}
function floats(text) {  // the upper halves of float32 numbers
  const raw = bytes(text), wide = new Uint32Array(raw.length / 2);
  for (let i = 0; i < wide.length; i++) wide[i] = (raw[2 * i] | (raw[2 * i + 1] << 8)) * 65536;
  return new Float32Array(wide.buffer);
}
function bits(text, count) {
  const raw = bytes(text), out = new Uint8Array(count);
  for (let i = 0; i < count; i++) out[i] = (raw[i >> 3] >> (i & 7)) & 1;
  return out;
}

function num(value, digits = 3) {
  if (value === null || value === undefined || Number.isNaN(value)) return "-";
  const size = Math.abs(value);
  if (value !== 0 && (size < 1e-2 || size >= 1e5)) return value.toExponential(Math.max(0, digits - 2)).replace("e+", "e");
  return Number.isInteger(value) ? String(value) : String(Number(value.toPrecision(digits)));
}
const percent = (share) => (share === null || share === undefined ? "-" : (100 * share).toFixed(1));

function sortable(table) {
  [...table.tHead.rows[0].cells].forEach((head, column) => {
    const button = el("button", { type: "button", title: "Sort" }, head.textContent);
    clear(head).append(button);
    button.addEventListener("click", () => {
      const order = head.getAttribute("aria-sort") === "descending" ? "ascending" : "descending";
      for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", order);
      resort(table);
    });
  });
}
function resort(table) {
  const column = [...table.tHead.rows[0].cells].findIndex((head) => head.hasAttribute("aria-sort"));
  if (column < 0) return;
  const sign = table.tHead.rows[0].cells[column].getAttribute("aria-sort") === "descending" ? -1 : 1;
  const key = (row) => row.cells[column].textContent.trim();
  const value = (text) => (text !== "" && !Number.isNaN(Number(text)) ? Number(text) : null);
  const rows = [...table.tBodies[0].rows].map((row) => [key(row), value(key(row)), row]);
  rows.sort(([a, x], [b, y]) => {
    if ((a === "-") !== (b === "-")) return a === "-" ? 1 : -1;  // what does not apply stays below
    return sign * (x !== null && y !== null ? x - y : a.localeCompare(b));
  });
  table.tBodies[0].append(...rows.map((row) => row[2]));
}
function filter(input) {
  const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
  for (const row of byId(input.dataset.filter).tBodies[0].rows) {
    const cells = [...row.cells].map((cell) => cell.textContent.toLowerCase());
    // A number must match a whole cell, so that 1 does not find 10.
    row.hidden = !words.every((word) => (/^\d+$/.test(word) ? cells.includes(word) : cells.some((cell) => cell.includes(word))));
  }
}
function setRows(table, rows) {
  clear(table.tBodies[0]).append(...rows);
  resort(table);
  const input = document.querySelector(`[data-filter="${table.id}"]`);
  if (input) filter(input);
}
function choice(name, options, chosen, change) {
  const select = el("select", { onchange: () => change(select.value) }, options.map(([value, text]) => el("option", { value, selected: String(value) === String(chosen) }, text)));
  return el("label", {}, name, select);
}

function mark(shape, x, y, size, attributes) {
  const d = shape === "diamond"
    ? `M${x} ${y - size * 1.25}L${x + size * 1.25} ${y}L${x} ${y + size * 1.25}L${x - size * 1.25} ${y}Z`
    : `M${x - size} ${y}a${size} ${size} 0 1 0 ${2 * size} 0a${size} ${size} 0 1 0 ${-2 * size} 0Z`;
  return svg("path", { d, ...attributes });
}
function legend(list, entries) {
  clear(list).append(...entries.map(([picture, text]) => el("li", {}, svg("svg", { viewBox: "0 0 22 14", "aria-hidden": "true" }, picture), text)));
}

document.querySelectorAll("table.sortable").forEach(sortable);
document.querySelectorAll("input[data-filter]").forEach((input) => input.addEventListener("input", () => filter(input)));
byId("theme").addEventListener("click", () => {
  const root = document.documentElement, dark = matchMedia("(prefers-color-scheme: dark)").matches;
  const now = root.dataset.theme || (dark ? "dark" : "light");
  root.dataset.theme = now === "dark" ? "light" : "dark";
  document.dispatchEvent(new Event("redraw"));
});

let themeOnScreen;  // paper is light: charts that are pictures are drawn again for it
addEventListener("beforeprint", () => { themeOnScreen = document.documentElement.dataset.theme; document.documentElement.dataset.theme = "light"; document.dispatchEvent(new Event("redraw")); });
addEventListener("afterprint", () => { if (themeOnScreen) document.documentElement.dataset.theme = themeOnScreen; else delete document.documentElement.dataset.theme; document.dispatchEvent(new Event("redraw")); });
