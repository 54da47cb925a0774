import { useEffect, useRef, useState } from "preact/hooks";
import { ApiError, type ClusterAnswer, request } from "../api";
import { generation } from "../live";
import { fragment, navigate } from "../router";
import { Card, Name, Notice, Page, Table, Tag, Verdict, countOf, formatTime, visible } from "../ui";

interface Mistake {
  document: number | null;
  field: string | null;
  value: string | null;
  reason: string;
}

interface Block {
  allowed: boolean;
  from: string[];
  to: string[];
  traffic: string;
  because: string;
}

interface Answer {
  objects: string[];
  mistakes: Mistake[];
  effect?: { objects: { name: string; fate: string }[]; changes: Block[]; pairs: number; sampled?: string; unseen?: string };
  omitted: number;
}

/** Longest document that is kept in the address, so that a link restores it. */
const MAX_LINKED_CHARACTERS = 16_000;
const VALIDATION_DELAY = 400;
const EXAMPLE = `apiVersion: projectcalico.org/v3
kind: GlobalNetworkPolicy
metadata:
  name: example
spec:
  selector: app == 'web'
  types: [Ingress]
  ingress:
    - action: Allow
      protocol: TCP
      destination:
        ports: [80]
`;

interface Draft {
  yaml: string;
  remove: boolean;
}

/** The draft is in the fragment, which is not sent to any server. */
function readDraft(): Draft {
  const parameters = new URLSearchParams(fragment.value);
  return { yaml: parameters.get("yaml") ?? "", remove: parameters.get("delete") === "1" };
}

function linkDraft(draft: Draft): string {
  if (draft.yaml.length > MAX_LINKED_CHARACTERS) return "/what-if";
  const parameters = new URLSearchParams();
  if (draft.yaml) parameters.set("yaml", draft.yaml);
  if (draft.remove) parameters.set("delete", "1");
  return `/what-if#${parameters.toString()}`;
}

export function WhatIfView() {
  const linked = readDraft();
  const [draft, setDraft] = useState<Draft>(linked);
  const [answer, setAnswer] = useState<ClusterAnswer<Answer> | null>(null);
  const [error, setError] = useState("");
  const [comparing, setComparing] = useState(false);
  /** The generation of the cluster before the last comparison. */
  const [comparedAt, setComparedAt] = useState(0);
  const cancelValidation = useRef(() => {});
  /** The draft of the address that this view wrote last; empty for one that is too long. */
  const written = useRef<Draft | null>(null);
  // The back button restores the text. An address without the text, because it is too long, must not clear it.
  useEffect(() => {
    if (written.current?.yaml === linked.yaml && written.current.remove === linked.remove) return;
    setDraft(linked);
  }, [linked.yaml, linked.remove]);
  const writeAddress = () => {
    written.current = draft.yaml.length > MAX_LINKED_CHARACTERS ? { yaml: "", remove: false } : draft;
    navigate(linkDraft(draft), true);
  };

  const ask = async (validateOnly: boolean, signal?: AbortSignal) => {
    try {
      const body = { yaml: draft.yaml, delete: draft.remove, validateOnly };
      setAnswer(await request<ClusterAnswer<Answer>>("/api/what-if", body, signal));
      setError("");
    } catch (failure) {
      if (signal?.aborted) return;
      setError(failure instanceof ApiError ? failure.message : String(failure));
    }
  };
  const changes = generation.value;
  useEffect(() => {
    if (draft.yaml.trim() === "") {
      setAnswer(null);
      return;
    }
    const abort = new AbortController();
    const timer = window.setTimeout(() => {
      writeAddress();
      void ask(true, abort.signal);
    }, VALIDATION_DELAY);
    const cancel = () => {
      window.clearTimeout(timer);
      abort.abort();
    };
    cancelValidation.current = cancel;
    return cancel;
  }, [draft.yaml, draft.remove]);
  const compare = async (event: SubmitEvent) => {
    event.preventDefault();
    // The result of a validation would replace that of the comparison.
    cancelValidation.current();
    writeAddress();
    setComparing(true);
    setComparedAt(generation.value);
    await ask(false);
    setComparing(false);
  };
  const mistakes = answer?.data.mistakes ?? [];
  return (
    <Page title="What if" lead="Which verdicts would change if these objects were applied or deleted. Nothing is written.">
      <form onSubmit={compare}>
        <div class="field wide">
          <label for="yaml">Objects of projectcalico.org/v3 as YAML or JSON</label>
          <textarea id="yaml" rows={16} spellcheck={false} autocomplete="off" value={draft.yaml} aria-describedby="yaml-state" onInput={(event) => setDraft({ ...draft, yaml: event.currentTarget.value })} />
        </div>
        <div class="filters">
          <div class="field check">
            <input id="delete-objects" type="checkbox" checked={draft.remove} onChange={(event) => setDraft({ ...draft, remove: event.currentTarget.checked })} />
            <label for="delete-objects">delete these objects instead</label>
          </div>
          <button type="submit" disabled={comparing || draft.yaml.trim() === ""}>{comparing ? "Comparing …" : "Show what changes"}</button>
          <button type="button" class="plain" onClick={() => setDraft({ ...draft, yaml: EXAMPLE })}>Example</button>
        </div>
      </form>
      <p id="yaml-state" role="status" class="muted">
        {!answer ? "Mistakes are shown while you type." : mistakes.length > 0 ? countOf(mistakes.length, "mistake") : `${countOf(answer.data.objects.length, "object")}, no mistakes`}
      </p>
      {error && <Notice tone="bad">{visible(error)}</Notice>}
      {answer?.stale !== undefined && <Notice tone="warn">Not current: compared with the state of {formatTime(answer.asOf)}. {visible(answer.stale)}</Notice>}
      {answer?.data.effect && changes !== comparedAt && <Notice tone="info">The cluster has changed since this comparison.</Notice>}
      {mistakes.length > 0 && (
        <Card title="Mistakes" count={mistakes.length} tone="bad">
          <Table
            caption="Mistakes"
            empty=""
            rows={mistakes}
            columns={[
              { head: "Document", number: true, cell: (row) => row.document ?? "" },
              { head: "Field", cell: (row) => <Name text={row.field ?? ""} /> },
              { head: "Value", cell: (row) => <Name text={row.value ?? ""} /> },
              { head: "Reason", cell: (row) => <Name text={row.reason} mono={false} /> },
            ]}
          />
        </Card>
      )}
      {answer?.data.effect && <Effect effect={answer.data.effect} omitted={answer.data.omitted} />}
    </Page>
  );
}

function Effect({ effect, omitted }: { effect: NonNullable<Answer["effect"]>; omitted: number }) {
  const names = (all: string[]) => (
    <>
      <Name text={all.slice(0, 6).join(", ")} />
      {all.length > 6 && ` and ${all.length - 6} more`}
    </>
  );
  return (
    <>
      <div class={`verdict-banner ${effect.pairs === 0 ? "good" : "warn"}`} role="status">
        <strong>{effect.pairs === 0 ? "No verdict changes." : `${effect.sampled ? "At least " : ""}${effect.pairs} ${effect.pairs === 1 ? "pair" : "pairs"} of endpoints would change.`}</strong>
        <span>{effect.objects.map((object) => <Tag><Name text={object.name} />: {object.fate}</Tag>)}</span>
      </div>
      {[effect.sampled, effect.unseen].map((note) => note && <Notice tone="warn">{visible(note)}</Notice>)}
      <Card title="Verdicts that change" count={effect.changes.length}>
        <Table
          caption="Verdicts that change"
          empty="None."
          rows={effect.changes}
          columns={[
            { head: "New verdict", cell: (block) => <Verdict allowed={block.allowed} /> },
            { head: "From", cell: (block) => names(block.from) },
            { head: "To", cell: (block) => names(block.to) },
            { head: "Traffic", cell: (block) => <Name text={block.traffic} /> },
            { head: "By", cell: (block) => <Name text={block.because} mono={false} /> },
          ]}
        />
        {omitted > 0 && <p class="muted">{omitted} more groups of changes are not shown; <code>tortie diff -o json</code> has all.</p>}
      </Card>
    </>
  );
}
