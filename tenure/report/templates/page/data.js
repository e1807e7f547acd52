// Unpacks the history: the document of tenure/report/thin.py. Nothing is fetched.
const holder = document.getElementById("history");
if (!holder) return;
const doc = JSON.parse(holder.textContent);
const $ = (id) => document.getElementById(id);
const byTime = doc.axis === "time";

function numbers(text) {
  const bytes = atob(text), result = [];
  let number = 0, unit = 1;
  for (let i = 0; i < bytes.length; i++) {
    const byte = bytes.charCodeAt(i);
    number += (byte & 127) * unit;
    unit *= 128;
    if (byte < 128) { result.push(number); number = 0; unit = 1; }
  }
  return result;
}
const unzigzag = (n) => (n % 2 ? -(n - 1) / 2 - 1 : n / 2);
const summed = (steps, first = 0) => { let sum = first; return steps.map((step) => (sum += step)); };
function unfronted(text) {
  const digits = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ", result = [];
  let before = [];
  for (const line of text ? text.split("\n") : []) {
    before = before.slice(0, digits.indexOf(line[0])).concat(Array.from(line.slice(1)));
    result.push(before.join(""));
  }
  return result;
}

const nodeNames = unfronted(doc.node_names);
const podNames = unfronted(doc.pod_names);
const podNamespaces = numbers(doc.pod_namespaces);
const podPaths = podNames.map((name, pod) => (name ? `${doc.namespaces[podNamespaces[pod]]}/${name}` : ""));
const cards = [], nodes = [], cardByName = new Map();
const cardName = (card) => {
  const { node, type, minor } = cards[card];
  return nodes[node].name + (type === "gpu" ? "/" : `/${type}/`) + minor;
};
numbers(doc.nodes).forEach((rack, n) => {
  const mine = [];
  nodes.push({ name: nodeNames[n], cards: mine });
  for (const kind of doc.racks[rack]) {
    const [type, minor, model, core, memory] = doc.kinds[kind];
    mine.push(cards.length);
    cards.push({ node: n, type, minor, model, core, memory, isGpu: type === "gpu", kind: model || type });
    cardByName.set(cardName(cards.length - 1), cards.length - 1);
  }
});

// One column per field of a holding; moments are ticks from the start, negative before it.
const opened = summed(numbers(doc.holds.opened), -doc.before);
const closed = numbers(doc.holds.lasted).map((n, i) => (n ? opened[i] + n - 1 : Infinity));
const onCard = summed(numbers(doc.holds.card).map(unzigzag));
const ofPod = summed(numbers(doc.holds.pod).map(unzigzag));
const position = summed(numbers(doc.holds.position).map(unzigzag));
const shareOf = numbers(doc.holds.share);
const endingOf = numbers(doc.holds.ending);
const percentOf = doc.shares.map((share) => share[0] || share[2]);
const isObserved = doc.shares.map((share) => share[4]);
const outages = doc.outages.map(([card, from, until, reason]) => ({ card, from, until: until === null ? Infinity : until, reason }));
const holdsOf = cards.map(() => []);
onCard.forEach((card, i) => holdsOf[card].push(i));

// Who waited: the document of tenure/report/waiting.py, in ticks.
const texts = doc.waits.texts;
const waits = doc.waits.rows.map(([namespace, name, from, until, node, admission, shape, refusals, reasons, means]) => ({
  namespace: texts[namespace], path: `${texts[namespace]}/${texts[name]}`, from: from / doc.tick,
  until: until === null ? Infinity : until / doc.tick, node: texts[node], admission: Boolean(admission), shape: texts[shape],
  refusals: refusals.map(([at, message]) => [at / doc.tick, texts[message]]),
  reasons: reasons.map(([reason, count, nearest, detail, remedy]) => ({ reason: texts[reason], count, nearest: texts[nearest], detail: texts[detail], remedy: texts[remedy] })),
  means: texts[means],
}));

// Every Pod by namespace/name, with its holdings and its waits.
const pods = new Map();
function podOf(path) {
  if (!pods.has(path)) pods.set(path, { path, holds: [], waits: [] });
  return pods.get(path);
}
ofPod.forEach((pod, i) => { if (podPaths[pod]) podOf(podPaths[pod]).holds.push(i); });
for (const wait of waits) podOf(wait.path).waits.push(wait);

function memoryText(bytes) {
  const gib = bytes / 2 ** 30;
  return gib >= 1 ? `${Math.round(gib * 10) / 10} GiB` : `${Math.round(bytes / 2 ** 20)} MiB`;
}
const counted = (n, noun) => `${n.toLocaleString("en-US")} ${noun}${n === 1 ? "" : "s"}`;
