// The charts: histograms, bars and lines, as SVG.

const DASHES = ["", "6 3", "2 2", "8 3 2 3"];
const N_COLOURS = 8;

const byId = (id) => document.getElementById(id);
const whole = (n) => Math.round(n).toLocaleString("en");
const percent = (x) => (Number.isFinite(x) ? `${(100 * x).toFixed(2)}%` : "–");
const short = (x) => String(Number(x.toPrecision(4)));
const brief = (n) => (n >= 1e6 ? `${short(n / 1e6)}M` : n >= 1e4 ? `${short(n / 1e3)}k` : whole(n));

// Text from data with whatever could steer what stands around it written as an escape, as mprm.errors.printable does.
const shown = (text) =>
  String(text).replace(/(?! )[\p{C}\p{Z}]/gu, (sign) => {
    const code = sign.codePointAt(0).toString(16);
    return code.length > 2 ? `\\u{${code}}` : `\\x${code.padStart(2, "0")}`;
  });

// An element with attributes and children; strings become text nodes and never markup.
function filled(made, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, shown(value));
  made.append(...children.map((child) => (child instanceof Node ? child : shown(child))));
  return made;
}
const element = (name, attributes = {}, ...children) => filled(document.createElement(name), attributes, children);
const shape = (name, attributes = {}, ...children) =>
  filled(document.createElementNS("http://www.w3.org/2000/svg", name), attributes, children);
const words = (x, y, text, anchor = "middle", kind = "") =>
  shape("text", { x, y, "text-anchor": anchor, class: kind }, text);
const path = (kind, d) => shape("path", { class: kind, d });
const hint = (text) => shape("title", {}, text);
const drawing = (width, height, label, ...children) =>
  shape("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label }, ...children);

// Round numbers from low to high, n of them at most.
function ticks(low, high, n) {
  const span = high - low || 1;
  const power = 10 ** Math.floor(Math.log10(span / n));
  const step = [1, 2, 5, 10].map((times) => times * power).find((size) => span / size <= n);
  const marks = new Set();
  // counted from the first: beyond 2^53 a number plus 1 is itself, and would never get to the end
  const first = Math.ceil(low / step - 1e-9);
  for (let i = 0; i <= n && (first + i) * step <= high + step * 1e-9; i++) {
    marks.add(Number(((first + i) * step).toPrecision(12)));
  }
  return [...marks];
}

// Where counts from 0 to the most stand, and which of them to name.
function countScale(most, isLog, height) {
  if (!isLog) return { at: (n) => height * (1 - n / most), marks: ticks(0, most, 4) };
  let marks = [];
  for (let n = 1; n <= most; n *= 10) marks.push(n);
  while (marks.length > 4) marks = marks.filter((_, i) => i % 2 === 0);
  return { at: (n) => height * (1 - Math.log1p(n) / Math.log1p(most)), marks };
}

// The share of each bin that is kept, as the points of a line; bins without a rollout have none.
function coverage({ all, kept }, bar, height) {
  const points = all.map((n, b) => [(b + 0.5) * bar, height * (1 - kept[b] / n)]);
  return points.filter((_, b) => all[b] > 0);
}
const lineThrough = (points) => (points.length ? `M${points.map((point) => point.join(" ")).join("L")}` : "");

// The numbers to name below a histogram, as [number, text].
function binTicks({ quantity, start, end, all }) {
  const numbers = ticks(Math.max(0, start), end, 5);
  if (start === 0) return numbers.map((x) => [x, short(x)]);
  const [width, hasNone] = [(end - start) / all.length, quantity === "first_error"];
  const first = hasNone ? [[start + width / 2, "none"]] : [];
  return [...first, ...numbers.filter((x) => x >= (hasNone ? 2 * width : 1)).map((x) => [x, short(x)])];
}

// What is in a bin.
function binText({ quantity, start, end, all }, b) {
  const width = (end - start) / all.length;
  const [low, high] = [start + b * width, start + (b + 1) * width];
  if (start === 0) return `${short(low)} to ${short(high)}`;
  if (high < 1) return "none";
  const [least, most] = [low + 0.5, high - 0.5];
  return b === all.length - 1 ? `${least} or more` : least === most ? `${least}` : `${least} to ${most}`;
}

// Counts of all and of kept as bars, their ratio as a curve.
function histogramChart(title, histogram, isLog) {
  const { start, end, all, kept } = histogram;
  const [W, H, left, right, top, bottom] = [380, 232, 42, 36, 24, 20];
  const [width, height] = [W - left - right, H - top - bottom];
  const bar = width / all.length;
  const y = countScale(Math.max(1, ...all), isLog, height);
  const plot = shape("g", { transform: `translate(${left},${top})` });
  for (const n of y.marks) {
    plot.append(path("grid", `M0 ${y.at(n)}H${width}`), words(-6, y.at(n) + 4, brief(n), "end"));
  }
  all.forEach((n, b) => {
    const both = shape("g", {}, hint(`${binText(histogram, b)}: kept ${whole(kept[b])} of ${whole(n)}`));
    for (const [kind, value] of [["bar-all", n], ["bar-kept", kept[b]]]) {
      const box = { class: kind, x: b * bar + 0.5, width: bar - 1, y: y.at(value), height: height - y.at(value) };
      if (value > 0) both.append(shape("rect", box));
    }
    plot.append(both);
  });
  const points = coverage(histogram, bar, height);
  plot.append(path("curve", lineThrough(points)), path("axis", `M0 ${height}H${width}`));
  plot.append(...points.map(([cx, cy]) => shape("circle", { class: "dot", cx, cy, r: 2 })));
  for (const share of [0, 0.5, 1]) {
    plot.append(words(width + 6, height * (1 - share) + 4, `${100 * share}%`, "start", "coverage-text"));
  }
  const X = (x) => ((x - start) / (end - start)) * width;
  plot.append(...binTicks(histogram).map(([x, text]) => words(X(x), height + 15, text)));
  plot.append(words(-left, -12, "rollouts", "start"), words(width + right, -12, "coverage", "end", "coverage-text"));
  const label = `${title}: histogram of all and of kept rollouts, and coverage`;
  return element("figure", { class: "chart" }, element("figcaption", {}, title), drawing(W, H, label, plot));
}

// The same without axes, for many side by side.
function smallHistogram(histogram, isLog, label) {
  const { all, kept } = histogram;
  const [W, H, top] = [180, 100, 15];
  const [bar, base, most] = [W / all.length, H - 14, Math.max(1, ...all)];
  const y = countScale(most, isLog, base - top);
  const column = (n, b) => (n > 0 ? `M${b * bar + 0.3} ${base}V${top + y.at(n)}h${bar - 0.6}V${base}z` : "");
  const points = coverage(histogram, bar, base - top).map(([x, at]) => [x, top + at]);
  return drawing(W, H, label,
    path("bar-all", all.map(column).join("")), path("bar-kept", kept.map(column).join("")),
    path("curve", lineThrough(points)), path("axis", `M0 ${base}H${W}`),
    words(0, 10, brief(most), "start"), words(W, 10, "100%", "end", "coverage-text"),
    words(0, H - 2, binText(histogram, 0).split(" ")[0], "start"),
    words(W, H - 2, binText(histogram, all.length - 1).replace(/.* to | or more/, ""), "end"));
}

// Steps by their score: 0, and a bar for each sixteenth above it.
function stepScoreChart(counts, tau, name, scope, room) {
  const [W, H, left, top, bottom] = [Math.max(340, room), 264, 40, 32, 36];
  const [width, height, isWide] = [W - left - 4, H - top - bottom, W > 640];
  const total = counts.reduce((a, b) => a + b, 0);
  const [most, bar] = [Math.max(...counts) / total, width / counts.length];
  const plot = shape("g", { transform: `translate(${left},${top})` });
  for (const share of ticks(0, most, 4)) {
    const y = height * (1 - share / most);
    plot.append(path("grid", `M0 ${y}H${width}`), words(-6, y + 4, `${short(100 * share)}%`, "end"));
  }
  counts.forEach((n, k) => {
    const kind = k / 16 <= tau ? "bar-negative" : "bar-kept";
    const [tall, middle] = [(height * n) / total / most, (k + 0.5) * bar];
    const range = k === 0 ? "0" : `above ${short((k - 1) / 16)}, up to ${short(k / 16)}`;
    const box = { class: kind, x: k * bar + 2, width: bar - 4, y: height - tall, height: tall };
    plot.append(shape("rect", box, hint(`${range}: ${whole(n)} steps`)));
    if (isWide && n > 0) plot.append(words(middle, height - tall - 4, `${((100 * n) / total).toFixed(1)}%`));
    if (isWide || k % 4 === 0) plot.append(words(middle, height + 15, short(k / 16)));
  });
  const axis = `${name} of a step${isWide ? " (bins of a sixteenth, named by their upper end)" : ""}`;
  plot.append(path("axis", `M0 ${height}H${width}`), words(width / 2, height + 32, axis));
  plot.append(words(-left, -20, "share of steps", "start"));
  const title = `${name[0].toUpperCase()}${name.slice(1)}s of steps, ${scope}: ${whole(total)} steps, negative labels in orange`;
  return element("figure", { class: "chart" }, element("figcaption", {}, title), drawing(W, H, title, plot));
}

// The ends of both axes of a line chart.
function limits(chart) {
  if (chart.is_unit) return [0, 1, 0, 1];
  const points = chart.series.flatMap((series) => series.points);
  const xs = points.map((p) => p.x);
  const ys = points.flatMap((p) => [p.y, p.low ?? p.y, p.high ?? p.y]);
  const [low, high] = [Math.min(...ys), Math.max(...ys)];
  // a flat line has room too; the mean of equal numbers may be a last bit off them
  const room = (high - low > 1e-6 ? high - low : 0.1) * 0.08;
  const [first, last] = [Math.min(...xs), Math.max(...xs)];
  const alone = first === last ? (chart.is_log ? first / 2 : 1) : 0;
  return [first - alone, last + alone, Math.max(0, low - room), Math.min(chart.is_percent ? 1 : Infinity, high + room)];
}

// Lines with bands: learning curves, loss, F1 against rho, best of N, calibration.
function lineChart(chart) {
  const [W, H, left, right, top, bottom] = [420, 280, 40, 14, 22, 38];
  const [width, height] = [W - left - right, H - top - bottom];
  const [x0, x1, y0, y1] = limits(chart);
  const scaled = chart.is_log ? Math.log2 : (x) => x;
  const X = (x) => (width * (scaled(x) - scaled(x0))) / (scaled(x1) - scaled(x0));
  const Y = (y) => height * (1 - (y - y0) / (y1 - y0));
  const plot = shape("g", { transform: `translate(${left},${top})` });
  const times = chart.is_percent ? 100 : 1;
  for (const y of ticks(times * y0, times * y1, 5)) {
    plot.append(path("grid", `M0 ${Y(y / times)}H${width}`), words(-6, Y(y / times) + 4, short(y), "end"));
  }
  const seen = new Set(chart.series.flatMap((series) => series.points.map((p) => p.x)));
  const marks = chart.is_log ? [...seen] : ticks(x0, x1, 6);
  plot.append(...marks.map((x) => words(X(x), height + 15, short(x))), path("axis", `M0 ${height}H${width}`));
  plot.append(words(width / 2, height + 33, chart.x), words(-left, -9, chart.y + (chart.is_percent ? " (%)" : ""), "start"));
  if (chart.is_unit) plot.append(path("grid", `M0 ${height}L${width} 0`));
  const legend = element("ul", { class: "lines" });
  chart.series.forEach((series, i) => {
    const look = { class: `series c${i % N_COLOURS}`, "stroke-dasharray": DASHES[i % DASHES.length] };
    plot.append(...seriesShapes(series, look, `c${i % N_COLOURS}`, X, Y, (y) => short(times * y)));
    const dot = shape("circle", { class: `mark c${i % N_COLOURS}`, cx: 13, cy: 4, r: 3 });
    const line = shape("path", { ...look, d: "M0 4H26" });
    const sample = shape("svg", { viewBox: "0 0 26 8", "aria-hidden": "true" }, line, dot);
    legend.append(element("li", {}, sample, series.name));
  });
  const figure = drawing(W, H, chart.title, plot);
  return element("figure", { class: "chart" }, element("figcaption", {}, chart.title), figure, legend);
}

function seriesShapes(series, look, colour, X, Y, number) {
  const banded = series.points.filter((p) => p.low !== null && p.high !== null);
  const [above, below] = ["high", "low"].map((end) => banded.map((p) => [X(p.x), Y(p[end])]));
  const shapes = banded.length > 1 ? [path(`band ${colour}`, `${lineThrough([...above, ...below.reverse()])}z`)] : [];
  shapes.push(shape("path", { ...look, d: lineThrough(series.points.map((p) => [X(p.x), Y(p.y)])) }));
  for (const p of series.points) {
    const band = p.low === null ? "" : ` (${number(p.low)} to ${number(p.high)})`;
    const text = `${series.name}, ${short(p.x)}: ${number(p.y)}${band}`;
    const r = series.points.length > 40 ? 1.5 : 3;
    shapes.push(shape("circle", { class: `mark ${colour}`, cx: X(p.x), cy: Y(p.y), r }, hint(text)));
  }
  return shapes;
}
