//! Walks an object and notes what is wrong where.

use super::{FieldError, ValidationError, path::field_name};
use std::{cell::RefCell, fmt};

/// A place in an object, together with the list where its failures go.
///
/// `at.field("spec").field("nets").index(3)` is the place `Spec.Nets[3]`.
#[derive(Clone, Debug)]
pub struct Checker<'a> {
    errors: &'a RefCell<Vec<FieldError>>,
    path: String,
}

impl Checker<'_> {
    /// Runs `check` at the top of an object and collects all that it reports.
    pub fn run(check: impl FnOnce(&Checker<'_>)) -> Result<(), ValidationError> {
        let errors = RefCell::new(Vec::new());
        check(&Checker { errors: &errors, path: String::new() });
        let errors = errors.into_inner();
        if errors.is_empty() { Ok(()) } else { Err(ValidationError { errors }) }
    }
}

impl<'a> Checker<'a> {
    fn child(&self, path: String) -> Checker<'a> {
        Checker { errors: self.errors, path }
    }

    /// The place of a field, given its JSON key.
    pub fn field(&self, key: &str) -> Checker<'a> {
        let name = field_name(key);
        self.child(if self.path.is_empty() { name } else { format!("{}.{name}", self.path) })
    }

    /// The place of an element of a list.
    pub fn index(&self, index: usize) -> Checker<'a> {
        self.child(format!("{}[{index}]", self.path))
    }

    /// The place of a value in a map.
    pub fn key(&self, key: &str) -> Checker<'a> {
        self.child(format!("{}[{key}]", self.path))
    }

    /// Each element of a list with its place.
    pub fn each<'i, T>(&self, items: &'i [T]) -> impl Iterator<Item = (Checker<'a>, &'i T)> {
        items.iter().enumerate().map(|(i, item)| (self.index(i), item))
    }

    pub fn path(&self) -> &str {
        &self.path
    }

    /// Notes that what stands here is wrong.
    pub fn fail(&self, value: impl fmt::Display, reason: impl Into<String>) {
        self.errors.borrow_mut().push(FieldError {
            name: self.path.clone(),
            value: value.to_string(),
            reason: reason.into(),
        });
    }

    /// `fail` unless `ok`.
    pub fn ensure(&self, ok: bool, value: impl fmt::Display, reason: impl Into<String>) {
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
