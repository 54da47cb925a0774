//! Exports the git commit of the build; a build outside a git checkout exports `unknown` instead of failing.

use std::process::Command;

fn main() {
    let commit = Command::new("git")
        .args(["rev-parse", "--short=9", "HEAD"])
        .output()
        .ok()
        .filter(|output| output.status.success())
        .and_then(|output| String::from_utf8(output.stdout).ok())
        .map(|text| text.trim().to_owned())
        .filter(|text| !text.is_empty())
        .unwrap_or_else(|| "unknown".to_owned());
    println!("cargo::rustc-env=TORTIE_GIT_COMMIT={commit}");
    println!("cargo::rerun-if-changed=build.rs");
    // The reflog of HEAD changes with every commit. In a worktree it is in another place, so ask git for the
    // path.
    if let Ok(output) = Command::new("git").args(["rev-parse", "--git-path", "logs/HEAD"]).output()
        && output.status.success()
        && let Ok(path) = String::from_utf8(output.stdout)
    {
        println!("cargo::rerun-if-changed={}", path.trim());
    }
}
