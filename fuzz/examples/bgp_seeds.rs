//! Writes seeds for the targets `bgp_message` and `bgp_session`: `cargo run --example bgp_seeds`.

use std::path::Path;

/// ORIGIN, AS_PATH 65001, NEXT_HOP 10.0.0.66.
const COMMON: &[u8] =
    &[0x40, 1, 1, 0, 0x40, 2, 6, 2, 1, 0, 0, 0xfd, 0xe9, 0x40, 3, 4, 10, 0, 0, 66];
/// 2001:db8::/32 with next hop fd00::66.
const REACH: &[u8] = &[
    0x80, 14, 26, 0, 2, 1, 16, 0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x66, 0, 32, 0x20, 1, 0xd, 0xb8,
];
const COMMUNITIES: &[u8] = &[0xc0, 8, 4, 0xfd, 0xe9, 0, 1, 0xc0, 32, 12, 0, 0, 0xfd, 0xe9, 0, 0, 0, 1, 0, 0, 0, 2];
const UNKNOWN: &[u8] = &[0xc0, 200, 3, 1, 2, 3];

fn main() -> std::io::Result<()> {
    let update = |attributes: &[u8]| {
        let mut body = vec![0, 0];
        body.extend((attributes.len() as u16).to_be_bytes());
        body.extend(attributes);
        body.extend([24, 192, 0, 2]);
        message(2, &body)
    };
    let open = [4, 0xfd, 0xe9, 0, 90, 10, 0, 0, 66, 14, 2, 12, 1, 4, 0, 1, 0, 1, 65, 4, 0, 0, 0xfd, 0xe9];
    write("bgp_message", "open", &message(1, &open))?;
    write("bgp_message", "update", &update(&[COMMON, COMMUNITIES].concat()))?;
    write("bgp_message", "update6", &update(&[COMMON, REACH].concat()))?;
    write("bgp_message", "withdraw", &message(2, &[0, 4, 24, 192, 0, 2, 0, 0]))?;
    write("bgp_message", "notification", &message(3, &[6, 2, 3, b'b', b'y', b'e']))?;
    write("bgp_message", "keepalive", &message(4, &[]))?;
    write("bgp_message", "refresh", &message(5, &[0, 1, 0, 1]))?;

    let up = script(&[(0, &[]), (1, &[]), (7, &[])]);
    for (name, rest) in [
        ("update", script(&[(4, COMMON), (4, &[COMMON, COMMUNITIES, UNKNOWN].concat())])),
        ("update6", script(&[(4, &[COMMON, REACH].concat()), (4, &[0x80, 15, 3, 0, 2, 1])])),
        ("withdraw", script(&[(4, COMMON), (3, &[2, 0, 4, 24, 192, 0, 2, 0, 0])])),
        ("refresh", script(&[(4, COMMON), (3, &[5, 0, 1, 1, 1]), (3, &[5, 0, 1, 0, 1]), (3, &[5, 0, 1, 2, 1])])),
        ("flap", script(&[(4, COMMON), (5, &[]), (0, &[]), (1, &[]), (7, &[]), (6, &[200])])),
        ("raw", script(&[(2, &update(COMMON)), (2, &message(3, &[6, 4]))])),
    ] {
        write("bgp_session", name, &[up.clone(), rest].concat())?;
    }
    Ok(())
}

fn message(kind: u8, body: &[u8]) -> Vec<u8> {
    let mut message = vec![0xff; 16];
    message.extend((19 + body.len() as u16).to_be_bytes());
    message.push(kind);
    message.extend(body);
    message
}

fn script(steps: &[(u8, &[u8])]) -> Vec<u8> {
    steps.iter().flat_map(|(kind, data)| [&[*kind][..], &(data.len() as u16).to_be_bytes(), data].concat()).collect()
}

fn write(target: &str, name: &str, bytes: &[u8]) -> std::io::Result<()> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("seeds").join(target);
    std::fs::create_dir_all(&dir)?;
    std::fs::write(dir.join(name), bytes)
}
