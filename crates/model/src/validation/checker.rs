//! Walks an object and records validation errors with their field paths.

use super::{FieldError, ValidationError, path::field_name};
use std::{cell::RefCell, fmt};

/// A position in an object, together with the list that collects its errors.
///
/// `at.field("spec").field("nets").index(3)` is the position `Spec.Nets[3]`.
#[derive(Clone, Debug)]
pub struct FieldChecker<'a> {
    findings: &'a RefCell<CheckerErrors>,
    path: String,
}

/// Nearly all objects are valid, and building paths costs more than all the checks. So the first pass builds
/// no paths; only if it finds an error, a second pass repeats all checks to collect the errors with their
/// paths.
#[derive(Debug)]
enum CheckerErrors {
    Quick { wrong: bool },
    Full(Vec<FieldError>),
}

impl FieldChecker<'_> {
    /// Runs `check` at the root of an object and collects all errors. `check` may run twice and must report
    /// the same errors each time.
    pub fn run(check: impl Fn(&FieldChecker<'_>)) -> Result<(), ValidationError> {
        let findings = RefCell::new(CheckerErrors::Quick { wrong: false });
        let top = FieldChecker { findings: &findings, path: String::new() };
        check(&top);
        if matches!(*findings.borrow(), CheckerErrors::Quick { wrong: false }) {
            return Ok(());
        }
        findings.replace(CheckerErrors::Full(Vec::new()));
        check(&top);
        match findings.into_inner() {
            CheckerErrors::Full(errors) if !errors.is_empty() => Err(ValidationError { errors }),
            _ => Ok(()),
        }
    }
}

impl<'a> FieldChecker<'a> {
    fn child(&self, path: impl FnOnce(&str) -> String) -> FieldChecker<'a> {
        let path = match *self.findings.borrow() {
            CheckerErrors::Quick { .. } => String::new(),
            CheckerErrors::Full(_) => path(&self.path),
        };
        FieldChecker { findings: self.findings, path }
    }

    /// Returns the position of a field, given its JSON key.
    pub fn field(&self, key: &str) -> FieldChecker<'a> {
        self.child(|path| match path {
            "" => field_name(key),
            path => format!("{path}.{}", field_name(key)),
        })
    }

    /// Returns the position of a list element.
    pub fn index(&self, index: usize) -> FieldChecker<'a> {
        self.child(|path| format!("{path}[{index}]"))
    }

    /// Returns the position of a value in a map.
    pub fn key(&self, key: &str) -> FieldChecker<'a> {
        self.child(|path| format!("{path}[{key}]"))
    }

    /// Iterates over the elements of a list with their positions.
    pub fn each<'i, T>(&self, items: &'i [T]) -> impl Iterator<Item = (FieldChecker<'a>, &'i T)> {
        items.iter().enumerate().map(|(i, item)| (self.index(i), item))
    }

    /// Records that the value at this position is invalid.
    pub fn fail(&self, value: impl fmt::Display, reason: impl fmt::Display) {
        match &mut *self.findings.borrow_mut() {
            CheckerErrors::Quick { wrong } => *wrong = true,
            CheckerErrors::Full(errors) => errors.push(FieldError {
                name: self.path.clone(),
                value: value.to_string(),
                reason: reason.to_string(),
            }),
        }
    }

    /// Records the error of a check of this value.
    pub fn report(&self, value: impl fmt::Display, result: Result<(), impl fmt::Display>) {
        if let Err(reason) = result {
            self.fail(value, reason);
        }
    }

    /// Records an error unless `ok`.
    pub fn ensure(&self, ok: bool, value: impl fmt::Display, reason: impl fmt::Display) {
        if !ok {
            self.fail(value, reason);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::FieldChecker;

    #[test]
    fn failures_carry_their_place() {
        let error = FieldChecker::run(|at| {
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
        assert!(FieldChecker::run(|_| ()).is_ok());
    }
}
