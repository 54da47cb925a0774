//! Runs the commands of a page in order in a sandbox.

use crate::blocks::{self, DocStep};
use crate::sandbox::{DocsSandbox, SandboxOutput};
use crate::{read, repository, shown};
use std::time::{Duration, Instant};

const RETRY_DELAY: Duration = Duration::from_millis(300);
/// How long the output may differ from the page before the test fails.
const OUTPUT_TIMEOUT: Duration = Duration::from_secs(120);
const REFRESH_OUTPUT_TIMEOUT: Duration = Duration::from_secs(10);

pub fn run(page: &str) {
    let text = read(page);
    let refresh = std::env::var_os("TORTIE_REFRESH").is_some();
    let patience = if refresh { REFRESH_OUTPUT_TIMEOUT } else { OUTPUT_TIMEOUT };
    let mut sandbox = DocsSandbox::new();
    // Replacement text for ranges of lines.
    let mut changes: Vec<((usize, usize), String)> = Vec::new();
    let blocks: Vec<_> = blocks::of(&text).into_iter().filter(blocks::CodeBlock::is_run).collect();
    assert!(!blocks.is_empty(), "{page} has no commands");
    for step in blocks.iter().flat_map(blocks::steps) {
        let (ran, right) = attempt(&mut sandbox, &step, patience);
        if right {
            continue;
        }
        let what = format!("{page}:{}: {}", step.place.0, step.command);
        if !refresh || step.shown.is_none() {
            let shown = step.shown.map(|lines| lines.join("\n")).unwrap_or_default();
            panic!(
                "{what}\nexit status {:?}; it printed\n{}\nthe page shows\n{shown}",
                ran.status, ran.printed
            );
        }
        changes.push((step.place, ran.printed.trim_matches('\n').to_owned()));
    }
    if !changes.is_empty() {
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        for ((first, end), printed) in changes.into_iter().rev() {
            lines.splice(first..end, [printed]);
        }
        std::fs::write(repository().join(page), lines.join("\n") + "\n").unwrap();
    }
}

/// Runs a command, and retries it while it does not print the expected output: some effects take time.
fn attempt(sandbox: &mut DocsSandbox, step: &DocStep, patience: Duration) -> (SandboxOutput, bool) {
    let deadline = Instant::now() + patience;
    loop {
        let ran = sandbox.run(&step.command, step.is_script);
        let right = match &step.shown {
            Some(lines) => shown::matches(lines, &ran.printed),
            None => ran.status == Some(0),
        };
        if right || step.shown.is_none() || ran.status.is_none() || Instant::now() > deadline {
            return (ran, right);
        }
        std::thread::sleep(RETRY_DELAY);
    }
}
