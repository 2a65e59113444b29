// The words of the page: labels of fields, steps and overrides, and the reasons why a server waits.
"use strict";

// Labels of fields whose name is not a label with spaces between its words.
const LABELS = {
  baseURL: "base URL", uuid: "UUID", macs: "MAC addresses", uki: "UKI", httpBoot: "HTTP boot", kernelArguments: "kernel argument",
};

// The label of a field such as networkBoot, window.start or kernelArguments[0].
function label(field) {
  const words = field.replace(/[A-Za-z]+/g, (name) => LABELS[name] ?? name.replace(/[A-Z]/g, (letter) => ` ${letter.toLowerCase()}`))
    .replace(/\[([0-9]+)\]/g, (_, place) => ` ${Number(place) + 1}`).replaceAll(".", " ");
  return words.charAt(0).toUpperCase() + words.slice(1);
}

// The steps of an installation, and the steps of one attempt. Records keep the value Attempted of 0.1.0.
const STEPS = { Attempted: "boot served", Started: "installer started", Failed: "installer failed" };
const ATTEMPT_STEPS = { Attempted: "Served", Started: "Started", Failed: "Failed", Provisioned: "Provisioned" };
const STATES = {
  Unknown: "Not known: the server has no verified record", Pending: "Pending: the server will be installed at its next boot", Provisioned: "Provisioned",
  Withheld: "Pending: waits until the newer commit is accepted", Waiting: "Pending: not at its next boot",
  Attempted: "The boot was served", Started: "The installer has started", Failed: "The installer has failed",
};
const EVIDENCE = {
  Adopted: "adopted: gitboot assumes that the server is installed", Consumed: "its boot override was consumed", Declared: "a commit declares it as provisioned",
  Fetched: "its boot was fetched", Operator: "an operator confirmed it", Progress: "its BMC showed the progress of the boot", Reported: "the installer reported the end",
};

// The override of a plan in words. Its reason is a key such as provision/0/flatcar-1/after/2026-11-18T13:20:00Z.
function overrideOf({ enabled, target, reason }) {
  const often = { Once: "once", Continuous: "at every boot" }[enabled] ?? enabled;
  const [kind, name, more] = reason.split("/");
  const what = {
    provision: `installation ${name}${more && !["after", "attempt", "boot"].includes(more) ? ` with ${more}` : ""}`,
    maintenance: `the maintenance ${name}, run ${more}`, policy: `the policy ${name}`, disk: "the local disk",
  }[kind];
  return `boot by ${target} ${often}${what ? `, for ${what}` : ""}`;
}

// Why a server will boot something else, in the future tense where a maintenance causes it.
function future(cause) {
  const words = { is: "will be", boots: "will boot", waits: "will wait" };
  return cause.replace(/^the maintenance (is|boots|waits)\b/, (_, verb) => `the maintenance ${words[verb]}`);
}

const WITHHELD = "a newer commit, which is not accepted yet, does not offer this install boot";

// What a server waits for, by the cause of its plan (gitboot.resolve.server_plan), and the section of the help.
const WAITS = {
  "the server is to be provisioned": ["The server waits for its next boot, which installs it.", "reinstall-a-server"],
  "the one-time boot of the maintenance was used": ["The maintenance has booted the server once. Raise run to boot the server again."],
  "the one-time boot of the maintenance was served, and no start was reported": ["gitboot waits for evidence that the system of the maintenance started.", "MaintenanceRunsStarted-Overdue"],
  "the one-time boot of the maintenance may have been served, and its outcome is unknown": ["Look at the machine: an endpoint may have served the boot of the maintenance.", "MaintenanceRunsStarted-OutcomeUnknown"],
  "the maintenance waits for an approval": ["A maintenance is active, and nobody has approved it yet.", "MaintenancesCleared-WaitingForApproval"],
  "the maintenance waits until the server is drained": ["A maintenance is active, and the server must be drained first.", "MaintenancesCleared-WaitingForDrain"],
  "the server is provisioned, and a later installation has started without a reported end": ["A later installation has started. gitboot waits for its end, or for your word.", "InstallsCompleted-Overdue"],
  "the server is to be provisioned when its BMC shows that it is off": ["gitboot installs the server after its machine is off. Switch it off, or wait until its BMC shows it.", "switch-power"],
  "gitboot does not know if the server is provisioned, and does not install unknown servers": ["The record is unverified. Check what is installed, then confirm it with gitboot records set.", "RecordsVerified-UnverifiedServers"],
  "a maintenance wrote the disks after the server was provisioned, and gitboot does not install unknown servers": ["The content of the disks is not known. Check the machine, then confirm it with gitboot records set.", "RecordsVerified-UnverifiedServers"],
  "boots that write a disk are stopped": ["Install boots are stopped. Allow them to install the server.", "InstallsAllowed-Stopped"],
  "a file of the boot is missing": ["A file that the boot needs is not where the machine fetches it.", "ArtifactsPresent-Missing"],
  "a newer commit, which is not accepted yet, does not offer this install boot": ["gitboot withholds the install boot until the newer commit is accepted.", "CommitAccepted-GuardTripped"],
  "all boots from the network are stopped": ["All boots from the network are stopped. Allow them to boot the server from the network.", "InstallsAllowed-Stopped"],
  "the maintenance has no end, and the instance has not written its status for an hour": ["The server boots its disk until the instance writes its status again.", "StatusCurrent-Stale"],
  "the boot override was consumed without evidence of a boot, so check the machine": ["Look at the machine, then confirm what is installed with gitboot records set.", "InstallsCompleted-NeedsOperator"],
  "the boot may have been served, and its outcome is unknown, so check the machine": ["Look at the machine, then confirm what is installed with gitboot records set.", "InstallsCompleted-OutcomeUnknown"],
  "the boot was served, no start was reported, and gitboot does not serve the boot again by itself": ["gitboot waits for evidence that the installer started. Look at the machine if there is none.", "InstallsCompleted-Overdue"],
  "the installation has started, and no end was reported": ["gitboot waits for evidence that the installation is complete.", "InstallsCompleted-Overdue"],
  "the installation has failed": ["Look at the machine, then confirm what is installed with gitboot records set.", "InstallsCompleted-Failed"],
};

// The terms that headings show, by heading: the anchor of each in the help.
const TERMS = {
  "Accepted last": "held-rejected-accepted", Attempts: "installation-steps", "Claimed provenance": "provenance", "Digest of the plan": "digest",
  Document: "document", Drift: "drift", Evidence: "evidence", harmless: "harmless-change", Held: "held-rejected-accepted", Image: "bootimage",
  Installation: "installation-steps", Installs: "install-boot", Maintenance: "maintenance", "Next change": "transition", "One-time boots of maintenances": "one-time-boot",
  "Override consumed": "override", "Override to set": "override", Phase: "phase", "Pin or hold": "pin", "Pins and holds": "hold",
  Policy: "bootpolicy", Pool: "pool", Profile: "bootprofile", "Provision number": "provision", Record: "record", "Required provenance": "provenance",
  Rollout: "rollout", Rollouts: "rollout", Run: "run", Site: "site", Step: "installation-steps", Stream: "imagestream", Streams: "imagestream",
  Windows: "window",
};

// The text of a heading: a link to the help if it is a term.
function termed(text) {
  if (!Object.hasOwn(TERMS, text)) return text;
  const made = link(text, `help.html#terms-${TERMS[text]}`);
  made.className = "term";
  return made;
}

// The sentence for a false condition, and the address of its section of the help.
function meaning(type, reason) {
  const kind = type.split("/")[0];
  const known = Object.hasOwn(MEANINGS, kind) ? MEANINGS[kind] : {};
  const found = Object.hasOwn(known, reason) ? reason : "any";
  return { text: known[found], address: known[found] ? `help.html#${kind}-${found}` : "help.html#conditions" };
}
