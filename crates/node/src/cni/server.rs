//! Serves the CNI socket: one request and one response per connection.

use super::request::CniRequest;
use super::service::{CniResponse, CniService, REQUEST_TIMEOUT};
use crate::socket::DaemonSocket;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::sync::{Semaphore, watch};
use tortie_cni::{CniError, code};

/// Maximum size of a request in bytes, larger than any configuration in its JSON encoding.
const MAX_REQUEST_BYTES: u64 = 8 << 20;
/// Timeout for reading a request.
const REQUEST_READ_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum number of requests that are handled concurrently; further ones wait.
const MAX_CONCURRENT_REQUESTS: usize = 64;
/// Maximum number of connections, including requests that are being read or wait. Further connections are closed, and
/// the plugin returns TRY_AGAIN.
const MAX_CNI_CONNECTIONS: usize = 1024;

/// Serves requests until the task is dropped. Responds with TRY_AGAIN until the node has started.
pub async fn serve(socket: DaemonSocket, service: watch::Receiver<Option<Arc<CniService>>>) {
    let room = Arc::new(Semaphore::new(MAX_CONCURRENT_REQUESTS));
    let connections = Arc::new(Semaphore::new(MAX_CNI_CONNECTIONS));
    loop {
        let stream = match socket.accept().await {
            Ok(stream) => stream,
            Err(error) => {
                tracing::warn!(%error, "cannot accept a CNI connection; the plugin will retry");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let service = service.borrow().clone();
        let Ok(connection) = connections.clone().try_acquire_owned() else {
            if let Some(service) = service {
                service.state.metrics.closed_connections.get_or_create(&[("listener", "cni".into())]).inc();
            }
            continue;
        };
        let room = room.clone();
        // A separate task, so that a request is finished or undone even if the plugin is killed.
        tokio::spawn(async move {
            let _connection = connection;
            if let Err(error) = handle_connection(stream, service, &room).await {
                tracing::debug!(%error, "the plugin closed the connection before the response");
            }
        });
    }
}

/// Handles one connection. The request is read completely before it occupies one of the [`MAX_CONCURRENT_REQUESTS`] slots.
async fn handle_connection(
    mut stream: UnixStream,
    service: Option<Arc<CniService>>,
    room: &Semaphore,
) -> io::Result<()> {
    let mut text = Vec::new();
    tokio::time::timeout(REQUEST_READ_TIMEOUT, (&mut stream).take(MAX_REQUEST_BYTES).read_to_end(&mut text))
        .await??;
    let Some(service) = service else {
        let error = CniError::new(code::TRY_AGAIN, "the node's daemon is still starting")
            .with("it waits for the datastore; its log says more");
        return send_response(stream, "1\n", &error.to_json()).await;
    };
    // The semaphore is never closed.
    let _place = room.acquire().await;
    let response = match handle_request(&service, &text).await {
        Ok(response) => response,
        Err(error) => return send_response(stream, "1\n", &error.to_json()).await,
    };
    let sent = send_response(stream, "0\n", &response.text).await;
    if let (Err(_), Some(attached)) = (&sent, response.attached) {
        service.roll_back(attached).await;
    }
    sent
}

async fn send_response(mut stream: UnixStream, status: &str, text: &str) -> io::Result<()> {
    stream.write_all(status.as_bytes()).await?;
    stream.write_all(text.as_bytes()).await?;
    stream.shutdown().await
}

async fn handle_request<'a>(service: &'a CniService, text: &[u8]) -> Result<CniResponse<'a>, CniError> {
    let request = CniRequest::parse(text)?;
    let command = request.command;
    let container = request.container_id.clone();
    let begun = std::time::Instant::now();
    // An ADD has its own deadline after which it is undone. This timeout is for the other commands.
    let outcome =
        tokio::time::timeout(REQUEST_TIMEOUT + REQUEST_READ_TIMEOUT, service.handle_request(request)).await;
    let outcome = outcome.unwrap_or_else(|_| {
        Err(CniError::new(code::TRY_AGAIN, format!("not done within {REQUEST_TIMEOUT:?}")))
    });
    let number = outcome.as_ref().err().map_or(0, |error| error.code);
    let labels = [("command", format!("{command:?}").to_uppercase()), ("code", number.to_string())];
    service.state.metrics.cni_requests.get_or_create(&labels).inc();
    match &outcome {
        Ok(_) => tracing::info!(?command, container, took = ?begun.elapsed(), "CNI request done"),
        Err(error) => tracing::warn!(?command, container, code = error.code, %error, "CNI request failed"),
    }
    outcome
}
