"use strict";
(() => {
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const steps = () => all(".step");

  // Steps: the current step is marked, or the target of the URL, or else the first visible step.
  function current() {
    const marked = document.querySelector(".step.now") || document.querySelector(".step:target");
    if (marked) return marked;
    return steps().find((step) => step.getBoundingClientRect().bottom > 60) || null;
  }
  function goTo(step) {
    all(".step.now").forEach((other) => other.classList.remove("now"));
    step.classList.add("now");
    history.replaceState(null, "", "#" + step.id);
    step.scrollIntoView({ block: "start" });
    step.focus({ preventScroll: true });
  }
  function move(by) {
    const list = steps();
    if (!list.length) return;
    const at = current();
    const marked = at && (at.classList.contains("now") || at.matches(":target"));
    const to = at ? list.indexOf(at) + (marked || by < 0 ? by : 0) : 0;
    if (list[to]) goTo(list[to]);
    else follow(document.querySelector("#more a[rel=" + (by > 0 ? "next" : "prev") + "]"));
  }
  function follow(link) { if (link) location.assign(link.href); }

  function moveRow(by) {
    const links = all("a.row-link");
    const at = links.indexOf(document.activeElement);
    const to = links[at < 0 ? 0 : Math.min(links.length - 1, Math.max(0, at + by))];
    if (to) to.focus();
  }
  function fold() {
    const list = all("details.reasoning");
    const open = list.some((each) => !each.open);
    list.forEach((each) => { each.open = open; });
  }
  // Requests: the page contains each message once. Its text is copied to the place where it is opened.
  function opened(event) {
    const details = event.target;
    if (!details.open) return;
    if (details.matches(".request")) showRequest(details);
    else if (details.matches(".messages .sent") && details.children.length === 1)
      details.append(...[...document.getElementById("message-" + details.dataset.number).cloneNode(true).children].slice(1));
  }
  function showRequest(request) {
    const list = request.querySelector(".messages");
    if (list.children.length) return;
    const fresh = new Set(request.dataset.new.split(" "));
    for (const range of request.dataset.sent.trim().split(" ")) {
      const [first, last] = range.split("-").map(Number);
      for (let number = first; number <= last; number++) {
        const source = document.getElementById("message-" + number);
        if (!source) continue;
        const item = document.createElement("li"), details = document.createElement("details");
        details.className = "sent";
        details.dataset.number = number;
        details.append(source.firstElementChild.cloneNode(true));
        if (fresh.has(String(number))) {
          const mark = document.createElement("span");
          mark.className = "state";
          mark.textContent = "new";
          details.firstElementChild.prepend(mark, " ");
          item.className = "new";
        }
        item.append(details);
        list.append(item);
      }
    }
  }
  document.addEventListener("toggle", opened, true);
  function toggleRequest() {
    const step = current();
    const request = step && step.querySelector(".request");
    if (request) request.open = !request.open;
  }
  const dialog = document.getElementById("keys");
  const keys = {
    l: () => move(1), h: () => move(-1), j: () => moveRow(1), k: () => moveRow(-1),
    L: () => follow(document.querySelector("a[data-key=L]")),
    H: () => follow(document.querySelector("a[data-key=H]")),
    r: fold,
    m: toggleRequest,
    p: () => { const patch = document.getElementById("patch"); if (patch) patch.scrollIntoView({ block: "start" }); },
    "/": () => { const box = document.querySelector("input[type=search]"); if (box) box.focus(); },
    "?": () => dialog.showModal(),
  };
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || dialog.open) return;
    if (event.target.matches("input,select,textarea")) { if (event.key === "Escape") event.target.blur(); return; }
    const action = keys[event.key];
    if (action) { event.preventDefault(); action(); }
  });
  document.getElementById("keys-button").addEventListener("click", () => dialog.showModal());
  addEventListener("hashchange", () => all(".step.now").forEach((step) => step.classList.remove("now")));
  all(".filters select").forEach((box) => box.addEventListener("change", () => box.form.requestSubmit()));
  // The page handles keys from here on. Browser tests wait for this attribute.
  document.documentElement.dataset.ready = "";

  // Live pages: request the page again, and replace the parts that have changed.
  if (!("live" in document.body.dataset)) return;
  const status = document.getElementById("live");
  let tag = "", pause = 1500;
  function update(text) {
    const fresh = new DOMParser().parseFromString(text, "text/html");
    for (const old of all("[data-swap]")) {
      const now = fresh.getElementById(old.id);
      if (!now || now.innerHTML === old.innerHTML) continue;
      if (old.contains(document.activeElement) && document.activeElement.href) {
        const href = document.activeElement.getAttribute("href");
        old.innerHTML = now.innerHTML;
        const again = all("a", old).find((link) => link.getAttribute("href") === href);
        if (again) again.focus({ preventScroll: true });
        continue;
      }
      const open = all("details", old).map((each) => each.open);
      old.innerHTML = now.innerHTML;
      all("details", old).forEach((each, index) => { if (open[index]) each.open = true; });
    }
    for (const old of all("[data-append]")) {
      const now = fresh.getElementById(old.id);
      if (now) for (const child of [...now.children]) if (!document.getElementById(child.id)) old.append(child);
    }
  }
  async function poll() {
    if (!document.hidden) {
      try {
        const answer = await fetch(location.pathname + location.search, { headers: tag ? { "If-None-Match": tag } : {} });
        if (answer.status === 200) {
          tag = answer.headers.get("ETag") || "";
          update(await answer.text());
          pause = 1500;
        } else if (answer.status === 304) pause = Math.min(10000, pause * 1.2);
        else throw new Error(answer.status);
        status.textContent = "";
      } catch {
        pause = Math.min(15000, pause * 2);
        status.textContent = "dgym ui does not answer; this page may be old.";
      }
    }
    setTimeout(poll, pause);
  }
  setTimeout(poll, pause);
})();
