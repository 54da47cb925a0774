//! kube-apiserver returns empty lists although the objects exist: the controllers release and delete nothing, and
//! report it.

use crate::controllers::ControllersFixture;
use serde_json::{Value as Json, json};
use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use tortie_ipam::{Allocator, BlockOwner};
use tortie_model::{Kind, StoreKey, StoreValue};
use tortie_store::{StoreClient, StoreConfig};
use tortie_testkit::{ApiServer, DatastoreProcess, TestProcess};

const TORTIE: &str = env!("CARGO_BIN_EXE_tortie");
const LEAK_GRACE_PERIOD: &str = "1s";
/// Disables the grace period of watches, so that only the controllers' own check protects the objects.
const LIST_GRACE_VARIABLE: (&str, &str) = ("TORTIE_ABSENCE_GRACE_SECONDS", "0");
const HOST_ENDPOINTS_PATH: &str = "/apis/projectcalico.org/v3/hostendpoints";
/// Lists that the proxy returns empty, with their kinds.
const EMPTIED_LISTS: [(&str, &str); 6] = [
    ("/api/v1/nodes", "NodeList"),
    ("/api/v1/pods", "PodList"),
    ("/api/v1/services", "ServiceList"),
    ("/api/v1/namespaces", "NamespaceList"),
    ("/api/v1/serviceaccounts", "ServiceAccountList"),
    ("/apis/networking.k8s.io/v1/networkpolicies", "NetworkPolicyList"),
];

/// A proxy in front of kube-apiserver that can return well-formed empty lists. Reads of single objects pass
/// unchanged.
struct ListProxy {
    address: SocketAddr,
    state: Arc<ListProxyState>,
    _server: TestProcess,
}

struct ListProxyState {
    server: String,
    is_emptying: AtomicBool,
    /// Connections on which a watch may be open.
    open: Mutex<Vec<TcpStream>>,
}

impl ListProxy {
    fn start(server: &ApiServer) -> ListProxy {
        let mut command = server.program("kubectl");
        command.args(["proxy", "--port=0", "--kubeconfig"]).arg(server.kubeconfig());
        let (process, line) = TestProcess::until_first_line(&mut command);
        let address = line.trim().rsplit(' ').next().unwrap_or_default().to_owned();
        assert!(address.parse::<SocketAddr>().is_ok(), "{line:?}");
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let state = Arc::new(ListProxyState {
            server: address,
            is_emptying: AtomicBool::new(false),
            open: Mutex::default(),
        });
        let (address, shared) = (listener.local_addr().unwrap(), state.clone());
        // The thread ends with the test process.
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let state = shared.clone();
                std::thread::spawn(move || state.serve(client));
            }
        });
        ListProxy { address, state, _server: process }
    }

    fn kubeconfig(&self, server: &ApiServer) -> PathBuf {
        let text = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "proxy",
            "clusters": [{"name": "proxy", "cluster": {"server": format!("http://{}", self.address)}}],
            "users": [{"name": "proxy", "user": {}}],
            "contexts": [{"name": "proxy", "context": {"cluster": "proxy", "user": "proxy"}}],
        });
        let path = server.path("kubeconfig-proxy");
        std::fs::write(&path, text.to_string()).unwrap();
        path
    }

    /// Switches emptying on or off and closes all connections, so that watch clients list again.
    fn set_emptying(&self, is_emptying: bool) {
        self.state.is_emptying.store(is_emptying, Ordering::SeqCst);
        for connection in self.state.open.lock().unwrap().drain(..) {
            let _ = connection.shutdown(Shutdown::Both);
        }
    }
}

impl ListProxyState {
    /// Serves one request per connection; the client opens a new connection for the next.
    fn serve(&self, client: TcpStream) -> Option<()> {
        let mut reader = BufReader::new(client.try_clone().ok()?);
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            if reader.read_line(&mut head).ok()? == 0 {
                return None;
            }
        }
        let (first, fields) = head.split_once("\r\n")?;
        let mut words = first.split(' ');
        let (method, target) = (words.next()?, words.next()?);
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        // Register the connection before the decision: a connection that `set_emptying` does not close then sees the
        // new setting.
        self.open.lock().unwrap().push(client.try_clone().ok()?);
        let emptied = EMPTIED_LISTS.iter().find(|(emptied, _)| method == "GET" && *emptied == path);
        if let Some((path, kind)) = emptied.filter(|_| self.is_emptying.load(Ordering::SeqCst)) {
            return answer(client, path, kind, query.contains("watch=1"));
        }
        let mut server = TcpStream::connect(&self.server).ok()?;
        let fields = fields.lines().filter(|line| !line.to_ascii_lowercase().starts_with("connection:"));
        let fields: String = fields.map(|line| format!("{line}\r\n")).collect();
        let request = format!("{first}\r\nConnection: close\r\n{fields}");
        server.write_all(request.as_bytes()).ok()?;
        let (mut up, mut client) = (server.try_clone().ok()?, client);
        std::thread::spawn(move || {
            let mut body = reader.buffer().to_vec();
            let rest = reader.get_mut();
            let _ = up.write_all(&body).and_then(|()| {
                body.resize(16_384, 0);
                loop {
                    match rest.read(&mut body)? {
                        0 => return up.shutdown(Shutdown::Both),
                        count => up.write_all(&body[..count])?,
                    }
                }
            });
        });
        std::io::copy(&mut server, &mut client).ok()?;
        client.shutdown(Shutdown::Both).ok()
    }
}

/// Sends a list without items, or 410 Gone for a watch.
fn answer(mut client: TcpStream, path: &str, kind: &str, is_watch: bool) -> Option<()> {
    // The client would reject a list with another apiVersion than it requested.
    let (version, _) = path.trim_start_matches("/apis/").trim_start_matches("/api/").rsplit_once('/')?;
    let (status, body) = match is_watch {
        true => (
            "410 Gone",
            json!({"apiVersion": "v1", "kind": "Status", "status": "Failure", "reason": "Expired",
                "code": 410, "message": "too old resource version"}),
        ),
        false => (
            "200 OK",
            json!({"apiVersion": version, "kind": kind, "metadata": {"resourceVersion": "1"}, "items": []}),
        ),
    };
    let body = body.to_string();
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    client.write_all((head + &body).as_bytes()).ok()?;
    client.shutdown(Shutdown::Write).ok()
}

/// Returns why the controllers report that they are not ready.
fn reason(world: &ControllersFixture) -> String {
    let text = std::fs::read_to_string(world.dir.path().join("a")).unwrap_or_default();
    let status: Json = serde_json::from_str(&text).unwrap_or_default();
    status["Readiness"]["ProofOfAbsence"]["Reason"].as_str().unwrap_or_default().to_owned()
}

fn host_endpoints(world: &ControllersFixture) -> usize {
    world.server.must("GET", HOST_ENDPOINTS_PATH, None)["items"].as_array().map(Vec::len).unwrap_or_default()
}

#[test]
fn empty_lists_release_no_address() {
    let mut world = ControllersFixture::new(json!({
        "node": {"leakGracePeriod": LEAK_GRACE_PERIOD, "hostEndpoint": {"autoCreate": "Enabled"}}, "loadBalancer": {}
    }));
    let proxy = ListProxy::start(&world.server);
    let kubeconfig = proxy.kubeconfig(&world.server).display().to_string();
    world.environment.retain(|(name, _)| *name != "KUBECONFIG");
    world
        .environment
        .extend([("KUBECONFIG", kubeconfig), (LIST_GRACE_VARIABLE.0, LIST_GRACE_VARIABLE.1.to_owned())]);
    let allocator = Allocator::new(world.client(), BlockOwner::host("n1"));
    let add = |world: &ControllersFixture, node: &str, pod: &str| -> IpAddr {
        world.server.add_pod("shop", pod, node, json!({}), json!([]));
        let address = world.assign(node, pod);
        world.server.set_pod_addresses("shop", pod, &[address.to_string()]);
        address
    };
    ["n1", "n2"].iter().for_each(|node| world.server.add_node(node));
    let mut used: BTreeSet<IpAddr> =
        [add(&world, "n1", "p1"), add(&world, "n1", "p2"), add(&world, "n2", "p3")].into();
    let leaving = add(&world, "n2", "p4");
    world.service("web", json!({"type": "LoadBalancer", "ports": [{"port": 80}]}));
    world.start("a");
    world.wait("everything is there", || !world.ingress("web").is_empty() && host_endpoints(&world) == 2);
    let ingress = world.ingress("web");
    used.extend([leaving, ingress.parse().unwrap()]);
    assert_eq!(world.assigned(&allocator), used);

    let is_kept = |world: &ControllersFixture| {
        assert_eq!(world.assigned(&allocator), used, "{}", world.log());
        assert_eq!((host_endpoints(world), world.ingress("web")), (2, ingress.clone()), "{}", world.log());
    };
    let reported = ["4 of 4 pods", "2 of 2 nodes", "1 of 1 services"];
    proxy.set_emptying(true);
    world.wait("what is missing is reported", || {
        is_kept(&world);
        reported.iter().all(|part| reason(&world).contains(part))
    });
    // A newly elected leader without history must reach the same conclusion.
    drop(world.replicas.remove("a"));
    std::fs::remove_file(world.dir.path().join("a")).unwrap();
    world.start("a");
    world.wait("a new leader reports it too", || {
        is_kept(&world);
        reported.iter().all(|part| reason(&world).contains(part))
    });
    assert!(world.log().contains("a large share of objects is missing from lists"), "{}", world.log());

    proxy.set_emptying(false);
    world.wait("the lists are whole again", || reason(&world).is_empty());
    is_kept(&world);
    world.server.remove_pod("shop", "p4");
    used.remove(&leaving);
    world.wait("a leak is released", || world.assigned(&allocator) == used);
    world.server.remove_pod("shop", "p3");
    world.server.must("DELETE", "/api/v1/nodes/n2", None);
    world.server.must("DELETE", "/api/v1/namespaces/shop/services/web", None);
    world.wait("what is really gone is released", || world.assigned(&allocator).len() == 2);
    world.wait("and its host endpoint deleted", || host_endpoints(&world) == 1);
}

#[test]
fn empty_lists_delete_nothing_from_etcd() {
    let mut world = ControllersFixture::new(json!({}));
    let proxy = ListProxy::start(&world.server);
    let store = DatastoreProcess::start(TORTIE, &world.dir.path().join("db"), &["http://127.0.0.1:0"], &[]);
    world.environment = vec![
        ("ETCD_ENDPOINTS", store.url().to_owned()),
        ("KUBECONFIG", proxy.kubeconfig(&world.server).display().to_string()),
        ("DATASTORE_TYPE", "etcdv3".to_owned()),
        (LIST_GRACE_VARIABLE.0, LIST_GRACE_VARIABLE.1.to_owned()),
    ];
    let client = world.runtime.block_on(StoreClient::connect(&StoreConfig::at(store.url()))).unwrap();
    let put = |kind: Kind, name: &str, spec: Json| {
        let key = StoreKey::resource(kind, "", name);
        let text = json!({"metadata": {"name": name}, "spec": spec}).to_string();
        let value = StoreValue::decode(&key, text.as_bytes()).unwrap();
        world.runtime.block_on(client.create(&key, &value)).unwrap();
    };
    let every = json!({"node": {"leakGracePeriod": LEAK_GRACE_PERIOD}, "namespace": {}, "serviceAccount": {}, "policy": {}});
    put(Kind::KubeControllersConfiguration, "default", json!({"controllers": every}));
    put(Kind::Node, "n1", json!({"orchRefs": [{"nodeName": "n1", "orchestrator": "k8s"}]}));
    world.server.add_node("n1");
    let policies = "/apis/networking.k8s.io/v1/namespaces/shop/networkpolicies";
    let policy = json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": {"name": "closed"}, "spec": {"podSelector": {}}});
    world.server.create(policies, &policy);
    world.start("a");
    let has = |kind: Kind, namespace: &str, name: &str| {
        let key = StoreKey::resource(kind, namespace, name);
        let mut found = None;
        // An error proves neither presence nor absence.
        world.wait("the datastore answers", || {
            found = world.runtime.block_on(client.look_up(&key)).ok();
            found.is_some()
        });
        found.flatten().is_some()
    };
    let is_kept = || {
        has(Kind::Profile, "", "kns.shop")
            && has(Kind::NetworkPolicy, "shop", "knp.default.closed")
            && has(Kind::Node, "", "n1")
    };
    world.wait("Kubernetes is copied", is_kept);
    proxy.set_emptying(true);
    world.wait("what is missing is reported", || {
        assert!(is_kept(), "{}", world.log());
        let reason = reason(&world);
        ["namespaces and service accounts", "1 of 1 network policies", "1 of 1 nodes"]
            .iter()
            .all(|part| reason.contains(part))
    });
    proxy.set_emptying(false);
    world.wait("the lists are whole again", || reason(&world).is_empty());
    assert!(is_kept(), "{}", world.log());
    world.server.must("DELETE", &format!("{policies}/closed"), None);
    world.server.must("DELETE", "/api/v1/nodes/n1", None);
    world.wait("what is really gone is deleted", || {
        !has(Kind::NetworkPolicy, "shop", "knp.default.closed") && !has(Kind::Node, "", "n1")
    });
}
