// The operators' page: what the API tells, as text. Whatever comes from a fleet is set as textContent and never as markup.
"use strict";

const API = "../api/v1";
const ROW = 36; // as --row in page.css
const MARGIN = 20; // rows above and below what is seen
const REFRESH_MS = 15000;
const NAMED = 12; // servers that one note names
const $ = (id) => document.getElementById(id);

const fleet = { all: [], chosen: [], printing: false, version: null };

// What a phase means to somebody in a hurry: a colour, always with its word.
const TONES = { Network: "busy", Maintenance: "busy", Disk: "good" };

function element(tag, text, className) {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  if (className) made.className = className;
  return made;
}

async function ask(path) {
  const answer = await fetch(`${API}/${path}`, { cache: "no-store" });
  if (!answer.ok) throw new Error(answer.status === 503 ? "nothing is published yet" : `the endpoint answers ${answer.status}`);
  return answer.json();
}

// Instants

function away(instant) {
  const minutes = Math.round((Date.parse(instant) - Date.now()) / 60000);
  const size = Math.abs(minutes);
  if (size === 0) return "now";
  const words = size < 60 ? `${size} min` : size < 2880 ? `${Math.round(size / 60)} h` : `${Math.round(size / 1440)} days`;
  return minutes >= 0 ? `in ${words}` : `${words} ago`;
}

function instant(value) {
  if (!value) return element("span", "–");
  const made = element("time", `${away(value)} · ${value.slice(0, 16).replace("T", " ")}Z`);
  made.dateTime = made.title = value;
  return made;
}

// How the instance fares

function note(tone, word, text, more) {
  const made = element("div", undefined, `note ${tone}`);
  made.append(element("span", word, "word"), ` ${text}`);
  for (const line of more) if (line) made.append(element("p", line));
  return made;
}

function notes(status) {
  const found = [];
  const { attempted, conditions, progress } = status;
  if (attempted?.held) {
    const held = attempted.held;
    found.push(note("bad", "Held", `commit ${(attempted.commit ?? "").slice(0, 12)}, by ${held.guards.join(", ")}`,
      [`Digest ${held.digest}`])); // which lines acknowledge it, if any do, the condition says
  }
  for (const each of attempted?.problems ?? []) {
    found.push(note(each.severity === "error" ? "bad" : "busy", each.code, `${each.path}:${each.line}: ${each.message}`, [each.hint]));
  }
  found.push(...failing(conditions ?? []));
  if (progress) found.push(note("busy", progress.work, progress.message, []));
  if (!found.length) {
    const told = conditions?.length > 0 && status.applied?.commit;
    found.push(told ? note("good", "Well", "every condition holds", []) : note("busy", "Unknown", "no instance has said yet how it fares", []));
  }
  return found;
}

// What fails, the instance's own first; what is the same of many servers is one note that names them.
function failing(conditions) {
  const groups = new Map();
  for (const each of conditions.filter((each) => !each.status)) {
    const [kind, server] = each.type.split("/");
    const key = [server ? 1 : 0, kind, each.reason, each.message].join("\n");
    groups.set(key, [...(groups.get(key) ?? []), { ...each, kind, server }]);
  }
  return [...groups.entries()].sort(([a], [b]) => (a < b ? -1 : 1)).map(([, [first, ...more]]) => {
    if (!more.length) return note("bad", `${first.type}: ${first.reason}`, first.message, [first.remedy]);
    const names = [first, ...more].map((each) => each.server);
    const rest = names.length > NAMED ? ` and ${names.length - NAMED} more` : "";
    return note("bad", `${names.length} × ${first.kind}: ${first.reason}`, first.message,
      [names.slice(0, NAMED).join(", ") + rest, first.remedy]);
  });
}

function showStatus(status) {
  const applied = status.applied?.commit;
  $("commit").textContent = applied ? `boots commit ${applied.slice(0, 12)}` : "no commit is applied";
  $("at").replaceChildren(...(status.at ? ["as of ", instant(status.at)] : []));
  $("state").replaceChildren(...notes(status));
}

// The fleet: only the rows that are seen are in the document

function words(item) {
  const labels = Object.entries(item.labels).map(([key, value]) => `${key}=${value}`);
  return [item.name, item.uuid, ...item.macs, ...item.macs.map((mac) => mac.replaceAll("-", ":")), item.image, item.version, ...labels].join("\n").toLowerCase();
}

function row(item, number) {
  const made = element("tr");
  made.setAttribute("aria-rowindex", number + 2);
  const link = element("a", item.name);
  link.href = `#/servers/${encodeURIComponent(item.name)}`;
  const phase = element("span", item.phase ?? "undecided", `word ${TONES[item.phase] ?? "busy"}`);
  const image = [item.image, item.version].filter(Boolean).join(" ") || "local disk";
  for (const content of [link, item.site ?? "–", phase, image, item.maintenance ?? item.policy ?? "–", instant(item.nextTransition)]) {
    const cell = element("td");
    cell.append(content);
    if (typeof content === "string") cell.title = content;
    made.append(cell);
  }
  return made;
}

function gap(rows) {
  const made = element("tr", undefined, "gap");
  made.setAttribute("aria-hidden", "true");
  const cell = element("td");
  cell.colSpan = 6;
  cell.style.height = `${rows * ROW}px`;
  made.append(cell);
  return made;
}

function drawRows() {
  const { chosen, printing } = fleet;
  const seen = Math.ceil($("window").clientHeight / ROW) + MARGIN;
  const top = Math.max(0, Math.floor($("window").scrollTop / ROW) - MARGIN);
  const first = printing ? 0 : Math.min(top, Math.max(0, chosen.length - seen));
  const end = printing ? chosen.length : Math.min(chosen.length, first + seen + MARGIN);
  const rows = chosen.slice(first, end).map((item, number) => row(item, first + number));
  const focused = document.activeElement?.closest("#servers a")?.hash;
  $("servers").tBodies[0].replaceChildren(gap(first), ...rows, gap(chosen.length - end));
  $("servers").setAttribute("aria-rowcount", chosen.length + 1);
  if (focused) [...$("servers").querySelectorAll("a")].find((link) => link.hash === focused)?.focus({ preventScroll: true });
}

function choose() {
  const wanted = $("search").value.trim().toLowerCase();
  const fields = ["site", "phase", "image"].map((name) => [name, $(name).value]).filter(([, value]) => value);
  fleet.chosen = fleet.all.filter((item) =>
    fields.every(([name, value]) => item[name] === value) && (!wanted || item.words.includes(wanted)));
  $("count").textContent = `${fleet.chosen.length} of ${fleet.all.length} servers`;
  drawRows();
}

function offer(name) {
  const select = $(name);
  const kept = select.value;
  const values = [...new Set(fleet.all.map((item) => item[name]).filter(Boolean))].sort();
  if (kept && !values.includes(kept)) values.push(kept);
  select.replaceChildren(new Option("all", ""), ...values.map((value) => new Option(value, value)));
  select.value = kept;
}

// What differs once servers may boot something else; null: no instance says so, and the fleet is read each time.
function version({ at, applied, changes, nextTransition, phases }) {
  return at ? JSON.stringify([applied, changes, nextTransition, phases]) : null;
}

async function readFleet(status) {
  if (fleet.version !== null && fleet.version === version(status)) return drawRows();
  const all = [];
  let last = null;
  do {
    const page = await ask(`servers${last === null ? "" : `?continue=${encodeURIComponent(last)}`}`);
    for (const item of page.items) all.push({ ...item, words: words(item) });
    last = page.continue;
    if (fleet.all.length === 0 && last !== null) $("count").textContent = `${all.length} servers read`;
  } while (last !== null);
  fleet.all = all;
  fleet.version = version(status);
  ["site", "phase", "image"].forEach(offer);
  choose();
}

// Machines that no document describes

function showSeen({ items }) {
  $("seen").hidden = items.length === 0 || !$("server").hidden;
  $("seen").querySelector("tbody").replaceChildren(...items.map((item) => {
    const made = element("tr");
    for (const content of [item.macs.join(" ") || "–", item.uuid ?? "–", item.client, instant(item.last), String(item.times)]) {
      const cell = element("td");
      cell.append(content);
      made.append(cell);
    }
    return made;
  }));
}

// One server

function facts(server) {
  const labels = Object.entries(server.labels).map(([key, value]) => `${key}=${value}`).join("  ");
  const known = Object.entries(server.provisioned ?? {})
    .filter(([, value]) => value && (typeof value !== "object" || Object.keys(value).length))
    .map(([key, value]) => `${key} ${typeof value === "object" ? JSON.stringify(value) : value}`).join(", ");
  return [
    ["Phase", server.phase], ["Because", server.cause], ["Image", [server.image, server.version].filter(Boolean).join(" ")],
    ["Profile", server.profile], ["Policy", server.policy], ["Maintenance", server.maintenance], ["Method", server.method],
    ["Installation", server.step], ["Site", server.site], ["Labels", labels], ["UUID", server.uuid],
    ["MAC", server.macs.join(" ")], ["Kernel arguments", server.kernelArguments.join(" ")],
    ["BMC is to boot", server.override && `${server.override.enabled} ${server.override.target}, for ${server.override.reason}`],
    ["Record", known], ["Differs", Object.values(server.drift).join("; ")], ["Plan's digest", server.digest],
  ].filter(([, value]) => value);
}

async function showServer(name) {
  const path = `servers/${encodeURIComponent(name)}`;
  const article = $("server");
  $("server-title").textContent = name;
  const list = article.querySelector("dl");
  try {
    const [server, plan] = await Promise.all([ask(path), ask(`${path}/plan`)]);
    if (asked() !== name) return; // another was asked for meanwhile
    const rows = facts(server).flatMap(([key, value]) => [element("dt", key), element("dd", value)]);
    const next = element("dd");
    next.append(instant(server.nextTransition));
    list.replaceChildren(...rows, element("dt", "Next change"), next);
    article.querySelector("pre").textContent = JSON.stringify(plan, null, 2);
  } catch (error) {
    if (asked() !== name) return;
    list.replaceChildren(element("dt", "Not known"), element("dd", error.message));
    article.querySelector("pre").textContent = "";
  }
}

// What is asked for stands in the address

function asked() {
  const found = /^#\/servers\/(.+)$/.exec(location.hash);
  try {
    return found ? decodeURIComponent(found[1]) : null;
  } catch {
    return null;
  }
}

async function go() {
  const name = asked();
  $("server").hidden = name === null;
  $("fleet").hidden = name !== null;
  document.title = name === null ? "gitboot" : `${name} – gitboot`;
  await refresh();
  if (name !== null) $("server-title").focus();
}

async function refresh() {
  const name = asked();
  try {
    const [status, seen] = await Promise.all([ask("status"), ask("seen")]);
    showStatus(status);
    showSeen(seen);
    await (name === null ? readFleet(status) : showServer(name));
  } catch (error) {
    $("state").replaceChildren(note("bad", "Not read", `${error.message}; what is below may be old`, []));
  }
}

async function watch() {
  if (!document.hidden) await refresh();
  setTimeout(watch, REFRESH_MS);
}

for (const id of ["search", "site", "phase", "image"]) {
  $(id).addEventListener("input", () => { $("window").scrollTop = 0; choose(); });
}
$("filters").addEventListener("submit", (event) => event.preventDefault());
$("window").addEventListener("scroll", drawRows, { passive: true });
addEventListener("resize", drawRows);
addEventListener("hashchange", go);
document.querySelector(".skip").addEventListener("click", (event) => { event.preventDefault(); $("main").focus(); });
addEventListener("beforeprint", () => { fleet.printing = true; drawRows(); });
addEventListener("afterprint", () => { fleet.printing = false; drawRows(); });
go();
setTimeout(watch, REFRESH_MS);
