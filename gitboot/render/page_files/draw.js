// Elements and pictures. Data of a fleet is set as textContent and never as markup.
"use strict";

function element(tag, text, className) {
  const made = document.createElement(tag);
  if (text !== undefined && text !== null) made.textContent = text;
  if (className) made.className = className;
  return made;
}

function link(text, address) {
  const made = element("a", text);
  made.href = address;
  return made;
}

function toServer(name) {
  return link(name, `#/servers/${encodeURIComponent(name)}`);
}

// A section with a heading.
function part(title, ...content) {
  const made = element("section");
  const heading = element("h3");
  heading.append(termed(title));
  made.append(heading, ...content);
  return made;
}

function note(tone, word, text, ...more) {
  const made = element("div", undefined, `note ${tone}`);
  made.append(element("span", word, "word"), ` ${text}`);
  for (const each of more) if (each) made.append(typeof each === "string" ? element("p", each) : each);
  return made;
}

// A table. Cells are text, elements or null. A wide table scrolls by itself, also by keyboard.
function table(caption, heads, rows) {
  const made = element("table");
  made.createCaption().append(termed(caption));
  const head = made.createTHead().insertRow();
  for (const each of heads) {
    const cell = element("th");
    cell.scope = "col";
    cell.append(termed(each));
    head.append(cell);
  }
  const body = made.createTBody();
  for (const row of rows) {
    const line = body.insertRow();
    row.forEach((each, place) => {
      const cell = line.insertCell();
      cell.dataset.head = heads[place]; // the label in a narrow table, whose rows are cards
      cell.append(each ?? "–");
    });
  }
  const wide = element("div", undefined, "wide");
  wide.tabIndex = 0;
  wide.setAttribute("role", "region");
  wide.setAttribute("aria-label", caption);
  wide.append(made);
  return wide;
}

function away(instant) {
  const minutes = Math.round((Date.parse(instant) - Date.now()) / 60000);
  const size = Math.abs(minutes);
  if (size === 0) return "now";
  const words = size < 60 ? `${size} min` : size < 2880 ? `${Math.round(size / 60)} h` : `${Math.round(size / 1440)} days`;
  return minutes >= 0 ? `in ${words}` : `${words} ago`;
}

function inUtc(value) {
  return `${value.slice(0, 16).replace("T", " ")}Z`;
}

function instant(value) {
  if (!value) return element("span", "–");
  const made = element("time", `${away(value)} · ${inUtc(value)}`);
  made.dateTime = made.title = value;
  return made;
}

// Pictures

function shape(tag, facts, text) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(facts)) made.setAttribute(name, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

const WIDTH = 1000;
const NAMES = 240; // the width of the names at the left
const BAR = 30;

// A picture with a label. A table beside it has the same data.
function picture(says, height, shapes) {
  const made = shape("svg", { viewBox: `0 0 ${WIDTH} ${height}`, role: "img", "aria-label": says });
  made.append(...shapes);
  const box = element("div", undefined, "picture");
  box.tabIndex = 0; // in a narrow window the picture scrolls in its box
  box.setAttribute("role", "region");
  box.setAttribute("aria-label", says);
  box.append(made);
  return box;
}

function name(text, row) {
  const shown = text.length > 30 ? `${text.slice(0, 29)}…` : text;
  return shape("text", { x: NAMES - 12, y: row * BAR + 20, "text-anchor": "end" }, shown);
}

// Rows of bars side by side: [name, [[class, size], …], whole, words]. A row that is full is the whole, or all parts if they are more.
function bars(says, rows) {
  const full = WIDTH - NAMES - 160;
  const shapes = rows.flatMap(([text, parts, whole, words], row) => {
    const scale = full / Math.max(1, whole, parts.reduce((sum, [, size]) => sum + size, 0));
    let x = NAMES;
    const drawn = parts.filter(([, size]) => size > 0).map(([kind, size]) => {
      const wide = Math.max(2, size * scale);
      x += wide;
      return shape("rect", { class: kind, x: x - wide, y: row * BAR + 6, width: wide, height: BAR - 12, rx: 2 });
    });
    const track = shape("rect", { class: "track", x: NAMES, y: row * BAR + 6, width: full, height: BAR - 12, rx: 2 });
    return [name(text, row), track, ...drawn, shape("text", { x: NAMES + full + 8, y: row * BAR + 20 }, words)];
  });
  return picture(says, rows.length * BAR, shapes);
}

// Windows on an axis of time, with a line for now. Ends that are open reach to the edge.
function windows(says, rows) {
  const now = Date.now();
  const known = rows.flatMap(({ start, end }) => [start, end]).filter(Boolean).map((each) => Date.parse(each));
  const first = Math.min(now, ...known);
  const last = Math.max(now, ...known);
  const margin = Math.max(3600000, (last - first) * 0.05);
  const [begin, end] = [first - margin, last + margin];
  const place = (at) => NAMES + ((at - begin) / (end - begin)) * (WIDTH - NAMES);
  const bottom = rows.length * BAR + 8;
  const ticks = days(begin, end).flatMap((at) => [
    shape("line", { class: "grid", x1: place(at), x2: place(at), y1: 0, y2: bottom }),
    shape("text", { x: place(at), y: bottom + 16, "text-anchor": "middle", class: "axis" }, new Date(at).toISOString().slice(5, 16).replace("T", " ")),
  ]);
  const shapes = rows.flatMap((each, row) => {
    const from = each.start ? place(Date.parse(each.start)) : NAMES;
    const to = each.end ? place(Date.parse(each.end)) : WIDTH;
    const open = (!each.start || Date.parse(each.start) <= now) && (!each.end || now < Date.parse(each.end));
    return [name(each.name, row), shape("rect", { class: open ? "open" : "window", x: from, y: row * BAR + 6, width: Math.max(4, to - from), height: BAR - 12, rx: 4 })];
  });
  const line = shape("line", { class: "now", x1: place(now), x2: place(now), y1: 0, y2: bottom });
  return picture(says, bottom + 38, [...ticks, ...shapes, line, shape("text", { x: place(now), y: bottom + 34, "text-anchor": "middle" }, "now")]);
}

// The times on an axis: whole days of UTC or parts of them, at most six.
function days(begin, end) {
  const steps = [1, 2, 3, 6, 12, 24, 48, 168, 720, 2160, 8760].map((hours) => hours * 3600000);
  const step = steps.find((each) => (end - begin) / each <= 6) ?? (end - begin) / 4;
  const found = [];
  for (let at = Math.ceil(begin / step) * step; at < end; at += step) found.push(at);
  return found;
}

// The progress of a rollout, and the percentages at which servers join: [[percent, servers], …].
function ladder(says, percent, joining) {
  const place = (at) => 24 + (at / 100) * (WIDTH - 48);
  const most = Math.max(1, ...joining.map(([, servers]) => servers.length));
  const rest = [0, 25, 50, 75, 100].filter((at) => Math.abs(at - percent) > 4);
  return picture(says, 96, [
    shape("rect", { class: "track", x: place(0), y: 60, width: place(100) - place(0), height: 10, rx: 5 }),
    shape("rect", { class: "open", x: place(0), y: 60, width: place(percent) - place(0), height: 10, rx: 5 }),
    ...joining.map(([at, servers]) => {
      const high = 8 + (40 * servers.length) / most;
      return shape("rect", { class: "waits", x: place(at) - 3, y: 56 - high, width: 6, height: high, rx: 2 });
    }),
    ...rest.map((at) => shape("text", { x: place(at), y: 90, "text-anchor": "middle", class: "axis" }, `${at} %`)),
    shape("text", { x: place(percent), y: 90, "text-anchor": "middle", "font-weight": 600 }, `${percent} %`),
  ]);
}
