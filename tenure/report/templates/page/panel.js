// Beside the map: what stands at this moment, one card over time, one Pod over time, or what was found.
const LIST_MAX = 200, WAITING_FEW = 6;
let view = { kind: "now" };

function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "class") made.className = value; else if (value !== null) made.setAttribute(name, value);
  }
  made.append(...children.filter((child) => child !== null && child !== ""));
  return made;
}
const link = (hash, text) => element("a", { href: hash, class: "name" }, text);
const podLink = (path) => (path ? link(`#pod=${encodeURIComponent(path)}`, path) : element("span", {}, "someone"));
const cardLink = (card) => link(`#card=${encodeURIComponent(cardName(card))}`, cardName(card));
const percentAlong = (ticks) => (doc.end ? (Math.min(Math.max(0, ticks), doc.end) / doc.end) * 100 : 0);
const between = (from, until) => [timeElement(from), " – ", until === Infinity ? "still" : timeElement(until)];
function shareWords(i) {
  const [core, memory, , exclusive, observed] = doc.shares[shareOf[i]], words = [];
  if (core) words.push(`${core} % core`);
  if (memory) words.push(memoryText(memory));
  if (exclusive) words.push("exclusive");
  if (!words.length) words.push(`${percentOf[shareOf[i]]} %`);
  if (observed) words.push("held by others");
  return words.join(" · ");
}
function endWords(i) {
  const [policy, reason] = doc.endings[endingOf[i]], words = [];
  if (reason) words.push(reason);
  if (policy) words.push(policy);
  if (position[i]) words.push(`event ${position[i].toLocaleString("en-US")}`);
  return words.length ? ` · ${words.join(" · ")}` : "";
}
const isNow = (i) => opened[i] <= now && now < closed[i];

// --- which view -------------------------------------------------------------------------------

function readHash() {
  const [, kind, name] = /^#(card|pod)=(.*)$/.exec(location.hash) || [];
  let key = "";
  try { key = decodeURIComponent(name || ""); } catch { return { kind: "now" }; }
  if (kind === "card" && cardByName.has(key)) return { kind, card: cardByName.get(key) };
  if (kind === "pod" && pods.has(key)) return { kind, pod: pods.get(key) };
  if (sought) return { kind: "found" };
  return { kind: filter === "waiting" ? "waits" : "now" };
}
function go(hash) {
  if (location.hash !== hash) history.pushState(null, "", hash || location.pathname + location.search);
  route();
}
function openCard(card, andFocus) {
  go(`#card=${encodeURIComponent(cardName(card))}`);
  if (!andFocus) return;
  keepInSight();
  $("panel").focus({ preventScroll: true });
}
function closePanel() {
  const inside = $("panel").contains(document.activeElement);
  if (view.kind === "found") { sought = ""; $("search").value = ""; drawMap(); }
  if (view.kind === "waits") document.querySelector("input[name=show]").click();
  go("");
  if (inside) $("cursor").focus({ preventScroll: true });
}
function route() {
  view = readHash();
  chosen = view.kind === "card" ? view.card : -1;
  if (chosen >= 0) at = placeOf.get(chosen);
  render();
  moveCursor();
  document.documentElement.classList.toggle("sheet", view.kind !== "now");
  $("close").hidden = view.kind === "now";
  $("panel").scrollTop = 0;
}
// The sheet of a small screen may cover a card that was opened by key. A tap moves nothing.
function keepInSight() {
  const panel = $("panel"), box = $("cursor").getBoundingClientRect();
  if (getComputedStyle(panel).position !== "fixed") return;
  const roof = panel.getBoundingClientRect().top, floor = $("time").getBoundingClientRect().bottom;
  if (box.bottom > roof - 8) scrollBy(0, box.bottom - roof + 8);
  else if (box.top < floor + 20) scrollBy(0, box.top - floor - 20);
}
function render() {
  const { title, body } = { now: viewNow, waits: viewWaits, card: viewCard, pod: viewPod, found: viewFound }[view.kind](view);
  $("panel-title").textContent = title;
  $("panel-body").replaceChildren(...body.filter(Boolean));
}
// The moment changed: the view is the same.
function refreshPanel() {
  const open = [...$("panel-body").querySelectorAll("details")].map((details) => details.open), { scrollTop } = $("panel");
  const focused = document.activeElement, hash = $("panel-body").contains(focused) ? focused.getAttribute("href") : null;
  render();
  $("panel-body").querySelectorAll("details").forEach((details, i) => { details.open = open[i]; });
  if (hash) { const same = $("panel-body").querySelector(`[href="${CSS.escape(hash)}"]`); if (same) same.focus({ preventScroll: true }); }
  $("panel").scrollTop = scrollTop;
}

// --- at this moment ---------------------------------------------------------------------------

function viewNow() {
  const whole = gpus.length || 1, held = gpus.reduce((sum, card) => sum + Math.min(100, levels[card]), 0) / 100;
  const free = gpus.filter(FILTERS.free).length, shut = gpus.filter(FILTERS.closed).length, some = gpus.filter(isHeld).length;
  const facts = [
    ["Allocated", `${held.toLocaleString("en-US", { maximumFractionDigits: 1 })} of ${counted(gpus.length, "GPU")}`, `${Math.round((held / whole) * 100)} %`],
    ["With holders", counted(some, "GPU"), ""], ["Free", counted(free, "GPU"), ""],
    ["Closed to Pods", counted(shut, "GPU"), ""], ["Waiting", `${waitingCount()} Pod${waiting.length === 1 ? "" : "s"}`, ""],
  ];
  const list = element("dl", { class: "facts" });
  for (const [name, value, more] of facts) list.append(element("div", {}, element("dt", {}, name), element("dd", {}, value, more ? element("small", {}, ` ${more}`) : "")));
  return { title: "At this moment", body: [list, ...namespacesNow(whole), ...waitingNow()] };
}
function namespacesNow(whole) {
  const sums = new Map();
  for (const [card, list] of heldBy) {
    if (!cards[card].isGpu) continue;
    for (const i of list) {
      const key = namespaceOf(i);
      if (key) sums.set(key, (sums.get(key) || 0) + percentOf[shareOf[i]] / 100);
    }
  }
  if (!sums.size) return [];
  const rows = element("ul", { class: "bars" });
  const most = Math.max(...sums.values());
  for (const [key, sum] of [...sums].sort((a, b) => b[1] - a[1] || (a[0] < b[0] ? -1 : 1)).slice(0, 10)) {
    const bar = element("span", { class: "bar", "aria-hidden": "true" });
    bar.style.width = `${(sum / most) * 100}%`;
    bar.style.background = `var(--${colouring === "namespace" ? hues.namespace.get(key) : "held"})`;
    rows.append(element("li", {}, element("span", {}, key), element("span", { class: "num" }, sum.toLocaleString("en-US", { maximumFractionDigits: 1 })), bar));
  }
  return [element("h4", {}, "GPUs by namespace"), rows];
}
function waitingNow() {
  if (!waits.length) return [];
  const more = waiting.length - WAITING_FEW;
  return [element("h4", {}, "Pods that wait"), ...waitingList(WAITING_FEW), more > 0 ? element("p", { class: "muted" }, `${more.toLocaleString("en-US")} more: choose Waiting Pods above.`) : ""];
}
function viewWaits() {
  const said = waiting.length ? `${waitingCount()} at this moment, longest first. The map shows the nodes that came closest.` : "";
  return { title: "Pods that wait", body: [said ? element("p", { class: "muted" }, said) : "", ...waitingList(LIST_MAX), ...rest(waiting.length)] };
}
function waitingList(most) {
  if (!waiting.length) return [element("p", { class: "muted" }, doc.waits.left_out ? "None that this page has at this moment." : "None at this moment.")];
  const rows = waiting.slice(0, most).map((wait) => element("li", {}, podLink(wait.path), element("span", { class: "facts-line" }, ...(byTime && now > wait.from ? [`for ${durationText(now - wait.from)}: `] : []), wait.reasons[0] ? wait.reasons[0].reason : wait.refusals.at(-1)[1])));
  return [element("ol", { class: "list", id: "waiting" }, ...rows)];
}
// Where some waits did not fit into the page, there may have been more.
const waitingCount = () => waiting.length.toLocaleString("en-US") + (doc.waits.left_out ? "+" : "");
const rest = (count) => (count > LIST_MAX ? [element("p", { class: "note" }, `The first ${LIST_MAX} of ${count.toLocaleString("en-US")}; the ledger has them all.`)] : []);

// --- one card ---------------------------------------------------------------------------------

function holdItem(i, lead) {
  const line = element("span", { class: "facts-line" }, shareWords(i));
  const when = element("span", { class: "facts-line" }, ...between(opened[i], closed[i]), endWords(i));
  return element("li", { "data-hold": i, "aria-current": isNow(i) ? "true" : null, class: isNow(i) ? "is-now" : "" }, ...lead, line, when);
}
function viewCard({ card }) {
  const mine = holdsOf[card], current = mine.filter(isNow), others = mine.filter((i) => !isNow(i)).reverse();
  const { model, type, memory, node } = cards[card];
  const words = [model || type];
  if (memory) words.push(memoryText(memory));
  words.push(isClosed[card] ? "closed to Pods" : isHeld(card) ? `${level(card)} % held` : "free");
  const body = [element("p", { class: "muted" }, words.join(" · ")), siblings(node, card)];
  for (const outage of outages) {
    if (outage.card === card) body.push(element("p", { class: "closed-line" }, "Closed ", ...between(outage.from, outage.until), `: ${outage.reason}`));
  }
  body.push(strip(mine.map((i) => ({ from: opened[i], until: closed[i], name: podPaths[ofPod[i]] || `${percentOf[shareOf[i]]} %`, kind: isObserved[shareOf[i]] ? "observed" : "" })), outages.filter((outage) => outage.card === card), cardName(card)));
  const list = (id, holds) => element("ol", { class: "list", id }, ...holds.slice(0, LIST_MAX).map((i) => holdItem(i, [podLink(podPaths[ofPod[i]])])));
  body.push(element("h4", {}, "Who holds it at this moment"));
  body.push(current.length ? list("holders", current) : element("p", { class: "muted", id: "holders" }, "Nobody."));
  if (others.length) body.push(element("h4", {}, `At other times: ${counted(others.length, "holding")}`), list("others", others), ...rest(others.length));
  const name = cardName(card);
  body.push(ask(byTime ? `tenure who ${name} --at ${exactText(microseconds(now))}` : `tenure who ${name} --history`));
  return { title: name, body };
}
function siblings(node, card) {
  const row = element("div", { class: "siblings", role: "group", "aria-label": `Cards of ${nodes[node].name}` });
  for (const other of nodes[node].cards) {
    const { type, minor } = cards[other];
    const button = element("a", { href: `#card=${encodeURIComponent(cardName(other))}`, "aria-label": cardWords(other), "aria-current": other === card ? "true" : null }, type === "gpu" ? String(minor) : `${type} ${minor}`);
    button.style.setProperty("--level", `${level(other)}%`);
    if (isClosed[other]) button.classList.add("shut");
    row.append(button);
  }
  return row;
}
const ask = (command) => element("p", { class: "ask" }, "Ask the ledger: ", element("code", {}, command));

function strip(bars, shades, name) {
  const field = element("div", { class: "field" }), ends = [];
  for (const { from, until, reason } of shades) {
    const shade = element("div", { class: "outage", title: `closed: ${reason}` });
    shade.style.left = `${percentAlong(from)}%`;
    shade.style.width = `${percentAlong(until) - percentAlong(from)}%`;
    field.append(shade);
  }
  for (const { from, until, name: text, kind } of bars) {
    let lane = ends.findIndex((end) => end <= from);
    if (lane < 0) lane = ends.length;
    ends[lane] = until;
    const left = percentAlong(from), width = percentAlong(until) - left, isTight = width < 14;
    const bar = element("div", { class: `lane ${kind}${isTight ? " tight" : ""}`, title: `${text}: ${cellText(from)} – ${until === Infinity ? "still" : cellText(until)}` }, isTight ? "" : text);
    bar.style.left = `${left}%`;
    bar.style.width = `${width}%`;
    bar.dataset.lane = lane;
    field.append(bar);
  }
  const isCrowded = ends.length > 4, rise = isCrowded ? 0.55 : 1.3;
  for (const bar of field.querySelectorAll(".lane")) {
    bar.style.bottom = `${bar.dataset.lane * rise}rem`;
    if (isCrowded) { bar.style.height = "0.5rem"; bar.textContent = ""; }
  }
  field.style.height = `${Math.max(1, ends.length) * rise + 0.2}rem`;
  const line = element("div", { class: "now" }), axis = element("div", { class: "x-axis", "aria-hidden": "true" });
  line.style.left = `${percentAlong(now)}%`;
  field.append(line);
  if (byTime) drawAxis(axis); else axis.hidden = true;
  return element("div", { class: "plot strip", role: "img", "aria-label": `${name} over time; the lists below have it in words` }, field, axis);
}

// --- one Pod ----------------------------------------------------------------------------------

function podState({ holds, waits }) {
  const on = holds.filter(isNow);
  if (on.length) {
    const names = on.slice(0, 8).flatMap((i, k) => [k ? ", " : "", cardLink(onCard[i])]);
    return ["Runs at this moment on ", ...names, on.length > 8 ? ` and ${on.length - 8} more` : "", "."];
  }
  const wait = waits.find((wait) => waiting.includes(wait));
  if (wait) return ["Waits at this moment, since ", timeElement(wait.from), byTime ? `: ${durationText(now - wait.from)}.` : "."];
  if (waits.length && waits.every((each) => each.admission)) return ["Was refused at admission: the object never was."];
  const first = Math.min(...holds.map((i) => opened[i]), ...waits.map((each) => each.from));
  return [now < first ? "Not here yet at this moment." : doc.waits.left_out ? "Holds no card at this moment." : "Holds no card at this moment, and does not wait."];
}
function viewPod({ pod }) {
  const body = [element("p", {}, ...podState(pod).filter(Boolean))];
  const bars = [
    ...pod.waits.filter((wait) => !wait.admission).map(({ from, until }) => ({ from, until, name: "waits", kind: "waits" })),
    ...stays(pod.holds).map(([i, all]) => ({ from: opened[i], until: closed[i], name: all.length > 1 ? counted(all.length, "card") : cardName(onCard[i]), kind: "" })),
  ].sort((a, b) => a.from - b.from);
  if (bars.length) body.push(strip(bars, [], pod.path));
  if (pod.holds.length) {
    body.push(element("h4", {}, "Where it ran"));
    const rows = stays(pod.holds).map(([i, all]) => holdItem(i, all.flatMap((hold, k) => [k ? ", " : "", cardLink(onCard[hold])])));
    body.push(element("ol", { class: "list", id: "stays" }, ...rows));
  }
  if (pod.waits.length) {
    body.push(element("h4", {}, pod.waits.every((wait) => wait.admission) ? "Why it was refused" : "Why it waited"));
    body.push(element("ol", { class: "list", id: "waits" }, ...pod.waits.map(waitItem)));
  }
  body.push(ask(`tenure why ${pod.path}`));
  return { title: pod.path, body };
}
// Holdings of one reservation, by its event.
function stays(holds) {
  const found = new Map();
  for (const i of holds) {
    const key = position[i] || `${opened[i]}/${closed[i]}`;
    if (found.has(key)) found.get(key).push(i); else found.set(key, [i]);
  }
  return [...found.values()].map((all) => [all[0], all]);
}
function waitItem(wait) {
  const item = element("li", {});
  const how = wait.admission ? ["Refused at admission, ", timeElement(wait.refusals.at(-1)[0])] : wait.until === Infinity
    ? ["Since ", timeElement(wait.from), ", still waits at the end"]
    : [...between(wait.from, wait.until), `: waited ${byTime ? durationText(wait.until - wait.from) : ""}, then placed${wait.node ? ` on ${wait.node}` : ""}`];
  item.append(element("span", {}, ...how));
  if (wait.shape) item.append(element("span", { class: "facts-line" }, `Asks ${wait.shape}`));
  const reasons = element("ul", { class: "reasons" });
  for (const { reason, count, nearest: node, detail, remedy } of wait.reasons) {
    const told = [detail, node && !detail.includes(node) ? `closest ${node}` : ""].filter(Boolean).join(", ");
    reasons.append(element("li", {}, element("strong", {}, reason), count ? ` on ${counted(count, "node")}` : "", told ? element("span", { class: "facts-line" }, told) : "", remedy ? element("span", { class: "facts-line remedy" }, `Would fit: ${remedy}`) : ""));
  }
  if (wait.reasons.length) item.append(reasons);
  if (wait.means) item.append(element("span", { class: "facts-line means" }, wait.means));
  const messages = element("ol", {}, ...wait.refusals.slice(-LIST_MAX).map(([ticks, message]) => element("li", {}, timeElement(ticks), ` ${message}`)));
  item.append(element("details", {}, element("summary", {}, `${counted(wait.refusals.length, "refusal")} in words`), messages));
  return item;
}

// --- what was found ---------------------------------------------------------------------------

function viewFound() {
  const foundNodes = nodes.filter(({ name }) => name.toLowerCase().includes(sought));
  const foundPods = [...pods.values()].filter(({ path }) => path.toLowerCase().includes(sought));
  const here = (pod) => (pod.holds.some(isNow) ? 0 : pod.waits.some((wait) => waiting.includes(wait)) ? 1 : 2);
  foundPods.sort((a, b) => here(a) - here(b) || (a.path < b.path ? -1 : 1));
  const shown = cards.reduce((sum, _, card) => sum + (isSought(card) ? 1 : 0), 0);
  const body = [element("p", { class: "muted", role: "status" }, `${counted(shown, "card")}, ${counted(foundNodes.length, "node")} and ${counted(foundPods.length, "Pod")} match.`)];
  if (foundNodes.length) {
    body.push(element("h4", {}, "Nodes"), element("ol", { class: "list" }, ...foundNodes.slice(0, 20).map((node) => element("li", {}, node.cards.length ? link(`#card=${encodeURIComponent(cardName(node.cards[0]))}`, node.name) : node.name, element("span", { class: "facts-line" }, counted(node.cards.length, "card"))))));
  }
  if (foundPods.length) {
    const state = ["holds cards at this moment", "waits at this moment", "at another time"];
    body.push(element("h4", {}, "Pods"), element("ol", { class: "list", id: "found-pods" }, ...foundPods.slice(0, LIST_MAX).map((pod) => element("li", {}, podLink(pod.path), element("span", { class: "facts-line" }, state[here(pod)])))), ...rest(foundPods.length));
  }
  return { title: "Found", body };
}
