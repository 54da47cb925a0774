// The address of the page: the view is the path, its filters are the query.
import { computed, signal } from "@preact/signals";

const current = signal(new URL(window.location.href));
/** Whether the user has moved since the page was loaded. */
let hasMoved = false;

export const path = computed(() => current.value.pathname);
export const query = computed(() => current.value.searchParams);
export const fragment = computed(() => current.value.hash.slice(1));

window.addEventListener("popstate", () => {
  hasMoved = true;
  current.value = new URL(window.location.href);
});

export function wasNavigated(): boolean {
  return hasMoved;
}

/** Shows another address. The back button returns to the last one unless `replace` is set. */
export function navigate(to: string, replace = false): void {
  const url = new URL(to, window.location.href);
  if (url.href === current.value.href) return;
  if (replace) history.replaceState(null, "", url);
  else {
    hasMoved = true;
    history.pushState(null, "", url);
  }
  current.value = url;
}

export function parameter(name: string): string {
  return query.value.get(name) ?? "";
}

/** Returns the current address with other parameters; empty ones are left out. */
export function withParameters(changes: Record<string, string>): string {
  const url = new URL(current.value);
  for (const [name, value] of Object.entries(changes)) {
    if (value === "") url.searchParams.delete(name);
    else url.searchParams.set(name, value);
  }
  return url.pathname + url.search;
}

/** Follows links inside the console without loading the page again. */
export function followLinks(event: MouseEvent): void {
  if (event.defaultPrevented || event.button !== 0 || event.metaKey || event.ctrlKey || event.shiftKey) return;
  const link = (event.target as Element | null)?.closest?.("a");
  if (!link || link.origin !== window.location.origin || link.target || link.hash) return;
  event.preventDefault();
  navigate(link.href);
  window.scrollTo(0, 0);
}
