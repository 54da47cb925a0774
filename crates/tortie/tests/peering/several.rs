//! All paths to a prefix are advertised to a router with ADD-PATH, and the best path to others.

use crate::router::{BirdRouter, RouterConfig};
use crate::world::PeeringFixture;
use serde_json::json;
use tortie_testkit::eventually_showing;

const SOURCE_PREFIXES: [&str; 2] = ["10.1.0.0/16", "fd01::/32"];

/// Returns the AS paths to the sources' networks that were advertised to a router, per family. The node's own
/// networks pass the filter too and are left out.
fn paths(router: &BirdRouter) -> [Vec<String>; 2] {
    [false, true].map(|v6| {
        let heard = router.heard(v6);
        let of_sources = heard.iter().filter(|(net, _)| SOURCE_PREFIXES.iter().any(|own| net == own));
        let lines = of_sources.flat_map(|(_, attributes)| attributes.lines());
        let mut paths: Vec<String> =
            lines.filter_map(|line| line.strip_prefix("BGP.as_path: ")).map(str::to_owned).collect();
        paths.sort();
        paths
    })
}

#[test]
fn peers_with_add_path_receive_all_paths() {
    let world = PeeringFixture::new();
    let everything = json!([{"action": "Accept"}]);
    world.apply("BGPFilter", "everything", &json!({"exportV4": everything, "exportV6": everything}));
    let sources: Vec<BirdRouter> = [(2, 65001), (3, 65002)]
        .into_iter()
        .map(|(number, asn)| {
            let announces = SOURCE_PREFIXES.map(|net| (net.to_owned(), String::new())).into();
            let router = world.router(RouterConfig { number, asn, announces, ..RouterConfig::default() });
            world.peer(&format!("source{number}"), &router, asn, &json!({}));
            router
        })
        .collect();
    let listen = |number: u8, asn: u32, add_paths: bool| {
        let router = world.router(RouterConfig { number, asn, add_paths, ..RouterConfig::default() });
        world.peer(&format!("listener{number}"), &router, asn, &json!({"filters": ["everything"]}));
        router
    };
    let (all, best) = (listen(4, 65003, true), listen(5, 65004, false));
    sources.iter().chain([&all, &best]).for_each(|router| world.wait_until_up(router));

    let expect = |what: &str, advertised: &[&str], single: usize| {
        let wanted: Vec<String> = advertised.iter().map(|path| (*path).to_owned()).collect();
        let so = || {
            paths(&all) == [wanted.clone(), wanted.clone()]
                && paths(&best)
                    .iter()
                    .all(|paths| paths.len() == single && paths.iter().all(|p| wanted.contains(p)))
        };
        let picture = || {
            let routers = sources.iter().map(|router| router.birdc("show protocols all"));
            let (all, best) = (paths(&all), paths(&best));
            format!("{all:?} {best:?}\n{}\n{}", world.picture(), routers.collect::<String>())
        };
        eventually_showing(what, so, picture);
    };
    expect("both paths are advertised", &["64512 65001", "64512 65002"], 1);
    sources[0].announce(false);
    expect("one is left", &["64512 65002"], 1);
    sources[0].announce(true);
    expect("both are advertised again", &["64512 65001", "64512 65002"], 1);
    sources.iter().for_each(|router| router.announce(false));
    expect("none is left", &[], 0);
}
