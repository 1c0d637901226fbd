// The axes of learning curves. Their ends are given: a chart without a point would have none.

function epochAxis(last) {
  const scale = { domain: [1, Math.max(2, last)], nice: false };
  return { field: "epoch", type: "quantitative", title: "epoch", scale, axis: { grid: false, tickMinStep: 1 } };
}

function accuracyAxis() {
  return {
    field: "value",
    type: "quantitative",
    title: "test accuracy",
    scale: { domain: [0, 1] },
    axis: { tickCount: 5 },
  };
}

// Losses fall by orders of magnitude; `rows` are positive.
function lossAxis(title, rows) {
  const values = rows.map(({ value }) => value);
  const domain = values.length ? [least(values), -least(values.map((value) => -value))] : [0.1, 1];
  const scale = { type: "log", domain, nice: false };
  return { field: "value", type: "quantitative", title, scale, axis: { tickCount: 5, grid: false } };
}

// Math.min takes its numbers as arguments, whose number is limited.
function least(values) {
  return values.reduce((best, value) => (value < best ? value : best));
}
