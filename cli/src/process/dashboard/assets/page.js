// The job's page: takes the driver's news and shows them. Text of workers, hosts and scripts gets onto the page as text,
// never as markup.
"use strict";

const EVENTS_SHOWN_MAX = 300;
const EVENTS_KEPT_MAX = 2000;
const OUTPUT_SHOWN_MAX = 200000;
const PHASES = [["detect", "detecting"], ["form", "forming"], ["sync", "syncing"]];
const WORDS = { driver_away: "driver away" };

const $ = (id) => document.getElementById(id);
const word = (bucket) => WORDS[bucket] || bucket;
const number = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });
// Workers by host and slot; which incarnation it was stands in the events.
const named = (text) => text.replace(/(\S)\[(\d+)\]#\d+/g, "$1:$2");
const percent = (share) => (share == null ? "–" : `${(share * 100).toFixed(1)} %`);

function element(tag, { text, ...properties } = {}, ...children) {
  const made = document.createElement(tag);
  Object.assign(made, properties);
  if (text !== undefined) made.textContent = text;
  made.append(...children);
  return made;
}

const duration = (ms) => {
  if (ms == null) return "…";
  if (ms < 1000) return `${number.format(ms)} ms`;
  return ms < 120000 ? `${number.format(ms / 1000)} s` : `${number.format(ms / 60000)} min`;
};

let buckets = [];
let events = [];
let points = [];
let goodput = null;
let reported = { t: [], series: {} };
let fleet = [];
let last = null;
let samples = [];
const world = new Charts.World();
const slots = new Charts.Goodput();
const reportedCharts = new Map();
const heatMap = new HeatMap($("paces"), $("paces-readout"), $("paces-table"));

// ---- the state of the job ----

function showStatus(status) {
  last = status;
  samples = samples.filter((sample) => sample.now > status.now - 10000 && sample.step <= status.step);
  samples.push({ now: status.now, step: status.step });
  const phase = $("phase");
  phase.textContent = status.phase;
  phase.className = `pill ${status.phase}`;
  $("job").textContent = `job ${status.job.slice(0, 8)} · generation ${status.generation}`;
  document.title = `${status.phase} · ${status.world_size} workers · Elastic Node`;
  showTiles(status);
  showNotices(status);
  showFacts(status);
  drawWorld();
}

function stepRate() {
  const [first, end] = [samples[0], samples[samples.length - 1]];
  const seconds = (end.now - first.now) / 1000;
  return seconds >= 1 ? (end.step - first.step) / seconds : null;
}

function showTiles(status) {
  const rate = stepRate();
  const bounds = status.max_np ? `${status.min_np} to ${status.max_np}` : `at least ${status.min_np}`;
  const hosts = status.hosts === 1 ? "1 host" : `${status.hosts} hosts`;
  const tiles = [
    ["World size", status.world_size, `${bounds}, ${hosts}`],
    ["Goodput", percent(status.goodput), `${percent(status.goodput_10_min)} in 10 min`],
    ["Step", number.format(status.step), rate == null ? "" : `${number.format(rate)} steps/s`],
    ["Resets", status.resets, `${number.format(status.steps_lost)} steps lost`],
    ["Generation", status.generation, status.note],
  ];
  $("tiles").replaceChildren(...tiles.map(([name, value, more]) =>
    element("div", {}, element("dt", { text: name }), element("dd", { text: value }, element("small", { text: more })))));
}

function showNotices(status) {
  const notices = [];
  const add = (kind, title, text) =>
    notices.push(element("p", { className: `notice ${kind}` }, element("b", { text: title }), text));
  if (status.result) {
    const kind = status.phase === "succeeded" ? "good" : "bad";
    add(kind, `The job has ${status.phase}.`, named(status.result.reason));
  }
  if (status.waiting_for) add("", "Waiting:", named(status.waiting_for));
  for (const warning of status.warnings) add("bad", "Warning:", named(warning));
  const box = $("notices");
  const text = notices.map((notice) => notice.textContent).join("\n");
  if (box.dataset.text !== text) {
    box.dataset.text = text;
    box.replaceChildren(...notices);
  }
}

function showFacts(status) {
  const checkpoint = status.checkpoint;
  const saved = checkpoint && checkpoint.last_step != null
    ? `step ${checkpoint.last_step}${checkpoint.at ? `, saved at ${checkpoint.at}` : ""}`
    : checkpoint ? "none yet" : "off (--checkpoint FOLDER turns them on)";
  const facts = [
    ["Last checkpoint", saved],
    ["Folder of checkpoints", checkpoint ? checkpoint.directory : "–"],
    ["Driver", `${status.driver.address}, version ${status.driver.version}`],
    ["Term", `${status.term}${status.standbys ? `, ${status.standbys} standing by` : ""}`],
    ["Job", status.job],
  ];
  $("facts").replaceChildren(...facts.map(([name, value]) =>
    element("div", {}, element("dt", { text: name }), element("dd", { text: value }))));
}

// ---- the fleet ----

const bucketOf = (letter) => buckets[letter.charCodeAt(0) - 97] || "vacant";

function showFleet(hosts) {
  fleet = hosts;
  const counts = new Map();
  for (const host of hosts) {
    for (const letter of host.slots) counts.set(bucketOf(letter), (counts.get(bucketOf(letter)) || 0) + 1);
  }
  const total = [...counts.values()].reduce((sum, count) => sum + count, 0);
  $("fleet-sum").textContent = `${hosts.length} ${hosts.length === 1 ? "host" : "hosts"}, ${total} ${total === 1 ? "slot" : "slots"}`;
  $("legend").replaceChildren(...buckets.filter((bucket) => counts.has(bucket)).map((bucket) =>
    element("li", {}, element("span", { className: `swatch b-${bucket}` }), `${word(bucket)} ${counts.get(bucket)}`)));
  const box = $("fleet");
  box.classList.toggle("many", total > 256);
  const known = new Map([...box.children].map((child) => [child.dataset.name, child]));
  const shown = hosts.map((host) => {
    const made = known.get(host.name) || hostButton(host.name);
    const state = `${host.state}${host.until ? ` until ${host.until}` : ""}`;
    if (made.dataset.shown !== `${state} ${host.slots}`) {
      made.dataset.shown = `${state} ${host.slots}`;
      made.className = `host ${host.state}`;
      const squares = [...host.slots].map((letter, slot) =>
        element("span", { className: `slot b-${bucketOf(letter)}`, title: `slot ${slot}: ${word(bucketOf(letter))}` }));
      const name = element("span", { className: "name" }, element("span", { text: host.name }), element("span", { text: state }));
      made.replaceChildren(name, element("span", { className: "slots" }, ...squares));
      made.ariaLabel = `host ${host.name}, ${state}: ${summary(host.slots)}`;
    }
    return made;
  });
  const isSame = shown.length === box.children.length && shown.every((child, index) => box.children[index] === child);
  if (!isSame) box.replaceChildren(...shown);
}

function summary(letters) {
  const counts = new Map();
  for (const letter of letters) counts.set(bucketOf(letter), (counts.get(bucketOf(letter)) || 0) + 1);
  return [...counts].map(([bucket, count]) => `${count} ${word(bucket)}`).join(", ") || "no slots";
}

function hostButton(name) {
  const made = element("button", { type: "button", onclick: () => openHost(name) });
  made.dataset.name = name;
  return made;
}

let openName = null;

function openHost(name) {
  openName = name;
  $("host-title").textContent = `Host ${name}`;
  $("host-workers").replaceChildren();
  $("output-rank").value = "";
  $("host").showModal();
  loadHost();
  showOutput();
}

async function loadHost() {
  const name = openName;
  if (name === null) return;
  const host = fleet.find((it) => it.name === name);
  $("host-state").textContent = host ? `${host.state}: ${summary(host.slots)}` : "not in the list any more";
  try {
    const answer = await fetch(`/workers?host=${encodeURIComponent(name)}`);
    const workers = answer.ok ? await answer.json() : [];
    if (openName !== name) return;
    $("host-workers").replaceChildren(...workers.map((worker) =>
      element("tr", {}, ...[worker.rank ?? "–", worker.slot, worker.state, worker.step, stepWords(worker), worker.pid ?? "–", reportedWords(worker.reported), worker.note]
        .map((value) => element("td", { text: value })))));
    offerOutput(workers.map((worker) => worker.rank).filter((rank) => rank !== null));
  } catch {
    // The connection's state says that the driver does not answer.
  }
}

// ---- the output of a worker ----

let output = null;

// The list of ranks is made anew only if it has changed: somebody may be choosing from it.
function offerOutput(ranks) {
  const list = $("output-rank");
  if (list.dataset.ranks === ranks.join()) return;
  list.dataset.ranks = ranks.join();
  const chosen = list.value;
  list.replaceChildren(element("option", { value: "", text: "nobody" }),
    ...ranks.map((rank) => element("option", { value: rank, text: `rank ${rank}` })));
  list.value = ranks.includes(Number(chosen)) && chosen !== "" ? chosen : "";
  if (list.value !== chosen) showOutput();
}

function showOutput() {
  const [rank, stream] = [$("output-rank").value, $("output-stream").value];
  output = rank === "" ? null : { rank, stream, worker: null, next: null, isAsked: false };
  $("output").textContent = "";
  $("output").hidden = !output;
  loadOutput();
}

// Loads the output that follows the shown part. For another worker with the same rank, and after too much at once, it
// loads the end.
async function loadOutput() {
  const shown = output;
  if (!shown || shown.isAsked || openName === null) return;
  shown.isAsked = true;
  try {
    const query = new URLSearchParams({ rank: shown.rank, stream: shown.stream });
    if (shown.worker) {
      query.set("worker", shown.worker);
      query.set("from", shown.next);
    }
    const answer = await fetch(`/output?${query}`);
    const said = answer.ok ? await answer.json() : { text: await answer.text() };
    if (output === shown) addOutput(shown, said);
  } catch {
    // The connection's state says that the driver does not answer.
  } finally {
    shown.isAsked = false;
  }
}

function addOutput(shown, { worker, from, next, text }) {
  const box = $("output");
  const isAtEnd = box.scrollTop + box.clientHeight >= box.scrollHeight - 8;
  const follows = worker !== undefined && worker === shown.worker && from === shown.next;
  // Colours and movements of a terminal's cursor mean nothing here.
  const plain = text.replace(/\x1b\[[0-9;?]*[A-Za-z]/g, "");
  if (!follows) box.textContent = plain;
  else if (plain) box.textContent = (box.textContent + plain).slice(-OUTPUT_SHOWN_MAX);
  [shown.worker, shown.next] = [worker ?? null, next ?? null];
  if (isAtEnd) box.scrollTop = box.scrollHeight;
}

$("output-rank").addEventListener("change", showOutput);
$("output-stream").addEventListener("change", showOutput);
$("output-choice").addEventListener("submit", (event) => event.preventDefault());

// ---- world size and goodput ----

function drawWorld() {
  const now = last ? last.now : Date.now();
  world.show(points, last && last.result ? Math.min(now, (points.at(-1) || { t: now }).t) : now);
}

function drawGoodput() {
  if (goodput && goodput.t.length > 1) slots.show(goodput, buckets);
}

$("world-keys").replaceChildren(...["abort", "interrupt", "restart"].map((way) =>
  element("span", { className: `key ${way}`, text: way })));

// ---- what the program reports ----

function drawReported() {
  const names = Object.keys(reported.series);
  $("reported-card").hidden = !names.length;
  for (const [name, { box }] of reportedCharts) {
    if (names.includes(name)) continue;
    box.remove();
    reportedCharts.delete(name);
  }
  for (const name of names) {
    if (!reportedCharts.has(name)) {
      const chart = element("div", { className: "chart", role: "img", ariaLabel: `${name} over time` });
      const readout = element("p", { className: "readout" });
      const box = element("div", {}, element("h3", { text: name }), chart, readout);
      $("reported").append(box);
      reportedCharts.set(name, { box, chart: new Charts.Reported(chart, readout) });
    }
    reportedCharts.get(name).chart.show(reported.t, reported.series[name]);
  }
}

function stepWords({ step_ms: step, waiting_ms: waiting }) {
  return step == null ? "–" : `${number.format(step)}, of it waiting ${number.format(waiting)}`;
}

function reportedWords(values) {
  return Object.entries(values).map(([name, value]) => `${name} ${Charts.digits(value)}`).join(", ");
}

// ---- resets ----

function showResets(resets) {
  const box = $("resets");
  const open = new Set([...box.querySelectorAll("details[open]")].map((it) => it.dataset.generation));
  if (!resets.length) {
    box.replaceChildren(element("p", { className: "empty", text: "No generation has ended yet." }));
    return;
  }
  const longest = Math.max(...resets.map((reset) => (reset.ms && reset.ms.total) || 0), 1);
  box.replaceChildren(...[...resets].reverse().map((reset) => {
    const made = resetEntry(reset, longest);
    made.open = open.has(made.dataset.generation);
    return made;
  }));
}

function resetEntry(reset, longest) {
  const ms = reset.ms;
  const title = reset.next_generation == null
    ? `generation ${reset.generation} → …` : `generation ${reset.generation} → ${reset.next_generation}`;
  const when = element("span", {}, element("span", { className: `pill ${reset.way}`, text: reset.way }), ` ${title} `,
    element("span", { className: "when", text: Charts.clock(Date.parse(reset.at) / 1000) }));
  const bar = element("span", { className: ms ? "bar" : "bar open" });
  if (ms) {
    const known = PHASES.map(([phase]) => ms[phase] || 0).reduce((sum, it) => sum + it, 0);
    const parts = [...PHASES.map(([phase, bucket]) => [phase, bucket, ms[phase]]),
      ["gather", "gathering", Math.max(0, (ms.total || 0) - known)]];
    // Short resets stay visible beside long ones.
    bar.style.width = `${Math.max(12, 100 * Math.sqrt((ms.total || 0) / longest))}%`;
    for (const [phase, bucket, length] of parts) {
      if (!length) continue;
      const part = element("i", { className: `b-${bucket}`, title: `${phase} ${duration(length)}` });
      part.style.flex = `${length} 1 0`;
      bar.append(part);
    }
  }
  const summaryLine = element("summary", {}, when,
    element("span", { className: "total", text: ms ? duration(ms.total) : "under way" }),
    element("span", { className: "cause", text: named(reset.cause) }), bar);
  const more = element("div", { className: "more" });
  if (ms) {
    more.append(element("p", { text: PHASES.map(([phase]) => `${phase} ${duration(ms[phase])}`).join(", ") }));
  }
  const cost = Object.entries(reset.cost).sort((a, b) => b[1] - a[1]);
  const sum = cost.reduce((all, [, seconds]) => all + seconds, 0);
  more.append(element("p", { text: `Cost: ${sum.toFixed(2)} slot-seconds${cost.length ? `: ${cost.map(([bucket, seconds]) => `${word(bucket)} ${seconds.toFixed(2)}`).join(", ")}` : ""}; ${reset.steps_lost} steps lost.` }));
  if (reset.advice) more.append(element("p", { text: named(`Advice: ${reset.advice}`) }));
  const made = element("details", { className: "reset" }, summaryLine, more);
  made.dataset.generation = reset.generation;
  return made;
}

$("phases").replaceChildren(...[...PHASES, ["gather", "gathering"]].map(([phase, bucket]) =>
  element("li", {}, element("span", { className: `swatch b-${bucket}` }), phase)));

// ---- events ----

function takeEvents(news) {
  const known = events.length ? events[events.length - 1].n : -1;
  events.push(...news.filter((event) => event.n > known));
  events = events.slice(-EVENTS_KEPT_MAX);
  showEvents();
}

function showEvents() {
  const topics = $("topic").value.split(" ").filter(Boolean);
  const words = $("search").value.toLowerCase().split(/\s+/).filter(Boolean);
  const isShown = (event) => {
    const isOfTopic = !topics.length || topics.some((topic) =>
      (topic === "warn" ? event.level === "warn" : event.kind.startsWith(topic)));
    const text = `${event.text} ${event.kind}`.toLowerCase();
    return isOfTopic && words.every((it) => text.includes(it));
  };
  const found = events.filter(isShown);
  const shown = found.slice(-EVENTS_SHOWN_MAX).reverse();
  $("events-sum").textContent = found.length > shown.length
    ? `the last ${shown.length} of ${found.length}` : `${found.length} of ${events.length}`;
  $("events").replaceChildren(...shown.map((event) => {
    const at = new Date(event.t);
    const time = element("time", { text: at.toLocaleTimeString("en-GB"), dateTime: at.toISOString(), title: at.toISOString() });
    return element("li", { className: event.level }, time, element("span", { text: event.text }));
  }));
}

$("topic").addEventListener("change", showEvents);
$("search").addEventListener("input", showEvents);
$("filters").addEventListener("submit", (event) => event.preventDefault());

// ---- theme, dialog, news ----

const THEMES = ["auto", "light", "dark"];

function setTheme(theme) {
  if (theme === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  $("theme").ariaLabel = `Colours: ${theme === "auto" ? "automatic" : theme}`;
  $("theme").querySelector("span").textContent = theme;
  redraw();
}

function redraw() {
  world.forget();
  slots.forget();
  for (const { chart } of reportedCharts.values()) chart.forget();
  drawWorld();
  drawGoodput();
  drawReported();
  heatMap.draw();
}

let theme = localStorage.getItem("theme");
if (!THEMES.includes(theme)) theme = "auto";
$("theme").addEventListener("click", () => {
  theme = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
  localStorage.setItem("theme", theme);
  setTheme(theme);
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
setTheme(theme);

$("host-close").addEventListener("click", () => $("host").close());
$("host").addEventListener("close", () => { openName = null; });
setInterval(loadHost, 1000);
setInterval(loadOutput, 1000);

function showLink(state, text) {
  $("link").className = `link ${state}`;
  $("link").textContent = text;
}

const TOPICS = {
  buckets: (content) => {
    // A page that connects again gets everything anew.
    buckets = content;
    events = [];
    samples = [];
  },
  world: (content) => {
    points = content;
    drawWorld();
  },
  goodput: (content) => {
    goodput = content;
    drawGoodput();
  },
  reported: (content) => {
    reported = content;
    drawReported();
  },
  paces: (content) => {
    $("paces-card").hidden = !content.rows.length;
    heatMap.show(content);
  },
  resets: showResets,
  fleet: showFleet,
  status: showStatus,
  events: takeEvents,
};

const news = new EventSource("/news");
news.addEventListener("open", () => showLink("live", "live"));
news.addEventListener("error", () => {
  const isOver = last && last.result;
  if (isOver) showLink("gone", "the driver has ended");
  else showLink("gone", news.readyState === EventSource.CLOSED ? "closed: load the page again" : "the driver does not answer");
});
for (const [topic, show] of Object.entries(TOPICS)) {
  news.addEventListener(topic, (event) => show(JSON.parse(event.data)));
}
