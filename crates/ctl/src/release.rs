//! Versions: ours, and how they compare with the cluster's.

/// The release of Calico whose API this client speaks.
pub const API_LEVEL: &str = "v3.32.0";

/// What `version` prints. The part up to the dash is the API level, which is what versions are compared by; what
/// follows is our own.
pub const CLIENT_VERSION: &str = concat!("v3.32.0-tortie.", env!("CARGO_PKG_VERSION"));

/// The commit this was built from.
pub const GIT_COMMIT: &str = env!("TORTIE_GIT_COMMIT");

/// Whether two versions are the same release: a leading `v`, anything from the first `-`, and trailing `.0` do not
/// count.
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
