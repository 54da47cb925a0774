//! The collector's network interfaces with clients that are not ours: gRPC with Python's grpcio, HTTP with curl.
#![allow(clippy::unwrap_used, clippy::panic)]

mod push;
mod whisker;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use tempfile::TempDir;
use tokio::runtime::Runtime;
use tokio::sync::oneshot;
use tortie_flows::ring::RingOptions;
use tortie_flows::{
    CollectorOptions, CollectorServer, DEFAULT_MAX_STREAMS, FlowCollector, FlowListenAddress,
};
use tortie_testkit::{CertificateMaker, run};
use tortie_tls::TlsFiles;

const ANY_PORT: u16 = 0;

/// A collector with buckets of one second, and a directory with certificates and the generated Python modules.
pub struct TestCollector {
    pub dir: TempDir,
    pub address: SocketAddr,
    pub collector: Arc<FlowCollector>,
    pub runtime: Runtime,
    stop: Option<oneshot::Sender<()>>,
}

impl TestCollector {
    pub fn start() -> TestCollector {
        TestCollector::start_with(64 << 20)
    }

    pub fn start_with(max_bytes: usize) -> TestCollector {
        let dir = tempfile::tempdir().unwrap();
        let maker = CertificateMaker::new(dir.path());
        let server = maker.issue("server", &["localhost"]);
        maker.issue("client", &[]);
        let others = CertificateMaker::new(&dir.path().join("others")).issue("stranger", &[]);
        std::fs::copy(others.certificate, dir.path().join("stranger.crt")).unwrap();
        std::fs::copy(others.key, dir.path().join("stranger.key")).unwrap();
        let options = CollectorOptions {
            listen: FlowListenAddress { host: "127.0.0.1".to_owned(), port: ANY_PORT },
            tls: TlsFiles {
                certificate: server.certificate,
                key: server.key,
                ca: Some(maker.authority_file()),
            },
            ring: RingOptions { window: 1, max_bytes },
            max_streams: DEFAULT_MAX_STREAMS,
            health: None,
            metrics: None,
        };
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let server = runtime.block_on(CollectorServer::bind(options)).unwrap();
        let (address, collector) = (server.address(), server.collector().clone());
        let (stop, stopped) = oneshot::channel();
        runtime.spawn(async move { server.serve(async { drop(stopped.await) }).await.unwrap() });
        TestCollector { dir, address, collector, runtime, stop: Some(stop) }
    }

    pub fn server(&self) -> String {
        format!("localhost:{}", self.address.port())
    }

    /// Runs a scenario of client.py.
    pub fn run_client(&self, scenario: &str) {
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        let python = client_program();
        let proto = here.join("proto");
        let output = self.dir.path().display();
        let mut generate = Command::new(&python);
        generate.args(["-m", "grpc_tools.protoc", "-I"]).arg(&proto);
        generate.args([format!("--python_out={output}"), format!("--grpc_python_out={output}")]);
        run(generate.arg("goldmane.proto"));
        let mut client = Command::new(&python);
        client
            .arg(here.join("tests/collector/client.py"))
            .args([scenario, &self.server()])
            .arg(self.dir.path());
        assert_eq!(run(client.env("GRPC_VERBOSITY", "NONE")).trim(), "passed");
    }
}

impl Drop for TestCollector {
    fn drop(&mut self) {
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(());
        }
    }
}

/// Returns the Python that `scripts/flows-client` has prepared. Panics if it is missing.
fn client_program() -> PathBuf {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/flows-client");
    let program = PathBuf::from(run(Command::new(script).arg("where")).trim());
    assert!(program.is_file(), "{} is missing: run `scripts/flows-client` first", program.display());
    program
}

#[test]
fn lists_are_those_of_goldmane() {
    TestCollector::start().run_client("lists");
}

#[test]
fn hints_are_those_of_goldmane() {
    TestCollector::start().run_client("hints");
}

#[test]
fn statistics_are_those_of_goldmane() {
    TestCollector::start().run_client("sums");
}

#[test]
fn streams_backfill_and_follow() {
    TestCollector::start().run_client("streams");
}

#[test]
fn a_hundred_streams_are_served() {
    let collector = TestCollector::start();
    collector.run_client("hundred");
    assert!(collector.collector.metrics().refused_streams.get() >= 1);
}

#[test]
fn updates_are_counted_once() {
    let collector = TestCollector::start();
    collector.run_client("updates");
    let metrics = collector.collector.metrics();
    assert_eq!((metrics.resent.get(), metrics.dropped.get()), (3, 6));
    let page = metrics.render(&collector.collector);
    for line in ["goldmane_aggr_dropped_flows_total 6", "goldmane_aggr_num_unique_flows 4"] {
        assert!(page.lines().any(|found| found == line), "{line}\n{page}");
    }
}

#[test]
fn strangers_are_refused() {
    let collector = TestCollector::start();
    collector.run_client("strangers");
    assert!(collector.collector.metrics().failed_handshakes.get() >= 2);
}

#[test]
fn stopping_ends_open_streams() {
    let mut collector = TestCollector::start();
    let target = whisker::target(&collector);
    let mut stream = collector.runtime.block_on(async {
        let mut client = target.connect().await.unwrap();
        client.stream(tortie_flows::proto::FlowStreamRequest::default()).await.unwrap().into_inner()
    });
    collector.stop.take().unwrap().send(()).unwrap();
    let ended = collector.runtime.block_on(stream.message()).unwrap_err();
    assert_eq!(ended.code(), tonic::Code::Unavailable, "{ended}");
}

#[test]
fn a_client_authority_is_required() {
    let dir = tempfile::tempdir().unwrap();
    let files = CertificateMaker::new(dir.path()).issue("server", &["localhost"]);
    let options = CollectorOptions {
        listen: FlowListenAddress { host: "127.0.0.1".to_owned(), port: ANY_PORT },
        tls: TlsFiles { certificate: files.certificate, key: files.key, ca: None },
        ring: RingOptions { window: 15, max_bytes: 1 << 20 },
        max_streams: 1,
        health: None,
        metrics: None,
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let error = runtime.block_on(CollectorServer::bind(options)).err().unwrap();
    assert!(error.to_string().contains("the CA of the clients is missing"), "{error}");
}
