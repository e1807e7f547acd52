// Moving through time, choosing what is shown, and keeping it all together.
const slider = $("moment");
const gpus = cards.map((_, card) => card).filter((card) => cards[card].isGpu);
const main = gpus.length ? gpus : cards.map((_, card) => card);
function show(ticks) {
  now = ticks;
  settle();
  drawMap();
  moveCursor();
  refreshTip();
  const text = momentText(now);
  $("clock").textContent = text;
  slider.setAttribute("aria-valuetext", text);
  for (const line of document.querySelectorAll("#capacity .now")) { line.hidden = false; line.style.left = `${percentAlong(now)}%`; }
  for (const name of Object.keys(FILTERS)) {
    $(`count-${name}`).textContent = name === "waiting" ? waitingCount() : main.filter(FILTERS[name]).length.toLocaleString("en-US");
  }
  refreshPanel();
}
const stepOf = (ticks) => (doc.end ? Math.round((ticks / doc.end) * doc.steps) : 0);
function jump(way) {
  const next = way > 0 ? changes.find((at) => at > now) : changes.findLast((at) => at < now);
  if (next === undefined) return;
  slider.value = stepOf(next);
  show(next);
}
let playing = null;
function play(on) {
  clearInterval(playing);
  playing = null;
  $("play").textContent = on ? "Pause" : "Play";
  $("play").setAttribute("aria-pressed", String(on));
  if (!on) return;
  const isCalm = matchMedia("(prefers-reduced-motion: reduce)").matches;
  const stride = Math.max(1, Math.round(doc.steps / (isCalm ? 28 : 240)));
  if (Number(slider.value) >= doc.steps) slider.value = 0;
  playing = setInterval(() => {
    slider.value = Math.min(doc.steps, Number(slider.value) + stride);
    show(moments[Number(slider.value)]);
    if (Number(slider.value) >= doc.steps) play(false);
  }, isCalm ? 1000 : 80);
}

function drawLegend() {
  const list = $("hues"), ranks = rankings[colouring] || [];
  list.hidden = !ranks.length;
  $("levels").hidden = Boolean(ranks.length);
  list.replaceChildren(...ranks.slice(0, HUES).map((key, i) => {
    const item = element("li", {}, element("span", { class: "swatch", "aria-hidden": "true" }), key);
    item.firstChild.style.background = `var(--hue-${i + 1})`;
    return item;
  }));
  if (ranks.length > HUES) {
    const item = element("li", {}, element("span", { class: "swatch", "aria-hidden": "true" }), `${ranks.length - HUES} more`);
    item.firstChild.style.background = "var(--hue-other)";
    list.append(item);
  }
}
function sayTimes() {
  document.querySelectorAll("time[data-us]").forEach(fillTime);
  document.querySelectorAll("#capacity .x-axis").forEach(drawAxis);
  show(now);
}
function reflow() { layOut(); show(now); }

slider.max = doc.steps;
slider.value = doc.first;
slider.addEventListener("input", () => { play(false); show(moments[Number(slider.value)]); });
$("before").addEventListener("click", () => { play(false); jump(-1); });
$("after").addEventListener("click", () => { play(false); jump(1); });
$("play").addEventListener("click", () => play(playing === null));
$("close").addEventListener("click", closePanel);
addEventListener("keydown", (event) => { if (event.key === "Escape" && view.kind !== "now") closePanel(); });
addEventListener("popstate", route);
addEventListener("hashchange", route);
$("search").addEventListener("input", () => {
  sought = $("search").value.trim().toLowerCase();
  drawMap();
  if (location.hash) go(""); else route();
});
$("search").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || !sought) return;
  const first = places.findIndex(({ card }) => isShown(card));
  if (first >= 0) { at = first; openCard(places[first].card, true); }
});
for (const radio of document.querySelectorAll("input[name=show]")) {
  radio.addEventListener("change", () => { filter = radio.value; drawMap(); route(); });
}
$("colour").addEventListener("change", () => { colouring = $("colour").value; drawLegend(); drawMap(); refreshPanel(); });
const capacity = document.querySelector("#capacity .field");
if (capacity) capacity.addEventListener("click", (event) => {
  const box = capacity.getBoundingClientRect();
  slider.value = Math.round(((event.clientX - box.left) / box.width) * doc.steps);
  show(moments[Number(slider.value)]);
});
if (byTime) {
  const isUtcHere = new Date(doc.start / 1000).getTimezoneOffset() === 0 && new Date((doc.start + doc.end * doc.tick) / 1000).getTimezoneOffset() === 0;
  $("zone").options[0].textContent = isUtcHere ? "UTC" : zoneName();
  if (isUtcHere) $("zone").options[1].remove();
  $("zone").addEventListener("change", () => { inUtc = $("zone").value === "utc"; sayTimes(); });
}
$("map").hidden = false;
settle();
makeGroups();
layOut();
drawLegend();
listenToCursor();
if (byTime) sayTimes(); else show(now);
route();
let width = document.body.clientWidth;
addEventListener("resize", () => { if (document.body.clientWidth !== width) { width = document.body.clientWidth; reflow(); } });
coarse.addEventListener("change", reflow);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawMap);
addEventListener("beforeprint", () => { document.documentElement.classList.add("print"); reflow(); });
addEventListener("afterprint", () => { document.documentElement.classList.remove("print"); reflow(); });
