// Hooks that load data from the API.
import { useEffect, useRef, useState } from "preact/hooks";
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
  const seen = useRef(changes);
  const reload = useRef(() => {});
  useEffect(() => {
    if (path === null) return;
    const abort = new AbortController();
    let timer: number | undefined;
    let isLoading = false;
    let isOutdated = false;
    const load = async () => {
      // A request under way goes on: changes may be more frequent than answers.
      if (isLoading) {
        isOutdated = true;
        return;
      }
      window.clearTimeout(timer);
      isLoading = true;
      isOutdated = false;
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
      } finally {
        isLoading = false;
      }
      if (isOutdated && !abort.signal.aborted) void load();
    };
    reload.current = () => void load();
    void load();
    return () => {
      abort.abort();
      window.clearTimeout(timer);
      reload.current = () => {};
    };
  }, [path]);
  useEffect(() => {
    if (seen.current === changes) return;
    seen.current = changes;
    reload.current();
  }, [changes]);
  return loaded;
}
