//! Hub clients that read nothing, or one byte per second.

use super::client::hello;
use crate::namespace::BenchResult;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

/// Slow clients, connected until dropped.
pub struct SlowClients {
    _stalled: Vec<TcpStream>,
    _crawling: JoinSet<()>,
}

impl SlowClients {
    pub async fn connect(hub: SocketAddr, of_each: usize) -> BenchResult<SlowClients> {
        let mut slow = SlowClients { _stalled: Vec::new(), _crawling: JoinSet::new() };
        for number in 0..of_each {
            slow._stalled.push(greet(hub, number).await?);
            let mut stream = greet(hub, number).await?;
            slow._crawling.spawn(async move {
                while stream.read_u8().await.is_ok() {
                    tokio::time::sleep(Duration::from_secs(1)).await;
                }
            });
        }
        Ok(slow)
    }
}

async fn greet(hub: SocketAddr, number: usize) -> BenchResult<TcpStream> {
    let mut stream = TcpStream::connect(hub).await?;
    stream.write_all(&hello(number, None)).await?;
    Ok(stream)
}
