// Moments as people read them: in the reader's own zone or in UTC, and the zone is said.
const MINUTE = 60, HOUR = 3600, DAY = 86400;
const WEEKDAYS = ["Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"];
const MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
let inUtc = false;

const two = (n) => String(n).padStart(2, "0");
const microseconds = (ticks) => doc.start + Math.round(ticks * doc.tick);
const offsetMinutes = (us) => (inUtc ? 0 : -new Date(us / 1000).getTimezoneOffset());
function parts(us) {
  const minutes = offsetMinutes(us), date = new Date(Math.floor(us / 1000) + minutes * 60000), off = Math.abs(minutes);
  return {
    day: `${date.getUTCDate()} ${MONTHS[date.getUTCMonth()]}`, weekday: WEEKDAYS[date.getUTCDay()], year: date.getUTCFullYear(),
    date: `${date.getUTCFullYear()}-${two(date.getUTCMonth() + 1)}-${two(date.getUTCDate())}`,
    minute: `${two(date.getUTCHours())}:${two(date.getUTCMinutes())}`, second: two(date.getUTCSeconds()),
    offset: `${minutes < 0 ? "-" : "+"}${two(Math.floor(off / 60))}:${two(off % 60)}`,
  };
}
const zoneName = () => (inUtc ? "UTC" : Intl.DateTimeFormat().resolvedOptions().timeZone || "local time");

// To the microsecond, for the ledger.
function exactText(us) {
  const { date, minute, second, offset } = parts(us), rest = us % 1e6;
  return `${date}T${minute}:${second}${rest ? `.${String(rest).padStart(6, "0")}` : ""}${offset}`;
}
function clockText(us) {
  const { weekday, day, year, minute, second, offset } = parts(us);
  return `${weekday} ${day} ${year}, ${minute}:${second} ${offset}`;
}
function shortText(us) {
  const { day, minute, second } = parts(us);
  return `${day} ${minute}:${second}`;
}
const momentText = (ticks) => (byTime ? clockText(microseconds(ticks)) : `after event ${microseconds(ticks).toLocaleString("en-US")}`);
const cellText = (ticks) => (byTime ? shortText(microseconds(ticks)) : `event ${microseconds(ticks).toLocaleString("en-US")}`);

// A moment as an element that says itself again when the zone changes.
function timeElement(ticks) {
  if (!byTime) return cellText(ticks);
  const us = microseconds(ticks), time = document.createElement("time");
  time.dataset.us = us;
  time.dataset.form = "short";
  fillTime(time);
  return time;
}
function fillTime(time) {
  const us = Number(time.dataset.us);
  const keptUtc = inUtc;
  time.textContent = time.dataset.form === "short" ? shortText(us) : clockText(us);
  inUtc = true;
  time.dateTime = exactText(us).replace("+00:00", "Z");
  inUtc = keptUtc;
}
function durationText(ticks) {
  const seconds = Math.round((ticks * doc.tick) / 1e6), found = [];
  let rest = seconds;
  for (const [unit, size] of [["d", DAY], ["h", HOUR], ["m", MINUTE], ["s", 1]]) {
    if (rest >= size) { found.push(`${Math.floor(rest / size)}${unit}`); rest %= size; }
  }
  return found.slice(0, 2).join(" ") || "0s";
}

// Marks of the axis in the zone that is shown: midnights, or round hours.
function axisMarks() {
  const end = doc.start + doc.end * doc.tick, span = (end - doc.start) / 1e6;
  const steps = [1, 5, 15, 30, ...[1, 5, 15, 30].map((n) => n * MINUTE), ...[1, 3, 6, 12].map((n) => n * HOUR), ...[1, 2, 7, 14, 28, 91, 182, 364].map((n) => n * DAY)];
  const step = steps.find((s) => span / s <= 8) || steps.at(-1), marks = [];
  const local = (us) => us / 1e6 + offsetMinutes(us) * 60;
  const first = Math.floor(local(doc.start) / DAY) * DAY;
  for (let at = first; marks.length < 12; at += step) {
    let us = (at - offsetMinutes(doc.start) * 60) * 1e6;
    us = (at - offsetMinutes(us) * 60) * 1e6;
    if (us > end) break;
    if (us < doc.start) continue;
    const { weekday, day, minute, second } = parts(us), isDay = step >= DAY || at % DAY === 0;
    marks.push({ percent: ((us - doc.start) / (end - doc.start)) * 100, label: isDay ? `${weekday} ${day}` : step < MINUTE ? `${minute}:${second}` : minute });
  }
  return marks;
}
function drawAxis(axis) {
  axis.replaceChildren(...axisMarks().map(({ percent, label }, i) => {
    const mark = document.createElement("span");
    mark.className = `${percent < 4 ? "left" : percent > 96 ? "right" : ""}${i % 2 ? " minor" : ""}`;
    mark.style.left = `${percent}%`;
    mark.textContent = label;
    return mark;
  }));
}
