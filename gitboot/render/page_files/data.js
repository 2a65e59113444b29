// Where the page's data comes from. An endpoint's API tells what is live; besides, scripts in data/ tell what was
// published, and they alone where the page was opened from a folder: there nothing may be fetched, but scripts may run.
"use strict";

const API = "../api/v1";
const AT_ONCE = 16; // shards that are asked for
const FORMAT = 2; // as gitboot.render.page has it

const waiting = new Map();

// What each script in data/ calls.
globalThis.gitboot = (name, value) => waiting.get(name)?.resolve(value);

// What a script brings; null where there is none. Who asks for what is on its way already waits for that.
function load(name) {
  const asked = waiting.get(name);
  if (asked) return asked.promise;
  const promise = new Promise((resolve) => {
    const script = document.createElement("script");
    const ended = () => { waiting.delete(name); script.remove(); resolve(null); };
    waiting.set(name, { resolve });
    script.onload = script.onerror = ended;
    const fresh = source.live ? "" : `?${Date.now()}`; // an endpoint says itself what may be kept
    script.src = `data/${name.split("/").map(encodeURIComponent).join("/")}.js${fresh}`;
    document.head.append(script);
  });
  waiting.get(name).promise = promise;
  return promise;
}

async function ask(path) {
  const answer = await fetch(`${API}/${path}`, { cache: "no-store" });
  if (!answer.ok) throw new Error(answer.status === 503 ? "nothing is published yet" : `the endpoint answers ${answer.status}`);
  return answer.json();
}

// Whether an endpoint serves the page; asked once.
const source = { live: null };

async function isLive() {
  if (source.live === null) {
    source.live = location.protocol.startsWith("http") &&
      await fetch(`${API}/status`, { cache: "no-store" }).then((answer) => answer.status !== 404, () => false);
  }
  return source.live;
}

async function readStatus() {
  return await isLive() ? ask("status") : load("status");
}

async function readSeen() {
  return (await isLive() ? (await ask("seen")).items : (await load("seen"))?.machines) ?? [];
}

// What was published of the fleet as a whole; null where the Fleet's outputs have no page.
async function readShared() {
  const shared = await load("fleet");
  if (shared !== null && shared.format !== FORMAT) throw new Error(`data/ has the format ${shared.format}, not ${FORMAT}`);
  return shared;
}

readServers.missing = 0;
async function readServers(shared, told) {
  if (shared === null) {
    if (!await isLive()) throw new Error("nothing is published beside this page");
    return readPages(told);
  }
  const all = [];
  readServers.missing = 0; // shards that could not be read
  for (let first = 0; first < shared.shards.length; first += AT_ONCE) {
    const found = await Promise.all(shared.shards.slice(first, first + AT_ONCE).map((each) => load(`shard/${each}`)));
    for (const shard of found) {
      if (shard === null) readServers.missing += 1;
      for (const row of shard?.rows ?? []) all.push(item(Object.fromEntries(shard.columns.map((name, place) => [name, row[place]]))));
    }
    told(all.length);
  }
  return inOrder(all);
}

async function readPages(told) {
  const all = [];
  let last = null;
  do {
    const page = await ask(`servers${last === null ? "" : `?continue=${encodeURIComponent(last)}`}`);
    for (const each of page.items) all.push(item(each));
    last = page.continue;
    told(all.length);
  } while (last !== null);
  return inOrder(all);
}

// By name, n2 before n10.
function inOrder(servers) {
  const keyed = servers.map((server) => [server.name.replace(/[0-9]+/g, (digits) => digits.padStart(8, "0")), server]);
  return keyed.sort(([a], [b]) => (a < b ? -1 : 1)).map(([, server]) => server);
}

// A server with the words that it is found by.
function item(server) {
  const labels = Object.entries(server.labels).map(([key, value]) => `${key}=${value}`);
  const macs = server.macs.flatMap((mac) => [mac, mac.replaceAll("-", ":")]);
  server.words = [server.name, server.uuid, ...macs, server.image, server.version, ...labels].join("\n").toLowerCase();
  return server;
}

// One server: what is live, and what only the published page says. Error where there is no such server.
async function readServer(name) {
  const published = await load(`server/${name}`);
  const lines = published?.lines ? { lines: await located(published) } : {};
  if (!await isLive()) {
    if (published === null) throw new Error("no such server was published");
    return { ...published, ...lines };
  }
  const path = `servers/${encodeURIComponent(name)}`;
  const [server, document] = await Promise.all([ask(path), ask(`${path}/plan`)]);
  return { ...published, ...lines, ...server, document };
}

// The fields of a server, each with its file and line. A field has neither if a rule adds it, or if a script is missing.
async function located({ name, shard, lines }) {
  const [shared, own] = await Promise.all([load("location/shared"), load(`location/${shard}`)]);
  const place = (resource, at) => {
    if (typeof at === "number") return own?.[name] ? [own[name][0], own[name][1] + at] : [];
    const document = shared?.[resource];
    if (!document) return [];
    let path = at; // a value that is not written is at the closest value around it
    while (path && !(path in document.lines)) path = path.slice(0, path.lastIndexOf("/"));
    return [document.file, document.lines[path]];
  };
  return lines.map(([field, value, rule, why, under, resource, at]) => [field, value, rule, why, under, resource, ...place(resource, at)]);
}
