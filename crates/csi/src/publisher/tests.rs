use super::*;
use crate::volume::{PodIdentity, VolumePlugin};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use std::os::unix::fs::{MetadataExt, symlink};
use std::os::unix::net::{UnixListener, UnixStream};

const NONE: Option<&str> = None;

/// Directories of a kubelet and a node, in a mount namespace of the test's thread.
struct TestHost {
    dir: tempfile::TempDir,
    publisher: VolumePublisher,
}

/// Runs a test in a separate mount namespace, so that no mount is left on the machine.
fn on_host(test: impl FnOnce(&TestHost) + Send + 'static) {
    let tested = std::thread::spawn(move || {
        unshare(CloneFlags::CLONE_NEWNS).unwrap();
        mount(NONE, "/", NONE, MsFlags::MS_REC | MsFlags::MS_PRIVATE, NONE).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let publisher = VolumePublisher::new(dir.path().join("run/nodeagent"));
        let host = TestHost { dir, publisher };
        test(&host);
        mounts_below(host.dir.path()).into_iter().rev().for_each(|path| mounts::unmount_all(&path).unwrap());
    });
    if let Err(panic) = tested.join() {
        std::panic::resume_unwind(panic);
    }
}

fn mounts_below(dir: &Path) -> Vec<PathBuf> {
    let table = fs::read_to_string("/proc/thread-self/mountinfo").unwrap();
    let paths = table.lines().map(|line| PathBuf::from(line.split(' ').nth(4).unwrap()));
    paths.filter(|path| path.starts_with(dir)).collect()
}

impl TestHost {
    fn kubelet(&self) -> PathBuf {
        self.dir.path().join("kubelet")
    }

    /// Returns a volume of a pod, whose directory kubelet has created.
    fn volume(&self, uid: &str, name: &str) -> PodVolume {
        let parent = self.kubelet().join(format!("pods/{uid}/volumes/kubernetes.io~csi/{name}"));
        fs::create_dir_all(&parent).unwrap();
        let path = parent.join("mount").display().to_string();
        let target = VolumeTarget::parse("target_path", &path, VolumePlugin::Csi).unwrap();
        let pod = PodIdentity {
            uid: uid.into(),
            name: format!("web-{uid}"),
            namespace: "shop".into(),
            service_account: "web".into(),
        };
        PodVolume { id: format!("csi-{uid}-{name}"), target, pod }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join("run/nodeagent").join(name)
    }

    /// Returns the names in a directory of the prefix.
    fn names(&self, dir: &str) -> Vec<String> {
        let entries = fs::read_dir(self.path(dir)).into_iter().flatten().flatten();
        let mut names: Vec<String> = entries.map(|entry| entry.file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    /// Asserts that the node's socket is reachable through the volume, and that a pod can change nothing there.
    fn assert_published(&self, volume: &PodVolume) {
        let inside = volume.target.path.join("nodeagent");
        let socket = self.path("mount").join(&volume.pod.uid).join("socket");
        let _ = fs::remove_file(&socket);
        let _listener = UnixListener::bind(&socket).unwrap();
        UnixStream::connect(inside.join("socket")).unwrap();
        for file in [inside.join("file"), volume.target.path.join("file")] {
            let error = File::create(&file).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::ReadOnlyFilesystem, "{}", file.display());
        }
        let expected = format!(
            "{{\"UID\":\"{0}\",\"Workload\":\"web-{0}\",\"Namespace\":\"shop\",\"ServiceAccount\":\"web\"}}",
            volume.pod.uid
        );
        let file = self.path("creds").join(format!("{}.json", volume.id));
        assert_eq!(fs::read_to_string(&file).unwrap(), expected);
        assert_eq!(fs::metadata(&file).unwrap().mode() & 0o777, 0o600);
        assert_eq!(mounts_below(&volume.target.path).len(), 2, "{:?}", mounts_below(self.dir.path()));
        assert_eq!(mounts_below(&self.path("")), Vec::<PathBuf>::new());
    }

    fn assert_clean(&self) {
        assert_eq!(mounts_below(self.dir.path()), Vec::<PathBuf>::new());
        assert_eq!((self.names("creds"), self.names("mount")), (vec![], vec![]));
    }
}

#[test]
fn volumes_lead_to_the_socket_of_the_pod() {
    on_host(|host| {
        let volume = host.volume("a", "policy");
        host.publisher.publish(&volume).unwrap();
        host.assert_published(&volume);
        host.publisher.publish(&volume).unwrap();
        host.assert_published(&volume);
        for _ in 0..2 {
            host.publisher.unpublish(&volume.id, &volume.target).unwrap();
            host.assert_clean();
            assert!(!volume.target.path.exists());
        }
    });
}

/// A process can end between any two steps: each state that this leaves is completed and removed.
#[test]
fn interrupted_steps_are_completed() {
    on_host(|host| {
        let volume = host.volume("a", "policy");
        let target = &volume.target.path;
        let source = host.path("mount/a");
        let staging = host.path("staging");
        let steps: [&dyn Fn(); 8] = [
            &|| fs::create_dir_all(&source).unwrap(),
            &|| fs::create_dir_all(&staging).unwrap(),
            &|| fs::create_dir_all(target).unwrap(),
            &|| mounts::mount_tmpfs(&staging).unwrap(),
            &|| fs::create_dir(staging.join("nodeagent")).unwrap(),
            &|| host.publisher.move_staged(target).unwrap(),
            &|| mounts::bind(&source, &staging).unwrap(),
            &|| host.publisher.move_staged(&target.join("nodeagent")).unwrap(),
        ];
        for ended in 0..=steps.len() {
            steps[..ended].iter().for_each(|step| step());
            host.publisher.publish(&volume).unwrap();
            host.assert_published(&volume);
            host.publisher.unpublish(&volume.id, &volume.target).unwrap();
            host.assert_clean();
            steps[..ended].iter().for_each(|step| step());
            host.publisher.unpublish(&volume.id, &volume.target).unwrap();
            assert_eq!(mounts_below(target), Vec::<PathBuf>::new(), "after {ended} steps");
            mounts::unmount_all(&staging).unwrap();
        }
    });
}

#[test]
fn volumes_of_one_pod_share_its_socket() {
    on_host(|host| {
        let [first, second, other] =
            [("a", "one"), ("a", "two"), ("b", "one")].map(|(uid, name)| host.volume(uid, name));
        for volume in [&first, &second, &other] {
            host.publisher.publish(volume).unwrap();
            host.assert_published(volume);
        }
        host.publisher.unpublish(&first.id, &first.target).unwrap();
        host.assert_published(&second);
        host.publisher.unpublish(&second.id, &second.target).unwrap();
        assert_eq!(host.names("mount"), ["b"]);
        host.assert_published(&other);
    });
}

#[test]
fn links_are_not_followed() {
    on_host(|host| {
        let victim = host.dir.path().join("victim");
        fs::create_dir(&victim).unwrap();
        let volume = host.volume("a", "policy");
        symlink(&victim, &volume.target.path).unwrap();
        assert!(host.publisher.publish(&volume).is_err());
        assert!(host.publisher.unpublish(&volume.id, &volume.target).is_err());
        fs::remove_file(&volume.target.path).unwrap();
        let parent = volume.target.path.parent().unwrap();
        fs::remove_dir(parent).unwrap();
        symlink(&victim, parent).unwrap();
        assert!(host.publisher.publish(&volume).is_err());
        fs::remove_file(parent).unwrap();
        fs::create_dir(parent).unwrap();
        fs::create_dir_all(host.path("mount")).unwrap();
        symlink(&victim, host.path("mount/a")).unwrap();
        assert!(host.publisher.publish(&volume).is_err(), "the directory of the socket is a link");
        assert_eq!(fs::read_dir(&victim).unwrap().count(), 0);
        assert_eq!((mounts_below(host.dir.path()), host.names("creds")), (vec![], vec![]));
    });
}

#[test]
fn volumes_belong_to_one_pod() {
    on_host(|host| {
        let volume = host.volume("a", "policy");
        host.publisher.publish(&volume).unwrap();
        let stolen = PodVolume { id: volume.id.clone(), ..host.volume("b", "policy") };
        let error = host.publisher.publish(&stolen).unwrap_err();
        assert!(matches!(&error, VolumeError::Conflict { pod, .. } if pod == "shop/web-a"), "{error}");
        host.assert_published(&volume);
    });
}

#[test]
fn number_of_volumes_is_bounded() {
    on_host(|host| {
        let known = host.volume("a", "policy");
        host.publisher.publish(&known).unwrap();
        for number in 1..MAX_VOLUMES {
            fs::write(host.path("creds").join(format!("other-{number}.json")), "{}").unwrap();
        }
        let refused = host.publisher.publish(&host.volume("b", "policy")).unwrap_err();
        assert!(matches!(refused, VolumeError::TooMany), "{refused}");
        host.publisher.publish(&known).unwrap();
        fs::remove_file(host.path("creds/other-1.json")).unwrap();
        host.publisher.publish(&host.volume("b", "policy")).unwrap();
    });
}

#[test]
fn credentials_of_removed_pods_are_removed() {
    on_host(|host| {
        let [gone, kept] = ["a", "b"].map(|uid| host.volume(uid, "policy"));
        for volume in [&gone, &kept] {
            host.publisher.publish(volume).unwrap();
        }
        // Credentials of a workload that is not a pod.
        fs::write(host.path("creds/vm.json"), "{\"UID\":\"vm\",\"Workload\":\"vm\",\"Namespace\":\"shop\"}")
            .unwrap();
        // As kubelet does when the node has restarted: the mounts are gone, and the directories are removed.
        unmount_volume(&gone.target.path).unwrap();
        fs::remove_dir_all(host.kubelet().join("pods/a")).unwrap();
        assert_eq!(host.publisher.remove_orphans(&host.path("wrong")).unwrap(), 0);
        assert_eq!(host.publisher.remove_orphans(&host.kubelet()).unwrap(), 1);
        assert_eq!(host.names("creds"), ["csi-b-policy.json", "vm.json"]);
        assert_eq!(host.names("mount"), ["b"]);
        host.assert_published(&kept);
        assert_eq!(host.publisher.remove_orphans(&host.kubelet()).unwrap(), 0);
    });
}
