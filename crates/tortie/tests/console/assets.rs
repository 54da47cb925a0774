//! The committed front end is what its sources build to.

use std::path::Path;
use std::process::Command;
use tortie_testkit::run;

#[test]
fn committed_assets_equal_a_new_build() {
    let web = Path::new(env!("CARGO_MANIFEST_DIR")).join("../console/web");
    assert!(web.join("node_modules/esbuild").is_dir(), "node_modules is missing: run `make setup`");
    run(Command::new("node_modules/.bin/tsc").current_dir(&web));
    let built = tempfile::tempdir().unwrap();
    run(Command::new("node").arg("build.mjs").arg(built.path()).current_dir(&web));
    for name in ["index.html.gz", "app.js.gz", "app.css.gz", "icon.svg.gz"] {
        // Versions of zlib compress differently.
        let [committed, new] = [web.join("../assets").join(name), built.path().join(name)]
            .map(|path| run(Command::new("gzip").arg("-dc").stdin(std::fs::File::open(path).unwrap())));
        assert!(committed == new, "{name} is out of date: run `npm run build` in crates/console/web");
    }
}

#[test]
fn the_lock_file_names_no_registry() {
    let web = Path::new(env!("CARGO_MANIFEST_DIR")).join("../console/web");
    let lock = std::fs::read_to_string(web.join("package-lock.json")).unwrap();
    assert!(!lock.contains("http:") && !lock.contains("\"resolved\""), "package-lock.json has addresses");
    assert!(lock.contains("\"integrity\": \"sha512-"));
}
