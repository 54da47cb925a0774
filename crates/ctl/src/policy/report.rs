//! Renders an explanation as text.

use super::explain::{ExplainedEnd, PolicyExplanation};
use super::proxy_request::ExplainedRequest;
use super::section::{EvaluatedRule, ExplainedSection};
use super::service::{ExplainedEndpoint, ExplainedService};
use std::fmt::Write;

/// Renders the explanation. Unless `all`, only Allow rules that fail on a single criterion are listed; other
/// rules are counted.
pub fn render(answer: &PolicyExplanation, all: bool) -> String {
    let mut text = String::new();
    let verdict = if answer.allowed { "ALLOWED" } else { "DENIED" };
    let mut traffic = answer.traffic.clone();
    if let Some(ExplainedRequest { line, principal }) = &answer.request {
        let _ = write!(traffic, ", {} {}", line.method, line.path);
        if let Some(principal) = principal {
            let _ = write!(traffic, " of {principal}");
        }
    }
    let _ = writeln!(text, "{verdict}: {traffic} from {} to {}", end(&answer.from), end(&answer.to));
    if let Some(service) = &answer.service {
        text.push('\n');
        render_service(&mut text, service);
    }
    for section in &answer.sections {
        text.push('\n');
        render_section(&mut text, section, all);
    }
    let advice: Vec<&String> = answer.sections.iter().flat_map(|section| &section.advice).collect();
    if !advice.is_empty() {
        text.push_str("\nTo allow it:\n");
        // Advice is grouped by section, because every section must allow the traffic.
        for section in answer.sections.iter().filter(|section| !section.advice.is_empty()) {
            let _ = writeln!(text, "  at {}", title(section));
            for (index, line) in section.advice.iter().enumerate() {
                let _ = writeln!(text, "    {} {line}", if index == 0 { "-" } else { "- or" });
            }
        }
    }
    for note in &answer.notes {
        let _ = writeln!(text, "\nNote: {note}.");
    }
    text
}

fn render_service(text: &mut String, service: &ExplainedService) {
    let affinity = if service.session_affinity {
        "; all connections of one client address go to the same one (sessionAffinity)"
    } else {
        ""
    };
    let _ =
        writeln!(text, "service {}: ready endpoints: {}{affinity}", service.name, service.endpoints.len());
    for endpoint in &service.endpoints {
        let ExplainedEndpoint { name, address, node, traffic, allowed } = endpoint;
        let end = ExplainedEnd { name: name.clone(), address: *address, node: node.clone() };
        let verdict = if *allowed { "allowed" } else { "denied" };
        let _ = writeln!(text, "  {}, {traffic}: {verdict}", self::end(&end));
    }
    if let Some(explained) = service.explained.as_ref().filter(|_| service.endpoints.len() > 1) {
        let _ = writeln!(text, "The following is about {explained}.");
    }
}

fn end(end: &ExplainedEnd) -> String {
    let ExplainedEnd { name, address, node } = end;
    match node {
        Some(node) if node == name => format!("{name} ({address})"),
        Some(node) => format!("{name} ({address} on {node})"),
        None if *name == address.to_string() => format!("{address} (outside)"),
        None => format!("{name} ({address})"),
    }
}

fn title(section: &ExplainedSection) -> String {
    match (&section.endpoint, section.direction) {
        (Some(endpoint), Some(direction)) => match section.stage {
            Some(stage) => format!("{direction} of {endpoint}, {stage}"),
            None => format!("{direction} of {endpoint}"),
        },
        _ => format!("node {}", section.node),
    }
}

fn rule_position(section: &ExplainedSection, seen: &EvaluatedRule) -> String {
    format!("{}, {} rule {}", seen.of, section.direction.unwrap_or_default(), seen.rule)
}

fn render_section(text: &mut String, section: &ExplainedSection, all: bool) {
    let verdict = if section.allowed { "allowed" } else { "denied" };
    let _ = writeln!(text, "{}: {verdict}", title(section));
    let _ = writeln!(text, "  {}", section.because);
    let passed_over: Vec<&EvaluatedRule> = section.rules.iter().filter(|seen| !seen.matched).collect();
    let shown: Vec<&&EvaluatedRule> = passed_over
        .iter()
        .filter(|seen| all || (!section.allowed && seen.missing.len() == 1 && seen.action == "Allow"))
        .collect();
    if !shown.is_empty() {
        let _ = writeln!(text, "  {}:", if all { "Rules that do not match" } else { "Near misses" });
        for seen in &shown {
            let _ = writeln!(text, "    {}: {}", rule_position(section, seen), seen.says);
            for missing in &seen.missing {
                let _ = writeln!(text, "      {missing}");
            }
        }
    }
    let other = if shown.is_empty() { "" } else { "other " };
    match passed_over.len() - shown.len() {
        // For an allowed section the deciding rule is explanation enough.
        _ if section.allowed => {}
        0 => {}
        1 => {
            let _ = writeln!(text, "  1 {other}rule does not match; --all shows it.");
        }
        more => {
            let _ = writeln!(text, "  {more} {other}rules do not match; --all shows them.");
        }
    }
    for seen in section.rules.iter().filter(|seen| seen.matched && seen.action == "Log") {
        let _ = writeln!(text, "  Logged by {}.", rule_position(section, seen));
    }
    for staged in &section.staged {
        let _ = writeln!(text, "  Staged: {staged}.");
    }
}
