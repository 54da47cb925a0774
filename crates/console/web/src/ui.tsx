// Parts that all views use.
import type { ComponentChildren } from "preact";
import { useEffect, useId, useRef } from "preact/hooks";
import type { Loaded } from "./data";
import { navigate, parameter, wasNavigated, withParameters } from "./router";

/** Characters that change the direction or are not visible: shown by their number, so that no name can imitate another. */
const INVISIBLE = /[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]/gu;

export function visible(text: string): string {
  return text.replace(INVISIBLE, (character) => `\u27e8U+${character.codePointAt(0)!.toString(16).toUpperCase().padStart(4, "0")}\u27e9`);
}

/** A name or another text from the cluster, isolated from the direction of the text around it. */
export function Name({ text, mono = true }: { text: string; mono?: boolean }) {
  return <bdi class={mono ? "mono" : undefined}>{visible(text)}</bdi>;
}

export function Page({ title, lead, children }: { title: string; lead: ComponentChildren; children: ComponentChildren }) {
  const heading = useRef<HTMLHeadingElement>(null);
  useEffect(() => {
    document.title = `${title} \u00b7 Tortie`;
    // After navigation, keyboard and screen reader continue at the content.
    if (wasNavigated()) heading.current?.focus();
  }, [title]);
  return (
    <>
      <header class="page-head">
        <h1 tabIndex={-1} ref={heading}>{title}</h1>
        <p class="lead">{lead}</p>
      </header>
      {children}
    </>
  );
}

export function Card({ title, count, tone, children }: { title: string; count?: number; tone?: "bad" | "warn" | "good"; children: ComponentChildren }) {
  return (
    <section class={`card ${tone ?? ""}`}>
      <h2>
        <bdi>{visible(title)}</bdi>
        {count !== undefined && <span class="count">{count}</span>}
      </h2>
      {children}
    </section>
  );
}

/** Shows what was loaded, and says plainly if it is not current or cannot be loaded. */
export function Loading<T>({ loaded, children }: { loaded: Loaded<T>; children: (data: T) => ComponentChildren }) {
  const { answer, error } = loaded;
  return (
    <>
      {error && <Notice tone="bad">{visible(error.message)}</Notice>}
      {answer?.stale !== undefined && (
        <Notice tone="warn">
          Not current: this is the state of {formatTime(answer.asOf)}. {visible(answer.stale)}
        </Notice>
      )}
      {answer ? <div class={answer.stale !== undefined || error ? "outdated" : ""}>{children(answer.data)}</div> : !error && <p class="muted">Loading …</p>}
    </>
  );
}

export function Notice({ tone, children }: { tone: "bad" | "warn" | "info"; children: ComponentChildren }) {
  return <div class={`notice ${tone}`} role={tone === "bad" ? "alert" : "status"}>{children}</div>;
}

export interface Column<T> {
  head: string;
  cell: (row: T) => ComponentChildren;
  number?: boolean;
}

/** A table that scrolls inside its own region, so that narrow pages stay usable. */
export function Table<T>({ caption, columns, rows, empty, limit = 500 }: { caption: string; columns: Column<T>[]; rows: T[]; empty: string; limit?: number }) {
  if (rows.length === 0) return <p class="muted">{empty}</p>;
  return (
    <div class="scroll" role="region" aria-label={caption} tabIndex={0}>
      <table>
        <caption class="hidden">{caption}</caption>
        <thead>
          <tr>{columns.map((column) => <th scope="col" class={column.number ? "number" : undefined}>{column.head}</th>)}</tr>
        </thead>
        <tbody>
          {rows.slice(0, limit).map((row) => (
            <tr>{columns.map((column) => <td class={column.number ? "number" : undefined}>{column.cell(row)}</td>)}</tr>
          ))}
        </tbody>
      </table>
      {rows.length > limit && <p class="muted">{rows.length - limit} more rows are not shown: use the filter.</p>}
    </div>
  );
}

export function Verdict({ allowed }: { allowed: boolean }) {
  return <span class={`verdict ${allowed ? "allowed" : "denied"}`}>{allowed ? "\u2713 allowed" : "\u2717 denied"}</span>;
}

export function Tag({ children, tone }: { children: ComponentChildren; tone?: string }) {
  return <span class={`tag ${tone ?? ""}`}>{children}</span>;
}

/** A text field that is kept in the address. */
export function FilterField({ name, label, hint }: { name: string; label: string; hint?: string }) {
  const id = useId();
  return (
    <div class="field">
      <label for={id}>{label}</label>
      <input
        id={id}
        type="search"
        value={parameter(name)}
        placeholder={hint ?? ""}
        onInput={(event) => navigate(withParameters({ [name]: event.currentTarget.value }), true)}
      />
    </div>
  );
}

/** A choice that is kept in the address. */
export function FilterChoice({ name, label, choices }: { name: string; label: string; choices: [string, string][] }) {
  const id = useId();
  return (
    <div class="field">
      <label for={id}>{label}</label>
      <select id={id} value={parameter(name)} onChange={(event) => navigate(withParameters({ [name]: event.currentTarget.value }))}>
        {choices.map(([value, text]) => <option value={value}>{text}</option>)}
      </select>
    </div>
  );
}

/** A bar of how much is in use; the same numbers stand beside it as text. */
export function Meter({ share, label }: { share: number; label: string }) {
  const percent = Math.round(share * 1000) / 10;
  const tone = share >= 0.95 ? "bad" : share >= 0.85 ? "warn" : "good";
  return (
    <svg class={`meter ${tone}`} viewBox="0 0 100 8" preserveAspectRatio="none" role="img" aria-label={`${label}: ${percent} %`}>
      <rect class="track" width="100" height="8" />
      <rect class="fill" width={Math.max(percent, share > 0 ? 1 : 0)} height="8" />
    </svg>
  );
}

export function formatTime(text: string): string {
  const time = new Date(text);
  return Number.isNaN(time.getTime()) ? visible(text) : time.toLocaleTimeString("en", { hour12: false });
}

/** Formats a number of things: `1 object`, `2 objects`. */
export function countOf(count: number, what: string): string {
  return `${formatNumber(count)} ${what}${count === 1 ? "" : "s"}`;
}

export function formatNumber(value: number): string {
  if (value < 1e6) return value.toLocaleString("en");
  return value.toExponential(2).replace("e+", " \u00d7 10^");
}

export function formatBytes(bytes: number): string {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  let value = bytes;
  while (value >= 1024 && unit < units.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${value < 10 && unit > 0 ? value.toFixed(1) : Math.round(value)} ${units[unit]}`;
}

export function matches(filter: string, ...texts: string[]): boolean {
  const wanted = filter.toLowerCase();
  return texts.some((text) => text.toLowerCase().includes(wanted));
}
