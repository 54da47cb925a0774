// Requests to the API of the console.

export interface ApiFailure {
  code: string;
  message: string;
}

/** An answer of the API about the cluster, with the time of the state that it describes. */
export interface ClusterAnswer<T> {
  asOf: string;
  stale?: string;
  data: T;
}

export class ApiError extends Error {
  constructor(
    readonly code: string,
    message: string,
  ) {
    super(message);
  }
}

/** Reads the API. Every failure is an ApiError. */
export async function request<T>(path: string, body?: unknown, signal?: AbortSignal): Promise<T> {
  const options: RequestInit = { headers: { accept: "application/json", "x-tortie-console": "1" } };
  if (signal) options.signal = signal;
  if (body !== undefined) {
    options.method = "POST";
    options.body = JSON.stringify(body);
    options.headers = { ...options.headers, "content-type": "application/json" };
  }
  let response: Response;
  try {
    response = await fetch(path, options);
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new ApiError("unreachable", "The console does not answer. It is asked again.");
  }
  const value: unknown = await response.json().catch(() => null);
  if (response.ok) return value as T;
  const failure = (value as { error?: ApiFailure } | null)?.error;
  throw new ApiError(failure?.code ?? "status", failure?.message ?? `The console answered with status ${response.status}.`);
}
