// The data of the page: the head at once, the tables of a config when it is shown, files beside it on demand.

const head = JSON.parse(document.getElementById("head").textContent);
const configs = new Map();
const files = new Map();

async function unpack(text) {
  const bytes = Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}

function loadConfig(index) {
  if (!configs.has(index)) configs.set(index, unpack(document.getElementById(`config-${index}`).textContent));
  return configs.get(index);
}

// A page on a disk may not fetch the files beside it, but it may run them as scripts: each hands its data to this.
window.zooFile = (name, text) => files.get(name)?.arrived(unpack(text));

function loadFile(name) {
  if (!files.has(name)) {
    const file = {};
    file.data = new Promise((arrived, failed) => {
      file.arrived = arrived;
      const script = document.createElement("script");
      script.onerror = () => failed(new Error(`${name}.js is not beside this page`));
      script.src = `${name}.js`;
      document.head.append(script);
    });
    files.set(name, file);
  }
  return files.get(name).data;
}

// By the label that ranks the checkpoints of a config: "accuracy" or "loss", how good one is, more being better, and
// accuracy and loss in this order or the other.
const rankedBy = ({ ranked }) => ranked.label.replace("test_", "");
const merit = ({ ranked, rows }, row) => (ranked.more ? 1 : -1) * rows[ranked.label][row];
const rankedFirst = ({ ranked }, cells) => (ranked.more ? cells : cells.reverse());

const padded = (number, width) => String(number).padStart(width, "0");

async function curvesOf(index, run) {
  const part = Math.floor(run / head.runs_per_file);
  return (await loadFile(`curves/${index}-${padded(part, 3)}`))[run % head.runs_per_file];
}

const picturesOf = (index, run) => loadFile(`runs/${index}-${padded(run, 5)}`);

function bytesOf(text) {
  return Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
}
