// The page itself: what it shows of its data, and what happens when something is moved.

// Groups of sources by their mean MC score: title and explanation.
const LEVELS = {
  high: [
    "High mean MC: easy for the policy",
    "Most rollouts are positive throughout, so a low BIS means little mixture, and the tail of high BIS is thin.",
  ],
  medium: ["Medium mean MC", "Most mixed rollouts with reliable positives, and so most for BIS to choose from."],
  low: ["Low mean MC: hard for the policy", "A low BIS means few and unreliable positive steps."],
  binary: [
    "Right or wrong, without Monte Carlo",
    "Labels such as people give: every positive step counts as reliable (R = 1), and the mean s̄ is the share of positive" +
      " steps. It does not say what is easy or hard for a policy.",
  ],
};
const STRATEGIES = {
  bis: "highest Balanced-Information Score",
  random: "at random",
  "low-mc": "lowest mean MC score",
  mixed: "mixed labels, filled up at random",
  reliable: "highest reliability R",
};
const TITLES = {
  bis: "Balanced-Information Score",
  R: "Reliability R(x)",
  mixture: "Mixture p(1 − p)",
  n_steps: "Steps in a rollout",
  first_error: "Index of the first negative step",
};
const TOO_MANY =
  "The scores of this corpus take so many values that the page would grow too large: the figures show one selection," +
  " and nothing can be moved.";
const TOO_LARGE =
  "The corpus is too large for the page to hold its random order: the numbers kept are exact, but of rollouts that" +
  " share the last rank to be kept, each kind is shown kept in proportion.";
const TOO_OLD = "This browser is too old to unpack the corpus: nothing can be moved or drawn here.";

// Frames for the small histograms, by level; returns the panel of each source.
function buildSources(corpus) {
  const panels = [];
  for (const [level, [title, text]] of Object.entries(LEVELS)) {
    const sources = [...corpus.sources.entries()].filter(([, source]) => source.level === level);
    if (!sources.length) continue;
    sources.sort(([, a], [, b]) => b.mean_mc - a.mean_mc);
    const grid = element("div", { class: "panels" });
    for (const [i, source] of sources) {
      panels[i] = element("div");
      const name = element("b", { title: source.name }, source.name);
      const mean = element("span", {}, `s̄ ${source.mean_mc.toFixed(3)}`);
      grid.append(element("figure", { class: "small" }, element("figcaption", {}, name, mean), panels[i]));
    }
    const head = element("h3", {}, `${title} (${sources.length} ${sources.length === 1 ? "source" : "sources"})`);
    byId("levels").append(head, element("p", { class: "note" }, text), grid);
  }
  return panels;
}

function buildControls(corpus, onChange) {
  for (const [name, summary] of Object.entries(STRATEGIES)) {
    const input = element("input", { type: "radio", name: "strategy", value: name });
    input.checked = name === "bis";
    byId("strategy").append(element("label", { title: summary }, input, element("span", {}, name)));
  }
  for (const name of ["alpha", "rho"]) {
    const [slider, number] = [byId(`${name}-slider`), byId(name)];
    slider.value = number.value = corpus[name];
    const follow = (to, from) => () => {
      to.value = from.value;
      onChange();
    };
    slider.addEventListener("input", follow(number, slider));
    number.addEventListener("input", follow(slider, number));
  }
  byId("strategy").addEventListener("change", onChange);
  byId("controls").addEventListener("submit", (event) => event.preventDefault());
}

// The chosen settings; null while a number is none or out of range.
function settings() {
  const [alpha, rho] = ["alpha", "rho"].map((id) => (byId(id).value === "" ? NaN : Number(byId(id).value)));
  const isGood = { alpha: alpha >= 0 && alpha < Infinity, rho: rho > 0 && rho <= 1 };
  for (const [id, good] of Object.entries(isGood)) byId(id).setAttribute("aria-invalid", !good);
  if (!isGood.alpha || !isGood.rho) return null;
  return { strategy: document.querySelector("input[name=strategy]:checked").value, alpha, rho };
}

const RATIOS = {
  steps: (total) => (total.steps / total.n).toFixed(2),
  errors: (total) => percent(1 - total.positive / total.steps),
  mc: (total) => (total.mc / total.steps).toFixed(4),
  mixed: (total) => percent(total.mixed / total.n),
  tied: (total) => percent(total.tied / total.n),
};

function showTotals(corpus, all, kept) {
  const tile = (title, now, before) =>
    element("div", {}, element("dt", {}, title), element("dd", {}, now, element("small", {}, before)));
  const ratio = (title, name) => tile(title, RATIOS[name](kept), `corpus ${RATIOS[name](all)}`);
  byId("kept").replaceChildren(
    tile("rollouts kept", whole(kept.n), `of ${whole(all.n)}`),
    tile("steps kept", whole(kept.steps), `of ${whole(all.steps)}`),
    ratio("steps per rollout", "steps"),
    ratio("error steps", "errors"),
    ratio(`mean ${corpus.score_name}`, "mc"),
    ratio("mixed rollouts", "mixed"),
    ratio("tied at α", "tied"),
  );
}

function showCommand(corpus, { strategy, rho, alpha }) {
  const out = `${strategy}${Number((100 * rho).toPrecision(6))}.jsonl`;
  const options = Object.entries({ strategy, rho, alpha, tau: corpus.tau, seed: corpus.seed, out });
  const spans = options.flatMap(([name, value]) => [" ", element("span", {}, `--${name} ${value}`)]);
  byId("command").replaceChildren(corpus.command, ...spans);
}

async function copyCommand() {
  const text = byId("command").textContent;
  getSelection().selectAllChildren(byId("command")); // to be seen, and for browsers without a clipboard for files
  const isCopied = await navigator.clipboard?.writeText(text).then(() => true, () => false);
  byId("copy").textContent = isCopied || document.execCommand("copy") ? "Copied" : "Press Ctrl+C";
  setTimeout(() => (byId("copy").textContent = "Copy"), 2000);
}

function showTies(ties) {
  const split = ties.filter((tie) => tie.kept > 0);
  const [taken, among] = ["kept", "of"].map((key) => whole(split.reduce((n, tie) => n + tie[key], 0)));
  byId("tie-words").textContent = split.length
    ? `Ties: in ${split.length} of ${ties.length} sources more rollouts share the last rank to be kept than fit;` +
      ` the seeded random order takes ${taken} of ${among}.`
    : "Ties: no source has to choose between rollouts of equal rank.";
}

function showTable(corpus, all, kept, ties) {
  const heads = ["source", "rollouts", "kept", "steps kept", "error steps", "mean MC", "mixed", "tied at the cut"];
  const row = (name, before, now, tie, kind) => {
    const change = (ratio) => `${RATIOS[ratio](before)} → ${RATIOS[ratio](now)}`;
    const split = tie && tie.kept ? `${whole(tie.kept)} of ${whole(tie.of)}` : "–";
    const cells = [before.n, now.n, now.steps].map(whole).concat(["errors", "mc", "mixed"].map(change), split);
    const made = element("tr", { class: kind }, element("th", { scope: "row" }, name));
    made.append(...cells.map((text) => element("td", {}, text)));
    const { n, steps, positive, mixed, tied } = now;
    Object.assign(made.dataset, { source: name, kept: n, steps, positive, mixed, tied });
    return made;
  };
  const rows = corpus.sources.map((source, i) => row(source.name, all[i], kept[i], ties[i], ""));
  byId("by-source").replaceChildren(
    element("thead", {}, element("tr", {}, ...heads.map((text) => element("th", { scope: "col" }, text)))),
    element("tbody", {}, ...rows, row("all", added(all), added(kept), null, "total")),
  );
}

function showCharts(corpus, panels, histogramOf) {
  const [scope, counts, quantity] = ["scope", "counts", "quantity"].map((id) => byId(id).value);
  const isLog = counts === "logarithmic";
  const numbers = scope === "" ? [...corpus.sources.keys()] : [Number(scope)];
  const chart = (name) => histogramChart(TITLES[name], summed(numbers.map((i) => histogramOf(name, i))), isLog);
  byId("overall").replaceChildren(...Object.keys(TITLES).map(chart));
  panels.forEach((panel, i) => {
    const label = `${TITLES[quantity]} of ${corpus.sources[i].name}`;
    panel.replaceChildren(smallHistogram(histogramOf(quantity, i), isLog, label));
  });
  const rows = numbers.map((i) => corpus.step_scores[i]);
  const steps = rows[0].map((_, k) => rows.reduce((n, row) => n + row[k], 0));
  const title = scope === "" ? "all sources" : corpus.sources[Number(scope)].name;
  const host = byId("step-scores");
  host.replaceChildren(stepScoreChart(steps, corpus.tau, corpus.score_name, title, host.clientWidth));
}

// The view in the address, as #strategy=mixed&rho=0.25: what differs from how the page opens, so that a link to it
// shows the same. onChange draws what an address set.
function linkView(corpus, names, onChange) {
  const control = (name) => (name === "strategy" ? byId("controls").elements.strategy : byId(name));
  const toLink = (name, value) => (name === "scope" && value !== "" ? corpus.sources[value].name : value);
  const fromLink = (name, value) =>
    name === "scope" ? corpus.sources.findIndex((source) => source.name === value) : value;
  const atFirst = Object.fromEntries(names.map((name) => [name, control(name).value]));
  const isThere = (name, value) =>
    name === "strategy" ? Object.hasOwn(STRATEGIES, value)
    : control(name).options ? [...control(name).options].some((option) => option.value === value)
    : value !== "" && Number.isFinite(Number(value));
  const put = (name, value) => {
    control(name).value = isThere(name, String(value)) ? value : atFirst[name];
    if (byId(`${name}-slider`)) byId(`${name}-slider`).value = control(name).value;
  };
  const read = () => {
    const linked = new URLSearchParams(location.hash.slice(1));
    for (const name of names) put(name, linked.has(name) ? fromLink(name, linked.get(name)) : atFirst[name]);
    if (names.includes("rho") && settings() === null) for (const name of ["alpha", "rho"]) put(name, atFirst[name]);
  };
  const write = () => {
    if (names.includes("rho") && settings() === null) return;
    const changed = names.filter((name) => control(name).value !== atFirst[name]);
    const linked = new URLSearchParams(changed.map((name) => [name, toLink(name, control(name).value)]));
    history.replaceState(null, "", `#${linked}`);
  };
  let timer = 0; // a browser refuses an address that changes with every move of a slider
  const writeSoon = () => {
    clearTimeout(timer);
    timer = setTimeout(write, 200);
  };
  for (const kind of ["input", "change"]) byId("select").addEventListener(kind, writeSoon);
  byId("quantity").addEventListener("change", writeSoon);
  addEventListener("hashchange", () => {
    if (!location.hash.includes("=")) return; // a section of the page
    read();
    onChange();
  });
  for (const link of document.querySelectorAll("nav a")) {
    link.addEventListener("click", (event) => {
      event.preventDefault(); // the address keeps the view
      document.querySelector(link.hash).scrollIntoView();
    });
  }
  if (location.hash.includes("=")) read();
}

// Calls back on every change of what is shown; many changes between two frames make one call.
function onChanges(show) {
  let frame = 0;
  const soon = () => {
    frame ||= requestAnimationFrame(() => {
      frame = 0;
      show();
    });
  };
  for (const id of ["scope", "counts", "quantity"]) byId(id).addEventListener("change", soon);
  addEventListener("resize", soon);
  return soon;
}

async function showLive(corpus, panels) {
  const sources = await readLabelCounts(corpus);
  const show = () => {
    const chosen = settings();
    if (chosen === null) return;
    const selected = sources.map((counts) => keep(counts, chosen));
    const all = sources.map((counts) => totals(counts, counts.nRollouts, chosen.alpha));
    const kept = sources.map((counts, i) => totals(counts, selected[i].kept, chosen.alpha));
    const ties = selected.map(({ tie }) => tie);
    showTotals(corpus, added(all), added(kept));
    showCommand(corpus, chosen);
    showTies(ties);
    showTable(corpus, all, kept, ties);
    showCharts(corpus, panels, (name, i) =>
      histogram(sources[i], selected[i].kept, name, chosen.alpha, corpus.bins[name]));
  };
  buildControls(corpus, onChanges(show));
  byId("copy").addEventListener("click", copyCommand);
  linkView(corpus, ["strategy", "alpha", "rho", "scope", "counts", "quantity"], show);
  show();
}

// One selection, computed when the page was made.
function showFixed(corpus, panels) {
  const show = () => showCharts(corpus, panels, (name, i) => {
    const isWanted = ({ quantity, source }) => quantity === name && source === corpus.sources[i].name;
    const { n_all: all, n_kept: kept, ...rest } = corpus.histograms.find(isWanted);
    return { ...rest, all, kept };
  });
  onChanges(show);
  linkView(corpus, ["scope", "counts", "quantity"], show);
  show();
}

async function showCorpus(corpus) {
  byId("scope").append(element("option", { value: "" }, "all sources together"));
  corpus.sources.forEach((source, i) => byId("scope").append(element("option", { value: i }, source.name)));
  const panels = buildSources(corpus);
  const counts = corpus.label_counts;
  const isLive = counts !== null && "DecompressionStream" in window;
  const notice = counts === null ? TOO_MANY : !isLive ? TOO_OLD : counts.order === null ? TOO_LARGE : "";
  byId("notice").hidden = notice === "";
  byId("notice").textContent = notice;
  for (const control of document.querySelectorAll(".live")) control.hidden = !isLive;
  if (isLive) await showLive(corpus, panels);
  else if (corpus.histograms !== null) showFixed(corpus, panels);
}

async function start() {
  const data = JSON.parse(byId("data").textContent);
  byId("theme").addEventListener("change", (event) => {
    document.documentElement.dataset.theme = event.target.value;
  });
  addEventListener("beforeprint", () => {
    for (const fold of document.querySelectorAll("details")) fold.open = true;
  });
  if (byId("charts")) byId("charts").append(...data.charts.map(lineChart));
  for (const text of document.querySelectorAll(".question, .answer, .step p")) renderMath(text);
  if (data.corpus) await showCorpus(data.corpus);
  document.documentElement.dataset.ready = "yes";
}
start();
