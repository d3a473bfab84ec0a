// Asking the control API. A reply that is an error becomes an `ApiError` with the field and the fix that it names;
// no reply at all becomes a `ConnectionLost`, which the shell shows as a banner.

export const API = "/slipstream/v1";

export class ApiError extends Error {
  constructor(
    readonly status: number,
    message: string,
    readonly field: string | null = null,
    readonly fix: string | null = null,
  ) {
    super(message);
  }
}

export class ConnectionLost extends Error {}

type Listener = () => void;

/** What the whole page knows about its connection: whether the proxy answers, and whether it wants a key. */
class Connection {
  lost = false;
  needsKey = false;
  private listeners = new Set<Listener>();

  set(change: Partial<Pick<Connection, "lost" | "needsKey">>): void {
    const before = `${this.lost} ${this.needsKey}`;
    Object.assign(this, change);
    if (before !== `${this.lost} ${this.needsKey}`) for (const listener of this.listeners) listener();
  }

  listen(listener: Listener): () => void {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }
}

export const connection = new Connection();

export function key(): string | null {
  return sessionStorage.getItem("key");
}

export function setKey(value: string): void {
  if (value) sessionStorage.setItem("key", value);
  else sessionStorage.removeItem("key");
}

/** In whose place an operator looks. Empty: in none's. */
export function tenant(): string {
  return sessionStorage.getItem("tenant") ?? "";
}

/** The whole page is another's then. */
export function goInto(name: string): void {
  if (name) sessionStorage.setItem("tenant", name);
  else sessionStorage.removeItem("tenant");
  location.hash = name ? "#/now" : "#/tenants";
  location.reload();
}

export function headers(): Record<string, string> {
  const known = key();
  const sent: Record<string, string> = known ? { authorization: `Bearer ${known}` } : {};
  if (tenant()) sent["x-slipstream-tenant"] = tenant();
  return sent;
}

/** Raises `ApiError` or `ConnectionLost`; an abort raises the `AbortError` of fetch. */
export async function request(path: string, options: RequestInit = {}): Promise<Response> {
  let response: Response;
  try {
    response = await fetch(API + path, { ...options, headers: { ...headers(), ...options.headers } });
  } catch (e) {
    if (options.signal?.aborted) throw e;
    connection.set({ lost: true });
    throw new ConnectionLost("the proxy does not answer");
  }
  // the data plane answers for a control plane that is away
  connection.set({ lost: response.status === 503 || response.status === 502, needsKey: response.status === 401 });
  if (response.ok) return response;
  if (connection.lost) throw new ConnectionLost(await explain(response).then((e) => e.message));
  throw await explain(response);
}

async function explain(response: Response): Promise<ApiError> {
  try {
    const { error } = (await response.json()) as { error?: { message: string; field?: string; fix?: string } };
    if (error) return new ApiError(response.status, error.message, error.field ?? null, error.fix ?? null);
  } catch {
    // not JSON: the status says what there is to say
  }
  return new ApiError(response.status, `the proxy answered ${response.status}`);
}

export async function ask<T>(path: string, options: RequestInit = {}): Promise<T> {
  const response = await request(path, options);
  try {
    return (await response.json()) as T;
  } catch (e) {
    if (options.signal?.aborted) throw e;
    throw new ConnectionLost("the reply broke off");
  }
}

export function post<T>(path: string, body: unknown): Promise<T> {
  return ask<T>(path, {
    method: "POST",
    body: JSON.stringify(body),
    headers: { "content-type": "application/json" },
  });
}

/** A path with those of the parameters that are set. */
export function withQuery(path: string, query: Record<string, string | number | boolean | null | undefined>): string {
  const search = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    if (value !== null && value !== undefined && value !== "" && value !== false) search.set(name, String(value));
  }
  const text = search.toString();
  return text ? `${path}?${text}` : path;
}
