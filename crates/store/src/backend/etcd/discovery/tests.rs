//! Discovery with a fake name server.

use super::message::tests::reply;
use super::*;
use tokio::task::JoinHandle;

/// A name server on the loopback address that runs until dropped.
struct NameServer {
    address: SocketAddr,
    task: JoinHandle<()>,
}

impl NameServer {
    async fn start(answer: impl Fn(&[u8]) -> Vec<u8> + Send + 'static) -> NameServer {
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let address = socket.local_addr().unwrap();
        let task = tokio::spawn(async move {
            let mut buffer = [0; 512];
            while let Ok((length, client)) = socket.recv_from(&mut buffer).await {
                let _ = socket.send_to(&answer(&buffer[..length]), client).await;
            }
        });
        NameServer { address, task }
    }
}

impl Drop for NameServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

const LOOKUP_TIMEOUT: Duration = Duration::from_secs(2);

fn is_about(question: &[u8], name: &str) -> bool {
    question.windows(name.len()).any(|window| window == name.as_bytes())
}

#[tokio::test]
async fn servers_with_tls_come_first() {
    let server = NameServer::start(|question| {
        if is_about(question, "_etcd-client-ssl") {
            reply(question, 0, &[(0, 0, 2379, "a.example"), (1, 0, 2380, "b.example")])
        } else {
            reply(question, 0, &[(0, 0, 2379, "c.example")])
        }
    })
    .await;
    let found = look_up_endpoints("example.", &[server.address], LOOKUP_TIMEOUT).await.unwrap();
    let texts: Vec<String> = found.iter().map(ToString::to_string).collect();
    assert_eq!(texts, ["https://a.example:2379", "https://b.example:2380", "http://c.example:2379"]);
}

#[tokio::test]
async fn a_dead_name_server_is_passed_over() {
    let dead = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let live = NameServer::start(|question| reply(question, 0, &[(0, 0, 1, "a")])).await;
    let servers = [dead.local_addr().unwrap(), live.address];
    assert_eq!(look_up_endpoints("example", &servers, LOOKUP_TIMEOUT).await.unwrap().len(), 2);
}

#[tokio::test]
async fn failure_says_where_to_look() {
    let nothing = NameServer::start(|question| reply(question, 3, &[])).await;
    let text =
        look_up_endpoints("example", &[nothing.address], LOOKUP_TIMEOUT).await.unwrap_err().to_string();
    assert!(text.contains("ETCD_DISCOVERY_SRV) 'example'") && text.contains("no server is named"), "{text}");
    assert!(text.contains("_etcd-client-ssl._tcp.example"), "{text}");
    let refusing = NameServer::start(|question| reply(question, 5, &[])).await;
    let text =
        look_up_endpoints("example", &[refusing.address], LOOKUP_TIMEOUT).await.unwrap_err().to_string();
    assert!(text.contains("refuses the question"), "{text}");
    let silent = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let limit = Duration::from_millis(100);
    let text =
        look_up_endpoints("example", &[silent.local_addr().unwrap()], limit).await.unwrap_err().to_string();
    assert!(text.contains("answer"), "{text}");
}

#[test]
fn the_systems_name_servers_are_read() {
    let text = "# comment\nsearch example\nnameserver 192.0.2.1\nnameserver   2001:db8::1\nnameserver fe80::1%eth0\n";
    let expected: Vec<SocketAddr> =
        vec!["192.0.2.1:53".parse().unwrap(), "[2001:db8::1]:53".parse().unwrap()];
    assert_eq!(name_servers(text), expected);
    assert_eq!(name_servers(""), ["127.0.0.1:53".parse().unwrap()]);
}
