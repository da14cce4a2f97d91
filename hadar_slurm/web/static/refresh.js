// Fetches the page again every few seconds and puts its content in place, as long as nobody has
// paused it and the page is in sight. Without this script the browser loads the page anew.
"use strict";

(() => {
  const button = document.getElementById("pause");
  const everyMs = 1000 * Number(button.dataset.every);
  let isPaused = false;
  let last = "";

  // What a reader has opened or scrolled stays so.
  function keep(old, fresh) {
    for (const one of old.querySelectorAll("details[id][open]")) {
      fresh.querySelector(`details[id="${CSS.escape(one.id)}"]`)?.setAttribute("open", "");
    }
    const scrolled = [...old.querySelectorAll(".wide[id]")].map((one) => [one.id, one.scrollLeft]);
    const focused = document.activeElement?.closest("main [id]")?.id;
    const link = document.activeElement?.closest("main")
      ? document.activeElement.getAttribute("href") : null;
    return () => {
      for (const [id, left] of scrolled) {
        const one = document.getElementById(id);
        if (one) one.scrollLeft = left;
      }
      const target = link !== null
        ? [...fresh.querySelectorAll("a")].find((one) => one.getAttribute("href") === link)
        : focused && document.getElementById(focused);
      target?.focus({ preventScroll: true });
    };
  }

  async function refresh() {
    if (isPaused || document.hidden) return;
    let text = "";
    try {
      const answer = await fetch(location.href, { cache: "no-store" });
      if (!answer.ok) return;
      text = await answer.text();
    } catch {
      button.textContent = "Not reachable";
      return;
    }
    button.textContent = isPaused ? "Go on" : "Pause";
    if (text === last || isPaused) return;
    const fresh = new DOMParser().parseFromString(text, "text/html").querySelector("main");
    const old = document.querySelector("main");
    if (!fresh || document.getSelection()?.type === "Range") return;
    last = text;
    const restore = keep(old, fresh);
    old.replaceWith(fresh);
    restore();
  }

  button.addEventListener("click", () => {
    isPaused = !isPaused;
    button.textContent = isPaused ? "Go on" : "Pause";
    refresh();
  });
  button.hidden = false;
  setInterval(refresh, everyMs);
})();
