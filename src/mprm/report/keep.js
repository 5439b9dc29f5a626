"use strict";
// What a selection keeps, recomputed in the page. The ranks are those of mprm.selection.strategies, by the same
// operations in the same order on the same float64 numbers, so that ties are ties here as there.

// The numbers that corpus.py packed: all their first bytes, then all their second ones, and so on.
async function unpacked(text, Numbers) {
  const packed = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  const planes = new Uint8Array(await new Response(stream).arrayBuffer());
  const size = Numbers.BYTES_PER_ELEMENT;
  const n = planes.length / size;
  const bytes = new Uint8Array(planes.length);
  for (let plane = 0; plane < size; plane++) {
    for (let i = 0; i < n; i++) bytes[i * size + plane] = planes[plane * n + i];
  }
  return new Numbers(bytes.buffer);
}

// The distinct label counts of each source, and which of them each rollout has, in random order.
async function readLabelCounts(corpus) {
  const { columns, n_unique, order } = corpus.label_counts;
  const [nSteps, nPos, nRollouts, firstError, sumPos, sumAll, allOrder] = await Promise.all([
    unpacked(columns.n_steps, Uint32Array),
    unpacked(columns.n_pos, Uint32Array),
    unpacked(columns.n_rollouts, Uint32Array),
    unpacked(columns.first_error, Uint32Array),
    unpacked(columns.sum_pos, Float64Array),
    unpacked(columns.sum_all, Float64Array),
    order === null ? null : unpacked(order, Uint32Array),
  ]);
  let [first, rollout] = [0, 0];
  return corpus.sources.map((source, i) => {
    const [start, end, from] = [first, first + n_unique[i], rollout];
    first = end;
    rollout += source.n;
    const part = (numbers) => numbers.subarray(start, end);
    const counts = {
      n: source.n,
      nSteps: part(nSteps),
      nPos: part(nPos),
      sumPos: part(sumPos),
      sumAll: part(sumAll),
      nRollouts: part(nRollouts),
      n_steps: part(nSteps),
      first_error: part(firstError),
      order: allOrder && allOrder.subarray(from, rollout),
    };
    counts.p = Float64Array.from(counts.nSteps, (n, c) => counts.nPos[c] / n);
    counts.R = Float64Array.from(counts.nPos, (n, c) => (n > 0 ? counts.sumPos[c] / n : 1));
    counts.mixture = counts.p.map((p) => p * (1 - p));
    return counts;
  });
}

const bisOf = (counts, alpha) => counts.mixture.map((mixture, c) => (mixture + alpha) * counts.R[c]);
const isMixed = (counts, c) => counts.nPos[c] > 0 && counts.nPos[c] < counts.nSteps[c];
const RANKS = {
  bis: bisOf,
  random: (counts) => new Float64Array(counts.p.length),
  "low-mc": (counts) => counts.sumAll.map((sum, c) => -(sum / counts.nSteps[c])),
  mixed: (counts) => Float64Array.from(counts.p, (_, c) => (isMixed(counts, c) ? 1 : 0)),
  reliable: (counts) => counts.R,
};

// How many rollouts of each label count are kept. Where more share the last rank to be kept than fit, the random
// order takes the first of them, or, where the page does not hold it, each label count keeps its share.
function keep(counts, { strategy, alpha, rho }) {
  const rank = RANKS[strategy](counts, alpha);
  const best = Uint32Array.from(rank, (_, c) => c).sort((a, b) => rank[b] - rank[a]);
  const kept = new Float64Array(rank.length);
  let left = Math.max(1, Math.floor(counts.n * rho));
  for (let start = 0, end = 0; left > 0; start = end) {
    const cut = rank[best[start]];
    let nTied = 0;
    while (end < best.length && rank[best[end]] === cut) nTied += counts.nRollouts[best[end++]];
    if (nTied > left) {
      keepSome(counts, kept, rank, cut, left / nTied, left);
      return { kept, tie: { kept: left, of: nTied } };
    }
    for (const c of best.subarray(start, end)) kept[c] = counts.nRollouts[c];
    left -= nTied;
  }
  return { kept, tie: { kept: 0, of: 0 } };
}

function keepSome(counts, kept, rank, cut, share, n) {
  if (counts.order === null) {
    for (let c = 0; c < rank.length; c++) if (rank[c] === cut) kept[c] = counts.nRollouts[c] * share;
    return;
  }
  for (let i = 0; n > 0; i++) {
    const c = counts.order[i];
    if (rank[c] === cut) {
      kept[c]++;
      n--;
    }
  }
}

// Sums over some rollouts of a source, as mprm stats has them.
function totals(counts, n, alpha) {
  const bis = bisOf(counts, alpha);
  const total = { n: 0, steps: 0, positive: 0, mc: 0, mixed: 0, tied: 0 };
  for (let c = 0; c < n.length; c++) {
    total.n += n[c];
    total.steps += n[c] * counts.nSteps[c];
    total.positive += n[c] * counts.nPos[c];
    total.mc += n[c] * counts.sumAll[c];
    if (isMixed(counts, c)) total.mixed += n[c];
    if (bis[c] === alpha) total.tied += n[c];
  }
  return total;
}
function added(list) {
  const total = { n: 0, steps: 0, positive: 0, mc: 0, mixed: 0, tied: 0 };
  for (const part of list) for (const key of Object.keys(total)) total[key] += part[key];
  return total;
}

// Rollouts in equal bins, of which the last has all that is larger; [start, end, n]: those of the quantity.
function histogram(counts, kept, quantity, alpha, [start, fixedEnd, n]) {
  const values = quantity === "bis" ? bisOf(counts, alpha) : counts[quantity];
  const end = quantity === "bis" ? 0.25 + alpha : fixedEnd;
  const made = { quantity, start, end, all: new Array(n).fill(0), kept: new Array(n).fill(0) };
  for (let c = 0; c < values.length; c++) {
    const bin = Math.min(n - 1, Math.floor((values[c] - start) / ((end - start) / n)));
    made.all[bin] += counts.nRollouts[c];
    made.kept[bin] += kept[c];
  }
  return made;
}
function summed(histograms) {
  const add = (key) => histograms[0][key].map((_, b) => histograms.reduce((total, part) => total + part[key][b], 0));
  return { ...histograms[0], all: add("all"), kept: add("kept") };
}
