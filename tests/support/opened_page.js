// What tests ask of an opened page, as `look.name(...)`.
(() => {
  const $ = (id) => document.getElementById(id);

  // Where a reader sees each card: the cursor stands for the card it is on.
  function walk() {
    const cursor = $("cursor"), found = [];
    const key = (key) => cursor.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
    cursor.focus({ preventScroll: true });
    key("Home");
    let before = null;
    while (true) {
      const name = cursor.getAttribute("aria-label").split(" · ")[0];
      if (name === before) break;
      const box = cursor.getBoundingClientRect();
      found.push([name, box.left + box.width / 2 + scrollX, box.top + box.height / 2 + scrollY]);
      before = name;
      key("ArrowRight");
    }
    cursor.blur();
    scrollTo(0, 0);
    return found;
  }

  function micros(time) {
    const [, seconds, rest] = /^(.*?:\d\d:\d\d)(?:\.(\d+))?Z$/.exec(time.dateTime);
    return Date.parse(`${seconds}Z`) * 1000 + Number((rest || "0").padEnd(6, "0"));
  }
  // What the panel says of a card: its name, who holds it now, and how many at other times.
  function card() {
    return {
      title: $("panel-title").textContent,
      holders: [...document.querySelectorAll("#holders li")].map((item) => [
        item.querySelector("a").textContent,
        item.querySelector(".facts-line").textContent,
        micros(item.querySelector("time")),
      ]),
      others: document.querySelectorAll("#others li").length,
      scroll: Math.round(scrollY),
      top: Math.round($("groups").getBoundingClientRect().top),
    };
  }
  // How much the panel says of a Pod.
  function pod() {
    const count = (selector) => document.querySelectorAll(selector).length;
    return {
      title: $("panel-title").textContent,
      stays: count("#stays > li"),
      cards: count("#stays a"),
      waits: count("#waits > li"),
      refusals: count("#waits details li"),
      reasons: count("#waits .reasons strong"),
    };
  }

  function moveTo(share) {
    const slider = $("moment"), doc = JSON.parse($("history").textContent);
    slider.value = Math.round(doc.steps * share);
    slider.dispatchEvent(new Event("input", { bubbles: true }));
    return doc.start + Math.floor((doc.end * Number(slider.value)) / doc.steps) * doc.tick;
  }
  function go(hash) {
    location.hash = hash;
    return new Promise((done) => setTimeout(done));
  }

  // Luminance and contrast as WCAG 2 defines them.
  function light(rgb) {
    const linear = (n) => (n <= 0.04045 ? n / 12.92 : ((n + 0.055) / 1.055) ** 2.4);
    const [r, g, b] = rgb.map((n) => linear(n / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  }
  function contrast(one, other) {
    const [dark, bright] = [light(one), light(other)].sort((a, b) => a - b);
    return (bright + 0.05) / (dark + 0.05);
  }
  function colour(text) {
    const numbers = text.match(/[\d.]+/g).map(Number);
    return { rgb: numbers.slice(0, 3), alpha: numbers.length > 3 ? numbers[3] : 1 };
  }
  function behind(element) {
    for (let at = element; at; at = at.parentElement) {
      const { rgb, alpha } = colour(getComputedStyle(at).backgroundColor);
      if (alpha === 1) return rgb;
    }
    throw new Error("nothing is painted behind it");
  }
  // Texts with less contrast than AA asks, by what is painted behind them.
  function faint() {
    const found = [];
    for (const element of document.body.querySelectorAll("*")) {
      const texts = [...element.childNodes].filter((node) => node.nodeType === Node.TEXT_NODE);
      const text = texts.map((node) => node.data.trim()).join("");
      if (!text || !element.checkVisibility()) continue;
      if (element.closest("script, .unseen, .skip, svg")) continue;
      const style = getComputedStyle(element), { rgb, alpha } = colour(style.color);
      if (!alpha) continue;
      const size = parseFloat(style.fontSize);
      const isLarge = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
      const ratio = contrast(rgb, behind(element));
      if (ratio < (isLarge ? 3 : 4.5)) found.push(`${text.slice(0, 30)}: ${ratio.toFixed(2)}`);
    }
    return found;
  }
  // Colours that can't be told from what they lie on.
  function pale() {
    const style = getComputedStyle(document.documentElement);
    const named = (name) => {
      const text = style.getPropertyValue(`--${name}`).trim();
      return [1, 3, 5].map((at) => parseInt(text.slice(at, at + 2), 16));
    };
    const hues = Array.from({ length: 8 }, (_, i) => `hue-${i + 1}`);
    const onCards = ["held", "held-strong", "observed", "closed-line", "hue-other", ...hues];
    const pairs = [...onCards.map((name) => [name, "free"])];
    pairs.push(["control", "paper"], ["focus", "paper"], ["focus", "soft"]);
    const ratios = pairs.map(([one, other]) => [one, other, contrast(named(one), named(other))]);
    return ratios.filter(([, , ratio]) => !(ratio >= 3));
  }

  // What can be touched and is smaller than a finger; a link in a sentence is as high as its line.
  function small() {
    const kinds = ["button", "select", "input", "summary", "a"].map((kind) => `#map ${kind}`);
    const found = [];
    for (const element of document.querySelectorAll(kinds.join(","))) {
      if (!element.checkVisibility() || element.id === "cursor" || element.closest("p")) continue;
      const { width, height } = (element.closest(".show label") || element).getBoundingClientRect();
      if (width < 43.5 || height < 43.5) found.push([element.outerHTML.slice(0, 60), width, height]);
    }
    return found;
  }
  // What is cut off at the edge of the window.
  function wide() {
    const { scrollWidth, clientWidth } = document.documentElement;
    const found = scrollWidth > clientWidth ? ["the page"] : [];
    for (const element of document.body.querySelectorAll("*")) {
      if (!element.checkVisibility()) continue;
      if (element.closest(".unseen, .skip, svg, thead, .lane")) continue;
      const box = element.getBoundingClientRect();
      const isWhole = box.right < clientWidth + 0.5 && box.left > -0.5;
      if (!isWhole) found.push(element.outerHTML.slice(0, 80));
    }
    return found;
  }

  globalThis.look = { walk, card, pod, moveTo, go, faint, pale, small, wide };
})();
