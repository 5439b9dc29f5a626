"use strict";
// Draws the page's charts, and works out anew what a selection keeps. The ranks are those of mprm.scores.rank,
// in the same order of operations on the same float64 numbers, so that ties are ties here as there.

const BINS = 30;
const TITLES = { bis: "Balanced-Information Score", R: "Reliability R(x)", mixture: "Mixture p(1 − p)" };
const DASHES = ["", "6 3", "2 2", "8 3 2 3", "", "6 3", "2 2", "8 3 2 3"];
const byId = (id) => document.getElementById(id);
const whole = (n) => Math.round(n).toLocaleString("en");
const percent = (x) => (Number.isFinite(x) ? `${(100 * x).toFixed(2)}%` : "–");
const short = (x) => String(Number(x.toPrecision(4)));

// An element with attributes and children; text is always a text node.
function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}
function shape(name, attributes = {}, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}
const label = (x, y, words, anchor = "middle", kind = "") =>
  shape("text", { x, y, "text-anchor": anchor, class: kind }, words);
const titled = (made, words) => (made.append(shape("title", {}, words)), made);

// ---- the cells of the corpus -------------------------------------------------------------------------------------

async function unpacked(text, Numbers) {
  const packed = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  const planes = new Uint8Array(await new Response(stream).arrayBuffer());
  const size = Numbers.BYTES_PER_ELEMENT, n = planes.length / size, bytes = new Uint8Array(planes.length);
  for (let plane = 0; plane < size; plane++)
    for (let i = 0; i < n; i++) bytes[i * size + plane] = planes[plane * n + i];
  return new Numbers(bytes.buffer);
}

async function readCells(corpus) {
  const { columns, n_cells, order } = corpus.cells;
  const [nSteps, nPos, count, sumPos, sumAll, everyOrder] = await Promise.all([
    unpacked(columns.n_steps, Uint32Array), unpacked(columns.n_pos, Uint32Array),
    unpacked(columns.n_rollouts, Uint32Array), unpacked(columns.sum_pos, Float64Array),
    unpacked(columns.sum_all, Float64Array), order === null ? null : unpacked(order, Uint32Array),
  ]);
  let cell = 0, rollout = 0;
  return corpus.sources.map((source, i) => {
    const [a, b, from] = [cell, cell + n_cells[i], rollout];
    cell = b;
    rollout += source.n;
    const cut = (numbers) => numbers.subarray(a, b);
    const cells = {
      nSteps: cut(nSteps), nPos: cut(nPos), sumPos: cut(sumPos), sumAll: cut(sumAll), count: cut(count), n: source.n,
      order: everyOrder && everyOrder.subarray(from, rollout),
    };
    cells.p = Float64Array.from(cells.nSteps, (n, c) => cells.nPos[c] / n);
    cells.R = Float64Array.from(cells.nPos, (n, c) => (n > 0 ? cells.sumPos[c] / n : 1));
    cells.mixture = cells.p.map((p) => p * (1 - p));
    return cells;
  });
}

const bisOf = (cells, alpha) => cells.mixture.map((mixture, c) => (mixture + alpha) * cells.R[c]);
const isMixed = (cells, c) => cells.nPos[c] > 0 && cells.nPos[c] < cells.nSteps[c];
const RANKS = {
  bis: bisOf,
  random: (cells) => new Float64Array(cells.p.length),
  "low-mc": (cells) => cells.sumAll.map((sum, c) => -(sum / cells.nSteps[c])),
  mixed: (cells) => Float64Array.from(cells.p, (_, c) => (isMixed(cells, c) ? 1 : 0)),
  reliable: (cells) => cells.R,
};

// How many of each cell's rollouts are kept; where the last rank to be kept is shared, the random order decides.
function keep(cells, { strategy, alpha, rho }) {
  const rank = RANKS[strategy](cells, alpha);
  const nKeep = Math.max(1, Math.floor(cells.n * rho));
  const best = Uint32Array.from(rank, (_, c) => c).sort((a, b) => rank[b] - rank[a]);
  const kept = new Float64Array(rank.length);
  let left = nKeep, place = 0;
  while (place < best.length) {
    let end = place, nTied = 0;
    while (end < best.length && rank[best[end]] === rank[best[place]]) nTied += cells.count[best[end++]];
    if (nTied > left) break;
    for (; place < end; place++) kept[best[place]] = cells.count[best[place]];
    left -= nTied;
    if (left === 0) break;
  }
  const tie = { kept: left, of: 0 };
  if (left > 0) {
    const cut = rank[best[place]];
    for (let c = 0; c < rank.length; c++) if (rank[c] === cut) tie.of += cells.count[c];
    if (cells.order) {
      for (let i = 0; left > 0; i++) if (rank[cells.order[i]] === cut) { kept[cells.order[i]]++; left--; }
    } else {
      for (let c = 0; c < rank.length; c++) if (rank[c] === cut) kept[c] = (cells.count[c] * left) / tie.of;
    }
  }
  return { kept, tie };
}

// Sums over some rollouts of a source, as mprm stats has them.
function sums(cells, n, alpha) {
  const bis = bisOf(cells, alpha);
  const found = { n: 0, steps: 0, positive: 0, mc: 0, mixed: 0, tied: 0 };
  for (let c = 0; c < n.length; c++) {
    found.n += n[c];
    found.steps += n[c] * cells.nSteps[c];
    found.positive += n[c] * cells.nPos[c];
    found.mc += n[c] * cells.sumAll[c];
    if (isMixed(cells, c)) found.mixed += n[c];
    if (bis[c] === alpha) found.tied += n[c];
  }
  return found;
}
function added(list) {
  const total = { n: 0, steps: 0, positive: 0, mc: 0, mixed: 0, tied: 0 };
  for (const one of list) for (const key of Object.keys(total)) total[key] += one[key];
  return total;
}

function histogram(cells, kept, quantity, alpha) {
  const values = quantity === "bis" ? bisOf(cells, alpha) : cells[quantity];
  const end = { bis: 0.25 + alpha, R: 1, mixture: 0.25 }[quantity];
  const made = { end, all: new Array(BINS).fill(0), kept: new Array(BINS).fill(0) };
  for (let c = 0; c < values.length; c++) {
    const bin = Math.min(BINS - 1, Math.floor(values[c] / (end / BINS)));
    made.all[bin] += cells.count[c];
    made.kept[bin] += kept[c];
  }
  return made;
}
function summed(histograms) {
  const add = (key) => histograms[0][key].map((_, b) => histograms.reduce((total, one) => total + one[key][b], 0));
  return { end: histograms[0].end, all: add("all"), kept: add("kept") };
}

// ---- charts ------------------------------------------------------------------------------------------------------

function niceStep(span, n) {
  const power = 10 ** Math.floor(Math.log10(span / n));
  return [1, 2, 5, 10].map((times) => times * power).find((step) => span / step <= n);
}
function ticks(low, high, n) {
  const step = niceStep(high - low || 1, n), found = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9; k++) found.push(Number((k * step).toPrecision(12)));
  return found;
}
const count = (n) => (n >= 1e6 ? `${short(n / 1e6)}M` : n >= 1e4 ? `${short(n / 1e3)}k` : whole(n));

function countScale(most, isLog, height) {
  if (!isLog) return { at: (n) => height * (1 - n / most), marks: ticks(0, most, 4) };
  const marks = [];
  for (let n = 1; n <= most; n *= 10) marks.push(n);
  while (marks.length > 4) marks.splice(0, marks.length, ...marks.filter((_, i) => i % 2 === 0));
  return { at: (n) => height * (1 - Math.log10(1 + n) / Math.log10(1 + most)), marks };
}

// Counts of all and of kept as bars, their ratio as a curve.
function drawHistogram(host, title, { end, all, kept }, isLog) {
  const W = 380, H = 216, left = 42, right = 36, top = 8, bottom = 20;
  const width = W - left - right, height = H - top - bottom, bar = width / all.length;
  const y = countScale(Math.max(1, ...all), isLog, height);
  const plot = shape("g", { transform: `translate(${left},${top})` });
  for (const n of y.marks) {
    plot.append(shape("path", { class: "grid", d: `M0 ${y.at(n)}H${width}` }), label(-6, y.at(n) + 4, count(n), "end"));
  }
  all.forEach((n, b) => {
    const words = `${short((b * end) / all.length)} to ${short(((b + 1) * end) / all.length)}: kept ${whole(kept[b])} of ${whole(n)}`;
    const both = shape("g");
    for (const [kind, value] of [["bar-all", n], ["bar-kept", kept[b]]]) {
      if (value > 0) both.append(shape("rect", { class: kind, x: b * bar + 0.5, width: bar - 1, y: y.at(value), height: height - y.at(value) }));
    }
    plot.append(titled(both, words));
  });
  let path = "";
  all.forEach((n, b) => {
    if (n === 0) return;
    const [x, at] = [(b + 0.5) * bar, height * (1 - kept[b] / n)];
    path += `${path ? "L" : "M"}${x} ${at}`;
    plot.append(shape("circle", { class: "dot", cx: x, cy: at, r: 2 }));
  });
  plot.append(shape("path", { class: "curve", d: path }), shape("path", { class: "axis", d: `M0 ${height}H${width}` }));
  for (const share of [0, 0.5, 1]) plot.append(label(width + 6, height * (1 - share) + 4, `${100 * share}%`, "start", "coverage-text"));
  for (const x of ticks(0, end, 5)) plot.append(label((x / end) * width, height + 15, short(x)));
  host.replaceChildren(
    element("figcaption", {}, title),
    shape("svg", { viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": `${title}: histogram of all and kept rollouts with coverage` }, plot),
  );
}

// The same without axes, for many side by side.
function drawSmall(figure, { end, all, kept }, isLog, words) {
  const W = 180, H = 90, top = 5, base = H - 14, bar = W / all.length;
  const y = countScale(Math.max(1, ...all), isLog, base - top);
  const bars = (values) => values.map((n, b) => (n > 0 ? `M${b * bar + 0.3} ${base}V${top + y.at(n)}h${bar - 0.6}V${base}z` : "")).join("");
  let path = "";
  all.forEach((n, b) => { if (n > 0) path += `${path ? "L" : "M"}${(b + 0.5) * bar} ${base - (base - top) * (kept[b] / n)}`; });
  figure.replaceChildren(
    shape("path", { class: "bar-all", d: bars(all) }), shape("path", { class: "bar-kept", d: bars(kept) }),
    shape("path", { class: "curve", d: path, "stroke-width": 1.5 }), shape("path", { class: "axis", d: `M0 ${base}H${W}` }),
    label(0, H - 2, "0", "start"), label(W, H - 2, short(end), "end"),
  );
  figure.setAttribute("viewBox", `0 0 ${W} ${H}`);
  figure.setAttribute("aria-label", words);
}

function drawStepScores(host, counts, tau, scope) {
  const W = Math.max(340, host.clientWidth), isWide = W > 640;
  const H = 250, left = 40, top = 18, bottom = 36, width = W - left - 4, height = H - top - bottom;
  const total = counts.reduce((a, b) => a + b, 0), most = Math.max(...counts) / total, bar = width / counts.length;
  const plot = shape("g", { transform: `translate(${left},${top})` });
  for (const share of ticks(0, most, 4)) {
    const y = height * (1 - share / most);
    plot.append(shape("path", { class: "grid", d: `M0 ${y}H${width}` }), label(-6, y + 4, `${short(100 * share)}%`, "end"));
  }
  counts.forEach((n, k) => {
    const kind = k / 16 <= tau ? "bar-negative" : "bar-kept", tall = (height * n) / total / most;
    const from = k === 0 ? "0" : `above ${short((k - 1) / 16)}, up to ${short(k / 16)}`;
    plot.append(titled(shape("rect", { class: kind, x: k * bar + 2, width: bar - 4, y: height - tall, height: tall }), `${from}: ${whole(n)} steps`));
    if (isWide) plot.append(label((k + 0.5) * bar, height - tall - 4, `${((100 * n) / total).toFixed(1)}%`));
    if (k % (isWide ? 1 : 4) === 0) plot.append(label((k + 0.5) * bar, height + 15, short(k / 16)));
  });
  plot.append(shape("path", { class: "axis", d: `M0 ${height}H${width}` }), label(width / 2, height + 32, "MC score of a step (bins of a sixteenth, named by their upper end)"));
  host.replaceChildren(element("figure", { class: "chart" },
    element("figcaption", {}, `MC scores of steps, ${scope}: ${whole(total)} steps, negative labels in orange`),
    shape("svg", { viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": "share of steps by MC score" }, plot)));
}

// Lines with bands: learning curves, F1 against rho, best of N, calibration.
function drawLines(chart) {
  const W = 420, H = 280, left = 40, right = 14, top = 22, bottom = 38, width = W - left - right, height = H - top - bottom;
  const points = chart.series.flatMap((one) => one.points);
  const xs = points.map((p) => p.x), ys = points.flatMap((p) => [p.y, p.low ?? p.y, p.high ?? p.y]);
  let [x0, x1, y0, y1] = [Math.min(...xs), Math.max(...xs), Math.min(...ys), Math.max(...ys)];
  if (chart.is_unit) [x0, x1, y0, y1] = [0, 1, 0, 1];
  else {
    const room = (y1 - y0 || 0.1) * 0.08;
    [y0, y1] = [Math.max(0, y0 - room), Math.min(1, y1 + room)];
    if (x0 === x1) [x0, x1] = [x0 - 1, x1 + 1];
  }
  const scaled = chart.is_log ? (x) => Math.log2(Math.max(x, 0.5)) : (x) => x;
  const X = (x) => (width * (scaled(x) - scaled(x0))) / (scaled(x1) - scaled(x0)), Y = (y) => height * (1 - (y - y0) / (y1 - y0));
  const plot = shape("g", { transform: `translate(${left},${top})` });
  const marks = ticks(100 * y0, 100 * y1, 5);
  for (const y of marks) plot.append(shape("path", { class: "grid", d: `M0 ${Y(y / 100)}H${width}` }), label(-6, Y(y / 100) + 4, short(y), "end"));
  for (const x of chart.is_log ? [...new Set(xs)].sort((a, b) => a - b) : ticks(x0, x1, 6)) plot.append(label(X(x), height + 15, short(x)));
  plot.append(shape("path", { class: "axis", d: `M0 ${height}H${width}` }), label(width / 2, height + 33, chart.x), label(-left, -9, `${chart.y} (%)`, "start"));
  if (chart.is_unit) plot.append(shape("path", { class: "grid", d: `M0 ${height}L${width} 0` }));
  const legend = element("ul", { class: "lines" });
  chart.series.forEach((one, i) => {
    const kind = `c${i % 8}`, dash = DASHES[i % 8];
    const banded = one.points.filter((p) => p.low !== null && p.high !== null);
    if (banded.length > 1) {
      const there = banded.map((p) => `${X(p.x)} ${Y(p.high)}`), back = banded.map((p) => `${X(p.x)} ${Y(p.low)}`).reverse();
      plot.append(shape("path", { class: `band ${kind}`, d: `M${[...there, ...back].join("L")}z` }));
    }
    plot.append(shape("path", { class: `series ${kind}`, "stroke-dasharray": dash, d: `M${one.points.map((p) => `${X(p.x)} ${Y(p.y)}`).join("L")}` }));
    for (const p of one.points) {
      const band = p.low === null ? "" : ` (${(100 * p.low).toFixed(2)} to ${(100 * p.high).toFixed(2)})`;
      plot.append(titled(shape("circle", { class: `mark ${kind}`, cx: X(p.x), cy: Y(p.y), r: 3 }), `${one.name}, ${short(p.x)}: ${(100 * p.y).toFixed(2)}${band}`));
    }
    legend.append(element("li", {}, shape("svg", { viewBox: "0 0 26 8", "aria-hidden": "true" },
      shape("path", { class: `series ${kind}`, "stroke-dasharray": dash, d: "M0 4H26" }), shape("circle", { class: `mark ${kind}`, cx: 13, cy: 4, r: 3 })), one.name));
  });
  return element("figure", { class: "chart" }, element("figcaption", {}, chart.title),
    shape("svg", { viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": chart.title }, plot), legend);
}

// ---- the corpus --------------------------------------------------------------------------------------------------

// Builds what does not change, and returns the places that do.
function buildCorpus(corpus) {
  const scope = byId("scope");
  scope.append(element("option", { value: "" }, "all sources together"));
  corpus.sources.forEach((source, i) => scope.append(element("option", { value: i }, source.name)));
  const overall = Object.keys(TITLES).map((quantity) => [quantity, element("figure", { class: "chart" })]);
  byId("overall").append(...overall.map(([, figure]) => figure));
  const small = [];
  for (const level of ["high", "medium", "low"]) {
    const here = corpus.sources.map((source, i) => [source, i]).filter(([source]) => source.level === level)
      .sort(([a], [b]) => b.mean_mc - a.mean_mc);
    if (!here.length) continue;
    const [title, words] = corpus.levels[level].split(": ", 2);
    const grid = element("div", { class: "grid" });
    for (const [source, i] of here) {
      const drawing = shape("svg", { role: "img" });
      grid.append(element("figure", { class: "small" },
        element("figcaption", {}, element("b", { title: source.name }, source.name), element("span", {}, `s̄ ${source.mean_mc.toFixed(3)}`)), drawing));
      small[i] = drawing;
    }
    byId("levels").append(element("h3", {}, `${title} (${here.length})`), element("p", { class: "note" }, words[0].toUpperCase() + words.slice(1)), grid);
  }
  return { overall, small };
}

function buildControls(corpus, onChange) {
  for (const [name, summary] of Object.entries(corpus.strategies)) {
    const input = element("input", { type: "radio", name: "strategy", value: name });
    input.checked = name === "bis";
    byId("strategy").append(element("label", { title: summary }, input, element("span", {}, name)));
  }
  for (const name of ["alpha", "rho"]) {
    const [slider, number] = [byId(`${name}-slider`), byId(name)];
    slider.value = number.value = corpus[name];
    slider.addEventListener("input", () => { number.value = slider.value; onChange(); });
    number.addEventListener("input", () => { slider.value = number.value; onChange(); });
  }
  byId("strategy").addEventListener("change", onChange);
  byId("controls").addEventListener("submit", (event) => event.preventDefault());
}

// The chosen settings; null while a number is no number or out of range.
function settings() {
  const [alpha, rho] = [byId("alpha"), byId("rho")].map((input) => (input.value === "" ? NaN : Number(input.value)));
  byId("alpha").setAttribute("aria-invalid", !(alpha >= 0 && alpha < Infinity));
  byId("rho").setAttribute("aria-invalid", !(rho > 0 && rho <= 1));
  if (!(alpha >= 0 && alpha < Infinity && rho > 0 && rho <= 1)) return null;
  return { strategy: document.querySelector("input[name=strategy]:checked").value, alpha, rho };
}

function showKept(corpus, every, kept, ties, chosen) {
  const [all, some] = [added(every), added(kept)];
  const tile = (words, now, before) => element("div", {}, element("dt", {}, words), element("dd", {}, now, element("small", {}, before)));
  const ratio = (one, what) => ({ errors: 1 - one.positive / one.steps, mc: one.mc / one.steps, mixed: one.mixed / one.n, tied: one.tied / one.n })[what];
  byId("kept").replaceChildren(
    tile("rollouts kept", whole(some.n), `of ${whole(all.n)}`),
    tile("steps kept", whole(some.steps), `of ${whole(all.steps)}`),
    tile("error steps", percent(ratio(some, "errors")), `corpus ${percent(ratio(all, "errors"))}`),
    tile("mean MC score", ratio(some, "mc").toFixed(4), `corpus ${ratio(all, "mc").toFixed(4)}`),
    tile("mixed rollouts", percent(ratio(some, "mixed")), `corpus ${percent(ratio(all, "mixed"))}`),
    tile("tied at α", percent(ratio(some, "tied")), `corpus ${percent(ratio(all, "tied"))}`),
  );
  const options = { strategy: chosen.strategy, rho: chosen.rho, alpha: chosen.alpha, tau: corpus.tau, seed: corpus.seed };
  byId("command").replaceChildren("mprm select INPUT… ",
    ...Object.entries(options).flatMap(([name, value]) => [element("span", {}, `--${name} ${value}`), " "]), element("span", {}, "--dry-run"));
  const split = ties.filter((tie) => tie.kept > 0);
  byId("tie-words").textContent = split.length
    ? `Ties: in ${split.length} of ${ties.length} sources the last rank to be kept is shared by more rollouts than fit: the seeded random order takes ${whole(split.reduce((n, t) => n + t.kept, 0))} of ${whole(split.reduce((n, t) => n + t.of, 0))}.`
    : "Ties: no source has to choose between rollouts of equal rank.";
  const heads = ["source", "rollouts", "kept", "steps kept", "error steps", "mean MC", "mixed", "tied at the cut"];
  const head = element("thead", {}, element("tr", {}, ...heads.map((words) => element("th", { scope: "col" }, words))));
  const row = (name, before, now, tie, kind) => element("tr", {
    class: kind, "data-source": name, "data-kept": now.n, "data-steps": now.steps, "data-positive": now.positive, "data-mixed": now.mixed, "data-tied": now.tied,
  }, element("th", { scope: "row" }, name), ...[
    whole(before.n), whole(now.n), whole(now.steps),
    `${percent(ratio(before, "errors"))} → ${percent(ratio(now, "errors"))}`, `${ratio(before, "mc").toFixed(3)} → ${ratio(now, "mc").toFixed(3)}`,
    `${percent(ratio(before, "mixed"))} → ${percent(ratio(now, "mixed"))}`, tie && tie.kept ? `${whole(tie.kept)} of ${whole(tie.of)}` : "–",
  ].map((words) => element("td", {}, words)));
  byId("by-source").replaceChildren(head, element("tbody", {},
    ...corpus.sources.map((source, i) => row(source.name, every[i], kept[i], ties[i], "")), row("all", all, some, null, "total")));
}

function showHistograms(corpus, places, histogramOf) {
  const scope = byId("scope").value, isLog = byId("log").checked, quantity = byId("quantity").value;
  const numbers = corpus.sources.map((_, i) => i);
  for (const [name, figure] of places.overall) {
    drawHistogram(figure, TITLES[name], scope === "" ? summed(numbers.map((i) => histogramOf(name, i))) : histogramOf(name, Number(scope)), isLog);
  }
  places.small.forEach((drawing, i) => drawSmall(drawing, histogramOf(quantity, i), isLog, `${TITLES[quantity]} of ${corpus.sources[i].name}`));
  const rows = scope === "" ? corpus.step_scores : [corpus.step_scores[Number(scope)]];
  drawStepScores(byId("step-scores"), rows[0].map((_, k) => rows.reduce((n, row) => n + row[k], 0)), corpus.tau,
    scope === "" ? "all sources" : corpus.sources[Number(scope)].name);
}

async function showCorpus(corpus) {
  const places = buildCorpus(corpus);
  const onView = (show) => {
    for (const id of ["scope", "log", "quantity"]) byId(id).addEventListener("change", show);
    addEventListener("resize", show);
  };
  const isLive = corpus.cells !== null && "DecompressionStream" in window;
  if (!isLive) {
    for (const id of ["controls", "kept"]) byId(id).hidden = true;
    for (const one of [byId("command").closest("pre"), byId("by-source").closest("details")]) one.hidden = true;
  }
  if (!isLive || corpus.cells.order === null) {
    byId("notice").hidden = false;
    byId("notice").textContent = corpus.why_not_live ?? (isLive
      ? "The corpus is too large for the page to hold its random order: numbers kept are exact, but of rollouts that share the last rank to be kept, each kind is shown kept in proportion."
      : "This browser is too old to unpack the corpus: nothing can be moved or drawn here.");
  }
  if (corpus.histograms !== null) {
    const found = (name, i) => corpus.histograms.find((one) => one.quantity === name && one.source === corpus.sources[i].name);
    const show = () => showHistograms(corpus, places, (name, i) => { const one = found(name, i); return { end: one.end, all: one.n_all, kept: one.n_kept }; });
    onView(show);
    show();
  } else if (isLive) {
    const cells = await readCells(corpus);
    let frame = 0;
    const show = () => {
      frame = 0;
      const chosen = settings();
      if (chosen === null) return;
      const found = cells.map((one) => keep(one, chosen));
      const every = cells.map((one) => sums(one, one.count, chosen.alpha));
      showKept(corpus, every, cells.map((one, i) => sums(one, found[i].kept, chosen.alpha)), found.map((one) => one.tie), chosen);
      showHistograms(corpus, places, (name, i) => histogram(cells[i], found[i].kept, name, chosen.alpha));
    };
    // many movements of a slider make one drawing
    const soon = () => { if (!frame) frame = requestAnimationFrame(show); };
    buildControls(corpus, soon);
    onView(soon);
    show();
  }
}

async function start() {
  const data = JSON.parse(byId("data").textContent);
  byId("theme").addEventListener("change", (event) => { document.documentElement.dataset.theme = event.target.value; });
  addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((one) => { one.open = true; }));
  if (byId("charts")) byId("charts").append(...data.charts.map(drawLines));
  if (data.corpus) await showCorpus(data.corpus);
  document.documentElement.dataset.ready = "yes";
}
start();
