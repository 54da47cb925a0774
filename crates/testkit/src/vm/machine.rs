//! The machine itself: QEMU with a kernel and an initramfs, its serial line read until it is turned off.

use super::image::Image;
use super::modules::Modules;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A machine that is not done by then never will be: the tests in it have deadlines of their own.
const PATIENCE: Duration = Duration::from_secs(900);
const MEMORY: &str = "1536";
const QEMU: &str = "qemu-system-x86_64";
/// Without what an emulator is slow at: strings copied byte by byte (`rep movsb`), a fifth level of page tables.
const PROCESSOR: &str = "max,-erms,-fsrm,-la57";
/// On a busy machine the timer is late, which the kernel would take for broken hardware. Where programs are always at the
/// same addresses (`norandmaps`), what QEMU has translated of one is there for the next that is started: most of the time
/// goes to translation otherwise. Nothing in here needs protection from what else runs in here.
const KERNEL_ARGUMENTS: &str = "console=ttyS0 quiet loglevel=1 panic=-1 random.trust_cpu=on no_timer_check \
                                norandmaps nokaslr mitigations=off init_on_alloc=0 clearcpuid=rep_good";

/// A guest in which this program runs too, with others that it needs.
#[derive(Debug)]
pub struct Machine {
    /// The directory of the sources, where `scripts/vm/kernel` is.
    pub sources: PathBuf,
    /// By name or path; with their libraries.
    pub programs: Vec<String>,
    pub modules: Vec<&'static str>,
}

/// Stops the machine when a test ends, one way or the other.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Machine {
    /// Runs the tests that were asked for on the host. Everything that the guest wrote to its serial line.
    pub fn run(&self) -> String {
        let filters: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
        self.run_with(&[], &format!("--test-threads=1 {}", filters.join(" ")))
    }

    /// Runs this program with other variables and arguments.
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

    /// The directory with `vmlinuz` and `modules`.
    fn kernel(&self) -> PathBuf {
        let script = self.sources.join("scripts/vm/kernel");
        let output = Command::new(&script).arg("where").output();
        let output = output.unwrap_or_else(|error| panic!("{}: {error}", script.display()));
        let path = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim());
        assert!(path.join("vmlinuz").exists(), "there is no kernel for the guest; run {}", script.display());
        path
    }

    fn image(&self, kernel: &Path, variables: &str, arguments: &str) -> Vec<u8> {
        let mut image = Image::default();
        image.modules(&Modules::read(&kernel.join("modules")), &self.modules);
        self.programs.iter().for_each(|program| image.program(program));
        let program = std::env::current_exe().expect("this binary has a path");
        let program = program.to_str().expect("paths of builds are text");
        image.program(program);
        let command = format!("{variables}{}=1 exec {program} {arguments}", super::INSIDE);
        image.finish(&command)
    }
}

fn boot(kernel: &Path, initrd: &Path) -> String {
    let mut command = Command::new(QEMU);
    command
        .args(["-machine", "pc", "-accel", "tcg", "-cpu", PROCESSOR, "-smp", "2", "-m", MEMORY])
        .args(["-nodefaults", "-display", "none", "-monitor", "none", "-serial", "stdio", "-no-reboot"])
        .arg("-kernel")
        .arg(kernel)
        .arg("-initrd")
        .arg(initrd)
        .args(["-append", KERNEL_ARGUMENTS])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let child = command.spawn().unwrap_or_else(|error| panic!("{QEMU}: {error}; run make setup"));
    let mut running = Running(child);
    let serial = BufReader::new(running.0.stdout.take().expect("it is a pipe"));
    let begun = Instant::now();
    let reader = std::thread::spawn(move || {
        let mut text = String::new();
        // What came before an error is what there is. People who watch see it as it comes, and when.
        for line in serial.split(b'\n').map_while(Result::ok) {
            let line = String::from_utf8_lossy(&line).replace('\r', "");
            eprintln!("guest {:6.1} s | {line}", begun.elapsed().as_secs_f64());
            text.push_str(&line);
            text.push('\n');
        }
        text
    });
    let deadline = Instant::now() + PATIENCE;
    while running.0.try_wait().expect("a child can be waited for").is_none() {
        if Instant::now() > deadline {
            drop(running);
            let text = reader.join().unwrap_or_default();
            panic!("the guest is not done after {PATIENCE:?}:\n{text}");
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    let mut complaints = String::new();
    if let Some(stderr) = running.0.stderr.as_mut() {
        let _ = stderr.read_to_string(&mut complaints);
    }
    let text = reader.join().unwrap_or_default();
    if complaints.is_empty() { text } else { format!("{text}\n{QEMU}: {complaints}") }
}
