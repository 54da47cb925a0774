//! Simulates another process that owns the policy table.

use crate::{TestNamespace, eventually};
use std::io::Write;
use std::process::{Child, Stdio};

/// Owns the table `inet tortie` of a namespace until dropped. The kernel rejects changes by other processes.
pub struct TableOwner(Child);

impl TableOwner {
    pub fn new(host: &TestNamespace) -> TableOwner {
        let mut command = host.command("nft");
        let mut nft = command.arg("-i").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let stdin = nft.stdin.as_mut().unwrap();
        stdin.write_all(b"add table inet tortie { flags owner; }\n").unwrap();
        stdin.flush().unwrap();
        let owner = TableOwner(nft);
        eventually("the table has an owner", || {
            host.try_exec("nft list table inet tortie").status.success()
                && !host.try_exec("nft add chain inet tortie x").status.success()
        });
        owner
    }
}

impl Drop for TableOwner {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
