"use strict";
// Unpacks the history (the document of tenure/report/packing.py), draws the cards at one moment, and
// shows the holders of one card over time. Nothing is fetched; everything works by keyboard.
(() => {
  const holder = document.getElementById("history");
  if (!holder) return;
  const doc = JSON.parse(holder.textContent);
  const $ = (id) => document.getElementById(id);
  const byTime = doc.axis === "time";

  // --- unpacking ------------------------------------------------------------------------------

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
  const summed = (steps) => { let sum = 0; return steps.map((step) => (sum += step)); };
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
  const podPath = (pod) => {
    const namespace = doc.namespaces[podNamespaces[pod]];
    return podNames[pod] ? `${namespace}/${podNames[pod]}` : "";
  };
  const cards = [], nodes = [];
  numbers(doc.nodes).forEach((rack, n) => {
    const mine = [];
    for (const kind of doc.racks[rack]) {
      const [type, minor, model, core, memory] = doc.kinds[kind];
      mine.push(cards.length);
      cards.push({ node: n, type, minor, model, core, memory });
    }
    nodes.push({ name: nodeNames[n], cards: mine });
  });
  const holds = doc.holds;
  const opened = summed(numbers(holds.opened));
  const closed = numbers(holds.lasted).map((n, i) => (n ? opened[i] + n - 1 : Infinity));
  const onCard = summed(numbers(holds.card).map(unzigzag));
  const ofPod = summed(numbers(holds.pod).map(unzigzag));
  const position = summed(numbers(holds.position).map(unzigzag));
  const shareOf = numbers(holds.share);
  const endingOf = numbers(holds.ending);
  const percentOf = doc.shares.map((share) => share[0] || share[2]);
  const isObserved = doc.shares.map((share) => share[4]);
  const outages = doc.outages.map(([card, from, until, reason]) => ({ card, from, until: until === null ? Infinity : until, reason }));

  const cardName = (card) => {
    const { node, type, minor } = cards[card];
    return nodes[node].name + (type === "gpu" ? "/" : `/${type}/`) + minor;
  };

  // --- moments --------------------------------------------------------------------------------

  const moments = Array.from({ length: doc.steps + 1 }, (_, i) => Math.floor((doc.end * i) / doc.steps));
  const changes = (() => {
    if (doc.thinned) return moments;
    const all = [0, doc.end, ...opened, ...closed];
    for (const outage of outages) all.push(outage.from, outage.until);
    return Array.from(new Set(all.filter((at) => at <= doc.end))).sort((a, b) => a - b);
  })();
  let now = moments[doc.first];

  function offsetMinutes(us) {
    let minutes = 0;
    for (const [from, offset] of doc.zone) { if (from > us) break; minutes = offset; }
    return minutes;
  }
  const two = (n) => String(n).padStart(2, "0");
  function timeText(ticks) {
    const us = doc.start + ticks * doc.tick;
    if (!byTime) return us.toLocaleString("en-US");
    const minutes = offsetMinutes(us), date = new Date(us / 1000 + minutes * 60000);
    const sign = minutes < 0 ? "-" : "+", off = Math.abs(minutes);
    return `${date.getUTCFullYear()}-${two(date.getUTCMonth() + 1)}-${two(date.getUTCDate())}T` +
      `${two(date.getUTCHours())}:${two(date.getUTCMinutes())}:${two(date.getUTCSeconds())}` +
      `${sign}${two(Math.floor(off / 60))}:${two(off % 60)}`;
  }
  const oneZone = doc.zone.length < 2;
  const cellTime = (ticks) => (oneZone ? timeText(ticks).replace("T", " ").slice(0, byTime ? 19 : undefined) : timeText(ticks));
  function clockText(ticks) {
    if (!byTime) return `after event ${timeText(ticks)}`;
    const us = doc.start + ticks * doc.tick;
    const day = new Date(us / 1000 + offsetMinutes(us) * 60000).getUTCDay();
    return `${["Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"][day]} ${timeText(ticks).replace("T", " ")}`;
  }

  // --- the state at a moment ------------------------------------------------------------------

  let levels, heldBy, isClosed;
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
  }
  const level = (card) => Math.min(100, Math.round(levels[card]));
  function cardWords(card) {
    const list = heldBy.get(card) || [], model = cards[card].model;
    const words = [cardName(card)];
    if (model) words.push(model);
    words.push(list.length ? `${level(card)} % held` : "free");
    const names = list.map((i) => podPath(ofPod[i])).filter(Boolean);
    if (names.length) words.push(`by ${names.slice(0, 3).join(", ")}${names.length > 3 ? ` and ${names.length - 3} more` : ""}`);
    if (isClosed[card]) words.push("closed to Pods");
    return words.join(" · ");
  }

  // --- the map --------------------------------------------------------------------------------

  const cell = cards.length <= 160 ? 24 : cards.length <= 1600 ? 13 : cards.length <= 9000 ? 8 : 5;
  const gap = cell > 10 ? 2 : 1;
  const named = nodes.length <= 48;
  const label = named ? 17 : 0;
  const rackGap = named ? 18 : cell > 10 ? 12 : 5;
  const groups = [];

  function makeGroups() {
    const byKind = new Map();
    nodes.forEach((node, n) => {
      for (const card of node.cards) {
        const { model, type } = cards[card], key = model || type;
        if (!byKind.has(key)) byKind.set(key, { gpu: type === "gpu", racks: new Map() });
        const { racks } = byKind.get(key);
        if (racks.has(n)) racks.get(n).push(card); else racks.set(n, [card]);
      }
    });
    const size = ({ racks }) => [...racks.values()].reduce((sum, rack) => sum + rack.length, 0);
    const order = ([, one], [, other]) => other.gpu - one.gpu || size(other) - size(one);
    for (const [model, { racks }] of [...byKind].sort(order)) {
      const root = document.createElement("div");
      root.className = "group";
      const title = document.createElement("h3");
      const rack = document.createElement("div");
      rack.className = "rack";
      const canvas = document.createElement("canvas");
      canvas.setAttribute("aria-hidden", "true");
      const cursor = document.createElement("button");
      cursor.type = "button";
      cursor.className = "cursor";
      rack.append(canvas, cursor);
      root.append(title, rack);
      $("groups").append(root);
      const most = [...racks.values()].reduce((max, rack) => Math.max(max, rack.length), 1);
      const columns = Math.min(8, most), rows = Math.ceil(most / columns);
      const members = [...racks].map(([n, rack]) => ({ n, rack, x: 0, y: 0, width: 0 }));
      const group = { model, members, title, canvas, cursor, columns, rows, places: [], at: 0 };
      groups.push(group);
      listen(group);
    }
  }

  function place(group) {
    const width = group.canvas.parentElement.clientWidth || 320;
    const pitch = cell + gap, rowHeight = group.rows * pitch - gap + label + rackGap;
    let left = 0, row = 0;
    group.places = [];
    for (const member of group.members) {
      const columns = Math.min(group.columns, member.rack.length);
      const own = Math.max(columns * pitch - gap, named ? 96 : 0);
      if (left && left + own > width) { left = 0; row += 1; }
      const top = row * rowHeight + label;
      member.rack.forEach((card, k) => {
        group.places.push({ card, x: left + (k % columns) * pitch, y: top + Math.floor(k / columns) * pitch });
      });
      Object.assign(member, { x: left, y: top - 5, width: own });
      left += own + rackGap;
    }
    group.width = width;
    group.height = (row + 1) * rowHeight - rackGap + 2;
  }

  function palette() {
    const style = getComputedStyle(document.documentElement);
    const of = (name) => style.getPropertyValue(`--${name}`).trim();
    return { free: of("free"), line: of("free-line"), held: of("held"), full: of("held-strong"), observed: of("observed"), closed: of("closed-line"), muted: of("muted") };
  }

  function draw(group, colour) {
    const { canvas } = group, scale = Math.min(3, Math.max(2, window.devicePixelRatio || 1));
    canvas.width = Math.round(group.width * scale);
    canvas.height = Math.round(group.height * scale);
    canvas.style.width = `${group.width}px`;
    const pen = canvas.getContext("2d");
    pen.scale(scale, scale);
    if (named) {
      pen.fillStyle = colour.muted;
      pen.font = "12px ui-monospace, Menlo, Consolas, monospace";
      for (const { n, x, y, width } of group.members) pen.fillText(shortened(nodes[n].name, pen, width), x, y);
    }
    for (const { card, x, y } of group.places) drawCard(pen, colour, card, x, y);
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
        if (isObserved[shareOf[i]]) {
          pen.strokeStyle = colour.observed;
          pen.lineWidth = 2;
          pen.strokeRect(x + 1, foot - height + 1, cell - 2, Math.max(1, height - 2));
        } else {
          pen.fillStyle = levels[card] >= 100 ? colour.full : colour.held;
          pen.fillRect(x, foot - height, cell, height);
        }
        foot -= part;
      }
    }
    if (cell >= 8) {
      pen.strokeStyle = colour.line;
      pen.lineWidth = 1;
      pen.strokeRect(x + 0.5, y + 0.5, cell - 1, cell - 1);
    }
    if (isClosed[card]) {
      const inset = cell / 5;
      pen.strokeStyle = colour.free;
      pen.lineWidth = Math.max(3, cell / 4);
      crossed(pen, x, y, inset);
      pen.strokeStyle = colour.closed;
      pen.lineWidth = Math.max(1.25, cell / 9);
      crossed(pen, x, y, inset);
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
    const held = group.places.reduce((sum, { card }) => sum + Math.min(100, levels[card]), 0);
    const count = group.places.length;
    const share = count ? Math.round(held / count) : 0;
    group.title.textContent = group.model;
    const small = document.createElement("small");
    small.textContent = ` ${group.members.length.toLocaleString("en-US")} node${group.members.length === 1 ? "" : "s"}, ${count.toLocaleString("en-US")} card${count === 1 ? "" : "s"}, ${share} % held`;
    group.title.append(small);
  }

  function moveCursor(group) {
    const { card, x, y } = group.places[group.at];
    Object.assign(group.cursor.style, { left: `${x}px`, top: `${y}px`, width: `${cell}px`, height: `${cell}px` });
    group.cursor.setAttribute("aria-label", cardWords(card));
    group.cursor.classList.toggle("chosen", card === chosen);
  }

  function listen(group) {
    const { canvas, cursor } = group;
    const under = (event) => {
      const box = canvas.getBoundingClientRect();
      const px = event.clientX - box.left, py = event.clientY - box.top, pitch = cell + gap;
      return group.places.findIndex(({ x, y }) => px >= x && px < x + pitch && py >= y && py < y + pitch);
    };
    canvas.addEventListener("mousemove", (event) => {
      const found = under(event);
      if (found >= 0) $("tip").textContent = cardWords(group.places[found].card);
      canvas.title = found >= 0 ? cardWords(group.places[found].card) : "";
    });
    canvas.addEventListener("click", (event) => {
      const found = under(event);
      if (found < 0) return;
      group.at = found;
      choose(group.places[found].card);
      cursor.focus({ preventScroll: true });
    });
    cursor.addEventListener("click", () => choose(group.places[group.at].card, true));
    cursor.addEventListener("focus", () => { moveCursor(group); $("tip").textContent = cardWords(group.places[group.at].card); });
    cursor.addEventListener("keydown", (event) => {
      const next = step(group, event.key);
      if (next === null) return;
      event.preventDefault();
      group.at = next;
      moveCursor(group);
      cursor.scrollIntoView({ block: "nearest" });
      $("tip").textContent = cardWords(group.places[next].card);
    });
  }
  function step(group, key) {
    const { places, at } = group, last = places.length - 1;
    switch (key) {
      case "ArrowRight": return Math.min(last, at + 1);
      case "ArrowLeft": return Math.max(0, at - 1);
      case "Home": return 0;
      case "End": return last;
      case "ArrowDown": case "ArrowUp": return nearest(group, key === "ArrowDown" ? 1 : -1);
      default: return null;
    }
  }
  function nearest(group, way) {
    const here = group.places[group.at];
    let best = group.at, cost = Infinity;
    group.places.forEach(({ x, y }, i) => {
      const down = (y - here.y) * way;
      if (down <= 0) return;
      const price = down * 1000 + Math.abs(x - here.x);
      if (price < cost) { cost = price; best = i; }
    });
    return best;
  }

  // --- one card over time ---------------------------------------------------------------------

  const ROWS_MAX = 300;
  let chosen = -1;

  function memoryText(bytes) {
    if (!bytes) return "–";
    const gib = bytes / 2 ** 30;
    return gib >= 1 ? `${Math.round(gib * 10) / 10} GiB` : `${Math.round(bytes / 2 ** 20)} MiB`;
  }
  const percentAlong = (ticks) => (doc.end ? (Math.min(ticks, doc.end) / doc.end) * 100 : 0);

  function choose(card, andFocus) {
    chosen = card;
    const mine = [];
    for (let i = 0; i < onCard.length; i++) if (onCard[i] === card) mine.push(i);
    const info = cards[card];
    $("card-title").textContent = cardName(card);
    const words = [info.model || info.type];
    if (info.memory) words.push(memoryText(info.memory));
    words.push(`${mine.length} holding${mine.length === 1 ? "" : "s"} over the whole period`);
    for (const outage of outages) if (outage.card === card) words.push(`closed ${timeText(outage.from)}${outage.until === Infinity ? "" : ` until ${timeText(outage.until)}`}: ${outage.reason}`);
    $("card-facts").textContent = words.join(" · ");
    drawStrip(card, mine);
    fillTable(mine);
    $("card").hidden = false;
    refreshPanel();
    groups.forEach(moveCursor);
    if (andFocus) $("card").focus();
    else $("card").scrollIntoView({ block: "nearest" });
  }

  function drawStrip(card, mine) {
    const strip = $("strip");
    strip.replaceChildren();
    const field = document.createElement("div");
    field.className = "field";
    const ends = [];
    for (const outage of outages) {
      if (outage.card !== card) continue;
      const shade = document.createElement("div");
      shade.className = "outage";
      shade.title = `closed: ${outage.reason}`;
      shade.style.left = `${percentAlong(outage.from)}%`;
      shade.style.width = `${percentAlong(outage.until) - percentAlong(outage.from)}%`;
      field.append(shade);
    }
    for (const i of mine) {
      let lane = ends.findIndex((end) => end <= opened[i]);
      if (lane < 0) lane = ends.length;
      ends[lane] = closed[i];
      const from = percentAlong(opened[i]), width = percentAlong(closed[i]) - from;
      const bar = document.createElement("div");
      const tight = width < 4;
      bar.className = `lane${tight ? " tight" : ""}${isObserved[shareOf[i]] ? " observed" : ""}`;
      bar.style.left = `${from}%`;
      bar.style.width = `${width}%`;
      bar.style.bottom = `${lane * 1.45}rem`;
      bar.title = `${podPath(ofPod[i])} · ${percentOf[shareOf[i]]} % · ${timeText(opened[i])} – ${closed[i] === Infinity ? "still held" : timeText(closed[i])}`;
      if (!tight) bar.textContent = podPath(ofPod[i]) || `${percentOf[shareOf[i]]} %`;
      field.append(bar);
    }
    field.style.height = `${Math.max(1, ends.length) * 1.45 + 0.2}rem`;
    const cursor = document.createElement("div");
    cursor.className = "now";
    cursor.style.left = `${percentAlong(now)}%`;
    field.append(cursor);
    const axis = document.querySelector("#capacity .x-axis");
    strip.append(field);
    if (axis) strip.append(axis.cloneNode(true));
    strip.setAttribute("role", "img");
    strip.setAttribute("aria-label", `Holders of ${cardName(card)} over time; the table below has them in words`);
  }

  function fillTable(mine) {
    const body = document.querySelector("#holders tbody");
    body.replaceChildren();
    for (const i of mine.slice(-ROWS_MAX)) {
      const share = doc.shares[shareOf[i]], [policy, reason] = doc.endings[endingOf[i]];
      const row = body.insertRow();
      row.dataset.hold = i;
      const cells = [
        podPath(ofPod[i]) || "–", share[0] ? `${share[0]} %` : "–", memoryText(share[1]) + (share[3] ? ", exclusive" : ""),
        cellTime(opened[i]), closed[i] === Infinity ? "still held" : cellTime(closed[i]), reason || "–",
        share[4] ? policy || "held by others" : policy || "–", position[i] ? position[i].toLocaleString("en-US") : "–",
      ];
      cells.forEach((text, column) => {
        const td = row.insertCell();
        td.textContent = text;
        if (column === 1 || column === 2 || column === 7) td.className = "num";
      });
    }
    const more = $("card-more");
    more.hidden = mine.length <= ROWS_MAX;
    more.textContent = `The last ${ROWS_MAX} of ${mine.length} holdings; the ledger has them all.`;
  }

  function refreshPanel() {
    if (chosen < 0) return;
    for (const row of document.querySelectorAll("#holders tbody tr")) {
      const i = Number(row.dataset.hold);
      const isNow = opened[i] <= now && now < closed[i];
      row.classList.toggle("is-now", isNow);
      if (isNow) row.setAttribute("aria-current", "true"); else row.removeAttribute("aria-current");
    }
    const name = cardName(chosen);
    const rest = ((doc.start + now * doc.tick) % 1e6).toString().padStart(6, "0");
    const exact = rest === "000000" ? timeText(now) : `${timeText(now).slice(0, 19)}.${rest}${timeText(now).slice(19)}`;
    $("card-command").textContent = byTime ? `tenure who ${name} --at ${exact}` : `tenure who ${name} --history`;
  }

  // --- moving through time --------------------------------------------------------------------

  const slider = $("moment");
  function show(ticks) {
    now = ticks;
    settle();
    const colour = palette();
    for (const group of groups) { draw(group, colour); titleOf(group); moveCursor(group); }
    $("clock").textContent = clockText(now);
    slider.setAttribute("aria-valuetext", clockText(now));
    for (const line of document.querySelectorAll(".now")) { line.hidden = false; line.style.left = `${percentAlong(now)}%`; }
    refreshPanel();
  }
  function nearestStep(ticks) { return doc.end ? Math.round((ticks / doc.end) * doc.steps) : 0; }
  function jump(way) {
    const next = way > 0 ? changes.find((at) => at > now) : changes.findLast((at) => at < now);
    if (next === undefined) return;
    slider.value = nearestStep(next);
    show(next);
  }
  let playing = null;
  function play(on) {
    clearInterval(playing);
    playing = null;
    $("play").textContent = on ? "Pause" : "Play";
    $("play").setAttribute("aria-pressed", String(on));
    if (!on) return;
    const stride = Math.max(1, Math.round(doc.steps / 240));
    if (Number(slider.value) >= doc.steps) slider.value = 0;
    playing = setInterval(() => {
      slider.value = Math.min(doc.steps, Number(slider.value) + stride);
      show(moments[Number(slider.value)]);
      if (Number(slider.value) >= doc.steps) play(false);
    }, 80);
  }

  function layOut() { groups.forEach(place); show(now); }

  if (byTime && oneZone) $("zone").textContent = ` (${timeText(0).slice(19)})`;
  slider.max = doc.steps;
  slider.value = doc.first;
  slider.addEventListener("input", () => { play(false); show(moments[Number(slider.value)]); });
  $("before").addEventListener("click", () => { play(false); jump(-1); });
  $("after").addEventListener("click", () => { play(false); jump(1); });
  $("play").addEventListener("click", () => play(playing === null));
  $("close").addEventListener("click", () => {
    const group = groups.find(({ places }) => places.some(({ card }) => card === chosen));
    $("card").hidden = true;
    chosen = -1;
    groups.forEach(moveCursor);
    if (group) group.cursor.focus();
  });
  $("card").addEventListener("keydown", (event) => { if (event.key === "Escape") $("close").click(); });
  const field = document.querySelector("#capacity .field");
  if (field) field.addEventListener("click", (event) => {
    const box = field.getBoundingClientRect();
    slider.value = Math.round(((event.clientX - box.left) / box.width) * doc.steps);
    show(moments[Number(slider.value)]);
  });
  $("map").hidden = false;
  makeGroups();
  layOut();
  let width = document.body.clientWidth;
  addEventListener("resize", () => { if (document.body.clientWidth !== width) { width = document.body.clientWidth; layOut(); } });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => show(now));
  addEventListener("beforeprint", () => { document.documentElement.classList.add("print"); layOut(); });
  addEventListener("afterprint", () => { document.documentElement.classList.remove("print"); layOut(); });
})();
