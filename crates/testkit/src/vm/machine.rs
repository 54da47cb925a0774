//! Boots QEMU with a kernel and an initramfs and reads the serial line until the machine powers off.

use super::image::InitramfsBuilder;
use super::modules::KernelModules;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Time limit for a guest. Tests in the guest have shorter deadlines, so a guest that exceeds it hangs.
const GUEST_TIMEOUT: Duration = Duration::from_secs(900);
const GUEST_MEMORY_MIB: &str = "1536";
const QEMU_PROGRAM: &str = "qemu-system-x86_64";
/// CPU model without features that are slow under emulation: `rep movsb` string copies and five-level page tables.
const CPU_MODEL: &str = "max,-erms,-fsrm,-la57";
/// `no_timer_check`: on a busy machine the timer is late, which the kernel would report as broken hardware.
/// `norandmaps`: with fixed program addresses QEMU reuses translated code between processes; otherwise most of the time
/// goes to translation. Mitigations are off because nothing in the guest needs isolation.
const KERNEL_ARGUMENTS: &str = "console=ttyS0 quiet loglevel=1 panic=-1 random.trust_cpu=on no_timer_check \
                                norandmaps nokaslr mitigations=off init_on_alloc=0 clearcpuid=rep_good";

/// A guest that runs the current test binary, together with the programs that it needs.
#[derive(Debug)]
pub struct GuestMachine {
    /// Root of the source tree, which contains `scripts/vm/kernel`.
    pub sources: PathBuf,
    /// Programs by name or path. Their libraries are added.
    pub programs: Vec<String>,
    pub modules: Vec<&'static str>,
}

/// Kills the machine when dropped, also when the test panics.
struct QemuProcess(Child);

impl Drop for QemuProcess {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl GuestMachine {
    /// Runs in the guest the tests that were selected on the host and returns the output of the serial line.
    pub fn run(&self) -> String {
        let filters: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
        self.run_with(&[], &format!("--test-threads=1 {}", filters.join(" ")))
    }

    /// Runs the current binary in the guest with these environment variables and arguments and returns the output of
    /// the serial line.
    pub fn run_with(&self, variables: &[(&str, String)], arguments: &str) -> String {
        let kernel = self.kernel();
        let dir = tempfile::tempdir().expect("there is room for temporary files");
        let initrd = dir.path().join("initrd");
        let begun = Instant::now();
        let variables: String = variables.iter().map(|(name, value)| format!("{name}={value} ")).collect();
        let image = self.image(&kernel, &variables, arguments);
        eprintln!("guest: initramfs of {} MB in {:.1?}", image.len() >> 20, begun.elapsed());
        std::fs::write(&initrd, image).expect("there is room for an initramfs");
        let begun = Instant::now();
        let text = boot(&kernel.join("vmlinuz"), &initrd);
        eprintln!("guest: off after {:.1?}", begun.elapsed());
        text
    }

    /// Returns the directory that contains `vmlinuz` and `modules`.
    fn kernel(&self) -> PathBuf {
        let script = self.sources.join("scripts/vm/kernel");
        let output = Command::new(&script).arg("where").output();
        let output = output.unwrap_or_else(|error| panic!("{}: {error}", script.display()));
        let path = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim());
        assert!(path.join("vmlinuz").exists(), "there is no kernel for the guest; run {}", script.display());
        path
    }

    fn image(&self, kernel: &Path, variables: &str, arguments: &str) -> Vec<u8> {
        let mut image = InitramfsBuilder::default();
        image.modules(&KernelModules::read(&kernel.join("modules")), &self.modules);
        self.programs.iter().for_each(|program| image.program(program));
        let program = std::env::current_exe().expect("this binary has a path");
        let program = program.to_str().expect("paths of builds are text");
        image.program(program);
        let command = format!("{variables}{}=1 exec {program} {arguments}", super::GUEST_ENV);
        image.finish(&command)
    }
}

fn boot(kernel: &Path, initrd: &Path) -> String {
    let mut command = Command::new(QEMU_PROGRAM);
    command
        .args(["-machine", "pc", "-accel", "tcg", "-cpu", CPU_MODEL, "-smp", "2", "-m", GUEST_MEMORY_MIB])
        .args(["-nodefaults", "-display", "none", "-monitor", "none", "-serial", "stdio", "-no-reboot"])
        .arg("-kernel")
        .arg(kernel)
        .arg("-initrd")
        .arg(initrd)
        .args(["-append", KERNEL_ARGUMENTS])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let child = command.spawn().unwrap_or_else(|error| panic!("{QEMU_PROGRAM}: {error}; run make setup"));
    let mut running = QemuProcess(child);
    let serial = BufReader::new(running.0.stdout.take().expect("it is a pipe"));
    let begun = Instant::now();
    let reader = std::thread::spawn(move || {
        let mut text = String::new();
        // On a read error keep the text read so far. Echo each line with its time for users who watch.
        for line in serial.split(b'\n').map_while(Result::ok) {
            let line = String::from_utf8_lossy(&line).replace('\r', "");
            eprintln!("guest {:6.1} s | {line}", begun.elapsed().as_secs_f64());
            text.push_str(&line);
            text.push('\n');
        }
        text
    });
    let deadline = Instant::now() + GUEST_TIMEOUT;
    while running.0.try_wait().expect("a child can be waited for").is_none() {
        if Instant::now() > deadline {
            drop(running);
            let text = reader.join().unwrap_or_default();
            panic!("the guest is not done after {GUEST_TIMEOUT:?}:\n{text}");
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    let mut complaints = String::new();
    if let Some(stderr) = running.0.stderr.as_mut() {
        let _ = stderr.read_to_string(&mut complaints);
    }
    let text = reader.join().unwrap_or_default();
    if complaints.is_empty() { text } else { format!("{text}\n{QEMU_PROGRAM}: {complaints}") }
}
