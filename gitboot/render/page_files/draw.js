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

// The sizes of a picture, which is as wide as its view: the names are at the left of the bars. In a narrow view, they
// are above the bars.
function layout() {
  const width = Math.max(280, $("view").clientWidth);
  return width < 700 ? { width, names: 0, row: 50, top: 24, narrow: true } : { width, names: 240, row: 30, top: 6, narrow: false };
}
const BAR = 18; // the height of a bar
const DATE = 36; // half of the width of a date on an axis
const TIME = 58; // half of the width of a date with a time

// A picture with a label. A table beside it has the same data.
function picture(says, { width }, height, shapes) {
  const made = shape("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": says });
  made.append(...shapes);
  const box = element("div", undefined, "picture");
  box.append(made);
  return box;
}

function name(text, number, { names, row, narrow }) {
  const shown = text.length > 30 ? `${text.slice(0, 29)}…` : text;
  return narrow ? shape("text", { class: "name", x: 0, y: number * row + 18 }, shown)
    : shape("text", { x: names - 12, y: number * row + 20, "text-anchor": "end" }, shown);
}

// Rows of bars side by side: [name, [[class, size], …], whole, words]. A row that is full is the whole, or all parts if they are more.
function bars(says, rows) {
  const size = layout();
  const full = size.width - size.names - (size.narrow ? 100 : 160);
  const shapes = rows.flatMap(([text, parts, whole, words], row) => {
    const y = row * size.row + size.top;
    const scale = full / Math.max(1, whole, parts.reduce((sum, [, size]) => sum + size, 0));
    let x = size.names;
    const drawn = parts.filter(([, size]) => size > 0).map(([kind, size]) => {
      const wide = Math.max(2, size * scale);
      x += wide;
      return shape("rect", { class: kind, x: x - wide, y, width: wide, height: BAR, rx: 2 });
    });
    const track = shape("rect", { class: "track", x: size.names, y, width: full, height: BAR, rx: 2 });
    return [name(text, row, size), track, ...drawn, shape("text", { x: size.names + full + 8, y: y + 14 }, words)];
  });
  return picture(says, size, rows.length * size.row, shapes);
}

// Windows on an axis of time, with a line for now. Ends that are open reach to the edge.
function windows(says, rows) {
  const now = Date.now();
  const size = layout();
  const known = rows.flatMap(({ start, end }) => [start, end]).filter(Boolean).map((each) => Date.parse(each));
  const first = Math.min(now, ...known);
  const last = Math.max(now, ...known);
  const margin = Math.max(3600000, (last - first) * 0.05);
  const [begin, end] = [first - margin, last + margin];
  const place = (at) => size.names + ((at - begin) / (end - begin)) * (size.width - size.names);
  const bottom = rows.length * size.row + 8;
  const days = times(begin, end, size.narrow ? 3 : 6);
  const dates = days.every((at) => at % DAY_MS === 0);
  const half = dates ? DATE : TIME;
  let free = 0; // where the next date can begin
  const ticks = days.flatMap((at) => {
    const line = shape("line", { class: "grid", x1: place(at), x2: place(at), y1: 0, y2: bottom });
    const x = Math.min(Math.max(place(at), half), size.width - half);
    if (x - half < free) return [line];
    free = x + half;
    return [line, shape("text", { x, y: bottom + 16, "text-anchor": "middle", class: "axis" }, new Date(at).toISOString().slice(0, dates ? 10 : 16).replace("T", " "))];
  });
  const shapes = rows.flatMap((each, row) => {
    const from = each.start ? place(Date.parse(each.start)) : size.names;
    const to = each.end ? place(Date.parse(each.end)) : size.width;
    const open = (!each.start || Date.parse(each.start) <= now) && (!each.end || now < Date.parse(each.end));
    return [shape("rect", { class: open ? "open" : "window", x: from, y: row * size.row + size.top, width: Math.max(4, to - from), height: BAR, rx: 4 })];
  });
  const line = shape("line", { class: "now", x1: place(now), x2: place(now), y1: 0, y2: bottom });
  return picture(says, size, bottom + 38, [...ticks, ...shapes, line, ...rows.map((each, row) => name(each.name, row, size)), shape("text", { x: place(now), y: bottom + 34, "text-anchor": "middle" }, "now")]);
}

// The times on an axis: whole days of UTC or parts of them, at most so many, but at least one.
function times(begin, end, most) {
  const steps = [1, 2, 3, 6, 12, 24, 48, 96, 168, 336, 720, 2160, 4320, 8760].map((hours) => hours * 3600000);
  const step = steps.find((each) => (end - begin) / each <= most) ?? (end - begin) / most;
  const found = [];
  for (let at = Math.ceil(begin / step) * step; at < end; at += step) found.push(at);
  return found;
}

// The progress of a rollout, and the percentages at which servers join: [[percent, servers], …].
function ladder(says, percent, joining) {
  const size = layout();
  const place = (at) => 24 + (at / 100) * (size.width - 48);
  const most = Math.max(1, ...joining.map(([, servers]) => servers.length));
  const rest = [0, 25, 50, 75, 100].filter((at) => Math.abs(place(at) - place(percent)) > 40);
  return picture(says, size, 96, [
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
