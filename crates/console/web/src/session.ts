// Whether the browser may use the API, and the exchange of the link for a cookie.
import { signal } from "@preact/signals";
import { ApiError, request } from "./api";
import { navigate } from "./router";

export interface SessionInfo {
  access: "link" | "socket" | "certificate";
  signedIn: boolean;
  version: string;
  collector: string | null;
}

export const session = signal<SessionInfo | null>(null);
export const signInError = signal("");

export async function loadSession(): Promise<void> {
  const token = window.location.pathname === "/sign-in" ? window.location.hash.slice(1) : "";
  if (token) {
    try {
      await request("/api/session", { token });
    } catch (error) {
      signInError.value = error instanceof ApiError ? error.message : String(error);
    }
    // The token must not stay in the history.
    navigate("/", true);
  }
  try {
    session.value = await request<SessionInfo>("/api/session");
  } catch {
    setTimeout(() => void loadSession(), 3000);
  }
}

export function signedOut(): void {
  if (session.value?.signedIn) session.value = { ...session.value, signedIn: false };
}
