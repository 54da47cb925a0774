//! Parses the label and field selectors of a query and evaluates them.

use crate::refusal::StatusError;
use crate::resources::ServedKind;
use std::collections::{BTreeMap, BTreeSet};
use tortie_model::names::{check_label_value, check_qualified};
use tortie_store::EntryLabelSelector;
use tortie_store::page::EntryLabelRequirement;

/// Maximum length of a selector.
const MAX_SELECTOR_BYTES: usize = 64 << 10;

/// Selection of objects; all conditions must hold.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ObjectSelection {
    pub labels: EntryLabelSelector,
    pub fields: Vec<FieldRequirement>,
    /// Tiers of the selected objects; `None` selects every tier.
    pub tiers: Option<BTreeSet<String>>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct FieldRequirement {
    pub field: SelectableField,
    pub value: String,
    /// True if the field must have this value, false if it must not.
    pub equal: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SelectableField {
    Name,
    Namespace,
    Tier,
}

/// The properties of an object that a selection evaluates.
#[derive(Clone, Copy, Debug)]
pub struct SelectionSubject<'a> {
    pub name: &'a str,
    pub namespace: &'a str,
    pub tier: &'a str,
    pub labels: &'a BTreeMap<String, String>,
}

impl ObjectSelection {
    pub fn parse(served: ServedKind, labels: &str, fields: &str) -> Result<ObjectSelection, StatusError> {
        if labels.len() > MAX_SELECTOR_BYTES || fields.len() > MAX_SELECTOR_BYTES {
            return Err(StatusError::bad_request("the selector is too long"));
        }
        Ok(ObjectSelection {
            labels: parse_labels(labels)?,
            fields: parse_fields(served, fields)?,
            tiers: None,
        })
    }

    pub fn selects(&self, subject: &SelectionSubject<'_>) -> bool {
        self.labels.matches(subject.labels)
            && self.tiers.as_ref().is_none_or(|tiers| tiers.contains(subject.tier))
            && self.fields.iter().all(|wanted| {
                let value = match wanted.field {
                    SelectableField::Name => subject.name,
                    SelectableField::Namespace => subject.namespace,
                    SelectableField::Tier => subject.tier,
                };
                (value == wanted.value) == wanted.equal
            })
    }

    /// Returns the tiers to which the selectors restrict the selection, or `None` if they do not. `label` is the label
    /// that holds the tier.
    pub fn named_tiers(&self, label: &str) -> Option<BTreeSet<String>> {
        let by_field =
            self.fields.iter().filter(|wanted| wanted.field == SelectableField::Tier && wanted.equal);
        let mut named: Option<BTreeSet<String>> = None;
        let sets = by_field.map(|wanted| BTreeSet::from([wanted.value.clone()])).chain(
            self.labels.0.iter().filter_map(|requirement| match requirement {
                EntryLabelRequirement::In { key, values } if key == label => Some(values.clone()),
                _ => None,
            }),
        );
        for set in sets {
            named = Some(match named {
                Some(before) => before.intersection(&set).cloned().collect(),
                None => set,
            });
        }
        named
    }
}

fn parse_fields(served: ServedKind, text: &str) -> Result<Vec<FieldRequirement>, StatusError> {
    let mut found = Vec::new();
    for term in text.split(',').filter(|term| !term.is_empty()) {
        let (name, value, equal) = if let Some((name, value)) = term.split_once("!=") {
            (name, value, false)
        } else if let Some((name, value)) = term.split_once("==") {
            (name, value, true)
        } else if let Some((name, value)) = term.split_once('=') {
            (name, value, true)
        } else {
            return Err(StatusError::bad_request(format!("invalid field selector: {term:?}: no operator")));
        };
        let field = match name {
            "metadata.name" => SelectableField::Name,
            "metadata.namespace" if served.kind.is_namespaced() => SelectableField::Namespace,
            "spec.tier" if served.is_tiered() => SelectableField::Tier,
            other => {
                return Err(StatusError::bad_request(format!(
                    "{:?} is not a known field selector: only \"metadata.name\"{}{}",
                    other,
                    if served.kind.is_namespaced() { ", \"metadata.namespace\"" } else { "" },
                    if served.is_tiered() { ", \"spec.tier\"" } else { "" },
                )));
            }
        };
        found.push(FieldRequirement { field, value: value.to_owned(), equal });
    }
    Ok(found)
}

/// Parses the text form of Kubernetes: `a=b,c!=d,e in (f,g),h notin (i),j,!k`.
pub fn parse_labels(text: &str) -> Result<EntryLabelSelector, StatusError> {
    let mut requirements = Vec::new();
    let mut rest = text.trim();
    while !rest.is_empty() {
        let (term, after) = split_first_term(rest);
        rest = after.trim_start();
        requirements.push(parse_requirement(term.trim())?);
    }
    Ok(EntryLabelSelector(requirements))
}

/// Splits at the first comma outside of parentheses.
fn split_first_term(text: &str) -> (&str, &str) {
    let mut depth = 0usize;
    for (index, byte) in text.bytes().enumerate() {
        match byte {
            b'(' => depth += 1,
            b')' => depth = depth.saturating_sub(1),
            b',' if depth == 0 => return (&text[..index], &text[index + 1..]),
            _ => {}
        }
    }
    (text, "")
}

fn parse_requirement(term: &str) -> Result<EntryLabelRequirement, StatusError> {
    if let Some(rest) = term.strip_prefix('!') {
        return Ok(EntryLabelRequirement::DoesNotExist { key: parse_key(term, rest)? });
    }
    if let Some(inner) = term.strip_suffix(')') {
        let Some((head, values)) = inner.split_once('(') else {
            return Err(refuse_requirement(term, "a ')' without a '('"));
        };
        let values = values
            .split(',')
            .map(|text| parse_value(term, text))
            .collect::<Result<BTreeSet<String>, StatusError>>()?;
        let (name, operator) = head
            .trim_end()
            .rsplit_once(char::is_whitespace)
            .ok_or_else(|| refuse_requirement(term, "found no operator before '('"))?;
        let key = parse_key(term, name)?;
        return match operator {
            "in" => Ok(EntryLabelRequirement::In { key, values }),
            "notin" => Ok(EntryLabelRequirement::NotIn { key, values }),
            _ => Err(refuse_requirement(term, "the operators before '(' are 'in' and 'notin'")),
        };
    }
    if let Some((name, text)) = term.split_once("!=") {
        return Ok(EntryLabelRequirement::NotIn {
            key: parse_key(term, name)?,
            values: [parse_value(term, text)?].into(),
        });
    }
    if let Some((name, text)) = term.split_once('=') {
        let text = text.strip_prefix('=').unwrap_or(text);
        return Ok(EntryLabelRequirement::In {
            key: parse_key(term, name)?,
            values: [parse_value(term, text)?].into(),
        });
    }
    if term.contains(['<', '>']) {
        return Err(refuse_requirement(term, "the operators '<' and '>' are not supported"));
    }
    Ok(EntryLabelRequirement::Exists { key: parse_key(term, term)? })
}

fn parse_key(term: &str, text: &str) -> Result<String, StatusError> {
    check_qualified(text.trim()).map_err(|reason| refuse_requirement(term, reason))?;
    Ok(text.trim().to_owned())
}

fn parse_value(term: &str, text: &str) -> Result<String, StatusError> {
    check_label_value(text.trim()).map_err(|reason| refuse_requirement(term, reason))?;
    Ok(text.trim().to_owned())
}

fn refuse_requirement(term: &str, reason: impl std::fmt::Display) -> StatusError {
    StatusError::bad_request(format!("unable to parse requirement: {term:?} in the label selector: {reason}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tortie_model::Kind;

    #[test]
    fn label_selectors_parse_as_in_kubernetes() {
        for (text, printed) in [
            ("", ""),
            ("a=b", "a in (b)"),
            ("a==b , c!=d", "a in (b),c notin (d)"),
            ("x/a in (b, c),!d,e", "x/a in (b,c),!d,e"),
            ("a notin (b,),f=", "a notin (,b),f in ()"),
        ] {
            assert_eq!(parse_labels(text).unwrap().to_string(), printed, "{text}");
        }
        for bad in ["a in b", "a within (b)", "=b", "a=b=c", "a>5", "a b", "(b)", "a in (b))"] {
            let refusal = parse_labels(bad).unwrap_err();
            assert!(
                refusal.code() == 400 && refusal.message.contains("label selector"),
                "{bad}: {}",
                refusal.message
            );
        }
    }

    #[test]
    fn selectable_fields_depend_on_the_kind() {
        let policies = ServedKind::find(Kind::NetworkPolicy.plural()).unwrap();
        let pools = ServedKind::find(Kind::IPPool.plural()).unwrap();
        let selection =
            ObjectSelection::parse(policies, "", "metadata.name=a,metadata.namespace!=b,spec.tier==c")
                .unwrap();
        let labels = BTreeMap::new();
        let subject = |name, namespace, tier| SelectionSubject { name, namespace, tier, labels: &labels };
        assert!(selection.selects(&subject("a", "x", "c")));
        assert!(!selection.selects(&subject("a", "b", "c")));
        assert!(!selection.selects(&subject("a", "x", "d")));
        assert_eq!(selection.named_tiers("t"), Some(["c".to_owned()].into()));
        for bad in ["spec.tier=x", "metadata.namespace=x", "spec.cidr=x", "metadata.name"] {
            assert_eq!(ObjectSelection::parse(pools, "", bad).unwrap_err().code(), 400, "{bad}");
        }
    }
}
