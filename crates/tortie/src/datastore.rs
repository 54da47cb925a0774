//! `tortie datastore`: runs the embedded datastore in the foreground.

use clap::Args;
use std::error::Error;
use std::io::Write as _;
use std::path::PathBuf;
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};
use tortie_ctl::CommandError;
use tortie_datastore::{
    self as embedded, AutoCompaction, ListenAddress, StoreOptions, StoreServer, TlsFiles,
};
use tortie_store::StoreConfig;

#[derive(Args, Debug)]
#[command(after_help = "Examples:
  tortie datastore
  tortie datastore --data-dir DIR --listen http://127.0.0.1:2379
  tortie datastore --data-dir NEW_DIR --restore backup.db")]
pub struct DatastoreArgs {
    /// Directory of the data; created if it does not exist
    #[arg(long, value_name = "DIR", default_value = "/var/lib/tortie/datastore")]
    data_dir: PathBuf,
    /// Address to listen on: unix:///path, http://127.0.0.1:2379 or, with TLS, https://ADDRESS:2379; may be given
    /// several times
    #[arg(long, value_name = "URL", default_value = "unix:///run/tortie/datastore.sock")]
    listen: Vec<ListenAddress>,
    /// Server certificate for https:// addresses, in PEM; reloaded when it changes
    #[arg(long, value_name = "FILE", requires = "key_file")]
    cert_file: Option<PathBuf>,
    /// Key of the server certificate, in PEM
    #[arg(long, value_name = "FILE", requires = "cert_file")]
    key_file: Option<PathBuf>,
    /// CA certificate in PEM; clients must present a certificate signed by it
    #[arg(long, value_name = "FILE", requires = "cert_file")]
    trusted_ca_file: Option<PathBuf>,
    /// Allow http:// on addresses other than loopback; connections are not encrypted
    #[arg(long)]
    allow_plaintext: bool,
    /// Size on disk above which writes are rejected; reads, deletes and compaction still work
    #[arg(long, value_name = "BYTES", default_value_t = StoreOptions::DEFAULT_QUOTA_BYTES)]
    quota_bytes: u64,
    /// Keep old revisions for this many seconds; 0 keeps them until a client compacts
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    keep_history: u64,
    /// First restore this snapshot from `etcdctl snapshot save`; the data directory must be empty or missing
    #[arg(long, value_name = "FILE")]
    restore: Option<PathBuf>,
}

/// Serves until SIGTERM or SIGINT.
pub fn run(args: DatastoreArgs) -> Result<(), Box<dyn Error + Send + Sync>> {
    // A few threads are enough for the network traffic of one machine; more would only use more memory.
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(std::thread::available_parallelism().map_or(2, |n| n.get().min(4)))
        .max_blocking_threads(16)
        .enable_all()
        .build()?;
    runtime.block_on(serve(args))
}

async fn serve(args: DatastoreArgs) -> Result<(), Box<dyn Error + Send + Sync>> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut options = StoreOptions::new(args.data_dir, args.listen);
    options.quota_bytes = args.quota_bytes;
    options.allow_plaintext = args.allow_plaintext;
    if let (Some(certificate), Some(key)) = (args.cert_file, args.key_file) {
        options.tls = Some(TlsFiles { certificate, key, ca: args.trusted_ca_file });
    }
    options.auto_compaction = match args.keep_history {
        0 => AutoCompaction::Off,
        seconds => AutoCompaction::Age(Duration::from_secs(seconds)),
    };
    if let Some(parent) = options.listen.iter().find_map(default_socket_dir) {
        std::fs::create_dir_all(&parent)
            .map_err(|error| CommandError::context(parent.display().to_string(), error))?;
    }
    if let Some(snapshot) = &args.restore {
        embedded::restore(snapshot, &options.data_dir)?;
    }
    let server = StoreServer::open(&options)?;
    let places: Vec<_> = server.local_addrs().iter().map(ListenAddress::to_string).collect();
    // Ignore write errors: the daemon also works without a reader of standard output.
    let _ =
        writeln!(std::io::stdout(), "ready: serving {} on {}", options.data_dir.display(), places.join(" "));
    server
        .serve(async {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
        })
        .await?;
    Ok(())
}

/// Returns the directory of the default socket, which must be created because /run is empty after a boot.
fn default_socket_dir(listen: &ListenAddress) -> Option<PathBuf> {
    match listen {
        ListenAddress::Unix(path) if path.as_os_str() == StoreConfig::DEFAULT_SOCKET => {
            path.parent().map(Into::into)
        }
        _ => None,
    }
}
