//! Counts the results of a batch of objects and formats them as calicoctl does.

use crate::output::go;
use std::fmt::Display;
use tortie_model::Kind;

/// The words for the results of a verb.
#[derive(Clone, Copy, Debug)]
pub struct VerbWording {
    pub infinitive: &'static str,
    pub past: &'static str,
    /// The form for progress output.
    pub present: &'static str,
    /// Whether the verb continues after an object fails, so that there can be several errors.
    pub continues_after_errors: bool,
}

pub const CREATE_WORDING: VerbWording =
    VerbWording { infinitive: "create", past: "created", present: "Creating", continues_after_errors: true };
pub const APPLY_WORDING: VerbWording =
    VerbWording { infinitive: "apply", past: "applied", present: "Applying", continues_after_errors: true };
pub const VALIDATE_WORDING: VerbWording = VerbWording {
    infinitive: "validate",
    past: "validated",
    present: "Validating",
    continues_after_errors: true,
};
pub const REPLACE_WORDING: VerbWording = VerbWording {
    infinitive: "replace",
    past: "replaced",
    present: "Replacing",
    continues_after_errors: false,
};

/// The results of one command.
#[derive(Debug, Default)]
pub struct BatchOutcome {
    /// The kind that all objects share.
    pub kind: Option<Kind>,
    pub total: usize,
    pub handled: usize,
    /// The number of objects that were handled before the first error.
    handled_before_error: usize,
    pub errors: Vec<(Kind, String)>,
}

/// The text for standard output, and the text for standard error, which means that the command failed.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct BatchReport {
    pub out: String,
    pub error: Option<String>,
}

impl BatchOutcome {
    pub fn new(kinds: impl IntoIterator<Item = Kind>) -> BatchOutcome {
        let mut outcome = BatchOutcome::default();
        let mut mixed = false;
        for kind in kinds {
            mixed |= outcome.kind.is_some_and(|k| k != kind);
            outcome.kind = Some(kind);
            outcome.total += 1;
        }
        if mixed {
            outcome.kind = None;
        }
        outcome
    }

    pub fn record<T>(&mut self, kind: Kind, result: Result<T, impl Display>) {
        match result {
            Ok(_) => {
                self.handled += 1;
                self.handled_before_error += usize::from(self.errors.is_empty());
            }
            Err(error) => self.errors.push((kind, error.to_string())),
        }
    }

    /// Returns `'K' `, or nothing for a mix of kinds.
    fn quoted_kind(&self) -> String {
        self.kind.map(|kind| format!("'{kind}' ")).unwrap_or_default()
    }

    fn success_line(&self, past: &str) -> String {
        format!("Successfully {past} {} {}resource(s)\n", self.handled, self.quoted_kind())
    }

    pub fn report(&self, wording: VerbWording) -> BatchReport {
        if self.errors.is_empty() {
            return BatchReport { out: self.success_line(wording.past), error: None };
        }
        let errors = self.errors.iter().map(|(_, error)| error.clone());
        let errors = if wording.continues_after_errors {
            go::list(errors)
        } else {
            errors.collect::<Vec<_>>().join(" ")
        };
        let VerbWording { infinitive, past, continues_after_errors, .. } = wording;
        if self.handled == 0 {
            let what = match self.total {
                1 => format!("{}resource", self.quoted_kind()),
                _ => format!("any {}resources", self.quoted_kind()),
            };
            return BatchReport {
                out: String::new(),
                error: Some(format!("failed to {infinitive} {what}: {errors}")),
            };
        }
        let out = if self.handled > self.errors.len() || !continues_after_errors {
            let BatchOutcome { handled, total, .. } = self;
            // Calico's text names the first objects even if one of them failed.
            let first = if self.handled_before_error == *handled { "the first " } else { "" };
            format!(
                "Partial success: {past} {first}{handled} out of {total} {}resources:\n",
                self.quoted_kind()
            )
        } else {
            String::new()
        };
        BatchReport { out, error: Some(format!("hit error: {errors}")) }
    }

    pub fn report_deletion(&self) -> BatchReport {
        let out = if self.handled > 0 || self.errors.is_empty() {
            self.success_line("deleted")
        } else {
            String::new()
        };
        let lines: Vec<_> = self
            .errors
            .iter()
            .map(|(kind, error)| format!("Failed to delete '{kind}' resource: {error}"))
            .collect();
        BatchReport { out, error: (!lines.is_empty()).then(|| lines.join("\n")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(kinds: &[Kind], results: &[Result<(), &str>]) -> BatchOutcome {
        let mut outcome = BatchOutcome::new(kinds.iter().copied());
        for (kind, result) in kinds.iter().zip(results) {
            outcome.record(*kind, *result);
        }
        outcome
    }

    fn printed(outcome: &BatchOutcome, wording: VerbWording) -> (String, String) {
        let report = outcome.report(wording);
        (report.out, report.error.unwrap_or_default())
    }

    const POOL: Kind = Kind::IPPool;
    const TIER: Kind = Kind::Tier;

    #[test]
    fn each_row_of_the_table_of_messages() {
        type Row<'a> = (&'a [Kind], &'a [Result<(), &'a str>], VerbWording, &'a str, &'a str);
        let rows: &[Row] = &[
            (&[POOL], &[Ok(())], CREATE_WORDING, "Successfully created 1 'IPPool' resource(s)\n", ""),
            (
                &[POOL, POOL],
                &[Ok(()), Ok(())],
                APPLY_WORDING,
                "Successfully applied 2 'IPPool' resource(s)\n",
                "",
            ),
            (&[POOL, TIER], &[Ok(()), Ok(())], REPLACE_WORDING, "Successfully replaced 2 resource(s)\n", ""),
            (&[POOL], &[Ok(())], VALIDATE_WORDING, "Successfully validated 1 'IPPool' resource(s)\n", ""),
            (&[POOL], &[Err("bad")], CREATE_WORDING, "", "failed to create 'IPPool' resource: [bad]"),
            (&[POOL], &[Err("bad")], REPLACE_WORDING, "", "failed to replace 'IPPool' resource: bad"),
            (
                &[POOL, POOL],
                &[Err("a"), Err("b")],
                APPLY_WORDING,
                "",
                "failed to apply any 'IPPool' resources: [a b]",
            ),
            (
                &[POOL, TIER],
                &[Err("a"), Err("b")],
                VALIDATE_WORDING,
                "",
                "failed to validate any resources: [a b]",
            ),
            (
                &[POOL, POOL, POOL],
                &[Ok(()), Ok(()), Err("a")],
                APPLY_WORDING,
                "Partial success: applied the first 2 out of 3 'IPPool' resources:\n",
                "hit error: [a]",
            ),
            (
                &[POOL, POOL, POOL],
                &[Ok(()), Err("a"), Ok(())],
                APPLY_WORDING,
                "Partial success: applied 2 out of 3 'IPPool' resources:\n",
                "hit error: [a]",
            ),
            (&[POOL, POOL], &[Ok(()), Err("a")], APPLY_WORDING, "", "hit error: [a]"),
            (
                &[POOL, TIER],
                &[Ok(()), Err("a")],
                REPLACE_WORDING,
                "Partial success: replaced the first 1 out of 2 resources:\n",
                "hit error: a",
            ),
        ];
        for (kinds, results, wording, out, error) in rows {
            let outcome = outcome(kinds, results);
            assert_eq!(printed(&outcome, *wording), ((*out).to_owned(), (*error).to_owned()));
        }
    }

    #[test]
    fn deletions_report_each_failure() {
        let some = outcome(&[POOL, TIER, POOL], &[Ok(()), Err("x"), Err("y")]).report_deletion();
        assert_eq!(some.out, "Successfully deleted 1 resource(s)\n");
        assert_eq!(
            some.error.unwrap(),
            "Failed to delete 'Tier' resource: x\nFailed to delete 'IPPool' resource: y"
        );
        let none = outcome(&[POOL], &[Err("x")]).report_deletion();
        assert_eq!(none.out, "");
        let all = outcome(&[POOL], &[Ok(())]).report_deletion();
        assert_eq!((all.out.as_str(), all.error), ("Successfully deleted 1 'IPPool' resource(s)\n", None));
    }
}
