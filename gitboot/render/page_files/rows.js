// The table of servers: filters and order. Only the visible rows are in the document.
"use strict";

const MARGIN = 8; // rows above and below the visible ones
const DAY_MS = 86400000;
const FIELDS = ["site", "phase", "image"];

const fleet = { all: [], ordered: [], chosen: [], printing: false, version: null, shared: null, status: null, missing: 0 };
const order = { by: "name", down: false };
const drawn = new Map(); // the row of each server that has one
let narrowed = ""; // the search text of `fleet.chosen`

// The colour of each phase. It is always shown with the word. Amber is only for what waits or is withheld.
const TONES = { Network: "active", Maintenance: "maintenance", Disk: "plain" };

// Each column: title, sort key and content.
const COLUMNS = [
  ["Server", "name", (server) => toServer(server.name)],
  ["Site", "site", (server) => server.site ?? "–"],
  ["Phase", "phase", (server) => phase(server)],
  ["Image", "image", (server) => imageOf(server) ?? (server.phase ? "local disk" : "–")],
  ["By", "by", (server) => by(server) ?? "–"],
  ["Installs", "installs", (server) => installs(server)],
  ["Next change", "nextTransition", (server) => nextBoot(server)],
];
const KEYS = { by };

function by(server) {
  return server.maintenance ?? server.policy;
}

// An image with its version, unless its name ends with the version.
function imageOf({ image, version }) {
  return image && version && !image.endsWith(version) ? `${image} · ${version}` : image;
}

// Whether an installation has begun, without evidence of its completion yet.
function isInstalling(server) {
  return Boolean(server.installing);
}

// Whether gitboot withholds the install boot that the server would get now.
function isWithheld({ name }) {
  return Boolean(fleet.status?.attempted?.withheld?.some((each) => each.server === name));
}

function phase(server) {
  if (!isInstalling(server)) return element("span", server.phase ?? "no plan", `word pill ${isWithheld(server) ? "waits" : TONES[server.phase] ?? "plain"}`);
  const { state, since, message } = server.installing;
  const made = element("span", state, "word pill active");
  const isToday = since.slice(0, 10) === new Date().toISOString().slice(0, 10);
  made.append(` since ${isToday ? since.slice(11, 16) : since.slice(0, 16).replace("T", " ")}Z`);
  made.title = message;
  return made;
}

// The API alone does not show when a server installs. "–" means never.
function installs(server) {
  if (isWithheld(server)) return element("span", "waits: withheld", "word waits");
  if (isInstalling(server)) return `${STEPS[server.installing.step]} ${server.installing.at.slice(11, 16)}Z`;
  if (!("installs" in server)) return element("span", "not published", "quiet");
  if (!server.installs) return element("span", "–", "quiet");
  if (server.installs === "now") return element("span", "at its next boot", "word bad");
  return instant(server.installs);
}

// The API alone does not show whether a transition changes the boot.
function nextBoot(server) {
  return "installs" in server ? instant(server.nextTransition) : element("span", "not published", "quiet");
}

// The counters above the table: label, predicate of the servers that it counts, and colour.
const AHEAD = {
  installing: ["installing now", isInstalling, "active"],
  reinstall: ["may install at their next boot", (server) => server.installs === "now", "bad"],
  tonight: ["more may install within 24 h", (server) => server.installs && server.installs !== "now" && isSoon(server.installs), "bad"],
  changes: ["change within 24 h", (server) => isSoon(server.nextTransition), ""],
  maintenance: ["in maintenance", (server) => server.maintenance, "maintenance"],
  waiting: ["wait for a rollout", (server) => server.joins, "waits"],
  kept: ["pinned or on hold", (server) => server.kept, ""],
};
let ahead = null; // the chosen counter

function isSoon(at) {
  return at && Date.parse(at) - Date.now() < DAY_MS;
}

function showAhead() {
  const known = Object.entries(AHEAD).filter(() => fleet.all.length && "installs" in fleet.all[0]);
  $("ahead").replaceChildren(...known.map(([key, [words, has, tone]]) => {
    const servers = fleet.all.reduce((sum, server) => sum + (has(server) ? 1 : 0), 0);
    const made = element("button", undefined, `tile ${servers ? tone : ""}`);
    made.type = "button";
    made.setAttribute("aria-pressed", String(ahead === key));
    made.append(element("strong", servers.toLocaleString("en")), element("span", words));
    made.addEventListener("click", () => {
      ahead = ahead === key ? null : key;
      for (const each of $("ahead").children) each.setAttribute("aria-pressed", String(each === made && ahead !== null));
      askAnew();
    });
    return made;
  }));
}

// The address has the filters, so that a link keeps them, and they are still set after the view of a server

function filters() {
  const found = new URLSearchParams();
  for (const name of ["search", ...FIELDS]) if ($(name).value.trim()) found.set(name, $(name).value.trim());
  if (ahead) found.set("ahead", ahead);
  if (order.by !== "name" || order.down) found.set("order", `${order.down ? "-" : ""}${order.by}`);
  return found;
}

function remember() {
  const text = filters().toString();
  history.replaceState(null, "", text ? `#/?${text}` : "#/");
}

function recall() {
  const wanted = new URLSearchParams(location.hash.replace(/^#\/\??/, ""));
  for (const name of FIELDS) {
    const value = wanted.get(name) ?? "";
    if (value && ![...$(name).options].some((each) => each.value === value)) $(name).add(new Option(value, value));
    $(name).value = value;
  }
  $("search").value = wanted.get("search") ?? "";
  ahead = wanted.get("ahead") in AHEAD ? wanted.get("ahead") : null;
  const [, down, name] = /^(-?)(.+)$/.exec(wanted.get("order") ?? "name");
  Object.assign(order, { by: COLUMNS.some(([, key]) => key === name) ? name : "name", down: down === "-" });
  sort();
}

function sort() {
  const key = KEYS[order.by] ?? ((server) => server[order.by]);
  const sign = order.down ? -1 : 1;
  const keyed = order.by === "name" ? null : fleet.all.map((server) => [key(server) ?? "", server]);
  if (keyed) {
    // Servers without a value come last in both directions. Equal ones stay in the order of their names.
    keyed.sort(([a], [b]) => (a === b ? 0 : a === "" ? 1 : b === "" ? -1 : a < b ? -sign : sign));
    fleet.ordered = keyed.map(([, server]) => server);
  } else {
    fleet.ordered = order.down ? fleet.all.toReversed() : fleet.all;
  }
  narrowed = "";
  drawHead();
}

function drawHead() {
  const row = $("fleet").tHead.rows[0];
  if (!row.cells.length) {
    for (const [title, name] of COLUMNS) {
      const cell = element("th");
      cell.scope = "col";
      const button = element("button", title);
      button.type = "button";
      button.addEventListener("click", () => {
        Object.assign(order, { by: name, down: order.by === name && !order.down });
        sort();
        askAnew();
      });
      cell.append(button);
      const help = termed(title);
      if (help !== title) {
        help.textContent = "?";
        help.setAttribute("aria-label", `${title}: meaning`);
        cell.append(help);
      }
      row.append(cell);
    }
  }
  COLUMNS.forEach(([, name], place) => {
    if (name === order.by) row.cells[place].setAttribute("aria-sort", order.down ? "descending" : "ascending");
    else row.cells[place].removeAttribute("aria-sort");
  });
}

function askAnew() {
  $("window").scrollTop = 0;
  choose();
  remember();
}

// If the user only adds letters, search only in the previous result.
function choose() {
  const wanted = $("search").value.trim().toLowerCase();
  const fields = FIELDS.map((name) => [name, $(name).value]).filter(([, value]) => value);
  const has = ahead ? AHEAD[ahead][1] : null;
  const others = JSON.stringify([fields, ahead]);
  const among = narrowed && wanted.startsWith(narrowed) && choose.others === others ? fleet.chosen : fleet.ordered;
  fleet.chosen = among.filter((server) =>
    fields.every(([name, value]) => server[name] === value) && (!has || has(server)) && (!wanted || server.words.includes(wanted)));
  narrowed = wanted;
  choose.others = others;
  const [found, all] = [fleet.chosen.length, fleet.all.length].map((each) => each.toLocaleString("en"));
  $("count").textContent = `${found} of ${all} servers`;
  $("none").hidden = fleet.chosen.length > 0 || fleet.all.length === 0;
  drawRows();
}

function row(server) {
  const made = element("tr");
  made.setAttribute("role", "row");
  for (const [, , content] of COLUMNS) {
    const cell = element("td");
    cell.setAttribute("role", "cell");
    cell.append(content(server));
    made.append(cell);
  }
  return made;
}

function gap(place) {
  const made = $("fleet").tBodies[0].insertRow(place);
  made.className = "gap";
  made.setAttribute("aria-hidden", "true");
  made.insertCell().colSpan = COLUMNS.length;
  return made;
}

// The height of a row: in a narrow window, each row is a card.
function rowHeight() {
  return parseFloat(getComputedStyle(document.documentElement).getPropertyValue("--row"));
}

function drawRows() {
  const { chosen, printing } = fleet;
  const height = rowHeight();
  const seen = Math.ceil($("window").clientHeight / height);
  const top = Math.max(0, Math.floor($("window").scrollTop / height) - MARGIN);
  const first = printing ? 0 : Math.min(top, Math.max(0, chosen.length - seen - MARGIN));
  const end = printing ? chosen.length : Math.min(chosen.length, first + seen + 2 * MARGIN);
  put(chosen.slice(first, end), first);
  const [above, below] = [$("fleet").tBodies[0].firstChild, $("fleet").tBodies[0].lastChild];
  above.firstChild.style.height = `${first * height}px`;
  below.firstChild.style.height = `${(chosen.length - end) * height}px`;
  $("fleet").setAttribute("aria-rowcount", chosen.length + 1);
}

// Put the rows of these servers between the gaps. A row that is already there is not touched, so it keeps the focus.
function put(servers, first) {
  const body = $("fleet").tBodies[0];
  if (!body.rows.length) { gap(0); gap(1); }
  const wanted = new Set(servers);
  for (const [server, made] of drawn) {
    if (!wanted.has(server)) { made.remove(); drawn.delete(server); }
  }
  let place = body.firstChild.nextSibling;
  servers.forEach((server, number) => {
    let made = drawn.get(server);
    if (made === undefined) drawn.set(server, made = row(server));
    if (made === place) place = place.nextSibling;
    else body.insertBefore(made, place);
    made.setAttribute("aria-rowindex", first + number + 2);
  });
}

function offer(name) {
  const select = $(name);
  const kept = select.value;
  const values = [...new Set(fleet.all.map((server) => server[name]).filter(Boolean))].sort();
  if (kept && !values.includes(kept)) values.push(kept);
  select.replaceChildren(new Option("all", ""), ...values.map((value) => new Option(value, value)));
  select.value = kept;
}
