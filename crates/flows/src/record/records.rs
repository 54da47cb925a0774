//! The flows of a key: their fixed fields, and the counters that an event adds to them.

use super::book::AddressBook;
use super::decision::{EvaluatedFlow, SIDES, side_action};
use super::ends::{FlowEnd, FlowService, NO_NAME, name_protocol};
use super::table::{FlowTemplate, KeyEntry};
use super::view::{FlowQuestion, PolicyView, build_trace};
use crate::proto::{Action, Flow, FlowKey, Reporter};
use crate::ring::FOLDED_NAME;
use std::sync::Arc;
use tortie_plan::PolicyDirection;
use tortie_plan::evaluate::Packet;
use tortie_plan::flow::{FlowCounters, FlowDecision, FlowTuple};

/// Counters of one flow that an event adds, from the side that opened the connection.
#[derive(Clone, Copy, Debug, Default)]
pub struct AddedCounters {
    pub started: u64,
    pub completed: u64,
    pub live: u64,
    pub denied_packets: u64,
    pub sent: FlowCounters,
    pub received: FlowCounters,
}

/// Returns the question that a key is to the evaluation.
pub fn ask<'a>(tuple: &FlowTuple, entry: &'a KeyEntry) -> FlowQuestion<'a> {
    FlowQuestion {
        tuple: *tuple,
        connection: entry.connection.as_ref(),
        path: entry.path.as_ref().map(|(from, to)| (from, to)),
        kernel: &entry.decision,
    }
}

/// Returns the counters of new connections or denied packets.
pub fn count_added(allowed: bool, count: u64) -> AddedCounters {
    if allowed {
        AddedCounters { started: count, ..AddedCounters::default() }
    } else {
        AddedCounters { denied_packets: count, ..AddedCounters::default() }
    }
}

fn clamp(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// Appends a flow for each side of a key.
pub fn emit(entry: &KeyEntry, added: &AddedCounters, now: i64, out: &mut Vec<Flow>) {
    for template in entry.records.iter().flatten() {
        let mut flow = template.start(now);
        let is_source = template.key.reporter() == Reporter::Src;
        add_counters(&mut flow, added, is_source);
        out.push(flow);
    }
}

/// Adds counters to a flow, as its local end sees the directions.
fn add_counters(flow: &mut Flow, added: &AddedCounters, is_source: bool) {
    let mut sent = added.sent;
    sent.packets = sent.packets.saturating_add(added.denied_packets);
    let (out, into) = if is_source { (sent, added.received) } else { (added.received, sent) };
    flow.packets_out = clamp(out.packets);
    flow.bytes_out = clamp(out.bytes);
    flow.packets_in = clamp(into.packets);
    flow.bytes_in = clamp(into.bytes);
    flow.num_connections_started = clamp(added.started);
    flow.num_connections_completed = clamp(added.completed);
    flow.num_connections_live = clamp(added.live);
}

/// Returns a flow for everything whose key is not known.
pub fn other_flow(allowed: bool, added: AddedCounters, now: i64) -> Flow {
    let key = FlowKey {
        source_name: FOLDED_NAME.to_owned(),
        dest_name: FOLDED_NAME.to_owned(),
        action: if allowed { Action::Allow } else { Action::Deny }.into(),
        ..FlowKey::default()
    };
    let mut flow = Flow { key: Some(key), start_time: now, end_time: now, ..Flow::default() };
    add_counters(&mut flow, &added, true);
    flow
}

/// Returns the records of the sides that have a decision.
pub fn build_records(
    tuple: &FlowTuple,
    entry: &KeyEntry,
    evaluated: &EvaluatedFlow,
    view: &PolicyView<'_>,
    book: &AddressBook,
) -> [Option<Arc<FlowTemplate>>; 2] {
    let pending = view.evaluate_pending(&ask(tuple, entry), &evaluated.hits);
    let mut source = FlowEnd::of_address(tuple.source, book);
    let mut destination = FlowEnd::of_address(tuple.destination, book);
    if evaluated.host_source {
        source.make_host(view.host);
    }
    if evaluated.host_destination {
        destination.make_host(view.host);
    }
    let service = match &entry.connection {
        Some(connection) => FlowService::of_connection(connection, book),
        None => FlowService { namespace: NO_NAME.to_owned(), name: NO_NAME.to_owned(), port: 0 },
    };
    let is_icmp = matches!(tuple.protocol, Packet::ICMP | Packet::ICMPV6);
    let actions = SIDES.map(|side| side_action(&entry.decision, side));
    let is_sideless = actions.iter().all(Option::is_none);
    let fallback = if view.is_local(tuple.destination) || evaluated.host_destination {
        PolicyDirection::Ingress
    } else {
        PolicyDirection::Egress
    };
    let verdict = if entry.decision.allowed { Action::Allow } else { Action::Deny };
    let record = |side: PolicyDirection, action: Action| {
        let reporter = match side {
            PolicyDirection::Egress => Reporter::Src,
            PolicyDirection::Ingress => Reporter::Dst,
        };
        Arc::new(FlowTemplate {
            key: FlowKey {
                source_name: source.name.clone(),
                source_namespace: source.namespace.clone(),
                source_type: source.kind.into(),
                dest_name: destination.name.clone(),
                dest_namespace: destination.namespace.clone(),
                dest_type: destination.kind.into(),
                dest_port: if is_icmp { 0 } else { tuple.destination_port.into() },
                dest_service_name: service.name.clone(),
                dest_service_namespace: service.namespace.clone(),
                dest_service_port_name: NO_NAME.to_owned(),
                dest_service_port: service.port.into(),
                proto: name_protocol(tuple.protocol),
                reporter: reporter.into(),
                action: action.into(),
                policies: Some(build_trace(evaluated.hits.of(side), pending.of(side))),
            },
            source_labels: source.labels.clone(),
            dest_labels: destination.labels.clone(),
        })
    };
    let mut records = [None, None];
    for ((slot, side), action) in records.iter_mut().zip(SIDES).zip(actions) {
        let action = action.or_else(|| (is_sideless && side == fallback).then_some(verdict));
        *slot = action.map(|action| record(side, action));
    }
    records
}

/// Describes the decisions of the kernel and of the evaluation.
pub fn describe_disagreement(tuple: &FlowTuple, entry: &KeyEntry, evaluated: &EvaluatedFlow) -> String {
    let FlowTuple { source, destination, protocol, destination_port } = tuple;
    let protocol = name_protocol(*protocol);
    let describe = |decision: &FlowDecision| {
        let causes = [
            ("host ingress", &decision.host_ingress),
            ("egress", &decision.egress),
            ("ingress", &decision.ingress),
            ("host egress", &decision.host_egress),
        ];
        let causes =
            causes.into_iter().filter_map(|(place, cause)| Some(format!("{place}: {}", cause.as_ref()?)));
        let verdict = if decision.allowed { "allowed" } else { "denied" };
        format!("{verdict} ({})", causes.collect::<Vec<_>>().join(", "))
    };
    format!(
        "{source} to {destination} {protocol}/{destination_port}: the kernel {}, the evaluation {}",
        describe(&entry.decision),
        describe(&evaluated.decision)
    )
}
