//! Passwords of BGP sessions in Secrets of a real kube-apiserver, which the node reads with the permissions of `deploy/`.

use crate::router::{BirdRouter, RouterConfig};
use crate::world::PeeringFixture;
use serde_json::{Value, json};
use std::path::PathBuf;
use tortie_testkit::{ApiServer, eventually_showing, output};

const ACCESS_MANIFEST: &str = include_str!("../../../../deploy/10-access.yaml");
/// Address of the fixture's node, on which kube-apiserver listens.
const NODE_ADDRESS: &str = "10.88.0.1";
const NODE_ACCOUNT_PATH: &str = "/api/v1/namespaces/kube-system/serviceaccounts/tortie-node";
const SECRETS_PATH: &str = "/api/v1/namespaces/kube-system/secrets";
/// The Secret that the manifest allows nodes to read.
const ALLOWED_SECRET: &str = "bgp-secrets";
/// Less than the time that a new session takes to come up.
const MAX_BIRD_TIME_ERROR_MS: u64 = 500;

/// Starts a kube-apiserver in the node's namespace, and returns it with a kubeconfig of the node's service account.
fn start_server(world: &PeeringFixture) -> (ApiServer, PathBuf) {
    let server = ApiServer::start_with_rules_in(world.host.name(), NODE_ADDRESS);
    let mut command = server.program("kubectl");
    command.args(["apply", "-f", "-", "--kubeconfig"]).arg(server.kubeconfig());
    let applied = output(&mut command, ACCESS_MANIFEST);
    assert!(applied.status.success(), "{applied:?}");
    let request = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
        "spec": {"expirationSeconds": 3600}});
    let answer = server.create(&format!("{NODE_ACCOUNT_PATH}/token"), &request);
    let token = answer["status"]["token"].as_str().unwrap().to_owned();
    let kubeconfig = server.write_kubeconfig("kubeconfig-account", json!({ "token": token }));
    (server, kubeconfig)
}

fn secret(name: &str, data: &Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "stringData": data})
}

fn password(name: &str, key: &str) -> Value {
    json!({"password": {"secretKeyRef": {"name": name, "key": key}}})
}

/// Returns since when the sessions of a router are established, in milliseconds.
fn established_since(router: &BirdRouter) -> [u64; 2] {
    [false, true].map(|v6| router.up_since(v6).unwrap())
}

/// Returns whether sessions have not been reset since [`established_since`]. BIRD's times vary by a few milliseconds.
fn is_unchanged(router: &BirdRouter, established: [u64; 2]) -> bool {
    let now = [false, true].map(|v6| router.up_since(v6).unwrap_or_default());
    now.iter().zip(established).all(|(now, before)| now.abs_diff(before) < MAX_BIRD_TIME_ERROR_MS)
}

impl PeeringFixture {
    /// Waits until both sessions with a router are down for a reason that contains `error`, and health reports it.
    fn wait_until_down(&self, router: &BirdRouter, error: &str) {
        let is_down = |v6: &bool| {
            let session = self.session(&router.address(*v6));
            session["state"] != "Established" && session["error"].as_str().unwrap_or_default().contains(error)
        };
        eventually_showing(
            error,
            || [false, true].iter().all(is_down) && self.ask("health").to_string().contains(error),
            || self.picture(),
        );
    }
}

#[test]
fn passwords_are_read_from_kubernetes_secrets() {
    let mut world = PeeringFixture::without_node();
    let (mut server, kubeconfig) = start_server(&world);
    world.start_node_with(&[("KUBECONFIG", kubeconfig.to_str().unwrap()), ("POD_NAMESPACE", "kube-system")]);
    let config = |number: u8, asn: u32, password: &str| RouterConfig {
        number,
        asn,
        password: Some(password.to_owned()),
        ..RouterConfig::default()
    };
    let mut changing = world.router(config(2, 65001, "one"));
    let steady = world.router(config(3, 65002, "two"));
    let refused = world.router(config(4, 65003, "three"));
    world.peer("changing", &changing, 65001, &password(ALLOWED_SECRET, "changing"));
    world.peer("steady", &steady, 65002, &password(ALLOWED_SECRET, "steady"));
    world.peer("refused", &refused, 65003, &password("other", "key"));
    world.wait_until_down(&changing, "secret bgp-secrets/changing not found");

    // The Secret is there, but lacks one of the keys.
    server.create(SECRETS_PATH, &secret(ALLOWED_SECRET, &json!({"steady": "two\n"})));
    server.create(SECRETS_PATH, &secret("other", &json!({"key": "three"})));
    world.wait_until_up(&steady);
    world.wait_until_down(&changing, "secret bgp-secrets/changing not found");
    let path = format!("{SECRETS_PATH}/{ALLOWED_SECRET}");
    let set =
        |server: &ApiServer, value: &str| server.merge(&path, &json!({"stringData": {"changing": value}}));
    set(&server, "one");
    world.wait_until_up(&changing);
    let established = established_since(&steady);

    // A changed password resets its own session and no other.
    set(&server, "new");
    world.wait_until_down(&changing, "no answer to our SYN; is the password right?");
    changing.configure(|config| config.password = Some("new".to_owned()));
    world.wait_until_up(&changing);

    assert!(is_unchanged(&steady, established), "{}", world.picture());

    // The role does not allow other Secrets, so the session never comes up, not even without a password.
    world.wait_until_down(&refused, "secret other/key cannot be read");
    assert!([false, true].iter().all(|v6| refused.up_since(*v6).is_none()), "{}", world.picture());

    // An outage of kube-apiserver resets no session, even if the node has to configure its speaker again.
    let changed = established_since(&changing);
    server.stop();
    let late = world.router(config(5, 65004, "four"));
    world.peer("late", &late, 65004, &password("late", "key"));
    world.wait_until_down(&late, "secret late/key cannot be read");
    assert!(is_unchanged(&steady, established) && is_unchanged(&changing, changed), "{}", world.picture());
    server.resume();

    // A Secret that was deleted ends its sessions.
    server.must("DELETE", &path, None);
    world.wait_until_down(&changing, "secret bgp-secrets/changing not found");
    server.create(SECRETS_PATH, &secret(ALLOWED_SECRET, &json!({"steady": "two", "changing": "new"})));
    world.wait_until_up(&changing);
    world.wait_until_up(&steady);
}
