//! Versions of this client, and their comparison with the version of the cluster.

/// The Calico release whose API this client implements.
pub const API_LEVEL: &str = "v3.32.0";

/// The version that `version` prints. The part before the dash is the API level, which version comparisons
/// use; the rest is Tortie's own version.
pub const CLIENT_VERSION: &str = concat!("v3.32.0-tortie.", env!("CARGO_PKG_VERSION"));

/// The git commit of this build.
pub const GIT_COMMIT: &str = env!("TORTIE_GIT_COMMIT");

/// Returns whether two versions denote the same release. Ignores a leading `v`, everything from the first
/// `-`, and trailing `.0`.
pub fn same(a: &str, b: &str) -> bool {
    parts(a) == parts(b)
}

fn parts(version: &str) -> Vec<String> {
    let version = version.trim();
    let version = version.strip_prefix('v').unwrap_or(version);
    let version = version.split_once('-').map_or(version, |(release, _)| release);
    let mut parts: Vec<String> = version
        .split('.')
        .map(|part| part.parse::<u64>().map_or(part.to_owned(), |n| n.to_string()))
        .collect();
    while parts.last().is_some_and(|last| last == "0") {
        parts.pop();
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_client_version_is_of_its_api_level() {
        assert!(same(CLIENT_VERSION, API_LEVEL));
    }

    #[test]
    fn versions_compare_as_versions() {
        for (a, b) in [
            ("3.22.2", "v3.22.2"),
            ("v3.32.0-tortie.0.1.0", "v3.32.0"),
            ("v3.32.0-0.dev-5-gabc", "3.32.0"),
            ("v3.32", "v3.32.0"),
            ("v3.032.0", "v3.32.0"),
        ] {
            assert!(same(a, b), "{a} {b}");
        }
        for (a, b) in [("v3.22.2", "v3.22.3"), ("v3.2.0", "v3.20.0"), ("master", "v3.32.0")] {
            assert!(!same(a, b), "{a} {b}");
        }
    }
}
