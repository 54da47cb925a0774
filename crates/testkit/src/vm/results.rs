//! Parses test results from the output of a guest's serial line.

use std::collections::BTreeMap;

#[derive(Debug)]
pub struct GuestResults {
    /// Whether the test succeeded, by test name.
    outcomes: BTreeMap<String, bool>,
    /// Complete output of the guest.
    text: String,
}

impl GuestResults {
    pub fn read(text: &str) -> GuestResults {
        let outcomes = text.lines().filter_map(|line| {
            let (name, outcome) = line.strip_prefix("test ")?.split_once(" ... ")?;
            Some((name.to_owned(), outcome.trim() == "ok"))
        });
        GuestResults { outcomes: outcomes.collect(), text: text.to_owned() }
    }

    /// Panics on the host if the test failed or did not run in the guest.
    pub fn expect_success(&self, test: &str) {
        match self.outcomes.get(test) {
            Some(true) => {
                let times = self.text.lines().filter(|line| line.starts_with("guest: "));
                times.for_each(|line| println!("{line}"));
            }
            Some(false) => panic!("{test} failed in the guest:\n{}\n{}", self.of(test), self.end()),
            None => panic!("the guest says nothing of {test}:\n{}", self.text),
        }
    }

    /// Returns the output of a failed test.
    fn of(&self, test: &str) -> &str {
        let begin = format!("---- {test} stdout ----");
        let Some(from) = self.text.find(&begin) else { return &self.text };
        let rest = self.text.get(from..).unwrap_or_default();
        let end = rest.get(1..).and_then(|rest| rest.find("\n---- ").or_else(|| rest.find("\nfailures:")));
        end.and_then(|end| rest.get(..=end)).unwrap_or(rest)
    }

    /// Returns the error output of programs and kernel, which follows the test summary.
    fn end(&self) -> &str {
        self.text.rfind("\ntest result: ").and_then(|from| self.text.get(from..)).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SERIAL: &str = "guest: up after 3 s\n\nrunning 3 tests\ntest a::one ... ok\ntest a::two ... FAILED\n\
        failures:\n\n---- a::two stdout ----\nleft: 1\n\nfailures:\n    a::two\n\ntest result: FAILED. 1 passed\nno memory left\n";

    #[test]
    fn a_test_is_told_from_the_others() {
        let results = GuestResults::read(SERIAL);
        results.expect_success("a::one");
        assert_eq!(results.outcomes, BTreeMap::from([("a::one".into(), true), ("a::two".into(), false)]));
        assert_eq!(results.of("a::two"), "---- a::two stdout ----\nleft: 1\n");
        assert_eq!(results.end(), "\ntest result: FAILED. 1 passed\nno memory left\n");
    }

    #[test]
    #[should_panic(expected = "the guest says nothing of a::three")]
    fn a_test_missing_in_the_output_has_failed() {
        GuestResults::read(SERIAL).expect_success("a::three");
    }
}
