"use strict";
// Follows the queue: when the gateway says that something has changed, takes the live parts of this page from a new copy
// of it. Without this script the page is whole; the link "Reload" does the same by hand.
(() => {
  const button = document.getElementById("live");
  if (!button || !window.EventSource || !document.querySelector("section[data-live]")) return;
  let stream = null;
  let isLooking = false;
  let isWanted = false;

  function say(text) {
    button.textContent = text;
    button.classList.toggle("lost", text === "Not live");
  }

  // What somebody works with stays as it is: a part with the focus, or with selected text.
  function isInUse(part) {
    const selection = getSelection();
    const isSelected = selection.rangeCount > 0 && !selection.isCollapsed && selection.getRangeAt(0).intersectsNode(part);
    return isSelected || part.contains(document.activeElement);
  }

  function take(part, fresh) {
    for (const open of part.querySelectorAll("details[open][id]")) {
      const same = fresh.querySelector(`#${CSS.escape(open.id)}`);
      if (same) same.open = true;
    }
    if (part.innerHTML !== fresh.innerHTML) part.replaceChildren(...fresh.childNodes);
  }

  async function look() {
    isWanted = true;
    if (isLooking) return;
    isLooking = true;
    while (isWanted && stream) {
      isWanted = false;
      const began = performance.now();
      try {
        const answer = await fetch(location.href, { cache: "no-store" });
        if (!answer.ok || answer.redirected) throw new Error(answer.statusText);
        const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
        for (const part of document.querySelectorAll("[data-live]")) {
          const next = fresh.getElementById(part.id);
          if (next && !isInUse(part)) take(part, next);
        }
        if (stream) say("Live");
      } catch {
        if (stream) say("Not live");
      }
      // A slow gateway is asked less often.
      await new Promise((done) => setTimeout(done, Math.min(10 * (performance.now() - began), 30000)));
    }
    isLooking = false;
  }

  function follow() {
    stream = new EventSource("/live");
    stream.onmessage = look;
    stream.onerror = () => stream && say("Not live");
    say("Live");
  }

  function leave() {
    if (stream) stream.close();
    stream = null;
  }

  // A browser has few connections to a host: a page that nobody sees keeps none.
  function update() {
    const isOn = button.getAttribute("aria-pressed") === "true";
    if (!isOn || document.hidden) {
      leave();
      say(isOn ? "Live" : "Paused");
    } else if (!stream) {
      follow();
      look();
    }
  }

  button.addEventListener("click", () => {
    button.setAttribute("aria-pressed", String(button.getAttribute("aria-pressed") !== "true"));
    update();
  });
  document.addEventListener("visibilitychange", update);
  addEventListener("pagehide", leave);
  addEventListener("pageshow", update);
  button.hidden = false;
})();
