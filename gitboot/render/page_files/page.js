// The page for operators: its views, and the choice of a view by the address.
"use strict";

const REFRESH_MS = 5000;
const REFRESH_LARGE_MS = 15000; // for 15,000 servers and more; a smaller fleet is read more often
const STALE_MINUTES = 2.5; // a running instance writes its status at least once a minute
const NAMED = 12; // the most servers that a line names
const $ = (id) => document.getElementById(id);

function some(names) {
  return names.slice(0, NAMED).join(", ") + (names.length > NAMED ? ` and ${names.length - NAMED} more` : "");
}

// Links to the forge, if the status has its URLs

function forge(page, facts) {
  const template = fleet.status?.links?.[page];
  if (!template) return null;
  const filled = Object.entries(facts).reduce(
    (text, [name, value]) => text.replace(`{${name}}`, String(value).split("/").map(encodeURIComponent).join("/")), template);
  return /^https?:/.test(filled) ? filled : null;
}

function commit(revision) {
  const address = forge("commit", { commit: revision });
  const shown = element(address ? "a" : "span", revision.slice(0, 12), "mono commit");
  if (address) shown.href = address;
  return shown;
}

function line(revision, path, number) {
  if (!path) return element("span", "not published", "quiet");
  const address = forge("line", { commit: revision, path, line: number });
  const made = element("span");
  made.append(address ? link(`${path}:${number}`, address) : `${path}:${number}`);
  const blame = forge("blame", { commit: revision, path, line: number });
  if (blame) made.append(" · ", link("blame", blame));
  return made;
}

// Status of the instance

function branch(status) {
  return status?.branch ? [" of ", element("span", status.branch.replace(/^refs\/heads\//, ""), "mono")] : [];
}

// A command with a button that copies it. If the browser does not allow copying, the text is selected.
function typed(text) {
  const made = element("div", undefined, "typed");
  const said = element("pre", text);
  const button = element("button", "Copy");
  button.type = "button";
  button.addEventListener("click", async () => {
    getSelection().selectAllChildren(said);
    await navigator.clipboard?.writeText(text).then(() => { button.textContent = "Copied"; }, () => {});
  });
  made.append(said, button);
  return made;
}

// The servers whose install boots are withheld, and what each boots instead.
function withheld(servers) {
  return table("Servers whose install boot is withheld, because newer commits do not offer it", ["Server", "Boots", "Not offered by"],
    servers.map(({ server, boots, by }) => [toServer(server), boots ?? "its disk", by.map((each) => each.slice(0, 12)).join(", ")]));
}

// A held commit: which servers it affects now, and how to review and to approve it.
function held({ commit: revision, held: { digest, guards, lines, reinstalls }, withheld: lost }) {
  const what = element("p");
  if (reinstalls?.length) what.append(`It may reinstall ${reinstalls.join(", ")}. `);
  what.append("gitboot waits for an approval. ");
  if (lost?.length) {
    const servers = lost.length === 1 ? "1 server" : `${lost.length} servers`;
    what.append(link(`It withholds the install ${lost.length === 1 ? "boot" : "boots"} of ${servers}`, "#/changes"),
      `, because this commit does not offer ${lost.length === 1 ? "it" : "them"}: ${some(lost.map((each) => each.server))}. `);
  }
  what.append(`All ${lost?.length ? "other " : ""}machines boot as before.`);
  const review = forge("commit", { commit: revision });
  if (review) what.append(" · ", link("show the commit", review));
  const ways = lines?.length
    ? ["2. To acknowledge the changes, add this to the message of a new commit:", typed(lines.join("\n")), "Or approve the changes on the host of the instance:"]
    : ["2. A commit message cannot acknowledge these changes. To approve them, run this on the host of the instance:"];
  return note("bad", "Held", `commit ${(revision ?? "").slice(0, 12)}, by ${guards.join(", ")}`, what,
    "1. Review the changes on the host of the instance:",
    typed(`gitboot diff --accepted OUTPUT ..${(revision ?? "").slice(0, 12)} STATE/repository.git`), ...ways,
    typed(`gitboot approve ${digest.slice(0, 16)} --all-guards --reason '…' --state STATE`));
}

// If the status is stale, all data on the page may be old. A live endpoint compares with its own clock (StatusCurrent).
function stale(at) {
  if (!at || Date.now() - Date.parse(at) < STALE_MINUTES * 60000) return [];
  return [note("bad", "Stale", `the instance last wrote its status ${away(at)}; all data below may be old`,
    source.live ? "Check that the instance runs: systemctl status gitboot, journalctl -u gitboot" : "These files were published then. The instance's endpoint shows live data.")];
}

function lacking() {
  const { shared, all, missing } = fleet;
  if (!missing) return [];
  const lost = Math.max(0, shared.servers - all.length).toLocaleString("en");
  return [note("bad", "Incomplete", `${missing} of ${shared.shards.length} files of the table could not be read: ${lost} of ${shared.servers.toLocaleString("en")} servers are not shown`,
    "The copy is incomplete. Check the files in data/shard/ beside this page.")];
}

function notes(status) {
  const { attempted, conditions, progress } = status;
  const found = stale(status.at);
  if (attempted?.held) found.push(held(attempted));
  for (const each of attempted?.problems ?? []) {
    found.push(note(each.severity === "error" ? "bad" : "plain", each.code, `${each.path}:${each.line}: ${each.message}`, each.hint));
  }
  // The note of a held commit shows its condition.
  found.push(...failing((conditions ?? []).filter((each) => !(attempted?.held && each.type === "CommitAccepted"))));
  const { installations = [], installing = {} } = status;
  const count = Object.values(installing).reduce((sum, each) => sum + each, 0);
  if (count) {
    const first = installations.slice(0, 5).map((each) => element("p", `${each.server}: ${each.message}`));
    found.push(note("active", "Installing", `${count} ${count === 1 ? "server" : "servers"} without evidence of completion`, ...first));
  }
  if (progress) found.push(note("active", progress.work, progress.message));
  if (!found.length) {
    const isHealthy = conditions?.length > 0 && status.applied?.commit;
    found.push(isHealthy ? note("good", "Healthy:", "all conditions are true") : note("plain", "Unknown", "no instance has written a status yet"));
  }
  return found;
}

// Conditions that are false, those of the instance first. The same condition of several servers is one note.
function failing(conditions) {
  const groups = new Map();
  for (const each of conditions.filter((each) => !each.status)) {
    const [kind, server] = each.type.split("/");
    const key = [server ? 1 : 0, kind, each.reason, each.message].join("\n");
    groups.set(key, [...(groups.get(key) ?? []), { ...each, kind, server }]);
  }
  return [...groups.entries()].sort(([a], [b]) => (a < b ? -1 : 1)).map(([, [first, ...more]]) => {
    const rest = [explained(first.type, first.reason), first.remedy && typed(first.remedy)];
    if (!more.length) return note("bad", `${first.type}: ${first.reason}`, first.message, ...rest);
    const names = [first, ...more].map((each) => each.server);
    return note("bad", `${names.length} × ${first.kind}: ${first.reason}`, first.message, some(names), ...rest);
  });
}

// What the reason of a false condition means, and a link to the section of the documentation that helps.
function explained(type, reason) {
  const { text, address } = meaning(type, reason);
  const made = element("p");
  made.append(text ? `${text} ` : "", help(address));
  return made;
}

function help(address) {
  return link("What to do", address);
}

// The short form of the notes, for other views.
function brief(wrong) {
  const made = element("p", undefined, "note bad");
  made.append(link(`${wrong} ${wrong === 1 ? "problem needs" : "problems need"} attention`, "#/"));
  return made;
}

function showStatus() {
  const { status, shared } = fleet;
  const applied = status?.applied?.commit ?? shared?.commit;
  $("commit").replaceChildren(...(applied ? ["published commit ", commit(applied), ...branch(status)] : ["no commit is published"]));
  $("at").replaceChildren(...(status?.at ? [source.live ? "live, " : "published, ", "as of ", instant(status.at)] : []));
  const known = status ? notes(status) : [note("plain", "No status", "the page shows published files; no instance has written a status")];
  const shown = [...lacking(), ...known];
  const wrong = shown.filter((each) => each.classList.contains("bad")).length;
  $("state").replaceChildren(...(asked().title === null ? shown : wrong ? [brief(wrong)] : []));
}

// A value that changes when boots may have changed. null: there is no status, so the page reads the fleet each time.
function version(status) {
  if (!status?.at) return null;
  const { applied, attempted, changes, installing, installs, nextTransition, phases, records } = status;
  return JSON.stringify([applied, attempted?.withheld, changes, installing, installs, nextTransition, phases, records]);
}

async function readFleet() {
  if (fleet.version !== null && fleet.version === version(fleet.status)) return;
  const was = fleet.all.length;
  fleet.shared = await readShared();
  fleet.all = await readServers(fleet.shared, (read) => { if (was === 0) $("count").textContent = `${read} servers read`; });
  fleet.version = version(fleet.status);
  fleet.missing = readServers.missing;
  FIELDS.forEach(offer);
  sort();
  choose();
}

// One server

// What the server boots and why, in a sentence or two.
function lead(server) {
  const made = element("p", undefined, "lead");
  const image = imageOf(server);
  const boots = image ? `boots ${image} from the network` : server.phase ? `boots its own disk${server.cause === WITHHELD ? " for now" : ""}` : "has no plan";
  made.append(phase(server), " It ", element("strong", boots), server.cause ? `: ${server.cause}.` : ".");
  const [then] = server.later ?? [];
  if (then) made.append(` Next, ${away(then.from)}: ${then.image ?? "its own disk"}${then.by ? ` by ${then.by}` : ""}; ${then.cause ? future(then.cause) : "it will have no plan"}.`);
  return made;
}

// Why the server waits, and what to do: the cause of its plan, a commit that withholds its boot, and its rollout.
function waits(server) {
  const found = [];
  const [text, section] = WAITS[server.cause] ?? [];
  const withheldBoot = fleet.status?.attempted?.withheld?.find((each) => each.server === server.name);
  if (text) {
    const made = note("waits", "Waits:", text);
    if (withheldBoot) made.append(element("p", `Not offered by commit ${withheldBoot.by.map((each) => each.slice(0, 12)).join(", ")}${withheldBoot.why === server.cause ? "" : `: ${withheldBoot.why}`}.`));
    if (section) made.append(" ", help(`help.html#${section}`));
    found.push(made);
  }
  const row = fleet.all.find((each) => each.name === server.name);
  const stream = fleet.shared?.streams?.find((each) => each.name === row?.stream);
  if (row?.joins && stream?.rollout && row.joins > stream.percent) {
    found.push(note("waits", "Waits:", `the rollout of ${stream.rollout} is at ${stream.percent} %, and the server joins at ${row.joins} %.`));
  }
  return found;
}

function facts(server) {
  const labels = Object.entries(server.labels).map(([key, value]) => `${key}=${value}`).join("  ");
  return [
    ["Boots", imageOf(server) ?? (server.phase ? "its own disk" : null)], ["Installed", installed(server.provisioned)],
    ["Installation", installation(server)], ["Next change", nextChange(server)],
    ["Profile", server.profile], ["Policy", server.policy], ["Maintenance", server.maintenance], ["Waits for", server.waitingMaintenance], ["Method", server.method],
    ["Site", server.site], ["Labels", labels],
    ["UUID", mono(server.uuid)], ["MAC", mono(server.macs.join(" "))], ["Kernel arguments", mono(server.kernelArguments.join(" "))],
    ["Drift", Object.values(server.drift ?? {}).join("; ")], ["Digest of the plan", mono(server.digest)],
  ];
}

// The image that the record names, its version, and since when it is installed.
function installed(known) {
  if (!known) return "not known, because there is no verified record";
  if (!known.image && known.version) return `the version ${known.version}, by another tool`;
  if (!known.image) return known.provision === null ? "nothing yet" : "an image that the record does not name";
  const made = element("span");
  made.append(imageOf({ image: known.image, version: fleet.shared?.images?.[known.image] }));
  if (known.provisionedAt) made.append(" since ", instant(known.provisionedAt));
  if (known.overwrittenBy) made.append(`; then the maintenance ${known.overwrittenBy} wrote the disks`);
  return made;
}

function installation({ installing, step, cause, phase: now }) {
  if (!installing && step === "Pending" && now !== "Network") return cause === WITHHELD ? STATES.Withheld : STATES.Waiting;
  if (!installing) return STATES[step] ?? step;
  const { state, since, step: last, at, maintenance } = installing;
  const begun = `Installing since ${inUtc(since)}${maintenance ? ` by the maintenance ${maintenance}` : ""}`;
  const served = state === "Served" ? "; completion is not reported" : "";
  return `${begun}${served}; last step: ${STEPS[last]} at ${inUtc(at)}`;
}

// Only a change of what the server boots, and not a transition to the same boot.
function nextChange(server) {
  if (!server.later) return element("span", "not published", "quiet");
  const [then] = server.later;
  if (!then) return "none without another commit";
  const made = element("span");
  made.append(instant(then.from), `: ${then.image ?? "its own disk"}`);
  return made;
}

function mono(text) {
  return text ? element("span", text, "mono") : null;
}

function described(pairs) {
  const list = element("dl");
  for (const [key, value] of pairs) {
    if (!value) continue;
    const said = element("dd");
    said.append(value);
    const name = element("dt");
    name.append(termed(key));
    list.append(name, said);
  }
  return list;
}

function why(server) {
  const { lines } = server;
  const revision = fleet.shared.commit;
  const groups = [...new Set(lines.map((each) => each[4]))].sort((one) => (one === (server.maintenance ?? null) ? -1 : 1));
  const tables = groups.map((under) => {
    const caption = under ? `Under the maintenance ${under}` : "Under its policy";
    const rows = lines.filter((each) => each[4] === under)
      .map(([field, value, rule, reason, , resource, path, number]) =>
        [label(field), element("span", value, "mono"), resource ? line(revision, path, number) : element("span", "added by a rule", "quiet"), resource, rule === "-" ? reason : `${reason} (${rule})`]);
    return table(caption, ["Field", "Value", "Source", "Document", "Reason"], rows);
  });
  const as = element("p", "Line numbers of commit ", "quiet");
  as.append(commit(revision), ".");
  return part("Why", as, ...tables);
}

const MOST_CHANGES = 20; // rows of a server's history

// The last commits that changed a file of the server: its document, each document that sets one of its fields, its image,
// and the template of its user data.
async function commits(server) {
  const [past, shared] = await Promise.all([load("history"), load("location/shared")]);
  const own = server.lines.find((each) => each[5] === `Server/${server.name}`)?.[6];
  const files = new Set(server.lines.map((each) => each[6]).filter(Boolean));
  const image = shared?.[`BootImage/${server.image}`]?.file;
  if (image) files.add(image);
  for (const [field, value] of server.lines) if (field === "userData") files.add(value);
  const content = [];
  if (past) {
    const touched = new Map(); // number of the commit -> files of the server
    for (const file of files) for (const number of past.files[file] ?? []) touched.set(number, [...(touched.get(number) ?? []), file]);
    past.commits.forEach((each, number) => { if (!each.listed) touched.set(number, [`one of ${each.files.toLocaleString("en")} files, perhaps of this server`]); });
    const rows = [...touched].sort(([a], [b]) => a - b).slice(0, MOST_CHANGES).map(([number, names]) => {
      const each = past.commits[number];
      return [instant(each.at), each.author, each.subject, commit(each.commit), some(names.sort())];
    });
    content.push(rows.length ? table("The last commits that changed a document of this server", ["Date", "Author", "Subject", "Commit", "Files"], rows)
      : element("p", `None of the last ${past.commits.length} commits changed a document of this server.`));
  }
  const address = own ? forge("history", { commit: fleet.shared.commit, path: own }) : null;
  if (address) {
    const document = element("p");
    document.append("All commits that changed the document of this server: ", link(own, address));
    content.push(document);
  }
  return part("History", ...content, element("p", "To list all commits that changed what this server boots:", "quiet"), typed(`gitboot history ${server.name}`));
}

// The facts of a record that the page shows, and their names.
const RECORDED = {
  provision: "Provision number", version: "Version by another tool", pool: "Pool", evidence: "Evidence", provisionedAt: "Provisioned",
  consumedAt: "Override consumed", overwrittenBy: "Disks written by",
};

function record(known) {
  const pairs = Object.entries(RECORDED).filter(([key]) => known[key] !== null && known[key] !== undefined)
    .map(([key, words]) => [words, key.endsWith("At") ? instant(known[key]) : key === "evidence" ? EVIDENCE[known[key]] ?? known[key] : String(known[key])]);
  const unclear = (known.unknownServes ?? []).filter((each) => !each.isWithheld).length;
  if (unclear) pairs.push(["Outcome not known", `${unclear} ${unclear === 1 ? "boot" : "boots"}, perhaps served`]);
  const attempts = (known.attempts ?? []).map((each) => {
    const { at } = each.boots.at(-1);
    const hasEnded = !each.failed && known.provisionedAt && known.provisionedAt >= at;
    const failure = each.failed && `${inUtc(each.failed.at)} ${each.failed.log.trim().split("\n").at(-1).slice(-200)}`;
    return [String(each.number), hasEnded ? "Provisioned" : ATTEMPT_STEPS[each.step], instant(each.boots[0].at), instant(each.started?.at), failure];
  });
  const runs = Object.entries(known.runs ?? {}).map(([name, each]) => [name, String(each.run), instant(each.given?.at ?? each.at), instant(each.started?.at)]);
  const content = pairs.length ? [described(pairs)] : attempts.length ? [] : [element("p", "No evidence of an installation.")];
  if (attempts.length) content.push(table("Attempts", ["Attempt", "Step", "Boot fetched", "Installer started", "Failed"], attempts));
  if (runs.length) content.push(table("One-time boots of maintenances", ["Maintenance", "Run", "Boot served", "System started"], runs));
  return part("Record", ...content);
}

function bmc(server) {
  const says = fleet.status?.conditions?.find((each) => each.type === `Bmc/${server.name}`);
  const wanted = server.override && overrideOf(server.override);
  return part("BMC", described([
    ["Address", server.bmc?.address], ["System", server.bmc?.system], ["Override to set", wanted ?? "none"],
    ["Condition", says && `${says.reason}: ${says.message}`], ["Help", says && !says.status && explained(says.type, says.reason)],
    ["Remedy", says && !says.status && says.remedy],
  ]));
}

function later(server) {
  const rows = server.later.map((each) => [instant(each.from), each.phase ?? "no plan", each.image ?? "local disk", each.by, each.cause]);
  return part("Next", rows.length ? table("Changes without another commit", ["From", "Phase", "Boots", "By", "Reason"], rows)
    : element("p", "Only another commit can change what this server boots."));
}

async function showServer(asked) {
  const server = await readServer(asked);
  const more = element("details");
  const said = element("pre", JSON.stringify(server.document, null, 2));
  said.tabIndex = 0;
  more.append(element("summary", "Decision and plan as JSON"), said);
  const columns = element("div", undefined, "columns");
  const beside = element("div");
  beside.append(...(server.later ? [later(server)] : []), ...(server.bmc || server.override ? [bmc(server)] : []),
    ...(server.provisioned ? [record(server.provisioned)] : []));
  columns.append(part("Now", described(facts(server))), beside);
  const published = server.lines && fleet.shared ? [why(server), await commits(server)] : [];
  return [lead(server), ...waits(server), columns, ...published, more];
}

// Views that need published data

function unpublished() {
  return [note("plain", "Not published", "this view needs the output pages; add it to the Fleet: outputs: [ipxe, grub, pages]")];
}

function count(name) {
  const found = new Map();
  for (const server of fleet.all) {
    for (const each of [server[name]].flat()) if (each) found.set(each, (found.get(each) ?? 0) + 1);
  }
  return found;
}

function joining(stream) {
  const found = new Map();
  for (const { name, stream: own, joins } of fleet.all) {
    if (own === stream.name && joins) found.set(joins, [...(found.get(joins) ?? []), name]);
  }
  return [...found].sort(([a], [b]) => a - b);
}

const MOST_STEPS = 8; // rows for the percentages at which servers join, as in gitboot.cli.commands.images

// The percentages at which servers join, each with these servers. One row has all that come later.
function steps(waits) {
  const rows = waits.slice(0, MOST_STEPS).map(([percent, names]) => [`${percent} %`, names]);
  const later = waits.slice(MOST_STEPS);
  if (later.length) rows.push([`${later[0][0]}${later.length > 1 ? `–${later.at(-1)[0]}` : ""} %`, later.flatMap(([, names]) => names)]);
  return rows;
}

function next(stream) {
  const [first] = joining(stream);
  return first ? `at ${first[0]} %: ${some(first[1])}` : "no server waits";
}

async function showImages() {
  const { shared } = fleet;
  if (shared === null) return unpublished();
  const [decided, provisioned, kept] = ["decided", "provisioned", "kept"].map(count);
  const streams = (image) => shared.streams.filter((each) => (each.images ?? [each.current, each.rollout]).includes(image)).map((each) => each.name).join(", ");
  const images = Object.entries(shared.images).map(([image, version]) =>
    [image, version, String(decided.get(image) ?? 0), String(provisioned.get(image) ?? 0), streams(image) || null,
      shared.provenance?.[image]?.join(", ")]);
  const behind = [...shared.optOuts].sort((a, b) => ((a.until ?? "9") < (b.until ?? "9") ? -1 : 1)).map((each) => {
    const overdue = each.until && Date.parse(each.until) <= Date.now();
    const until = element("span");
    until.append(overdue ? element("span", "overdue ", "word bad") : "", instant(each.until));
    return [each.what, each.image, until, String(kept.get(each.id) ?? 0), each.reason];
  });
  return [
    part("Images", table("Servers by image", ["Image", "Version", "Planned", "Installed", "Streams", "Claimed provenance"], images)),
    part("Streams", shared.streams.length ? table("Images of each stream", ["Stream", "Current", "Rollout", "Percent", "Next", "Follows", "Required provenance", "Source"],
      shared.streams.map((each) => [each.name, each.current, each.rollout, each.rollout && `${each.percent} %`, each.rollout && next(each), each.follows, each.requires, line(shared.commit, each.path, each.line)]))
      : element("p", "There are no streams.")),
    part("Pins and holds", behind.length ? table("Servers that keep an image", ["Pin or hold", "Image", "Deadline", "Servers", "Reason"], behind)
      : element("p", "There are no pins or holds.")),
  ];
}

async function showTimeline() {
  const { shared } = fleet;
  if (shared === null) return unpublished();
  const servers = count("windows");
  const rows = [...shared.maintenances].sort((a, b) => ((a.start ?? "") < (b.start ?? "") ? -1 : 1));
  const rollouts = shared.streams.filter((each) => each.rollout).flatMap((each) => {
    const waits = joining(each);
    const upcoming = steps(waits).map(([percent, names]) => [percent, String(names.length), some(names)]);
    return [
      element("h4", `${each.name}: ${each.rollout} at ${each.percent} %`),
      ladder(`${each.name} is at ${each.percent} percent; ${next(each)}`, each.percent, waits),
      upcoming.length ? table(`Next servers of ${each.name}`, ["Percent", "Added", "Servers"], upcoming) : element("p", "No server waits for this rollout."),
    ];
  });
  return [
    part("Windows", ...(rows.length ? [windows("Maintenance windows on a time axis; the table below has the same data", rows),
      table("Maintenance windows", ["Maintenance", "From", "Until", "Servers", "Profile", "Priority", "Source"], rows.map((each) =>
        [each.name, each.start ? instant(each.start) : "always", each.end ? instant(each.end) : "no end", String(servers.get(each.name) ?? 0), each.profile, String(each.priority), line(shared.commit, each.path, each.line)]))]
      : [element("p", "There are no maintenances.")])),
    part("Rollouts", ...(rollouts.length ? rollouts : [element("p", "There are no rollouts.")])),
  ];
}

const KINDS = [["reinstalled", "reinstalled"], ["changed", "changed in other ways"], ["less", "harmless"], ["added", "added"], ["removed", "removed or retired"]];

function key(kind, words) {
  const made = element("span");
  made.append(element("span", "■ ", `key ${kind}`), words);
  return made;
}

async function showChanges() {
  const { status } = fleet;
  if (!status) return [note("plain", "No status", "no instance has written a status")];
  const areas = status.accepted?.changed ?? [];
  const commits = [...new Set(areas.map((each) => each.commit))];
  const legend = element("p", undefined, "legend");
  for (const [kind, words] of KINDS) legend.append(key(kind, words));
  const past = new Map(((await load("history"))?.commits ?? []).map((each) => [each.commit, each]));
  const known = status.accepted?.lately ?? [];
  const lately = known.map((each) =>
    [instant(each.at), commit(each.commit), past.get(each.commit)?.author ?? null, each.subject || past.get(each.commit)?.subject || null, approvals(each).join("; ") || null, sizes(each)]);
  return [
    part("Held", ...(status.attempted?.held ? [held(status.attempted)] : [element("p", "No commit is held.")]),
      ...(status.attempted?.withheld?.length ? [withheld(status.attempted.withheld)] : [])),
    part("Accepted last", ...(commits.length ? [legend] : [element("p", "The instance has accepted no commit since it started.")]),
      ...commits.flatMap((each) => extent(known.find(({ commit: other }) => other === each) ?? { commit: each }, areas.filter((area) => area.commit === each)))),
    ...(lately.length ? [part("History", table("Accepted commits, newest first, and the number of servers that each commit changed",
      ["When", "Commit", "Author", "Subject", "Approved by", "Servers"], lately))] : []),
  ];
}

// Who approved a commit that guards held, how and why.
function approvals({ acknowledged }) {
  const guards = new Map();
  for (const { by, guard } of acknowledged ?? []) guards.set(by, [...(guards.get(by) ?? []), guard]);
  return [...guards].map(([by, all]) => `${by} (${all.join(", ")})`);
}

function sizes(area) {
  const known = KINDS.map(([kind, words]) => [sizeOf(area, kind), words]).filter(([size]) => size > 0);
  return known.map(([size, words]) => `${size.toLocaleString("en")} ${words}`).join(", ") || "none";
}

function sizeOf(area, kind) {
  return kind === "changed" ? Math.max(0, area.changed - area.reinstalled) : area[kind];
}

function extent(accepted, areas) {
  const rows = areas.map((area) => [area.label || "whole fleet", KINDS.map(([kind]) => [kind, sizeOf(area, kind)])]);
  const touched = (sizes) => sizes.reduce((sum, [, size]) => sum + size, 0);
  const title = element("h4", "Commit ");
  title.append(commit(accepted.commit), accepted.subject ? `: ${accepted.subject}` : "");
  return [
    title,
    ...approvals(accepted).map((each) => element("p", `Approved by ${each}`)),
    bars("Servers that the commit changed, by group and kind; the table below has the same data",
      rows.map(([label, parts], place) => [label, parts, areas[place].size, areas[place].size ? `${touched(parts)} of ${areas[place].size}` : `${touched(parts)}`])),
    table("Changed servers by group", ["Group", "Servers before", ...KINDS.map(([, words]) => words)],
      rows.map(([label, parts], place) => [label, String(areas[place].size), ...parts.map(([, size]) => String(size))])),
  ];
}

async function showUnknown() {
  const found = await readSeen();
  if (!found.length) return [element("p", "No unknown machine has requested a boot.")];
  return [table("Machines that no document describes", ["MAC", "UUID", "Address", "Last request", "Requests", "Hardware"], found.map((each) =>
    [each.macs.join(" ") || null, each.uuid, each.client, instant(each.last), String(each.times), inventoryOf(each.inventory)]))];
}

// The inventory of a machine in one line, in the same format as gitboot/fetchlog/unknown_machines.py
function inventoryOf(found) {
  if (!found) return null;
  const size = (bytes) => !bytes ? "" : bytes < 1e12 ? ` ${Math.round(bytes / 1e9)} GB` : ` ${(bytes / 1e12).toPrecision(3)} TB`;
  const kind = [found.manufacturer, found.product].filter(Boolean).join(" ");
  const how = [found.architecture, found.firmware].filter(Boolean).join(" ");
  const disks = (found.disks ?? []).map((each) => each.name + size(each.bytes));
  return [kind, how, found.cpus && `${found.cpus} CPUs`, found.memoryMiB && `${Math.round(found.memoryMiB / 1024)} GiB`, ...disks].filter(Boolean).join(", ");
}

// The address names the view

const VIEWS = { images: ["Images and streams", showImages], timeline: ["Windows and rollouts", showTimeline], changes: ["Changes", showChanges], unknown: ["Unknown machines", showUnknown] };

function asked() {
  const [, view, rest] = /^#\/([a-z]*)(?:\/(.+))?$/.exec(location.hash) ?? [];
  try {
    if (view === "servers" && rest) return { title: decodeURIComponent(rest), show: () => showServer(decodeURIComponent(rest)) };
  } catch {
    return { title: null };
  }
  return view in VIEWS ? { title: VIEWS[view][0], show: VIEWS[view][1] } : { title: null };
}

async function show() {
  const wanted = location.hash;
  const { title, show: made } = asked();
  $("servers").hidden = title !== null;
  $("view").hidden = title === null;
  document.title = title === null ? "gitboot" : `${title} – gitboot`;
  for (const each of document.querySelectorAll("nav a")) {
    const isHere = each.getAttribute("href").startsWith("#"); // the help is another page
    each.toggleAttribute("aria-current", isHere && (each.hash === wanted || (each.hash === "#/" && title === null)));
    if (each.hasAttribute("aria-current")) each.setAttribute("aria-current", "page");
  }
  showStatus();
  if (title === null) {
    recall();
    showAhead();
    return choose();
  }
  const heading = element("h2", title);
  heading.tabIndex = -1;
  const content = await made().catch((error) => [note("bad", "No data", error.message)]);
  if (location.hash === wanted) fill($("view"), heading, content); // the user may have chosen another view in the meantime
}

// Show a view. If it is already shown, replace only what changed, and keep the focus on its heading.
function fill(view, heading, content) {
  const shown = view.querySelector("h2");
  if (shown?.textContent !== heading.textContent) return view.replaceChildren(heading, ...content);
  const details = content.find((each) => each.matches("details"));
  if (details && view.querySelector("details")?.open) details.open = true;
  const before = [...view.children].slice(1);
  content.forEach((each, place) => {
    if (before[place] === undefined) view.append(each);
    else if (!before[place].isEqualNode(each)) before[place].replaceWith(each);
  });
  for (const each of before.slice(content.length)) each.remove();
}

async function refresh() {
  try {
    fleet.status = await readStatus();
    if (document.documentElement.dataset.read === undefined) showStatus();
    await readFleet();
    await show();
    document.documentElement.dataset.read = ""; // a sign for scripts that the page is complete
  } catch (error) {
    $("state").replaceChildren(note("bad", "Not updated", `${error.message}; all data below may be old`));
  }
}

async function go() {
  await show();
  ($("view").hidden ? $("servers-title") : $("view").querySelector("h2"))?.focus();
}

// Whether the focus or a selection is in the view. A refresh would remove both.
function isUsed(view) {
  const focused = document.activeElement;
  const selection = getSelection();
  return (view.contains(focused) && focused.tagName !== "H2") || (!selection.isCollapsed && view.contains(selection.anchorNode));
}

function watchLater() {
  setTimeout(watch, Math.min(REFRESH_LARGE_MS, Math.max(REFRESH_MS, fleet.all.length)));
}

async function watch() {
  if (!document.hidden && source.live && !isUsed($("view"))) await refresh();
  watchLater();
}

for (const id of ["search", ...FIELDS]) $(id).addEventListener("input", askAnew);
$("none").querySelector("button").addEventListener("click", () => { location.hash = "#/"; });
addEventListener("keydown", (event) => {
  if (event.key !== "/" || $("servers").hidden || event.target.matches("input, select")) return;
  event.preventDefault();
  $("search").focus();
});
$("filters").addEventListener("submit", (event) => event.preventDefault());
$("window").addEventListener("scroll", drawRows, { passive: true });
addEventListener("resize", () => {
  drawRows();
  if ($("view").querySelector("svg")) show(); // a picture is as wide as its view
});
addEventListener("hashchange", go);
document.querySelector(".skip").addEventListener("click", (event) => { event.preventDefault(); $("main").focus(); });
addEventListener("beforeprint", () => { fleet.printing = true; drawRows(); });
addEventListener("afterprint", () => { fleet.printing = false; drawRows(); });
refresh().then(watchLater);
