// The data of the page. The API of an endpoint has live data, and scripts in data/ have published data. If the page was
// opened from a folder, only the scripts are used: the browser allows no fetches there, but it runs scripts.
"use strict";

const API = "../api/v1";
const AT_ONCE = 16; // shards that are read in parallel
const FORMAT = 2; // the same as in gitboot.render.page

const waiting = new Map();

// Each script in data/ calls this function.
globalThis.gitboot = (name, value) => waiting.get(name)?.resolve(value);

// Load a script and return its value. null: there is no such script. A second call during loading waits for the first.
function load(name) {
  const asked = waiting.get(name);
  if (asked) return asked.promise;
  const promise = new Promise((resolve) => {
    const script = document.createElement("script");
    const ended = () => { waiting.delete(name); script.remove(); resolve(null); };
    waiting.set(name, { resolve });
    script.onload = script.onerror = ended;
    const fresh = source.live ? "" : `?${Date.now()}`; // an endpoint sends cache headers
    script.src = `data/${name.split("/").map(encodeURIComponent).join("/")}.js${fresh}`;
    document.head.append(script);
  });
  waiting.get(name).promise = promise;
  return promise;
}

async function ask(path) {
  const answer = await fetch(`${API}/${path}`, { cache: "no-store" });
  if (!answer.ok) throw new Error(answer.status === 503 ? "the instance has not published yet" : `the endpoint answered ${answer.status}`);
  return answer.json();
}

// Whether an endpoint serves the page. Checked once.
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

// The published data of the whole fleet. null: the Fleet's outputs have no pages.
async function readShared() {
  const shared = await load("fleet");
  if (shared !== null && shared.format !== FORMAT) throw new Error(`the published data has format ${shared.format}, but this page reads format ${FORMAT}; reload the page`);
  return shared;
}

readServers.missing = 0;
async function readServers(shared, told) {
  if (shared === null) {
    if (!await isLive()) throw new Error("no endpoint serves this page, and the folder data/ beside this page has no data");
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

// A server with the words for the search.
function item(server) {
  const labels = Object.entries(server.labels).map(([key, value]) => `${key}=${value}`);
  const macs = server.macs.flatMap((mac) => [mac, mac.replaceAll("-", ":")]);
  server.words = [server.name, server.uuid, ...macs, server.image, server.version, ...labels].join("\n").toLowerCase();
  return server;
}

// One server: live data, and data that only the published page has. Throws an error if there is no such server.
async function readServer(name) {
  const published = await load(`server/${name}`);
  const lines = published?.lines ? { lines: await located(published) } : {};
  if (!await isLive()) {
    if (published === null) throw new Error("the published data does not contain this server");
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
    let path = at; // a value that is not in the document is at the closest value around it
    while (path && !(path in document.lines)) path = path.slice(0, path.lastIndexOf("/"));
    return [document.file, document.lines[path]];
  };
  return lines.map(([field, value, rule, why, under, resource, at]) => [field, value, rule, why, under, resource, ...place(resource, at)]);
}
