"use strict";

const byId = (id) => document.getElementById(id);
const messages = [];
let running = null;

function headers() {
  const key = byId("key").value;
  return key ? { Authorization: `Bearer ${key}` } : {};
}

function element(kind, text, name) {
  const made = document.createElement(kind);
  made.textContent = text;
  if (name) made.className = name;
  return made;
}

function bars(place, entries, spell) {
  const most = Math.max(...entries.map((entry) => entry[1]), 1e-12);
  place.replaceChildren(...entries.map(([name, value]) => {
    const row = element("div", "", "bar");
    const room = element("span", "");
    const fill = element("div", "", "fill");
    fill.style.width = `${(100 * value) / most}%`;
    room.append(fill);
    row.append(element("span", name), room, element("span", spell(value)));
    return row;
  }));
}

function show(figures) {
  byId("model").textContent = `${figures.model}, --speculate ${figures.speculate}`;
  const rows = [
    ["answers that run", figures.num_running],
    ["answers that wait", figures.num_waiting],
    ["committed tokens per second", figures.tokens_per_second.toFixed(1)],
    ["acceptance length", figures.acceptance_length.toFixed(2)],
    ["cache in use", `${(100 * figures.cache_usage).toFixed(0)} %`],
    ["committed tokens", figures.num_committed_tokens],
    ["preemptions", figures.num_preemptions],
  ];
  byId("figures").replaceChildren(...rows.flatMap(([name, value]) => [element("dt", name), element("dd", value)]));
  byId("loads").replaceChildren(...figures.loads.map((load) => {
    const row = document.createElement("tr");
    const cells = [load.num_answers, load.draft_tokens.toFixed(1), load.acceptance_length.toFixed(2),
      load.time_per_committed_token_ms.toFixed(2)];
    row.append(...cells.map((cell) => element("td", cell)));
    return row;
  }));
  const total = Object.values(figures.phase_seconds).reduce((sum, seconds) => sum + seconds, 0) || 1;
  bars(byId("phases"), Object.entries(figures.phase_seconds), (value) => `${((100 * value) / total).toFixed(0)} %`);
  bars(byId("positions"), figures.accepted_per_position.map((count, place) => [`${place + 1}`, count]), String);
}

async function refresh() {
  try {
    const response = await fetch("figures", { headers: headers() });
    const body = await response.json();
    byId("problem").textContent = response.ok ? "" : body.error.message;
    if (response.ok) show(body);
  } catch (error) {
    byId("problem").textContent = "the server does not answer";
  }
}

function colour(place, tokens, runs) {
  let next = 0;
  for (const run of runs) {
    for (let number = 0; number < run.num_tokens && next < tokens.length; number += 1, next += 1) {
      const kind = number < run.num_accepted_draft_tokens ? "accepted" : "drawn";
      place.append(element("span", tokens[next], kind));
    }
  }
  for (; next < tokens.length; next += 1) place.append(element("span", tokens[next]));
}

async function* eventsOf(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const parts = (held + value).split("\n\n");
    held = parts.pop();
    for (const part of parts) if (part.startsWith("data: {")) yield JSON.parse(part.slice(6));
  }
}

async function readAnswer(response, place) {
  let text = "";
  let tokens = [];
  for await (const event of eventsOf(response)) {
    if (event.error) throw new Error(event.error.message);
    for (const choice of event.choices) {
      if (choice.token_ids) tokens.push(choice.delta.content || "");
      text += choice.delta.content || "";
      if (choice.aquiline) {
        colour(place, tokens, choice.aquiline.runs);
        tokens = [];
        byId("chat").scrollTop = byId("chat").scrollHeight;
      }
    }
    if (event.aquiline) {
      const told = event.aquiline;
      byId("answer-figures").textContent = `${told.num_committed_tokens} tokens, acceptance length ` +
        `${told.acceptance_length.toFixed(2)}, ${told.time_per_committed_token_ms.toFixed(2)} ms per committed token`;
    }
  }
  return text;
}

async function ask() {
  const question = byId("question").value;
  messages.push({ role: "user", content: question });
  const place = element("div", "", "assistant");
  byId("chat").append(element("div", question, "user"), place);
  running = new AbortController();
  byId("send").disabled = true;
  byId("stop").disabled = false;
  try {
    const response = await fetch("v1/chat/completions", {
      method: "POST",
      headers: { "Content-Type": "application/json", ...headers() },
      signal: running.signal,
      body: JSON.stringify({
        messages,
        temperature: Number(byId("temperature").value),
        max_tokens: Number(byId("max-tokens").value),
        speculation: { mode: byId("speculate").checked ? "auto" : "off" },
        stream: true,
        stream_tokens: "single",
        return_token_ids: true,
        aquiline: true,
      }),
    });
    if (!response.ok) throw new Error((await response.json()).error.message);
    messages.push({ role: "assistant", content: await readAnswer(response, place) });
    byId("question").value = "";
  } catch (error) {
    messages.pop();
    if (error.name !== "AbortError") place.append(element("em", error.message));
  } finally {
    running = null;
    byId("send").disabled = false;
    byId("stop").disabled = true;
  }
}

byId("ask").addEventListener("submit", (event) => { event.preventDefault(); if (!running) ask(); });
byId("stop").addEventListener("click", () => running && running.abort());
refresh();
setInterval(refresh, 1000);
