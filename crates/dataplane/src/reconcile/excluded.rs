//! The interfaces that the settings exclude from host endpoints.

use regex::Regex;
use std::collections::BTreeSet;

/// Names, and regular expressions, which are written between slashes.
#[derive(Debug)]
pub struct ExcludedInterfaces {
    names: BTreeSet<String>,
    patterns: Vec<Regex>,
}

impl ExcludedInterfaces {
    pub fn new(listed: &[String]) -> ExcludedInterfaces {
        let mut names = BTreeSet::new();
        let mut patterns = Vec::new();
        for text in listed {
            match text.strip_prefix('/').and_then(|rest| rest.strip_suffix('/')) {
                // An invalid expression excludes nothing.
                Some(pattern) => patterns.extend(Regex::new(pattern)),
                None => {
                    names.insert(text.clone());
                }
            }
        }
        ExcludedInterfaces { names, patterns }
    }

    pub fn contains(&self, name: &str) -> bool {
        self.names.contains(name) || self.patterns.iter().any(|pattern| pattern.is_match(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_whole_and_patterns_match_anywhere() {
        let listed = ["kube-ipvs0", "/^br-/", "/0[0-9]$/", "/(/", "/"];
        let excluded = ExcludedInterfaces::new(&listed.map(str::to_owned));
        for name in ["kube-ipvs0", "br-1", "eth07", "/"] {
            assert!(excluded.contains(name), "{name}");
        }
        for name in ["kube-ipvs0x", "kube-ipvs", "abr-1", "eth0", "("] {
            assert!(!excluded.contains(name), "{name}");
        }
    }
}
