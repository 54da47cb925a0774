//! Compatibility: hubs and nodes are not updated at the same time, so current ones must work with those of version 1.

mod wire;

use crate::world::{HubTestStore, RunningHub, TestNode};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tortie_testkit::eventually_async;
use wire::{
    DELETE, MAGIC, PUT, V1Begin, V1Bucket, V1Changes, V1ClientMessage, V1Digests, V1End, V1FromClient,
    V1FromHub, V1Hello, V1HubMessage, V1Payload, V1Position, V1Record, V1Status, V1Welcome, receive, send,
    sums,
};

/// A client of the first release, which applies every message unchecked.
#[derive(Default)]
struct VersionOneClient {
    known: BTreeMap<String, V1Record>,
    position: Option<V1Position>,
    marks: BTreeMap<String, u64>,
    /// Messages received since it connected.
    words: Vec<&'static str>,
}

struct VersionOneConnection {
    stream: TcpStream,
    epoch: u64,
    begun: u64,
}

impl VersionOneClient {
    async fn connect(&mut self, hub: SocketAddr) -> VersionOneConnection {
        let mut stream = TcpStream::connect(hub).await.unwrap();
        let hello = V1Hello {
            magic: MAGIC,
            oldest: 1,
            newest: 1,
            node: "first".to_owned(),
            position: self.position,
            empty: self.known.is_empty(),
            marks: self.marks.clone(),
            wanted: vec!["Tier".to_owned()],
        };
        send(&mut stream, &V1FromClient { what: Some(V1ClientMessage::Hello(hello)) }).await.unwrap();
        self.words.clear();
        VersionOneConnection { stream, epoch: 0, begun: 0 }
    }

    /// Receives messages until it has exactly these tiers.
    async fn learn(&mut self, connection: &mut VersionOneConnection, names: &[&str]) {
        let keys: Vec<String> = names.iter().map(|name| key(name)).collect();
        let patience = tortie_testkit::CONDITION_TIMEOUT;
        while !self.known.keys().eq(keys.iter()) || self.position.is_none() {
            let heard = tokio::time::timeout(patience, receive::<V1FromHub>(&mut connection.stream)).await;
            let heard = heard.expect("in time").expect("an open connection").what.expect("a known message");
            self.hear(connection, heard).await;
        }
    }

    async fn hear(&mut self, connection: &mut VersionOneConnection, heard: V1HubMessage) {
        match heard {
            V1HubMessage::Welcome(welcome) => {
                assert_eq!((welcome.version, welcome.behind), (1, false));
                connection.epoch = welcome.epoch;
            }
            V1HubMessage::Resume(_) => self.words.push("resume"),
            V1HubMessage::Compare(()) => {
                self.words.push("compare");
                let digests = V1Digests { sums: sums(self.known.values()) };
                send(&mut connection.stream, &V1FromClient { what: Some(V1ClientMessage::Digests(digests)) })
                    .await
                    .unwrap();
            }
            V1HubMessage::Begin(begin) => connection.begun = begin.sequence,
            V1HubMessage::Bucket(bucket) => {
                self.words.push("bucket");
                assert!(!bucket.more, "these are small");
                self.known.retain(|_, record| record.bucket() != bucket.index as usize);
                bucket.records.records().into_iter().for_each(|record| self.take(record));
            }
            V1HubMessage::End(_) => {
                self.position = Some(V1Position { epoch: connection.epoch, sequence: connection.begun });
            }
            V1HubMessage::Changes(changes) => {
                let position = self.position.as_mut().expect("changes of what is known");
                assert_eq!(changes.sequence, position.sequence + 1);
                position.sequence = changes.sequence;
                for record in changes.records.records() {
                    self.words.push(if record.what == DELETE { "delete" } else { "put" });
                    self.take(record);
                }
            }
            V1HubMessage::Ping(()) => {
                send(&mut connection.stream, &V1FromClient { what: Some(V1ClientMessage::Pong(())) })
                    .await
                    .unwrap();
            }
            V1HubMessage::Refused(refused) => panic!("{}", refused.reason),
            V1HubMessage::Leave(()) => panic!("asked to leave"),
        }
    }

    fn take(&mut self, record: V1Record) {
        let mark = self.marks.entry("Tier".to_owned()).or_default();
        *mark = (*mark).max(record.revision.parse().unwrap());
        match record.what {
            DELETE => drop(self.known.remove(&record.key)),
            PUT => {
                let object: serde_json::Value = serde_json::from_slice(&record.value).unwrap();
                assert_eq!(object["kind"], "Tier");
                self.known.insert(record.key.clone(), record);
            }
            other => panic!("{other}"),
        }
    }
}

fn key(name: &str) -> String {
    format!(r#"{{"kind":"Tier","name":"{name}"}}"#)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_current_hub_serves_version_1_clients() {
    let store = HubTestStore::embedded().await;
    store.put("a").await;
    store.put("b").await;
    let (one, two) = (RunningHub::start(&store).await, RunningHub::start(&store).await);
    let mut client = VersionOneClient::default();
    let mut connection = client.connect(one.address).await;
    client.learn(&mut connection, &["a", "b"]).await;
    store.put("c").await;
    store.delete("b").await;
    client.learn(&mut connection, &["a", "c"]).await;
    drop(connection);

    store.put("d").await;
    let mut connection = client.connect(one.address).await;
    client.learn(&mut connection, &["a", "c", "d"]).await;
    assert_eq!(client.words, ["resume", "put"], "exactly what it missed");
    drop(connection);

    store.delete("a").await;
    let mut connection = client.connect(two.address).await;
    client.learn(&mut connection, &["c", "d"]).await;
    // The other hub received the deletion either before or after the comparison.
    let compared = [&["compare", "bucket"][..], &["compare", "delete"]];
    assert!(compared.contains(&&client.words[..]), "{:?}", client.words);
    let revisions: Vec<String> = client.known.into_values().map(|record| record.revision).collect();
    assert_eq!(revisions, store.content().await.into_values().collect::<Vec<_>>());
}

/// A hub of the first release.
struct VersionOneHub {
    address: SocketAddr,
    content: Arc<Mutex<VersionOneContent>>,
    changed: watch::Sender<u64>,
    task: JoinHandle<()>,
}

struct VersionOneContent {
    epoch: u64,
    known: BTreeMap<String, V1Record>,
    /// All changes, from the first sequence number.
    log: Vec<V1Record>,
}

impl VersionOneHub {
    async fn start() -> VersionOneHub {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let content =
            Arc::new(Mutex::new(VersionOneContent { epoch: 7, known: BTreeMap::new(), log: Vec::new() }));
        let (changed, changes) = watch::channel(0);
        let shared = content.clone();
        let task = tokio::spawn(async move {
            // Serves one client at a time: a new connection ends the previous one.
            let mut serving: Option<JoinHandle<()>> = None;
            while let Ok((stream, _)) = listener.accept().await {
                serving.iter().for_each(JoinHandle::abort);
                let (shared, changes) = (shared.clone(), changes.clone());
                serving = Some(tokio::spawn(async move {
                    let _ = serve(stream, &shared, changes).await;
                }));
            }
        });
        VersionOneHub { address, content, changed, task }
    }

    fn change(&self, name: &str, what: i32) {
        let mut content = self.content.lock().unwrap();
        let revision = (content.log.len() + 10).to_string();
        let value = format!(
            r#"{{"kind":"Tier","apiVersion":"projectcalico.org/v3","metadata":{{"name":"{name}"}},"spec":{{}}}}"#
        );
        let value = if what == PUT { value.into_bytes() } else { Vec::new() };
        let record = V1Record { key: key(name), what, revision, value, reason: String::new() };
        match what {
            PUT => drop(content.known.insert(key(name), record.clone())),
            _ => drop(content.known.remove(&key(name))),
        }
        content.log.push(record);
        self.changed.send_replace(content.log.len() as u64);
    }

    /// Starts a new epoch: positions of the previous one become invalid.
    fn begin_another_life(&self) {
        self.content.lock().unwrap().epoch += 1;
    }
}

impl Drop for VersionOneHub {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn serve(
    mut stream: TcpStream,
    shared: &Mutex<VersionOneContent>,
    mut changes: watch::Receiver<u64>,
) -> std::io::Result<()> {
    let from_hub = |what: V1HubMessage| V1FromHub { what: Some(what) };
    // A connection without a hello is opened by the test itself.
    let Some(V1FromClient { what: Some(V1ClientMessage::Hello(hello)) }) = receive(&mut stream).await else {
        return Ok(());
    };
    assert_eq!((hello.magic, hello.oldest), (MAGIC, 1), "today's clients still speak version 1");
    let epoch = shared.lock().unwrap().epoch;
    send(&mut stream, &from_hub(V1HubMessage::Welcome(V1Welcome { version: 1, epoch, behind: false })))
        .await?;
    let known = hello.position.filter(|position| position.epoch == epoch);
    let mut sequence = match known {
        Some(position) => {
            send(&mut stream, &from_hub(V1HubMessage::Resume(V1Status::default()))).await?;
            position.sequence
        }
        None => {
            let theirs = match hello.empty {
                true => sums([].iter()),
                false => {
                    send(&mut stream, &from_hub(V1HubMessage::Compare(()))).await?;
                    let Some(V1FromClient { what: Some(V1ClientMessage::Digests(digests)) }) =
                        receive(&mut stream).await
                    else {
                        panic!("no digests");
                    };
                    digests.sums
                }
            };
            let (snapshot, sequence) = {
                let content = shared.lock().unwrap();
                (content.known.clone(), content.log.len() as u64)
            };
            send(&mut stream, &from_hub(V1HubMessage::Begin(V1Begin { sequence, status: None }))).await?;
            let ours = sums(snapshot.values());
            for index in (0..ours.len()).filter(|index| ours[*index] != theirs[*index]) {
                let records = snapshot.values().filter(|record| record.bucket() == index).cloned().collect();
                let bucket = V1Bucket {
                    index: index as u32,
                    changed: sequence,
                    more: false,
                    records: V1Payload::of(records),
                };
                send(&mut stream, &from_hub(V1HubMessage::Bucket(bucket))).await?;
            }
            let marks = BTreeMap::from([("Tier".to_owned(), sequence + 9)]);
            send(&mut stream, &from_hub(V1HubMessage::End(V1End { marks }))).await?;
            sequence
        }
    };
    send(&mut stream, &from_hub(V1HubMessage::Ping(()))).await?;
    let answer = receive::<V1FromClient>(&mut stream).await.and_then(|message| message.what);
    assert_eq!(answer, Some(V1ClientMessage::Pong(())));
    loop {
        let next = shared.lock().unwrap().log.get(sequence as usize).cloned();
        match next {
            Some(record) => {
                sequence += 1;
                let changes = V1Changes { sequence, records: V1Payload::of(vec![record]), status: None };
                send(&mut stream, &from_hub(V1HubMessage::Changes(changes))).await?;
            }
            None if changes.changed().await.is_err() => return Ok(()),
            None => {}
        }
    }
}

async fn hears(node: &TestNode, words: &[&str]) {
    let mut heard = Vec::new();
    eventually_async(&format!("the node hears {words:?}"), async || {
        heard.extend(node.news());
        heard.sort();
        heard == words
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_version_1_hub_serves_current_nodes() {
    let hub = VersionOneHub::start().await;
    hub.change("a", PUT);
    hub.change("b", PUT);
    let node = TestNode::at(&hub.address.to_string());
    hears(&node, &["+a", "+b", "in sync"]).await;
    hub.change("c", PUT);
    hub.change("b", DELETE);
    hears(&node, &["+c", "-b"]).await;

    // The new connection ends the node's, which reconnects with its position.
    drop(TcpStream::connect(hub.address).await.unwrap());
    hub.change("d", PUT);
    hears(&node, &["+d"]).await;

    hub.begin_another_life();
    drop(TcpStream::connect(hub.address).await.unwrap());
    hub.change("a", DELETE);
    hub.change("e", PUT);
    hears(&node, &["+e", "-a"]).await;
    let names: Vec<String> = node.received().content.keys().map(ToString::to_string).collect();
    assert_eq!(names.len(), 3, "{names:?}");
}
