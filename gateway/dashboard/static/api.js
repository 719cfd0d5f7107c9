// The JSON API, and the key. The key is a variable of this module and is written nowhere.

import { button, h, state } from "./dom.js";

// The page is at …/dashboard/; the API lies beside that, wherever the gateway is mounted.
const ROOT = new URL("../", location.href.split("#")[0]);
let key = "";

export const hasKey = () => key !== "";

export function useKey(value) {
  key = value.trim();
}

/** What the server refused, or that it did not answer (status 0). */
export class ApiError extends Error {
  constructor(status, error, retryAfter) {
    super(error.message || `The server answered with ${status}.`);
    this.status = status;
    this.code = error.code;
    this.param = error.param;
    this.retryAfter = retryAfter;
  }
}

async function send(path, { method = "GET", body, headers = {}, signal } = {}) {
  const given = { ...headers };
  if (key) given.authorization = `Bearer ${key}`;
  if (body !== undefined) given["content-type"] = "application/json";
  try {
    return await fetch(new URL(path, ROOT), {
      method,
      headers: given,
      body: body === undefined ? undefined : typeof body === "string" ? body : JSON.stringify(body),
      signal,
      cache: "no-store",
      credentials: "omit",
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, { message: "The gateway does not answer. Is it running, and is the network there?" });
  }
}

async function refused(response) {
  let error = {};
  try {
    error = (await response.json()).error || {};
  } catch {
    // A proxy's own page, perhaps: the status has to do.
  }
  return new ApiError(response.status, error, response.headers.get("retry-after"));
}

/** The JSON that the server answers with. Throws ApiError, also for what is not ok. */
export async function call(path, options = {}) {
  const response = await send(path, options);
  if (!response.ok && !(options.accept || []).includes(response.status)) throw await refused(response);
  return JSON.parse(await response.text(), exact);
}

/** A whole number too large for a float, such as a seed, stays the digits that were sent. */
const exact = (_, value, context) =>
  typeof value === "number" && Number.isInteger(value) && !Number.isSafeInteger(value) ? (context?.source ?? value) : value;

/** Text, such as the metrics. */
export async function text(path, options = {}) {
  const response = await send(path, options);
  if (!response.ok) throw await refused(response);
  return response.text();
}

/** A stream of events: `opened` gets the headers, `event` each object. Throws ApiError. */
export async function stream(path, options, { opened, event }) {
  const response = await send(path, { method: "POST", ...options });
  if (!response.ok) throw await refused(response);
  opened(response.headers);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) break;
    const frames = (rest + value).split("\n\n");
    rest = frames.pop();
    for (const frame of frames) {
      if (!frame.startsWith("data: ") || frame === "data: [DONE]") continue;
      const found = JSON.parse(frame.slice(6));
      if (found.error) throw new ApiError(200, found.error);
      event(found);
    }
  }
}

export function query(values) {
  const pairs = Object.entries(values).filter(([, value]) => value !== "" && value != null);
  return new URLSearchParams(pairs).toString();
}

/** The page's words for a failure; `retry` tries again, `needs` names the scope of the figures. */
export function failure(error, { retry, needs } = {}) {
  const again = retry && button("Try again", retry);
  const ask = h("button", { type: "button", class: "primary", "data-opens": "key" }, "Enter a key");
  if (error.status === 401) {
    return state("This gateway asks for a key", error.message, { action: h("p", { class: "actions" }, ask, again) });
  }
  if (error.status === 403) {
    const scope = needs && `It needs a key with the scope ${needs}. `;
    return state("This key may not see it", [scope, error.message], {
      action: h("p", { class: "actions" }, ask, again),
    });
  }
  const titles = { 0: "No answer", 404: "Not found", 409: "Not possible now", 412: "Somebody was faster" };
  const title = titles[error.status] || "That did not work";
  return state(title, error.message || String(error), { action: again && h("p", { class: "actions" }, again), kind: "bad" });
}
