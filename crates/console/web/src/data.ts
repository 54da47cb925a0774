// Hooks that load data from the API.
import { useEffect, useState } from "preact/hooks";
import { ApiError, type ClusterAnswer, request } from "./api";
import { generation } from "./live";
import { signedOut } from "./session";

export interface Loaded<T> {
  answer: ClusterAnswer<T> | null;
  error: ApiError | null;
  loading: boolean;
}

/** Delay before a failed request is repeated. */
const RETRY_DELAY = 3000;

/** Loads a path, and loads it again when the cluster has changed or after a time. The last answer stays until there is another. */
export function useCluster<T>(path: string | null, refreshSeconds?: number): Loaded<T> {
  const [loaded, setLoaded] = useState<Loaded<T> & { path: string | null }>({
    answer: null,
    error: null,
    loading: true,
    path: null,
  });
  const changes = generation.value;
  useEffect(() => {
    if (path === null) return;
    const abort = new AbortController();
    let timer: number | undefined;
    const load = async () => {
      setLoaded((last) => (last.path === path ? { ...last, loading: true } : { answer: null, error: null, loading: true, path }));
      try {
        const answer = await request<ClusterAnswer<T>>(path, undefined, abort.signal);
        setLoaded({ answer, error: null, loading: false, path });
        if (refreshSeconds) timer = window.setTimeout(load, refreshSeconds * 1000);
      } catch (error) {
        if (abort.signal.aborted || !(error instanceof ApiError)) return;
        if (error.code === "notSignedIn") signedOut();
        setLoaded((last) => ({ ...last, error, loading: false }));
        if (["unreachable", "store", "busy", "tooManyRequests", "timeout", "collector"].includes(error.code)) {
          timer = window.setTimeout(load, RETRY_DELAY);
        }
      }
    };
    void load();
    return () => {
      abort.abort();
      window.clearTimeout(timer);
    };
  }, [path, changes]);
  return loaded;
}
