// The Python code that loads a checkpoint, to copy.

const quoted = (text) => (/^[\w.\-/]+$/.test(text) ? `"${text}"` : JSON.stringify(text));

function loadingCode(config, run, label) {
  const inner = (text) => (/^[\w.-]+$/.test(text) ? `'${text}'` : JSON.stringify(text));
  const where = `run_id == ${inner(config.runs.id[run])}${label === null ? "" : ` and checkpoint == ${inner(label)}`}`;
  const lines = [
    "import zoo",
    "",
    `reader = zoo.open(${quoted(head.open)}, ${quoted(config.name)}, split=${quoted(config.runs.split[run])})`,
  ];
  if (label === null) lines.push(`reader.runs[reader.runs["run_id"] == ${quoted(config.runs.id[run])}]`);
  else
    lines.push(
      `rows = reader.rows(${where.includes('"') ? JSON.stringify(where) : `"${where}"`})`,
      "weights = reader.weights(rows)[0]",
      "model = zoo.build_model(reader.spec, weights)    # a torch module in eval mode",
    );
  return lines.join("\n");
}

function codeBlock(text) {
  const code = element(
    "pre",
    { id: "code", tabindex: "0", "aria-label": "Python code that loads this checkpoint" },
    text,
  );
  const done = element("span", { role: "status", class: "soft" });
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      getSelection().selectAllChildren(code);
      document.execCommand("copy");
    }
    done.textContent = "copied";
  };
  return element(
    "div",
    {},
    code,
    element(
      "div",
      { class: "actions" },
      element("button", { type: "button", id: "copy", onclick: copy }, "Copy"),
      done,
    ),
  );
}
