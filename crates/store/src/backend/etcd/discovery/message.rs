//! Encoding of DNS queries for SRV records and decoding of the responses (RFC 1035, RFC 2782).

const SRV_TYPE: u16 = 33;
const INTERNET_CLASS: u16 = 1;
const RESPONSE_FLAG: u16 = 0x8000;
const TRUNCATED_FLAG: u16 = 0x0200;
const RECURSION_DESIRED_FLAG: u16 = 0x0100;
const RCODE_MASK: u16 = 0x000f;
const RCODE_NXDOMAIN: u16 = 3;
const HEADER_BYTES: usize = 12;
const MAX_LABEL_BYTES: usize = 63;
const MAX_NAME_BYTES: usize = 255;
/// Maximum number of compression pointers in a name. A name cannot have more labels than this, so more pointers form a
/// loop.
const MAX_COMPRESSION_POINTERS: usize = 128;

/// An SRV record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SrvRecord {
    pub priority: u16,
    pub weight: u16,
    pub port: u16,
    pub target: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SrvResponse {
    /// Sorted by priority, then weight; empty if the name does not exist.
    Services(Vec<SrvRecord>),
    /// The response did not fit: repeat the query over TCP.
    Truncated,
    Refused(u16),
}

/// Encodes a query; `None` if `name` is not a valid domain name.
pub fn question(id: u16, name: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    for word in [id, RECURSION_DESIRED_FLAG, 1, 0, 0, 0] {
        bytes.extend(word.to_be_bytes());
    }
    for label in name.split('.') {
        if label.is_empty() || label.len() > MAX_LABEL_BYTES || !label.is_ascii() {
            return None;
        }
        bytes.push(u8::try_from(label.len()).ok()?);
        bytes.extend(label.as_bytes());
    }
    bytes.push(0);
    if bytes.len() > HEADER_BYTES + MAX_NAME_BYTES {
        return None;
    }
    for word in [SRV_TYPE, INTERNET_CLASS] {
        bytes.extend(word.to_be_bytes());
    }
    Some(bytes)
}

/// Decodes a response; `None` for any message that is not the response to this query.
pub fn answer(id: u16, name: &str, bytes: &[u8]) -> Option<SrvResponse> {
    let mut reader = DnsReader { bytes, at: 0 };
    let its_id = reader.word()?;
    let flags = reader.word()?;
    let questions = reader.word()?;
    let answers = reader.word()?;
    let _authorities_and_additions = (reader.word()?, reader.word()?);
    if its_id != id || flags & RESPONSE_FLAG == 0 || questions != 1 {
        return None;
    }
    if !reader.name()?.eq_ignore_ascii_case(name)
        || reader.word()? != SRV_TYPE
        || reader.word()? != INTERNET_CLASS
    {
        return None;
    }
    match flags & RCODE_MASK {
        0 if flags & TRUNCATED_FLAG != 0 => return Some(SrvResponse::Truncated),
        0 | RCODE_NXDOMAIN => {}
        code => return Some(SrvResponse::Refused(code)),
    }
    let mut services = Vec::new();
    for _ in 0..answers {
        reader.name()?;
        let kind = reader.word()?;
        let class = reader.word()?;
        let _time_to_live = (reader.word()?, reader.word()?);
        let length = usize::from(reader.word()?);
        let end = reader.at.checked_add(length)?;
        // CNAME records may precede the SRV records.
        if kind == SRV_TYPE && class == INTERNET_CLASS {
            let priority = reader.word()?;
            let weight = reader.word()?;
            let port = reader.word()?;
            let target = reader.name()?;
            // RFC 2782: a target of "." means that the service is not available at this domain.
            if !target.is_empty() {
                services.push(SrvRecord { priority, weight, port, target });
            }
        }
        reader.at = end;
    }
    services.sort_by_key(|service| (service.priority, std::cmp::Reverse(service.weight)));
    Some(SrvResponse::Services(services))
}

/// Reads forward; every read is bounds-checked.
struct DnsReader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl DnsReader<'_> {
    fn byte(&mut self) -> Option<u8> {
        let byte = *self.bytes.get(self.at)?;
        self.at += 1;
        Some(byte)
    }

    fn word(&mut self) -> Option<u16> {
        Some(u16::from_be_bytes([self.byte()?, self.byte()?]))
    }

    /// Reads a domain name, without the final dot, following compression pointers.
    fn name(&mut self) -> Option<String> {
        let mut name = String::new();
        let mut resume = None;
        let mut jumps = 0;
        loop {
            let length = self.byte()?;
            match length {
                0 => break,
                1..=63 => {
                    let end = self.at.checked_add(length.into())?;
                    let label = std::str::from_utf8(self.bytes.get(self.at..end)?).ok()?;
                    if !name.is_empty() {
                        name.push('.');
                    }
                    name.push_str(label);
                    self.at = end;
                }
                0xc0.. => {
                    let target = usize::from(u16::from_be_bytes([length & 0x3f, self.byte()?]));
                    resume.get_or_insert(self.at);
                    self.at = target;
                    jumps += 1;
                }
                _ => return None,
            }
            if jumps > MAX_COMPRESSION_POINTERS || name.len() > MAX_NAME_BYTES {
                return None;
            }
        }
        if let Some(resume) = resume {
            self.at = resume;
        }
        Some(name)
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Builds a response as a server does: the record's name is a compression pointer to the question.
    pub fn reply(question: &[u8], flags: u16, services: &[(u16, u16, u16, &str)]) -> Vec<u8> {
        let mut bytes = question.to_vec();
        bytes[2..4].copy_from_slice(&(RESPONSE_FLAG | flags).to_be_bytes());
        bytes[6..8].copy_from_slice(&u16::try_from(services.len()).unwrap().to_be_bytes());
        for (priority, weight, port, target) in services {
            let mut data = Vec::new();
            for word in [priority, weight, port] {
                data.extend(word.to_be_bytes());
            }
            for label in target.split('.').filter(|label| !label.is_empty()) {
                data.push(u8::try_from(label.len()).unwrap());
                data.extend(label.as_bytes());
            }
            data.push(0);
            bytes.extend([0xc0, 12]);
            for word in [SRV_TYPE, INTERNET_CLASS, 0, 60, u16::try_from(data.len()).unwrap()] {
                bytes.extend(word.to_be_bytes());
            }
            bytes.extend(data);
        }
        bytes
    }

    const NAME: &str = "_etcd-client._tcp.example";

    #[test]
    fn services_come_by_priority_and_weight() {
        let question = question(7, NAME).unwrap();
        let bytes = reply(
            &question,
            0,
            &[(2, 0, 1, "c"), (1, 5, 2, "b.example"), (1, 9, 3, "a.example"), (0, 0, 4, "")],
        );
        let Some(SrvResponse::Services(services)) = answer(7, "_ETCD-client._tcp.example", &bytes) else {
            panic!()
        };
        let seen: Vec<_> = services.iter().map(|service| (service.target.as_str(), service.port)).collect();
        assert_eq!(seen, [("a.example", 3), ("b.example", 2), ("c", 1)]);
    }

    #[test]
    fn only_our_answer_counts() {
        let question = question(7, NAME).unwrap();
        let bytes = reply(&question, 0, &[(0, 0, 1, "a")]);
        assert_eq!(answer(8, NAME, &bytes), None);
        assert_eq!(answer(7, "_etcd-client._tcp.other", &bytes), None);
        assert_eq!(answer(7, NAME, &question), None);
        assert_eq!(answer(7, NAME, &reply(&question, TRUNCATED_FLAG, &[])), Some(SrvResponse::Truncated));
        assert_eq!(
            answer(7, NAME, &reply(&question, RCODE_NXDOMAIN, &[])),
            Some(SrvResponse::Services(vec![]))
        );
        assert_eq!(answer(7, NAME, &reply(&question, 5, &[])), Some(SrvResponse::Refused(5)));
    }

    #[test]
    fn names_that_point_in_circles_end() {
        let mut bytes = reply(&question(7, NAME).unwrap(), 0, &[(0, 0, 1, "a")]);
        let end = bytes.len();
        // Replace the target's label with a compression pointer to itself.
        let own = u16::try_from(end - 3).unwrap();
        bytes[end - 3..end - 1].copy_from_slice(&(0xc000 | own).to_be_bytes());
        assert_eq!(answer(7, NAME, &bytes), None);
    }

    #[test]
    fn no_domain_no_question() {
        for name in ["", "a..b", "ä.example", &"x".repeat(64), &["label"; 60].join(".")] {
            assert_eq!(question(1, name), None, "{name}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_harm(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = answer(7, NAME, &bytes);
            let mut reply = question(7, NAME).unwrap();
            reply[2] = 0x80;
            reply[7] = 9;
            reply.extend(bytes);
            let _ = answer(7, NAME, &reply);
        }
    }
}
