/** The server's answers, and its errors as ApiError. */

const BASE = "/api/v1";

/** An answer that is an error, or none at all (status 0, code "no_answer"). */
export class ApiError extends Error {
  constructor(status, code, message) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

export const isAbort = (error) => error?.name === "AbortError";

// texts are matched as a whole, so that digits in them are left alone
const TEXT_OR_LONG = /"[^"\\]*(?:\\.[^"\\]*)*"|(?<![\d.])-?\d{16,}(?![\d.eE])/g;

/** An integer beyond 2^53 would be another number: it stays as it is, as text. */
const exactly = (token) => (token[0] === '"' || Number.isSafeInteger(Number(token)) ? token : `"${token}"`);

async function ask(path, options) {
  let response;
  try {
    response = await fetch(path, { credentials: "same-origin", ...options });
  } catch (error) {
    if (isAbort(error)) throw error;
    throw new ApiError(0, "no_answer", "The server does not answer. Is auxbit serve still running?");
  }
  let content = null;
  try {
    content = JSON.parse((await response.text()).replace(TEXT_OR_LONG, exactly));
  } catch (error) {
    if (isAbort(error)) throw error;
  }
  if (response.ok && content !== null) return content;
  const told = content?.error;
  throw new ApiError(
    response.status, told?.code ?? "unreadable",
    told?.message ?? `The server answered with status ${response.status} and nothing that can be read.`,
  );
}

/** "?k=20&radius=3"; what is null or empty is left out. */
export function parameters(values) {
  const isGiven = ([, value]) => value !== null && value !== undefined && value !== "";
  const given = Object.entries(values).filter(isGiven);
  const text = new URLSearchParams(given).toString();
  return text ? `?${text}` : "";
}

const get = (path, values = {}, signal) => ask(BASE + path + parameters(values), { signal });

export const stats = () => get("/stats");
export const model = () => get("/model");
export const comparison = () => get("/comparison");
export const item = (id, signal) => get(`/items/${id}`, {}, signal);

/** Pictures `offset` to `offset + limit` of all, or of those with `name` in their file name. */
export function items({ name, seed, offset, limit, list, where }, signal) {
  if (list) return get("/items", { where, offset, limit }, signal);
  const order = name ? { name, order: "name" } : { order: "random", seed };
  return get("/items", { ...order, offset, limit }, signal);
}

/** Search from an item (id), a text, or a picture that was uploaded before (upload: its hash). */
export function search({ id, upload, text, k, mode, radius, where }, signal) {
  return get("/search", { id, upload, text, k, mode, radius, where, codes: true }, signal);
}

/** Search with numbers. */
export function searchVector(vector, { k, mode, radius, where }, signal) {
  const body = JSON.stringify({ vector, k, mode, radius, where: where ?? null, codes: true });
  const headers = { "Content-Type": "application/json" };
  return ask(`${BASE}/search/vector`, { method: "POST", body, headers, signal });
}

/** Groups of items that are the same (radius null), or nearly so. */
export const duplicates = ({ radius, offset, limit }) => get("/duplicates", { radius, offset, limit });

/** Search with a file. */
export function searchFile(file, name, { k, mode, radius, where }, signal) {
  const body = new FormData();
  body.append("file", file, name);
  return ask(`${BASE}/search/upload${parameters({ k, mode, radius, where })}`, { method: "POST", body, signal });
}
