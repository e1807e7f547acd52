// The cards at one moment, on canvases; one button, the cursor, stands for the card it is on.
const moments = Array.from({ length: doc.steps + 1 }, (_, i) => Math.floor((doc.end * i) / doc.steps));
const changes = (() => {
  if (doc.thinned) return moments;
  const all = [0, doc.end, ...opened, ...closed];
  for (const outage of outages) all.push(outage.from, outage.until);
  return Array.from(new Set(all.filter((at) => at >= 0 && at <= doc.end))).sort((a, b) => a - b);
})();
let now = moments[doc.first];

// --- the state at the moment ------------------------------------------------------------------

let levels, heldBy, isClosed, waiting, nearest;
function settle() {
  levels = new Float64Array(cards.length);
  heldBy = new Map();
  isClosed = new Uint8Array(cards.length);
  for (let i = 0; i < opened.length && opened[i] <= now; i++) {
    if (closed[i] <= now) continue;
    const card = onCard[i];
    levels[card] += (percentOf[shareOf[i]] * 100) / (cards[card].core || 100);
    const list = heldBy.get(card);
    if (list) list.push(i); else heldBy.set(card, [i]);
  }
  for (const outage of outages) if (outage.from <= now && now < outage.until) isClosed[outage.card] = 1;
  waiting = waits.filter((wait) => !wait.admission && wait.from <= now && now < wait.until);
  nearest = new Set(waiting.flatMap((wait) => wait.reasons.map((reason) => reason.nearest)));
}
const level = (card) => Math.min(100, Math.round(levels[card]));
const isHeld = (card) => heldBy.has(card); // also by a share that counts as nothing
const isStranded = (card) => isHeld(card) && levels[card] < 100 && !isClosed[card];
function cardWords(card) {
  const list = heldBy.get(card) || [], { model } = cards[card];
  const words = [cardName(card)];
  if (model) words.push(model);
  words.push(list.length ? `${level(card)} % held` : "free");
  const names = list.map((i) => podPaths[ofPod[i]]).filter(Boolean);
  if (names.length) words.push(`by ${names.slice(0, 3).join(", ")}${names.length > 3 ? ` and ${names.length - 3} more` : ""}`);
  if (isClosed[card]) words.push("closed to Pods");
  return words.join(" · ");
}

// --- which cards are shown in full ------------------------------------------------------------

const FILTERS = {
  all: () => true,
  held: isHeld,
  free: (card) => !isHeld(card) && !isClosed[card],
  stranded: isStranded,
  closed: (card) => Boolean(isClosed[card]),
  waiting: (card) => nearest.has(nodes[cards[card].node].name),
};
let filter = "all", sought = "";
function isSought(card) {
  if (!sought) return true;
  if (cardName(card).toLowerCase().includes(sought) || cards[card].kind.toLowerCase().includes(sought)) return true;
  return (heldBy.get(card) || []).some((i) => podPaths[ofPod[i]].toLowerCase().includes(sought));
}
const isShown = (card) => FILTERS[filter](card) && isSought(card);

// --- colours ----------------------------------------------------------------------------------

const HUES = 8;
let colouring = "level";
function ranking(keyOf, weightOf, count) {
  const weights = new Map();
  for (let i = 0; i < count; i++) weights.set(keyOf(i), (weights.get(keyOf(i)) || 0) + weightOf(i));
  weights.delete("");
  return [...weights.keys()].sort((a, b) => weights.get(b) - weights.get(a) || (a < b ? -1 : 1));
}
const namespaceOf = (i) => (podNames[ofPod[i]] ? doc.namespaces[podNamespaces[ofPod[i]]] : "");
const rankings = {
  namespace: ranking(namespaceOf, (i) => percentOf[shareOf[i]] * (Math.min(closed[i], doc.end) - Math.max(0, opened[i]) + 1), opened.length),
  model: ranking((card) => cards[card].kind, () => 1, cards.length),
};
const hueOf = (ranks, key) => { const place = ranks.indexOf(key); return place >= 0 && place < HUES ? `hue-${place + 1}` : "hue-other"; };
const hues = {
  namespace: new Map(rankings.namespace.map((key) => [key, hueOf(rankings.namespace, key)])),
  model: new Map(rankings.model.map((key) => [key, hueOf(rankings.model, key)])),
};
function colourName(card, i) {
  if (colouring === "namespace") return hues.namespace.get(namespaceOf(i)) || "hue-other";
  if (colouring === "model") return hues.model.get(cards[card].kind);
  return levels[card] >= 100 ? "held-strong" : "held";
}
function palette() {
  const style = getComputedStyle(document.documentElement), found = {};
  for (const name of ["free", "free-line", "held", "held-strong", "observed", "closed-line", "muted", "hue-other", ...Array.from({ length: HUES }, (_, i) => `hue-${i + 1}`)]) {
    found[name] = style.getPropertyValue(`--${name}`).trim();
  }
  return found;
}

// --- layout -----------------------------------------------------------------------------------

const coarse = matchMedia("(pointer: coarse)");
const groups = [];
let places = [], at = 0, chosen = -1;
let cell, gap, label, font, rackGap, rowGap, gutter;

// 44 px from finger to finger; of more cards the panel has all those of a node as buttons of that size.
function measure(width) {
  if (coarse.matches && cards.length <= 2500) { gap = 2; cell = Math.max(30, Math.min(42, Math.floor((width + gap) / 8) - gap)); }
  else if (cards.length <= 400) { cell = 24; gap = 2; }
  else if (cards.length <= 1600) { cell = 13; gap = 2; }
  else if (cards.length <= 5000) { cell = 8; gap = 1; }
  else { cell = 6; gap = 1; }
  const named = cell >= 13;
  font = cell >= 20 ? 12 : 11;
  label = named ? font + 5 : 0;
  rackGap = cell >= 20 ? 16 : named ? 12 : 6;
  rowGap = named ? 10 : 6;
  gutter = named ? 0 : 76;
}

function makeGroups() {
  const byKind = new Map();
  nodes.forEach((node, n) => {
    for (const card of node.cards) {
      const { kind, isGpu } = cards[card];
      if (!byKind.has(kind)) byKind.set(kind, { isGpu, racks: new Map() });
      const { racks } = byKind.get(kind);
      if (racks.has(n)) racks.get(n).push(card); else racks.set(n, [card]);
    }
  });
  const size = ({ racks }) => [...racks.values()].reduce((sum, rack) => sum + rack.length, 0);
  const order = ([, one], [, other]) => other.isGpu - one.isGpu || size(other) - size(one);
  for (const [kind, { racks }] of [...byKind].sort(order)) {
    const root = document.createElement("div"), title = document.createElement("h3"), rack = document.createElement("div"), canvas = document.createElement("canvas");
    root.className = "group";
    rack.className = "rack";
    canvas.setAttribute("aria-hidden", "true");
    rack.append(canvas);
    root.append(title, rack);
    $("groups").append(root);
    const most = [...racks.values()].reduce((max, cards) => Math.max(max, cards.length), 1);
    const columns = Math.min(8, most), rows = Math.ceil(most / columns);
    const group = { kind, members: [...racks].map(([n, cards]) => ({ n, cards })), title, rack, canvas, columns, rows, places: [] };
    groups.push(group);
    canvas.addEventListener("pointermove", (event) => { if (event.pointerType === "mouse") tell(under(group, event)); });
    canvas.addEventListener("click", (event) => {
      const place = under(group, event);
      if (!place) return;
      at = places.indexOf(place);
      moveCursor();
      $("cursor").focus({ preventScroll: true });
      openCard(place.card);
    });
  }
}

function layOut() {
  const width = $("groups").clientWidth || 320;
  measure(width);
  places = [];
  for (const group of groups) {
    const pitch = cell + gap, rowHeight = group.rows * pitch - gap + label + rowGap;
    let left = gutter, row = 0;
    group.places = [];
    for (const member of group.members) {
      const columns = Math.min(group.columns, member.cards.length), own = Math.max(columns * pitch - gap, label ? 84 : 0);
      if (left > gutter && left + own > width) { left = gutter; row += 1; }
      const top = row * rowHeight + label;
      member.cards.forEach((card, k) => {
        group.places.push({ card, group, x: left + (k % columns) * pitch, y: top + Math.floor(k / columns) * pitch });
      });
      Object.assign(member, { x: left, y: label ? top - 5 : top + cell, width: label ? own : gutter - 8, isFirst: left === gutter });
      left += own + rackGap;
    }
    group.width = width;
    group.height = (row + 1) * rowHeight - rowGap + (label ? 2 : 5);
    places.push(...group.places);
  }
  placeOf.clear();
  places.forEach(({ card }, i) => placeOf.set(card, i));
}
const placeOf = new Map();

// --- drawing ----------------------------------------------------------------------------------

function drawMap() {
  const colour = palette();
  for (const group of groups) { draw(group, colour); titleOf(group); }
}
function draw(group, colour) {
  const { canvas } = group, sharp = Math.min(3, Math.max(cards.length > 4000 ? 1 : 2, window.devicePixelRatio || 1));
  const scale = Math.min(sharp, 16000 / group.height);
  canvas.width = Math.round(group.width * scale);
  canvas.height = Math.round(group.height * scale);
  canvas.style.width = `${group.width}px`;
  canvas.style.height = `${group.height}px`;
  const pen = canvas.getContext("2d");
  pen.scale(scale, scale);
  pen.font = `${font}px ui-monospace, Menlo, Consolas, monospace`;
  pen.fillStyle = colour.muted;
  for (const member of group.members) {
    if (label) pen.fillText(shortened(nodes[member.n].name, pen, member.width), member.x, member.y);
    else if (member.isFirst) pen.fillText(shortened(nodes[member.n].name, pen, member.width), 0, member.y + 2);
  }
  for (const { card, x, y } of group.places) {
    pen.globalAlpha = isShown(card) ? 1 : 0.16;
    drawCard(pen, colour, card, x, y);
  }
  pen.globalAlpha = 1;
}
function shortened(name, pen, width) {
  if (pen.measureText(name).width <= width) return name;
  let kept = name;
  while (kept.length > 3 && pen.measureText(`…${kept}`).width > width) kept = kept.slice(1);
  return `…${kept}`;
}
function drawCard(pen, colour, card, x, y) {
  pen.fillStyle = colour.free;
  pen.fillRect(x, y, cell, cell);
  const list = heldBy.get(card);
  if (list) {
    let foot = y + cell;
    const room = levels[card] > 100 ? (cell * 100) / levels[card] : cell;
    for (const i of list) {
      const part = (percentOf[shareOf[i]] / (cards[card].core || 100)) * room;
      const height = Math.max(1, part - (list.length > 1 && cell > 10 ? 1 : 0));
      if (isObserved[shareOf[i]] && colouring === "level") {
        pen.strokeStyle = colour.observed;
        pen.lineWidth = 2;
        pen.strokeRect(x + 1, foot - height + 1, cell - 2, Math.max(1, height - 2));
      } else {
        pen.fillStyle = colour[colourName(card, i)];
        pen.fillRect(x, foot - height, cell, height);
      }
      foot -= part;
    }
  }
  if (cell >= 8) {
    pen.strokeStyle = colour["free-line"];
    pen.lineWidth = 1;
    pen.strokeRect(x + 0.5, y + 0.5, cell - 1, cell - 1);
  }
  if (isClosed[card]) {
    for (const [style, width] of [[colour.free, Math.max(3, cell / 4)], [colour["closed-line"], Math.max(1.25, cell / 9)]]) {
      pen.strokeStyle = style;
      pen.lineWidth = width;
      crossed(pen, x, y, cell / 5);
    }
  }
}
function crossed(pen, x, y, inset) {
  pen.beginPath();
  pen.moveTo(x + inset, y + inset);
  pen.lineTo(x + cell - inset, y + cell - inset);
  pen.moveTo(x + cell - inset, y + inset);
  pen.lineTo(x + inset, y + cell - inset);
  pen.stroke();
}
function titleOf(group) {
  const held = group.places.reduce((sum, { card }) => sum + Math.min(100, levels[card]), 0), count = group.places.length;
  const small = document.createElement("small");
  small.textContent = ` ${counted(group.members.length, "node")}, ${counted(count, "card")}, ${count ? Math.round(held / count) : 0} % held`;
  group.title.replaceChildren(group.kind, small);
}

// --- pointing at a card -----------------------------------------------------------------------

function under(group, event) {
  const box = group.canvas.getBoundingClientRect(), px = event.clientX - box.left, py = event.clientY - box.top, pitch = cell + gap;
  return group.places.find(({ x, y }) => px >= x && px < x + pitch && py >= y && py < y + pitch);
}
let told = -1;
function tell(place) {
  if (place) told = place.card;
  refreshTip();
}
function refreshTip() { if (told >= 0) $("tip").textContent = cardWords(told); }

function moveCursor() {
  const place = places[at];
  if (!place) return;
  const { card, x, y, group } = place, cursor = $("cursor");
  Object.assign(cursor.style, { left: `${group.rack.offsetLeft + x}px`, top: `${group.rack.offsetTop + y}px`, width: `${cell}px`, height: `${cell}px` });
  cursor.setAttribute("aria-label", cardWords(card));
  cursor.classList.toggle("chosen", card === chosen);
}
function listenToCursor() {
  const cursor = $("cursor");
  cursor.addEventListener("click", () => openCard(places[at].card, true));
  cursor.addEventListener("focus", () => tell(places[at]));
  cursor.addEventListener("keydown", (event) => {
    const next = step(event.key);
    if (next === null) return;
    event.preventDefault();
    at = next;
    moveCursor();
    cursor.scrollIntoView({ block: "nearest" });
    tell(places[at]);
    $("said").textContent = cardWords(places[at].card);
  });
}
function step(key) {
  const last = places.length - 1;
  switch (key) {
    case "ArrowRight": return Math.min(last, at + 1);
    case "ArrowLeft": return Math.max(0, at - 1);
    case "Home": return 0;
    case "End": return last;
    case "PageDown": return neighbour(1);
    case "PageUp": return neighbour(-1);
    case "ArrowDown": return above(1);
    case "ArrowUp": return above(-1);
    default: return null;
  }
}
function neighbour(way) {
  const node = (i) => cards[places[i].card].node;
  let next = at;
  while (places[next + way] && node(next) === node(at)) next += way;
  return next;
}
function above(way) {
  const from = (place) => place.group.rack.offsetTop + place.y, here = places[at], y = from(here);
  let best = at, cost = Infinity;
  places.forEach((place, i) => {
    const down = (from(place) - y) * way;
    if (down <= 0) return;
    const price = down * 1000 + Math.abs(place.x - here.x);
    if (price < cost) { cost = price; best = i; }
  });
  return best;
}
