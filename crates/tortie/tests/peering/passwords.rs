//! A missing or wrong BGP password is reported in the session and on the health page.

use crate::router::RouterConfig;
use crate::world::PeeringFixture;
use serde_json::{Value, json};
use tortie_testkit::eventually_showing;

const SECRET_NOT_FOUND_ERROR: &str = "secret bgp/ext not found";
const NO_ANSWER_ERROR: &str = "no answer to our SYN; is the password right?";

impl PeeringFixture {
    fn last_error(&self, address: &str) -> String {
        self.session(address)["error"].as_str().unwrap_or_default().to_owned()
    }

    /// Returns the health report, which includes sessions that are not established.
    fn health_of_bgp(&self) -> String {
        self.ask("health").to_string()
    }
}

#[test]
fn only_current_password_errors_are_reported() {
    let world = PeeringFixture::new();
    let router = world.router(RouterConfig {
        number: 2,
        asn: 65001,
        password: Some("right".into()),
        ..RouterConfig::default()
    });
    let addresses = [false, true].map(|v6| router.address(v6));
    let secret = json!({"password": {"secretKeyRef": {"name": "bgp", "key": "ext"}}});
    world.peer("ext", &router, 65001, &secret);
    let reported = |what: &str, error: &str| {
        eventually_showing(
            what,
            || addresses.iter().all(|address| world.last_error(address).contains(error)),
            || world.picture(),
        );
    };
    reported("the secret is missed", SECRET_NOT_FOUND_ERROR);
    eventually_showing(
        "health names the secret",
        || world.health_of_bgp().contains(SECRET_NOT_FOUND_ERROR),
        || world.health_of_bgp(),
    );
    assert!(
        addresses.iter().all(|address| world.session(address)["state"] != "Established"),
        "never without a password: {}",
        world.picture()
    );

    let file = world.path("secrets/bgp/ext");
    std::fs::create_dir(world.path("secrets/bgp")).unwrap();
    std::fs::write(&file, "wrong").unwrap();
    reported("a wrong password is suspected", NO_ANSWER_ERROR);

    std::fs::write(&file, "right").unwrap();
    world.wait_until_up(&router);
    eventually_showing(
        "no error stands beside a session that is up",
        || {
            let healthy = |address: &String| {
                let session = world.session(address);
                session["state"] == "Established" && session["error"] == Value::Null
            };
            addresses.iter().all(healthy) && !world.health_of_bgp().contains(SECRET_NOT_FOUND_ERROR)
        },
        || world.picture(),
    );

    // Changed under an established session: the session goes down and reports the reason.
    std::fs::write(&file, "changed").unwrap();
    reported("the changed password is suspected", NO_ANSWER_ERROR);
    std::fs::write(&file, "right").unwrap();
    world.wait_until_up(&router);
}
