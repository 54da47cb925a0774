//! The socket: one request and one answer per connection.

use super::request::Request;
use super::wiring::{Answer, DEADLINE, Wiring};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Semaphore, watch};
use tortie_cni::{CniError, code};

/// Larger than any configuration, once written as JSON text.
const LIMIT: u64 = 8 << 20;
/// A plugin that does not get its request out is not waited for.
const READ_LIMIT: Duration = Duration::from_secs(10);
/// Requests worked on at a time; more wait for their turn.
const AT_ONCE: usize = 64;

/// Serves until the task is dropped. Until the node has started, the answer is to try again.
pub async fn serve(path: &Path, wiring: watch::Receiver<Option<Arc<Wiring>>>) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(path)?;
    // Whoever may connect can attach to any namespace of this host.
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
    let room = Arc::new(Semaphore::new(AT_ONCE));
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "cannot take a connection");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let (wiring, room) = (wiring.borrow().clone(), room.clone());
        // A task of its own: when a plugin is killed, what it asked for does not stop half way.
        tokio::spawn(async move {
            let Ok(_place) = room.acquire().await else { return };
            if let Err(error) = converse(stream, wiring).await {
                tracing::debug!(%error, "a plugin went away before its answer");
            }
        });
    }
}

async fn converse(mut stream: UnixStream, wiring: Option<Arc<Wiring>>) -> io::Result<()> {
    let mut text = Vec::new();
    tokio::time::timeout(READ_LIMIT, (&mut stream).take(LIMIT).read_to_end(&mut text)).await??;
    let Some(wiring) = wiring else {
        let error = CniError::new(code::TRY_AGAIN, "the node's daemon is still starting")
            .with("it waits for the datastore; its log says more");
        return tell(stream, "1\n", &error.to_json()).await;
    };
    let answer = match answer(&wiring, &text).await {
        Ok(answer) => answer,
        Err(error) => return tell(stream, "1\n", &error.to_json()).await,
    };
    let told = tell(stream, "0\n", &answer.text).await;
    if let (Err(_), Some(attached)) = (&told, answer.attached) {
        wiring.take_back(attached).await;
    }
    told
}

async fn tell(mut stream: UnixStream, status: &str, text: &str) -> io::Result<()> {
    stream.write_all(status.as_bytes()).await?;
    stream.write_all(text.as_bytes()).await?;
    stream.shutdown().await
}

async fn answer<'a>(wiring: &'a Wiring, text: &[u8]) -> Result<Answer<'a>, CniError> {
    let request = Request::parse(text)?;
    let (command, container) = (request.command, request.container_id.clone());
    let begun = std::time::Instant::now();
    // What an ADD begins is undone by itself in time; this is for the rest.
    let outcome = tokio::time::timeout(DEADLINE + READ_LIMIT, wiring.answer(request)).await;
    let outcome = outcome
        .unwrap_or_else(|_| Err(CniError::new(code::TRY_AGAIN, format!("not done within {DEADLINE:?}"))));
    let number = outcome.as_ref().err().map_or(0, |error| error.code);
    let labels = [("command", format!("{command:?}").to_uppercase()), ("code", number.to_string())];
    wiring.state.metrics.cni_requests.get_or_create(&labels).inc();
    match &outcome {
        Ok(_) => tracing::info!(?command, container, took = ?begun.elapsed(), "CNI"),
        Err(error) => tracing::warn!(?command, container, code = error.code, %error, "CNI request refused"),
    }
    outcome
}
