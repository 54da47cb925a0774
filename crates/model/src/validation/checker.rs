//! Walks an object and notes what is wrong where.

use super::{FieldError, ValidationError, path::field_name};
use std::{cell::RefCell, fmt};

/// A place in an object, together with the list where its failures go.
///
/// `at.field("spec").field("nets").index(3)` is the place `Spec.Nets[3]`.
#[derive(Clone, Debug)]
pub struct Checker<'a> {
    findings: &'a RefCell<Findings>,
    path: String,
}

/// Nearly everything that is checked is right. So places are not written down at first, which costs more than all the
/// checks; only if something is wrong it is all checked again to say what and where.
#[derive(Debug)]
enum Findings {
    Quick { wrong: bool },
    Full(Vec<FieldError>),
}

impl Checker<'_> {
    /// Runs `check` at the top of an object and collects all that it reports. It must report the same each time it is asked.
    pub fn run(check: impl Fn(&Checker<'_>)) -> Result<(), ValidationError> {
        let findings = RefCell::new(Findings::Quick { wrong: false });
        let top = Checker { findings: &findings, path: String::new() };
        check(&top);
        if matches!(*findings.borrow(), Findings::Quick { wrong: false }) {
            return Ok(());
        }
        findings.replace(Findings::Full(Vec::new()));
        check(&top);
        match findings.into_inner() {
            Findings::Full(errors) if !errors.is_empty() => Err(ValidationError { errors }),
            _ => Ok(()),
        }
    }
}

impl<'a> Checker<'a> {
    fn child(&self, path: impl FnOnce(&str) -> String) -> Checker<'a> {
        let path = match *self.findings.borrow() {
            Findings::Quick { .. } => String::new(),
            Findings::Full(_) => path(&self.path),
        };
        Checker { findings: self.findings, path }
    }

    /// The place of a field, given its JSON key.
    pub fn field(&self, key: &str) -> Checker<'a> {
        self.child(|path| match path {
            "" => field_name(key),
            path => format!("{path}.{}", field_name(key)),
        })
    }

    /// The place of an element of a list.
    pub fn index(&self, index: usize) -> Checker<'a> {
        self.child(|path| format!("{path}[{index}]"))
    }

    /// The place of a value in a map.
    pub fn key(&self, key: &str) -> Checker<'a> {
        self.child(|path| format!("{path}[{key}]"))
    }

    /// Each element of a list with its place.
    pub fn each<'i, T>(&self, items: &'i [T]) -> impl Iterator<Item = (Checker<'a>, &'i T)> {
        items.iter().enumerate().map(|(i, item)| (self.index(i), item))
    }

    /// Notes that what stands here is wrong.
    pub fn fail(&self, value: impl fmt::Display, reason: impl fmt::Display) {
        match &mut *self.findings.borrow_mut() {
            Findings::Quick { wrong } => *wrong = true,
            Findings::Full(errors) => errors.push(FieldError {
                name: self.path.clone(),
                value: value.to_string(),
                reason: reason.to_string(),
            }),
        }
    }

    /// `fail` unless `ok`.
    pub fn ensure(&self, ok: bool, value: impl fmt::Display, reason: impl fmt::Display) {
        if !ok {
            self.fail(value, reason);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Checker;

    #[test]
    fn failures_carry_their_place() {
        let error = Checker::run(|at| {
            let spec = at.field("spec");
            for (at, net) in spec.field("ingress").index(0).field("source").field("nets").each(&["ok", "bad"])
            {
                at.ensure(*net == "ok", net, "not a net");
            }
            spec.field("cidr").fail("x", "no good");
        })
        .unwrap_err();
        assert_eq!(
            error.to_string(),
            "error with the following fields:\n-  Spec.Ingress[0].Source.Nets[1] = 'bad' (not a net)\n-  Spec.CIDR = 'x' (no good)"
        );
        assert!(Checker::run(|_| ()).is_ok());
    }
}
