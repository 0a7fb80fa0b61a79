// Updates a page from its stream of server-sent events, counts times, and sends the requests of buttons to the API.
// The server has escaped the HTML that it sends. This script never turns any other text into markup.

const byId = (id) => document.getElementById(id);

// --- the stream ---------------------------------------------------------------------------------------------------------

const SILENT_MS = 35_000; // the server sends a heartbeat every 15 s
let source = null;
let receivedAt = 0;
let retry = 0;

function listen() {
  const stream = document.body.dataset.stream;
  if (!stream || source) return;
  source = new EventSource(stream);
  source.addEventListener("open", received);
  source.addEventListener("alive", received);
  source.addEventListener("part", (event) => {
    const { name, html } = JSON.parse(event.data);
    const part = byId(name);
    if (part && "part" in part.dataset) {
      Idiomorph.morph(part, html, { morphStyle: "innerHTML", callbacks: { beforeAttributeUpdated: keepOpen } });
      count(part);
    }
    received();
  });
  source.addEventListener("news", (event) => {
    byId("news").textContent = JSON.parse(event.data).text;
  });
  source.addEventListener("pace", (event) => {
    document.dispatchEvent(new CustomEvent("pace", { detail: JSON.parse(event.data) }));
    received();
  });
  source.addEventListener("error", () => {
    showLiveness("off", "reconnecting");
    if (source.readyState === EventSource.CLOSED) {
      // The server refused the stream: too many streams, or the controller is stopping. The browser does not retry.
      disconnect();
      retry = setTimeout(listen, 5000);
    }
  });
}

function disconnect() {
  clearTimeout(retry);
  source?.close();
  source = null;
}

function received() {
  receivedAt = Date.now();
  showLiveness("on", "live");
}

function showLiveness(state, words) {
  const liveness = byId("liveness");
  if (liveness.dataset.state === state && liveness.textContent === words) return;
  liveness.dataset.state = state;
  liveness.textContent = words;
}

// Keep sections that the reader has unfolded.
const keepOpen = (attribute, node) => !(attribute === "open" && node.tagName === "DETAILS");

// A browser opens at most six connections to a server, so hidden pages close theirs.
document.addEventListener("visibilitychange", () => {
  if (document.hidden) disconnect();
  else listen();
});
window.addEventListener("pagehide", disconnect);
window.addEventListener("pageshow", listen);

// --- times --------------------------------------------------------------------------------------------------------------

function span(seconds) {
  const whole = Math.max(0, Math.round(seconds));
  if (whole < 120) return `${whole} s`;
  const [small, large, units] =
    whole < 3600 ? [1, 60, ["min", "s"]] : whole < 172800 ? [60, 3600, ["h", "min"]] : [3600, 86400, ["d", "h"]];
  const rest = Math.floor((whole % large) / small);
  return `${Math.floor(whole / large)} ${units[0]}` + (rest ? ` ${rest} ${units[1]}` : "");
}

function count(within = document) {
  for (const time of within.querySelectorAll("time[data-count]")) {
    const ahead = (Date.parse(time.dateTime) - Date.now()) / 1000;
    const how = time.dataset.count;
    const words = how === "for" ? span(-ahead) : how === "ago" ? `${span(-ahead)} ago` : ahead > 0 ? `in ${span(ahead)}` : "now";
    if (time.textContent !== words) time.textContent = words;
  }
}

setInterval(() => {
  count();
  if (source && Date.now() - receivedAt > SILENT_MS) {
    showLiveness("off", "no data");
    disconnect();
    listen();
  }
}, 1000);

// --- the theme ----------------------------------------------------------------------------------------------------------

const THEMES = ["", "light", "dark"];
const THEME_WORDS = { "": "as the system's", light: "light", dark: "dark" };

function showTheme() {
  const theme = document.documentElement.dataset.theme ?? "";
  byId("theme").setAttribute("aria-label", `Theme: ${THEME_WORDS[theme]}`);
  byId("theme").dataset.theme = theme;
  document.dispatchEvent(new Event("theme"));
}

byId("theme").addEventListener("click", () => {
  const root = document.documentElement;
  const next = THEMES[(THEMES.indexOf(root.dataset.theme ?? "") + 1) % THEMES.length];
  if (next) root.dataset.theme = next;
  else delete root.dataset.theme;
  try {
    if (next) localStorage.setItem("theme", next);
    else localStorage.removeItem("theme");
  } catch {
    // No storage: the theme applies to this page only.
  }
  showTheme();
});

// --- what needs a login -------------------------------------------------------------------------------------------------

const dialog = byId("dialog");
const form = dialog.querySelector("form");
const answer = byId("dialog-answer");
// Shows that the request comes from one of these pages: browsers send the session's cookie with requests of any site.
const csrf = document.querySelector("meta[name=csrf]")?.content ?? "";
let asked = null;

// A user may open .../#token=TOKEN. Browsers never send a fragment, and this script removes it from the address at once.
// It fills in the login form, and the user submits it: a link must not log a user in under another account.
const fragment = new URLSearchParams(location.hash.slice(1)).get("token") ?? "";
if (fragment) {
  history.replaceState(null, "", location.pathname + location.search);
  const login = byId("login");
  if (login) {
    login.elements.token.value = fragment;
    login.querySelector("button").focus();
  } else if (!csrf) {
    location.assign(`/login?next=${encodeURIComponent(location.pathname + location.search)}#token=${encodeURIComponent(fragment)}`);
  }
}

function post(path, body) {
  return fetch(path, {
    method: "POST",
    headers: { "Content-Type": "application/json", "X-Gangwatch-Csrf": csrf },
    body: JSON.stringify(body),
  });
}

byId("log-out")?.addEventListener("click", async () => {
  await post("/logout", {}).catch(() => null);
  location.reload();
});

document.addEventListener("click", (event) => {
  const button = event.target.closest("button[data-post]");
  if (!button) return;
  asked = { path: button.dataset.post, opener: button };
  byId("dialog-question").textContent = button.dataset.question;
  dialog.querySelector(".reason").hidden = !("reason" in button.dataset);
  form.elements.reason.value = "";
  answer.textContent = "";
  dialog.showModal();
  (csrf ? dialog.querySelector("button[type=submit]") : dialog.querySelector(".hint a")).focus();
});

dialog.querySelector("[data-close]").addEventListener("click", () => dialog.close());

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  const body = { by: "the page", ...(form.elements.reason.value ? { reason: form.elements.reason.value } : {}) };
  answer.textContent = "";
  try {
    const response = await post(asked.path, body);
    if (response.ok) {
      dialog.close();
      return;
    }
    const refusal = await response.json().catch(() => null);
    answer.textContent = refusal?.error ?? `The controller responded with status ${response.status}.`;
  } catch {
    answer.textContent = "The controller does not respond.";
  }
});

showTheme();
count();
if (!document.hidden) listen();
document.dispatchEvent(new Event("ready-for-clicks")); // see clicks.js
