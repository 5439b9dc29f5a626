"use strict";
// What a selection keeps, worked out anew in the page. The ranks are those of mprm.scores.rank, in the same order
// of operations on the same float64 numbers, so that ties are ties here as there.

const BINS = 30;

// The numbers that label_cells.py packed: all their first bytes, then all their second ones, and so on.
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

async function readCells(corpus) {
  const { columns, n_cells, order } = corpus.cells;
  const [nSteps, nPos, count, sumPos, sumAll, everyOrder] = await Promise.all([
    unpacked(columns.n_steps, Uint32Array),
    unpacked(columns.n_pos, Uint32Array),
    unpacked(columns.n_rollouts, Uint32Array),
    unpacked(columns.sum_pos, Float64Array),
    unpacked(columns.sum_all, Float64Array),
    order === null ? null : unpacked(order, Uint32Array),
  ]);
  let [cell, rollout] = [0, 0];
  return corpus.sources.map((source, i) => {
    const [a, b, from] = [cell, cell + n_cells[i], rollout];
    cell = b;
    rollout += source.n;
    const cut = (numbers) => numbers.subarray(a, b);
    const cells = {
      n: source.n,
      nSteps: cut(nSteps),
      nPos: cut(nPos),
      sumPos: cut(sumPos),
      sumAll: cut(sumAll),
      count: cut(count),
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

// How many of each cell's rollouts are kept; where more share the last rank to be kept than fit, the random order
// takes the first of them, or, where the page does not hold it, each cell keeps its share.
function keep(cells, { strategy, alpha, rho }) {
  const rank = RANKS[strategy](cells, alpha);
  const best = Uint32Array.from(rank, (_, c) => c).sort((a, b) => rank[b] - rank[a]);
  const kept = new Float64Array(rank.length);
  let left = Math.max(1, Math.floor(cells.n * rho));
  for (let place = 0, end = 0; left > 0; place = end) {
    const cut = rank[best[place]];
    let nTied = 0;
    while (end < best.length && rank[best[end]] === cut) nTied += cells.count[best[end++]];
    if (nTied > left) {
      keepSome(cells, kept, rank, cut, left / nTied, left);
      return { kept, tie: { kept: left, of: nTied } };
    }
    for (const c of best.subarray(place, end)) kept[c] = cells.count[c];
    left -= nTied;
  }
  return { kept, tie: { kept: 0, of: 0 } };
}

function keepSome(cells, kept, rank, cut, share, n) {
  if (cells.order === null) {
    for (let c = 0; c < rank.length; c++) if (rank[c] === cut) kept[c] = cells.count[c] * share;
    return;
  }
  for (let i = 0; n > 0; i++) {
    const c = cells.order[i];
    if (rank[c] === cut) {
      kept[c]++;
      n--;
    }
  }
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
