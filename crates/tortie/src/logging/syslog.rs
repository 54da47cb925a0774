//! Sends messages to the host's syslog daemon, in the format of the C library.

use super::sink::LogTarget;
use std::io;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tracing::Level;

pub const SYSLOG_SOCKET: &str = "/dev/log";

/// Maximum message size: syslog daemons truncate or reject longer messages.
const MAX_MESSAGE_BYTES: usize = 8192;
/// Facility 3: daemon.
const SYSLOG_FACILITY: u8 = 3 << 3;
/// Time limit for a write. A line is dropped if the syslog daemon does not read for this long.
const WRITE_TIMEOUT: Duration = Duration::from_secs(1);

pub struct SyslogTarget {
    path: PathBuf,
    socket: UnixDatagram,
}

impl SyslogTarget {
    pub fn new(path: &Path) -> io::Result<SyslogTarget> {
        let socket = UnixDatagram::unbound()?;
        socket.set_write_timeout(Some(WRITE_TIMEOUT))?;
        socket.connect(path)?;
        Ok(SyslogTarget { path: path.to_owned(), socket })
    }
}

impl LogTarget for SyslogTarget {
    /// Sends the line. On failure it reconnects once, since the syslog daemon may have been restarted with a new
    /// socket.
    fn write(&mut self, level: Level, line: &[u8]) -> io::Result<()> {
        let message = format_message(level, std::process::id(), line);
        self.socket.send(&message).map(drop).or_else(|_| {
            self.socket.connect(&self.path)?;
            self.socket.send(&message).map(drop)
        })
    }
}

/// Formats a message. Control characters are replaced, since a newline in the line would start another message with
/// forged contents.
fn format_message(level: Level, pid: u32, line: &[u8]) -> Vec<u8> {
    let severity = match level {
        Level::ERROR => 3,
        Level::WARN => 4,
        Level::INFO => 6,
        Level::DEBUG | Level::TRACE => 7,
    };
    let mut message = format!("<{}>tortie[{pid}]: ", SYSLOG_FACILITY | severity).into_bytes();
    let text = line.trim_ascii().iter().map(|byte| if byte.is_ascii_control() { b' ' } else { *byte });
    message.extend(text.take(MAX_MESSAGE_BYTES - message.len()));
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_one_bounded_line_with_a_priority() {
        let text = |level, line: &[u8]| String::from_utf8(format_message(level, 7, line)).unwrap();
        assert_eq!(text(Level::WARN, b" disk\n<0>kernel: full\n"), "<28>tortie[7]: disk <0>kernel: full");
        assert_eq!(text(Level::DEBUG, b"x"), "<31>tortie[7]: x");
        assert_eq!(format_message(Level::INFO, 7, &[b'x'; 2 * MAX_MESSAGE_BYTES]).len(), MAX_MESSAGE_BYTES);
    }

    #[test]
    fn a_restarted_syslog_daemon_gets_the_next_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        assert!(SyslogTarget::new(&path).is_err());
        let daemon = UnixDatagram::bind(&path).unwrap();
        let mut syslog = SyslogTarget::new(&path).unwrap();
        let mut buffer = [0; 100];
        syslog.write(Level::INFO, b"one\n").unwrap();
        let length = daemon.recv(&mut buffer).unwrap();
        assert!(buffer[..length].ends_with(b": one"));
        drop(daemon);
        assert!(syslog.write(Level::INFO, b"lost\n").is_err());
        std::fs::remove_file(&path).unwrap();
        let daemon = UnixDatagram::bind(&path).unwrap();
        syslog.write(Level::INFO, b"two\n").unwrap();
        let length = daemon.recv(&mut buffer).unwrap();
        assert!(buffer[..length].ends_with(b": two"));
    }
}
