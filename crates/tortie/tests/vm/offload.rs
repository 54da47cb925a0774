//! Flow table offload: established connections that policy has allowed bypass the rules.

use crate::world::{NodeFixture, eventually};
use serde_json::json;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;
use tortie_dataplane::Netns;
use tortie_testkit::{TestNamespace, bind_when_free, guest_test};

const ECHO_PORT: u16 = 8080;
const ECHO_TIMEOUT: Duration = Duration::from_secs(60);

/// Echoes everything on one connection.
fn echo(namespace: &TestNamespace, address: &str) {
    let at = SocketAddr::new(address.parse().unwrap(), ECHO_PORT);
    let listener = Netns::open(namespace.path())
        .unwrap()
        .run(move || bind_when_free(|| TcpListener::bind(at)))
        .unwrap()
        .unwrap();
    std::thread::spawn(move || {
        let (mut connection, _) = listener.accept().unwrap();
        let mut byte = [0];
        while let Ok(1) = connection.read(&mut byte) {
            connection.write_all(&byte).unwrap();
        }
    });
}

fn connect(namespace: &TestNamespace, address: &str, patience: Duration) -> std::io::Result<TcpStream> {
    let to = SocketAddr::new(address.parse().unwrap(), ECHO_PORT);
    let connect = move || TcpStream::connect_timeout(&to, patience);
    let stream = Netns::open(namespace.path()).unwrap().run(connect).unwrap()?;
    stream.set_read_timeout(Some(ECHO_TIMEOUT))?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Sends twenty bytes and checks each echo.
fn talk(stream: &mut TcpStream) {
    for number in 0..20 {
        stream.write_all(&[number]).unwrap();
        let mut answer = [0];
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(answer, [number]);
    }
}

/// Returns how many packets the rules have processed.
fn seen(host: &TestNamespace) -> u64 {
    let table = host.exec("nft list chain ip probe forward");
    let mut words = table.split_whitespace().skip_while(|word| *word != "packets");
    words.nth(1).unwrap().parse().unwrap()
}

fn devices(host: &TestNamespace) -> String {
    let output = host.try_exec("nft list flowtable inet tortie-flows flows");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Sets the mode in the node's own FelixConfiguration, which takes precedence over the cluster's.
fn set(world: &NodeFixture, offload: &str) {
    let object = json!({
        "apiVersion": "projectcalico.org/v3", "kind": "FelixConfiguration", "metadata": {"name": "node.n1"},
        "spec": {"nftablesFlowTableOffload": offload},
    });
    world.calicoctl(&["apply", "-f", "-"], &object.to_string());
}

fn policy(action: &str) -> String {
    json!({
        "apiVersion": "projectcalico.org/v3", "kind": "GlobalNetworkPolicy", "metadata": {"name": "guard"},
        "spec": {"selector": "all()", "types": ["Ingress"], "ingress": [{"action": action}]},
    })
    .to_string()
}

guest_test!(
    crate::machine,
    fn accepted_connections_are_offloaded() {
        let world = NodeFixture::new();
        set(&world, "All");
        let host = &world.host;
        host.nft(
            "table ip probe {\n chain forward {\n type filter hook forward priority -300; counter\n }\n }",
        );
        let (one, two) = (world.container(), world.container());
        world.must("ADD", "c1", &one.path(), &world.config());
        let to = world.must("ADD", "c2", &two.path(), &world.config()).addresses();
        let both = || devices(host).contains("calic1") && devices(host).contains("calic2");
        eventually("both interfaces are in the flow table", both);
        echo(&two, &to[0]);
        let mut stream = connect(&one, &to[0], ECHO_TIMEOUT).unwrap();
        let past = |stream: &mut TcpStream| {
            let before = seen(host);
            talk(stream);
            seen(host) == before
        };
        eventually("the rules see nothing of it any more", || past(&mut stream));

        // Policy applies to new connections; established ones continue, offloaded or not.
        world.calicoctl(&["apply", "-f", "-"], &policy("Deny"));
        let refused = || connect(&one, &to[0], Duration::from_secs(2)).is_err();
        eventually("no other comes to be", refused);
        eventually("it goes on past the rules", || past(&mut stream));

        // Adding and removing interfaces does not affect the connection.
        let three = world.container();
        world.must("ADD", "c3", &three.path(), &world.config());
        eventually("a new one is in the flow table", || devices(host).contains("calic3"));
        world.must("DEL", "c3", &three.path(), &world.config());
        eventually("one that is gone is not", || both() && !devices(host).contains("calic3"));
        // After a long idle time a connection passes the rules once before it is offloaded again.
        eventually("it still goes past the rules", || past(&mut stream));
        host.nft("delete table inet tortie-flows");
        eventually("what somebody deletes comes back", both);

        set(&world, "Disabled");
        eventually("the flow table goes", || devices(host).is_empty());
        assert!(!past(&mut stream), "the rules see it again");
    }
);
