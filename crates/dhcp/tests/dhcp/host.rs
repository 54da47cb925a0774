//! A compute host with its DHCP server and virtual machines: namespaces that are connected by veth pairs whose host ends
//! are named like tap interfaces.

use crate::leases::settings;
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use tempfile::TempDir;
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;
use tortie_dataplane::Netns;
use tortie_dhcp::{DhcpError, DhcpOptions, run_until};
use tortie_store::StoreConfig;
use tortie_testkit::{Etcd, TestNamespace, eventually, free_port, run};

const SUBNET4: &str = "/calico/dhcp/v2/no-region/subnet/s4";
const SUBNET6: &str = "/calico/dhcp/v2/no-region/subnet/s6";
const ENDPOINTS: &str = "/calico/resources/v3/projectcalico.org/workloadendpoints/openstack";

pub struct ComputeHost {
    pub etcd: Etcd,
    pub namespace: TestNamespace,
    runtime: Runtime,
    server: Option<JoinHandle<Result<(), DhcpError>>>,
    stop: Option<tokio::sync::oneshot::Sender<()>>,
    listen: SocketAddr,
    machines: AtomicU32,
    pub dir: TempDir,
}

pub struct Machine {
    pub namespace: TestNamespace,
    pub tap: String,
    pub mac: String,
    port: String,
}

impl ComputeHost {
    /// Starts etcd with an IPv4 and an IPv6 subnet, and the server.
    pub fn start() -> ComputeHost {
        let mut host = ComputeHost {
            etcd: Etcd::start().unwrap(),
            namespace: TestNamespace::new("host"),
            runtime: Runtime::new().unwrap(),
            server: None,
            stop: None,
            listen: SocketAddr::from(([127, 0, 0, 1], free_port().unwrap())),
            machines: AtomicU32::new(0),
            dir: tempfile::tempdir().unwrap(),
        };
        host.put_subnet4(json!({}));
        host.put_subnet6(json!({}));
        host.start_server();
        host
    }

    pub fn put_subnet4(&self, more: Value) {
        let value = json!({"network_id": "n1", "cidr": "10.65.0.0/24", "host_routes": [], "gateway_ip": "10.65.0.1",
            "dns_servers": ["9.9.9.9"]});
        self.put(SUBNET4, &merge(value, &more));
    }

    pub fn put_subnet6(&self, more: Value) {
        let value = json!({"network_id": "n1", "cidr": "fd00:65::/64", "host_routes": [], "gateway_ip": "fd00:65::1",
            "dns_servers": ["2620:fe::fe"]});
        self.put(SUBNET6, &merge(value, &more));
    }

    pub fn put(&self, key: &str, value: &Value) {
        self.etcd.ctl(&["put", key, &value.to_string()]).unwrap();
    }

    pub fn start_server(&mut self) {
        let options = DhcpOptions { leases: settings(), requests_per_second: 20, listen: Some(self.listen) };
        let config = StoreConfig::at(self.etcd.endpoint());
        let netns = Netns::open(self.namespace.path()).unwrap();
        let (stop, stopped) = tokio::sync::oneshot::channel();
        let until = async move { stopped.await.unwrap_or(()) };
        self.server = Some(self.runtime.spawn(run_until(until, options, config, netns)));
        self.stop = Some(stop);
        eventually("the server is in sync", || self.metric("tortie_dhcp_in_sync") == Some(1));
    }

    pub fn stop_server(&mut self) {
        drop(self.stop.take());
        if let Some(server) = self.server.take() {
            self.runtime.block_on(server).unwrap().unwrap();
        }
    }

    /// Returns the value of a metric, given with its labels.
    pub fn metric(&self, name: &str) -> Option<u64> {
        let page = self.page("/metrics")?;
        let line = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?;
        line.parse().ok()
    }

    pub fn page(&self, path: &str) -> Option<String> {
        let url = format!("http://{}{path}", self.listen);
        let output = Command::new("curl").args(["-s", "--max-time", "20", &url]).output().unwrap();
        output.status.success().then(|| String::from_utf8(output.stdout).unwrap())
    }

    /// Boots a machine with a port, which the server serves from then on.
    pub fn boot(&self) -> Machine {
        let number = self.machines.fetch_add(1, Ordering::Relaxed) + 2;
        let machine = Machine {
            namespace: TestNamespace::new("vm"),
            tap: format!("tap{number}"),
            mac: format!("fa:16:3e:00:00:{number:02x}"),
            port: format!("p{number}"),
        };
        let served = self.metric("tortie_dhcp_interfaces").unwrap();
        self.namespace.ip(&format!(
            "link add {} type veth peer name eth0 address {} netns {}",
            machine.tap,
            machine.mac,
            machine.namespace.name()
        ));
        // A host does not accept router advertisements; a machine does.
        self.namespace.exec(&format!("sysctl -qw net.ipv6.conf.{}.accept_dad=0", machine.tap));
        machine.namespace.exec("sysctl -qw net.ipv6.conf.eth0.accept_dad=0");
        self.namespace.ip(&format!("link set {} mtu 1450 up", machine.tap));
        self.put_endpoint(&machine, &[&format!("10.65.0.{number}/32"), &format!("fd00:65::{number}/128")]);
        eventually("the interface is served", || self.metric("tortie_dhcp_interfaces") == Some(served + 1));
        machine
    }

    pub fn put_endpoint(&self, machine: &Machine, addresses: &[&str]) {
        let name = format!("cmp--1-openstack-vm-{}", machine.port);
        let object = json!({
            "kind": "WorkloadEndpoint", "apiVersion": "projectcalico.org/v3",
            "metadata": {"name": name, "namespace": "openstack", "annotations": {
                "openstack.projectcalico.org/network-id": "n1",
                "openstack.projectcalico.org/fqdn": format!("{}.cloud.example.", machine.port),
            }},
            "spec": {"orchestrator": "openstack", "workload": "vm", "node": "cmp-1", "endpoint": machine.port,
                "interfaceName": machine.tap, "mac": machine.mac, "ipNetworks": addresses},
        });
        self.put(&format!("{ENDPOINTS}/{name}"), &object);
    }

    pub fn delete_endpoint(&self, machine: &Machine) {
        let name = format!("cmp--1-openstack-vm-{}", machine.port);
        self.etcd.ctl(&["del", &format!("{ENDPOINTS}/{name}")]).unwrap();
    }

    /// Writes a script for DHCP clients that records its environment, and returns its path and that of the record.
    pub fn recorder(&self, name: &str) -> (PathBuf, PathBuf) {
        let script = self.dir.path().join(format!("{name}.sh"));
        let record = self.dir.path().join(format!("{name}.env"));
        let text = format!(
            "#!/bin/sh\necho \"event=$1$reason\" > {0}.new\nenv >> {0}.new\nmv {0}.new {0}.$1$reason\n",
            record.display()
        );
        std::fs::write(&script, text).unwrap();
        run(Command::new("chmod").arg("755").arg(&script));
        (script, record)
    }

    /// Gets a lease with udhcpc. Returns the environment of its script, or `None` if it got no lease.
    pub fn udhcpc(&self, machine: &Machine, tries: u32) -> Option<Vec<String>> {
        let (script, record) = self.recorder(&format!("udhcpc-{}", machine.port));
        let bound = PathBuf::from(format!("{}.bound", record.display()));
        let _ = std::fs::remove_file(&bound);
        machine.namespace.ip("link set eth0 up");
        let status = machine
            .namespace
            .command("busybox")
            .args(["udhcpc", "-f", "-n", "-q", "-i", "eth0", "-T", "2", "-t", &tries.to_string()])
            .args(["-O", "mtu", "-O", "staticroutes", "-O", "hostname", "-s"])
            .arg(script)
            .output()
            .unwrap();
        let text = std::fs::read_to_string(bound).ok().filter(|_| status.status.success())?;
        Some(text.lines().map(str::to_owned).collect())
    }
}

impl Drop for ComputeHost {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(server) = self.server.take() {
            let _ = self.runtime.block_on(server);
        }
    }
}

fn merge(mut value: Value, more: &Value) -> Value {
    value.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    value
}
