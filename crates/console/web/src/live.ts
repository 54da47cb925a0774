// The stream of changes: what the pages show is read again when it has changed.
import { signal } from "@preact/signals";
import { loadSession, session } from "./session";

export interface FeedState {
  connected: boolean;
  since: string;
  reason?: string;
}

/** Whether changes arrive, and from where they do not. */
export type LiveState =
  | { kind: "connecting" }
  | { kind: "live" }
  | { kind: "store"; since: string; reason: string }
  | { kind: "console" };

export const live = signal<LiveState>({ kind: "connecting" });
/** Grows with each change of the cluster. */
export const generation = signal(0);

let source: EventSource | null = null;

export function startLive(): void {
  if (source || !session.value?.signedIn) return;
  source = new EventSource("/api/events");
  source.addEventListener("state", (event) => {
    const state = JSON.parse((event as MessageEvent<string>).data) as FeedState;
    live.value = state.connected
      ? { kind: "live" }
      : { kind: "store", since: state.since, reason: state.reason ?? "" };
    generation.value += 1;
  });
  const changed = () => {
    generation.value += 1;
  };
  source.addEventListener("changes", changed);
  source.addEventListener("resync", changed);
  // The browser connects again and sends the id of the last event.
  source.addEventListener("error", () => {
    live.value = { kind: "console" };
    if (source?.readyState === EventSource.CLOSED) {
      source = null;
      // The session may have ended, for example because the console was restarted.
      void loadSession();
      setTimeout(startLive, 3000);
    }
  });
}
