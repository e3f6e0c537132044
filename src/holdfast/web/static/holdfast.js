// What the pages do beyond links and forms: times, copying, keys, the slider, zoom by dragging, and the state of the
// live connection. Everything here is a convenience; each page works without it.
"use strict";
(() => {
  const root = document.body.dataset.root || "";
  const find = (selector, within = document) => within.querySelector(selector);
  const all = (selector, within = document) => [...within.querySelectorAll(selector)];

  const stored = {
    get(name) { try { return localStorage.getItem("holdfast-" + name); } catch { return null; } },
    set(name, value) { try { localStorage.setItem("holdfast-" + name, value); } catch { /* storage may be off */ } },
  };

  // ── times ────────────────────────────────────────────────────────────────────────────
  const units = [["day", 86400], ["hour", 3600], ["minute", 60], ["second", 1]];
  const relative = new Intl.RelativeTimeFormat("en", { numeric: "auto", style: "short" });
  const zone = () => (stored.get("utc") === "1" ? "UTC" : undefined);

  function since(date) {
    const seconds = (date - Date.now()) / 1000;
    if (Math.abs(seconds) < 1.5) return "now";
    const [unit, size] = units.find(([, s]) => Math.abs(seconds) >= s) || units[3];
    return relative.format(Math.trunc(seconds / size), unit);
  }

  function showTimes(within = document) {
    for (const element of all("time[data-show]", within)) {
      const date = new Date(element.getAttribute("datetime"));
      if (isNaN(date)) continue;
      const full = date.toLocaleString("en-GB", { timeZone: zone(), timeZoneName: "short" });
      const style = element.dataset.show;
      const options = { timeZone: zone(), hour: "2-digit", minute: "2-digit", second: "2-digit", fractionalSecondDigits: 3 };
      const shown = style === "relative" ? since(date) : style === "time" ? date.toLocaleTimeString("en-GB", options) : full;
      if (element.textContent !== shown) element.textContent = shown;
      element.title = full;
    }
  }
  showTimes();
  setInterval(() => { if (!document.hidden) showTimes(); }, 1000);

  // ── theme and settings ───────────────────────────────────────────────────────────────
  function changeTheme() {
    const dark = getComputedStyle(document.documentElement).getPropertyValue("--is-dark").trim() === "1";
    const next = dark ? "light" : "dark";
    document.documentElement.dataset.theme = next;
    stored.set("theme", next);
  }
  find("#theme")?.addEventListener("click", changeTheme);

  const singleKeys = find("#single-keys"), utc = find("#utc");
  if (singleKeys) {
    singleKeys.checked = stored.get("keys") !== "0";
    singleKeys.addEventListener("change", () => stored.set("keys", singleKeys.checked ? "1" : "0"));
    utc.checked = stored.get("utc") === "1";
    utc.addEventListener("change", () => { stored.set("utc", utc.checked ? "1" : "0"); showTimes(); });
  }

  // ── copying ──────────────────────────────────────────────────────────────────────────
  async function copy(text) {
    try {
      await navigator.clipboard.writeText(text);
    } catch { // plain HTTP has no clipboard
      const area = document.createElement("textarea");
      area.value = text;
      area.className = "visually-hidden";
      document.body.append(area);
      area.select();
      document.execCommand("copy");
      area.remove();
    }
    announce("Copied.");
  }
  function announce(text) {
    const place = find("#announce");
    if (place) place.textContent = text;
  }
  document.addEventListener("click", (event) => {
    const button = event.target.closest?.("[data-copy]");
    if (button) {
      event.preventDefault();
      copy(button.dataset.copy);
      button.classList.add("copied");
      setTimeout(() => button.classList.remove("copied"), 900);
    }
    for (const menu of all("details.menu[open]")) if (!menu.contains(event.target)) menu.open = false;
  });

  // ── the panel of a call ──────────────────────────────────────────────────────────────
  const withPanel = find("#with-panel");
  document.addEventListener("htmx:after:swap", (event) => {
    showTimes();
    const panel = find("#panel");
    const step = panel && find(".call", panel)?.dataset.step;
    if (!withPanel || !step) return;
    const target = event.detail?.ctx?.target || event.target;
    if (target !== panel) return;
    withPanel.classList.add("open");
    for (const row of all(".tl-row.selected")) row.classList.remove("selected");
    find(`#call-${CSS.escape(step)} .tl-row`)?.classList.add("selected");
    const url = new URL(location.href);
    url.searchParams.set("call", step);
    history.replaceState(history.state, "", url);
    if (matchMedia("(max-width: 1100px)").matches) panel.scrollIntoView({ block: "start" });
  });

  // A row's link opens the call next to the timeline. (Not by attributes of each row: 200 rows would be a third longer.)
  document.addEventListener("click", (event) => {
    const row = event.target.closest?.("#timeline a.tl-row");
    const step = row && new URL(row.href).searchParams.get("call");
    if (!step || event.ctrlKey || event.metaKey || event.shiftKey || typeof htmx === "undefined") return;
    event.preventDefault();
    htmx.ajax("GET", `${find("#strip").dataset.link}/calls/${step}`, { target: "#panel", swap: "innerHTML" });
  });

  // ── the slider ───────────────────────────────────────────────────────────────────────
  const slider = find("#slider");
  function showStep(step) {
    find("#step-shown").textContent = step;
    const url = new URL(location.href);
    url.searchParams.set("step", step);
    history.replaceState(history.state, "", url);
  }
  function moveTo(step) {
    slider.value = step;
    showStep(slider.value);
    slider.dispatchEvent(new Event("input", { bubbles: true }));
  }
  if (slider) {
    slider.addEventListener("input", () => showStep(slider.value));
    find("#step-back").addEventListener("click", (event) => { event.preventDefault(); moveTo(+slider.value - 1); });
    find("#step-on").addEventListener("click", (event) => { event.preventDefault(); moveTo(+slider.value + 1); });
  }

  // ── zoom by dragging over the bars ───────────────────────────────────────────────────
  let drag = null;
  const chartAt = (event) => event.target.closest?.("#timeline .tl-axis svg, #strip svg");
  document.addEventListener("pointerdown", (event) => {
    const svg = chartAt(event);
    if (svg && event.button === 0) drag = { svg, from: event.clientX };
  });
  document.addEventListener("pointerup", (event) => {
    if (!drag) return;
    const { svg, from } = drag;
    drag = null;
    const strip = find("#strip"), box = svg.getBoundingClientRect();
    if (!strip || Math.abs(event.clientX - from) < 8) return;
    const share = (x) => Math.min(1, Math.max(0, (x - box.left) / box.width));
    const length = +strip.dataset.length, offset = +strip.dataset.offset;
    const [a, b] = [share(from), share(event.clientX)].sort((x, y) => x - y);
    const url = new URL(strip.dataset.link, location.href);
    url.searchParams.set("from", Math.round(offset + a * length));
    url.searchParams.set("to", Math.round(offset + b * length));
    location.assign(url);
  });

  // ── the state of the live connection ─────────────────────────────────────────────────
  const live = find("#live-state"), stream = find("#stream");
  function show(state) {
    if (!live) return;
    live.dataset.state = state;
    live.textContent = state;
  }
  let paused = false;
  if (stream) {
    show("connecting");
    // htmx repeats a connection that was lost, but not a first one that was refused.
    setTimeout(() => { if (live.dataset.state === "connecting") show("not live"); }, 10000);
    stream.addEventListener("htmx:sse:after:connection", () => show(paused ? "paused" : "live"));
    stream.addEventListener("htmx:sse:error", (event) => {
      if (event.detail?.status === 401) { event.detail.connection.cancelled = true; stream.remove(); show("signed out"); }
      else show("reconnecting");
    });
    stream.addEventListener("signed-out", () => { stream.remove(); show("signed out"); });
    stream.addEventListener("htmx:sse:close", () => { if (live.dataset.state === "live") show("reconnecting"); });
    stream.addEventListener("end", (event) => {
      // Not hx-sse:close: that aborts a stream which is being read, and the browser reports it as an error.
      stream.remove();
      show("ended");
      announce("The run is " + (event.detail?.data || "over") + ".");
    });
    const held = [];
    stream.addEventListener("htmx:sse:before:message", (event) => {
      const busy = paused || all('#bulk input[name="run"]:checked').length > 0 || find("dialog[open]");
      if (busy && !event.detail.message.event) { held.push(1); event.preventDefault(); }
    });
    stream.addEventListener("htmx:sse:after:message", () => showTimes());
    // Connected from here, not by an attribute in the page: htmx reads the page as soon as it is loaded itself, and its
    // extension for streams may still be on the way then. A timer, so that htmx (whose timer is older) comes first.
    setTimeout(() => {
      stream.setAttribute("hx-sse:connect", stream.dataset.live);
      htmx.process(stream);
    });
  }
  function togglePause() {
    if (!stream) return;
    paused = !paused;
    if (paused) show("paused"); else location.reload();
  }

  // ── selecting runs ───────────────────────────────────────────────────────────────────
  const everything = find("#all");
  function countSelected() {
    const n = all('#bulk input[name="run"]:checked').length, place = find("#selected");
    if (place) place.textContent = n ? `${n} selected:` : "Select runs, or act on all that match:";
  }
  everything?.addEventListener("change", () => {
    for (const box of all('#bulk input[name="run"]')) box.checked = everything.checked;
    countSelected();
  });
  find("#bulk")?.addEventListener("change", countSelected);

  // ── keys ─────────────────────────────────────────────────────────────────────────────
  const help = find("#help");
  find("#help-button")?.addEventListener("click", () => help.showModal());
  let going = false;
  const rowLinks = () => all(".rows .main-link, .tl-rows a.tl-row, .tl-rows summary.tl-row, .inbox-item, .events summary");
  function moveRow(by) {
    const rows = rowLinks().filter((row) => row.offsetParent !== null);
    if (!rows.length) return;
    const at = rows.indexOf(document.activeElement);
    const next = rows[Math.min(rows.length - 1, Math.max(0, at < 0 ? (by > 0 ? 0 : rows.length - 1) : at + by))];
    next.focus();
    next.scrollIntoView({ block: "nearest" });
  }
  const current = () => document.activeElement?.closest?.(".inbox-item") || find(".inbox-item");
  const keys = {
    "/": () => { find("#search")?.focus(); },
    "?": () => help?.showModal(),
    j: () => moveRow(1),
    k: () => moveRow(-1),
    x: () => { const box = document.activeElement?.closest?.("tr")?.querySelector("input[type=checkbox]"); if (box) { box.checked = !box.checked; countSelected(); } },
    "[": () => (slider ? moveTo(+slider.value - 1) : find("#panel a[rel=prev]")?.click()),
    "]": () => (slider ? moveTo(+slider.value + 1) : find("#panel a[rel=next]")?.click()),
    "+": () => find("#zoom-in")?.click(),
    "-": () => find("#zoom-out")?.click(),
    0: () => find("#zoom-fit")?.click(),
    ".": togglePause,
    c: () => { const id = find("#run-id"); if (id) copy(id.textContent); },
    t: changeTheme,
    a: () => current()?.querySelector(".approve, .options button, textarea")?.focus(),
    r: () => current()?.querySelector(".reject")?.focus(),
    e: () => current()?.querySelector(".edit")?.focus(),
    g: () => { going = true; setTimeout(() => { going = false; }, 1200); },
  };
  const places = { r: "runs", i: "inbox", f: "fleet", d: "doctor", c: "compare" };
  document.addEventListener("keydown", (event) => {
    if (event.key === "k" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); find("#search")?.focus(); return; }
    const typing = event.target.closest?.("input:not([type=range]):not([type=checkbox]), textarea, select, [contenteditable]");
    if (typing || event.ctrlKey || event.metaKey || event.altKey || find("dialog[open]")) return;
    if (event.key.length === 1 && stored.get("keys") === "0") return;
    if (going && places[event.key]) { going = false; location.assign(`${root}/${places[event.key]}`); return; }
    const action = keys[event.key];
    if (action) { event.preventDefault(); action(); }
  });
})();
