//! A small supervisor for hosts without systemd: it restarts a daemon that exits, and limits the size of its log. On
//! SIGTERM it stops the daemon and exits; if it is killed, the daemon exits too.

use super::daemon_log::DaemonLog;
use clap::Args;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::{Child, Command};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tortie_ctl::CommandError;
use tortie_process::{SUPERVISED_VARIABLE, Signal};

/// If the daemon exits within this time on its first start, the supervisor gives up, since a restart would not help.
const FIRST_START_LIMIT: Duration = Duration::from_secs(5);
/// A daemon that has run for this long is restarted without delay.
const STABLE_RUN_TIME: Duration = Duration::from_secs(60);
const MAX_RESTART_DELAY: Duration = Duration::from_secs(30);
/// Time after which a daemon that does not exit is killed.
const STOP_GRACE_PERIOD: Duration = Duration::from_secs(8);
const FINAL_OUTPUT_TIMEOUT: Duration = Duration::from_secs(1);
const LOG_BYTES: u64 = 10 << 20;
const MAX_QUEUED_CHUNKS: usize = 64;

/// Run a daemon, restart it when it exits, and rotate its log
#[derive(Args, Debug)]
pub struct SuperviseArgs {
    /// Name of the daemon in the log
    #[arg(long, value_name = "NAME")]
    name: String,
    #[arg(long, value_name = "FILE")]
    log: PathBuf,
    #[arg(long, value_name = "BYTES", default_value_t = LOG_BYTES)]
    log_bytes: u64,
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

pub fn supervise(args: &SuperviseArgs) -> Result<(), CommandError> {
    // One thread: the daemon's parent-death signal is sent when the thread that started it exits.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(run(args))
}

async fn run(args: &SuperviseArgs) -> Result<(), CommandError> {
    let mut log =
        DaemonLog::open(&args.log, args.log_bytes).map_err(|error| CommandError::at(&args.log, &error))?;
    let mut term = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut pause = RestartDelay::default();
    let mut first = true;
    loop {
        let started = Instant::now();
        let (mut child, mut output) = start(args)?;
        let status = loop {
            tokio::select! {
                Some(bytes) = output.recv() => log.write(&bytes),
                status = child.wait() => break status?,
                _ = term.recv() => return stop(child, output, &mut log).await,
                _ = interrupt.recv() => return stop(child, output, &mut log).await,
            }
        };
        // Write the daemon's last output. A process that it started may keep the pipe open and is not waited for.
        while let Ok(Some(bytes)) = tokio::time::timeout(FINAL_OUTPUT_TIMEOUT, output.recv()).await {
            log.write(&bytes);
        }
        let ran = started.elapsed();
        if first && ran < FIRST_START_LIMIT {
            return Err(CommandError::message(format!("{} ended at once ({status})", args.name)));
        }
        first = false;
        let wait = pause.after(ran);
        log.write(format_restart_line(&args.name, status, wait).as_bytes());
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            _ = term.recv() => return Ok(()),
            _ = interrupt.recv() => return Ok(()),
        }
    }
}

fn format_restart_line(name: &str, status: ExitStatus, wait: Duration) -> String {
    format!("supervisor: {name} ended ({status}); starting it again in {} s\n", wait.as_secs())
}

/// Starts the daemon. Returns the process and the channel with its output.
fn start(args: &SuperviseArgs) -> Result<(Child, mpsc::Receiver<Vec<u8>>), CommandError> {
    let (program, words) = args
        .command
        .split_first()
        .ok_or_else(|| CommandError::message("there is no command to supervise"))?;
    let mut child = Command::new(program)
        .args(words)
        .env(SUPERVISED_VARIABLE, "1")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let (sender, output) = mpsc::channel(MAX_QUEUED_CHUNKS);
    if let Some(stdout) = child.stdout.take() {
        tokio::spawn(copy(stdout, sender.clone()));
    }
    if let Some(stderr) = child.stderr.take() {
        tokio::spawn(copy(stderr, sender));
    }
    Ok((child, output))
}

/// Copies until the end of the pipe. The channel is bounded: a daemon that prints faster than the log is written has to
/// wait.
async fn copy(mut from: impl AsyncRead + Unpin, to: mpsc::Sender<Vec<u8>>) {
    let mut buffer = vec![0; 8192];
    while let Ok(count) = from.read(&mut buffer).await {
        if count == 0 || to.send(buffer[..count].to_vec()).await.is_err() {
            return;
        }
    }
}

/// Sends SIGTERM to the daemon and waits until it has exited.
async fn stop(
    mut child: Child,
    mut output: mpsc::Receiver<Vec<u8>>,
    log: &mut DaemonLog,
) -> Result<(), CommandError> {
    if let Some(pid) = child.id() {
        tortie_process::signal(pid, Signal::TERM)?;
    }
    let deadline = tokio::time::sleep(STOP_GRACE_PERIOD);
    tokio::pin!(deadline);
    loop {
        tokio::select! {
            Some(bytes) = output.recv() => log.write(&bytes),
            status = child.wait() => { status?; return Ok(()) }
            () = &mut deadline => { child.kill().await?; return Ok(()) }
        }
    }
}

/// Delay before the next start, doubled after each short run and reset after a long one.
#[derive(Debug, Default)]
struct RestartDelay(u32);

impl RestartDelay {
    fn after(&mut self, ran: Duration) -> Duration {
        self.0 = if ran >= STABLE_RUN_TIME { 0 } else { self.0.saturating_add(1) };
        let doubled = 1_u64.checked_shl(self.0).unwrap_or(u64::MAX) / 2;
        Duration::from_secs(doubled).min(MAX_RESTART_DELAY)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn restarts_of_a_failing_daemon_are_delayed() {
        let mut pause = RestartDelay::default();
        let short = Duration::from_secs(1);
        let pauses: Vec<u64> = (0..7).map(|_| pause.after(short).as_secs()).collect();
        assert_eq!(pauses, [1, 2, 4, 8, 16, 30, 30]);
        assert_eq!(pause.after(STABLE_RUN_TIME).as_secs(), 0);
        assert_eq!(pause.after(short).as_secs(), 1);
        assert!((0..200).all(|_| pause.after(short) <= MAX_RESTART_DELAY));
    }
}
